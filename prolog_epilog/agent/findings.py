"""An ended job's logs: which files they are, when they are read, and what is told of them.

On its batch host alone, where Slurm wrote its output. One job at a time, however many end at once. The record is kept
with the job until it is in the spool, and a job whose logs were not read when the agent ended is taken up again, twice
at most in all: a log that ends the agent must not do so for ever.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from profiler.findings import Finding
from profiler.logs import one_line
from profiler.records import JobEnded, JobStarted
from prolog_epilog.agent.beside import Beside
from prolog_epilog.agent.edges import Attempt, Clock, ReadLogs
from prolog_epilog.agent.jobs import Jobs
from prolog_epilog.agent.log_child import LogChild, NoAnswerError
from prolog_epilog.failures.logfiles import JobNames, expand
from prolog_epilog.failures.question import Question
from prolog_epilog.failures.taxonomy import NO_SIGNATURE, NONE

__all__ = ["Findings", "LogReader", "SlurmNames", "ask_slurm", "first_node", "on_batch_host", "tells"]

_log = logging.getLogger("gsub-noded")

TOO_OLD: Final = 86400.0
"""Seconds after its end for which a job's logs are worth reading: later, other things have been written there."""
NOT_BEGUN: Final = 53
"""The signal that Slurm tells of a job whose output it could not open ("0:53" in sacct, JobLaunchFailure)."""
_SLURM_DEADLINE: Final = 5.0
_MOST_TEXT: Final = 1 << 20
_BIN: Final = "/usr/bin:/usr/local/bin:/opt/slurm/bin:/bin"
_FIELD: Final = re.compile(
    r"^ {3}(StdOut|StdErr)=(.*)$|\b(ArrayJobId|ArrayTaskId|BatchFlag)=(\d+)\b", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class SlurmNames:
    """What slurmctld knows of a job and its prolog does not: where its output went, its place in an array."""

    stdout: str = ""
    stderr: str = ""
    array: str = ""
    batch: bool = True

    def expanded(self, path: str, known: JobNames) -> str:
        """The path, with what scontrol left in it: 22.05 knows no ``%3a``."""
        job, _, task = self.array.partition("_")
        if task:
            known = replace(known, array_job_id=int(job), array_task_id=int(task))
        return expand(path, known) or path


def first_node(hostlist: str) -> str:
    """The first node of Slurm's hostlist: the batch host.

    >>> first_node("gpu[03-07,12],n1"), first_node("n[1,5]x[0-3]"), first_node("")
    ('gpu03', 'n1x0', '')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hostlist)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0]) if first else ""


def on_batch_host(started: JobStarted) -> bool:
    """Whether the job's script ran on the node that the record is from.

    Of a heterogeneous job the first component alone has one.
    """
    if started.het_job_id not in (None, started.job.job_id):
        return False
    return first_node(started.nodes) in ("", started.node)


def ask_slurm(job_id: int, *, deadline: float = _SLURM_DEADLINE) -> SlurmNames | None:
    """What ``scontrol show job`` says; None where that is nothing: the job is forgotten, slurmctld away."""
    scontrol = shutil.which("scontrol", path=f"{os.environ.get('PATH', os.defpath)}:{_BIN}")
    if scontrol is None:
        return None
    try:
        child = subprocess.Popen(
            [scontrol, "show", "job", str(job_id)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        out, _ = child.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        child.kill()  # and not waited for: it may sleep in a dead file system, and no log would be read any more
        return None
    return _names_in(out[:_MOST_TEXT].decode("utf-8", "replace")) if child.returncode == 0 else None


def _names_in(text: str) -> SlurmNames:
    r"""
    >>> _names_in("JobId=7 ArrayJobId=5 ArrayTaskId=2 JobName=a\n   BatchFlag=1\n   StdOut=/h/a b.out\n")
    SlurmNames(stdout='/h/a b.out', stderr='', array='5_2', batch=True)
    """
    found: dict[str, str] = {}
    for match in _FIELD.finditer(text):
        found.setdefault(match[1] or match[3], match[2] if match[1] else match[4])
    job, task = found.get("ArrayJobId", ""), found.get("ArrayTaskId", "")
    array = f"{job}_{task}" if job and task else ""
    batch = found.get("BatchFlag", "1") != "0"
    return SlurmNames(found.get("StdOut", ""), found.get("StdErr", ""), array, batch)


class LogReader:
    """The real `ReadLogs`: asks Slurm where it has to, and a child. Not for several threads."""

    def __init__(
        self,
        child: LogChild | None = None,
        signatures: tuple[str, ...] = (),
        names: Callable[[int], SlurmNames | None] = ask_slurm,
    ) -> None:
        self._child = child or LogChild()
        self._signatures = signatures
        self._names = names

    def __call__(self, attempt: Attempt) -> Finding | None:
        """Raises NoAnswerError."""
        question = self.question(attempt)
        return None if question is None else self._child.ask(question)

    def question(self, attempt: Attempt) -> Question | None:
        """What to ask the child; None for a job without a batch script. Raises NoAnswerError."""
        started, ended = attempt.started, attempt.ended
        if started.uid is None:
            raise NoAnswerError("were not read: whose job it was is not known")
        job = started.job.job_id
        known = JobNames(job, started.user or None, started.node)
        streams = [each and expand(each, known) for each in (started.stdout, started.stderr)]
        ids, unseen = [f"{job}"], []
        if not started.stdout or None in streams:
            told = self._names(job)
            if told is not None:
                if not told.batch:
                    return None
                ids += [told.array] if told.array else []
                both = zip((told.stdout, told.stderr), streams, strict=True)
                streams = [told.expanded(path, known) or stream for path, stream in both]
            elif None in streams:
                unseen.append("the name of its output file is not known: it has what only Slurm can fill in")
            if not any(streams):
                streams = [f"slurm-{job}.out"]
        files = [os.path.join(started.work_dir, each) for each in streams if each]  # noqa: PTH118 - text of a user's
        absolute = tuple(dict.fromkeys(each for each in files if each.startswith("/")))
        if len(absolute) < len(set(files)):
            unseen.append("where its output went is not known: Slurm did not tell its folder")
        return Question(
            uid=started.uid,
            # A job found without its prolog's word tells its gid itself, so it is not to be believed
            gid=started.gid if started.source == "prolog" else None,
            files=absolute,
            ids=tuple(ids),
            since=started.at,
            until=ended.at,
            work_dir=started.work_dir,
            not_begun=ended.signal == NOT_BEGUN,
            unseen=tuple(unseen),
            signatures=self._signatures,
        )


def tells(finding: Finding, ended: JobEnded) -> bool:
    """Whether a finding is worth a record: of a run that ended well without a reason there is nothing to say.

    An exit code that is not known is one more reason to tell; so a cancelled job, which has 0, is told of where its log
    says something.
    """
    return finding.reason not in (NONE, NO_SIGNATURE) or ended.exit_code != 0 or bool(ended.signal)


class Findings:
    """Has the logs of jobs that ended read, beside the loop, and hands each finding to `jobs`."""

    def __init__(self, jobs: Jobs, beside: Beside, read: ReadLogs, clock: Clock) -> None:
        self._jobs = jobs
        self._beside = beside
        self._read = read
        self._clock = clock
        self._served: dict[int | None, int] = {}  # by uid: the turn at which one of theirs was read last
        self._turn = 0
        self._reading = False  # until the answer was taken in, which is later than when `beside` has it

    def turn(self) -> None:
        """Begin with the next one, if none is being read."""
        if self._reading:
            return
        for attempt in self._in_turn(self._jobs.unread()):
            if not on_batch_host(attempt.started) or self._clock.wall() - attempt.ended.at > TOO_OLD:
                self._jobs.were_read(attempt, None)
            elif not self._jobs.begin_reading(attempt):
                self._found(attempt, _unread("were not read: twice the agent was ended meanwhile"))
            else:
                self._turn += 1
                self._served[attempt.started.uid] = self._turn
                self._reading = self._beside.ask(
                    lambda attempt=attempt: self._read(attempt),  # type: ignore[misc]
                    lambda finding, attempt=attempt: self._found(attempt, finding),  # type: ignore[misc]
                    lambda error, attempt=attempt: self._failed(attempt, error),  # type: ignore[misc]
                )
                return

    def _in_turn(self, waiting: list[Attempt]) -> list[Attempt]:
        """Each user's first: whoever ends a thousand jobs with logs that take long waits for themselves alone."""
        uids = {attempt.started.uid for attempt in waiting}
        self._served = {uid: turn for uid, turn in self._served.items() if uid in uids}
        return sorted(waiting, key=lambda attempt: self._served.get(attempt.started.uid, 0))

    def _found(self, attempt: Attempt, finding: Finding | None) -> None:
        self._reading = False
        worth = finding is not None and tells(finding, attempt.ended)
        self._jobs.were_read(attempt, finding if worth else None)

    def _failed(self, attempt: Attempt, error: Exception) -> None:
        why = str(error) if isinstance(error, NoAnswerError) else f"were not read: {type(error).__name__}"
        _log.warning("job %s: its logs %s", attempt.ended.job.job_id, one_line(why))
        self._found(attempt, _unread(why))


def _unread(why: str) -> Finding:
    return Finding(NO_SIGNATURE, unseen=(one_line(f"the logs {why}", 600),))
