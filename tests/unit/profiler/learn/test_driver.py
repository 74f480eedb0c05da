"""A whole measurement in virtual time: points, knee, limit, and what a run does that does not behave."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from profiler.driver import Driver
from profiler.process_tree import Process, ProcessTree
from profiler.sensitivity import Budget
from tests.unit.profiler.learn.running import Clock, Pulled, Rank, clock

__all__ = ["clock"]
TURN = 0.2


def drive(driver: Driver, lever: Pulled, clock: Clock, ranks: list[Rank], seconds: float = 400) -> float:
    """Let the run go on until the driver is done; the virtual seconds that it took."""
    begun = clock.now
    while not driver.done and clock.now < begun + seconds:
        now = clock.now + TURN
        for rank in ranks:
            rank.until(now, lever.cpus or lever.cap)
        clock.now = now
        driver.turn(now)
    return clock.now - begun


@pytest.mark.parametrize("knee", [3, 6, 11, 20])
def test_it_finds_the_knee_of_a_run_and_gives_all_cpus_back(knee: int, tmp_path: Path, clock: Clock):
    lever = Pulled(32)
    driver = Driver(lever, tmp_path, None, cap=32)
    seconds = drive(driver, lever, clock, [Rank(clock, tmp_path, lambda cpus: 10 * min(1, cpus / knee))])
    assert driver.done
    assert driver.result is not None
    assert abs(driver.result.knee - knee) <= 1
    assert seconds < 180
    assert lever.cpus == 32
    assert driver.rate == pytest.approx(10, rel=0.05)
    assert [point.cpus for point in driver.points[:2]] == [32, 16]
    said = driver.news()
    assert sum("steps/s +-" in line for line in said) == len(driver.points) + 1
    assert sum(line.startswith("the knee:") for line in said) == 1
    assert driver.news() == ()


def test_the_ranks_of_a_job_are_added(tmp_path: Path, clock: Clock):
    lever = Pulled(32)
    driver = Driver(lever, tmp_path, None, cap=32, gpus=4)
    ranks = [Rank(clock, tmp_path, lambda cpus: 5 * min(1, cpus / 12), seed) for seed in range(4)]
    drive(driver, lever, clock, ranks)
    assert driver.result is not None
    assert driver.result.knee in (3, 4)
    assert driver.points[0].rate == pytest.approx(20, rel=0.05)
    assert all(cpus % 4 == 0 for cpus in lever.asked)


def test_steps_are_read_from_the_log_where_none_is_counted(tmp_path: Path, clock: Clock):
    log, lever, draw = tmp_path / "out", Pulled(16), random.Random(3)
    log.touch()
    driver = Driver(lever, tmp_path / "counters", log, cap=16)
    step, due, begun = 0, clock.now + 2, clock.now
    while not driver.done and clock.now < begun + 400:
        clock.now += TURN
        with log.open("a") as file:
            while due <= clock.now:
                step += 1
                due += draw.lognormvariate(0, 0.05) / (4 * min(1, (lever.cpus or 16) / 5))
                file.write(f"\r {step}/90000 [00:10<01:50,  4.00it/s, loss=0.3]")
        driver.turn(clock.now)
    assert driver.source == "log"
    assert driver.result is not None
    assert abs(driver.result.knee - 5) <= 1


def disturbed(tmp_path: Path, clock: Clock, until: float) -> Driver:
    """A run that a neighbour slows down for a while, with the most CPUs."""
    lever, begun = Pulled(16), clock.now
    driver = Driver(lever, tmp_path, None, cap=16)

    def rate(cpus: int) -> float:
        return 10 * min(1, cpus / 4) * (0.3 if cpus > 8 and clock.now - begun < until else 1)

    drive(driver, lever, clock, [Rank(clock, tmp_path, rate)])
    return driver


def test_a_point_that_fewer_cpus_contradict_is_measured_again(tmp_path: Path, clock: Clock):
    driver = disturbed(tmp_path, clock, until=40)
    assert driver.result is not None
    assert driver.trusted
    assert driver.rate == pytest.approx(10, rel=0.05)
    assert any("fewer CPUs were faster" in line for line in driver.news())


def test_points_that_contradict_each_other_to_the_end_are_not_trusted(tmp_path: Path, clock: Clock):
    driver = disturbed(tmp_path, clock, until=1000)
    assert driver.done
    assert not driver.trusted
    assert driver.result is not None
    assert not driver.result.sure
    assert any("not to be trusted" in line for line in driver.news())


@pytest.mark.parametrize("knee", [4, 9])
def test_gpu_use_stands_for_steps_that_nobody_tells(knee: int, tmp_path: Path, clock: Clock):
    lever, draw, looks = Pulled(16), random.Random(7), iter(range(10**6))

    def busy() -> float | None:
        if next(looks) % 5:  # one look a second, five turns
            return None
        return min(96 * min(1, (lever.cpus or 16) / knee) * draw.gauss(1, 0.03), 100.0)

    driver = Driver(lever, tmp_path, None, cap=16, gpu_busy=busy)
    drive(driver, lever, clock, [])
    assert (driver.source, driver.unit, driver.rate) == ("gpu", "% GPU", None)
    assert driver.result is not None
    assert abs(driver.result.knee - knee) <= 1
    assert driver.limit is not None
    assert driver.limit.kind == "gpu"
    assert lever.cpus == 16


def test_without_a_lever_the_rate_is_all_that_is_measured(tmp_path: Path, clock: Clock):
    driver = Driver(None, tmp_path, None, cap=8)
    rank = Rank(clock, tmp_path, lambda _: 7)
    assert driver.rate is None
    for _ in range(300):
        rank.until(clock.now + TURN, 8)
        driver.turn(clock.now)
    assert driver.rate == pytest.approx(7, rel=0.05)
    assert not driver.done
    driver.close()
    assert driver.points == ()


def test_a_run_that_stops_to_step_ends_the_measurement_not_the_run(tmp_path: Path, clock: Clock):
    lever = Pulled(32)
    driver = Driver(lever, tmp_path, None, cap=32)
    # As a run that needs 16 CPUs or more to get on at all
    seconds = drive(driver, lever, clock, [Rank(clock, tmp_path, lambda cpus: 10 if cpus >= 16 else 0.001)])
    assert driver.done
    assert seconds < 180
    assert lever.cpus == 32
    assert any("fewer than 6 steps" in line for line in driver.news())
    assert [point.cpus for point in driver.points] == [32, 16]


def test_a_run_that_ends_early_keeps_its_points(tmp_path: Path, clock: Clock):
    lever = Pulled(32)
    driver = Driver(lever, tmp_path, None, cap=32)
    rank = Rank(clock, tmp_path, lambda cpus: 10 * min(1, cpus / 6))
    drive(driver, lever, clock, [rank], seconds=50)
    driver.close()
    assert driver.done
    assert len(driver.points) >= 2
    assert driver.result is not None
    assert not driver.result.sure
    assert lever.cpus == 32


def test_a_fault_of_ours_gives_all_back_and_is_said(tmp_path: Path, clock: Clock):
    class Broken(Pulled):
        def set(self, cpus: int) -> None:
            if cpus < self.cap:
                raise PermissionError("not yours")
            super().set(cpus)

    lever = Broken(32)
    driver = Driver(lever, tmp_path, None, cap=32)
    drive(driver, lever, clock, [Rank(clock, tmp_path, lambda _: 10)])
    assert driver.done
    assert lever.restored
    assert any("not yours" in line for line in driver.news())


def test_too_few_cpus_for_the_gpus_is_said(tmp_path: Path, clock: Clock):
    lever = Pulled(4)
    driver = Driver(lever, tmp_path, None, cap=64, gpus=8)
    drive(driver, lever, clock, [Rank(clock, tmp_path, lambda _: 10)], seconds=60)
    assert driver.done
    assert any("too few" in line for line in driver.news())


def test_hostile_counters_and_logs_end_nothing(tmp_path: Path, clock: Clock):
    (tmp_path / "1-aa.steps").write_bytes(b"GSUBSTEP" + b"\xff" * 30000)
    (tmp_path / "2-bb.steps").write_bytes(b"")
    (tmp_path / "3-cc.steps").symlink_to("/dev/zero")
    (tmp_path / "4-dd.steps").mkdir()
    log = tmp_path / "out"
    log.write_bytes(b"\xff\x00" * 4_000_000)
    lever = Pulled(8)
    driver = Driver(lever, tmp_path, log, cap=8, budget=Budget(seconds=100))
    drive(driver, lever, clock, [Rank(clock, tmp_path, lambda cpus: 10 * min(1, cpus / 3))])
    assert driver.result is not None
    assert driver.result.knee in (3, 4)


@pytest.mark.parametrize("held", [True, False])
def test_a_lever_that_does_not_hold_is_no_curve(held: bool, tmp_path: Path, clock: Clock):
    class Busy(ProcessTree):
        """One process that uses 12 CPUs, or as many of them as it is given."""

        seconds, last = 0.0, clock.now

        def processes(self) -> tuple[Process, ...]:
            cpus = min(12, lever.cpus) if held else 12
            self.seconds += cpus * (clock.now - self.last)
            self.last = clock.now
            return (Process(1, 0, 7, self.seconds, "train"),)

    lever = Pulled(32)
    driver = Driver(lever, tmp_path, None, cap=32, tree=Busy(1))
    drive(driver, lever, clock, [Rank(clock, tmp_path, lambda cpus: 10 * min(1, cpus / 12) if held else 10)])
    said = " ".join(driver.news())
    assert driver.done and lever.cpus == 32
    assert (driver.result is None) is not held
    assert ("not held" in said) is not held
    assert bool(driver.points) is held
