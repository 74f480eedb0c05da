"""Which job came of which decision. Pure: decisions on one side, what Slurm shows of its jobs on the other.

A job that carries ``gsub:d-...`` in its AdminComment says it itself. Others are found by who submitted what and when,
and only where nothing else fits: **a wrong join is worse than none**, for everything learnt later rests on it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_plugins.client import parse
from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.values import Job, Tres
from slurm_plugins.decide.decision import Decision
from slurm_plugins.decide.request import Request

__all__ = ["LOST_AFTER", "WINDOW", "Joined", "Outcome", "Pending", "Submission", "join", "submissions"]

LOST_AFTER: Final = 600.0
"""A decision without a job after so many seconds has none: --test-only, or Slurm refused the job after all."""
WINDOW: Final = 5.0
"""Seconds from a decision to its job's submit time, at most; slurmctld takes milliseconds when it is not overloaded."""
# slurmctld takes times from the kernel's coarse clock, which lags by up to a tick.
_EARLY: Final = 0.02
_TAG: Final = re.compile(r"(?<![\w-])gsub:(d-[0-9a-f]{16})(?![\w-])")


@dataclass(frozen=True, slots=True)
class Pending:
    """A decision whose job is not known yet. None: the user did not say.

    `gpus` are the four tres_per_... as the user wrote them, where the job still has them. `tagged`: the job was given
    the decision's id as AdminComment, so that nothing else counts.
    """

    id: str
    at: float
    uid: int
    user: str | None = None
    name: str | None = None
    partition: str | None = None
    work_dir: str | None = None
    array: bool = False
    het_offset: int | None = None
    gpus: tuple[str | None, ...] | None = None
    tagged: bool = False

    @classmethod
    def of(cls, request: Request, decision: Decision, at: float) -> Pending:
        """What must be known of a decision to find its job."""
        job, cut = request.job, request.cut
        enforced = decision.mode == "enforce" and not decision.opted_out
        return cls(
            id=decision.id,
            at=at,
            uid=request.uid,
            user=job.user_name,
            name=None if "name" in cut else job.name,
            partition=None if "partition" in cut else job.partition,
            work_dir=None if "work_dir" in cut else job.work_dir,
            array=bool(job.array_inx),
            het_offset=job.het_job_offset,
            gpus=None if enforced else tuple(getattr(job, name) for name in _TRES),
            tagged=_tagged(enforced, decision.edits.get("admin_comment")),
        )

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Pending | None:
        """The same from a record of a decision (`written.decision_line`); None when it is none of ours."""
        asked = record.get("asked")
        if record.get("kind") != "decision" or not isinstance(asked, dict):
            return None
        try:
            tags = [change["after"] for change in record["changes"] if change["field"] == "admin_comment"]
            cut = record.get("cut", ())
            enforced = bool(record.get("enforced"))
            known = {key: asked.get(key) for key in ("name", "partition", "work_dir") if key not in cut}
            return cls(
                str(record["decision"]),
                float(record["at"]),
                int(record["uid"]),
                asked.get("user_name"),
                **known,
                array=bool(asked.get("array_inx")),
                het_offset=asked.get("het_job_offset"),
                gpus=None if enforced else tuple(asked.get(name) for name in _TRES),
                tagged=_tagged(enforced, tags[0] if tags else None),
            )
        except (KeyError, TypeError, ValueError):
            return None


_TRES: Final = ("tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task")


def _tagged(enforced: bool, comment: object) -> bool:
    return enforced and isinstance(comment, str) and _TAG.search(comment) is not None


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as it was submitted: of an array one for all its tasks, of a heterogeneous job one a component."""

    id: int
    submitted: float
    name: str
    uid: int | None
    user: str
    partition: str
    array: bool = False
    het_offset: int | None = None
    work_dir: str | None = None
    gpus: tuple[str, ...] | None = None
    tag: str | None = None


def submissions(jobs: Iterable[Job]) -> dict[int, Submission]:
    """What was submitted, by id. Left out: jobs that gsub was not asked about, and those without a submit time."""
    found: dict[int, Submission] = {}
    for job in jobs:
        number = job.array_job_id or job.id
        if job.submitted is None or number in found or _not_asked_about(job):
            continue
        tag = _TAG.search(job.admin_comment or "")
        found[number] = Submission(
            number,
            job.submitted.timestamp(),
            _clean(job.name),
            job.uid,
            _clean(job.user),
            _clean(job.partition),
            job.array_job_id is not None,
            job.het_offset,
            None if job.work_dir is None else _clean(job.work_dir),
            tuple(_gpus(getattr(job, name)) for name in _TRES),
            tag[1] if tag else None,
        )
    return found


def _not_asked_about(job: Job) -> bool:
    """The shim lets a job without GPUs, or whose comment says so, pass without a question."""
    return job.gpu_count == 0 or "gsub:off" in re.split(r"[\s,;]+", job.comment or "")


def _gpus(tres: Tres) -> str:
    return ",".join(sorted(f"{name}={count}" for name, count in tres.items() if name.startswith("gres/gpu")))


@dataclass(frozen=True, slots=True)
class Joined:
    """A decision and its job; `by` is "admin_comment" or "submission"."""

    decision: str
    job: Submission
    by: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one look at Slurm's jobs told. `open` are those that a later look may still find.

    `spoilt` are jobs that a decision given up as ambiguous may have led to: they must not be joined later, when that
    decision no longer competes.
    """

    joined: tuple[Joined, ...] = ()
    ambiguous: tuple[Pending, ...] = ()
    lost: tuple[Pending, ...] = ()
    open: tuple[Pending, ...] = ()
    spoilt: frozenset[int] = frozenset()


def join(
    pending: Sequence[Pending],
    jobs: Mapping[int, Submission],
    *,
    looked: float,
    taken: Container[int] = frozenset(),
    default_partition: str = "",
) -> Outcome:
    """Find the jobs of decisions.

    Parameters
    ----------
    looked: when Slurm was asked for `jobs`, in seconds since the epoch: a decision is judged by its submission only
        when all jobs that might be its own can be seen, `WINDOW` seconds after it.
    taken: jobs that belong to a decision already.
    """
    by_tag = {job.tag: job for job in jobs.values() if job.tag is not None}
    joined = [Joined(one.id, by_tag[one.id], "admin_comment") for one in pending if one.id in by_tag]
    rest = [one for one in pending if one.id not in by_tag]
    free = [job for job in jobs.values() if job.tag is None and job.id not in taken]
    fits = _candidates([one for one in rest if not one.tagged], free, default_partition)
    ripe = {one.id for one in rest if one.at + WINDOW < looked}
    pairs, left = _certain(fits)
    joined += [Joined(one, jobs[number], "submission") for one, number in pairs.items() if one in ripe]
    found = {one.decision for one in joined}
    unclear = set().union(*left.values()) & ripe
    rest = [one for one in rest if one.id not in found]
    ambiguous = tuple(one for one in rest if one.id in unclear)
    rest = [one for one in rest if one.id not in unclear]
    return Outcome(
        tuple(joined),
        ambiguous,
        tuple(one for one in rest if one.at + LOST_AFTER < looked),
        tuple(one for one in rest if one.at + LOST_AFTER >= looked),
        frozenset(job for job, decisions in left.items() if decisions & unclear),
    )


def _candidates(pending: Iterable[Pending], jobs: Iterable[Submission], default: str) -> dict[str, set[int]]:
    """Decision -> the jobs that may be its own."""
    by_second: dict[int, list[Submission]] = {}
    for job in jobs:
        by_second.setdefault(int(job.submitted), []).append(job)
    found: dict[str, set[int]] = {}
    for one in pending:
        seconds = range(int(one.at - _EARLY), int(one.at + WINDOW) + 1)
        near = [job for second in seconds for job in by_second.get(second, ())]
        gpus = _asked_gpus(one)
        found[one.id] = {job.id for job in near if _fits(one, gpus, job, default)}
    return found


def _asked_gpus(one: Pending) -> tuple[str, ...] | None:
    """As `Submission.gpus`; None where it is not known what the job shows, or not understood what the user wrote."""
    if one.gpus is None:
        return None
    try:
        return tuple(_gpus(parse.tres(text or "")) for text in one.gpus)
    except SlurmFormatError:
        return None


def _fits(one: Pending, gpus: tuple[str, ...] | None, job: Submission, default: str) -> bool:
    """Nothing that both tell speaks against it."""
    if job.uid is not None:
        if job.uid != one.uid:
            return False
    elif one.user is None or job.user != one.user:
        return False
    if one.array != job.array or one.het_offset != job.het_offset:
        return False
    asked = one.partition or default
    if asked and not set(job.partition.split(",")) <= set(asked.split(",")):
        return False
    if gpus is not None and job.gpus is not None and gpus != job.gpus:
        return False
    return all(
        told is None or shown is None or _clean(told) == shown
        for told, shown in ((one.name, job.name), (one.work_dir, job.work_dir))
    )


def _clean(text: str) -> str:
    """Bytes that are no UTF-8 reach us as U+FFFD from the shim and as surrogates from Slurm's commands."""
    return re.sub("[\ufffd\udc80-\udcff]+", "\ufffd", text)


def _certain(fits: Mapping[str, set[int]]) -> tuple[dict[str, int], dict[int, set[str]]]:
    """The pairs that nothing else can explain, and for each job that is left the decisions that it may have come of.

    A decision may have no job, but a job that gsub was asked about has a decision: one that fits a single decision came
    of it. Each pair frees the others from a choice, until no more follows.
    """
    left: dict[int, set[str]] = {}
    for decision, jobs in fits.items():
        for job in jobs:
            left.setdefault(job, set()).add(decision)
    found: dict[str, int] = {}
    while True:
        claims: dict[str, list[int]] = {}
        for job, decisions in left.items():
            if len(decisions) == 1:
                claims.setdefault(next(iter(decisions)), []).append(job)
        # Two jobs of one decision: one of them was not asked about, and nobody can say which
        pairs = {decision: jobs[0] for decision, jobs in claims.items() if len(jobs) == 1}
        if not pairs:
            return found, left
        found |= pairs
        for job in pairs.values():
            del left[job]
        left = {job: rest for job, decisions in left.items() if (rest := decisions - pairs.keys())}
