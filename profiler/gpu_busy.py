"""How busy a run's own GPUs are, asked now and then without waiting for a driver.

A GPU is the run's when one of its processes is on it; where NVML names no processes (a container, MPS), when there are
as many GPUs to be seen as the run has. Else it is not known: another's GPU must not speak for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Final

from profiler.gpu import GpuReading, GpuSample
from profiler.process_tree import ProcessTree

__all__ = ["GpuBusy", "busy"]

_EVERY: Final = 1.0


def busy(readings: Sequence[GpuReading], pids: Collection[int], gpus: int) -> float | None:
    """The mean utilisation (per cent) of the GPUs on which these processes are; None: not known."""
    whole = [one for one in readings if one.gpu.mig is None and one.utilisation is not None]
    own = [one for one in whole if any(each.pid in pids for each in one.processes or ())]
    if not own and len(readings) == len(whole) == gpus:
        own = whole
    values = [one.utilisation for one in own if one.utilisation is not None]
    return sum(values) / len(values) if values else None


class GpuBusy:
    """Asks a sampler once a second, in a thread of its own; called, it says what was found last, and forgets it.

    `sample` may take its time, as `profiler.sampler.GpuSampler.sample`; `closing` ends it.
    """

    def __init__(
        self,
        tree: ProcessTree,
        gpus: int,
        sample: Callable[[], GpuSample],
        closing: Callable[[], None] = lambda: None,
        every: float = _EVERY,
    ) -> None:
        self._tree = tree
        self._gpus = gpus
        self._sample = sample
        self._closing = closing
        self._every = every
        self._found: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
        self._thread.start()

    @classmethod
    def of_node(cls, tree: ProcessTree, gpus: int) -> GpuBusy:
        """With the node's own drivers, read by a child process."""
        from profiler.sampler import GpuSampler

        sampler = GpuSampler()
        return cls(tree, gpus, sampler.sample, sampler.close)

    def __call__(self) -> float | None:
        """What was found since the last call, in per cent; None: nothing."""
        found, self._found = self._found, None
        return found

    def close(self) -> None:
        """Stop asking; a driver that hangs is not waited for."""
        self._stop.set()
        self._thread.join(2 * self._every)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                sample = self._sample()
                if sample.state == "unavailable":
                    return
                pids = {one.pid for one in self._tree.processes()}
                self._found = busy(sample.readings, pids, self._gpus)
                self._stop.wait(self._every)
        except Exception:  # what is nice to know must not end a run
            self._found = None
        finally:
            self._closing()
