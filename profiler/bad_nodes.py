"""Which nodes evidence speaks against: by node and reason, a beta-binomial against the partition's base rate. Pure.

A trial is a workload of a user that ran on a node on a day; a vote is one of these that failed there for a reason that
a node can cause; those that come within two minutes are one, since a node that goes down takes all of its jobs with it.
Votes and trials lose half their weight in `Rules.half_life` days. A node's rate has the prior Beta(s·p, s·(1-p)),
where s is `Rules.strength` and p the rate of the partition's other nodes, without the tenth that fails most, lest two
bad ones hide each other. After k votes in m trials it is distributed as Beta(s·p + k, s·(1-p) + m - k). The node is
suspected as strongly as that rate is likely to be more than `Rules.ratio` times p.

Root's evidence (Slurm's word, the kernel's, NVML's, a health check's) and users' (their logs) are counted apart, each
against its own base rate. Users' convicts a node only by votes of `Rules.users` different users, and only where it
would without the user who speaks against it most: whatever one user writes into logs, it decides nothing.

Who is avoided: the worst first, a tenth of a partition at most; one with fewer than ten nodes avoids none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from profiler.beta import tail
from profiler.findings import Source

__all__ = ["DAY", "REASONS", "RULES", "Charge", "Evidence", "Rules", "Vote", "assess", "avoided", "day_of"]

DAY: Final = 86400.0

REASONS: Final = frozenset(
    {
        "gpu_hardware",
        "cuda_init_failed",
        "cuda_failure",
        "node_failure",
        "nccl_error",
        "nccl_timeout",
        "filesystem_error",
        "container_error",
    }
)
"""What a node can cause: its GPUs, driver, links, mounts, container runtime, or its going down.

Not checkpoint_error and no_space: mostly shared storage, or a quota, which is the same on every node; the health
checks know a local disk that is full. Not rendezvous_failure, network_error and the mpi_ ones: they name a peer or a
service that was not there, not the node that said so.
"""

_NOTHING: Final = 1e-9
"""A weight that is none: what rounding leaves."""
By: TypeAlias = Literal["", "root", "user"]


@dataclass(frozen=True, slots=True)
class Rules:
    """How evidence is weighed.

    `half_life` and `window` are days; `strength` is trials that the prior is worth; `least_rate` is the base rate where
    nothing ever fails; `part`: at most one node in so many is avoided; `workloads`: most of one user that count for a
    node, a reason and a day; failures within `incident` seconds are one.
    """

    half_life: float = 4.0
    window: int = 21
    strength: float = 10.0
    least_rate: float = 0.005
    ratio: float = 3.0
    sure: float = 0.95
    users: int = 3
    part: int = 10
    workloads: int = 3
    incident: float = 120.0


RULES: Final = Rules()
"""How gsub weighs it."""


@dataclass(frozen=True, slots=True)
class Vote:
    """A piece of evidence against a node: of an attempt at a job (`uid`, `workload`), or of the node itself (None)."""

    node: str
    reason: str
    source: Source
    at: float
    uid: int | None = None
    workload: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks against a node from one source: votes as they are counted, of so many users, what they weigh now
    among trials of the weight `trials`, the probability that follows, and when the first and the last came.
    """

    votes: int = 0
    users: int = 0
    weight: float = 0.0
    trials: float = 0.0
    probability: float = 0.0
    since: float | None = None
    last: float | None = None


@dataclass(frozen=True, slots=True)
class Charge:
    """What one node of a partition is suspected of. `by`: whose evidence convicts it, "" for nobody's.

    `avoided`: jobs keep off it for this reason; a node that is convicted is not, where a tenth of the partition is
    avoided already.
    """

    partition: str
    node: str
    reason: str
    root: Evidence
    user: Evidence
    by: By = ""
    avoided: bool = False

    @property
    def probability(self) -> float:
        """That of whose evidence convicts it; of nobody's, the higher one."""
        if self.by:
            return self.root.probability if self.by == "root" else self.user.probability
        return max(self.root.probability, self.user.probability)


def day_of(at: float) -> int:
    """The day that a time is in, counted from 1970 (UTC)."""
    return int(at // DAY)


def assess(
    votes: Iterable[Vote],
    trials: Mapping[tuple[int, str], int],
    partitions: Mapping[str, Collection[str]],
    *,
    now: float,
    cleared: Mapping[str, float] | None = None,
    rules: Rules = RULES,
) -> tuple[Charge, ...]:
    """What each node of each partition is suspected of, those that are convicted first, the worst of them first.

    Parameters
    ----------
    trials: (day, node) -> how many workloads of users ran there.
    partitions: name -> all of its nodes.
    cleared: node -> when somebody said that it is well: what was before counts no more.
    """
    cleared = cleared or {}
    weights = _weights(votes, now, cleared, rules)
    ran = _ran(trials, now, cleared, rules)
    charges: list[Charge] = []
    for name, nodes in sorted(partitions.items()):
        held = {key: weight for key, weight in weights.items() if key[0] in nodes}
        scale = _Scale.of(held, {node: ran[node] for node in nodes if node in ran}, len(nodes), rules)
        charges += _limited(
            [scale.charge(name, *of) for of in sorted({key[:2] for key in held})], len(nodes), rules
        )
    return tuple(charges)


def avoided(charges: Iterable[Charge]) -> tuple[Charge, ...]:
    """One charge for each node that jobs of a partition keep off: its worst, in the same order."""
    found: dict[tuple[str, str], Charge] = {}
    for one in charges:
        if one.avoided:
            found.setdefault((one.partition, one.node), one)
    return tuple(found.values())


# Weights

_Counted: TypeAlias = tuple[str, str, Source]
"""Node, reason, source."""


@dataclass(frozen=True, slots=True)
class _Weight:
    """What speaks against a node for one reason from one source: incidents, each with its weight now and its users."""

    incidents: tuple[tuple[float, frozenset[int]], ...]
    since: float
    last: float

    @property
    def total(self) -> float:
        return sum(weight for weight, _ in self.incidents)

    @property
    def users(self) -> frozenset[int]:
        return frozenset().union(*(users for _, users in self.incidents))

    @property
    def most_of_one(self) -> float:
        """The weight of what only the user tells of who speaks most against it."""
        alone: dict[int, float] = {}
        for weight, users in self.incidents:
            if len(users) == 1:
                (uid,) = users
                alone[uid] = alone.get(uid, 0.0) + weight
        return max(alone.values(), default=0.0)


def _weights(
    votes: Iterable[Vote], now: float, cleared: Mapping[str, float], rules: Rules
) -> dict[_Counted, _Weight]:
    """The votes that count: one for each user, workload and day, so many workloads of a user at most."""
    seen: dict[_Counted, dict[tuple[int, int | None], dict[str, float]]] = {}
    for vote in sorted(votes, key=_order):
        if vote.reason not in REASONS or not now - rules.window * DAY < vote.at < now + DAY:
            continue
        if vote.at <= cleared.get(vote.node, 0.0):
            continue
        counted = seen.setdefault((vote.node, vote.reason, vote.source), {})
        workloads = counted.setdefault((day_of(vote.at), vote.uid), {})
        if len(workloads) < rules.workloads:
            workloads.setdefault(vote.workload, vote.at)
    return {key: _weight(counted, now, rules) for key, counted in seen.items()}


def _order(vote: Vote) -> tuple[object, ...]:
    uid = -1 if vote.uid is None else vote.uid
    return vote.at, vote.workload, uid, vote.node, vote.reason, vote.source


def _weight(
    counted: Mapping[tuple[int, int | None], Mapping[str, float]], now: float, rules: Rules
) -> _Weight:
    of_jobs = {day for day, uid in counted if uid is not None}
    # What a node tells by itself is told again by the job that it hit: such a day speaks once
    heard = sorted(
        (at, -1 if uid is None else uid)
        for (day, uid), workloads in counted.items()
        if uid is not None or day not in of_jobs
        for at in workloads.values()
    )
    incidents: list[tuple[float, set[int]]] = []
    for at, uid in heard:
        if not incidents or at - incidents[-1][0] > rules.incident:
            incidents.append((at, set()))
        if uid >= 0:
            incidents[-1][1].add(uid)
    weighed = ((_decayed(day_of(at), now, rules), frozenset(users)) for at, users in incidents)
    return _Weight(tuple(weighed), heard[0][0], heard[-1][0])


def _ran(
    trials: Mapping[tuple[int, str], int], now: float, cleared: Mapping[str, float], rules: Rules
) -> dict[str, float]:
    """The weight of what ran on each node."""
    found: dict[str, float] = {}
    first = day_of(now) - rules.window
    for (day, node), count in trials.items():
        if day > first and day >= day_of(cleared.get(node, 0.0)):
            found[node] = found.get(node, 0.0) + count * _decayed(day, now, rules)
    return found


def _decayed(day: int, now: float, rules: Rules) -> float:
    """What is left of the weight of something that happened on that day, taken for its noon."""
    age = max(0.0, now / DAY - (day + 0.5))
    return float(0.5 ** (age / rules.half_life))


# Judgement


@dataclass(frozen=True, slots=True)
class _Scale:
    """The evidence in one partition: what speaks against its nodes, and what ran on them."""

    held: Mapping[_Counted, _Weight]
    ran: Mapping[str, float]
    rules: Rules
    rest: Mapping[tuple[str, Source], tuple[frozenset[str], float, float]]
    """By reason and source: the nodes that are no measure for the others, and of the rest what failed and what ran."""

    @classmethod
    def of(
        cls, held: Mapping[_Counted, _Weight], ran: Mapping[str, float], nodes: int, rules: Rules
    ) -> _Scale:
        """The scale of a partition with so many nodes."""
        failed: dict[tuple[str, Source], dict[str, float]] = {}
        for (node, reason, source), weight in held.items():
            failed.setdefault((reason, source), {})[node] = weight.total
        rest = {}
        for key, votes in failed.items():
            order = sorted(votes, key=lambda node: (-votes[node], node))
            worst = frozenset(order[: nodes // rules.part])
            rest[key] = (
                worst,
                sum(weight for node, weight in sorted(votes.items()) if node not in worst),
                sum(weight for node, weight in sorted(ran.items()) if node not in worst),
            )
        return cls(held, ran, rules, rest)

    def charge(self, partition: str, node: str, reason: str) -> Charge:
        """What a node is suspected of."""
        root, by_root = self._weighed(node, reason, "root")
        user, by_user = self._weighed(node, reason, "user")
        by: By = "root" if by_root else "user" if by_user else ""
        return Charge(partition, node, reason, root, user, by)

    def _weighed(self, node: str, reason: str, source: Source) -> tuple[Evidence, bool]:
        """The evidence from one source, and whether it convicts."""
        weight = self.held.get((node, reason, source))
        ran = self.ran.get(node, 0.0)
        if weight is None:
            return Evidence(trials=ran), False
        total, most = weight.total, weight.most_of_one
        trials = max(ran, total)
        base = self._base(node, reason, source)
        likely = _above(total, trials, base, self.rules)
        users, times = len(weight.users), len(weight.incidents)
        found = Evidence(times, users, total, trials, likely, weight.since, weight.last)
        if source == "root":
            return found, likely >= self.rules.sure
        # Whoever speaks most against it is left out: no single user decides
        without = _above(total - most, trials - most, base, self.rules)
        return found, users >= self.rules.users and min(likely, without) >= self.rules.sure

    def _base(self, node: str, reason: str, source: Source) -> float:
        """The rate of the partition's other nodes, but for the tenth that fails most: two bad ones do not hide each
        other. Where all of them fail, none is to blame.
        """
        worst, failed, ran = self.rest[reason, source]
        if node not in worst:
            failed -= self.held[node, reason, source].total
            ran -= self.ran.get(node, 0.0)
        rate = min(1.0, max(0.0, failed) / ran) if ran > _NOTHING else 0.0
        return max(self.rules.least_rate, rate)


def _above(votes: float, trials: float, base: float, rules: Rules) -> float:
    """How likely the rate of a node is to be more than `ratio` times the base rate."""
    bound = rules.ratio * base
    if bound >= 1:
        return 0.0
    a, b = rules.strength * base, rules.strength * (1 - base)
    return tail(bound, a + max(0.0, votes), b + max(0.0, trials - votes))


def _limited(charges: Sequence[Charge], nodes: int, rules: Rules) -> list[Charge]:
    """The charges of a partition in their order, with those that come into effect."""
    ordered = sorted(charges, key=_rank)
    convicted = tuple(dict.fromkeys(one.node for one in ordered if one.by))
    kept_off = frozenset(convicted[: nodes // rules.part])
    return [replace(one, avoided=True) if one.by and one.node in kept_off else one for one in ordered]


def _rank(one: Charge) -> tuple[object, ...]:
    weight = one.root.weight if one.by == "root" else one.user.weight
    return not one.by, -one.probability, one.by != "root", -weight, one.node, one.reason
