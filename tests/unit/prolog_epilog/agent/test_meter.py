"""The meter of a job: true sums whatever the schedule of looks, no claim of what was not seen, restarts don't show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.gpu import GpuIdentity, GpuProcess, GpuReading, GpuSample, MigInstance
from profiler.host import HostReading
from profiler.job_meter import JobMeter, MeterState
from profiler.records import GpuRef, GpuUse
from profiler.tally import StuckRule

GPU = GpuIdentity("GPU-a", 3, "A100")
OTHER = GpuIdentity("GPU-b", 4, "A100")
REF = GpuRef(minor=3)
SINCE = 1_000_000.0
BOOTED = 500_000.0  # the wall clock's time minus the monotonic one's
ON_IT = (GpuProcess(1, None),)


def sample(after: float, *readings: GpuReading, **more: object) -> GpuSample:
    """A look, seconds after the job's start."""
    return GpuSample(SINCE - BOOTED + after, readings, **more)  # type: ignore[arg-type]


def reading(utilisation: float | None = None, gpu: GpuIdentity = GPU, **more: object) -> GpuReading:
    return replace(GpuReading(gpu), utilisation=utilisation, **more)  # type: ignore[arg-type]


def meter(looks: Iterable[tuple[float, GpuReading]], **options: object) -> JobMeter:
    made = JobMeter([REF], SINCE, **options)  # type: ignore[arg-type]
    for after, read in looks:
        made.add(sample(after, read), SINCE + after)
    return made


def use(looks: Iterable[tuple[float, GpuReading]], **options: object) -> GpuUse:
    (found,) = meter(looks, **options).gpu_uses()
    return found


def test_means_percentiles_and_peaks_are_weighted_by_time() -> None:
    looks = [
        (1.0, reading(0.0, power_w=60.0, memory_used_bytes=10, temperature_c=30, power_limit_w=400.0)),
        (10.0, reading(90.0, power_w=300.0, memory_used_bytes=70, temperature_c=70, memory_total_bytes=80)),
        (20.0, reading(50.0, power_w=200.0, memory_used_bytes=70, temperature_c=60, clock_sm_mhz=1410)),
    ]
    found = use(looks)
    assert found.gpu == GpuRef(3, "GPU-a", "A100") and found.samples == 3
    assert found.seconds == pytest.approx(20)
    assert found.utilisation_mean == pytest.approx((0 * 1 + 90 * 9 + 50 * 10) / 20)
    assert (found.utilisation_p5, found.utilisation_p50, found.utilisation_p95) == (0, 50, 90)
    assert found.energy_j == pytest.approx(60 + 2700 + 2000)
    assert found.power_mean_w == pytest.approx(4760 / 20) and found.power_peak_w == 300
    assert found.memory_mean_bytes == pytest.approx((10 + 70 * 19) / 20)
    assert (found.memory_peak_bytes, found.memory_total_bytes) == (70, 80)
    assert (found.temperature_peak_c, found.power_limit_w, found.clock_sm_mean_mhz) == (70, 400, 1410)


# (utilisation, until) stretches -> (at start, after, at end); a second a look
IDLE = [
    ([(0, 30)], (30, 0, 0)),
    ([(50, 30)], (0, 0, 0)),
    ([(0, 10), (50, 20), (0, 25), (50, 40), (0, 60)], (10, 20, 20)),
    ([(0, 10), (50, 20), (0, 45), (50, 50), (0, 60)], (10, 25, 10)),
    ([(50, 20), (None, 30), (0, 40)], (0, 10, 10)),
    ([(None, 30)], (None, None, None)),
]


@pytest.mark.parametrize(("stretches", "expected"), IDLE)
def test_idle_stretches(
    stretches: list[tuple[float | None, int]], expected: tuple[float | None, ...]
) -> None:
    looks, at = [], 0
    for utilisation, until in stretches:
        looks += [(float(second), reading(utilisation)) for second in range(at + 1, until + 1)]
        at = until
    found = use(looks)
    assert (
        found.idle_at_start_seconds,
        found.idle_after_seconds,
        found.idle_at_end_seconds,
    ) == pytest.approx(expected)


def steady(
    utilisation: float, power: float | None, limit: float | None, seconds: int, start: int = 0
) -> list[Any]:
    return [
        (float(second), reading(utilisation, power_w=power, power_limit_w=limit))
        for second in range(start + 10, start + seconds + 1, 10)
    ]


STUCK = [
    (steady(100, 100.0, 400.0, 600), 600, 600),
    (steady(100, 100.0, 400.0, 290), 0, 290),  # a pause, and no hang
    (steady(100, 300.0, 400.0, 600), 0, 0),
    (steady(60, 100.0, 400.0, 600), 0, 0),
    (steady(100, None, 400.0, 600), None, None),
    (steady(100, 100.0, None, 600), None, None),
    (steady(0, 60.0, None, 100) + steady(100, 80.0, None, 400, 100), 400, 400),
    (steady(0, 60.0, None, 100) + steady(100, 300.0, None, 400, 100), 0, 0),
    (steady(100, 100.0, 400.0, 600) + steady(90, 300.0, 400.0, 10, 600), 600, 0),
    (steady(100, 100.0, 400.0, 600) + steady(100, None, 400.0, 10, 600), 600, 0),
    (steady(100, 100.0, 400.0, 600) + steady(100, 100.0, 400.0, 10, 900), 600, 35),  # nobody looked in between
    (
        steady(100, 100.0, 400.0, 250)
        + steady(90, 300.0, 400.0, 20, 250)
        + steady(100, 90.0, 400.0, 320, 270),
        320,
        320,
    ),
]


@pytest.mark.parametrize(("looks", "seconds", "at_end"), STUCK)
def test_a_collective_that_waits_for_ever(
    looks: list[Any], seconds: float | None, at_end: float | None
) -> None:
    found = use(looks)
    assert (found.stuck_seconds, found.stuck_at_end_seconds) == pytest.approx((seconds, at_end))


def test_what_counts_as_stuck_is_the_callers_to_say() -> None:
    rule = StuckRule(utilisation=50.0, power_share=0.8, seconds=20.0)
    assert use(steady(60, 300.0, 400.0, 60), stuck=rule).stuck_seconds == pytest.approx(60)


def test_throttling_by_cause_is_not_being_idle() -> None:
    looks = [
        (10.0, reading(10.0, throttle=("gpu_idle",))),
        (20.0, reading(10.0, throttle=("sw_power_cap", "hw_thermal"))),
        (25.0, reading(10.0, throttle=("hw_thermal",))),
        (30.0, reading(10.0, throttle=None)),
    ]
    assert use(looks).throttled == {"sw_power_cap": 10, "hw_thermal": 15}
    assert use(looks[3:]).throttled is None and use(looks[:1]).throttled == {}


# ECC counters as they were read, and what came during the job
ECC = [
    ([5, 5, 7], 2),
    ([5], 0),
    ([None, None], None),
    ([5, None, 6], 1),
    ([5, 9, 2], 6),  # the driver was loaded anew
    ([5, 0, 0], 0),
]


@pytest.mark.parametrize(("counts", "expected"), ECC)
def test_only_the_errors_of_the_job_count(counts: list[int | None], expected: int | None) -> None:
    looks = [
        (float(at + 1), reading(1.0, ecc_corrected=count, ecc_uncorrected=count))
        for at, count in enumerate(counts)
    ]
    found = use(looks)
    assert (found.ecc_corrected, found.ecc_uncorrected) == (expected, expected)


def test_counters_of_a_look_before_the_job_are_what_it_starts_from() -> None:
    made = JobMeter([REF], SINCE)
    made.add(sample(-10, reading(90.0, ecc_corrected=5, energy_j=1000.0, xids=(31,))), SINCE - 10)
    made.add(sample(10, reading(50.0, ecc_corrected=7, energy_j=5000.0, power_w=1.0)), SINCE + 10)
    (found,) = made.gpu_uses()
    assert (found.ecc_corrected, found.xids, found.samples, found.seconds) == (2, (), 1, 10)
    assert found.energy_j == pytest.approx(2000)  # half of those twenty seconds
    assert found.utilisation_mean == 50


def test_energy_by_the_drivers_counter_and_by_power_where_that_begins_anew() -> None:
    looks = [
        (10.0, reading(50.0, power_w=100.0, energy_j=9_000.0)),
        (20.0, reading(50.0, power_w=100.0, energy_j=12_000.0)),
        (30.0, reading(50.0, power_w=100.0, energy_j=7.0)),
        (40.0, reading(50.0, power_w=100.0, energy_j=2_007.0)),
    ]
    found = use(looks)
    assert found.energy_j == pytest.approx(1000 + 3000 + 1000 + 2000)
    assert found.power_mean_w == pytest.approx(7000 / 40)


def test_the_drivers_own_samples_tell_what_was_between_two_looks() -> None:
    found = use([(10.0, reading(0.0, recent=((4.0, 0.0), (3.0, 80.0), (3.0, 0.0))))])
    assert found.utilisation_mean == pytest.approx(24) and found.utilisation_p95 == 80
    assert (found.idle_at_start_seconds, found.idle_at_end_seconds) == pytest.approx((4, 3))
    # what was before the job is not the job's
    found = use([(2.0, reading(0.0, recent=((4.0, 100.0), (1.5, 60.0), (0.5, 0.0))))])
    assert found.utilisation_mean == pytest.approx(45) and found.seconds == pytest.approx(2)
    # a buffer that is too short stands for the rest
    found = use([(20.0, reading(0.0, recent=((1.0, 30.0), (1.0, 50.0))))])
    assert found.utilisation_mean == pytest.approx(40) and found.seconds == pytest.approx(20)


def test_a_look_after_the_end_counts_only_up_to_it() -> None:
    made = JobMeter([REF], SINCE)
    made.add(sample(10, reading(80.0, energy_j=0.0)), SINCE + 10)
    late = reading(0.0, energy_j=2000.0, recent=((5.0, 80.0), (5.0, 0.0)))
    made.add(sample(20, late), SINCE + 20, until=SINCE + 15)
    (found,) = made.gpu_uses()
    assert (found.seconds, found.utilisation_mean, made.seconds()) == pytest.approx((15, 80, 15))
    assert found.energy_j == pytest.approx(1000)


@pytest.mark.parametrize("recent", [None, ((5.0, 80.0), (5.0, 99.0))])
def test_what_the_next_job_does_before_the_last_look_is_not_this_ones(recent: object) -> None:
    made = JobMeter([REF], SINCE)
    mine: dict[str, Any] = {
        "memory_used_bytes": 10,
        "temperature_c": 40,
        "power_w": 100.0,
        "clock_sm_mhz": 1000,
    }
    made.add(sample(10, reading(80.0, processes=ON_IT, throttle=frozenset(), **mine)), SINCE + 10)
    theirs: dict[str, Any] = {
        "memory_used_bytes": 70,
        "temperature_c": 90,
        "power_w": 400.0,
        "clock_sm_mhz": 2000,
    }
    late = reading(99.0, processes=ON_IT, throttle=frozenset({"hw_thermal"}), recent=recent, **theirs)
    made.add(sample(20, late), SINCE + 20, until=SINCE + 15)
    (found,) = made.gpu_uses()
    assert (found.utilisation_mean, found.utilisation_p95) == pytest.approx((80, 80))
    assert (found.memory_peak_bytes, found.memory_mean_bytes) == (10, 10)
    assert (found.temperature_peak_c, found.power_peak_w, found.clock_sm_mean_mhz) == (40, 100, 1000)
    assert found.busy_seconds == pytest.approx(15 if recent else 10) and not found.throttled
    assert set(made.series().gpus[0].memory_bytes) <= {10.0, None}


def test_a_look_right_after_the_end_still_tells_of_the_last_seconds() -> None:
    made = JobMeter([REF], SINCE)
    made.add(sample(10, reading(80.0, memory_used_bytes=10)), SINCE + 10)
    made.add(sample(15.3, reading(60.0, memory_used_bytes=0)), SINCE + 15.3, until=SINCE + 15)
    (found,) = made.gpu_uses()
    assert found.utilisation_mean == pytest.approx((800 + 300) / 15) and found.memory_mean_bytes == 10


def test_xids_and_faults() -> None:
    looks = [
        (1.0, reading(1.0, xids=(31, 31))),
        (2.0, reading(None, fault="GPU_IS_LOST", xids=(79,))),
        (3.0, reading(None, fault="GPU_IS_LOST", xids=None)),
    ]
    assert (use(looks).xids, use(looks).faults) == ((31, 79), ("GPU_IS_LOST",))


def test_what_nvml_never_told_is_none() -> None:
    found = use([(10.0, reading()), (20.0, reading())])
    told = {name for name in GpuUse.__struct_fields__ if getattr(found, name) is not None}
    assert told == {"gpu", "samples", "seconds", "xids", "faults"}


def test_a_process_keeps_a_gpu_busy_and_so_does_one_that_has_just_ended() -> None:
    looks = [
        (10.0, reading(0.0, processes=())),
        (20.0, reading(0.0, processes=ON_IT)),
        (30.0, reading(60.0, processes=ON_IT)),
        (40.0, reading(0.0, processes=(), recent=((5.0, 60.0), (5.0, 0.0)))),
    ]
    found = use(looks)
    assert found.busy_seconds == pytest.approx(25)
    assert found.utilisation_busy_mean == pytest.approx((60 * 10 + 60 * 5) / 25)


# --- which GPUs ---


def test_a_job_has_its_gpus_and_no_others_by_uuid_else_by_minor() -> None:
    for ref in (GpuRef(minor=3), GpuRef(uuid="GPU-a"), GpuRef(minor=4, uuid="GPU-a")):
        made = JobMeter([ref], SINCE)
        made.add(sample(10, reading(10.0, OTHER), reading(70.0)), SINCE + 10)
        (found,) = made.gpu_uses()
        assert (found.gpu.uuid, found.gpu.minor, found.utilisation_mean) == ("GPU-a", 3, 70)
        assert made.note() == ""


def test_a_job_without_gpus_has_none_and_one_with_unknown_ones_says_so() -> None:
    for gpus, note in (((), ""), (None, "did not tell")):
        made = JobMeter(gpus, SINCE)
        made.add(sample(10, reading(10.0)), SINCE + 10)
        assert made.gpu_uses() == () and note in made.note() and bool(made.note()) == bool(note)
        assert made.unseen_seconds() == 0 and made.series().gpus == ()


def test_mig_instances_stand_apart_and_their_gpu_is_not_counted_twice() -> None:
    whole = replace(GPU, partitioned=True)
    first = replace(GPU, uuid="MIG-1", mig=MigInstance("GPU-a", 1, 0))
    second = replace(GPU, uuid="MIG-2", mig=MigInstance("GPU-a", 2, 0))
    look = (
        reading(None, whole, memory_used_bytes=30),
        reading(None, first, memory_used_bytes=10, processes=()),
        reading(None, second, memory_used_bytes=20, processes=ON_IT),
    )
    for refs, expected in (
        ([GpuRef(3, "MIG-2", parent_uuid="GPU-a")], ["MIG-2"]),
        ([GpuRef(minor=3)], ["MIG-1", "MIG-2"]),  # the whole GPU: all its instances
        ([GpuRef(uuid="MIG-1"), GpuRef(minor=3)], ["MIG-1", "MIG-2"]),
    ):
        made = JobMeter(refs, SINCE)
        made.add(sample(10, *look), SINCE + 10)
        made.add(sample(20, *look), SINCE + 20)
        uses = made.gpu_uses()
        assert [found.gpu.uuid for found in uses] == expected
        assert {found.gpu.parent_uuid for found in uses} == {"GPU-a"}
        assert all(found.samples == 2 and found.utilisation_mean is None for found in uses)
        assert "MIG" in made.note()
    assert uses[1].memory_peak_bytes == 20 and (uses[0].busy_seconds, uses[1].busy_seconds) == (0, 20)


def test_shared_gpus_are_said_to_be_shared() -> None:
    assert "share GPUs" in JobMeter([REF], SINCE, shared=True).note()
    mixed = JobMeter([REF], SINCE, several_types=True)
    assert "other GPUs are missing" in mixed.note() == JobMeter.restored(mixed.state()).note()
    assert JobMeter([], SINCE, several_types=True).note() == ""
    assert JobMeter([REF], SINCE).note() == ""


def test_a_gpu_that_nobody_sees_stays_in_the_record_with_what_is_wrong() -> None:
    made = JobMeter([GpuRef(minor=3), GpuRef(uuid="GPU-b")], SINCE)
    made.add(sample(10, reading(50.0)), SINCE + 10)
    first, gone = made.gpu_uses()
    assert (gone.gpu.uuid, gone.samples, gone.faults, gone.utilisation_mean) == (
        "GPU-b",
        0,
        ("MISSING",),
        None,
    )
    assert first.seconds == 10 and made.unseen_seconds() == pytest.approx(10)
    made.add(sample(20, reading(50.0), reading(20.0, OTHER)), SINCE + 20)
    assert [found.gpu for found in made.gpu_uses()] == [
        GpuRef(3, "GPU-a", "A100"),
        GpuRef(4, "GPU-b", "A100"),
    ]


def test_a_driver_that_hangs_is_unseen_time_with_a_reason() -> None:
    made = meter([(10.0, reading(50.0)), (20.0, reading(50.0))], max_gap=15.0)
    for after in (30.0, 40.0, 50.0):
        made.add(
            sample(after, state="hung", detail="nvmlFoo did not return.", hung=("GPU-a",)), SINCE + after
        )
    assert made.unseen_seconds() == pytest.approx(30)
    (found,) = made.gpu_uses()
    assert (found.seconds, found.faults) == (20, ("HUNG",)) and "nvmlFoo" in made.note()
    made.add(sample(60, reading(50.0)), SINCE + 60)  # stands for its last fifteen seconds
    assert made.unseen_seconds() == pytest.approx(25)


def test_stretches_end_where_nobody_looked() -> None:
    looks = [*steady(50, 300, 400.0, 10), *steady(0, 60, 400.0, 100, 10), *steady(0, 60, 400.0, 50, 500)]
    found = use(looks)
    assert found.idle_after_seconds == pytest.approx(100) and found.idle_at_end_seconds == pytest.approx(75)
    stuck = [*steady(100, 100, 400.0, 200), *steady(100, 100, 400.0, 200, 500)]
    assert use(stuck).stuck_seconds == 0


def test_a_step_of_the_nodes_clock_changes_nothing() -> None:
    made = JobMeter([REF], SINCE)
    for after, clock in ((10.0, 0.0), (20.0, 86400.0), (30.0, -86400.0)):
        made.add(sample(after, reading(50.0)), SINCE + after + clock)
    assert made.seconds() == pytest.approx(30) and made.unseen_seconds() == 0
    assert made.gpu_uses()[0].seconds == pytest.approx(30)


# --- CPUs and memory ---


def host(cpu: float | None, memory: int | None = None, **more: object) -> HostReading:
    return HostReading("cgroup2", cpu_seconds=cpu, memory_bytes=memory, **more)  # type: ignore[arg-type]


def test_cpu_time_of_looks_without_a_reading_is_drawn_over_all_of_them() -> None:
    made = JobMeter([], SINCE)
    made.add(sample(10), SINCE + 10, host(10.0))
    made.add(sample(20), SINCE + 20, None)
    made.add(sample(30), SINCE + 30, None)
    made = JobMeter.restored(made.state())
    made.add(sample(40), SINCE + 40, host(100.0))
    assert max(value or 0 for value in made.series().cpus) == pytest.approx(3.0)


def test_cpus_and_memory() -> None:
    made = JobMeter((), SINCE)
    assert made.host_use() is None
    made.add(sample(10), SINCE + 10, host(5.0, 100, memory_working_bytes=60, cpus=4.0))
    made.add(sample(20), SINCE + 20, host(25.0, 300, memory_working_bytes=200, memory_limit_bytes=400))
    made.add(
        sample(30), SINCE + 30, host(15.0, 50, oom_kills=1, memory_peak_bytes=350)
    )  # a reader began anew
    made.add(sample(40), SINCE + 40, None)
    made.add(sample(50), SINCE + 50, host(17.0))
    found = made.host_use()
    assert found is not None and found.cpu_seconds == 27 and found.cpus == 4
    assert (found.memory_peak_bytes, found.memory_working_bytes, found.memory_limit_bytes) == (350, 200, 400)
    assert found.oom_kills == 1
    series = made.series()
    assert series.cpus[15] == 2.0 and series.cpus[5] is None and series.memory_bytes[15] == 300


# --- truth and restarts ---


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 400)), min_size=1, max_size=8),
    st.sampled_from([1, 5, 10, 30]),
    st.floats(0, 0.99),
)
@settings(deadline=None)
def test_the_profile_is_the_load_within_one_per_cent(
    load: list[tuple[int, int]], interval: int, phase: float
) -> None:
    """With the driver's samples of a fifth of a second, whatever the interval of the looks."""
    ticks = [value for value, fifths in load for _ in range(fifths)]
    total = len(ticks) / 5
    made, at, seen = JobMeter([REF], SINCE), 0.2, 0
    while seen < len(ticks):
        at = min(at + interval + phase, total)
        upto = round(at * 5) if at < total else len(ticks)
        history = tuple((0.2, float(value)) for value in ticks[max(0, upto - 170) : upto])
        made.add(sample(upto / 5, reading(float(ticks[upto - 1]), recent=history)), SINCE + upto / 5)
        seen = upto
    (found,) = made.gpu_uses()
    assert found.seconds == pytest.approx(total)
    assert found.utilisation_mean == pytest.approx(sum(ticks) / len(ticks), abs=0.01)
    series = made.series()
    drawn = series.gpus[0].utilisation
    assert len(drawn) == -(-len(ticks) // round(5 * series.step))


_readings = st.builds(
    GpuReading,
    st.sampled_from([GPU, OTHER]),
    utilisation=st.none() | st.integers(0, 100).map(float),
    memory_used_bytes=st.none() | st.integers(0, 2**40),
    power_w=st.none() | st.floats(0, 700),
    power_limit_w=st.none() | st.just(400.0),
    throttle=st.none() | st.just(("hw_thermal",)),
    processes=st.none() | st.just(()) | st.just(ON_IT),
    ecc_corrected=st.none() | st.integers(0, 5),
    energy_j=st.none() | st.floats(0, 1e6),
    xids=st.none() | st.tuples(st.integers(1, 200)),
    recent=st.none() | st.lists(st.tuples(st.floats(0.01, 20), st.floats(0, 100)), max_size=4).map(tuple),
)
_looks = st.lists(
    st.tuples(
        st.floats(0, 200),
        st.lists(_readings, max_size=2, unique_by=lambda item: item.gpu.uuid),
        st.sampled_from(["ok", "hung", "unavailable"]),
        st.none() | st.floats(0, 1e6).map(host),
    ),
    max_size=12,
)


def told(made: JobMeter) -> tuple[object, ...]:
    return made.gpu_uses(), made.host_use(), made.series(), made.unseen_seconds(), made.note(), made.seconds()


@given(_looks, st.integers(0, 12), st.floats(-5, 5))
@settings(deadline=None)
def test_a_restart_anywhere_changes_nothing(looks: list[Any], cut: int, first: float) -> None:
    refs = (REF, GpuRef(uuid="GPU-b"))
    whole, split, at = JobMeter(refs, SINCE), JobMeter(refs, SINCE), first
    for number, (pause, readings, state, host_reading) in enumerate(looks):
        if number == cut:
            kept = msgspec.json.decode(msgspec.json.encode(split.state()), type=MeterState)
            split = JobMeter.restored(kept)
        at += pause
        look = sample(at, *readings, state=state, detail="said")
        whole.add(look, SINCE + at, host_reading)
        split.add(look, SINCE + at, host_reading)
    assert told(whole) == told(split)
    for found in whole.gpu_uses():
        assert found.seconds <= whole.seconds() + 1e-6
        msgspec.json.decode(msgspec.json.encode(found), type=GpuUse)  # within the bounds of a record
        names = ("busy_seconds", "idle_at_start_seconds", "idle_after_seconds")
        for name in (*names, "stuck_seconds", "stuck_at_end_seconds"):
            value = getattr(found, name)
            assert value is None or 0 <= value <= found.seconds + 1e-6


def test_a_state_is_a_copy_and_small() -> None:
    made = meter(
        [(float(at), reading(at % 101, power_w=100.0, memory_used_bytes=at)) for at in range(1, 5000)]
    )
    state = made.state()
    before = msgspec.json.encode(state)
    made.add(sample(6000, reading(50.0)), SINCE + 6000)
    assert msgspec.json.encode(state) == before and len(before) < 12_000
