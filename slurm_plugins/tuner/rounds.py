"""Rounds: every 300 s the queue is ordered anew, and who is at its head gets the cluster.

One simulator for Synergy's own traces and, by `slurm_plugins.replay`, for a site's. A job's progress is worked out
when its speed changes and not round by round, and rounds in which nothing can change are passed over, so a round costs
what it changes.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from slurm_plugins.tuner.placing import Cluster, Placed, Placing, Request, proportional
from slurm_plugins.tuner.values import V100, Profile, Shape

ORDERS: Final = ("fifo", "srtf", "las", "ftf")


@dataclass(frozen=True, slots=True)
class Rounds:
    """How rounds go. The default is what a cluster would do; SHIPPED is what the artifact's simulator does."""

    length: float = 300.0
    first: float = 0.0
    """When the first begins, s."""
    whole_steps: bool = False
    """A job that is cut off loses the step that it is in."""
    to_the_end: bool = False
    """A job is over when its last round is."""
    restart_s: float = 0.0
    """What a job pays that goes on with other GPUs or another share than in its last round, or after a pause."""
    pace: Callable[[int, Mapping[int, int]], float] | None = None
    """Job, GPUs by server -> how fast it is there, 1 on as few servers as can be; None: spreading costs nothing."""


PLAIN = Rounds()
SHIPPED = Rounds(whole_steps=True, to_the_end=True)


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a trace: arrival (s), work (s at proportional speed), GPUs, model."""

    job: int
    arrival: float
    work: float
    gpus: int
    profile: Profile


@dataclass(frozen=True, slots=True)
class Times:
    """Job completion times and makespan, hours."""

    mean: float
    p99: float
    makespan: float

    @classmethod
    def of(cls, jobs: Sequence[Job], ends: Mapping[int, float]) -> Times:
        """Over the jobs given; p99 interpolates linearly, as numpy does. The makespan is from the first arrival."""
        waits = sorted((ends[j.job] - j.arrival) / 3600 for j in jobs)
        at = 0.99 * (len(waits) - 1)
        low = math.floor(at)
        high = min(low + 1, len(waits) - 1)
        p99 = waits[low] + (at - low) * (waits[high] - waits[low])
        makespan = (max(ends[j.job] for j in jobs) - min(j.arrival for j in jobs)) / 3600
        return cls(sum(waits) / len(waits), p99, makespan)


@dataclass(slots=True)
class Ran:
    """What became of the jobs, each by its id; what has not ended by the time the simulation stops is not in `ends`."""

    starts: dict[int, float] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    held: dict[int, float] = field(default_factory=dict)
    """Seconds in which it held its GPUs."""
    restarts: dict[int, int] = field(default_factory=dict)
    servers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Where it ran last."""
    rounds: int = 0
    """Rounds that were worked out; the others were as the one before."""


class Turns(Protocol):
    """Who runs where, round after round."""

    def turn(
        self, order: Iterable[int], gone: Sequence[int], come: Sequence[Request]
    ) -> Mapping[int, Placed | None]:
        """The next round. `order` has the ids of all that are to run, in the queue's order; `gone` those that ran and
        are not among them, `come` those among them that were not there in the last round.

        Returns who runs otherwise than before, with None for a job that cannot be placed now.
        """
        ...

    def hope(self, request: Request) -> float:
        """The speed that a job may hope for while it waits."""
        ...


class Anew:
    """Every round is placed from nothing, as Synergy does."""

    def __init__(self, placing: Placing, servers: int, shape: Shape) -> None:
        self._placing, self._servers, self._shape = placing, servers, shape
        self._asked: dict[int, Request] = {}
        self._last: dict[int, Placed] = {}
        self._known = Cluster(1, shape)

    def turn(
        self, order: Iterable[int], gone: Sequence[int], come: Sequence[Request]
    ) -> Mapping[int, Placed | None]:
        """See Turns."""
        for job in gone:
            del self._asked[job]
        for request in come:
            self._asked[request.job] = request
        last = self._last
        now = self._last = self._placing([self._asked[job] for job in order], self._servers, self._shape)
        changed: dict[int, Placed | None] = dict.fromkeys(last.keys() & self._asked.keys() - now.keys())
        changed.update((job, placed) for job, placed in now.items() if _other(last.get(job), placed))
        return changed

    def hope(self, request: Request) -> float:
        """See Turns."""
        two = self._known.two(request)
        return two.fair if self._placing is proportional else two.fast


def _other(before: Placed | None, now: Placed) -> bool:
    return before is None or before.share != now.share or before.parts != now.parts


Maker = Callable[[int, Shape], Turns]


def anew(placing: Placing) -> Maker:
    """A maker of Anew."""
    return lambda servers, shape: Anew(placing, servers, shape)


@dataclass(slots=True)
class _Run:
    """A job in the system; `left` and `served` are as of the round `since`."""

    job: Job
    request: Request
    left: float
    hope: float
    since: int = 0
    speed: float = 0.0
    pace: float = 0.0
    """Work a round."""
    served: float = 0.0
    due: int = -1
    restarts: int = -1
    servers: tuple[int, ...] = ()

    def settle(self, number: int, length: float) -> None:
        """Bring it up to the begin of a round."""
        if number > self.since and self.speed:
            self.left -= (number - self.since) * self.pace
            self.served += (number - self.since) * length
        self.since = number

    def key(self, order: str, now: float) -> tuple[float, float, int]:
        """Its place in the queue, once settled: the least comes first."""
        job = self.job
        if order == "srtf":
            first = self.left / (self.speed or self.hope)
        elif order == "las":
            first = self.served * job.gpus
        else:
            # finish-time fairness: who is furthest behind the time it would have taken alone
            first = -((now - job.arrival + self.left) / job.work)
        return (first, job.arrival, job.job)


class _Simulation:
    def __init__(self, jobs: Sequence[Job], order: str, turns: Turns, gpus: int, rounds: Rounds) -> None:
        self.coming = sorted(jobs, key=lambda j: (j.arrival, j.job))
        self.at = 0
        self.order, self.turns, self.rounds = order, turns, rounds
        self.free = gpus
        self.gpus = gpus
        self.waiting: deque[_Run] = deque()
        self.running: dict[int, _Run] = {}
        self.due: list[tuple[int, int]] = []
        self.last: tuple[int, ...] = ()
        self.gone: list[int] = []
        self.ran = Ran()

    def arrive(self, now: float) -> None:
        while self.at < len(self.coming) and self.coming[self.at].arrival <= now:
            job = self.coming[self.at]
            self.at += 1
            request = Request(job.job, job.gpus, job.profile.curve)
            self.waiting.append(_Run(job, request, job.work, self.turns.hope(request)))

    def expect(self, job: Job) -> None:
        """One more will arrive."""
        bisect.insort(self.coming, job, lo=self.at, key=lambda one: (one.arrival, one.job))

    def choose(self, number: int, now: float) -> list[_Run]:
        """Who is to run: in order, up to the first job whose GPUs no longer fit. Returns the newcomers."""
        come: list[_Run] = []
        if self.order == "fifo":
            # nobody overtakes: who runs goes on
            while self.waiting and self.waiting[0].job.gpus <= self.free:
                run = self.waiting.popleft()
                self.free -= run.job.gpus
                self.running[run.job.job] = run
                come.append(run)
            return come
        runs = [*self.running.values(), *self.waiting]
        for run in self.running.values():
            run.settle(number, self.rounds.length)
        runs.sort(key=lambda run: run.key(self.order, now))
        free, cut = self.gpus, 0
        while cut < len(runs) and runs[cut].job.gpus <= free:
            free -= runs[cut].job.gpus
            cut += 1
        chosen = {run.job.job: run for run in runs[:cut]}
        for job, run in self.running.items():
            if job not in chosen:
                self.stop(run, number)
                self.gone.append(job)
        come = [run for job, run in chosen.items() if job not in self.running]
        self.running, self.waiting, self.free = chosen, deque(runs[cut:]), free
        return come

    def stop(self, run: _Run, number: int) -> None:
        run.settle(number, self.rounds.length)
        run.speed, run.pace, run.due = 0.0, 0.0, -1

    def place(self, number: int, now: float, come: Sequence[_Run]) -> None:
        ids = tuple(self.running) if self.order != "fifo" else ()
        if not come and not self.gone and ids == self.last:
            return
        self.last = ids
        self.ran.rounds += 1
        changed = self.turns.turn(self.running, self.gone, [run.request for run in come])
        self.gone = []
        for job, placed in changed.items():
            run = self.running[job]
            self.stop(run, number)
            if placed is not None:
                self.go(run, placed, number, now)

    def go(self, run: _Run, placed: Placed, number: int, now: float) -> None:
        """From this round on at that speed."""
        run.speed = placed.speed
        if self.rounds.pace is not None and len(placed.parts) > 1:
            run.speed *= self.rounds.pace(run.job.job, placed.parts)
        run.servers = tuple(placed.parts)
        run.restarts += 1
        if run.restarts:
            run.left += self.rounds.restart_s * run.speed
        else:
            self.ran.starts[run.job.job] = now
        run.pace = self.rounds.length * run.speed
        if self.rounds.whole_steps:
            step = run.job.profile.step_s
            run.pace = math.floor(self.rounds.length / (step / run.speed)) * step
        if run.pace <= 0:
            raise ValueError(f"job {run.job.job} gets nothing done in a round: speed {run.speed}")
        run.due = number + max(math.ceil(run.left / run.pace - 1e-9), 1) - 1
        heapq.heappush(self.due, (run.due, run.job.job))

    def end(self, number: int, now: float) -> list[int]:
        """Who is over by the end of this round."""
        over = []
        while self.due and self.due[0][0] <= number:
            due, job = heapq.heappop(self.due)
            run = self.running.get(job)
            if run is None or run.due != due:
                continue  # it was given another speed since
            run.settle(number, self.rounds.length)
            last = self.rounds.length if self.rounds.to_the_end else max(run.left, 0.0) / run.speed
            self.ran.ends[job] = now + last
            self.ran.held[job] = run.served + last
            self.ran.restarts[job] = run.restarts
            self.ran.servers[job] = run.servers
            del self.running[job]
            self.free += run.job.gpus
            self.gone.append(job)
            over.append(job)
        return over

    def next(self, number: int) -> int:
        """The next round in which something can change."""
        while self.due and ((run := self.running.get(self.due[0][1])) is None or run.due != self.due[0][0]):
            heapq.heappop(self.due)
        busy = bool(self.running or self.waiting)
        if self.gone or (busy and self.order != "fifo") or (self.waiting and not self.running):
            return number + 1
        later = [self.due[0][0]] if self.due else []
        if not self.waiting and self.at < len(self.coming):
            since = self.coming[self.at].arrival - self.rounds.first
            later.append(math.ceil(since / self.rounds.length))
        return max(number + 1, min(later, default=number + 1))


def simulate(
    jobs: Sequence[Job],
    order: str,
    make: Maker,
    servers: int,
    *,
    shape: Shape = V100,
    until: int | None = None,
    rounds: Rounds = PLAIN,
    after: Callable[[int, float], Job | None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Ran:
    """Run the jobs in rounds; `order` is fifo, srtf, las or ftf. Stops once all jobs up to id `until` have ended.

    `after`: told each job that ends and when, gives the one that comes of it, if one does. `progress`: told how many
    have arrived.

    SRTF goes by the time left at a job's last speed, and while it waits at its hope. LAS goes by GPU-seconds held.

    Raises:
        ValueError: a job asks for more GPUs than the cluster has; an unknown order; a restart as long as a round.
    """
    if order not in ORDERS:
        raise ValueError(f"no such order: {order}; there are {', '.join(ORDERS)}")
    if not 0 <= rounds.restart_s < rounds.length:
        raise ValueError(f"a restart of {rounds.restart_s} s leaves nothing of a round of {rounds.length} s")
    total = servers * shape.gpus
    for job in jobs:
        if not 0 < job.gpus <= total or job.work <= 0:
            raise ValueError(f"job {job.job} of {job.gpus} GPUs and {job.work} s cannot run on {total} GPUs")
    wanted = sum(until is None or job.job <= until for job in jobs)
    state = _Simulation(jobs, order, make(servers, shape), total, rounds)
    number = max(math.ceil((state.coming[0].arrival - rounds.first) / rounds.length), 0) if jobs else 0
    while wanted > 0:
        now = rounds.first + number * rounds.length
        state.arrive(now)
        state.place(number, now, state.choose(number, now))
        for over in state.end(number, now):
            wanted -= until is None or over <= until
            come = after(over, state.ran.ends[over]) if after is not None else None
            if come is not None:
                wanted += until is None or come.job <= until
                state.expect(come)
        if progress is not None:
            progress(state.at)
        number = state.next(number)
    return state.ran
