"""The client over Slurm's own commands, in text formats with pinned fields.

>>> from slurm_plugins.client.commands import CommandClient
>>> CommandClient().job(4711).state            # doctest: +SKIP
<JobState.RUNNING: 'RUNNING'>

Imports nothing outside the standard library: `gsub SCRIPT` runs it.
"""

from __future__ import annotations

import codecs
import re
from contextlib import contextmanager
from time import time as now

from .errors import NoSuchJob, SlurmFormatError, SlurmRefused, SlurmUnreachable
from .runner import Completed, Runner, check, complaint
from .submission import LAST_JOB_ID, SUBMITTED, Submission

# `gsub SCRIPT` waits for this import and only submits: what decodes answers (14 ms) is imported by the methods that
# read. And as typing.TYPE_CHECKING, without the 2 ms of typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from typing import TypeVar

    from .protocol import JobId
    from .states import JobState
    from .tables import Row, Unread
    from .values import AccountingRecord, Job, Node, Partition, StartEstimate
    from .versions import FieldTable, Version

    _Value = TypeVar("_Value")

__all__ = ["CommandClient", "valid_id"]

_JOB_ID = re.compile(r"([0-9]+)(?:_(?:[0-9]+|\[[0-9,%:-]+\])|\+[0-9]+)?")
# How squeue and sacct refuse a whole list for one id in it, where they do
_INVALID_ID = ("Invalid job id", "Invalid job array", "Bad job array", "Bad job/step", "Bad job id")
# Where free text stands at the end of a node's record, in this order (slurm_sprint_node_table in node_info.c)
_NODE_TEXTS = ("Reason", "Comment", "Extra")
_INVALID_USER = "Invalid user"
_NO_VALUE = ("", "(null)")
_DAY = 86400
_AT_ONCE = 4000  # a word of a command line has 128 KiB


class CommandClient:
    """`SlurmClient` over sbatch, squeue, scontrol, sacct and scancel.

    ``env`` is the environment of the commands (SLURM_CONF, PATH); for those that read, variables that change their
    output are taken out. ``timeout`` is the deadline of one command in seconds. ``run`` replaces what runs a
    command, for a cluster that is reached by other means (a container, a chroot): it has the signature of
    `Runner.run`. Rows that cannot be read are left out of answers, and counted in ``unread``.
    """

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        *,
        timeout: float | None = 60.0,
        run: Callable[..., Completed] | None = None,
        unread: Unread | None = None,
    ) -> None:
        self._runner = Runner(env, timeout=timeout, run=run)
        self._version: Version | None = None
        self._unread = unread

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

    def jobs(
        self,
        *,
        ids: Iterable[JobId] | None = None,
        user: str | Collection[int] | None = None,
        state: JobState | None = None,
        partition: str | None = None,
        values: Collection[str] | None = None,
    ) -> tuple[Job, ...]:
        """See `SlurmClient.jobs`."""
        from . import decode

        uids = None if user is None or isinstance(user, str) else frozenset(user)
        if uids is not None and not uids:
            return ()
        name = user if uids is None else ",".join(map(str, sorted(uids)))
        of_user = [] if name is None else [f"--user={name}"]
        # The later --states counts
        filters = [] if state is None else [f"--states={state.value}"]
        filters += [] if partition is None else [f"--partition={partition}"]

        def of(wanted: Sequence[str]) -> tuple[Job, ...]:
            return self._squeue([f"--jobs={','.join(wanted)}", *of_user, *filters], values)

        # squeue fails when it is asked about one id that is gone, and leaves it out when it is asked about two
        asked = () if ids is None else tuple(ids)
        if ids is not None:
            found = self._of_ids(asked, of, _number_of)
        elif uids is not None:
            found = self._of_uids(uids, of_user, filters, values)
        else:
            found = self._squeue([*of_user, *filters], values)
        folded = decode.folded_tasks(found, asked)[:_AT_ONCE]
        if not folded:
            return _in_order(found)
        try:
            tasks = self._of_ids(folded, of, _number_of)
        except SlurmFormatError:
            tasks = ()  # none of them can be read; they are counted, and do not lose the others
        return _in_order(decode.unfold(found, tasks))

    def job(self, job_id: JobId) -> Job:
        """See `SlurmClient.job`."""
        wanted = valid_id(job_id)
        try:
            found = self._squeue([f"--jobs={wanted}"])
        except SlurmRefused as error:
            raise NoSuchJob(job_id) if _is_invalid_id(error) else error from None
        if not found:
            raise SlurmFormatError(f"squeue neither knows job {wanted} nor says that there is none", "")
        exact = [job for job in found if wanted in (job.shown_id, str(job.id))]
        return (exact or _in_order(found))[0]

    def _of_ids(
        self,
        ids: Iterable[JobId],
        ask: Callable[[Sequence[str]], tuple[_Value, ...]],
        key: Callable[[_Value], object],
    ) -> tuple[_Value, ...]:
        """Ask about jobs by their ids; what is no job's id, or is refused by Slurm, does not lose the rest.

        ``key`` names a value: of those that two answers have, one is kept.

        Where Slurm refuses a list for an id in it, the others are asked for again: without the ids that its message
        names, else one half after the other.
        """
        wanted = [text for text, number in map(_split_id, ids) if number]
        found: dict[object, _Value] = {}
        parts = [wanted] if wanted else []
        while parts:
            part = parts.pop()
            try:
                found.update((key(one), one) for one in ask(part))
            except SlurmRefused as error:
                if not _is_invalid_id(error):
                    raise
                named = set(re.findall(r"[0-9][0-9_+]*", error.message))
                rest = [text for text in part if text not in named]
                half = len(rest) // 2 if len(rest) == len(part) else 0
                parts += [one for one in (rest[:half], rest[half:]) if one and len(one) < len(part)]
        return tuple(found.values())

    def _read(
        self, kind: str, rows: Iterable[Row], key: str, read: Callable[[Row], _Value]
    ) -> tuple[_Value, ...]:
        from .tables import Unread, read_rows

        return tuple(read_rows(kind, rows, key, read, self._unread or Unread()))

    def _of_uids(
        self,
        uids: frozenset[int],
        of_user: Sequence[str],
        filters: Sequence[str],
        values: Collection[str] | None,
    ) -> tuple[Job, ...]:
        """Read the jobs of these users, whom ``of_user`` names to squeue."""
        said: list[str] = []
        try:
            found = self._squeue([*of_user, *filters], values, said)
        except SlurmRefused as error:
            if _INVALID_USER not in error.message:
                raise
            said.append(error.message)
        if not any(_INVALID_USER in one for one in said):
            return found
        # squeue leaves out uids that this host gives to nobody, and so their jobs
        return tuple(job for job in self._squeue(filters, values) if job.uid in uids)

    def _squeue(
        self,
        selection: Sequence[str],
        values: Collection[str] | None = None,
        said: list[str] | None = None,
    ) -> tuple[Job, ...]:
        """Read jobs with these values; ``said`` gets what squeue printed on stderr."""
        from . import decode
        from .tables import Reading, Unread

        decoder = decode.JobDecoder(values)
        table = self._fields
        fields, short = (
            {ours: theirs for ours, theirs in fields.items() if ours in decoder.columns}
            for fields in (table.squeue, table.squeue_short)
        )
        more: dict[str, Row] = {}

        def keep(rows: Iterable[Row]) -> None:
            more.update((row["id"], row) for row in rows if any(row[name] not in _NO_VALUE for name in short))

        def read(row: Row) -> Job:
            return decoder.decode({**more[row["id"]], **row} if row["id"] in more else row)

        reading = Reading("job", "id", read, self._unread or Unread())
        with _collector_off():
            if short:
                # Values that only -o has: a second look. A job that came or went between the two has them unknown.
                self._squeue_rows({"id": "%A", **short}, selection, keep, option="-o")
            messages = self._squeue_rows(fields, selection, reading.take, option="-O")
        if said is not None:
            said.append(messages)
        return tuple(reading.values())

    def _squeue_rows(
        self,
        fields: Mapping[str, str],
        selection: Sequence[str],
        take: Callable[[Iterable[Row]], object],
        *,
        option: str,
    ) -> str:
        """Have rows taken while squeue prints them; return what it said on stderr."""
        from .tables import RowSplitter, Separator, dropped_fields

        separator = Separator()
        names = tuple(fields.values())
        layout = separator.long_format(names) if option == "-O" else separator.short_format(names)
        argv = ["squeue", "--noheader", "--noconvert", "--all", "--states=all", *selection, option, layout]
        text = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        splitter: RowSplitter | None = None

        def take_piece(data: bytes, messages: bytes) -> None:
            nonlocal splitter
            if splitter is None:
                # It names the fields that it does not know before it prints the first job
                dropped = dropped_fields(messages.decode(errors="replace"))
                splitter = RowSplitter(separator, [name for name in fields if fields[name] not in dropped])
            take(splitter.split(text.decode(data)))

        done = check(self._runner.read_pieces(argv, take_piece))
        if splitter is not None:
            splitter.end()
        return done.stderr

    def nodes(self) -> tuple[Node, ...]:
        """See `SlurmClient.nodes`."""
        from . import inventory
        from .tables import scontrol_records

        done = check(self._runner.read(["scontrol", "--oneliner", "--all", "show", "node"]))
        records = scontrol_records(done.stdout, "NodeName", _NODE_TEXTS)
        return self._read("node", records, "NodeName", inventory.node)

    def partitions(self) -> tuple[Partition, ...]:
        """See `SlurmClient.partitions`."""
        from . import inventory
        from .tables import scontrol_records

        done = check(self._runner.read(["scontrol", "--oneliner", "--all", "show", "partition"]))
        records = scontrol_records(done.stdout, "PartitionName", ())
        return self._read("partition", records, "PartitionName", inventory.partition)

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

        selection = ["--allusers" if user is None else f"--user={user}"]
        # "uts": seconds since 1970, free of time zones (parse_time.c). With --jobs and no start sacct looks at all
        # of history.
        if since is not None or ids is None:
            selection.append(f"--starttime=uts{int(since.timestamp() if since else now() - _DAY)}")
        if until is not None:
            selection.append(f"--endtime=uts{int(until.timestamp())}")
        if ids is None:
            found = self._sacct(selection)
        else:
            found = self._of_ids(
                ids, lambda wanted: self._sacct([f"--jobs={','.join(wanted)}", *selection]), lambda one: one
            )
        records = decode.count_attempts(found)
        return records if duplicates else decode.last_attempts(records)

    def _sacct(self, selection: Sequence[str]) -> tuple[AccountingRecord, ...]:
        from . import decode
        from .tables import Separator, rows

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
        found = rows(done.stdout, separator, tuple(fields))
        return self._read("attempt", found, "id", decode.accounting_record)

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
        asked = [_split_id(job_id) for job_id in ids]
        wanted = [text for text, number in asked if number]
        if not wanted:
            if asked:
                raise NoSuchJob(asked[0][0])
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
        gone += [text for text, number in asked if not number]
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
    text, number = _split_id(job_id)
    if not number:
        raise NoSuchJob(job_id)
    return text


def _split_id(job_id: JobId) -> tuple[str, int]:
    """Return an id as Slurm's commands take it, and its number: 0 if no job can have it. Raises NoSuchJob for what
    is no id.
    """
    text = str(job_id)
    found = _JOB_ID.fullmatch(text)
    if not found:
        raise NoSuchJob(job_id, f"{text!r} is not a job id: give a number, ARRAY_TASK or JOB+COMPONENT.")
    number = int(found[1]) if len(found[1]) <= len(str(LAST_JOB_ID)) else 0
    return text, number if number <= LAST_JOB_ID else 0


def _number_of(job: Job) -> int:
    return job.id


@contextmanager
def _collector_off() -> Iterator[None]:
    """Make many values without the garbage collector, which walks them all again and again: none is in a circle."""
    import gc

    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _in_order(jobs: Iterable[Job]) -> tuple[Job, ...]:
    return tuple(sorted(jobs, key=lambda job: (job.id, job.array_tasks is None)))


def _is_invalid_id(error: SlurmRefused) -> bool:
    return any(sign in error.message for sign in _INVALID_ID)


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
