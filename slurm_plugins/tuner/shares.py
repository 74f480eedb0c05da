"""The shares of jobs that have their servers: on each the best ones of all that fit, by whole curves.

For TUNE it is a fourth step: its first three know two speeds of a job, its best case and the proportional share's, and
hand out in lumps; what is left of a server beside a job that could use a part of it stays idle. Nobody gets less speed
than with the proportional share here either, for no choice of a job's is slower.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from slurm_plugins.tuner.placing import Placed, Request, tune, tune_as_shipped
from slurm_plugins.tuner.values import Choices, Shape, Share

__all__ = ["Site", "best_shares", "fastest", "share_out", "tune_by_curves"]

_MOST_STATES = 64  # of a server, while its shares are looked for
_EPS = 1e-4

_State: TypeAlias = tuple[float, float, float, tuple[int, ...]]
"""Of a server, while its shares are looked for: CPUs, memory, minus the speed so far, choices so far."""


def tune_by_curves(requests: Sequence[Request], servers: int, shape: Shape) -> dict[int, Placed]:
    """TUNE's servers, as the paper or as the artifact seats jobs, and on each of them the best shares of all that fit:
    of these placements the fastest in all, so never slower than TUNE's. Where one order packs badly the other does not.

    Raises:
        ValueError: more GPUs are asked for than there are.
    """
    kinds = {request.job: request.curve.choices(request.gpus, shape) for request in requests}
    found: list[dict[int, Placed]] = []
    for seated in (tune(requests, servers, shape), tune_as_shipped(requests, servers, shape)):
        dealt = {job: one.parts for job, one in seated.items()}
        # who spans servers gets what is left on all of them, which may be less than TUNE had for it
        found += [share_out(requests, kinds, dealt, servers, shape), seated]
    return fastest(found)


def fastest(found: Iterable[dict[int, Placed]]) -> dict[int, Placed]:
    """Of several placements the one with the largest sum of speeds, the first of equals."""
    return max(found, key=lambda placed: sum(one.speed for one in placed.values()))


def share_out(
    requests: Sequence[Request],
    kinds: Mapping[int, Choices],
    dealt: Mapping[int, dict[int, int]],
    servers: int,
    shape: Shape,
    *,
    exchange: Callable[[list[Site], float], None] | None = None,
) -> dict[int, Placed]:
    """The best shares on each server; who spans several goes last, with what is left on all of them.

    `dealt`: each job's GPUs by server. `exchange` may have jobs of two servers change places, in the list that it is
    given; it is told what speed those have who span servers.
    """
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds.values()))}
    left = [[shape.cpus, shape.memory] for _ in range(servers)]
    here: list[list[Request]] = [[] for _ in range(servers)]
    placed: dict[int, Placed] = {}

    def put(request: Request, at: int, parts: dict[int, int]) -> None:
        share, speed = kinds[request.job].points[at]
        for server, gpus in parts.items():
            left[server][0] -= gpus * share.cpus
            left[server][1] -= gpus * share.memory
        placed[request.job] = Placed(request, parts, share, speed)

    for request in requests:
        parts = dealt[request.job]
        if len(parts) == 1:
            here[next(iter(parts))].append(request)
        else:
            put(request, 0, parts)
    sites = [
        Site(round(cpus, 6), round(memory, 6), mine, kinds, numbers)
        for (cpus, memory), mine in zip(left, here, strict=True)
    ]
    if exchange is not None:
        exchange(sites, sum(one.speed for one in placed.values()))
    for server, site in enumerate(sites):
        for request, at in zip(site.mine, site.chosen, strict=True):
            put(request, at, {server: request.gpus})
    for one in [one for one in placed.values() if len(one.parts) > 1]:
        for share, speed in reversed(kinds[one.request.job].points):
            more = Share(share.cpus - one.share.cpus, share.memory - one.share.memory)
            if speed > one.speed and all(
                gpus * more.cpus <= left[server][0] + _EPS and gpus * more.memory <= left[server][1] + _EPS
                for server, gpus in one.parts.items()
            ):
                for server, gpus in one.parts.items():
                    left[server][0] -= gpus * more.cpus
                    left[server][1] -= gpus * more.memory
                one.share, one.speed = share, speed
                break
    return placed


class Site:
    """A server: its jobs, kind by kind, the best choice of each, and the speed that they have together."""

    def __init__(
        self,
        cpus: float,
        memory: float,
        mine: list[Request],
        kinds: Mapping[int, Choices],
        numbers: Mapping[Choices, int],
    ) -> None:
        self.cpus, self.memory, self.kinds, self.numbers = cpus, memory, kinds, numbers
        self.mine = sorted(mine, key=lambda request: numbers[kinds[request.job]])
        mixed = tuple(kinds[one.job] for one in self.mine)
        self.chosen = best_shares(mixed, cpus, memory)
        self.speed = sum(kind.points[at][1] for kind, at in zip(mixed, self.chosen, strict=True))
        self.missing = sum(kind.points[-1][1] for kind in mixed) - self.speed
        """Speed that its jobs would have more, each at its best."""

    def instead(self, out: Request, come: Request) -> Site:
        """With one job for another."""
        mine = [come if one is out else one for one in self.mine]
        return Site(self.cpus, self.memory, mine, self.kinds, self.numbers)


@functools.lru_cache(maxsize=50_000)
def best_shares(kinds: tuple[Choices, ...], cpus: float, memory: float) -> tuple[int, ...]:
    """Which choice each takes, so that the sum of speeds is largest and all fit.

    Job after job, kept are the sums of CPUs and memory that no other reaches with less and more speed.
    """
    # kept back is the least that each of the later ones can do with, CPUs and memory apart: no answer is cut off, and a
    # state that leads to none is no harm beside the cheapest choice of all, which is kept
    later: list[tuple[float, float]] = [(0.0, 0.0)]
    for kind in reversed(kinds[1:]):
        least = (min(one.cpus for one, _ in kind.points), min(one.memory for one, _ in kind.points))
        later.append((later[-1][0] + kind.gpus * least[0], later[-1][1] + kind.gpus * least[1]))
    later.reverse()
    # CPUs, memory, minus speed, choices so far
    states: list[_State] = [(0.0, 0.0, 0.0, ())]
    for at, kind in enumerate(kinds):
        most_cpus, most_memory = cpus - later[at][0] + _EPS, memory - later[at][1] + _EPS
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


def _undominated(states: list[_State]) -> list[_State]:
    """Those that no other equals or betters in CPUs, memory and speed."""
    kept: list[_State] = []
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
