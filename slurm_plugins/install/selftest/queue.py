"""The selftest's own jobs: submitted as an ordinary user within their bounds, watched together, taken away at the end.

A job is found again by its name and by the run's mark in its comment, so that one whose submission was cut off in the
middle is cancelled too. What is not cancelled (we were killed) ends by its time limit, or starts twenty minutes later
and ends at once.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final, Literal, Protocol

from slurm_plugins.client.errors import NoSuchJob, SlurmError
from slurm_plugins.client.protocol import SlurmClient
from slurm_plugins.client.runner import Completed, Runner
from slurm_plugins.client.submission import SUBMITTED
from slurm_plugins.client.values import Job
from slurm_plugins.install.selftest.bounds import JOB_NAME, MOST_JOBS, Bounds
from slurm_plugins.install.selftest.outcome import EndedError, failed, skipped
from slurm_plugins.install.selftest.shown import fields_of

__all__ = ["Asked", "Clock", "Queue", "Submitter", "Wish", "Word"]

Word = Literal["", "off", "explain"]
"""What the user says to gsub: nothing, leave me alone, tell me all."""

_LATER: Final = "now+20minutes"
_GSUB: Final = re.compile(r"(?m)^(?:sbatch: )?(?:error: )?(gsub\b.*)$")
_PREFIX: Final = re.compile(r"(?m)^sbatch: (?:error: )?")
_SUBMIT_SECONDS: Final = 60.0


class Clock(Protocol):
    """The monotonic clock in seconds, and waiting by it."""

    def now(self) -> float:
        """Seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


@dataclass(frozen=True, slots=True)
class Submitter:
    """The ordinary user whose jobs these are. `become`: we are root and have to turn into that user."""

    name: str
    uid: int
    gid: int
    home: str
    become: bool

    def argv(self, command: Sequence[str]) -> list[str]:
        """The command as that user."""
        if not self.become:
            return list(command)
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups", "--", *command]

    def environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        """What the user's sbatch and jobs get of our environment: how to reach Slurm, and nothing else."""
        kept = {name: ours[name] for name in ("PATH", "SLURM_CONF", "LD_LIBRARY_PATH") if name in ours}
        own = {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": "/bin/sh", "LC_ALL": "C"}
        return kept | own


@dataclass(frozen=True, slots=True)
class Wish:
    """A job as it is asked for.

    Parameters
    ----------
    what: the scenario, for the script's first line.
    body: the rest of the script.
    gpus: None: as few as the partition allows.
    later: it may not start before the run is over.
    word: what its user says to gsub.
    comment: beside the run's mark.
    options: more of sbatch's.
    tasks: of an array, for the count.
    """

    what: str
    body: str = "exit 0"
    gpus: int | None = None
    later: bool = False
    word: Word = ""
    comment: str = ""
    options: tuple[str, ...] = ()
    tasks: int = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """A submission and what sbatch said. `job` is None where it made none; `said` are gsub's lines, `lines` all of
    them; `digest` is that of the script, by which gsubd knows it again."""

    job: int | None
    code: int
    said: tuple[str, ...]
    lines: tuple[str, ...]
    seconds: float
    digest: str

    @property
    def last(self) -> str:
        """The last thing said."""
        return self.lines[-1] if self.lines else f"sbatch ended with {self.code}"


@dataclass(slots=True)
class Queue:
    """The jobs of one run.

    `client` and `reader` ask Slurm as who we are, `writer` runs sbatch, turned into the
    submitter. `cpu_jobs`: whether the partition takes jobs without GPUs; `gpus`: how many the others ask for that
    start; `open_gpus`: those that do not start. With 2 there is a shape that gsub closes. `left` says, after the end,
    why jobs may be left.
    """

    client: SlurmClient
    reader: Runner
    writer: Runner
    who: Submitter
    bounds: Bounds
    clock: Clock
    gpus: int = 1
    open_gpus: int = 1
    cpu_jobs: bool = True
    mark: str = field(default_factory=lambda: secrets.token_hex(4))
    made: list[int] = field(default_factory=list)
    left: str = ""
    _count: int = 0
    _jobs: dict[int, tuple[Job, ...]] = field(default_factory=dict)
    _gone: set[int] = field(default_factory=set)

    # --- submitting -------------------------------------------------------------------------------------------------

    def submit(self, wish: Wish) -> Asked:
        """Submit a job. Raises EndedError where it is refused: skipped when the site refuses it without gsub too."""
        asked = self.ask(wish)
        if asked.job is not None:
            return asked
        without = self.ask(replace(wish, word="off"), only=True)
        if without.code:
            raise EndedError(skipped(f"the site refuses the job, with gsub and without: {without.last}"))
        raise EndedError(
            failed(
                f"the job is refused with gsub, and not without: {asked.last}",
                "'gsub explain' says why; the slurmctld log has the words of job_submit.lua",
            )
        )

    def ask(self, wish: Wish, *, only: bool = False) -> Asked:
        """Run sbatch. `only`: --test-only, which asks gsub too, and makes no job. Raises EndedError, SlurmError."""
        if not only:
            self._count += wish.tasks
            if self._count > MOST_JOBS:
                raise EndedError(
                    skipped(
                        f"the {MOST_JOBS} jobs that this run may make are made", "run it again with --only"
                    )
                )
        script = f"#!/bin/sh\n# {JOB_NAME} {self.mark} {wish.what}\n{wish.body}\n"
        argv = [*self._options(wish.comment), *self._gpu_options(wish.gpus), *wish.options]
        argv += ["--test-only"] if only else [f"--begin={_LATER}"] if wish.later else []
        env = self.who.environment(self.writer.env) | ({"GSUB": wish.word} if wish.word else {})
        began = self.clock.now()
        done = self.writer.write(
            self.who.argv(["sbatch", *argv]), stdin=script.encode(), env=env, timeout=_SUBMIT_SECONDS
        )
        asked = _answer(done, self.clock.now() - began, sha256(script.encode()).hexdigest())
        if asked.job is not None and not only:
            self.made.append(asked.job)
        return asked

    def _options(self, comment: str) -> list[str]:
        bounds = self.bounds
        found = [
            f"--job-name={JOB_NAME}",
            f"--partition={bounds.partition}",
            f"--time={bounds.minutes}",
            "--nice=100",
            "--ntasks=1",
            "--cpus-per-task=1",
            "--mem=200M",
            "--no-requeue",
            "--output=/dev/null",
            "--chdir=/tmp",
            f"--comment={' '.join(filter(None, (comment, self._own)))}",
        ]
        found += [f"--account={bounds.account}"] if bounds.account else []
        return found + ([f"--qos={bounds.qos}"] if bounds.qos else [])

    def _gpu_options(self, gpus: int | None) -> list[str]:
        count = (0 if self.cpu_jobs else self.gpus) if gpus is None else gpus
        return [f"--gpus={count}"] if count else []

    @property
    def _own(self) -> str:
        return f"{JOB_NAME}:{self.mark}"

    @property
    def count(self) -> int:
        """Jobs made so far, array tasks counted."""
        return self._count

    # --- watching ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """See where all jobs are, with one question. Slurm's silence leaves what was known."""
        if not self.made:
            return
        try:
            found = self.client.jobs(ids=self.made)
        except SlurmError:
            return
        by_id: dict[int, list[Job]] = {}
        for job in found:
            by_id.setdefault(job.array_job_id or job.id, []).append(job)
        self._gone |= {number for number in self.made if number in self._jobs and number not in by_id}
        self._jobs.update({number: tuple(jobs) for number, jobs in by_id.items()})

    def jobs(self, number: int) -> tuple[Job, ...]:
        """A job as it was last seen, an array's tasks; empty before the first look."""
        return self._jobs.get(number, ())

    def started(self, number: int) -> bool:
        """Every task of it runs, or has ended."""
        jobs = self.jobs(number)
        return number in self._gone or (bool(jobs) and all(job.nodes or job.ended for job in jobs))

    def ended(self, number: int) -> bool:
        """Every task of it has ended."""
        jobs = self.jobs(number)
        return number in self._gone or (bool(jobs) and all(job.ended for job in jobs))

    def reason(self, number: int) -> str:
        """Why it waits, in Slurm's word."""
        return next((job.reason for job in self.jobs(number) if job.reason), "") or "no reason told"

    def shown(self, number: int) -> dict[str, str]:
        """All that Slurm says of it. Raises EndedError when it does not answer."""
        done = self.reader.read(["scontrol", "--oneliner", "show", "job", str(number)])
        if done.returncode or "JobId=" not in done.stdout:
            raise EndedError(skipped("Slurm does not tell of the job that was just submitted"))
        return fields_of(done.stdout)

    # --- the end ----------------------------------------------------------------------------------------------------

    def cancel(self, *numbers: int) -> None:
        """Cancel jobs; those that have ended are left. Raises SlurmError."""
        try:
            self.client.cancel(numbers)
        except NoSuchJob:
            return

    def mine(self) -> tuple[Job, ...]:
        """Jobs of this run that have not ended: those that we know, and, by their mark, those that we do not.

        Raises SlurmError.
        """
        return tuple(job for job in self._named() if self._is_mine(job))

    def others(self) -> tuple[Job, ...]:
        """Jobs of other runs of this user that have not ended. Raises SlurmError."""
        return tuple(job for job in self._named() if not self._is_mine(job))

    def _is_mine(self, job: Job) -> bool:
        # The mark alone would miss jobs whose comment a job_submit.lua of the site's has written over.
        known = job.id in self.made or job.array_job_id in self.made
        return known or self._own in (job.comment or "").split()

    def _named(self) -> list[Job]:
        return [job for job in self.client.jobs(user=self.who.name) if job.name == JOB_NAME and not job.ended]

    def clear(self, seconds: float, wait: Callable[[float], None] | None = None) -> tuple[Job, ...]:
        """Cancel whatever is left of this run; what is still there after `seconds`. Raises SlurmError."""
        pause = wait or self.clock.sleep
        until = self.clock.now() + seconds
        while left := self.mine():
            self.cancel(*{job.array_job_id or job.id for job in left})
            if self.clock.now() >= until:
                return left
            pause(0.5)
        return ()


def _answer(done: Completed, seconds: float, digest: str) -> Asked:
    found = list(SUBMITTED.finditer(done.stdout))
    number = int(found[-1][1] or found[-1][3]) if found and done.returncode == 0 else None
    lines = tuple(line.strip() for line in _PREFIX.sub("", done.stderr).splitlines() if line.strip())
    return Asked(number, done.returncode, tuple(_GSUB.findall(done.stderr)), lines, seconds, digest)
