"""The real job as the runner sees it: whether it still waits, which jobs wait for us, and holding them.

All through Slurm's own commands, as the user, each with a deadline. What Slurm does not answer is not known: nothing is
done because of it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from slurm_plugins.client.protocol import SlurmClient
    from slurm_plugins.client.values import Job, Node

__all__ = ["EVERY", "Poller", "Slurm", "Standing", "standing", "waits_for"]

EVERY: Final = 2.0
"""Seconds between two turns (`gsub.smoke.looking`)."""
_SHARE: Final = 10  # times as long as a turn took, nothing is asked: slurmctld may have much to do
_PAUSE: Final = 30.0  # seconds; not longer than that
_DEADLINE: Final = 10.0  # seconds of one command
_ATTEMPTS: Final = 4  # to hold, each with a look at what came of the one before
Standing = Literal["waits", "started", "gone", "way", "unknown"]
"""`way`: it, or another job of the user's, waits for nothing but what the smoke job holds."""


def standing(jobs: Sequence[Job]) -> Standing:
    """How a real job stands by its records: an array has several, and has started with its first task.

    No record is no fact: slurmctld says so in words when it has none.
    """
    from slurm_plugins.client.values import JobState

    if not jobs:
        return "unknown"
    states = {job.state for job in jobs}
    if states & {JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETED}:
        return "started"
    if JobState.PENDING in states:
        # of an array some tasks may have ended already, by whatever end
        ran = any(job.ended and job.start is not None and job.state is not JobState.CANCELLED for job in jobs)
        return "started" if ran else "waits"
    return "gone" if all(job.ended for job in jobs) else "started"


def waits_for(dependency: str | None, smoke: int) -> bool:
    """Whether a job's dependency, as squeue tells it, names the smoke job.

    >>> waits_for("afterok:7(unfulfilled),afterany:12(unfulfilled)", 12), waits_for("afterany:123", 12)
    (True, False)
    """
    return bool(re.search(rf"\bafterany:(?:\d+[_*+\d]*(?:\(\w+\))?:)*{smoke}(?![\d_+])", dependency or ""))


@dataclass(slots=True)
class Slurm:
    """The cluster, asked by one deadline a command; an error is an answer that is missing."""

    client: SlurmClient
    environ: Mapping[str, str]

    @classmethod
    def here(cls, environ: Mapping[str, str]) -> Slurm:
        """The cluster that this job runs on."""
        from slurm_plugins.client.commands import CommandClient

        return cls(CommandClient(environ, timeout=_DEADLINE), environ)

    def look(self, job: int) -> Standing:
        """How the job stands now."""
        from slurm_plugins.client.errors import NoSuchJob, SlurmError

        try:
            self.client.job(job)
            return standing(self._of(job))
        except NoSuchJob:
            return "gone"
        except SlurmError:
            return "unknown"

    def jobs_of(self, user: str) -> Sequence[Job]:
        """The user's jobs. Raises SlurmError."""
        return self.client.jobs(user=user)

    def nodes(self) -> Sequence[Node]:
        """All nodes. Raises SlurmError."""
        return self.client.nodes()

    def taken(self, node: str) -> tuple[int, int]:
        """The GPUs of a node, and how many of them jobs hold. Raises SlurmError.

        By sinfo: for one node it asks slurmctld for that record alone; scontrol and squeue ask for all of them.
        """
        from slurm_plugins.client.parse import tres
        from slurm_plugins.client.runner import check, reading_environment, run_command
        from slurm_plugins.client.tables import Separator, rows

        separator = Separator()
        fields = ("Gres", "GresUsed")
        argv = ["sinfo", "--noheader", "--all", "--Node", f"--nodes={node}"]
        done = check(
            run_command(
                [*argv, f"--Format={separator.long_format(fields)}"],
                env=reading_environment(self.environ),
                timeout=_DEADLINE,
            )
        )
        # a line for each of its partitions; a node that sinfo does not know has none
        for row in rows(done.stdout, separator, fields):
            return tres(row["Gres"]).gpus or 0, tres(row["GresUsed"]).gpus or 0
        return 0, 0

    def dependants(self, smoke: int, user: str) -> tuple[int, ...]:
        """The waiting jobs of the user that wait for the smoke job; of an array its own id."""
        from slurm_plugins.client.errors import SlurmError
        from slurm_plugins.client.values import JobState

        try:
            jobs = self.client.jobs(user=user)
        except SlurmError:
            return ()
        found = (job for job in jobs if job.state is JobState.PENDING and waits_for(job.dependency, smoke))
        return tuple(dict.fromkeys(job.array_job_id or job.het_job_id or job.id for job in found))

    def hold(self, job: int, user: str) -> bool:
        """Hold a waiting job so that its user can release it; whether it is held now, by Slurm's own word.

        `uhold`: that of root would be an administrator's hold. Slurm holds a running job, too, which then waits for
        ever when it is requeued: one that started meanwhile is released again. Another user's is left alone, even
        where Slurm would let us (operators): it only has the number.
        """
        from slurm_plugins.client.errors import SlurmError
        from slurm_plugins.client.runner import run_command

        asked = False
        for attempt in range(_ATTEMPTS):
            try:
                found = self._of(job)
                stands = standing(found)
                if any(one.user not in (user, str(os.getuid())) for one in found):
                    return False
                if stands == "started" and asked:
                    run_command(["scontrol", "release", str(job)], env=self.environ, timeout=_DEADLINE)
                if stands != "waits":
                    return False
                if asked and any(one.held for one in found):
                    return True
                if attempt < _ATTEMPTS - 1:
                    asked = True  # what is not answered may have been done all the same
                    run_command(["scontrol", "uhold", str(job)], env=self.environ, timeout=_DEADLINE)
            except SlurmError:
                time.sleep(attempt)
        return False

    def _of(self, job: int) -> list[Job]:
        found = self.client.jobs(ids=[job])
        return [one for one in found if job in (one.id, one.array_job_id, one.het_job_id)]


class Poller:
    """Looks at the real job every so often in a thread of its own: Slurm may take its time to answer.

    `left` is "" while the job waits, or nobody knows; then `started`, `gone` or `way`.
    """

    def __init__(self, look: Callable[[], Standing], every: float = EVERY) -> None:
        self._look = look
        self._every = every
        self._stop = threading.Event()
        self.left: Literal["", "started", "gone", "way"] = ""
        self._thread = threading.Thread(target=self._run, name="real job", daemon=True)

    def start(self) -> None:
        """From now on; the first look is at once."""
        self._thread.start()

    def stop(self) -> None:
        """No more looks; one that is under way is not waited for."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                found = self._look()
            except Exception:  # a look that fails is a look that says nothing
                found = "unknown"
            if found in ("started", "gone", "way"):
                self.left = found
                return
            took = time.monotonic() - begun
            self._stop.wait(max(self._every, min(_SHARE * took, _PAUSE)))
