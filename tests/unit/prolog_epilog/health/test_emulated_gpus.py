"""From the driver to the event: the checks of GPUs over the product's own sampler and NVIDIA's own bindings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from profiler.sampler import GpuSampler
from tests.nvml_helper import NODE, Emulation, emulation, nvml_forks, nvml_library
from tests.unit.prolog_epilog.health.test_runner import ENFORCE, NO_CHILDREN, Node, node, wait_until

__all__ = ["emulation", "node", "nvml_forks", "nvml_library"]


class Machine:
    """A node of three emulated GPUs, with the health thread and the sampler that feeds it."""

    def __init__(self, node: Node, emulation: Emulation, sampler: GpuSampler) -> None:
        self.node = node
        self.gpus = emulation.gpus
        self.emulation = emulation
        self.sampler = sampler

    def look(self, times: int = 1, *, anew: bool = False) -> None:
        """`anew`: what the reader asks for seldom is asked for each time."""
        assert self.node.runner is not None
        for _ in range(times):
            if anew:
                self.sampler.close()
            self.node.runner.feed(self.sampler.sample())
        wait_until(self.node.runner._items.empty)
        turns = self.node.turns
        wait_until(lambda: self.node.turns > turns)

    def told(self, name: str) -> list[str]:
        return [event.state for event in self.node.events if event.name == name]


@pytest.fixture
def machine(node, emulation, monkeypatch) -> Iterator[Machine]:
    for key, value in emulation.env.items():
        monkeypatch.setenv(key, value)
    with GpuSampler(deadline=5.0, retry_after=0.0) as sampler:
        each = "[health.checks.nvlink]\nevery = '0s'\n"
        node.start(ENFORCE + NO_CHILDREN + each, slurm_gpus=lambda: 3)
        machine = Machine(node, emulation, sampler)
        machine.look(3)
        assert node.events == []  # a machine that is well has nothing to tell
        yield machine


# check, fault, what makes it well again, state, detail
FAULTS: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    ("gpu_lost", {"status": "GPU_IS_LOST"}, {"status": None}, "error", "GPU 1 does not answer: NVML says"),
    ("gpu_count", {"status": "GPU_IS_LOST"}, {"status": None}, "error", "2 of 3 GPUs answer"),
    (
        "ecc_uncorrected",
        {"ecc_uncorrected_volatile": 2},
        {"ecc_uncorrected_volatile": 0},
        "error",
        "GPU 1: 2 unc",
    ),
    (
        "row_remap",
        {"remap_failed": 1},
        {"remap_failed": 0},
        "error",
        "GPU 1: a memory row could not be replaced",
    ),
    (
        "row_remap",
        {"remap_pending": 1},
        {"remap_pending": 0},
        "warning",
        "GPU 1: a memory row waits for a reset",
    ),
    ("nvlink", {"nvlink_3": 0}, {"nvlink_3": 1}, "error", "GPU 1: 1 of 12 NVLinks are down"),
    ("gpu_temperature", {"temperature_c": 91}, {"temperature_c": None}, "warning", "GPU 1: 91 °C"),
    ("gpu_temperature", {"temperature_c": 97}, {"temperature_c": None}, "error", "GPU 1: 97 °C"),
    (
        "hw_slowdown",
        {"throttle_reasons": 0x48},
        {"throttle_reasons": None},
        "warning",
        "GPU 1: slowed by its",
    ),
    (
        "clocks_stuck",
        {"utilization": 98, "clock_sm_mhz": 345, "throttle_reasons": 0},
        {"utilization": None, "clock_sm_mhz": None, "throttle_reasons": None},
        "warning",
        "busy at 345 of 1410 MHz, without a reason",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault", "well", "state", "detail"), FAULTS)
def test_a_fault_is_told_once_and_its_end_too(machine, name, fault, well, state, detail):
    seldom = name in ("row_remap", "nvlink")
    machine.gpus.set(NODE, 1, **fault)
    machine.look(4, anew=seldom)
    event = machine.node.until(name=name)
    assert (event.state, detail in event.detail) == (state, True), event
    if name != "gpu_count":
        assert event.gpu is not None
        assert (event.gpu.minor, event.gpu.uuid) == (1, machine.gpus.state(NODE, 1)["uuid"])
    machine.gpus.set(NODE, 1, **well)
    machine.look(4, anew=seldom)
    assert machine.told(name) == [state, "ok"]


@pytest.mark.parametrize("key", ["temperature_c", "remap_failed", "nvlinks", "throttle_reasons"])
def test_what_the_driver_does_not_support_is_told_by_nobody(machine, key):
    machine.gpus.set(NODE, 1, **{key: "NOT_SUPPORTED"})
    machine.look(5)
    assert machine.node.events == []


def test_an_xid_of_the_hardware_drains_and_one_of_a_program_does_not(machine):
    machine.gpus.xid(NODE, 0, 31)
    machine.look()
    assert machine.told("xid") == ["info"]
    assert not machine.node.drain.exists()
    machine.gpus.xid(NODE, 2, 79)
    machine.look()
    event = machine.node.until(name="xid", state="error")
    assert (event.action, event.gpu.minor) == ("drain", 2)
    wait_until(machine.node.drain.exists)
    assert "xid: GPU 2: Xid 79 (GPU has fallen off the bus)" in machine.node.drain.read_text()


def test_a_driver_that_is_gone_is_a_count_of_none(machine):
    machine.gpus.set_node(NODE, status="DRIVER_NOT_LOADED")
    for gpu in range(3):
        machine.gpus.set(NODE, gpu, status="DRIVER_NOT_LOADED")
    machine.look(4)
    assert "0 of 3 GPUs answer" in machine.node.until(name="gpu_count", state="error").detail


def test_a_broken_installation_drains_nobody(machine, monkeypatch, tmp_path):
    """The reader's process does not even start: its Python finds a broken module before NVIDIA's."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/pynvml.py").write_text("raise SystemError('corrupt')\n")
    monkeypatch.setattr("profiler.sampler._COMMAND", (sys.executable, "-m", "profiler.sampler_child"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    machine.sampler.close()
    machine.look(5)
    assert machine.told("gpu_count") == ["unknown"]
    assert not machine.node.drain.exists()


def test_a_call_that_hangs_is_a_warning_first_and_leaves_the_others_judged(node, emulation, monkeypatch):
    for key, value in emulation.env.items():
        monkeypatch.setenv(key, value)
    with GpuSampler(deadline=1.0, retry_after=600.0) as sampler:
        node.start(NO_CHILDREN, slurm_gpus=lambda: 3)
        machine = Machine(node, emulation, sampler)
        machine.look()
        emulation.gpus.set(NODE, 2, temperature_c=97)
        with emulation.gpus.hang(NODE, 1, "nvmlDeviceGetPowerUsage"):
            machine.look(3)
            event = node.until(name="gpu_lost")
            assert event.state == "warning" and "GPU 1 has not answered" in event.detail
            assert node.until(name="gpu_temperature").gpu.minor == 2


def test_partitioned_gpus_are_well(machine):
    machine.gpus.mig(NODE, 0, "3g.40gb", "1g.10gb")
    machine.look(4)
    assert machine.node.events == []


def test_a_stuck_collective_is_no_fault_of_the_node(machine):
    """Full use at hardly any power, at full clocks: a job's trouble, which its usage tells."""
    machine.emulation.load_file(1, os.getpid(), "utilization 100\nmemory_mib 100\npower_mw 10000\n")
    machine.look(4)
    assert machine.node.events == []
