"""Synergy's placement of a round: PROPORTIONAL, GREEDY and TUNE, and what every placing needs.

Source: Synergy (OSDI'22), section 4, and the artifact's `resources/cluster.py` for what the paper leaves open.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from slurm_plugins.tuner.values import Curve, Shape, Share, Two

_EPS = 1e-4  # CPUs or GB: what sums of shares may be off by
NOTHING = Share(0.0, 0.0)


@dataclass(frozen=True)
class Request:
    """A job of this round: its GPUs and what they gain from more."""

    job: int
    gpus: int
    curve: Curve


@dataclass(slots=True)
class Placed:
    """Where a job runs (GPUs by server), with what share a GPU, and how fast."""

    request: Request
    parts: dict[int, int]
    share: Share
    speed: float


@dataclass(slots=True)
class _Server:
    gpus: int
    left: tuple[float, float]
    """CPUs and GB, to 6 digits, so that equal ones are equal."""
    jobs: dict[int, Placed] = field(default_factory=dict)

    def most(self, share: Share) -> int:
        """How many GPUs with that share still fit."""
        return _most(self.gpus, *self.left, share)


def _most(gpus: int, cpus: float, memory: float, share: Share) -> int:
    by_cpus = gpus if share.cpus <= 0 else int((cpus + _EPS) / share.cpus)
    by_memory = gpus if share.memory <= 0 else int((memory + _EPS) / share.memory)
    return min(gpus, by_cpus, by_memory)


class Cluster:
    """Alike servers and what runs on them.

    Servers that have the same left are one entry of `_alike`: by free GPUs, then (CPUs, GB) -> a set of servers, kept
    as the bits of an integer. So a search looks at what differs, and 512 servers cost little more than 16.
    """

    def __init__(self, servers: int, shape: Shape) -> None:
        self.shape = shape
        self.fair = shape.proportional
        full = (round(shape.cpus, 6), round(shape.memory, 6))
        self.servers = [_Server(shape.gpus, full) for _ in range(servers)]
        self.placed: dict[int, Placed] = {}
        self._alike: list[dict[tuple[float, float], int]] = [{} for _ in range(shape.gpus + 1)]
        self._alike[shape.gpus][full] = (1 << servers) - 1
        self._refused: set[tuple[int, Share]] = set()
        self._twos: dict[tuple[int, int], tuple[Curve, Two]] = {}
        self.before: dict[int, Share] = {}
        """What those had whose share was changed, before it first was; for the caller to clear."""

    def two(self, request: Request) -> Two:
        """The job's two speeds on these servers."""
        curve = request.curve
        found = self._twos.get((id(curve), request.gpus))
        if found is None or found[0] is not curve:
            found = self._twos[id(curve), request.gpus] = (curve, curve.two(request.gpus, self.shape))
        return found[1]

    def fewest_free(self, gpus: int) -> dict[int, int] | None:
        """Of the servers with the fewest free GPUs that are enough, the one with the lowest number."""
        for alike in self._alike[gpus:]:
            if alike:
                return {_low(functools.reduce(operator.or_, alike.values())): gpus}
        return None

    def room(self, gpus: int, share: Share, *, first: bool = False) -> dict[int, int] | None:
        """GPUs by server: the server with the least left that holds all, else as few servers as can be; None when
        none do. With `first` the server with the lowest number."""
        if (gpus, share) in self._refused:
            return None
        server = self._one(gpus, share, first)
        if server is not None:
            return {server: gpus}
        parts = self._several(gpus, share) if gpus > 1 else None
        if parts is None:
            self._refused.add((gpus, share))
        return parts

    def _one(self, gpus: int, share: Share, first: bool) -> int | None:
        # where nothing is asked for what others were granted beyond the last digit is no hindrance
        cpus = gpus * share.cpus - _EPS if share.cpus > 0 else -math.inf
        memory = gpus * share.memory - _EPS if share.memory > 0 else -math.inf
        lowest = 0
        for alike in self._alike[gpus:]:
            least: tuple[float, float] | None = None
            for left in alike:
                if left[0] >= cpus and left[1] >= memory:
                    if first:
                        lowest |= alike[left]
                    elif least is None or left < least:
                        least = left
            if least is not None:
                return _low(alike[least])
        return _low(lowest) if lowest else None

    def _several(self, gpus: int, share: Share) -> dict[int, int] | None:
        """Fewest servers: the roomiest first, and the last part where it leaves least."""
        groups = [
            (_most(free, cpus, memory, share), servers)
            for free, alike in enumerate(self._alike)
            for (cpus, memory), servers in alike.items()
        ]
        parts: dict[int, int] = {}
        for most, servers in sorted(groups, key=lambda group: -group[0]):
            for server in _bits(servers):
                if not most or not gpus:
                    break
                parts[server] = min(most, gpus)
                gpus -= parts[server]
        if gpus:
            return None
        last, rest = parts.popitem()
        tight = [group for group in groups if group[0] >= rest]
        for _, servers in sorted(tight, key=lambda group: group[0]):
            others = [server for server in _bits(servers) if server not in parts]
            if others:
                last = others[0]
                break
        return parts | {last: rest}

    def put(self, request: Request, parts: dict[int, int], share: Share, speed: float) -> None:
        """Take the resources; the caller has looked that they are there."""
        placed = self.placed[request.job] = Placed(request, parts, share, speed)
        for server, gpus in parts.items():
            self._charge(server, gpus, share)
            self.servers[server].jobs[request.job] = placed

    def take(self, job: int) -> None:
        """A job leaves."""
        placed = self.placed.pop(job)
        for server, gpus in placed.parts.items():
            self._charge(server, -gpus, placed.share)
            del self.servers[server].jobs[job]
        self._refused.clear()

    def change(self, placed: Placed, share: Share, speed: float) -> None:
        """Give a job that stays where it is another share."""
        more = Share(share.cpus - placed.share.cpus, share.memory - placed.share.memory)
        for server, gpus in placed.parts.items():
            self._charge(server, gpus, more, gpus=0)
        self.before.setdefault(placed.request.job, placed.share)
        placed.share, placed.speed = share, speed
        if more.cpus < 0 or more.memory < 0:
            self._refused.clear()

    def _charge(self, server: int, times: int, share: Share, gpus: int | None = None) -> None:
        one, bit = self.servers[server], 1 << server
        alike = self._alike[one.gpus]
        if alike[one.left] == bit:
            del alike[one.left]
        else:
            alike[one.left] ^= bit
        one.gpus -= times if gpus is None else gpus
        one.left = left = (
            round(one.left[0] - times * share.cpus, 6),
            round(one.left[1] - times * share.memory, 6),
        )
        alike = self._alike[one.gpus]
        alike[left] = alike.get(left, 0) | bit


def _low(servers: int) -> int:
    return (servers & -servers).bit_length() - 1


def _bits(servers: int) -> Iterator[int]:
    while servers:
        low = servers & -servers
        yield low.bit_length() - 1
        servers ^= low


Placing = Callable[[Sequence[Request], int, Shape], dict[int, Placed]]


def proportional(requests: Sequence[Request], servers: int, shape: Shape) -> dict[int, Placed]:
    """Everyone gets the GPU-proportional share; speed as the curve says."""
    cluster = Cluster(servers, shape)
    for request in requests:
        parts = cluster.room(request.gpus, cluster.fair)
        if parts is not None:
            cluster.put(request, parts, cluster.fair, cluster.two(request).fair)
    return cluster.placed


def greedy(requests: Sequence[Request], servers: int, shape: Shape) -> dict[int, Placed]:
    """First fit of the whole best-case vector; a job that does not fit waits (Synergy 4.1)."""
    cluster = Cluster(servers, shape)
    for request in requests:
        two = cluster.two(request)
        parts = cluster.room(request.gpus, two.best, first=True)
        if parts is not None:
            cluster.put(request, parts, two.best, two.fast)
    return cluster.placed


def tune(requests: Sequence[Request], servers: int, shape: Shape) -> dict[int, Placed]:
    """Place every job, none slower than with the proportional share (Synergy 4.2, its three steps).

    The GPUs of all requests together must not exceed the cluster's: the caller takes that prefix of its queue.

    Raises:
        ValueError: more GPUs are asked for than there are.
    """
    cluster = checked(requests, servers, shape)
    for request in sorted(requests, key=lambda one: demand(cluster, one)):
        seat(cluster, request)
    return cluster.placed


def tune_as_shipped(requests: Sequence[Request], servers: int, shape: Shape) -> dict[int, Placed]:
    """TUNE as the artifact runs it: jobs in the queue's order, each on the first server that holds it, where the paper
    sorts by demand and takes the fullest.

    Raises:
        ValueError: more GPUs are asked for than there are.
    """
    cluster = checked(requests, servers, shape)
    for request in requests:
        seat(cluster, request, first=True)
    return cluster.placed


def checked(requests: Sequence[Request], servers: int, shape: Shape) -> Cluster:
    """An empty cluster on which all of these can run.

    Raises:
        ValueError: more GPUs are asked for than there are.
    """
    if sum(request.gpus for request in requests) > servers * shape.gpus:
        raise ValueError(f"{len(requests)} jobs ask for more GPUs than {servers} x {shape.gpus}")
    return Cluster(servers, shape)


def demand(cluster: Cluster, request: Request) -> tuple[float, float, float]:
    """What the paper sorts by: GPUs, CPUs, memory, the largest first."""
    best = cluster.two(request).best
    return (-request.gpus, -request.gpus * best.cpus, -request.gpus * best.memory)


def seat(cluster: Cluster, request: Request, *, first: bool = False) -> None:
    """TUNE's three steps for one job, for which GPUs are free: its best case; its floor; its floor once others are
    back at theirs."""
    two = cluster.two(request)
    parts = cluster.room(request.gpus, two.best, first=first)
    if parts is not None:
        cluster.put(request, parts, two.best, two.fast)
        return
    parts = cluster.room(request.gpus, two.floor, first=first)
    if parts is None:
        parts = (cluster.fewest_free(request.gpus) if first else None) or cluster.room(request.gpus, NOTHING)
        if parts is None:
            raise ValueError(f"job {request.job} asks for {request.gpus} GPUs, and fewer are free")
        _take_back(cluster, parts, two.floor)
        if first:
            parts = cluster.room(request.gpus, two.floor, first=True) or parts
    cluster.put(request, parts, two.floor, two.fair)


def _take_back(cluster: Cluster, parts: dict[int, int], share: Share) -> None:
    """Step 3: put jobs above proportional back until each part fits; it does once all are at most proportional.

    Who is put back may need more of one resource than before (its best case had few CPUs and much memory), on each of
    its servers: those are looked at too, until none gives more than it has.
    """
    wanted = dict(parts)
    while wanted:
        at, gpus = wanted.popitem()
        server = cluster.servers[at]
        peers = [p for p in server.jobs.values() if not p.share.within(cluster.fair)]
        peers.sort(key=lambda p: (len(p.parts), -p.share.cpus, -p.share.memory))
        for peer in peers:
            if server.most(share) >= gpus and min(server.left) >= -_EPS:
                break
            two = cluster.two(peer.request)
            cluster.change(peer, two.floor, two.fair)
            for other in peer.parts:
                if other != at and min(cluster.servers[other].left) < -_EPS:
                    wanted.setdefault(other, parts.get(other, 0))
