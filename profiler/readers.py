"""The readers of this node: NVIDIA's, AMD's, or both."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from profiler.amd import KFD, AmdReader
from profiler.gpu import GpuIdentity, GpuReading, GpusUnavailableError
from profiler.nvml import NvmlReader

Watch = Callable[[str, str], None]


class NodeReader:
    """A `GpuReader` of all GPUs of the node, whoever made them.

    AMD's driver is asked only where it is loaded (`kfd` is there). Raises GpusUnavailableError if nothing can be read.
    """

    def __init__(self, watch: Watch, *, kfd: Path = KFD) -> None:
        self._readers: list[NvmlReader | AmdReader] = []
        self._of: dict[str, NvmlReader | AmdReader] = {}
        why: list[GpusUnavailableError] = []
        for make in (NvmlReader, AmdReader) if kfd.exists() else (NvmlReader,):
            try:
                self._readers.append(make(watch))
            except GpusUnavailableError as error:
                why.append(error)
        if not self._readers:
            raise why[-1]  # of the driver that is there, if one is

    @property
    def unreachable(self) -> int:
        """GPUs that cannot say who they are."""
        return sum(reader.unreachable for reader in self._readers)

    def gpus(self, leave_alone: Collection[str] = ()) -> tuple[GpuIdentity, ...]:
        """The GPUs there are now."""
        found: list[GpuIdentity] = []
        for reader in self._readers:
            gpus = reader.gpus(leave_alone)
            self._of.update((gpu.uuid, reader) for gpu in gpus)
            found += gpus
        return tuple(found)

    def read(self, gpu: GpuIdentity) -> GpuReading:
        """What a GPU does now."""
        return self._of[gpu.uuid].read(gpu)

    def close(self) -> None:
        """Let go of the drivers."""
        for reader in self._readers:
            reader.close()
