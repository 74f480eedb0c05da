"""Usage from readings: means, peaks and times, unknown values, and sums that add up however they are cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.gpu import GpuIdentity, GpuProcess, GpuReading, GpuSample, MigInstance, by_minor, minor_of
from profiler.usage import UsageMeter, UsageSum, total

GPU = GpuIdentity("GPU-a", 0, "A100")
ON_IT = (GpuProcess(1, None),)


def reading(utilisation: float | None = None, **more: object) -> GpuReading:
    return replace(GpuReading(GPU), utilisation=utilisation, **more)  # type: ignore[arg-type]


# readings with the seconds that each stands for -> (mean, busy mean, busy seconds, idle at start)
TIMES = [
    ([], (None, None, None, None)),
    ([(reading(0.0), 0.0)], (0.0, None, 0.0, 0.0)),
    ([(reading(None), 5.0)], (None, None, None, None)),
    ([(reading(None, processes=()), 5.0)], (None, None, 0.0, None)),
    ([(reading(None, processes=ON_IT), 5.0)], (None, None, 5.0, None)),
    ([(reading(50.0), 0.0), (reading(100.0), 10.0)], (75.0, 75.0, 10.0, 0.0)),
    ([(reading(0.0), 2.0), (reading(90.0), 3.0), (reading(0.0), 4.0)], (30.0, 90.0, 3.0, 2.0)),
    ([(reading(0.0), 2.0), (reading(None), 3.0), (reading(80.0), 4.0)], (40.0, 80.0, 4.0, 2.0)),
    # a process that computes nothing keeps the GPU busy: it is idle, but nobody else's
    ([(reading(0.0, processes=ON_IT), 2.0), (reading(60.0, processes=ON_IT), 3.0)], (30.0, 30.0, 5.0, 2.0)),
    ([(reading(60.0, processes=()), 3.0)], (60.0, None, 0.0, 0.0)),
]


@pytest.mark.parametrize(("readings", "expected"), TIMES)
def test_utilisation_and_times(
    readings: list[tuple[GpuReading, float]], expected: tuple[float | None, ...]
) -> None:
    usage = total(readings).usage(GPU)
    times = (
        usage.utilisation_mean,
        usage.utilisation_busy_mean,
        usage.busy_seconds,
        usage.idle_at_start_seconds,
    )
    assert times == expected
    assert usage.samples == len(readings)


def test_power_memory_xids_faults() -> None:
    usage = total(
        [
            (reading(power_w=100.0, memory_used_bytes=5, memory_total_bytes=80, xids=(31,)), 1.0),
            (reading(power_w=None, memory_used_bytes=70, memory_total_bytes=80, xids=(79, 31)), 1.0),
            (reading(power_w=200.0, memory_used_bytes=None, xids=None, fault="GPU_IS_LOST"), 1.0),
        ]
    ).usage(GPU)
    assert (usage.power_mean_w, usage.memory_peak_bytes, usage.memory_total_bytes) == (150.0, 70, 80)
    assert (usage.xids, usage.faults) == ((31, 79), ("GPU_IS_LOST",))


def test_what_was_never_known_stays_unknown_and_never_becomes_0() -> None:
    usage = total([(reading(), 1.0)] * 3).usage(GPU)
    unknown = (
        "utilisation_mean",
        "utilisation_busy_mean",
        "memory_peak_bytes",
        "memory_total_bytes",
        "power_mean_w",
    )
    assert [getattr(usage, name) for name in unknown] == [None] * len(unknown)
    assert usage.busy_seconds is None and usage.idle_at_start_seconds is None


# Whole numbers as floats: their sums are exact, so that equality is fair.
_whole = st.integers(0, 1000).map(float)
_reading = st.builds(
    GpuReading,
    st.just(GPU),
    utilisation=st.none() | st.integers(0, 100).map(float),
    memory_used_bytes=st.none() | st.integers(0, 2**40),
    power_w=st.none() | _whole,
    processes=st.none() | st.just(()) | st.just(ON_IT),
    xids=st.none() | st.tuples(st.integers(1, 200)),
)
_readings = st.lists(st.tuples(_reading, _whole), max_size=12)


@given(_readings, st.integers(0, 12), st.integers(0, 12))
def test_a_sum_may_be_cut_anywhere(readings: list[tuple[GpuReading, float]], a: int, b: int) -> None:
    low, high = sorted((a, b))
    first, second, third = total(readings[:low]), total(readings[low:high]), total(readings[high:])
    assert first + (second + third) == (first + second) + third == total(readings)
    assert UsageSum() + first == first == first + UsageSum()


@given(_readings)
def test_usage_lies_within_its_readings(readings: list[tuple[GpuReading, float]]) -> None:
    usage = total(readings).usage(GPU)
    known = [item.utilisation for item, _ in readings if item.utilisation is not None]
    assert (usage.utilisation_mean is None) == (not known)
    if usage.utilisation_mean is not None:
        assert min(known) <= usage.utilisation_mean <= max(known)
    for seconds in (usage.busy_seconds, usage.idle_at_start_seconds):
        assert seconds is None or 0 <= seconds <= usage.seconds


def test_the_meter_counts_the_time_between_samples_but_not_long_gaps() -> None:
    other = GpuIdentity("GPU-b", 1, "A100")
    meter = UsageMeter(max_gap=3.0)
    for at, utilisation in ((100.0, 0.0), (101.0, 50.0), (102.0, 50.0), (500.0, 100.0)):
        readings = [reading(utilisation)] + ([GpuReading(other, utilisation=10.0)] if at > 101 else [])
        meter.add(GpuSample(at, tuple(readings)))
    first, second = meter.usages()
    assert (first.gpu, first.samples, first.seconds, first.utilisation_mean) == (GPU, 4, 5.0, 50.0)
    assert (second.gpu, second.samples, second.seconds) == (other, 2, 3.0)


def test_the_meter_looks_only_at_the_gpus_of_a_job() -> None:
    meter = UsageMeter(max_gap=3.0, only=frozenset({"GPU-a"}))
    meter.add(GpuSample(1.0, (reading(1.0), GpuReading(GpuIdentity("GPU-b", 1, "A100")))))
    assert [usage.gpu.uuid for usage in meter.usages()] == ["GPU-a"]


def test_usages_come_in_the_order_of_device_files_then_instances() -> None:
    late, early = GpuIdentity("GPU-z", 0, "x"), GpuIdentity("GPU-b", 10, "x")
    mig = [GpuIdentity(f"MIG-{i}", 0, "x", mig=MigInstance("GPU-z", i, 0)) for i in (9, 7)]
    unknown = GpuIdentity("GPU-0", None, "x")
    meter = UsageMeter(max_gap=1.0)
    meter.add(GpuSample(0.0, tuple(GpuReading(gpu) for gpu in (unknown, early, *mig, late))))
    assert [usage.gpu for usage in meter.usages()] == [late, mig[1], mig[0], early, unknown]


@pytest.mark.parametrize(
    ("path", "minor"), [("/dev/nvidia0", 0), ("/dev/nvidia13", 13), ("/run/x1/nvidia7", 7), ("nvidia08", 8)]
)
def test_minor_of_a_device_file(path: str, minor: int) -> None:
    assert minor_of(path) == minor


@pytest.mark.parametrize("path", ["/dev/nvidiactl", "", "/dev/nvidia0/"])
def test_not_a_device_file(path: str) -> None:
    with pytest.raises(ValueError, match="does not end in a number"):
        minor_of(path)


def test_by_minor_leaves_instances_and_unknown_numbers_out() -> None:
    whole = GpuIdentity("GPU-a", 3, "x")
    part = GpuIdentity("MIG-a", 3, "x", mig=MigInstance("GPU-a", 7, 0))
    assert by_minor([part, whole, GpuIdentity("GPU-b", None, "x")]) == {3: whole}
