"""Resubmission in the shadow: failures that would have been tried again, and what the users' own next runs came to.

The next run of a failure is the next attempt at the same job (Slurm or the user queued it again), else the first
submission of the same script by the same user after its end. What several failures for one reason (tasks of an array)
have as their next run counts once: it is one piece of evidence.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Final, Literal, TypeAlias

from profiler.report.evidence import LEAST, Figure, counted, interval
from profiler.report.shadow_values import Stage, most

__all__ = ["Again", "Failure", "LaterRun"]

_UNDER_WAY: Final = frozenset({"", "PENDING", "RUNNING", "SUSPENDED", "CANCELLED"})
"""What tells nothing of whether another attempt would have helped."""
_NEAR: Final = 600.0
_Came: TypeAlias = Literal["passed", "same", "other", "unknown"]


@dataclass(slots=True)
class Failure:
    """A failed attempt. `number` is its job's, an array's for its tasks; `followed` is what gsub said of it.

    `next` is the job that the same script was submitted as afterwards.
    """

    number: int
    job_id: int
    restarts: int
    uid: int | None
    at: float
    reason: str
    gpu_seconds: float | None
    followed: str
    script: str = ""
    next: int | None = None


@dataclass(frozen=True, slots=True)
class LaterRun:
    """An attempt that may be somebody's next one."""

    number: int
    job_id: int
    restarts: int
    uid: int | None
    submitted: float | None
    state: str
    reason: str


class Again:
    """Failures in (`take`, `script`, `begin`), submissions by their time (`submitted`), later runs (`learn`)."""

    def __init__(self) -> None:
        self._followed: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._hours = array("d")
        self._open: list[Failure] = []
        self._scripts: dict[int, list[tuple[float, str, int | None]]] = {}
        self._waiting: dict[tuple[int | None, str], deque[Failure]] = {}
        self._came: dict[str, dict[tuple[object, ...], _Came]] = {"would": {}, "never": {}}

    def take(self, failed: Failure) -> None:
        """One failure more, in the order of their ends."""
        self._followed[failed.followed] += 1
        if failed.followed == "would":
            self._reasons[failed.reason] += 1
            self._hours.append((failed.gpu_seconds or 0.0) / 3600)
        if failed.followed in self._came:
            self._open.append(failed)

    @property
    def waits(self) -> bool:
        """Whether later submissions tell anything."""
        return bool(self._open)

    def numbers(self) -> list[int]:
        """The jobs whose scripts are to be found."""
        return sorted({one.number for one in self._open})

    def script(self, number: int, uid: int | None, at: float, script: str) -> None:
        """The script (its digest) of a decision about a job of that number."""
        self._scripts.setdefault(number, []).append((at, script, uid))

    def begin(self) -> None:
        """All scripts are told."""
        for failed in self._open:
            known = [
                one
                for one in self._scripts.get(failed.number, ())
                if one[0] <= failed.at and one[2] == failed.uid
            ]
            if known:
                failed.script = max(known)[1]
                self._waiting.setdefault((failed.uid, failed.script), deque()).append(failed)
        self._scripts.clear()

    def submitted(self, uid: int | None, script: str, at: float, number: int, *, within: float) -> None:
        """A job of that number was submitted then; jobs come in the order of their times."""
        waiting = self._waiting.get((uid, script))
        while waiting and waiting[0].at < at:
            failed = waiting.popleft()
            if at - failed.at <= within:
                failed.next = number

    def later(self) -> list[int]:
        """The jobs to be learnt of."""
        return sorted(
            {number for one in self._open for number in (one.number, one.next) if number is not None}
        )

    def learn(self, runs: Iterable[LaterRun]) -> None:
        """What became of them."""
        by_number: dict[int, list[LaterRun]] = {}
        attempts: dict[tuple[int, int, int | None], LaterRun] = {}
        for run in runs:
            by_number.setdefault(run.number, []).append(run)
            attempts[run.job_id, run.restarts, run.uid] = run
        for failed in self._open:
            came = self._came[failed.followed]
            own = attempts.get((failed.job_id, failed.restarts + 1, failed.uid))
            if own is not None:
                came[failed.job_id, failed.restarts] = _came([own], failed.reason)
                continue
            key = (failed.uid, failed.script, failed.next, failed.reason)
            if failed.next is not None and key not in came:
                later = [
                    run
                    for run in by_number.get(failed.next, ())
                    if run.uid == failed.uid and (run.submitted is None or run.submitted >= failed.at - _NEAR)
                ]
                came[key] = _came(_last(later), failed.reason)

    def done(self) -> Stage:
        """The stage."""
        would, never = (Counter(self._came[name].values()) for name in ("would", "never"))
        known, in_vain = sum(would.values()) - would["unknown"], would["same"] + would["other"]
        acted = self._followed["would"]
        never_known = sum(never.values()) - never["unknown"]
        verdict, why = _verdict(acted, would["passed"], known)
        return Stage(
            name="resubmission",
            attempts=acted,
            jobs=len({one.job_id for one in self._open if one.followed == "would"}),
            gpu_hours=fsum(self._hours),
            changes=dict(most(self._reasons)),
            happened=(
                Figure("followed by a run of the same job or script", sum(would.values()), "", acted),
                Figure(
                    "of another cause than any attempt can mend (never tried again)", self._followed["never"]
                ),
                counted("... which the user repeated in vain", never["same"] + never["other"], never_known),
            ),
            benefit=(counted("next runs that passed", would["passed"], known),),
            harm=(
                counted("next runs that failed for the same reason", would["same"], known),
                counted("next runs that failed for another", would["other"], known),
                Figure(
                    "GPU-hours of one more attempt each, as long as the failed one",
                    fsum(self._hours),
                    "h",
                    acted,
                ),
            ),
            helped=would["passed"],
            harmed=in_vain,
            known=known,
            verdict=verdict,
            why=why,
            assumes="gsub's attempt would have ended as the user's own next run of the same script did, within a day. "
            "Users also repeat what they have mended elsewhere, and leave alone what they think hopeless.",
            enforced=self._followed["tried"],
        )


def _last(runs: Iterable[LaterRun]) -> list[LaterRun]:
    """The last attempt at each job."""
    found: dict[int, LaterRun] = {}
    for run in runs:
        if run.job_id not in found or found[run.job_id].restarts < run.restarts:
            found[run.job_id] = run
    return list(found.values())


def _came(runs: Sequence[LaterRun], reason: str) -> _Came:
    """What a run came to; of an array's tasks all have to pass."""
    states = {run.state for run in runs}
    if not runs or states & _UNDER_WAY:
        return "unknown"
    if states == {"COMPLETED"}:
        return "passed"
    return "same" if any(run.reason == reason for run in runs) else "other"


def _verdict(acted: int, passed: int, known: int) -> tuple[Literal["for", "against", "open"], str]:
    low, high = interval(passed, known)
    if not acted:
        return "open", "it would have tried nothing again"
    if known < LEAST:
        return "open", f"too few next runs are known (n={known}): from {LEAST} on something is told"
    if low > 0.5:
        return "for", "more of the next runs passed than failed"
    if high < 0.5:
        return "against", "more of the next runs failed than passed"
    return "open", "about as many next runs passed as failed: more of them would tell"
