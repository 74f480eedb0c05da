"""A Slurm in memory, for tests of what stands on a `SlurmClient`; held to the same contract as the real ones.

Jobs that are not held start at once, run until `finish` or `cancel`. Of sbatch's options it knows those of `_OPTIONS`.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from slurm_plugins.client import parse
from slurm_plugins.client.commands import valid_id
from slurm_plugins.client.decode import IDENTITY
from slurm_plugins.client.errors import NoSuchJob, SlurmRefused, SlurmUnreachable
from slurm_plugins.client.protocol import JobId
from slurm_plugins.client.values import (
    AccountingRecord,
    ExitStatus,
    Hosts,
    Job,
    JobState,
    Node,
    NodeState,
    Partition,
    StartEstimate,
    Submission,
    Tres,
)
from slurm_plugins.client.versions import NEWEST, Version

_OPTIONS = argparse.ArgumentParser(exit_on_error=False, add_help=False)
for names in (
    ["--job-name", "-J"],
    ["--comment"],
    ["--gpus-per-node"],
    ["--chdir", "-D"],
    ["--output", "-o"],
    ["--wrap"],
):
    _OPTIONS.add_argument(*names)
_OPTIONS.add_argument("--partition", "-p", default="gpu")
_OPTIONS.add_argument("--nodes", "-N", type=int, default=1)
_OPTIONS.add_argument("--time", "-t", type=int, default=60)
_OPTIONS.add_argument("--hold", "-H", action="store_true")
_OPTIONS.add_argument("--quiet", "-Q", action="store_true")
_OPTIONS.add_argument("script", nargs="?", default="sbatch")

_NODES = tuple(f"n{number}" for number in range(1, 9))
_GIB = 1 << 30


def only(job: Job, values: Collection[str]) -> Job:
    """A job as it is read with these values alone."""
    return Job.of({name: getattr(job, name) for name in {*IDENTITY, *values}})


class FakeClient:
    """`SlurmClient` over a dictionary. ``down``: the daemons that do not answer."""

    def __init__(self, user: str = "user1") -> None:
        self.user = user
        self.uid = 1001
        self.down: set[str] = set()
        self._jobs: dict[int, Job] = {}
        self._records: list[AccountingRecord] = []
        self._next = 1

    def version(self) -> Version:
        return NEWEST

    def jobs(
        self,
        *,
        ids: Iterable[JobId] | None = None,
        user: str | Collection[int] | None = None,
        state: JobState | None = None,
        partition: str | None = None,
        values: Collection[str] | None = None,
    ) -> tuple[Job, ...]:
        self._reach("slurmctld")
        wanted = None if ids is None else {int(valid_id(job_id)) for job_id in ids}
        found = [job for job in self._jobs.values() if wanted is None or job.id in wanted]
        if state is not None:
            found = [job for job in found if job.state is state]
        if partition is not None:
            found = [job for job in found if job.partition in partition.split(",")]
        if user is not None:
            found = [job for job in found if (job.user == user if isinstance(user, str) else job.uid in user)]
        return tuple(found if values is None else (only(job, values) for job in found))

    def job(self, job_id: JobId) -> Job:
        number = int(valid_id(job_id))
        self._reach("slurmctld")
        if number not in self._jobs:
            raise NoSuchJob(job_id)
        return self._jobs[number]

    def nodes(self) -> tuple[Node, ...]:
        self._reach("slurmctld")
        return tuple(
            Node(
                name=name,
                state=NodeState.IDLE,
                cpus=64,
                memory=512000 << 20,
                gres=Tres((("gres/gpu", 8),)),
                partitions=("gpu",),
            )
            for name in _NODES
        )

    def partitions(self) -> tuple[Partition, ...]:
        self._reach("slurmctld")
        return (
            Partition(
                name="gpu", state="UP", is_default=True, nodes=Hosts("n[1-8]"), total_nodes=8, total_cpus=512
            ),
        )

    def accounting(
        self,
        *,
        ids: Iterable[JobId] | None = None,
        user: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        duplicates: bool = True,
    ) -> tuple[AccountingRecord, ...]:
        self._reach("slurmdbd")
        wanted = None if ids is None else {int(valid_id(job_id)) for job_id in ids}
        return tuple(
            record
            for record in self._records
            if (wanted is None or record.id in wanted)
            and user in (None, record.user)
            and _within(record, since, until)
        )

    def submit(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
    ) -> Submission:
        self._reach("slurmctld")
        options = self._read(argv)
        number, self._next = self._next, self._next + 1
        now = datetime.now(timezone.utc)
        gpus = int(options.gpus_per_node or 0) * options.nodes
        tres = {"cpu": options.nodes, "node": options.nodes} | ({"gres/gpu": gpus} if gpus else {})
        job = Job(
            id=number,
            name=options.job_name or ("wrap" if options.wrap else options.script.rpartition("/")[2]),
            user=self.user,
            uid=self.uid,
            state=JobState.PENDING if options.hold else JobState.RUNNING,
            priority=0 if options.hold else 1,
            partition=options.partition,
            comment=options.comment,
            submitted=now,
            start=None if options.hold else now,
            time_limit=options.time * 60,
            num_nodes=options.nodes,
            num_cpus=options.nodes,
            nodes=Hosts("" if options.hold else f"n[1-{options.nodes}]"),
            gpus=gpus,
            tres=Tres(tuple(tres.items())),
            work_dir=options.chdir,
            stdout=parse.expand_path(options.output or "slurm-%j.out", {"j": number}, options.chdir),
        )
        self._jobs[number] = job
        return Submission(None if options.quiet else number, stdout=f"Submitted batch job {number}\n")

    def test_only(
        self, argv: Sequence[str], *, stdin: bytes | str | None = None, env: Mapping[str, str] | None = None
    ) -> StartEstimate:
        self._reach("slurmctld")
        options = self._read(argv)
        return StartEstimate(
            datetime.now(timezone.utc), options.nodes, Hosts(f"n[1-{options.nodes}]"), options.partition
        )

    def cancel(self, ids: Iterable[JobId], *, signal: str | None = None, batch_only: bool = False) -> None:
        wanted = [int(valid_id(job_id)) for job_id in ids]
        self._reach("slurmctld")
        for number in wanted:
            if number in self._jobs and not self._jobs[number].ended:
                self.finish(number, state=JobState.CANCELLED)
        for number in wanted:
            if number not in self._jobs:
                raise NoSuchJob(number)

    def ping(self) -> tuple[str, ...]:
        self._reach("slurmctld")
        return ("localhost",)

    def finish(self, number: int, code: int = 0, *, state: JobState | None = None) -> None:
        """End a job, as its script's exit does."""
        ended = state or (JobState.FAILED if code else JobState.COMPLETED)
        job = replace(self._jobs[number], state=ended, exit=ExitStatus(code), end=datetime.now(timezone.utc))
        self._jobs[number] = job
        self._records.append(
            AccountingRecord(
                id=number,
                name=job.name,
                user=job.user,
                state=ended,
                exit=job.exit,
                partition=job.partition,
                submitted=job.submitted,
                start=job.start,
                end=job.end,
                gpus=job.gpus,
                tres=job.tres,
                comment=job.comment,
                work_dir=job.work_dir,
            )
        )

    def _reach(self, daemon: str) -> None:
        if daemon in self.down:
            raise SlurmUnreachable(daemon)

    def _read(self, argv: Sequence[str]) -> argparse.Namespace:
        try:
            options, _ = _OPTIONS.parse_known_args(list(argv))
        except argparse.ArgumentError as error:
            raise SlurmRefused("sbatch", str(error)) from error
        if options.partition != "gpu":
            raise SlurmRefused("sbatch", f"invalid partition specified: {options.partition}")
        return options


def _within(record: AccountingRecord, since: datetime | None, until: datetime | None) -> bool:
    """As sacct: any part of the job's life in the window."""
    end = record.end or datetime.now(timezone.utc)
    begin = record.submitted or end
    return (since is None or end >= since) and (until is None or begin <= until + timedelta(0))
