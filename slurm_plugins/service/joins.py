"""Which job came of which decision. Pure: decisions on one side, what Slurm shows of its jobs on the other.

A job that carries ``gsub:d-...`` in its AdminComment says it itself. Others are found by who submitted what and when,
and only where nothing else fits: **a wrong join is worse than none**, for everything learnt later rests on it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from msgspec.structs import replace

from slurm_plugins.service.submitted import Pending, Submission, asked_gpus, clean

__all__ = ["LOST_AFTER", "WINDOW", "Joined", "Outcome", "join"]

LOST_AFTER: Final = 600.0
"""A decision without a job after so many seconds has none: --test-only, or Slurm refused the job after all."""
WINDOW: Final = 5.0
"""Seconds from a decision to its job's submit time, at most; slurmctld takes milliseconds when it is not overloaded."""
# slurmctld takes times from the kernel's coarse clock, which lags by up to a tick.
_EARLY: Final = 0.02
_CROWD: Final = 32
"""A decision that so many jobs may have come of is not looked into: in a burst of jobs all alike nothing is certain,
and comparing each with each would take minutes."""


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
    ripe = {one.id for one in rest if one.at + WINDOW < looked}
    free = [job for job in jobs.values() if job.tag is None and job.id not in taken]
    may = _May.of([one for one in rest if not one.tagged], _Near(free, default_partition))
    pairs, left = _certain(may.fits, {one.id: one.at for one in rest})
    joined += [Joined(one, jobs[number], "submission") for one, number in pairs.items() if one in ripe]
    found = {one.decision for one in joined}
    unclear = (may.crowded.union(*left.values()) - pairs.keys()) & ripe
    spoilt = {job for job, decisions in left.items() if decisions & unclear}
    if may.crowded & ripe:
        spoilt |= may.crowd
    rest = [one for one in rest if one.id not in found]
    ambiguous = tuple(one for one in rest if one.id in unclear)
    rest = [one for one in rest if one.id not in unclear]
    return Outcome(
        tuple(joined),
        ambiguous,
        tuple(one for one in rest if one.at + LOST_AFTER < looked),
        tuple(one for one in rest if one.at + LOST_AFTER >= looked),
        frozenset(spoilt),
    )


_Seconds: TypeAlias = dict[int, list[int]]


class _Near:
    """Jobs by who submitted them, name and folder; those that are alike in all but their time in one group."""

    def __init__(self, jobs: Iterable[Submission], default: str) -> None:
        self._default = default
        self._groups: dict[Submission, _Seconds] = {}
        self._by_key: dict[tuple[int | str, str, str | None], list[Submission]] = {}
        self._by_who: dict[int | str, list[Submission]] = {}
        self._known: dict[Pending, list[_Seconds]] = {}
        for job in jobs:
            alike = replace(job, id=0, submitted=0.0)
            seconds = self._groups.get(alike)
            if seconds is None:
                seconds = self._groups[alike] = {}
                who = job.user if job.uid is None else job.uid
                self._by_key.setdefault((who, job.name, job.work_dir), []).append(alike)
                self._by_who.setdefault(who, []).append(alike)
            seconds.setdefault(int(job.submitted), []).append(job.id)

    def jobs(self, one: Pending) -> Iterator[list[int]]:
        """The jobs that may have come of a decision, those of one second together."""
        like = replace(one, id="", at=0.0)
        groups = self._known.get(like)
        if groups is None:
            gpus = asked_gpus(one)
            groups = self._known[like] = [
                self._groups[job] for job in self._alike(one) if _fits(one, gpus, job, self._default)
            ]
        for seconds in groups:
            for second in range(int(one.at - _EARLY), int(one.at + WINDOW) + 1):
                if second in seconds:
                    yield seconds[second]

    def _alike(self, one: Pending) -> Iterator[Submission]:
        for who in (one.uid, one.user):
            if who is None:
                continue
            if one.name is None or one.work_dir is None:
                yield from self._by_who.get(who, ())
            else:
                for folder in (clean(one.work_dir), None):
                    yield from self._by_key.get((who, clean(one.name), folder), ())


@dataclass(slots=True)
class _May:
    """`fits`: decision -> the jobs that may have come of it. `crowded` are decisions with too many of them or with some
    of the `crowd`, the jobs of a burst, which nothing is concluded from.
    """

    fits: dict[str, set[int]] = field(default_factory=dict)
    crowded: set[str] = field(default_factory=set)
    crowd: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, pending: Iterable[Pending], near: _Near) -> _May:
        """Look at each decision's jobs, bursts aside."""
        may = cls()
        bursts: dict[int, list[int]] = {}
        for one in pending:
            found = list(near.jobs(one))
            if sum(map(len, found)) > _CROWD:
                may.crowded.add(one.id)
                bursts.update((id(jobs), jobs) for jobs in found)
            else:
                may.fits[one.id] = set().union(*found)
        may.crowd = set().union(*bursts.values())
        if may.crowd:
            may.crowded |= {decision for decision, jobs in may.fits.items() if jobs & may.crowd}
            may.fits = {decision: jobs - may.crowd for decision, jobs in may.fits.items()}
        return may


def _fits(one: Pending, gpus: tuple[str, ...] | None, job: Submission, default: str) -> bool:
    """Whether nothing that both tell, besides the time, speaks against it."""
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
    for wanted, has in ((one.cpus, job.cpus), (one.minutes, job.minutes)):
        if wanted is not None and has is not None and wanted != has:
            return False
    return all(
        told is None or shown is None or clean(told) == shown
        for told, shown in ((one.name, job.name), (one.work_dir, job.work_dir))
    )


def _certain(
    fits: Mapping[str, set[int]], at: Mapping[str, float]
) -> tuple[dict[str, int], dict[int, set[str]]]:
    """The pairs that nothing else can explain, and for each job that is left the decisions that it may have come of.

    A decision may have no job, but a job that gsub was asked about has a decision: one that fits a single decision came
    of it. Each pair frees the others from a choice, until no more follows. As many jobs as decisions that nothing else
    tells apart are paired in their order: slurmctld asks about one submission after the other.
    """
    left: dict[int, set[str]] = {}
    for decision, jobs in fits.items():
        for job in jobs:
            left.setdefault(job, set()).add(decision)
    found: dict[str, int] = {}
    claims: dict[str, list[int]] = {}
    single = [job for job, decisions in left.items() if len(decisions) == 1]
    while single:
        claimed = {}
        for job in single:
            (decision,) = left[job]
            claims.setdefault(decision, []).append(job)
            claimed[decision] = job
        single = []
        for decision, job in claimed.items():
            # Two jobs of one decision: one of them was not asked about, and nobody can say which
            if len(claims[decision]) > 1:
                continue
            found[decision] = job
            del left[job]
            for other in fits[decision] & left.keys():
                left[other].discard(decision)
                if len(left[other]) == 1:
                    single.append(other)
    for decisions, alike in _groups(left):
        ordered = sorted(decisions, key=lambda one: (at[one], one))
        if len(ordered) == len(alike) and all(
            job in fits[one] for one, job in zip(ordered, alike, strict=True)
        ):
            found.update(zip(ordered, alike, strict=True))
            for job in alike:
                del left[job]
    return found, left


def _groups(left: Mapping[int, set[str]]) -> Iterator[tuple[set[str], list[int]]]:
    """Jobs that are left, with the decisions that they may have come of: those that share one together."""
    groups: list[tuple[set[str], list[int]]] = []
    for job in sorted(left):
        decisions, jobs = set(left[job]), [job]
        apart = []
        for group in groups:
            if group[0] & decisions:
                decisions |= group[0]
                jobs += group[1]
            else:
                apart.append(group)
        groups = [*apart, (decisions, jobs)]
    return ((decisions, sorted(jobs)) for decisions, jobs in groups)
