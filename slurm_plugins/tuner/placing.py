"""Synergy's placement of a round: PROPORTIONAL, GREEDY, TUNE, and FILL, which hands out what TUNE leaves.

Source: Synergy (OSDI'22), section 4, and the artifact's `resources/cluster.py` for what the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slurm_plugins.tuner.values import Curve, Shape, Share

_EPS = 1e-6


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
    cpus: float
    memory: float
    jobs: dict[int, Placed] = field(default_factory=dict)

    def most(self, share: Share) -> int:
        """How many GPUs with that share still fit."""
        by_cpus = self.gpus if share.cpus <= 0 else int((self.cpus + _EPS) / share.cpus)
        by_memory = self.gpus if share.memory <= 0 else int((self.memory + _EPS) / share.memory)
        return min(self.gpus, by_cpus, by_memory)


class Cluster:
    """Alike servers and what runs on them in one round."""

    def __init__(self, servers: int, shape: Shape) -> None:
        self.shape = shape
        self.fair = shape.proportional
        self.servers = [_Server(shape.gpus, shape.cpus, shape.memory) for _ in range(servers)]
        self.placed: dict[int, Placed] = {}
        self._best: dict[int, tuple[Share, float, Share, float]] = {}

    def known(self, curve: Curve) -> tuple[Share, float, Share, float]:
        """Best share and its speed, floor and its speed; worked out once a curve."""
        found = self._best.get(id(curve))
        if found is None:
            best, floor = curve.best(), curve.floor(self.fair)
            found = self._best[id(curve)] = (best, curve.speed(best), floor, curve.speed(floor))
        return found

    def room(self, gpus: int, share: Share) -> dict[int, int] | None:
        """GPUs by server: the fullest server that holds all, else as few as can be; None when none do."""
        fits = [(s.gpus, s.cpus, s.memory, i) for i, s in enumerate(self.servers) if s.most(share) >= gpus]
        if fits:
            return {min(fits)[3]: gpus}
        if gpus == 1:
            return None
        parts: dict[int, int] = {}
        for most, i in sorted(((s.most(share), -i) for i, s in enumerate(self.servers)), reverse=True):
            if gpus and most:
                parts[-i] = min(most, gpus)
                gpus -= parts[-i]
        return None if gpus else parts

    def put(self, request: Request, parts: dict[int, int], share: Share, speed: float) -> None:
        """Take the resources; the caller has looked that they are there."""
        placed = self.placed[request.job] = Placed(request, parts, share, speed)
        for i, gpus in parts.items():
            server = self.servers[i]
            server.gpus -= gpus
            server.jobs[request.job] = placed
        self._charge(parts, share, 1)

    def change(self, placed: Placed, share: Share, speed: float) -> None:
        """Give a job that stays where it is another share."""
        self._charge(placed.parts, placed.share, -1)
        self._charge(placed.parts, share, 1)
        placed.share, placed.speed = share, speed

    def _charge(self, parts: dict[int, int], share: Share, sign: int) -> None:
        for i, gpus in parts.items():
            self.servers[i].cpus -= sign * gpus * share.cpus
            self.servers[i].memory -= sign * gpus * share.memory


Placing = Callable[[Sequence[Request], int, Shape], dict[int, Placed]]


def proportional(requests: Sequence[Request], servers: int, shape: Shape) -> dict[int, Placed]:
    """Everyone gets the GPU-proportional share; speed as the curve says."""
    cluster = Cluster(servers, shape)
    for request in requests:
        parts = cluster.room(request.gpus, cluster.fair)
        if parts is not None:
            cluster.put(request, parts, cluster.fair, cluster.known(request.curve)[3])
    return cluster.placed


def greedy(requests: Sequence[Request], servers: int, shape: Shape) -> dict[int, Placed]:
    """First fit of the whole best-case vector; a job that does not fit waits (Synergy 4.1)."""
    cluster = Cluster(servers, shape)
    for request in requests:
        share, speed, _, _ = cluster.known(request.curve)
        parts = cluster.room(request.gpus, share)
        if parts is not None:
            cluster.put(request, parts, share, speed)
    return cluster.placed


def tune(requests: Sequence[Request], servers: int, shape: Shape) -> dict[int, Placed]:
    """Place every job, none slower than with the proportional share (Synergy 4.2, its three steps).

    The GPUs of all requests together must not exceed the cluster's: the caller takes that prefix of its queue.

    Raises:
        ValueError: more GPUs are asked for than there are.
    """
    return _tuned(requests, servers, shape).placed


def tune_in_order(requests: Sequence[Request], servers: int, shape: Shape) -> dict[int, Placed]:
    """TUNE as the artifact runs it: jobs are placed in the queue's order, where the paper sorts by demand."""
    return _tuned(requests, servers, shape, by_demand=False).placed


def _tuned(requests: Sequence[Request], servers: int, shape: Shape, by_demand: bool = True) -> Cluster:
    if sum(request.gpus for request in requests) > servers * shape.gpus:
        raise ValueError(f"{len(requests)} jobs ask for more GPUs than {servers} x {shape.gpus}")
    cluster = Cluster(servers, shape)

    def demand(request: Request) -> tuple[float, float, float]:
        best = cluster.known(request.curve)[0]
        return (-request.gpus, -request.gpus * best.cpus, -request.gpus * best.memory)

    for request in sorted(requests, key=demand) if by_demand else requests:
        best, speed, floor, floor_speed = cluster.known(request.curve)
        parts = cluster.room(request.gpus, best)
        if parts is not None:
            cluster.put(request, parts, best, speed)
            continue
        parts = cluster.room(request.gpus, floor)
        if parts is None:
            # never empty: GPUs were counted above
            parts = cluster.room(request.gpus, Share(0.0, 0.0)) or {}
            _take_back(cluster, parts, floor)
        cluster.put(request, parts, floor, floor_speed)
    return cluster


def _take_back(cluster: Cluster, parts: dict[int, int], share: Share) -> None:
    """Step 3: revert jobs above proportional until each part fits; it does once all are at most proportional."""
    for i, gpus in parts.items():
        server = cluster.servers[i]
        peers = [p for p in server.jobs.values() if not p.share.within(cluster.fair)]
        peers.sort(key=lambda p: (len(p.parts), -p.share.cpus, -p.share.memory))
        for peer in peers:
            if server.most(share) >= gpus:
                break
            _, _, floor, speed = cluster.known(peer.request.curve)
            cluster.change(peer, floor, speed)


def fill(requests: Sequence[Request], servers: int, shape: Shape) -> dict[int, Placed]:
    """TUNE, then what it leaves goes to jobs below their best: most speed gained for the part of a server first.

    Ours, not the paper's: TUNE knows two speeds of a job, so CPUs stay idle beside a job that four would speed up.
    """
    cluster = _tuned(requests, servers, shape)
    while True:
        options: list[tuple[float, int, Share, float]] = []
        for job, placed in cluster.placed.items():
            if placed.speed >= cluster.known(placed.request.curve)[1]:
                continue
            for share, speed in placed.request.curve.points:
                more_cpus = max(share.cpus - placed.share.cpus, 0.0)
                more_memory = max(share.memory - placed.share.memory, 0.0)
                if speed <= placed.speed + _EPS:
                    continue
                if all(
                    g * more_cpus <= cluster.servers[i].cpus + _EPS
                    and g * more_memory <= cluster.servers[i].memory + _EPS
                    for i, g in placed.parts.items()
                ):
                    cost = placed.request.gpus * (more_cpus / shape.cpus + more_memory / shape.memory)
                    options.append(((speed - placed.speed) / max(cost, _EPS), -job, share, speed))
        if not options:
            return cluster.placed
        _, job, share, speed = max(options, key=lambda option: option[:2])
        cluster.change(cluster.placed[-job], share, speed)
