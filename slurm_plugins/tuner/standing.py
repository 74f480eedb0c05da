"""TUNE for jobs that pay for being moved: who runs stays where it is.

TUNE from nothing, every round, gives most jobs other servers or another share than in the last one, and each that
changes is stopped and started again. Here a round changes what it must: who goes leaves room, who comes is seated by
TUNE's three steps among those that run, and then who was below its best is raised where room has come about. Nobody is
below the proportional speed here either, for the third step takes back what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm_plugins.tuner.placing import Cluster, Placed, Request, demand, seat
from slurm_plugins.tuner.values import Shape, Share

_EPS = 1e-4


class Standing:
    """Turns of a simulation of rounds. `whole`: raised is to any point of the curve, and not to its best only.
    `worth`: raised is who gets at least so many times as fast, since that costs it a restart."""

    def __init__(self, servers: int, shape: Shape, *, whole: bool = False, worth: float = 1.1) -> None:
        self.cluster = Cluster(servers, shape)
        self.whole, self.worth = whole, worth

    def turn(
        self, order: Iterable[int], gone: Sequence[int], come: Sequence[Request]
    ) -> Mapping[int, Placed | None]:
        """See slurm_plugins.tuner.rounds.Turns."""
        cluster = self.cluster
        cluster.before.clear()
        freed: dict[int, None] = {}
        for job in gone:
            freed.update(dict.fromkeys(cluster.placed[job].parts))
            cluster.take(job)
        for request in sorted(come, key=lambda one: demand(cluster, one)):
            seat(cluster, request)
            if self.whole:
                freed.update(dict.fromkeys(cluster.placed[request.job].parts))
        for server in freed:
            for placed in list(cluster.servers[server].jobs.values()):
                self._raise(placed)
        changed: dict[int, Placed | None] = {one.job: cluster.placed[one.job] for one in come}
        for job, share in cluster.before.items():
            if cluster.placed[job].share != share:
                changed[job] = cluster.placed[job]
        return changed

    def hope(self, request: Request) -> float:
        """See slurm_plugins.tuner.rounds.Turns."""
        return self.cluster.two(request).fast

    def _raise(self, placed: Placed) -> None:
        two = self.cluster.two(placed.request)
        if two.fast < placed.speed * self.worth:
            return
        points = (
            placed.request.curve.choices(placed.request.gpus, self.cluster.shape).points
            if self.whole
            else ((two.best, two.fast),)
        )
        for share, speed in sorted(points, key=lambda point: -point[1]):
            if speed < placed.speed * self.worth:
                return
            if self._fits(placed, share):
                self.cluster.change(placed, share, speed)
                return

    def _fits(self, placed: Placed, share: Share) -> bool:
        cpus, memory = share.cpus - placed.share.cpus, share.memory - placed.share.memory
        return all(
            gpus * cpus <= self.cluster.servers[server].left[0] + _EPS
            and gpus * memory <= self.cluster.servers[server].left[1] + _EPS
            for server, gpus in placed.parts.items()
        )


def standing(*, whole: bool = False, worth: float = 1.1) -> Callable[[int, Shape], Standing]:
    """A maker of Standing."""
    return lambda servers, shape: Standing(servers, shape, whole=whole, worth=worth)
