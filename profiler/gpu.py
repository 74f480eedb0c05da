"""What is known of a GPU: who it is, what it does at one moment, and who can tell.

None always means "not known": NVML said "not supported", or told a value that cannot be. It is never 0.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class MigInstance:
    """Which part of which GPU a MIG instance is."""

    parent_uuid: str
    gpu_instance: int | None
    compute_instance: int | None


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """A GPU or a MIG instance. The driver's index is left out on purpose: it changes with the next reboot.

    `minor` is the number of the device file (3: /dev/nvidia3), for a MIG instance that of its GPU. `partitioned` is a
    GPU with MIG switched on: its use shows in its instances.
    """

    uuid: str
    minor: int | None
    name: str
    pci: str | None = None
    partitioned: bool = False
    mig: MigInstance | None = None

    @property
    def physical_uuid(self) -> str:
        """The UUID of the whole GPU."""
        return self.mig.parent_uuid if self.mig else self.uuid


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU, by its id in the reader's pid namespace; its memory there in bytes."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU at one moment.

    `utilisation` is per cent of time with a kernel running, as NVML measures it; memory without what the driver keeps
    for itself. `throttle` names what slows the clocks ("gpu_idle" included). ECC errors are those since the driver was
    loaded. `xids` are the Xid events since the last reading. `fault` is NVML's error when the GPU does not answer any
    more ("GPU_IS_LOST"): then all else is None.
    """

    gpu: GpuIdentity
    utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    clock_sm_mhz: int | None = None
    clock_sm_max_mhz: int | None = None
    clock_memory_mhz: int | None = None
    throttle: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    xids: tuple[int, ...] | None = None
    fault: str | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    rows_remapped: int | None = None
    retirement_pending: bool | None = None
    nvlinks: tuple[bool, ...] | None = None
    energy_j: float | None = None
    recent: tuple[tuple[float, float], ...] | None = None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """All GPUs of a node at one moment: `at`, in seconds of the monotonic clock.

    `state` is "ok"; "hung" when a driver call did not return (`readings` are then those that came before it); or
    "unavailable" (no driver, no GPU). `detail` says it in a sentence. `hung` are the GPUs left out of this sample
    because a call on them did not return lately; `unreachable` counts those that could not even say who they are.
    `reader_failed`: "unavailable" because the process that reads them ended, which says nothing of the GPUs.
    """

    at: float
    readings: tuple[GpuReading, ...]
    state: Literal["ok", "hung", "unavailable"] = "ok"
    detail: str = ""
    hung: tuple[str, ...] = ()
    unreachable: int = 0
    reader_failed: bool = False


class GpuReader(Protocol):
    """Reads the GPUs of this node. Any call may block for ever in a driver: see `profiler.sampler`."""

    def gpus(self, leave_alone: Collection[str] = ()) -> tuple[GpuIdentity, ...]:
        """The GPUs there are now, each followed by its MIG instances; but not those with the given UUIDs."""

    def read(self, gpu: GpuIdentity) -> GpuReading:
        """What a GPU does now. Never raises for one GPU's trouble: the reading's `fault` tells it."""

    def close(self) -> None:
        """Let go of the driver."""


class GpusUnavailableError(Exception):
    """No GPU can be read on this node at all; the message says why, and what to do."""


def by_minor(gpus: Iterable[GpuIdentity]) -> dict[int, GpuIdentity]:
    """The whole GPUs by the number of their device file, which is how Slurm knows them (gres.conf ``File=``)."""
    return {gpu.minor: gpu for gpu in gpus if gpu.minor is not None and gpu.mig is None}


def minor_of(device_file: str) -> int:
    """The number of a GPU's device file: "/dev/nvidia3" -> 3, as Slurm takes it from gres.conf.

    By the name and not by stat(2), as in Slurm's own code, so that device files in another place will do.
    Raises ValueError for a path that does not end in a number.
    """
    match = re.search(r"\d+$", device_file)
    if match is None:
        raise ValueError(f"{device_file} is no GPU's device file: it does not end in a number")
    return int(match.group())
