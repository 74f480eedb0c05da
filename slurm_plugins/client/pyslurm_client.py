"""The client over pyslurm's API, for the read paths: jobs, nodes, partitions, accounting.

pyslurm is libslurm in Python's process, and libslurm ends the process when it finds no configuration, waits a
minute for a silent controller, and holds the interpreter's lock all the while. So it runs in a child
(`pyslurm_child`) with a deadline; a child that dies or hangs is SlurmUnreachable, and the next question starts a
new one. Submitting and cancelling go through the commands: only sbatch applies cli_filter, SPANK and #SBATCH lines
as the user expects.

What pyslurm does not tell, or tells wrongly (25.11.2), is left to the commands or put right here:

- one record a job: its collections are keyed by id, so ``accounting(duplicates=True)`` asks sacct; - exit codes of
128 and above lose 128 (`utils/helpers.pyx`, `_get_exit_code`): not to be put right, so `gsub` does not use it for
verdicts; - index 0 of an array and offset 0 of a heterogeneous job are None (`u32_parse`); - the dependency is
taken apart; what stays of an array loses its ``%2``.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from time import monotonic
from time import time as now
from typing import Any

from . import decode, parse
from .commands import CommandClient, valid_id
from .errors import (
    NoSuchJob,
    SlurmError,
    SlurmFormatError,
    SlurmNotInstalled,
    SlurmRefused,
    SlurmTimeout,
    SlurmUnreachable,
)
from .protocol import JobId
from .pyslurm_sources import SOURCES
from .runner import Completed, complaint, reading_environment
from .states import ExitStatus
from .values import AccountingRecord, Job, Node, Partition, StartEstimate, Submission
from .versions import Version

__all__ = ["PyslurmClient"]

_CHILD = Path(__file__).with_name("pyslurm_child.py")
_DAY = 86400
_MAX_ANSWER = 512 << 20
Values = dict[str, Any]


class PyslurmClient:
    """`SlurmClient` that reads over pyslurm in a child process, and acts over the commands.

    ``timeout``: seconds for one answer, the start of the child included. ``python``: the interpreter that has
    pyslurm. The child is started at the first question; `close` (or leaving the ``with`` block) ends it.
    """

    def __init__(
        self, env: Mapping[str, str] | None = None, *, timeout: float = 60.0, python: str = sys.executable
    ) -> None:
        self._commands = CommandClient(env, timeout=timeout)
        self._child = _Child(os.environ if env is None else env, python, timeout)

    def close(self) -> None:
        """End the child. A later question starts a new one."""
        self._child.end()

    def __enter__(self) -> PyslurmClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def version(self) -> Version:
        """See `SlurmClient.version`."""
        return self._commands.version()

    def jobs(self, *, ids: Iterable[JobId] | None = None, user: str | None = None) -> tuple[Job, ...]:
        """See `SlurmClient.jobs`."""
        wanted = None if ids is None else {valid_id(job_id) for job_id in ids}
        if wanted is not None and not wanted:
            return ()
        found = [_job(values) for values in self._read("jobs")]
        return tuple(
            sorted(
                (job for job in found if _asked_for(job, wanted) and user in (None, job.user)),
                key=lambda job: (job.id, job.array_tasks is None),
            )
        )

    def job(self, job_id: JobId) -> Job:
        """See `SlurmClient.job`."""
        wanted = valid_id(job_id)
        number = int(wanted.replace("+", "_").partition("_")[0])
        found = [_job(values) for values in self._read("job", number, job_id=job_id)]
        exact = [job for job in found if wanted in (job.shown_id, str(job.id))]
        if exact:
            return exact[0]
        # An array or a heterogeneous job: libslurm gave one of its parts.
        parts = self.jobs(ids=[wanted])
        if not parts:
            raise NoSuchJob(job_id)
        exact = [job for job in parts if wanted in (job.shown_id, str(job.id))]
        return (exact or parts)[0]

    def nodes(self) -> tuple[Node, ...]:
        """See `SlurmClient.nodes`. Without ``tres``: pyslurm does not tell what a node has beside its Gres."""
        return tuple(_node(values) for values in self._read("nodes"))

    def partitions(self) -> tuple[Partition, ...]:
        """See `SlurmClient.partitions`. Without ``tres``."""
        return tuple(_partition(values) for values in self._read("partitions"))

    def accounting(
        self,
        *,
        ids: Iterable[JobId] | None = None,
        user: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        duplicates: bool = True,
    ) -> tuple[AccountingRecord, ...]:
        """See `SlurmClient.accounting`. Attempts before the last are known to sacct only, so ``duplicates`` asks it."""
        if duplicates:
            return self._commands.accounting(ids=ids, user=user, since=since, until=until)
        wanted = None if ids is None else [valid_id(job_id) for job_id in ids]
        if wanted is not None and not wanted:
            return ()
        condition: Values = {}
        if wanted is not None:
            condition["ids"] = sorted({int(text.replace("+", "_").partition("_")[0]) for text in wanted})
        if user is not None:
            condition["users"] = [user]
        if since is not None or wanted is None:
            condition["start_time"] = int(since.timestamp() if since else now() - _DAY)
        if until is not None:
            condition["end_time"] = int(until.timestamp())
        records = [_record(values) for values in self._read("accounting", condition=condition)]
        if wanted is not None:
            records = [record for record in records if _asked_for(record, set(wanted))]
        return decode.last_attempts(decode.count_attempts(records))

    def submit(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
    ) -> Submission:
        """See `SlurmClient.submit`; by sbatch."""
        return self._commands.submit(argv, stdin=stdin, env=env, timeout=timeout)

    def test_only(
        self, argv: Sequence[str], *, stdin: bytes | str | None = None, env: Mapping[str, str] | None = None
    ) -> StartEstimate:
        """See `SlurmClient.test_only`; by sbatch."""
        return self._commands.test_only(argv, stdin=stdin, env=env)

    def cancel(self, ids: Iterable[JobId], *, signal: str | None = None, batch_only: bool = False) -> None:
        """See `SlurmClient.cancel`; by scancel."""
        self._commands.cancel(ids, signal=signal, batch_only=batch_only)

    def ping(self) -> tuple[str, ...]:
        """See `SlurmClient.ping`; by scontrol."""
        return self._commands.ping()

    def _read(
        self, what: str, *arguments: int, condition: Values | None = None, job_id: JobId | None = None
    ) -> list[Values]:
        source = SOURCES[what]
        daemon = "slurmdbd" if what == "accounting" else "slurmctld"
        request: Values = {"load": source.load, "arguments": arguments}
        request["attributes"] = [attribute for attribute, _ in source.attributes.values()]
        if condition is not None:
            request["filter"] = condition
        answer = self._child.ask(request, daemon)
        if "error" in answer:
            raise _error(answer, daemon, job_id)
        return [
            {
                ours: convert(value)
                for (ours, (_, convert)), value in zip(source.attributes.items(), item, strict=True)
            }
            for item in answer["items"]
        ]


def _error(answer: Values, daemon: str, job_id: JobId | None) -> SlurmError:
    message = str(answer.get("message", ""))
    if answer["error"] == "import":
        return SlurmNotInstalled(f"pyslurm ({message})")
    if answer["error"] == "old":
        return SlurmFormatError(
            "this pyslurm is older than 22.5.0 or newer than all that gsub knows", message
        )
    if answer["error"] == "refused":
        return SlurmRefused("pyslurm", message)
    if daemon == "slurmdbd":
        # "Failed to get Jobs from slurmdbd", "Failed to open connection to slurmdbd": pyslurm says no more
        return SlurmUnreachable("slurmdbd", message)
    return complaint(Completed("pyslurm", 1, "", message), job_id=job_id)


def _asked_for(item: Job | AccountingRecord, wanted: set[str] | None) -> bool:
    if wanted is None:
        return True
    return bool(wanted & {str(item.id), item.shown_id, str(item.array_job_id), str(item.het_job_id)})


def _identity(values: Values) -> None:
    """Put right what pyslurm takes for nothing: index 0 of an array, offset 0 of a heterogeneous job."""
    if values["array_job_id"] is None:
        values["array_task_id"] = None
    elif values["array_task_id"] is None and values["array_tasks"] is None:
        values["array_task_id"] = 0
    values["het_offset"] = None if values["het_job_id"] is None else values["het_offset"] or 0


def _outcome(values: Values) -> None:
    """State and exit codes from pyslurm's words and numbers."""
    state = parse.job_state(values["state"])
    values |= {"state_text": values["state"], "state": state.state, "flags": state.flags}
    values["start"] = decode.started(values["start"], state.state, values["nodes"])
    for name, code, signal in (
        ("exit", "exit_code", "exit_signal"),
        ("derived_exit", "derived_code", "derived_signal"),
    ):
        values[name] = ExitStatus(values.pop(code) or 0, values.pop(signal) or 0)


def _job(values: Values) -> Job:
    _identity(values)
    _outcome(values)
    allocated, requested = values.pop("tres_allocated"), values.pop("tres_requested")
    values["tres"] = allocated or requested
    values["exclusive"] = decode.exclusive(values.pop("sharing"))
    values["nice"] = values["nice"] or 0
    values["restarts"] = values["restarts"] or 0
    if not values["switches"]:
        values["switches"] = values["switches_wait"] = None
    values["gpus"] = decode.requested_gpus(values)
    return Job(**values)


def _node(values: Values) -> Node:
    state, flags = parse.node_state(values["state"])
    return Node(**{**values, "state": state, "state_text": values["state"], "flags": flags})


def _partition(values: Values) -> Partition:
    return Partition(exclusive="USER" if values.pop("user_exclusive") else None, **values)


def _record(values: Values) -> AccountingRecord:
    _identity(values)
    _outcome(values)
    return AccountingRecord(gpus=decode.accounted_gpus(values["tres"], values["tres_requested"]), **values)


class _Child:
    """The child process: started when needed, ended at a deadline, started again after its death."""

    def __init__(self, env: Mapping[str, str], python: str, timeout: float) -> None:
        self._env = reading_environment(env)
        self._python = python
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = 0

    def ask(self, request: Values, daemon: str) -> Values:
        """The answer to one request. Raises SlurmUnreachable (naming ``daemon``) when the child dies of it,
        SlurmTimeout.
        """
        process = self._running()
        assert process.stdin is not None and process.stdout is not None  # noqa: S101  (opened as pipes below)
        self._asked += 1
        try:
            process.stdin.write(json.dumps({**request, "id": self._asked}).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process.stdout.fileno())
        except TimeoutError as error:
            self.end()
            raise SlurmTimeout("pyslurm", self._timeout, daemon) from error
        except (BrokenPipeError, EOFError) as error:
            process.wait()
            self.end()
            raise SlurmUnreachable(
                daemon, f"libslurm ended the process (exit code {process.returncode})"
            ) from error
        except BaseException:
            # an answer is under way that the next question must not take for its own
            self.end()
            raise
        answer: Values = json.loads(line)
        if answer.get("id") != self._asked:
            self.end()
            raise SlurmFormatError(
                "pyslurm's process answered another question", line.decode(errors="replace")
            )
        return answer

    def end(self) -> None:
        """End the child if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.end()
            self._process = subprocess.Popen(
                [self._python, str(_CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # libslurm's complaints come back as our errors; its log lines are nobody's
                stderr=subprocess.DEVNULL,
                env=self._env,
                # unbuffered: what is asked must not wait in our buffer when the child has died
                bufsize=0,
            )
        return self._process

    def _line(self, descriptor: int) -> bytes:
        deadline = monotonic() + self._timeout
        line = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - monotonic())):
                    raise TimeoutError
                data = os.read(descriptor, 1 << 20)
                if not data or len(line) > _MAX_ANSWER:
                    raise EOFError
                line += data
        return bytes(line)

    def __del__(self) -> None:
        self.end()
