"""Whose GPUs are busy: only the run's own count."""

from __future__ import annotations

import os
import threading

import pytest

from profiler.gpu import GpuIdentity, GpuProcess, GpuReading, GpuSample
from profiler.gpu_busy import GpuBusy, busy
from profiler.process_tree import ProcessTree


def gpu(number: int, utilisation: float | None, *pids: int) -> GpuReading:
    identity = GpuIdentity(uuid=f"GPU-{number}", minor=number, name="A100", pci=f"0:{number}")
    processes = tuple(GpuProcess(pid, 1) for pid in pids)
    return GpuReading(identity, utilisation=utilisation, processes=processes)


@pytest.mark.parametrize(
    ("readings", "pids", "gpus", "found"),
    [
        ([gpu(0, 90.0, 7), gpu(1, 10.0, 8)], {7}, 1, 90.0),
        ([gpu(0, 90.0, 7), gpu(1, 10.0, 7)], {7}, 2, 50.0),
        ([gpu(0, 90.0, 8), gpu(1, 10.0)], {7}, 1, None),  # another's
        ([gpu(0, 90.0)], {7}, 1, 90.0),  # the only one that is seen
        ([gpu(0, None, 7)], {7}, 1, None),
        ([], {7}, 1, None),
    ],
)
def test_only_the_runs_own_gpus_count(readings, pids, gpus, found):
    assert busy(readings, pids, gpus) == found


def test_it_is_asked_beside_the_run_and_ended():
    asked, closed = threading.Event(), threading.Event()

    def sample() -> GpuSample:
        asked.set()
        return GpuSample(0.0, (gpu(0, 60.0),))

    watch = GpuBusy(ProcessTree(os.getpid()), 1, sample, closed.set, every=0.01)
    assert asked.wait(60)
    found = None
    while found is None:
        found = watch()
    assert found == 60.0
    watch.close()
    assert closed.wait(60)


def test_a_node_without_gpus_is_asked_once():
    closed = threading.Event()
    watch = GpuBusy(ProcessTree(os.getpid()), 1, lambda: GpuSample(0.0, (), "unavailable"), closed.set)
    assert closed.wait(60)
    assert watch() is None
    watch.close()
