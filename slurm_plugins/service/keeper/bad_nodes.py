"""Weighing what speaks against nodes, every few minutes, and telling gsubd which of them jobs should avoid.

What a day said is kept: each go looks again at the last two days, and at one of the others, for what came late. The
store is asked a day at a time, beside the writing, so that nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from profiler.answers import BadNode, BadNodes, Clearance, NodeEvidence
from profiler.bad_nodes import RULES, Charge, Evidence, assess, avoided, day_of
from profiler.logs import Troubles, one_line
from profiler.store.errors import StoreError
from profiler.store.node_votes import NodeDay, node_day
from prolog_epilog.failures.judge import HARDWARE_XIDS
from slurm_plugins.decide.knowledge import AvoidRecord
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.keeper.storing import Storing
from slurm_plugins.service.learnt import read_partitions, why_avoided, write_avoided

__all__ = ["EVERY", "Assessing", "avoid_records"]

_log = logging.getLogger("gsubd.keeper")

EVERY: Final = 300.0
"""Seconds from one go to the next."""
_AGAIN: Final = 5.0
"""Seconds to the first try after the store failed; doubled up to `EVERY`."""
_FRESH: Final = 2
"""Days that are looked at each time: today, and yesterday, of which Slurm's word may come yet."""


class Assessing:
    """Weighs the evidence again and again; `run` ends only by being cancelled.

    `current` is what came of it last; None before the first time.
    """

    def __init__(
        self,
        cluster: str,
        storing: Storing,
        counts: Counts,
        state: Path,
        *,
        every: float = EVERY,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._storing = storing
        self._state = state
        self._every = every
        self._now = now
        self._days: dict[int, NodeDay] = {}
        self._place = 0
        self._turn = asyncio.Lock()
        self._troubles = Troubles(_log)
        self._told: dict[tuple[str, str], str] = {}
        self.current: BadNodes | None = None
        registry = counts.registry
        registry.gauge(
            "gsub_nodes_avoided", "Nodes that jobs keep off.", lambda: self._count(lambda one: one.avoided)
        )
        registry.gauge(
            "gsub_nodes_suspected",
            "Nodes that some evidence speaks against.",
            lambda: self._count(lambda _: True),
        )

    async def run(self) -> None:
        """Weigh, wait, again."""
        wait = min(_AGAIN, self._every)
        while True:
            try:
                await self.once()
                wait = self._every
            except (StoreError, RefusedError):
                wait = min(2 * wait, self._every)  # said by `Storing`
            except Exception:
                # our bug: it must not end the weighing for good
                _log.exception("a fault while evidence against nodes is weighed")
                wait = self._every
            await asyncio.sleep(wait)

    async def once(self) -> BadNodes:
        """One go. Raises StoreError, RefusedError."""
        async with self._turn:
            await self._look(self._now())
            return await self._weigh()

    async def clear(self, node: str, by: str, why: str) -> Clearance:
        """Let nothing that is known so far count against a node. Raises StoreError, RefusedError."""
        store, one = self._storing.store, Clearance(node, self._now(), by, why)
        await self._storing.write(
            "clear", lambda: store.clear_node(self._cluster, node, one.at, one.by, one.why)
        )
        _log.info("node %s is cleared by %s: %s", one_line(node), one_line(by), one_line(why))
        with suppress(StoreError, RefusedError):  # it is cleared; what follows from it comes with the next go
            await self.once()
        return one

    async def knows(self, node: str) -> bool:
        """Whether it is a node of a partition, or one that something ran on or spoke against."""
        told = await asyncio.to_thread(read_partitions, self._state) or {}
        return any(node in nodes for nodes in told.values()) or any(
            node in day.ran or any(vote.node == node for vote in day.votes) for day in self._days.values()
        )

    async def _look(self, now: float) -> None:
        """Read what the days say that are to be looked at."""
        today = day_of(now)
        window = range(today - RULES.window + 1, today + 1)
        self._days = {day: known for day, known in self._days.items() if day in window}
        wanted = [day for day in window if day not in self._days or day > today - _FRESH]
        old = [day for day in window if day not in wanted]
        if old:
            self._place = (self._place + 1) % len(old)
            wanted.append(old[self._place])
        store = self._storing.store
        for day in wanted:
            self._days[day] = await self._storing.read(
                partial(node_day, store, self._cluster, day, HARDWARE_XIDS)
            )

    async def _weigh(self) -> BadNodes:
        store = self._storing.store
        cleared = await self._storing.read(lambda: store.clearances(self._cluster))
        now, days = self._now(), dict(self._days)
        charges = await asyncio.to_thread(self._charges, days, cleared, now)
        self.current = BadNodes(tuple(_told(one) for one in charges), now, cleared)
        await self._hand_on(charges)
        return self.current

    def _charges(
        self, days: Mapping[int, NodeDay], cleared: Sequence[Clearance], now: float
    ) -> tuple[Charge, ...]:
        told: Mapping[str, Sequence[str]] | None = read_partitions(self._state)
        return assess(
            [vote for day in days.values() for vote in day.votes],
            {(number, node): count for number, day in days.items() for node, count in day.ran.items()},
            told if told is not None else _by_jobs(days.values()),
            now=now,
            cleared={one.node: one.at for one in cleared},
        )

    async def _hand_on(self, charges: Sequence[Charge]) -> None:
        """Tell gsubd, and the log what is new."""
        records = avoid_records(self._cluster, charges)
        try:
            await asyncio.to_thread(write_avoided, self._state, records)
            self._troubles.say("nodes to avoid cannot be written down", "")
        except OSError as error:
            self._troubles.say("nodes to avoid cannot be written down", str(error))
        now = {(one.partition, one.node): one.reason for one in records}
        for (partition, node), why in now.items():
            if (partition, node) not in self._told:
                _log.warning(
                    "jobs of partition %s keep off node %s: %s", one_line(partition), one_line(node), why
                )
        for partition, node in self._told.keys() - now.keys():
            _log.info("jobs of partition %s keep off node %s no longer", one_line(partition), one_line(node))
        self._told = now

    def _count(self, which: Callable[[BadNode], bool]) -> float | None:
        known = self.current
        return None if known is None else float(len({one.node for one in known.nodes if which(one)}))


def avoid_records(cluster: str, charges: Iterable[Charge]) -> tuple[AvoidRecord, ...]:
    """What gsubd is told: node and reason, and nothing of whose jobs have failed there, since any user may read it."""
    return tuple(
        AvoidRecord(cluster, one.partition, one.node, why_avoided(one.reason))
        for one in avoided(charges)
        if len(one.node) <= 63
    )


def _by_jobs(days: Iterable[NodeDay]) -> dict[str, list[str]]:
    """The nodes that jobs of each partition had: what is known where gsubd has not told of partitions yet."""
    found: dict[str, set[str]] = {}
    for day in days:
        for name, nodes in day.partitions.items():
            found.setdefault(name, set()).update(nodes)
    return {name: sorted(nodes) for name, nodes in found.items()}


def _told(one: Charge) -> BadNode:
    return BadNode(
        one.node, one.partition, one.reason, one.avoided, one.by, _evidence(one.root), _evidence(one.user)
    )


def _evidence(one: Evidence) -> NodeEvidence | None:
    if not one.votes:
        return None
    return NodeEvidence(
        one.votes,
        one.users,
        round(one.weight, 3),
        round(one.trials, 3),
        round(one.probability, 4),
        one.since,
        one.last,
    )
