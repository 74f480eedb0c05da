"""MARKET: the placement of a round that goes by whole curves. Ours, not the paper's.

TUNE knows two speeds of a job, and it packs first what asks for most; so CPUs stay idle beside a job that four of them
would speed up, and servers of the hungry stand beside servers of the frugal. Here

1. all jobs bid for the CPUs and the memory of one big machine, at prices that clear it: what each should have;
2. the bidders are dealt to servers so that every server has its part of what was sold, the largest first, each to the
   server that has sold least;
3. on each server the shares are the best ones of all that fit, found exactly.

Nobody is below the proportional speed: a job's cheapest choice is no more than the proportional share, so whatever the
first two steps do the cheapest ones of all jobs fit wherever their GPUs do.
"""

from __future__ import annotations

import bisect
import functools
import heapq
from collections import Counter
from collections.abc import Mapping, Sequence

from slurm_plugins.tuner.placing import Cluster, Placed, Request, checked, tune
from slurm_plugins.tuner.values import Choices, Shape, Share

_MEMORY = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)  # the part of a machine's worth that its memory makes out
_MOST_STATES = 64  # of a server, while its shares are looked for
_EPS = 1e-4


def market(requests: Sequence[Request], servers: int, shape: Shape) -> dict[int, Placed]:
    """Place every job, none slower than with the proportional share, by what its curve makes of each CPU and GB.

    Raises:
        ValueError: more GPUs are asked for than there are.
    """
    cluster = checked(requests, servers, shape)
    kinds = {request.job: request.curve.choices(request.gpus, shape) for request in requests}
    aims = _sold(Counter(kinds.values()), servers, shape)
    # the queue's order decides who of equals gets the better share
    wanted = {request.job: _take(aims[kinds[request.job]]) for request in requests}
    _deal(cluster, requests, wanted)
    _share_out(cluster, kinds)
    tuned = tune(requests, servers, shape)
    # a curve with one steep step far up can mislead the prices
    return max(cluster.placed, tuned, key=lambda placed: sum(one.speed for one in placed.values()))


def _take(counts: list[tuple[Share, int]]) -> Share:
    share, left = counts[-1]
    if left > 1:
        counts[-1] = (share, left - 1)
    else:
        counts.pop()
    return share


def _sold(kinds: Mapping[Choices, int], servers: int, shape: Shape) -> dict[Choices, list[tuple[Share, int]]]:
    """What each kind gets of one big machine: shares and how many of its jobs have them, the best last.

    The multiple-choice knapsack with two resources: at a price for each, steps up a curve are bought in order of speed
    gained for what they cost, while both last; of some splits of the machine's worth into prices the one that sells
    most speed.
    """
    prices = [((1 - part) / shape.cpus, part / shape.memory) for part in _MEMORY]
    _, best = max((_at_price(kinds, servers, shape, *price) for price in prices), key=lambda found: found[0])
    return {
        kind: [(kind.points[at][0], count) for at, count in enumerate(counts) if count]
        for kind, counts in best.items()
    }


def _at_price(
    kinds: Mapping[Choices, int], servers: int, shape: Shape, a_cpu: float, a_gb: float
) -> tuple[float, dict[Choices, list[int]]]:
    cpus, memory, total = servers * shape.cpus, servers * shape.memory, 0.0
    counts: dict[Choices, list[int]] = {}
    steps: list[tuple[float, int, int, int, Choices]] = []
    for number, (kind, count) in enumerate(kinds.items()):
        counts[kind] = [count, *[0] * (len(kind.points) - 1)]
        share, speed = kind.points[0]
        cpus -= count * kind.gpus * share.cpus
        memory -= count * kind.gpus * share.memory
        total += count * speed
        steps += [(-worth, number, at, to, kind) for worth, at, to in _hull(kind, a_cpu, a_gb)]
    for _, _, at, to, kind in sorted(steps, key=lambda step: step[:2]):
        (low, slow), (high, fast) = kind.points[at], kind.points[to]
        count = counts[kind][at]
        for more, left in ((high.cpus - low.cpus, cpus), (high.memory - low.memory, memory)):
            if more > 0:
                count = min(count, int((left + _EPS) / (kind.gpus * more)))
        counts[kind][at] -= count
        counts[kind][to] += count
        cpus -= count * kind.gpus * (high.cpus - low.cpus)
        memory -= count * kind.gpus * (high.memory - low.memory)
        total += count * (fast - slow)
    return total, counts


@functools.lru_cache(maxsize=50_000)
def _hull(kind: Choices, a_cpu: float, a_gb: float) -> tuple[tuple[float, int, int], ...]:
    """Steps up the concave hull of speed over cost: speed gained for what it costs, from point, to point."""
    costs = [kind.gpus * (share.cpus * a_cpu + share.memory * a_gb) for share, _ in kind.points]
    speeds = [speed for _, speed in kind.points]
    steps: list[tuple[float, int, int]] = []
    at = 0
    while at < len(speeds) - 1:
        worth, to = max(
            ((speeds[k] - speeds[at]) / max(costs[k] - costs[at], 1e-9), k)
            for k in range(at + 1, len(speeds))
        )
        if worth <= 0:
            break
        steps.append((worth, at, to))
        at = to
    return tuple(steps)


def _deal(cluster: Cluster, requests: Sequence[Request], wanted: Mapping[int, Share]) -> None:
    """Where each job runs: the largest first, each where least is sold yet, on one server if one has the GPUs."""
    shape = cluster.shape

    def size(request: Request) -> float:
        share = wanted[request.job]
        return request.gpus * max(share.cpus / shape.cpus, share.memory / shape.memory)

    sold = [(0.0, 0.0)] * len(cluster.servers)
    heap = [(0.0, server) for server in range(len(cluster.servers))]
    for request in sorted(requests, key=lambda one: (-one.gpus, -size(one))):
        passed, parts = [], None
        while heap:
            least = heapq.heappop(heap)
            if cluster.servers[least[1]].gpus >= request.gpus:
                parts = {least[1]: request.gpus}
                break
            if cluster.servers[least[1]].gpus:
                passed.append(least)
        if parts is None:
            parts = cluster.room(request.gpus, Share(0.0, 0.0)) or {}
            passed = [entry for entry in passed if entry[1] not in parts]
        share = wanted[request.job]
        floor, speed = request.curve.choices(request.gpus, shape).points[0]
        cluster.put(request, parts, floor, speed)
        for server, gpus in parts.items():
            cpus, memory = sold[server]
            cpus, memory = cpus + gpus * share.cpus / shape.cpus, memory + gpus * share.memory / shape.memory
            sold[server] = cpus, memory
            if cluster.servers[server].gpus:
                passed.append((max(cpus, memory), server))
        for entry in passed:
            heapq.heappush(heap, entry)


def _share_out(cluster: Cluster, kinds: Mapping[int, Choices]) -> None:
    """The best shares on each server; who spans several goes last, with what is left on all of them."""
    numbers: dict[Choices, int] = {}
    for kind in kinds.values():
        numbers.setdefault(kind, len(numbers))
    for server in cluster.servers:
        here = [placed for placed in server.jobs.values() if len(placed.parts) == 1]
        here.sort(key=lambda placed: numbers[kinds[placed.request.job]])
        mine = tuple(kinds[placed.request.job] for placed in here)
        cpus = server.left[0] + sum(p.request.gpus * p.share.cpus for p in here)
        memory = server.left[1] + sum(p.request.gpus * p.share.memory for p in here)
        found = _best_shares(mine, round(cpus, 6), round(memory, 6))
        for placed, at in zip(here, found, strict=True):
            share, speed = kinds[placed.request.job].points[at]
            if share != placed.share:
                cluster.change(placed, share, speed)
    for placed in [placed for placed in cluster.placed.values() if len(placed.parts) > 1]:
        for share, speed in reversed(kinds[placed.request.job].points):
            more = Share(share.cpus - placed.share.cpus, share.memory - placed.share.memory)
            if speed > placed.speed and all(
                gpus * more.cpus <= cluster.servers[server].left[0] + _EPS
                and gpus * more.memory <= cluster.servers[server].left[1] + _EPS
                for server, gpus in placed.parts.items()
            ):
                cluster.change(placed, share, speed)
                break


@functools.lru_cache(maxsize=50_000)
def _best_shares(kinds: tuple[Choices, ...], cpus: float, memory: float) -> tuple[int, ...]:
    """Which choice each takes, so that the sum of speeds is largest and all fit.

    Job after job, kept are the sums of CPUs and memory that no other reaches with less and more speed.
    """
    cheapest = [(k.gpus * k.points[0][0].cpus, k.gpus * k.points[0][0].memory) for k in kinds]
    later_cpus = [sum(c for c, _ in cheapest[at + 1 :]) for at in range(len(kinds))]
    later_memory = [sum(m for _, m in cheapest[at + 1 :]) for at in range(len(kinds))]
    # CPUs, memory, minus speed, choices so far
    states: list[tuple[float, float, float, tuple[int, ...]]] = [(0.0, 0.0, 0.0, ())]
    for at, kind in enumerate(kinds):
        most_cpus, most_memory = cpus - later_cpus[at] + _EPS, memory - later_memory[at] + _EPS
        after: dict[tuple[float, float], tuple[float, tuple[int, ...]]] = {}
        for used, gb, minus, chosen in states:
            for number, (share, speed) in enumerate(kind.points):
                # of equals the earlier one has no less: the others are the same in another order
                if chosen and kinds[at - 1] == kind and number > chosen[-1]:
                    break
                key = (round(used + kind.gpus * share.cpus, 6), round(gb + kind.gpus * share.memory, 6))
                if key[0] > most_cpus or key[1] > most_memory:
                    continue
                if key not in after or minus - speed < after[key][0]:
                    after[key] = (minus - speed, (*chosen, number))
        states = _undominated([(*key, *value) for key, value in after.items()])
    return min(states, key=lambda state: state[2])[3]


State = tuple[float, float, float, tuple[int, ...]]


def _undominated(states: list[State]) -> list[State]:
    """Those that no other equals or betters in CPUs, memory and speed."""
    kept: list[State] = []
    # of those kept: memory rising, minus speed falling
    memory: list[float] = []
    minus: list[float] = []
    for state in sorted(states):
        at = bisect.bisect_right(memory, state[1])
        if at and minus[at - 1] <= state[2] and any(state[3]):
            continue
        kept.append(state)
        at = end = bisect.bisect_left(memory, state[1])
        while end < len(minus) and minus[end] >= state[2]:
            end += 1
        memory[at:end], minus[at:end] = [state[1]], [state[2]]
    if len(kept) > _MOST_STATES:
        # an even sample, and the cheapest choice of all, which leads to an answer in any case
        cheapest = [state for state in kept if not any(state[3])]
        kept = cheapest + kept[:: len(kept) // _MOST_STATES + 1]
    return kept
