"""A rule that a job meets, over time: what has to come together before its user is told, or the job ended. Pure.

Nothing follows from one look. A rule has to hold in two samples running, each fresh and newer on every node of the job
and every GPU than the one before: a service that was away, an agent that has died, a driver that hangs or a clock that
was set begin it anew. Before a job is ended its user must have been told, and have had the grace of the rule since,
counted from sample to sample, without a break. A job that computed in between, or was suspended, is told of anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from profiler.alerts import Facts, Finding, findings
from profiler.wording import span
from site_configs.alerts_table import Does, Rule

__all__ = ["ENOUGH", "Watch", "against_cancelling", "anew", "looked", "pause_seconds", "remembered"]

ENOUGH: Final = 2
"""Fresh samples running in which a rule has to hold before anything follows."""
_SPELLS: Final = frozenset({"idle_s", "idle_from_start_s", "idle_after_s", "stuck_s"})
"""Quantities that tell since when something has lasted without a break."""


class Watch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rule that an attempt at a job met when it was looked at last, or was told of.

    Parameters
    ----------
    since: when it was first seen to; at: when its last sample was counted; both seconds since the epoch, by our clock.
    samples: that sample, as `Facts.samples`.
    held: in how many samples running it held.
    told: when its user was told; None: not yet.
    grace: seconds counted since then.
    terms: what the rule was then, and what it could lead to: who was told of other terms was not told of these.
    done: how ending the job went, once that was asked for: "done", or why it was not done.
    """

    job_id: int
    restarts: int
    rule: str
    since: float
    at: float
    samples: dict[str, tuple[float, int]] = {}
    held: int = 0
    told: float | None = None
    grace: float = 0.0
    terms: str = ""
    done: str = ""


def pause_seconds(fresh: float) -> float:
    """The longest time from one counted sample to the next; what took longer begins anew."""
    return 2 * fresh


def looked(
    rules: Iterable[Rule],
    facts: Facts,
    before: Mapping[str, Watch],
    *,
    now: float,
    pause: float,
    does: Callable[[Rule], Does],
) -> list[tuple[Finding, Watch]]:
    """The rules that a job which runs meets at a look, each with its watch; `before`: its watches so far, by rule.

    `does` says what a rule may lead to for the job (`profiler.alerts.allowed`). A watch that is no more in the answer
    has come to its end, unless `remembered` keeps it.
    """
    answer = []
    for found in findings(rules, facts):
        rule, watch = found.rule, before.get(found.rule.name)
        terms = f"{does(rule)} {rule.grace} {rule.when.text if rule.when is not None else ''}"
        if watch is None or watch.terms != terms:
            job = facts.job
            watch = Watch(
                job_id=job.job_id, restarts=job.restarts, rule=rule.name, since=now, at=now, terms=terms
            )
        elif rule.do == "cancel" and (facts.job.state == "SUSPENDED" or _is_younger(rule, facts, watch)):
            watch = anew(watch, now)
        answer.append((found, _counted(facts, watch, now, pause)))
    return answer


def remembered(rules: Iterable[Rule], facts: Facts, before: Mapping[str, Watch]) -> list[Watch]:
    """The watches of rules that the job is not known to meet now, as far as they are still of use.

    What is only not known, or was told without anything to follow, is not begun anew with another mail.
    """
    kept = []
    for rule in rules:
        watch = before.get(rule.name)
        holds = None if rule.when is None else rule.when.holds(facts.values)
        if watch is None or holds is True:
            continue
        if holds is None or (watch.told is not None and rule.do != "cancel"):
            kept.append(msgspec.structs.replace(watch, held=0, grace=0.0))
    return kept


def anew(watch: Watch, now: float) -> Watch:
    """The watch of a rule that came to hold another time: nothing of the time before counts, and no mail."""
    return msgspec.structs.replace(watch, since=now, held=0, told=None, grace=0.0, done="")


def _is_younger(rule: Rule, facts: Facts, watch: Watch) -> bool:
    """Whether what the rule rests on began after the watch of it: the job has computed in between."""
    if rule.when is None:
        return False
    latest = max((at for at, _ in facts.samples.values()), default=0.0)
    for name in _SPELLS & set(rule.when.names):
        lasts = facts.values.get(name)
        # Where the rule would hold without it, it tells nothing of how long the rule has
        rests = rule.when.holds({**facts.values, name: 0.0}) is not True
        if rests and isinstance(lasts, float) and latest - lasts > watch.since:
            return True
    return False


def _counted(facts: Facts, before: Watch, now: float, pause: float) -> Watch:
    if facts.stale:
        return msgspec.structs.replace(before, held=0, grace=0.0)
    samples = dict(facts.samples)
    same = samples.keys() == before.samples.keys()
    if same and not all(_is_newer(samples[node], last) for node, last in before.samples.items()):
        return before  # nothing is known that was not
    passed = now - before.at
    if not (same and 0 < passed <= pause):
        return msgspec.structs.replace(before, at=now, samples=samples, held=1, grace=0.0)
    grace = before.grace + passed if before.told is not None and before.held else before.grace
    return msgspec.structs.replace(before, at=now, samples=samples, held=before.held + 1, grace=grace)


def _is_newer(sample: tuple[float, int], last: tuple[float, int]) -> bool:
    return sample[0] > last[0] and sample[1] > last[1]


def against_cancelling(rule: Rule, watch: Watch) -> str:
    """Why the job is not ended yet, as far as time tells; empty: nothing is against it."""
    if watch.done:
        return watch.done
    if watch.held < ENOUGH:
        return "it takes two fresh samples running"
    if watch.told is None:
        return "its user has not been told yet"
    if watch.grace < rule.grace:
        return f"its user has {span(rule.grace - watch.grace)} left"
    return ""
