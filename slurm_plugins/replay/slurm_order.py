"""Slurm's multifactor priority: who is first in the queue.

    priority = age + fairshare + job size + partition + QOS + TRES, each a factor from 0 to 1 times its weight, - nice

A job's priority is worked out when it is submitted and again at each PriorityCalcPeriod, not in between; so is the
usage that the fair-share factor goes by. Fair-share is Fair Tree, Slurm's default since 19.05: at each level of the
tree associations are ranked by shares / usage, and a user's factor is the rank over the number of user associations.

Sources: priority_multifactor(5), fair_tree; src/plugins/priority/multifactor of 22.05.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from slurm_plugins.replay.slurm_rules import Share, Shares, SlurmRules
from slurm_plugins.replay.values import Floats, Trace

_WRITTEN: Final = 10.0
"""Slurm writes a job to its accounting some seconds after the submission, with the priority of that moment."""
_ROUNDING: Final = 2.0

__all__ = ["FairTree", "Priorities", "fair_tree"]


def fair_tree(
    shares: Mapping[tuple[str, str], float], usage: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str], float]:
    """Fair-share factor of each (account, user), from the shares of accounts (user "") and users, and users' usage.

    Users of equal shares / usage have the same rank; accounts that are equal are merged, and their users ranked
    together.

    >>> fair_tree({("a", ""): 1, ("b", ""): 1, ("a", "x"): 1, ("b", "y"): 1}, {("a", "x"): 9.0})
    {('b', 'y'): 1.0, ('a', 'x'): 0.5}
    """
    users = [key for key in shares if key[1]]
    of_account: dict[str, float] = {}
    for key in users:
        of_account[key[0]] = of_account.get(key[0], 0.0) + usage.get(key, 0.0)
    whole = sum(of_account.values())
    below_root = {account: shares.get((account, ""), 1.0) for account, _ in shares if account}
    level_root = sum(below_root.values())
    # "" is the account of users right below root, who stand beside the accounts
    roots = [key for key in users if not key[0]]
    level_root += sum(shares[key] for key in roots)
    ranked: dict[float, tuple[list[tuple[str, str]], list[str]]] = {}
    for key in roots:
        value = _level(shares[key], level_root, usage.get(key, 0.0), whole)
        ranked.setdefault(value, ([], []))[0].append(key)
    for account, own in below_root.items():
        value = _level(own, level_root, of_account.get(account, 0.0), whole)
        ranked.setdefault(value, ([], []))[1].append(account)
    level_of = {account: sum(shares[key] for key in users if key[0] == account) for account in below_root}
    found: dict[tuple[str, str], float] = {}
    count = len(users)
    left = count
    for _, (own_users, accounts) in sorted(ranked.items(), key=lambda pair: -pair[0]):
        rank = left
        for key in own_users:
            found[key] = rank / count
            left -= 1
        tied = bool(own_users)
        merged = set(accounts)
        levels: dict[float, list[tuple[str, str]]] = {}
        for key in users:
            if key[0] in merged:
                value = _level(shares[key], level_of[key[0]], usage.get(key, 0.0), of_account[key[0]])
                levels.setdefault(value, []).append(key)
        for value in sorted(levels, reverse=True):
            if not tied:
                rank = left
            tied = False
            for key in levels[value]:
                found[key] = rank / count
            left -= len(levels[value])
    return found


def _level(shares: float, of: float, usage: float, whole: float) -> float:
    """Shares over usage, each as a part of its level's."""
    if shares <= 0 or of <= 0:
        return 0.0
    used = usage / whole if whole > 0 else 0.0
    return math.inf if used <= 0 else shares / of / used


class FairTree:
    """Usage by association as slurmctld keeps it, and the factors of the last recalculation."""

    def __init__(
        self, pairs: Iterable[tuple[str, str]], shares: Shares, half_life_s: float, last: float = -math.inf
    ) -> None:
        found = {key: share.shares for key, share in shares.of.items()}
        if not found:
            found["root", "root"] = 1.0  # root's own association is below root beside the accounts
        for account, user in pairs:
            found.setdefault((account, ""), 1.0)
            found.setdefault((account, user), 1.0)
        if ("root", "root") in found:
            found.pop(("root", ""), None)
            found["", "root"] = found.pop(("root", "root"))
        self.shares = found
        start: Mapping[tuple[str, str], Share] = shares.of
        self.usage = {key: start[key].usage if key in start else 0.0 for key in found if key[1]}
        # Slurm's own way of a half-life: 1 - 0.693 / seconds
        self.decay = 1.0 - 0.693 / half_life_s if 0 < half_life_s < math.inf else 1.0
        self.last = last
        self.factor = fair_tree(self.shares, self.usage)

    def add(self, key: tuple[str, str], begin: float, end: float, rate: float) -> None:
        """A job of this association held `rate` from `begin`, or the last recalculation, until `end`."""
        seconds = max(0.0, end - max(begin, self.last))
        if seconds:
            self.usage[key] = self.usage.get(key, 0.0) + seconds * rate * self.decay**seconds

    def recalculate(self, now: float, running: Iterable[tuple[tuple[str, str], float, float]]) -> None:
        """Decay all, add what runs (association, start, rate), rank anew."""
        if self.last > -math.inf:
            part = self.decay ** max(0.0, now - self.last)
            for key in self.usage:
                self.usage[key] *= part
        for key, begin, rate in running:
            self.add(key, begin, now, rate)
        self.last = now
        self.factor = fair_tree(self.shares, self.usage)


class Priorities:
    """The priority of each job of a trace, as of when it was last worked out."""

    def __init__(
        self, trace: Trace, rules: SlurmRules, there: Mapping[str, float], calc_at: float = 0.0
    ) -> None:
        """`there`: the cluster's TRES (cpu, node, mem, gres/gpu). `calc_at`: a moment of recalculation."""
        self.rules = rules
        self.calc_at = calc_at
        nodes, cpus = there.get("node", 1.0), there.get("cpu", 1.0)
        self.pairs = list(zip(trace.text("account").tolist(), trace.text("user").tolist(), strict=True))
        self.arrival: Floats = np.floor(trace["arrival"])
        self.tested: set[int] = set()
        """Jobs for which backfill has found a place: from then on all their CPUs count."""
        self.tree = self._tree()
        self.at_first: Floats = np.zeros(len(trace))
        self.fixed: Floats = self._fixed(trace, nodes, cpus, there)
        self.value: Floats = np.zeros(len(trace))

    def _tree(self) -> FairTree:
        """As it was at the last recalculation before the trace."""
        first = float(self.arrival.min(initial=math.inf))
        last = self.ticks(first, first)[:1] if math.isfinite(first) else []
        rules = self.rules
        return FairTree(set(self.pairs), rules.shares, rules.half_life_s, last[0] if last else -math.inf)

    def _fixed(self, trace: Trace, nodes: float, cpus: float, there: Mapping[str, float]) -> Floats:
        """What does not change while a job waits."""
        rules = self.rules
        asked_nodes = np.maximum(trace["nodes"], 1)
        size = asked_nodes / max(nodes, 1)
        held_cpus, asked_cpus = trace["cpus"], trace["cpus_asked"]
        sign = -1.0 if rules.favor_small else 1.0
        size = np.where(held_cpus > 0, (size + held_cpus / max(cpus, 1.0)) / 2, size)
        fixed = trace["weight"] + rules.job_size * (sign * size + (1.0 if rules.favor_small else 0.0))
        # CPUs that come with GPUs are known once backfill has found out where the job could run
        less = np.where(asked_cpus > 0, asked_cpus - held_cpus, 0.0) / max(cpus, 1.0) / 2
        self.at_first = sign * rules.job_size * less
        queues = trace.words["queue"]
        most = max([one.job_factor for one in rules.partitions.values()] or [1.0])
        by_queue = np.array([rules.of(name).job_factor / max(most, 1e-9) for name in queues] or [0.0])
        fixed = fixed + rules.partition * by_queue[trace["queue"]]
        best = max(rules.qos_priority.values(), default=0.0)
        if best > 0:
            by_qos = np.array(
                [rules.qos_priority.get(name, 0.0) / best for name in trace.words["qos"]] or [0.0]
            )
            fixed = fixed + rules.qos * by_qos[trace["qos"]]
        held = {"cpu": held_cpus, "mem": trace["memory"], "node": asked_nodes, "gres/gpu": trace["gpus"]}
        for name, weight in rules.tres.items():
            if name in held and there.get(name, 0.0) > 0:
                fixed = fixed + weight * held[name] / there[name]
        return np.asarray(fixed, np.float64)

    def submit(self, row: int, now: float) -> None:
        """A job comes into the queue."""
        self.tested.discard(row)
        self._set([row], now)

    def recalculate(
        self, now: float, waiting: Sequence[int], running: Iterable[tuple[int, float, float]]
    ) -> None:
        """PriorityCalcPeriod is over: `running` is row, start, billed TRES."""
        if self.rules.fairshare:
            self.tree.recalculate(now, ((self.pairs[row], begin, rate) for row, begin, rate in running))
        self._set(waiting, now)

    def ended(self, row: int, begin: float, end: float, rate: float) -> None:
        """A job's last seconds count at once."""
        if self.rules.fairshare:
            self.tree.add(self.pairs[row], begin, end, rate)

    def learn(self, trace: Trace, rate: Sequence[float]) -> None:
        """What no column tells of a job's priority, nice above all: from the one that was recorded at submission.

        The usage of that moment is worked out from when jobs really ran. Leaves the tree as it was. Nothing is learnt
        where most jobs' priorities differ from the rules': other rules are tried than those of the record.
        """
        known = np.flatnonzero(np.isfinite(trace["priority"]) & (trace["priority"] > 0)).tolist()
        if not known:
            return
        tree, self.tree = self.tree, self._tree()
        began, ended = np.floor(trace["began"]), np.floor(trace["began"] + trace["work"])
        ran = np.flatnonzero(np.isfinite(began)).tolist()
        ticks = self.ticks(float(self.arrival.min()), float(self.arrival.max()) + self.rules.calc_s)
        moments = [(float(began[row]), 1, row) for row in ran] + [(float(ended[row]), 0, row) for row in ran]
        moments += [(float(self.arrival[row]), 3, row) for row in known] + [(tick, 2, -1) for tick in ticks]
        running: set[int] = set()
        factors = self.tree.factor
        fresh: list[int] = []
        nearest = dict.fromkeys(known, math.inf)

        def compare(row: int) -> None:
            nearest[row] = min(nearest[row], float(trace["priority"][row] - self.value[row]), key=abs)

        for when, kind, row in sorted(moments):
            if kind == 0:
                running.discard(row)
                self.ended(row, float(began[row]), when, rate[row])
            elif kind == 1:
                running.add(row)
            elif kind == 2:
                factors = self.tree.factor
                fresh = [row for row in fresh if when - self.arrival[row] < _WRITTEN]
                self.recalculate(when, [], ((one, float(began[one]), rate[one]) for one in running))
                # by then backfill may have found a place for them, or not
                for self.tested in (set(), set(fresh)):
                    self._set(fresh, when)
                    for one in fresh:
                        compare(one)
                fresh = []
            else:
                # which second of the minute came first, the books do not tell
                now = self.tree.factor
                for factor in (factors, now) if when - self.tree.last < 1 else (now,):
                    self.tree.factor = factor
                    self.submit(row, when)
                    compare(row)
                fresh.append(row)
        self.tree, self.tested = tree, set()
        untold = {row: round(more) for row, more in nearest.items() if abs(more) > _ROUNDING}
        # Most jobs have no nice. Where most differ, these are not the rules by which the record was made
        if 2 * len(untold) < len(nearest):
            for row, more in untold.items():
                self.fixed[row] += more

    def ticks(self, since: float, until: float) -> list[float]:
        """The recalculations from the last before `since` on."""
        period = self.rules.calc_s
        if not 0 < period < math.inf:
            return []
        first = math.floor(self.calc_at) + math.floor((since - math.floor(self.calc_at)) / period) * period
        return [first + number * period for number in range(max(0, math.ceil((until - first) / period)) + 1)]

    def _set(self, rows: Sequence[int], now: float) -> None:
        rules = self.rules
        for row in rows:
            age = (
                min(1.0, max(0.0, now - self.arrival[row]) / rules.max_age_s) if rules.max_age_s > 0 else 1.0
            )
            fair = self.tree.factor.get(self.pairs[row], 0.0) if rules.fairshare else 0.0
            # Slurm keeps whole numbers, and 0 is for what is held
            more = 0.0 if row in self.tested else float(self.at_first[row])
            whole = rules.age * age + rules.fairshare * fair + self.fixed[row] + more
            self.value[row] = max(1.0, math.floor(whole))
