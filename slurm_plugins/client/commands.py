"""The client over Slurm's own commands, in text formats with pinned fields.

>>> from slurm_plugins.client.commands import CommandClient
>>> CommandClient().job(4711).state            # doctest: +SKIP
<JobState.RUNNING: 'RUNNING'>

Imports nothing outside the standard library: `gsub SCRIPT` runs it.
"""

from __future__ import annotations

import re
from time import time as now

from .errors import NoSuchJob, SlurmFormatError, SlurmUnreachable
from .runner import Completed, Runner, check, complaint
from .submission import SUBMITTED, Submission

# `gsub SCRIPT` waits for this import and only submits: what decodes answers (14 ms) is imported by the methods that
# read. And as typing.TYPE_CHECKING, without the 2 ms of typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from .protocol import JobId
    from .tables import Row
    from .values import AccountingRecord, Job, Node, Partition, StartEstimate
    from .versions import FieldTable, Version

__all__ = ["CommandClient", "valid_id"]

_JOB_ID = re.compile(r"\d+(?:_(?:\d+|\[[\d,%:-]+\])|\+\d+)?")
# Where free text stands at the end of a node's record, in this order (slurm_sprint_node_table in node_info.c)
_NODE_TEXTS = ("Reason", "Comment", "Extra")
_DAY = 86400


class CommandClient:
    """`SlurmClient` over sbatch, squeue, scontrol, sacct and scancel.

    ``env`` is the environment of the commands (SLURM_CONF, PATH); for those that read, variables that change their
    output are taken out. ``timeout`` is the deadline of one command in seconds. ``run`` replaces what runs a
    command, for a cluster that is reached by other means (a container, a chroot): it has the signature of
    `Runner.run`.
    """

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        *,
        timeout: float | None = 60.0,
        run: Callable[..., Completed] | None = None,
    ) -> None:
        self._runner = Runner(env, timeout=timeout, run=run)
        self._version: Version | None = None

    def version(self) -> Version:
        """See `SlurmClient.version`. Asked once."""
        from .versions import NEWEST, Version

        if self._version is None:
            self._version = Version.parse(check(self._runner.read(["squeue", "--version"])).stdout)
            if self._version.release > NEWEST.release:
                _warn_once(self._version)
        return self._version

    @property
    def _fields(self) -> FieldTable:
        from .versions import fields_for

        return fields_for(self.version())

    def jobs(self, *, ids: Iterable[JobId] | None = None, user: str | None = None) -> tuple[Job, ...]:
        """See `SlurmClient.jobs`."""
        selection = []
        wanted = None if ids is None else [valid_id(job_id) for job_id in ids]
        if wanted is not None:
            if not wanted:
                return ()
            selection.append(f"--jobs={','.join(wanted)}")
        if user is not None:
            selection.append(f"--user={user}")
        try:
            return self._squeue(selection, job_id=wanted[0] if wanted else None)
        except NoSuchJob:
            # squeue fails when it is asked about one id that is gone, and leaves it out when it is asked about two
            return ()

    def job(self, job_id: JobId) -> Job:
        """See `SlurmClient.job`."""
        wanted = valid_id(job_id)
        found = self._squeue([f"--jobs={wanted}"], job_id=wanted)
        if not found:
            raise SlurmFormatError(f"squeue neither knows job {wanted} nor says that there is none", "")
        exact = [job for job in found if wanted in (job.shown_id, str(job.id))]
        return (exact or found)[0]

    def _squeue(self, selection: Sequence[str], *, job_id: str | None) -> tuple[Job, ...]:
        from . import decode

        fields = self._fields
        found = self._squeue_table(fields.squeue, selection, job_id=job_id, option="-O")
        if fields.squeue_short and found:
            # Values that only -o has: a second look. A job that came or went between the two has them unknown.
            short = {"id": "%A", **fields.squeue_short}
            more = {
                row["id"]: row for row in self._squeue_table(short, selection, job_id=job_id, option="-o")
            }
            found = [{**more.get(row["id"], {}), **row} for row in found]
        return tuple(
            sorted((decode.job(row) for row in found), key=lambda job: (job.id, job.array_tasks is None))
        )

    def _squeue_table(
        self, fields: Mapping[str, str], selection: Sequence[str], *, job_id: str | None, option: str
    ) -> list[Row]:
        from .tables import Separator, dropped_fields, rows

        separator = Separator()
        names = tuple(fields.values())
        layout = separator.long_format(names) if option == "-O" else separator.short_format(names)
        argv = ["squeue", "--noheader", "--noconvert", "--all", "--states=all", *selection, option, layout]
        done = check(self._runner.read(argv), job_id=job_id)
        dropped = dropped_fields(done.stderr)
        columns = [ours for ours, theirs in fields.items() if theirs not in dropped]
        return list(rows(done.stdout, separator, columns))

    def nodes(self) -> tuple[Node, ...]:
        """See `SlurmClient.nodes`."""
        from . import inventory
        from .tables import scontrol_records

        done = check(self._runner.read(["scontrol", "--oneliner", "--all", "show", "node"]))
        return tuple(map(inventory.node, scontrol_records(done.stdout, "NodeName", _NODE_TEXTS)))

    def partitions(self) -> tuple[Partition, ...]:
        """See `SlurmClient.partitions`."""
        from . import inventory
        from .tables import scontrol_records

        done = check(self._runner.read(["scontrol", "--oneliner", "--all", "show", "partition"]))
        return tuple(map(inventory.partition, scontrol_records(done.stdout, "PartitionName", ())))

    def accounting(
        self,
        *,
        ids: Iterable[JobId] | None = None,
        user: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        duplicates: bool = True,
    ) -> tuple[AccountingRecord, ...]:
        """See `SlurmClient.accounting`."""
        from . import decode
        from .tables import Separator, rows

        selection = []
        if ids is not None:
            wanted = [valid_id(job_id) for job_id in ids]
            if not wanted:
                return ()
            selection.append(f"--jobs={','.join(wanted)}")
        selection.append("--allusers" if user is None else f"--user={user}")
        # "uts": seconds since 1970, free of time zones (parse_time.c). With --jobs and no start sacct looks at all
        # of history.
        if since is not None or ids is None:
            selection.append(f"--starttime=uts{int(since.timestamp() if since else now() - _DAY)}")
        if until is not None:
            selection.append(f"--endtime=uts{int(until.timestamp())}")
        separator = Separator()
        fields = self._fields.sacct
        argv = [
            "sacct",
            "--noheader",
            "--allocations",
            "--duplicates",
            "--parsable",
            f"--delimiter={separator.text}",
        ]
        argv += [f"--format={','.join(fields.values())}", *selection]
        done = check(self._runner.read(argv, daemon="slurmdbd"))
        records = decode.count_attempts(
            decode.accounting_record(row) for row in rows(done.stdout, separator, tuple(fields))
        )
        return records if duplicates else decode.last_attempts(records)

    def submit(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
    ) -> Submission:
        """See `SlurmClient.submit`."""
        done = self._runner.write(["sbatch", *argv], stdin=_bytes(stdin), env=env, timeout=timeout)
        # The last such line: a site's cli_filter may print lines of its own before it.
        said = list(SUBMITTED.finditer(done.stdout))
        if done.returncode and not said:
            raise complaint(done)
        # With --wait the exit code is the job's; the job was submitted all the same.
        number, cluster = (said[-1][1] or said[-1][3], said[-1][2] or said[-1][4]) if said else (None, None)
        return Submission(int(number) if number else None, cluster, done.stdout, done.stderr)

    def test_only(
        self, argv: Sequence[str], *, stdin: bytes | str | None = None, env: Mapping[str, str] | None = None
    ) -> StartEstimate:
        """See `SlurmClient.test_only`."""
        from . import decode

        environment = {**(self._runner.env if env is None else env), "SLURM_TIME_FORMAT": "%s"}
        done = check(
            self._runner.write(
                ["sbatch", "--test-only", *argv], stdin=_bytes(stdin), env=environment, timeout=60.0
            )
        )
        return decode.start_estimate(done.stderr)

    def cancel(self, ids: Iterable[JobId], *, signal: str | None = None, batch_only: bool = False) -> None:
        """See `SlurmClient.cancel`."""
        wanted = [valid_id(job_id) for job_id in ids]
        if not wanted:
            return
        # Without --verbose scancel is silent about ids that do not exist, with exit code 0.
        argv = [
            "scancel",
            "--verbose",
            *([f"--signal={signal}"] if signal else []),
            *(["--batch"] if batch_only else []),
        ]
        done = self._runner.read([*argv, *wanted])
        gone = re.findall(r"on job id (\S+): Invalid job id", done.stderr)
        # Ended already, or ending: what was asked for is so.
        rest = [
            line
            for line in done.stderr.splitlines()
            if "error:" in line
            and "Invalid job id" not in line
            and "already completing or completed" not in line
        ]
        if rest or (done.returncode and not gone):
            raise complaint(
                Completed(done.command, done.returncode, done.stdout, "\n".join(rest) or done.stderr)
            )
        if gone:
            raise NoSuchJob(gone[0])

    def ping(self) -> tuple[str, ...]:
        """See `SlurmClient.ping`."""
        done = self._runner.read(["scontrol", "ping"])
        up = re.findall(r"(?m)^Slurmctld\(.*?\) at (\S+) is UP", done.stdout)
        if up:
            return tuple(up)
        if "is DOWN" in done.stdout:
            raise SlurmUnreachable("slurmctld", done.stdout.splitlines()[0])
        raise complaint(done)


def valid_id(job_id: JobId) -> str:
    """The id as Slurm's commands take it. What is no id (``-u``, ``1,2``) never reaches a command line."""
    text = str(job_id)
    if not _JOB_ID.fullmatch(text):
        raise NoSuchJob(job_id, f"{text!r} is not a job id: give a number, ARRAY_TASK or JOB+COMPONENT.")
    return text


def _bytes(script: bytes | str | None) -> bytes | None:
    return script.encode("utf-8", errors="surrogateescape") if isinstance(script, str) else script


_warned: set[tuple[int, int]] = set()


def _warn_once(version: Version) -> None:
    import warnings

    from .versions import NEWEST

    if version.release not in _warned:
        _warned.add(version.release)
        warnings.warn(
            f"Slurm {version} is newer than what gsub was tested with; read as {NEWEST}.", stacklevel=3
        )
