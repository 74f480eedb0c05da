"""Each check of GPUs with good and bad samples, and with those that do not tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from profiler.gpu import GpuIdentity, GpuReading, GpuSample, MigInstance
from prolog_epilog.health.finding import Finding, Limits
from prolog_epilog.health.gpu_view import GpuHistory
from prolog_epilog.health.table import CHECKS
from prolog_epilog.health.xids import XIDS, xid


def gpu(number: int, name: str = "A100") -> GpuIdentity:
    return GpuIdentity(f"GPU-{number}", number, name)


WELL: dict[str, Any] = {
    "utilisation": 0.0,
    "temperature_c": 40,
    "clock_sm_mhz": 210,
    "clock_sm_max_mhz": 1410,
    "throttle": ("gpu_idle",),
    "ecc_uncorrected": 0,
    "xids": (),
    "remap_pending": False,
    "remap_failed": False,
    "retirement_pending": False,
    "nvlinks": (True,) * 12,
}


def reading(number: int, **values: Any) -> GpuReading:
    return GpuReading(gpu(number), **{**WELL, **values})


def sample(*readings: GpuReading, at: float = 100.0, **values: Any) -> GpuSample:
    return GpuSample(at, readings, **values)


def judge(name: str, *samples: GpuSample, declared: int | None = None) -> dict[str, Finding]:
    """What a check of the table says after these samples, by subject."""
    row = CHECKS[name]
    assert row.gpu is not None
    history = GpuHistory(lambda: declared)
    for one in samples:
        view = history.add(one)
    limits = Limits(row.warn, row.fail, row.below)
    return {finding.subject: finding for finding in row.gpu(view, limits)}


GPU_CHECKS = [name for name, row in CHECKS.items() if row.gpu is not None]


@pytest.mark.parametrize("name", GPU_CHECKS)
def test_a_node_that_is_well(name):
    found = judge(name, sample(*(reading(number) for number in range(8))), declared=8)
    assert found
    assert {finding.state for finding in found.values()} == {"ok"}
    assert all(finding.detail for finding in found.values())


@pytest.mark.parametrize("name", [name for name in GPU_CHECKS if name not in ("gpu_count", "gpu_lost")])
def test_what_nvml_does_not_tell_is_neither_well_nor_ill(name):
    assert judge(name, sample(GpuReading(gpu(0)), GpuReading(gpu(1)))) == {}


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("gpu_lost", {"fault": "GPU_IS_LOST"}, "error", "GPU 1 does not answer: NVML says GPU_IS_LOST"),
    ("ecc_uncorrected", {"ecc_uncorrected": 1}, "error", "1 uncorrected memory errors"),
    ("row_remap", {"remap_failed": True}, "error", "could not be replaced"),
    ("row_remap", {"remap_pending": True}, "warning", "waits for a reset"),
    ("row_remap", {"remap_pending": True, "remap_failed": None}, "warning", "waits for a reset"),
    ("retired_pages", {"retirement_pending": True}, "warning", "waits for a reset"),
    ("nvlink", {"nvlinks": (True,) * 11 + (False,)}, "error", "1 of 12 NVLinks are down"),
    ("clocks_stuck", {"utilisation": 99.0, "throttle": ()}, "warning", "busy at 210 of 1410 MHz"),
    ("hw_slowdown", {"throttle": ("hw_slowdown", "hw_thermal")}, "warning", "(hardware slowdown, too hot)"),
    ("hw_slowdown", {"throttle": ("hw_power_brake",)}, "warning", "power brake"),
    ("gpu_temperature", {"temperature_c": 88}, "warning", "GPU 1: 88 °C"),
    ("gpu_temperature", {"temperature_c": 95}, "error", "95 °C"),
    ("xid", {"xids": (94,)}, "warning", "Xid 94 (contained memory error"),
    ("xid", {"xids": (79,)}, "error", "GPU 1: Xid 79 (GPU has fallen off the bus)"),
    ("xid", {"xids": (94, 94, 48)}, "error", "Xid 48 (double-bit ECC error); Xid 94"),
    ("xid", {"xids": (9999,)}, "warning", "Xid 9999 (not in gsub's table)"),
]


@pytest.mark.parametrize(("name", "values", "state", "detail"), BAD)
def test_one_bad_gpu_is_named_and_the_others_are_well(name, values, state, detail):
    found = judge(name, sample(reading(0), reading(1, **values), reading(2)))
    assert found["GPU-1"].state == state
    assert detail in found["GPU-1"].detail
    assert found["GPU-1"].gpu == "GPU-1"
    assert {found["GPU-0"].state, found["GPU-2"].state} == {"ok"}


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("clocks_stuck", {"utilisation": 99.0, "throttle": ("sw_power_cap",)}),  # a reason explains it
    ("clocks_stuck", {"utilisation": 99.0, "throttle": (), "clock_sm_mhz": 1200}),
    ("clocks_stuck", {"utilisation": 3.0, "throttle": ()}),  # hardly at work
    ("hw_slowdown", {"throttle": ("sw_power_cap", "sync_boost")}),
    ("gpu_temperature", {"temperature_c": 87}),
    ("xid", {"xids": (13, 31, 43, 45)}),  # a user's program can do that
    ("nvlink", {"nvlinks": (True,) * 12}),
]


@pytest.mark.parametrize(("name", "values"), GOOD)
def test_what_is_no_fault(name, values):
    assert judge(name, sample(reading(1, **values)))["GPU-1"].state == "ok"


@pytest.mark.parametrize(
    ("samples", "declared", "state", "detail"),
    [
        ([sample(*map(reading, range(7)))], 8, "error", "7 of 8 GPUs answer"),
        ([sample(*map(reading, range(7)), reading(7, fault="GPU_IS_LOST"))], 8, "error", "7 of 8"),
        ([sample(*map(reading, range(8))), sample(*map(reading, range(7)))], None, "error", "7 of 8"),
        ([sample(state="unavailable")], 8, "error", "0 of 8 GPUs answer"),
        ([sample(*map(reading, range(8)), hung=())], 7, "ok", "8 of 7 GPUs answer"),
    ],
)
def test_gpus_are_counted_against_what_should_be_there(samples, declared, state, detail):
    found = judge("gpu_count", *samples, declared=declared)[""]
    assert (found.state, detail in found.detail) == (state, True)


@pytest.mark.parametrize(
    ("samples", "declared"),
    [
        ([sample(state="unavailable")], None),  # a node without GPUs
        ([sample(state="unavailable")], 0),
        ([sample(reading(0), state="hung")], 8),  # the others were not asked
    ],
)
def test_a_count_that_is_not_known_is_not_told(samples, declared):
    assert judge("gpu_count", *samples, declared=declared) == {}


def test_a_reader_that_failed_says_nothing_of_the_gpus():
    """A corrupt installation must not drain a node."""
    failed = sample(state="unavailable", detail="Reading the GPUs failed in start", reader_failed=True)
    assert judge("gpu_count", failed, declared=8)[""].state == "unknown"
    assert [finding for finding in judge("gpu_lost", failed).values() if finding.state != "ok"] == []


def test_instances_are_not_counted():
    instance = GpuReading(replace(gpu(0), uuid="MIG-1", mig=MigInstance("GPU-0", 1, 0)))
    assert judge("gpu_count", sample(reading(0), instance), declared=1)[""].detail == "1 of 1 GPUs answer"


@pytest.mark.parametrize(("seconds", "state"), [(0, "warning"), (170, "warning"), (190, "error")])
def test_a_hang_is_a_fault_when_it_lasts(seconds, state):
    hangs = [
        sample(reading(0), at=100.0, state="hung", hung=("GPU-1",)),
        sample(reading(0), at=100.0 + seconds, hung=("GPU-1",)),
    ]
    found = judge("gpu_lost", sample(reading(0), reading(1), at=90.0), *hangs)
    assert (
        found["GPU-1"].state == state and f"GPU 1 has not answered for {seconds} s" in found["GPU-1"].detail
    )
    assert found["GPU-0"].state == "ok"
    again = judge("gpu_lost", *hangs, sample(reading(0), reading(1), at=500.0))
    assert again["GPU-1"].state == "ok"


def test_a_driver_that_hangs_as_a_whole():
    hang = [sample(at=at, state="hung") for at in (100.0, 400.0)]
    found = judge("gpu_lost", *hang)
    assert (
        found["driver"].state == "error" and "the driver has not answered for 300 s" in found["driver"].detail
    )


def test_gpus_that_the_driver_counts_but_cannot_name():
    assert judge("gpu_lost", sample(reading(0), unreachable=1))["nameless"].state == "error"


def test_an_xid_of_the_hardware_counts_until_the_boot_and_a_warning_for_an_hour():
    told = sample(reading(0, xids=(79,)), reading(1, xids=(63,)), at=100.0)
    soon = judge("xid", told, sample(reading(0), reading(1), at=3600.0))
    assert (soon["GPU-0"].state, soon["GPU-1"].state) == ("error", "warning")
    later = judge("xid", told, sample(reading(0), reading(1), at=90000.0))
    assert (later["GPU-0"].state, later["GPU-1"].state) == ("error", "ok")


def test_what_is_known_of_gpus_survives_the_agent():
    history = GpuHistory()
    history.add(sample(reading(0, xids=(79, 79)), reading(1)))
    again = GpuHistory(kept=history.kept())
    view = again.add(sample(reading(0, nvlinks=(True,)), at=200.0))
    assert [(held.code, held.count) for held in view.xids["GPU-0"]] == [(79, 2)]
    assert view.expected == 2
    assert view.most_links["GPU-0"] == 12


def test_nvlinks_that_were_never_up_are_no_fault():
    """PCIe cards with one bridge, and cards with none."""
    half = (True,) * 6 + (False,) * 6
    bridged = judge("nvlink", sample(reading(0, nvlinks=half), reading(1, nvlinks=half)))
    none = judge("nvlink", sample(reading(0, nvlinks=(False,) * 12)))
    assert {finding.state for finding in (*bridged.values(), *none.values())} == {"ok"}


def test_a_link_that_went_down_on_all_gpus_at_once_is_seen():
    before, after = (True,) * 12, (True,) * 10 + (False,) * 2
    found = judge(
        "nvlink",
        sample(*(reading(number, nvlinks=before) for number in range(4))),
        sample(*(reading(number, nvlinks=after) for number in range(4))),
    )
    assert {finding.detail.split(": ")[1] for finding in found.values()} == {"2 of 12 NVLinks are down"}


def test_xids_that_users_cause_are_told_and_held_against_nobody():
    view = GpuHistory().add(sample(reading(0, xids=(13, 13, 31))))
    assert view.told == (("GPU-0", 13), ("GPU-0", 31))
    assert view.xids == {}


def test_the_table_of_xids():
    """Those of the failure taxonomy: what a user's program can cause, and what only hardware or driver can."""
    assert {xid(code).state for code in (13, 31, 43, 45, 68, 69)} == {"info"}
    assert {xid(code).state for code in (46, 48, 62, 64, 74, 79, 95, 119, 120, 140)} == {"error"}
    assert {xid(code).state for code in (63, 92, 94, 109)} == {"warning"}
    assert all(row.advice for row in XIDS.values() if row.state != "info")
