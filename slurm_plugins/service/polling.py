"""Keeping up with Slurm: a look every 30 s, the snapshot swapped whole, decisions joined to their jobs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import msgspec

from profiler.counting import count
from profiler.logs import Troubles
from site_configs.site_model import Site
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.inventory import Inventory
from slurm_plugins.service.counts import Counts
from slurm_plugins.service.desk import Desk
from slurm_plugins.service.lookout import Lookout
from slurm_plugins.service.patience import QueuePatience
from slurm_plugins.service.pending import PendingJoins
from slurm_plugins.service.site_watch import Taken
from slurm_plugins.service.unread import note_unread
from slurm_plugins.service.wire import Question, Report
from slurm_plugins.service.within import is_set_within

__all__ = ["EVERY", "Polling"]

EVERY = 30.0
"""Seconds from one look at Slurm to the next."""
_SOON = 2.0
"""Seconds to the next look while there is no inventory yet; doubled each time."""
_APART = 1.0
"""Seconds that a look asked for at once waits: several reasons for it make one."""
_STALE = 4
"""Times the interval between looks after which no job is refused by what was seen."""
_RENEW = 20
"""Looks after which a partition is taken anew although it has not changed."""

_LIMITS = 120.0
"""Seconds from one reading of the limits of accounting to the next: administrators change them, jobs do not."""

_log = logging.getLogger("gsubd")


class Polling:
    """Looks at Slurm again and again; `run` ends only by being cancelled.

    `site` gives the site file in force, `slurm_uid` is told SlurmUser's uid, `every` is seconds between looks.
    """

    def __init__(
        self,
        lookout: Lookout,
        desk: Desk,
        joins: PendingJoins,
        counts: Counts,
        *,
        site: Callable[[], Taken],
        site_path: str,
        slurm_uid: Callable[[int | None], None],
        every: float = EVERY,
    ) -> None:
        self._lookout = lookout
        self._desk = desk
        self._joins = joins
        self._counts = counts
        self._site = site
        self._site_path = site_path
        self._slurm_uid = slurm_uid
        self._every = every
        self._now = asyncio.Event()
        self._troubles = Troubles(_log)
        self._renewals = 0
        self._built_for: Site | None = None
        self._limits_due = float("-inf")
        self.answered: float | None = None
        """When the look began that the inventory is from, on the monotonic clock."""
        self.patience = QueuePatience()
        self._gpus: dict[str, int] = {}
        self._whole = False
        self.trouble = ""
        """Why the network was taken as flat at the last look, though the site names a topology."""

    def look_now(self) -> None:
        """Have the next look follow at once."""
        self._now.set()

    @property
    def age(self) -> float | None:
        """Seconds since the inventory was seen; None when none was."""
        return None if self.answered is None else time.monotonic() - self.answered

    @property
    def gpus(self) -> Mapping[str, int] | None:
        """How many GPUs are in each state; None where that was not seen lately."""
        return self._gpus if self._young else None

    @property
    def fresh(self) -> bool:
        """Whether the inventory is new and whole enough to say that something is not there."""
        return self._young and self._whole

    @property
    def _young(self) -> bool:
        return self.age is not None and self.age <= _STALE * self._every

    async def run(self) -> None:
        """Look, take what was seen, wait, again; ends only by being cancelled."""
        try:
            await self._look_again_and_again()
        finally:
            await self._lookout.close()

    async def _look_again_and_again(self) -> None:
        soon = min(_SOON, self._every)
        while True:
            self._now.clear()
            began = time.monotonic()
            try:
                await self._once(began)
            except Exception:
                # our bug: it must not end the looking for good
                self._counts.polls.add("failed")
                _log.exception("a fault while taking what was seen of Slurm")
            wait = self._every
            if self.answered is None:
                wait, soon = soon, min(2 * soon, self._every)
            if await is_set_within(self._now, max(0.0, began + wait - time.monotonic())):
                await asyncio.sleep(min(_APART, self._every))

    async def _once(self, began: float) -> None:
        taken = self._site()
        since, uids = await self._joins.wanted()
        report = await self._lookout.look(
            Question(
                site=taken.text,
                site_path=self._site_path,
                jobs_since=since,
                uids=uids,
                limits=began >= self._limits_due,
                queue_seconds=self.patience.limit,
            )
        )
        if report.queue_took is not None:
            self.patience.note_answer(report.queue_took, whole=uids is None)
        elif report.queue_late:
            self.patience.note_late()
        report = await self._with_known_pools(report, taken.site)
        self._take(report, began)
        await self._joins.take(report, self._desk.context.inventory.default)

    async def _with_known_pools(self, report: Report, site: Site) -> Report:
        """The report with partitions that have not changed as they were: what stages have worked out for them stays.

        Not for ever: what they remember is bounded, and users choose some of it.
        """
        known, seen = self._desk.context.inventory, report.inventory
        self._renewals += 1
        if seen is None:
            return report
        if self._renewals >= _RENEW or site is not self._built_for:
            self._renewals, self._built_for = 0, site
            return report
        return msgspec.structs.replace(report, inventory=await asyncio.to_thread(_kept, known, seen))

    def _take(self, report: Report, began: float) -> None:
        self._troubles.say("looking at Slurm failed, what was known stays", report.error)
        self._troubles.say("the network is taken as flat", report.trouble)
        self._troubles.say(
            "the limits of accounting cannot be read, what was known stays", report.limits_error
        )
        self._troubles.say(
            "looking at jobs failed", report.jobs_error if report.jobs_error != report.error else ""
        )
        note_unread(self._troubles, self._counts.unread, report.unread, report.unread_example)
        if report.inventory is None:
            self._counts.polls.add("failed")
            return
        self._whole = not report.unread.keys() & {"node", "partition"}
        self._counts.polls.add("ok")
        self._slurm_uid(report.slurm_uid)
        self.trouble = report.trouble
        # A site file taken meanwhile stays: its policy counts at once, what it declares of nodes from the next look on
        associations = report.associations or self._desk.context.associations
        if report.associations is not None:
            self._limits_due = began + _LIMITS
        self._desk.context = replace(
            self._desk.context, inventory=report.inventory, slurm=report.facts, associations=associations
        )
        if self.answered is None:
            _log.info("decisions begin: %s", _summary(self._desk.context))
        self.answered, self._gpus = began, report.gpus


def _kept(known: Inventory, seen: Inventory) -> Inventory:
    """What was seen, made of the partitions that are known wherever they are equal."""
    pools = {
        name: known.pools[name] if known.pools.get(name) == pool else pool
        for name, pool in seen.pools.items()
    }
    return replace(seen, pools=MappingProxyType(pools))


def _summary(context: Context) -> str:
    pools = context.inventory.pools.values()
    nodes = {name for pool in pools for kind in pool.kinds for name in kind.nodes}
    release = "{:02d}.{:02d}".format(*context.slurm.release)
    return f"{count(len(nodes), 'node')} in {count(len(pools), 'partition')}, Slurm {release}"
