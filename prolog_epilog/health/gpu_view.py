"""What is known of a node's GPUs over several samples: what a check of one sample alone could not say.

How long a driver call hangs, which Xids still count, how many GPUs and NVLinks there once were. A fold over samples:
feed it, and hand each `GpuView` to the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from profiler.gpu import GpuIdentity, GpuSample
from prolog_epilog.health.xids import xid

__all__ = ["DRIVER", "GpuHistory", "GpuView", "HeldXid", "Kept"]

DRIVER = ""
"""Stands in for a UUID where the driver as a whole hangs."""

_WARNING_HOLDS = 3600.0
_MOST_XIDS = 1024


class HeldXid(msgspec.Struct, frozen=True, omit_defaults=True):
    """An Xid of a GPU that counts: how often it came, and when last (monotonic seconds)."""

    gpu: str
    code: int
    count: int
    last: float


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of it outlives the agent, until the node boots."""

    xids: tuple[HeldXid, ...] = ()
    most_gpus: int = 0
    most_links: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class GpuView:
    """A sample, and what came before.

    `expected` is how many GPUs there should be; None: not known. `hung_for` has the seconds for which a GPU (or the
    DRIVER) has not answered. `xids` are those that count now, by UUID; `told` those of this sample that only inform.
    """

    sample: GpuSample
    expected: int | None = None
    hung_for: Mapping[str, float] = field(default_factory=dict)
    xids: Mapping[str, tuple[HeldXid, ...]] = field(default_factory=dict)
    told: tuple[tuple[str, int], ...] = ()
    most_links: Mapping[str, int] = field(default_factory=dict)
    gpus: Mapping[str, GpuIdentity] = field(default_factory=dict)

    def name(self, uuid: str) -> str:
        """What people call a GPU: "GPU 3" by its device file, else its UUID."""
        gpu = self.gpus.get(uuid)
        return uuid if gpu is None or gpu.minor is None else f"GPU {gpu.minor}"


class GpuHistory:
    """Samples in the order of time, and what follows from them.

    `declared` says how many GPUs Slurm or the site file count here; without it the most that were ever seen since
    the node's boot are expected.
    """

    def __init__(self, declared: Callable[[], int | None] = lambda: None, kept: Kept | None = None) -> None:
        kept = kept or Kept()
        self._declared = declared
        self._hung_since: dict[str, float] = {}
        self._gpus: dict[str, GpuIdentity] = {}
        self._xids = {(held.gpu, held.code): held for held in kept.xids}
        self._most_gpus = kept.most_gpus
        self._most_links = dict(kept.most_links)

    def add(self, sample: GpuSample) -> GpuView:
        """Take a sample in."""
        whole = [reading for reading in sample.readings if reading.gpu.mig is None]
        self._gpus.update({reading.gpu.uuid: reading.gpu for reading in whole})
        self._most_gpus = max(self._most_gpus, sum(reading.fault is None for reading in whole))
        told: list[tuple[str, int]] = []
        for reading in whole:
            if reading.nvlinks is not None:
                before = self._most_links.get(reading.gpu.uuid, 0)
                self._most_links[reading.gpu.uuid] = max(before, sum(reading.nvlinks))
            for code in reading.xids or ():
                if xid(code).state == "info":
                    told.append((reading.gpu.uuid, code))
                else:
                    self._hold(reading.gpu.uuid, code, sample.at)
        self._forget(sample.at)
        by_gpu: dict[str, tuple[HeldXid, ...]] = {}
        for held in self._xids.values():
            by_gpu[held.gpu] = (*by_gpu.get(held.gpu, ()), held)
        declared = self._declared()
        return GpuView(
            sample=sample,
            expected=(self._most_gpus or None) if declared is None else declared,
            hung_for=self._hung(sample),
            xids=by_gpu,
            told=tuple(dict.fromkeys(told)),
            most_links=dict(self._most_links),
            gpus=dict(self._gpus),
        )

    def kept(self) -> Kept:
        """What a later agent needs to go on."""
        return Kept(tuple(self._xids.values()), self._most_gpus, dict(self._most_links))

    def _hold(self, gpu: str, code: int, at: float) -> None:
        before = self._xids.get((gpu, code))
        if before is None and len(self._xids) >= _MOST_XIDS:
            return
        self._xids[gpu, code] = HeldXid(gpu, code, before.count + 1 if before else 1, at)

    def _forget(self, now: float) -> None:
        """Warnings pass; an error counts until the node boots, when this history begins anew."""
        self._xids = {
            key: held
            for key, held in self._xids.items()
            if xid(held.code).state == "error" or now - held.last < _WARNING_HOLDS
        }

    def _hung(self, sample: GpuSample) -> dict[str, float]:
        """The sampler leaves a hung GPU alone for a while: all that time counts, but not as further evidence."""
        hanging = set(sample.hung)
        if sample.state == "hung" and not hanging:
            hanging = {DRIVER}
        elif sample.state == "unavailable":  # says nothing of the driver's calls
            hanging = set(self._hung_since)
        self._hung_since = {gpu: self._hung_since.get(gpu, sample.at) for gpu in hanging}
        return {gpu: sample.at - since for gpu, since in self._hung_since.items()}
