"""Verdicts made: attempts that the store has marked, judged by their logs, Slurm's word and their nodes' evidence.

`judge` is pure, and so is what makes its questions of a case here. `Judging` does it again and again, beside the thread
that writes records: only the finished verdicts go there.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Final

from profiler.answers import NodeUse
from profiler.findings import Finding, Source
from profiler.records import GpuUse, NodeEvent
from profiler.store import Case, Judged
from profiler.store.errors import StoreError
from profiler.wording import gpu_label, span
from prolog_epilog.failures.judge import NodeKind, NodeWord, SlurmWord, judge
from prolog_epilog.failures.taxonomy import NONE
from prolog_epilog.health.xids import xid
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.keeper.storing import Storing
from slurm_plugins.service.within import is_set_within

__all__ = ["Judging", "judged", "node_words", "slurm_word"]

_log = logging.getLogger("gsubd.keeper")

_AT_ONCE: Final = 100
"""Attempts judged in one go: some ten milliseconds of the writing thread."""
_SECONDS: Final = 5.0
_REST: Final = 0.1
"""Seconds between two goes, where there is much to do: after an upgrade, all failures of a year."""
_SLOWED: Final = 60.0
"""Seconds of slowing by the hardware from which on it is worth telling."""

_XID: Final = re.compile(r"\bXid (\d+)")
_EVENTS: Final[Mapping[str, NodeKind]] = {
    "xid": "xid",
    "ecc_uncorrected": "ecc",
    "gpu_lost": "gpu_lost",
    "gpu_count": "gpu_lost",
    "hw_slowdown": "throttle",
    **dict.fromkeys(("row_remap", "retired_pages", "nvlink", "memory_errors", "clocks_stuck"), "health"),
    **dict.fromkeys(("read_only", "stale_mounts", "disk_space", "inodes", "slurmd_spool"), "health"),
}
"""What events of a node tell of, by their names (docs/health.md); of others nothing is concluded for a job."""


def slurm_word(case: Case) -> SlurmWord:
    """What Slurm says of how an attempt ended."""
    return SlurmWord(
        state=case.job.state or "",
        exit_code=case.job.exit_code,
        signal=case.job.signal,
        derived_exit_code=case.derived_exit_code,
        reason=case.job.reason,
        nodes=tuple(use.node for use in case.nodes),
        silent=case.silent,
    )


def node_words(case: Case) -> tuple[NodeWord, ...]:
    """What its nodes saw, all of it root's evidence: what happened to the job, then what happened beside it."""
    events = tuple(_of_events(case.events))
    # An Xid is told twice, when it comes and with the job's usage: the event knows the time
    timed = {(word.node, code) for word in events for code in _XID.findall(word.text)}
    return (*(word for use in case.nodes for word in _of_use(use, timed)), *events)


def _of_use(use: NodeUse, timed: Set[tuple[str, str]]) -> Iterator[NodeWord]:
    if use.host is not None and use.host.oom_kills:
        count = use.host.oom_kills
        processes = "a process" if count == 1 else f"{count} processes"
        yield NodeWord(use.node, "oom", f"the kernel killed {processes} of the job for memory", use.until)
    for gpu in use.gpus:
        yield from _of_gpu(use, gpu, timed)


def _of_gpu(use: NodeUse, gpu: GpuUse, timed: Set[tuple[str, str]]) -> Iterator[NodeWord]:
    name = f"GPU {gpu_label(gpu.gpu)}"
    for code in dict.fromkeys(gpu.xids):
        if (use.node, str(code)) not in timed:
            yield NodeWord(use.node, "xid", f"{name}: Xid {code} ({xid(code).meaning})", None)
    if gpu.ecc_uncorrected:
        yield NodeWord(use.node, "ecc", f"{name}: {gpu.ecc_uncorrected} uncorrected ECC errors", None)
    if gpu.stuck_seconds:
        text = f"{name}: stuck for {span(gpu.stuck_seconds)} at full utilisation and low power"
        yield NodeWord(use.node, "stuck", text, None)
    slowed = sum(seconds for cause, seconds in (gpu.throttled or {}).items() if cause.startswith("hw_"))
    if slowed >= _SLOWED:
        yield NodeWord(use.node, "throttle", f"{name}: slowed by heat or power for {span(slowed)}", None)


def _of_events(events: tuple[NodeEvent, ...]) -> Iterator[NodeWord]:
    for one in events:
        kind = _EVENTS.get(one.name)
        if kind is None or (one.state in ("info", "unknown") and kind != "xid"):
            continue
        if kind == "gpu_lost" and one.state == "warning":
            kind = "health"  # it hangs, which many come back from
        text = one.detail if one.name == "xid" and one.detail else f"{one.name}: {one.detail or one.state}"
        yield NodeWord(one.node, kind, text, one.at)


def judged(case: Case) -> Judged:
    """The verdict on a case; without a finding where it ended well and there is nothing to tell."""
    found = judge(case.finding, slurm_word(case), node_words(case))
    if found.reason == NONE and not found.remarks:
        return Judged(case)
    return Judged(case, found, _source(found))


def _source(found: Finding) -> Source:
    """Who could have written what decided: the first piece of evidence; without one nobody vouches for it."""
    return found.evidence[0].source if found.evidence else "user"


class Judging:
    """Judges again and again; `run` ends only by being cancelled."""

    def __init__(
        self,
        cluster: str,
        storing: Storing,
        counts: Counts,
        *,
        decide: Callable[[Case], Judged] = judged,
        told: Callable[[], object] = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`told` hears that verdicts are in the store."""
        self._cluster = cluster
        self._storing = storing
        self._counts = counts
        self._decide = decide
        self._told = told
        self._now = now
        self._news = asyncio.Event()

    def soon(self) -> None:
        """Slurm has told of jobs: do not wait the whole time."""
        self._news.set()

    async def run(self) -> None:
        """Judge what is due, wait, again."""
        while True:
            self._news.clear()
            more = False
            try:
                more = await self.once() >= _AT_ONCE
            except (StoreError, RefusedError):
                pass  # said by `Storing`; what is due stays due
            except Exception:
                # our bug: it must not end the judging for good
                _log.exception("a fault while verdicts are made")
            if more:
                await asyncio.sleep(_REST)
                continue
            await is_set_within(self._news, _SECONDS)

    async def once(self) -> int:
        """One go; how many attempts were due. Raises StoreError, RefusedError."""
        now = self._now()
        made = await self._storing.read(lambda: self._made(now))
        if made:
            store = self._storing.store
            for one in await self._storing.write("verdicts", lambda: store.put_verdicts(made, now)):
                if one.finding is not None:
                    self._counts.verdicts.add(one.finding.reason)
            self._told()
        return len(made)

    def _made(self, now: float) -> list[Judged]:
        return [self._decided(case) for case in self._storing.store.unjudged(self._cluster, _AT_ONCE, now)]

    def _decided(self, case: Case) -> Judged:
        try:
            return self._decide(case)
        except Exception:
            # our bug: one attempt that cannot be judged must not keep the others from it, now and for ever
            _log.exception("a fault while judging job %d", case.job.job_id)
            return Judged(case)
