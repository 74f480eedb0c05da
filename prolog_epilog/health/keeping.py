"""The health of a node: every check's conditions, the events of their changes, and whether new jobs are kept off.

No threads, no files, no clock: `runner` feeds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

from prolog_epilog.health.damping import RULES, Condition, after
from prolog_epilog.health.finding import Finding, State
from prolog_epilog.health.gpu_view import Kept
from prolog_epilog.health.plan import Planned

__all__ = ["Change", "Conditions", "HealthState"]

Action: TypeAlias = Literal["none", "comment", "drain", "undrain"]

_MOST_SUBJECTS: Final = 1024  # of one check


class HealthState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of a node's health outlives the agent: conditions by check and subject, and what is known of its GPUs.

    `boot` is the kernel's id of this boot: after another one, times and Xids of the old one mean nothing.
    """

    boot: str = ""
    conditions: dict[str, dict[str, Condition]] = {}
    gpus: Kept = Kept()


@dataclass(frozen=True, slots=True)
class Change:
    """A check changed its mind about a subject."""

    name: str
    state: State
    detail: str
    action: Action = "none"
    gpu: str = ""


class Conditions:
    """The conditions of all checks.

    `may_drain` says whether the site lets a check keep jobs off; where it does not, such a check comments.
    """

    def __init__(self, checks: Iterable[Planned], *, may_drain: bool) -> None:
        self._checks = {check.name: check for check in checks}
        self._may_drain = may_drain
        self._conditions: dict[str, dict[str, Condition]] = {}

    def restore(self, conditions: Mapping[str, Mapping[str, Condition]], *, same_boot: bool) -> None:
        """Go on from an earlier agent's; checks that are no longer run are forgotten."""
        for name, subjects in conditions.items():
            if name not in self._checks:
                continue
            self._conditions[name] = {
                subject: condition
                if same_boot
                else msgspec.structs.replace(condition, changes=(), earlier_boot=True)
                for subject, condition in subjects.items()
            }

    def kept(self) -> dict[str, dict[str, Condition]]:
        """For `restore`, and to look at."""
        return {name: dict(subjects) for name, subjects in self._conditions.items()}

    def state(self, name: str, subject: str = "") -> State:
        """How a check stands; one that was never run is well."""
        return self._conditions.get(name, {}).get(subject, Condition()).shown

    def take(
        self, name: str, findings: Iterable[Finding], at: float, *, complete: bool = True
    ) -> tuple[Change, ...]:
        """A run of a check at monotonic time `at`; returns what changed.

        `complete`: what is not among the findings is not there; not so when only some could be looked at.
        """
        check = self._checks.get(name)
        if check is None:
            return ()
        subjects = self._conditions.setdefault(name, {})
        changes: list[Change] = []
        told = {finding.subject: finding for finding in findings}
        unanswered = set(told) == {""} and told[""].state == "unknown"
        if not unanswered and "" in subjects and "" not in told:
            told[""] = Finding("ok", "answers again")  # "" is then the run of the check itself
        for subject, finding in told.items():
            if subject not in subjects and len(subjects) >= _MOST_SUBJECTS:
                continue
            before = subjects.get(subject, Condition())
            changes.extend(self._changed(check, subject, before, after(before, finding, at)))
        if complete and not unanswered:
            changes.extend(self._absent(check, subjects, set(told)))
        return tuple(changes)

    def reasons(self) -> tuple[str, ...]:
        """Why new jobs are kept off this node; none: they are not. Each names its check (the prolog adds "gsub: ")."""
        return tuple(
            f"{name}: {condition.reason}"
            for name, subjects in self._conditions.items()
            for condition in subjects.values()
            if condition.draining
        )

    def forget(self) -> None:
        """Begin anew, as if all were well."""
        self._conditions.clear()

    def _changed(self, check: Planned, subject: str, before: Condition, now: Condition) -> Iterator[Change]:
        action: Action = "none"
        if before.shown != now.shown:
            if now.shown == "error":
                drains = check.on_fail == "drain" and self._may_drain
                action = "drain" if drains else "none" if check.on_fail == "none" else "comment"
                if drains:
                    now = msgspec.structs.replace(now, draining=True, reason=now.said)
            elif now.shown in (
                "ok",
                "warning",
            ):  # "unknown" says nothing: it neither drains nor lifts a drain
                action = "undrain" if before.draining else "none"
                if now.flapping and not before.draining and check.on_fail != "none":
                    action = "comment"
                now = msgspec.structs.replace(now, draining=False, reason="")
        self._conditions[check.name][subject] = now
        if before.shown != now.shown or before.flapping != now.flapping:
            yield Change(check.name, now.shown, now.said, action, now.gpu)

    def _absent(self, check: Planned, subjects: dict[str, Condition], told: set[str]) -> Iterator[Change]:
        """What was not spoken of for some runs is gone, like a mount that was taken away.

        Not so a GPU that was not well: that it is not seen any more is no sign of health. It stays as it was until it
        is seen again, or the node has booted.
        """
        for subject in [subject for subject in subjects if subject not in told]:
            condition = subjects[subject]
            condition = msgspec.structs.replace(condition, absent=min(condition.absent + 1, RULES.fall))
            subjects[subject] = condition
            well = condition.shown == "ok"
            if condition.absent < RULES.fall or (condition.gpu and not well and not condition.earlier_boot):
                continue
            del subjects[subject]
            if not well:
                state: State = "unknown" if condition.gpu else "ok"
                action: Action = "undrain" if condition.draining else "none"
                what = (
                    "this GPU is not there since the node has booted"
                    if condition.gpu
                    else f"{subject} is gone"
                )
                yield Change(check.name, state, f"{what}; before: {condition.said}", action, condition.gpu)
