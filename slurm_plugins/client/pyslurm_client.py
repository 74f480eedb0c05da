"""The client over pyslurm's API where that is right: nodes and partitions. All else is the commands'.

pyslurm is libslurm in Python's process, and libslurm ends the process when it finds no configuration, waits a
minute for a silent controller, and holds the interpreter's lock all the while. So it runs in a child
(`pyslurm_child`) with a deadline; a child that dies or hangs is an error that says why, and the next question starts a
new one. A pyslurm that lacks an attribute of the table (`pyslurm_sources`) is refused by name.

Jobs and attempts are not read over pyslurm, for what it loses (25.11.2) cannot be put right: 128 of an exit code,
``%2`` of a waiting array, GPUs that were asked for as ``gres/gpu:3``, names that are not UTF-8, attempts before the
last.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import IO, Any, TypeVar

from . import parse
from .commands import CommandClient
from .errors import (
    SlurmError,
    SlurmFormatError,
    SlurmNotInstalled,
    SlurmRefused,
    SlurmTimeout,
    SlurmUnreachable,
)
from .pyslurm_sources import OLDEST_PYSLURM, SOURCES
from .runner import Completed, complaint, reading_environment
from .tables import Unread, read_rows
from .values import Node, Partition

__all__ = ["PyslurmClient"]

_CHILD = Path(__file__).with_name("pyslurm_child.py")
_MAX_ANSWER = 512 << 20
_MAX_COMPLAINT = 4096
_LIFE = 600.0
"""Seconds after which a child is replaced: an address behind a name may have changed."""
# Where libslurm looks for slurm.conf, unless SLURM_CONF says where
_CONFIGURED = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/usr/local/etc/slurm.conf")
Values = dict[str, Any]
_Value = TypeVar("_Value")


class PyslurmClient(CommandClient):
    """`SlurmClient` that reads nodes and partitions over pyslurm in a child process.

    ``timeout``: seconds for one answer, the start of the child included. ``python``: the interpreter that has
    pyslurm. The child is started at the first question; `close` (or leaving the ``with`` block) ends it.
    """

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        *,
        timeout: float = 60.0,
        run: Callable[..., Completed] | None = None,
        unread: Unread | None = None,
        python: str = sys.executable,
    ) -> None:
        super().__init__(env, timeout=timeout, run=run, unread=unread)
        self._child = _Child(os.environ if env is None else env, python, timeout)

    def close(self) -> None:
        """End the child. A later question starts a new one."""
        self._child.close()

    def __enter__(self) -> PyslurmClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def nodes(self) -> tuple[Node, ...]:
        """See `SlurmClient.nodes`. Without ``tres``: pyslurm does not tell what a node has beside its Gres."""
        return self._ask("nodes", "node", _node)

    def partitions(self) -> tuple[Partition, ...]:
        """See `SlurmClient.partitions`. Without ``tres``."""
        return self._ask("partitions", "partition", _partition)

    def _ask(self, what: str, kind: str, make: Callable[[Values], _Value]) -> tuple[_Value, ...]:
        source = SOURCES[what]
        attributes = [attribute for attribute, _ in source.attributes.values()]
        answer = self._child.ask({"load": source.load, "item": source.item, "attributes": attributes})
        if "error" in answer:
            raise _error(answer)

        def read(item: Values) -> _Value:
            return make({ours: convert(item[ours]) for ours, (_, convert) in source.attributes.items()})

        items = (dict(zip(source.attributes, item, strict=True)) for item in answer["items"])
        return tuple(read_rows(kind, items, "name", read, self._unread or Unread()))


def _error(answer: Values) -> SlurmError:
    message = str(answer.get("message", ""))
    if answer["error"] == "missing":
        return SlurmNotInstalled("pyslurm", f"pyslurm is not installed for {sys.executable}: {message}")
    if answer["error"] == "import":
        return SlurmNotInstalled(
            "pyslurm",
            f"pyslurm cannot be imported: {message}\nIt must be built against this machine's Slurm.",
        )
    if answer["error"] == "unfit":
        return SlurmNotInstalled(
            "pyslurm",
            f"pyslurm {message[:300]}\nInstall {OLDEST_PYSLURM} or newer, built against this machine's Slurm.",
        )
    if answer["error"] == "refused":
        return SlurmRefused("pyslurm", f"pyslurm: {message}")
    return complaint(Completed("pyslurm", 1, "", message))


def _node(values: Values) -> Node:
    state, flags = parse.node_state(values["state"])
    return Node(**{**values, "state": state, "state_text": values["state"], "flags": flags})


def _partition(values: Values) -> Partition:
    return Partition(exclusive="USER" if values.pop("user_exclusive") else None, **values)


class _Child:
    """The child process: started when needed, ended at a deadline, started again after its death.

    One question at a time, whoever asks. A child reads slurm.conf once: it is replaced when a file of the
    configuration has changed.
    """

    def __init__(self, env: Mapping[str, str], python: str, timeout: float) -> None:
        self._env = reading_environment(env)
        self._python = python
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._configured: tuple[object, ...] = ()
        self._began = 0.0
        self._asked = 0
        self._lock = threading.Lock()

    def ask(self, request: Values) -> Values:
        """Return the answer to one request.

        Raises SlurmUnreachable, or what libslurm's last words mean, when the child dies of it; SlurmTimeout.
        """
        with self._lock:
            return self._ask(request)

    def _ask(self, request: Values) -> Values:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None  # noqa: S101  (opened as pipes below)
        self._asked += 1
        try:
            process.stdin.write(json.dumps({**request, "id": self._asked}).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process.stdout.fileno())
        except TimeoutError as error:
            self._end()
            raise SlurmTimeout("pyslurm", self._timeout) from error
        except (BrokenPipeError, EOFError) as error:
            process.wait()
            raise self._death(process.returncode) from error
        except BaseException:
            # an answer is under way that the next question must not take for its own
            self._end()
            raise
        answer: Values = json.loads(line)
        if answer.get("id") != self._asked:
            self._end()
            raise SlurmFormatError(
                "pyslurm's process answered another question", line.decode(errors="replace")
            )
        if "error" in answer:
            self._end()
        return answer

    def close(self) -> None:
        """End the child if there is one."""
        with self._lock:
            self._end()

    def _death(self, code: int) -> SlurmError:
        said = ""
        if self._said is not None:
            size = self._said.seek(0, os.SEEK_END)
            self._said.seek(max(0, size - _MAX_COMPLAINT))
            said = self._said.read().decode(errors="replace")
        self._end()
        why = complaint(Completed("pyslurm", code, "", said))
        if isinstance(why, SlurmUnreachable):
            return why
        last = said.strip().splitlines()[-1:] or [f"exit code {code}"]
        return SlurmUnreachable(
            "slurmctld", f"libslurm ended the process (exit code {code}): {last[0][:300]}"
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        said, self._said = self._said, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        if said is not None:
            said.close()

    def _running(self) -> subprocess.Popen[bytes]:
        configured = self._configuration()
        old = configured != self._configured or monotonic() - self._began > _LIFE
        if self._process is None or self._process.poll() is not None or old:
            self._end()
            self._configured, self._began = configured, monotonic()
            self._said = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the child
            self._process = subprocess.Popen(
                [self._python, str(_CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=self._env,
                # unbuffered: what is asked must not wait in our buffer when the child has died
                bufsize=0,
            )
        return self._process

    def _configuration(self) -> tuple[object, ...]:
        """What changes when a file of Slurm's configuration does."""
        named = self._env.get("SLURM_CONF")
        path = Path(named or next(filter(os.path.exists, _CONFIGURED), _CONFIGURED[0]))
        try:
            files = sorted(path.parent.glob("*.conf"))
            return tuple((one.name, (s := one.stat()).st_mtime_ns, s.st_size, s.st_ino) for one in files)
        except OSError:
            return ()

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
        self._end()
