"""Philly's rules: a share for each queue, lending, gangs that wait for locality and relax.

Source: Philly (ATC'19), section 2.3. Queues (virtual clusters) have quotas; the queue that has least of its own goes
first. Unused GPUs may be lent, and are taken back, the youngest job first, only while 90 % of all are in use. A job of
several GPUs under a constraint of locality takes what is free on the nodes that it has in view and waits 2 to 3 minutes
for the rest; then it lets go of all, tries again after 2 minutes, and after some tries takes GPUs on any nodes of a
rack, after as many more wherever they are (these two steps are ours). Whoever fits passes those that wait.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from slurm_plugins.replay.desk import Desk
from slurm_plugins.replay.making_room import victims
from slurm_plugins.replay.needs import Level, Need, Parts
from slurm_plugins.replay.patience import Patience

__all__ = ["Shares"]


@dataclass(slots=True)
class _Queue:
    """A queue: its quota, GPUs that it has or holds, and who waits, in a line for each need."""

    quota: float
    used: int = 0
    lines: dict[int, deque[int]] = field(default_factory=dict)
    waiting: int = 0

    @property
    def share(self) -> float:
        """How much of its quota it has."""
        return self.used / self.quota if self.quota else math.inf


@dataclass(slots=True)
class _Gang:
    """A job that gets its GPUs together."""

    since: float
    tries: int = 0
    trying: bool = False
    level: Level = Level.COMPACT
    """What it is content with in its present try."""
    view: tuple[int, ...] = ()
    pieces: list[tuple[int, int]] = field(default_factory=list)
    until: float = -1.0
    """End of the try, or of the back-off after it."""

    @property
    def held(self) -> int:
        """GPUs that it has got together."""
        return sum(gpus for _, gpus in self.pieces)


class Shares:
    """Fair share with quotas; the gangs of Philly where the policy has a constraint of locality."""

    def __init__(self, desk: Desk) -> None:
        policy = desk.policy
        quotas = desk.cluster.quotas
        self._queues = [
            _Queue(float(quotas.get(name, desk.room.gpus))) for name in desk.trace.words["queue"] or ("",)
        ]
        self._turn = 0
        self._turns: dict[int, int] = {}  # those that wait in a line -> when they came
        self._gangs: dict[int, _Gang] = {}
        self._viewed: dict[int, list[int]] = {}  # node -> gangs that have it in view
        self._timers: list[tuple[float, int]] = []
        self._lent: list[int] | None = None
        self._fair = policy.order == "fair_share"
        self._anywhere: set[int] = set()  # gangs that have all nodes in view
        self._patience = Patience(desk)
        # "2-3 minutes": tries of one length would let two gangs hold in turn what the other lacks, for ever.
        self._random = random.Random(desk.seed)  # noqa: S311

    # -- what happens

    def queue(self, desk: Desk, job: int) -> None:
        """At the end of the line of those that ask alike in its queue."""
        queue = self._queues[desk.queue_of[job]]
        if desk.policy.quotas == "on" and desk.need[job].gpus > queue.quota:
            desk.refuse(job, f"{desk.need[job].gpus} GPUs are more than its queue's quota of {queue.quota:g}")
            return
        queue.lines.setdefault(desk.need[job].number, deque()).append(job)
        queue.waiting += 1
        self._turn += 1
        self._turns[job] = self._turn

    def ended(self, desk: Desk, job: int) -> None:
        """Its queue has fewer GPUs now."""
        self._queues[desk.queue_of[job]].used -= desk.need[job].gpus

    def plan(self, desk: Desk) -> None:
        """Gangs first take what became free in their view; then the queues, neediest first."""
        self._lent = None
        if desk.freed and self._gangs:
            self._offer(desk, desk.freed)
        while self._timers and self._timers[0][0] <= desk.now:
            _, job = heapq.heappop(self._timers)
            gang = self._gangs.get(job)
            if gang is not None and gang.until <= desk.now:
                self._expire(desk, job, gang)
        self._serve(desk)
        if self._timers:
            desk.wake(self._timers[0][0])

    def cause(self, desk: Desk, job: int) -> str:
        """fair_share: its queue's quota is used up, whether or not it may borrow; else by what is free."""
        queue = self._queues[desk.queue_of[job]]
        if (
            desk.policy.quotas != "off"
            and queue.quota < desk.room.gpus
            and queue.used + desk.need[job].gpus > queue.quota
        ):
            return "fair_share"
        return desk.cause(job)

    # -- queues

    def _serve(self, desk: Desk) -> None:
        stuck: set[tuple[int, int]] = set()
        while True:
            found = self._next(desk, stuck)
            if found is None:
                return
            code, number, job = found
            if not self._attempt(desk, job):
                stuck.add((code, number))

    def _next(self, desk: Desk, stuck: set[tuple[int, int]]) -> tuple[int, int, int] | None:
        """Queue, need and first job of the line whose turn it is; lines in `stuck` are passed over."""
        best: tuple[float, int, int, int, int] | None = None
        for code, queue in enumerate(self._queues):
            if not queue.waiting:
                continue
            share = queue.share if self._fair else 0.0
            if best is not None and share > best[0]:
                continue
            for number, line in queue.lines.items():
                if line and (code, number) not in stuck:
                    entry = (share, self._turns[line[0]], code, number, line[0])
                    if best is None or entry < best:
                        best = entry
        return None if best is None else best[2:]

    def _allowed(self, desk: Desk, queue: _Queue, need: Need) -> bool:
        return desk.policy.quotas != "on" or queue.used + need.gpus <= queue.quota

    def _attempt(self, desk: Desk, job: int) -> bool:
        """Whether it left its line: it runs, or it is a gang that goes by its own clock from here on."""
        code, need = desk.queue_of[job], desk.need[job]
        queue = self._queues[code]
        if not self._allowed(desk, queue, need):
            return False
        parts = desk.find(job) or self._reclaim(desk, job, desk.level)
        if parts is None and desk.level != Level.ANY and need.gpus > 1:
            self._leave(desk, job)
            self._acquire(desk, job, self._gangs.setdefault(job, _Gang(desk.now)))
        elif parts is not None:
            self._leave(desk, job)
            self._start(desk, job, parts)
        return parts is not None or (desk.level != Level.ANY and need.gpus > 1)

    def _leave(self, desk: Desk, job: int) -> None:
        queue = self._queues[desk.queue_of[job]]
        queue.lines[desk.need[job].number].popleft()
        queue.waiting -= 1

    def _start(self, desk: Desk, job: int, parts: Parts) -> None:
        self._lent = None
        turn = self._turns.pop(job)
        self._gangs.pop(job, None)
        queue = self._queues[desk.queue_of[job]]
        if self._passes(desk, job, turn):
            desk.out_of_order += 1
        queue.used += desk.need[job].gpus
        desk.start(job, parts)

    def _passes(self, desk: Desk, job: int, turn: int) -> bool:
        """Whether one of its queue that came before it still waits."""
        code = desk.queue_of[job]
        lines = self._queues[code].lines.values()
        return any(line and self._turns[line[0]] < turn for line in lines) or any(
            desk.queue_of[other] == code and self._turns[other] < turn
            for other in self._gangs
            if other != job
        )

    # -- lent GPUs

    def _reclaim(self, desk: Desk, job: int, level: Level) -> Parts | None:
        """A place for a job whose queue stays within its quota, by stopping jobs of queues above theirs."""
        policy, room, need = desk.policy, desk.room, desk.need[job]
        queue = self._queues[desk.queue_of[job]]
        if policy.quotas != "lending" or queue.used + need.gpus > queue.quota:
            return None
        if room.gpus - room.free_gpus < policy.reclaim_at * room.gpus:
            return None
        lent = self._lent_by(desk)
        for other in victims(desk, need, level, lent):
            desk.stop(other)
            self._lent = None
            self.ended(desk, other)
            self.queue(desk, other)
        return desk.find(job, level)

    def _lent_by(self, desk: Desk) -> list[int]:
        """Jobs on lent GPUs, youngest first; worked out once until somebody starts or stops."""
        if self._lent is None:
            excess = {
                code: one.used - one.quota for code, one in enumerate(self._queues) if one.used > one.quota
            }
            self._lent = []
            for other in sorted(desk.where, key=lambda other: (-desk.began[other], other)) if excess else ():
                code = desk.queue_of[other]
                if excess.get(code, 0) > 0 and desk.need[other].gpus:
                    excess[code] -= desk.need[other].gpus
                    self._lent.append(other)
        return self._lent

    # -- gangs

    def _acquire(self, desk: Desk, job: int, gang: _Gang) -> None:
        """Hold what is free on the nodes in view; the rest may come until the time is over."""
        need = desk.need[job]
        gang.level = self._level(desk, job, gang)
        gang.trying = True
        gang.until = desk.now + desk.policy.acquire_s * self._random.uniform(0.8, 1.2)
        self._queues[desk.queue_of[job]].used += need.gpus
        view = desk.room.view(need, gang.level)
        if gang.level == Level.ANY:
            self._anywhere.add(job)
        else:
            gang.view = view
            for node in view:
                self._viewed.setdefault(node, []).append(job)
        heapq.heappush(self._timers, (gang.until, job))
        self._hold(desk, job, gang, view)

    def _level(self, desk: Desk, job: int, gang: _Gang) -> Level:
        """Compact; after the policy's retries any nodes of a rack; after as many more any nodes at all."""
        policy = desk.policy
        if policy.locality != "relaxed":
            return desk.level
        if policy.patience == "retries":
            return Level(min(gang.tries // policy.retries, 2)) if policy.retries else Level.ANY
        waited = desk.now - gang.since >= self._patience.seconds(desk, job)
        return Level.ANY if waited else desk.level

    def _hold(self, desk: Desk, job: int, gang: _Gang, nodes: Iterable[int]) -> None:
        need, room = desk.need[job], desk.room
        left = need.gpus - gang.held
        for node in nodes:
            if not left:
                break
            most = left
            if gang.level == Level.COMPACT and not need.uneven:
                most = need.each - sum(gpus for other, gpus in gang.pieces if other == node)
            more = min(room.most_on(node, need), most)
            if more > 0:
                room.take(((node, more),), need)
                gang.pieces.append((node, more))
                left -= more
        if not left:
            parts: dict[int, int] = {}
            for node, gpus in gang.pieces:
                parts[node] = parts.get(node, 0) + gpus
            self._let_go(desk, job, gang)
            self._start(desk, job, tuple(sorted(parts.items())))

    def _let_go(self, desk: Desk, job: int, gang: _Gang) -> Parts:
        """All that it holds is free again."""
        for node in gang.view:
            self._viewed[node].remove(job)
            if not self._viewed[node]:
                del self._viewed[node]
        self._anywhere.discard(job)
        pieces = tuple(gang.pieces)
        for piece in pieces:
            desk.room.give((piece,), desk.need[job])
        gang.view, gang.trying = (), False
        gang.pieces.clear()
        self._queues[desk.queue_of[job]].used -= desk.need[job].gpus
        return pieces

    def _offer(self, desk: Desk, places: Iterable[Parts]) -> None:
        """Gangs that have the nodes of these places in view take what they lack."""
        everywhere = sorted(self._anywhere, key=self._turns.__getitem__)
        for node in sorted({node for parts in places for node, _ in parts}):
            for job in (*self._viewed.get(node, ()), *everywhere):
                if not desk.room.most_on(node, desk.need[job]):
                    continue
                gang = self._gangs.get(job)
                if gang is not None and gang.trying:
                    self._hold(desk, job, gang, (node,))

    def _expire(self, desk: Desk, job: int, gang: _Gang) -> None:
        """The time of its try, or of its back-off, is over."""
        need = desk.need[job]
        if gang.trying:
            released = self._let_go(desk, job, gang)
            gang.tries += 1
            self._back_off(desk, job, gang)
            self._offer(desk, (released,))
            return
        queue = self._queues[desk.queue_of[job]]
        if not self._allowed(desk, queue, need):
            # Nothing to try for until its queue has fewer: back into the line, at its old place.
            line = (*queue.lines.get(need.number, ()), job)
            queue.lines[need.number] = deque(sorted(line, key=self._turns.__getitem__))
            queue.waiting += 1
            return
        level = self._level(desk, job, gang)
        parts = desk.find(job, level) or self._reclaim(desk, job, level)
        if parts is None:
            self._acquire(desk, job, gang)
        else:
            self._start(desk, job, parts)

    def _back_off(self, desk: Desk, job: int, gang: _Gang) -> None:
        gang.until = desk.now + desk.policy.backoff_s
        heapq.heappush(self._timers, (gang.until, job))
