"""Rules on how jobs use what they hold: what is known of a job, which rules it meets, and what may follow. Pure.

    facts = facts_of(usage, now=now, fresh=fresh)
    for finding in findings(rules, facts):
        ...

What is not known of one GPU is not known of the job: a rule fires on what is so whatever the rest may be.
`profiler.watches` says what has to come together before anything follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Final

from profiler.answers import JobSummary, NodeUse, Usage
from profiler.records import GpuUse
from profiler.store.sums import was_used
from profiler.tally import STUCK
from profiler.wording import NOT_KNOWN, amount, percent, span
from site_configs.alerts_table import DOES, QUANTITIES, Does, Rule
from site_configs.condition import Value
from site_configs.hostlist import HostlistError, expand
from site_configs.site_model import Agent, Site

__all__ = [
    "Facts",
    "Finding",
    "allowed",
    "evidence_of",
    "exempted",
    "facts_of",
    "findings",
    "fresh_seconds",
    "shown",
]

_UNSEEN: Final = 300.0
"""Seconds of a job, all in all, for which a GPU may tell nothing: after more of it, it may have computed."""
_UNSEEN_SHARE: Final = 0.05
"""The share of a job's time, where that is more, for which it may tell nothing until a mean of it is not known."""
_FRESH: Final = 600.0
"""Seconds for which a sample is fresh at most: what agents tell more seldom is no ground to write to anybody."""
_AHEAD: Final = 10.0
"""Seconds that a node's clock may be ahead of ours."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a job.

    Parameters
    ----------
    values: the quantities of `site_configs.alerts_table.QUANTITIES`; None: not known.
    samples: of each node, when it was looked at last (seconds since the epoch, by its clock), and how often that GPU
        of it was looked at which was least often; of a node without GPUs that time once more.
    stale: why the samples of a job that runs are not fresh, as a sentence; empty when they are, and of one that ended.
    """

    job: JobSummary
    values: Mapping[str, Value]
    samples: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    stale: str = ""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.values.get("ended") is True


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a job meets. `exempt` says why nothing follows anyway; empty: it is not exempt."""

    rule: Rule
    facts: Facts
    evidence: Mapping[str, Value]
    exempt: str = ""


def fresh_seconds(agent: Agent) -> float:
    """For how long a sample is fresh: a report that got lost, or was late, makes none stale; 10 minutes at most."""
    return min(2.0 * agent.report + 2.0 * agent.interval + 30.0, _FRESH)


def allowed(rule: Rule, site: Site, job: JobSummary) -> Does:
    """What a rule may lead to for a job, by the site's switches and by the mode of the job."""
    uid = -1 if job.uid is None else job.uid
    # A job that may start in several partitions runs in one of them: that one is told of it then
    mode = site.mode_for(partition=job.partition, account=job.account, uid=uid)
    most: Does = "observe"
    if site.alerts.mail and mode != "observe":
        most = "cancel" if mode == "enforce" and site.alerts.cancel else "notify"
    return min(rule.do, most, key=DOES.index)


def findings(rules: Iterable[Rule], facts: Facts) -> Iterator[Finding]:
    """The rules that a job is known to meet."""
    for rule in rules:
        if rule.when is not None and rule.when.holds(facts.values) is True:
            evidence = {name: facts.values.get(name) for name in rule.when.names}
            job = facts.job
            exempt = exempted(rule, user=job.user, account=job.account, partition=job.partition, qos=job.qos)
            yield Finding(rule, facts, evidence, exempt)


def exempted(rule: Rule, *, user: str, account: str, partition: str, qos: str) -> str:
    """Why a rule leaves such a job alone; empty: it does not. Case counts for partitions alone."""
    exempt = rule.exempt
    if partition in exempt.partitions:
        return f"partition {partition} is exempt"
    whose = (("user", user, exempt.users), ("account", account, exempt.accounts), ("QOS", qos, exempt.qos))
    for what, name, names in whose:
        if name.casefold() in map(str.casefold, names):
            return f"{what} {name} is exempt"
    return ""


# --- what is known of a job -------------------------------------------------------------------------------------------


def facts_of(usage: Usage, *, now: float, fresh: float) -> Facts:
    """What is known of a job that runs, or has ended.

    Parameters
    ----------
    now: seconds since the epoch.
    fresh: seconds for which a sample is fresh.
    """
    job = usage.job
    ended = job.ended is not None
    whole = _is_whole(usage)
    nodes = usage.nodes
    samples = {
        node.node: (node.until, _samples(node, node.until)) for node in nodes if node.until is not None
    }
    values: dict[str, Value] = dict.fromkeys(QUANTITIES)
    values |= {
        # By Slurm's count alone: a node that tells of no GPU may have some nobody sees
        "gpus": _number(job.gpus),
        "ended": ended,
        "state": job.state,
        "partition": job.partition or None,
        "account": job.account or None,
        "user": job.user or None,
        "qos": job.qos or None,
        "nodes": float(len(nodes)) if whole else None,
        "cpus": _number(job.cpus),
        "time_limit_s": job.time_limit,
        "runtime_s": _runtime(usage, whole),
    }
    values |= _of_time(values)
    if whole:
        values |= _of_host(usage)
        values |= _of_gpus(usage, values["gpus"])
    stale = "" if ended else _stale(usage, samples, whole, now, fresh)
    return Facts(job, values, samples, stale)


def _is_whole(usage: Usage) -> bool:
    """Whether all of its nodes have told what it does."""
    told = [node.node for node in usage.nodes if node.until is not None and node.since is not None]
    try:
        names = expand(usage.job.nodes)
    except HostlistError:
        return False
    return bool(names) and sorted(names) == sorted(told)


def _runtime(usage: Usage, whole: bool) -> float | None:
    """By the nodes' own samples while it runs: our clock may have been set."""
    job = usage.job
    if job.ended is not None:
        return max(job.ended - job.started, 0.0) if job.started is not None else None
    return min(_covered(node) for node in usage.nodes) if whole else None


def _covered(node: NodeUse) -> float:
    """Seconds from the job's start on a node to the last sample there."""
    return max(node.until - node.since, 0.0) if node.until is not None and node.since is not None else 0.0


def _of_time(values: Mapping[str, Value]) -> dict[str, Value]:
    ran, limit, gpus = values["runtime_s"], values["time_limit_s"], values["gpus"]
    found: dict[str, Value] = {}
    if isinstance(ran, float) and isinstance(gpus, float):
        found["gpu_hours"] = gpus * ran / 3600
    if isinstance(ran, float) and isinstance(limit, float) and limit > 0:
        if values["ended"] is True:
            found["time_used_share"] = ran / limit
        else:
            found["time_left_s"] = max(limit - ran, 0.0)
    return found


def _of_host(usage: Usage) -> dict[str, Value]:
    """Of CPUs and memory; not known where one node does not know."""
    asked = usage.job.memory_asked_bytes
    found: dict[str, Value] = {"memory_asked_gib": None if asked is None else asked / 2**30}
    hosts = [(node, node.host) for node in usage.nodes if node.host is not None]
    if len(hosts) < len(usage.nodes):
        return found
    used = [host.cpu_seconds for _, host in hosts if host.cpu_seconds is not None]
    had = [host.cpus * _covered(node) for node, host in hosts if host.cpus is not None]
    if len(used) == len(had) == len(hosts) and fsum(had) > 0:
        found["cpu_used_share"] = fsum(used) / fsum(had)
    peaks = [host.memory_peak_bytes for _, host in hosts if host.memory_peak_bytes is not None]
    if len(peaks) == len(hosts) and asked:
        found["memory_used_share"] = sum(peaks) / asked
    return found


def _of_gpus(usage: Usage, gpus: Value) -> dict[str, Value]:
    """Of GPUs; nothing is known of a job that has none, or one of whose GPUs, by Slurm's count, nobody sees."""
    each = [(node, gpu) for node in usage.nodes for gpu in node.gpus]
    if not each or len(each) != gpus:
        return {}
    found: dict[str, Value] = {"samples": float(min(gpu.samples for _, gpu in each))}
    started = usage.job.started
    used = [_used(node, gpu, started) for node, gpu in each]
    if None not in used:
        found |= {"gpus_used": float(used.count(True)), "gpus_unused": float(used.count(False))}
    idle = [_idle(gpu, one) for (_, gpu), one in zip(each, used, strict=True)]
    if None not in idle:
        least = min(one for one in idle if one is not None)
        found["idle_s"] = least
        if None not in used:
            found |= {
                "idle_from_start_s": 0.0 if True in used else least,
                "idle_after_s": least if True in used else 0.0,
            }
    means = [
        (gpu.utilisation_mean, max(gpu.seconds, 1.0))
        for node, gpu in each
        if gpu.utilisation_mean is not None
        and _used(node, gpu, started, _UNSEEN_SHARE) is not None
        and _nearly(gpu.seconds, node, started, _UNSEEN_SHARE)
    ]
    if len(means) == len(each):
        weight = fsum(seconds for _, seconds in means)
        found["util_mean"] = fsum(mean * seconds for mean, seconds in means) / weight / 100
    found["stuck_s"] = _stuck(each, idle)
    return found


def _used(node: NodeUse, gpu: GpuUse, started: float | None, share: float = 0.0) -> bool | None:
    """Whether a GPU ever computed; one that told nothing for a while may have (`started`, `share`: as of `_nearly`)."""
    if gpu.faults:
        return None
    used = was_used(gpu)
    if used is False and not _nearly(gpu.idle_at_start_seconds, node, started, share):
        return None  # also of a MIG instance: a process may come and go between two looks
    return used


def _nearly(seconds: float | None, node: NodeUse, started: float | None, share: float = 0.0) -> bool:
    """Whether so many seconds are about all of a job's time on a node; more may be missing by `share` of it.

    `started`: when the job began, by Slurm. An agent may have found it long after; then nobody saw what was before.
    """
    if seconds is None or started is None or node.since is None:
        return False
    ran = _covered(node) + max(node.since - started, 0.0)
    return seconds >= ran - max(_UNSEEN, share * ran)


def _idle(gpu: GpuUse, used: bool | None) -> float | None:
    """For how long it has not computed, up to its last reading; None: not known."""
    if used is None:
        return None
    return gpu.idle_at_end_seconds if used else gpu.idle_at_start_seconds


def _stuck(each: Sequence[tuple[NodeUse, GpuUse]], idle: Sequence[float | None]) -> float | None:
    """The time for which every GPU has waited, stuck or idle, where at least one is stuck; None: not known."""
    if len(each) < 2:
        return 0.0  # no other to wait for: a light load that fills all of its time
    ends: list[float] = []
    stuck = False
    for (_, gpu), rests in zip(each, idle, strict=True):
        waits = _stuck_at_end(gpu)
        if waits is None:
            return None
        stuck = stuck or waits > 0
        ends.append(max(waits, rests or 0.0))
    return min(ends) if stuck else 0.0


def _stuck_at_end(gpu: GpuUse) -> float | None:
    """Seconds up to its last reading for which a GPU has been at full utilisation with hardly any power.

    None: not known, as without a power limit: what is hardly any is guessed then. A short stretch is none.
    """
    if gpu.stuck_at_end_seconds is None or gpu.power_limit_w is None or gpu.faults:
        return None
    return gpu.stuck_at_end_seconds if gpu.stuck_at_end_seconds >= STUCK.seconds else 0.0


def _samples(node: NodeUse, until: float) -> int:
    """As of `Facts.samples`: it grows with each look."""
    return min((gpu.samples for gpu in node.gpus), default=int(until))


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _stale(
    usage: Usage, samples: Mapping[str, tuple[float, int]], whole: bool, now: float, fresh: float
) -> str:
    if not whole:
        return "not all of its nodes have told what it does"
    for node, (at, _) in samples.items():
        if at > now + _AHEAD:
            return f"the clock of {node} is ahead by {span(at - now)}"
        if now - at > fresh:
            return f"the last sample of {node} is {span(now - at)} old"
    if usage.job.state is None:
        return "Slurm has not told of it yet"
    if usage.job.state not in ("", "RUNNING"):
        return f"Slurm says that it is {usage.job.state}"
    if any(node.final for node in usage.nodes):
        return "one of its nodes has told of its end"
    return ""


# --- as people read it ------------------------------------------------------------------------------------------------


def shown(name: str, value: Value) -> str:
    """A quantity as a person reads it.

    >>> shown("idle_s", 7260.0), shown("util_mean", 0.034), shown("gpus", 8.0), shown("user", None)
    ('2 h 1 min', '3 %', '8', 'n/a')
    """
    sort = QUANTITIES[name][0]
    if value is None:
        return NOT_KNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if sort == "duration":
        return span(value)
    if sort == "share":
        return percent(100 * value)
    return f"{value:,.0f}" if value == round(value) else amount(value)


def evidence_of(finding: Finding) -> str:
    """What a finding rests on, in one line: ``idle_s 2 h 1 min, gpus 8``."""
    return ", ".join(f"{name} {shown(name, value)}" for name, value in finding.evidence.items())
