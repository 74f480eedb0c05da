"""The state of a replay, and what a planner may do with it: start a job, stop one, ask to be woken."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Protocol

from profiler.spread import slowdown
from slurm_plugins.replay.attempts import Attempts
from slurm_plugins.replay.needs import Level, Need, Needs, Parts, Rooms
from slurm_plugins.replay.policy import Policy
from slurm_plugins.replay.room import Room
from slurm_plugins.replay.samples import Samples
from slurm_plugins.replay.values import Cluster, Trace
from slurm_plugins.replay.vectors import Vectors
from slurm_plugins.replay.waits import Waits

__all__ = ["Desk", "Planner"]

_NAN: Final = float("nan")


class Planner(Protocol):
    """Who decides whom to start. It keeps the queue; the desk keeps what runs.

    A minimal one, which starts whatever fits in the order of arrival::

        class Eager:
            def __init__(self, desk):
                self.line = []
            def queue(self, desk, job):
                self.line.append(job)
            def ended(self, desk, job):
                pass
            def plan(self, desk):
                for job in list(self.line):
                    parts = desk.find(job)
                    if parts is not None:
                        self.line.remove(job)
                        desk.start(job, parts)
            def cause(self, desk, job):
                return desk.cause(job)
    """

    def queue(self, desk: Desk, job: int) -> None:
        """A job may start from now on: it arrived, or its next run may queue."""
        ...

    def ended(self, desk: Desk, job: int) -> None:
        """A run of the job ended; its place is free already."""
        ...

    def plan(self, desk: Desk) -> None:
        """All that happens at this moment has been told: start whom you will. Also called when woken."""
        ...

    def cause(self, desk: Desk, job: int) -> str:
        """Why a job like this one (same need, same queue) waits now, of `CAUSES`. Usually ``desk.cause(job)``."""
        ...


class Desk:
    """Jobs are rows of the trace. Times are seconds; lists are by row."""

    def __init__(self, trace: Trace, cluster: Cluster, policy: Policy, attempts: Attempts, seed: int) -> None:
        self.trace, self.cluster, self.policy, self.seed = trace, cluster, policy, seed
        count = len(trace)
        self.now = 0.0
        self.needs = Needs(trace, cluster)
        self.room: Rooms
        if self.needs.by_gpus_alone:
            self.room = Room(cluster, policy.packing)
        else:
            self.room = Vectors(cluster, policy.packing)
        self._idle = self.room.copy()
        self.needs.settle(self._idle)
        listed = self.needs.listed
        self.need: list[Need] = [listed[number] for number in self.needs.of.tolist()]
        """What its present run asks for."""
        self.queue_of: list[int] = trace["queue"].tolist()
        """Code of its queue, into ``trace.words["queue"]``."""
        self.limit: list[float] = trace["limit"].tolist()
        self.arrival: list[float] = trace["arrival"].tolist()
        self.level = Level.COMPACT if policy.locality != "none" else Level.ANY
        self._runs_of(attempts)
        self.left: list[float] = [0.0] * count
        """Work left of its present run, at full speed; of one that runs, as of its last start."""
        self.where: dict[int, Parts] = {}
        """Those that run -> where."""
        self.began: list[float] = [_NAN] * count
        """When it last began to run."""
        self._since = self.began.copy()  # and when its pace last changed
        self.due: list[float] = [_NAN] * count
        """When its present run will end, unless it is stopped."""
        self.pace: list[float] = [1.0] * count
        self._paces: dict[tuple[object, ...], float] = {}
        self.freed: list[Parts] = []
        """Places that became free since the last plan."""
        self.queued = 0
        """Jobs that wait."""
        self._again: dict[int, float] = {}  # stopped -> what its next start costs
        self._cost: dict[int, float] = {}
        self.stopped: dict[int, float] = {}
        """When a job was last stopped."""
        self.events: list[tuple[float, int]] = []
        self._count = count
        self._woken = -1.0
        self._nothing_yet(count)
        self.out_of_order = 0
        self.why: dict[int, str] = {}
        self.waits = Waits(self)
        self.samples = Samples(self.arrival, gpus=self.room.gpus, top=self.room.largest())

    def _runs_of(self, attempts: Attempts) -> None:
        """The run of each job that is on or next, as a row of the attempts, and what those are."""
        self._run: list[int] = attempts.offsets[:-1].tolist()
        self._last: list[int] = (attempts.offsets[1:] - 1).tolist()
        self._work: list[float] = attempts.work.tolist()
        self._delay: list[float] = attempts.delay.tolist()
        self._gpus: list[int] = attempts.gpus.tolist()
        self._kept: list[bool] = attempts.kept.tolist()
        self._smoked = bool(attempts.gpus.any())

    def _nothing_yet(self, count: int) -> None:
        """What came of each job so far."""
        self.started: list[float] = [_NAN] * count
        self.finished: list[float] = [_NAN] * count
        self.run_s: list[float] = [0.0] * count
        self.gpu_s: list[float] = [0.0] * count
        self.lost_gpu_s: list[float] = [0.0] * count
        self.tries: list[int] = [0] * count
        self.on_nodes: list[int] = [0] * count
        self.on_leaves: list[int] = [0] * count

    # -- for planners

    def find(self, job: int, level: Level | None = None) -> Parts | None:
        """A place for the job at the policy's level, or another; None: there is none."""
        return self.room.find(self.need[job], self.level if level is None else level)

    def start(self, job: int, parts: Parts, pace: float = 0.0) -> None:
        """It runs on these parts from now on, `pace` of full speed (0: as the spread of its place has it)."""
        need = self.need[job]
        self.room.take(parts, need)
        self.where[job] = parts
        now = self.now
        leaves = 1 if len(parts) < 2 else self.room.leaves(parts)
        if not pace:
            pace = 1.0
            if self.policy.slowdown and (len(parts) > need.nodes or leaves > need.leaves):
                pace = self._pace(self._workload(job), need, len(parts), leaves)
        extra = 0.0
        if self._again:
            extra = self._cost[job] = self._again.pop(job, 0.0)
        if self.tries[job] == 0:
            self.started[job] = now
            self.waits.over(job)
        self.tries[job] += 1
        self.queued -= 1
        self.began[job] = self._since[job] = now
        self.pace[job] = pace
        self.on_nodes[job], self.on_leaves[job] = len(parts), leaves
        due = self.due[job] = now + extra + self.left[job] / pace
        heapq.heappush(self.events, (due, job))

    def repace(self, job: int, pace: float) -> None:
        """A job that runs goes on at another part of full speed, where it is and at no cost."""
        self._worked(job)
        self.pace[job] = pace
        due = self.due[job] = self.now + self._cost.get(job, 0.0) + self.left[job] / pace
        heapq.heappush(self.events, (due, job))

    def stop(self, job: int, cost: float | None = None) -> None:
        """It is preempted: what it did stays done, its next start costs `cost` s (None: `Policy.restart_s`)."""
        self._worked(job)
        self._cost.pop(job, None)
        self._off(job)
        self._again[job] = self.policy.restart_s if cost is None else cost
        self.stopped[job] = self.now
        self.due[job] = _NAN
        self.queued += 1

    def ask(self, job: int, gpus: int) -> None:
        """A job that does not run asks for so many GPUs from now on, with CPUs and memory in proportion."""
        self.need[job] = self._sized(job, gpus)

    def refuse(self, job: int, why: str) -> None:
        """In `Planner.queue`: it will never run."""
        self.why[job] = why
        self.queued -= 1

    def wake(self, when: float) -> None:
        """`plan` is called at that time, whatever happens."""
        if when > self.now and when != self._woken:
            self._woken = when
            heapq.heappush(self.events, (when, 2 * self._count))

    def cause(self, job: int) -> str:
        """Why a job that asks for this waits: by what is free."""
        need = self.need[job]
        if need.gpus and self.room.free_for(need) < need.gpus:
            return "resources"
        if self.room.fits(need, self.level):
            return "order"
        return "fragmentation" if need.gpus else "resources"

    def attained(self, job: int) -> float:
        """GPU-seconds that it has had, of all its runs."""
        running = (self.now - self.began[job]) * self.need[job].gpus if job in self.where else 0.0
        return self.gpu_s[job] + running

    def remaining(self, job: int) -> float:
        """Seconds that it would need from now on at its present pace."""
        return self.due[job] - self.now if job in self.where else self.left[job] + self._again.get(job, 0.0)

    def _workload(self, job: int) -> str:
        return self.trace.words["workload"][int(self.trace["workload"][job])]

    def _pace(self, workload: str, need: Need, nodes: int, leaves: int) -> float:
        each = -(-need.gpus // need.nodes)
        key = workload, need.gpus, each, nodes, leaves, need.leaves
        found = self._paces.get(key)
        if found is None:
            cost = slowdown(
                workload, need.gpus, nodes, leaves, gpus_a_node=each, fewest_leaves=min(need.leaves, leaves)
            )
            found = self._paces[key] = 1 / cost
        return found

    # -- for the engine

    def _worked(self, job: int) -> None:
        """Write down what a job that runs has done since its last start or change of pace."""
        done = self.now - self._since[job]
        self._since[job] = self.now
        cost = 0.0
        if self._cost and job in self._cost:
            cost = min(self._cost[job], done)
            self._cost[job] -= cost
            self.lost_gpu_s[job] += cost * self.need[job].gpus
        self.left[job] = max(self.left[job] - (done - cost) * self.pace[job], 0.0)

    def _off(self, job: int) -> float:
        parts, need = self.where.pop(job), self.need[job]
        self.room.give(parts, need)
        self.freed.append(parts)
        done = self.now - self.began[job]
        self.run_s[job] += done
        self.gpu_s[job] += done * need.gpus
        return done

    def end(self, job: int) -> bool:
        """A run ended; True when the job queues for another."""
        run = self._run[job]
        if self._cost:
            self._worked(job)
            self._cost.pop(job, None)
        done = self._off(job)
        if not self._kept[run]:
            self.lost_gpu_s[job] += done * self.need[job].gpus
        if run == self._last[job]:
            self.finished[job] = self.now
            return False
        self._run[job] = run + 1
        return True

    def ready(self, job: int) -> None:
        """Set out its next run."""
        run = self._run[job]
        self.left[job] = self._work[run]
        if self._smoked:
            self.need[job] = self._sized(job, self._gpus[run])
        self.queued += 1

    def _sized(self, job: int, gpus: int) -> Need:
        """What it asks for with so many GPUs; 0: its own."""
        own = self.needs.listed[int(self.needs.of[job])]
        return self.needs.sized(own, gpus, self._idle) if gpus else own

    def run(self, planner: Planner, tick: Callable[[int], None] | None = None) -> None:
        """Until nothing is left to happen. `tick` is told how many jobs have arrived."""
        count, events, arrival = self._count, self.events, self.arrival
        coming = [job for job in range(count) if self._runs(job)]
        coming.reverse()
        waits, samples = self.waits, self.samples
        inf = float("inf")
        due, later = self.due, 2 * count
        while coming or events:
            at = arrival[coming[-1]] if coming else inf
            now = at if not events or at < events[0][0] else events[0][0]
            self.now = now
            if now > samples.since:
                room = self.room
                held = room.gpus - room.free_gpus, room.held_cpus, room.held_memory
                samples.note(now, held, self.queued, room.largest())
            changed = False
            while events and events[0][0] == now:
                _, code = heapq.heappop(events)
                if code < count:
                    if due[code] != now:
                        continue  # it was stopped meanwhile
                    due[code] = _NAN
                    again = self.end(code)
                    planner.ended(self, code)
                    if again:
                        self._next(code, planner)
                elif code < later:
                    self._queue(code - count, planner)
                changed = True
            while coming and arrival[coming[-1]] == now:
                self._next(coming.pop(), planner)
                changed = True
            if changed:
                planner.plan(self)
                self.freed.clear()
                waits.look(planner)
                if tick is not None:
                    tick(count - len(coming))

    def _next(self, job: int, planner: Planner) -> None:
        """Its next run queues, at once or after its delay."""
        delay = self._delay[self._run[job]]
        if delay > 0:
            heapq.heappush(self.events, (self.now + delay, self._count + job))
            if not self.tries[job]:
                self.waits.delayed[job] = delay
        else:
            self._queue(job, planner)

    def _queue(self, job: int, planner: Planner) -> None:
        self.ready(job)
        planner.queue(self, job)
        if not self.tries[job] and job not in self.why:
            self.waits.fresh.append(job)

    def _runs(self, job: int) -> bool:
        if self.need[job].why:
            self.why[job] = self.need[job].why
            return False
        if self._run[job] > self._last[job]:
            self.why[job] = (
                "it did not run in the trace" if not self.trace["work"][job] else "given up before it ran"
            )
            return False
        return True
