"""MARKET: the placement of a round that goes by whole curves. Ours, not the paper's.

TUNE knows two speeds of a job, and it packs first what asks for most; so CPUs stay idle beside a job that four of them
would speed up, and servers of the hungry stand beside servers of the frugal. Here

1. all jobs bid for the CPUs and the memory of one big machine, at prices that clear it: what each should have;
2. the bidders are dealt to servers so that every server has its part of what was sold, the largest first, each to the
   server that has sold least;
3. on each server the shares are the best ones of all that fit, as `shares` finds them;
4. where that falls short of the big machine, jobs of two servers change places.

Nobody is below the proportional speed: a job's cheapest choice is no more than the proportional share, so whatever the
first two steps do the cheapest ones of all jobs fit wherever their GPUs do.
"""

from __future__ import annotations

import functools
import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_plugins.tuner.placing import Placed, Request, tune
from slurm_plugins.tuner.shares import Site, fastest, share_out
from slurm_plugins.tuner.values import Choices, Shape, Share

_MEMORY = (0.0, 0.25, 0.5, 0.75, 1.0)  # the part of a machine's worth that its memory makes out
_NEAR = 0.97  # of what one big machine could have: good enough to leave all where they were dealt to
_TRIES = 300  # of swapping two jobs
_EPS = 1e-4


def market(requests: Sequence[Request], servers: int, shape: Shape) -> dict[int, Placed]:
    """Place every job, none slower than with the proportional share, by what its curve makes of each CPU and GB.

    Raises:
        ValueError: more GPUs are asked for than there are.
    """
    tuned = tune(requests, servers, shape)
    kinds = {request.job: request.curve.choices(request.gpus, shape) for request in requests}
    aim, aims = _sold(Counter(kinds.values()), servers, shape)
    # the queue's order decides who of equals gets the better share
    wanted = {request.job: _take(aims[kinds[request.job]]) for request in requests}
    dealt = _deal(requests, wanted, servers, shape)

    def exchange(sites: list[Site], others: float) -> None:
        if sum(site.speed for site in sites) + others < _NEAR * aim:
            _swap(sites)

    placed = share_out(requests, kinds, dealt, servers, shape, exchange=exchange)
    # a curve with one steep step far up can mislead the prices
    return fastest((placed, tuned))


def _of(part: float, whole: float) -> float:
    """A part of what a server has; of what it has none of nothing is sold, at no price."""
    return part / whole if whole > 0 else 0.0


def _take(counts: list[tuple[Share, int]]) -> Share:
    share, left = counts[-1]
    if left > 1:
        counts[-1] = (share, left - 1)
    else:
        counts.pop()
    return share


def _sold(
    kinds: Mapping[Choices, int], servers: int, shape: Shape
) -> tuple[float, dict[Choices, list[tuple[Share, int]]]]:
    """The speed that one big machine sells, and what each kind gets of it: shares and how many of its jobs have them,
    the best last.

    The multiple-choice knapsack with two resources: at a price for each, steps up a curve are bought in order of speed
    gained for what they cost, while both last; of some splits of the machine's worth into prices the one that sells
    most speed.
    """
    best = None
    for part in _MEMORY:
        found = _at_price(
            kinds, servers, shape, (1 - part) * _of(1.0, shape.cpus), part * _of(1.0, shape.memory)
        )
        if best is None or found.total > best.total:
            best = found
        if not part and not found.short_of_memory:
            break  # with memory for all, CPUs alone have a price
    counted = best.counts if best is not None else {}
    return (best.total if best is not None else 0.0), {
        kind: [(kind.points[at][0], count) for at, count in enumerate(counts) if count]
        for kind, counts in counted.items()
    }


class _Sale(NamedTuple):
    total: float
    """Speed sold."""
    counts: dict[Choices, list[int]]
    """By kind how many have each of its points."""
    short_of_memory: bool


def _at_price(kinds: Mapping[Choices, int], servers: int, shape: Shape, a_cpu: float, a_gb: float) -> _Sale:
    cpus, memory, total = servers * shape.cpus, servers * shape.memory, 0.0
    counts: dict[Choices, list[int]] = {}
    short = False
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
        if high.cpus > low.cpus:
            count = min(count, int((cpus + _EPS) / (kind.gpus * (high.cpus - low.cpus))))
        if high.memory > low.memory:
            able = int((memory + _EPS) / (kind.gpus * (high.memory - low.memory)))
            count, short = min(count, able), short or able < count
        counts[kind][at] -= count
        counts[kind][to] += count
        cpus -= count * kind.gpus * (high.cpus - low.cpus)
        memory -= count * kind.gpus * (high.memory - low.memory)
        total += count * (fast - slow)
    return _Sale(total, counts, short)


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


def _deal(
    requests: Sequence[Request], wanted: Mapping[int, Share], servers: int, shape: Shape
) -> dict[int, dict[int, int]]:
    """Where each job runs, GPUs by server: the largest first, each where least is sold yet, on one server if one has
    the GPUs, else on as few as can be."""
    free = [shape.gpus] * servers
    sold = [(0.0, 0.0)] * servers
    heap = [(0.0, server) for server in range(servers)]
    sizes = {
        job: (_of(share.cpus, shape.cpus), _of(share.memory, shape.memory)) for job, share in wanted.items()
    }
    dealt: dict[int, dict[int, int]] = {}
    for request in sorted(requests, key=lambda one: (-one.gpus, -max(sizes[one.job]))):
        passed: list[tuple[float, int]] = []
        gpus = request.gpus
        while heap and free[heap[0][1]] < gpus:
            passed.append(heapq.heappop(heap))
        if heap:
            parts = {heapq.heappop(heap)[1]: gpus}
        else:
            parts = {}
            for server in sorted(range(servers), key=lambda one: -free[one]):
                parts[server] = min(free[server], gpus)
                gpus -= parts[server]
                if not gpus:
                    break
            passed = [entry for entry in passed if entry[1] not in parts]
        dealt[request.job] = parts
        cpus, memory = sizes[request.job]
        for server, here in parts.items():
            free[server] -= here
            sold[server] = (sold[server][0] + here * cpus, sold[server][1] + here * memory)
            if free[server]:
                passed.append((max(sold[server]), server))
        for entry in passed:
            heapq.heappush(heap, entry)
    return dealt


def _swap(sites: list[Site]) -> None:
    """Jobs with as many GPUs change places where both servers together gain: from the one that misses most to those
    that miss least, as far as some hundred tries go. On few servers a deal can come out badly; on many it evens out."""
    tries = _TRIES
    settled: set[int] = set()
    while tries > 0 and len(settled) < len(sites):
        hot = max((at for at in range(len(sites)) if at not in settled), key=lambda at: sites[at].missing)
        if sites[hot].missing <= _EPS:
            return
        best: tuple[float, int, Site, Site] | None = None
        for cool in sorted((at for at in range(len(sites)) if at != hot), key=lambda at: sites[at].missing)[
            :3
        ]:
            before = sites[hot].speed + sites[cool].speed
            seen: set[tuple[Choices, Choices]] = set()
            for out in sites[hot].mine:
                for come in sites[cool].mine:
                    pair = sites[hot].kinds[out.job], sites[hot].kinds[come.job]
                    if out.gpus != come.gpus or pair[0] is pair[1] or pair in seen:
                        continue
                    seen.add(pair)
                    tries -= 1
                    ours, theirs = sites[hot].instead(out, come), sites[cool].instead(come, out)
                    gain = ours.speed + theirs.speed - before
                    if gain > _EPS and (best is None or gain > best[0]):
                        best = (gain, cool, ours, theirs)
        if best is None:
            settled.add(hot)
        else:
            _, cool, sites[hot], sites[cool] = best
            settled.clear()
