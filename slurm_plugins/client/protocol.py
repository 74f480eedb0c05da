"""What the rest of gsub may ask of Slurm. One protocol; back ends are `commands.CommandClient` and
`pyslurm_client.PyslurmClient`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from .states import JobState
from .values import AccountingRecord, Job, Node, Partition, StartEstimate, Submission
from .versions import Version

__all__ = ["JobId", "SlurmClient"]

JobId = int | str
"""``7``, ``"7_3"`` (task of an array), ``"7+1"`` (component of a heterogeneous job)."""


@runtime_checkable
class SlurmClient(Protocol):
    """A connection to one cluster.

    Every method raises SlurmUnreachable when the daemon concerned does not answer (SlurmTimeout when it does not in
    time), SlurmNotInstalled when there is no Slurm here, SlurmRefused with Slurm's own words when it says no, and
    SlurmFormatError when its answer is not understood. **An empty tuple is an answer**, and never stands for any of
    these.
    """

    def version(self) -> Version:
        """The release of Slurm's commands (or library) on this machine."""
        ...

    def jobs(
        self,
        *,
        ids: Iterable[JobId] | None = None,
        user: str | Collection[int] | None = None,
        state: JobState | None = None,
        partition: str | None = None,
        values: Collection[str] | None = None,
    ) -> tuple[Job, ...]:
        """The jobs in slurmctld's memory, ended ones too, in order of id; those of a ``user``, or of several by uid.

        ``state`` and ``partition`` (or several, with commas between them) leave out what is in another one.

        ``values`` names what is needed of each job (`purposes`): a queue of thousands is read in a fraction of the
        time. Each job then has these and `decode.IDENTITY`, and no others.

        Of an array one value for each task that has started and one for all that wait. Ids that slurmctld does not
        hold are left out: a job's absence here says nothing; ask `job`.
        """
        ...

    def job(self, job_id: JobId) -> Job:
        """One job. Of an array's id the part that waits, else the first task; of a heterogeneous job's its first
        component.

        Raises NoSuchJob when slurmctld says that it has none: it may have ended more than MinJobAge ago; ask
        `accounting`.
        """
        ...

    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in Slurm's order."""
        ...

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions, hidden ones too, in Slurm's order."""
        ...

    def accounting(
        self,
        *,
        ids: Iterable[JobId] | None = None,
        user: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        duplicates: bool = True,
    ) -> tuple[AccountingRecord, ...]:
        """The attempts that slurmdbd holds, in order of id and submission; without ``duplicates`` each job's last one.

        Without ``since`` it is all of history when ``ids`` are given, else the last 24 hours; a span of time leaves
        out what was never eligible (held, then cancelled). slurmdbd hears of a job some seconds late: a job that
        was just submitted may be missing.
        """
        ...

    def submit(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
    ) -> Submission:
        """Run ``sbatch`` with ``argv`` verbatim, in ``env`` verbatim (sbatch hands both on to the job).

        A script comes from ``stdin`` when given. ``--wait`` needs ``timeout=None``. Raises SlurmRefused with
        sbatch's message. After SlurmTimeout or SlurmUnreachable the job may exist: look before submitting again.
        """
        ...

    def test_only(
        self, argv: Sequence[str], *, stdin: bytes | str | None = None, env: Mapping[str, str] | None = None
    ) -> StartEstimate:
        """When would this start? ``sbatch --test-only`` with ``argv``; nothing is submitted. Takes slurmctld's job
        lock: never poll.
        """
        ...

    def cancel(self, ids: Iterable[JobId], *, signal: str | None = None, batch_only: bool = False) -> None:
        """Cancel jobs, or send ``signal`` to them (``batch_only``: to the batch script alone). Those that have
        ended are left.

        Raises NoSuchJob for the first id that slurmctld does not hold, after all others were cancelled.
        """
        ...

    def ping(self) -> tuple[str, ...]:
        """The hosts whose slurmctld answers. Raises SlurmUnreachable when none does."""
        ...
