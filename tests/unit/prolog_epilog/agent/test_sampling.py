"""The sampling thread: on schedule, at once when asked, dense where needed, and never held up by who counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from profiler.gpu import GpuIdentity, GpuReading, GpuSample
from prolog_epilog.agent.sampling import DENSE, Sampling, dense_step

LONG = 3600.0
PATIENCE = 60.0
GPU = GpuIdentity("GPU-a", 0, "A100")


class FakeSampler:
    """Looks at one GPU; `gate` holds a look up while it is cleared."""

    def __init__(self, recent: tuple[tuple[float, float], ...] | None = ()) -> None:
        self.reading = GpuReading(GPU, utilisation=1.0, recent=recent)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.closed = threading.Event()
        self.threads: set[int] = set()

    def sample(self) -> GpuSample:
        self.threads.add(threading.get_ident())
        self.entered.release()
        assert self.gate.wait(PATIENCE)
        return GpuSample(time.monotonic(), (self.reading,))

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed.set()


class Looks:
    """What was handed over; to be waited for by number."""

    def __init__(self) -> None:
        self.seen: list[tuple[GpuSample, float]] = []
        self._change = threading.Condition()

    def __call__(self, sample: GpuSample, at: float) -> None:
        with self._change:
            self.seen.append((sample, at))
            self._change.notify_all()

    def wait(self, count: int) -> None:
        with self._change:
            assert self._change.wait_for(lambda: len(self.seen) >= count, PATIENCE)


@contextmanager
def sampling(
    sampler: FakeSampler, on_sample: Callable[[GpuSample, float], None], interval: float = LONG
) -> Iterator[Sampling]:
    thread = Sampling(lambda: sampler, interval, on_sample)
    thread.start()
    try:
        yield thread
    finally:
        sampler.gate.set()
        assert thread.stop(PATIENCE)


def test_the_first_look_is_at_once_and_carries_both_clocks() -> None:
    looks, sampler = Looks(), FakeSampler()
    with sampling(sampler, looks) as thread:
        looks.wait(1)
        sample, at = looks.seen[0]
        assert abs((time.time() - at) - (time.monotonic() - sample.at)) < 1
        assert thread.last() is sample
    assert sampler.closed.is_set()
    assert len(sampler.threads) == 1 and threading.get_ident() not in sampler.threads


@pytest.mark.slow
def test_looks_follow_the_schedule_without_drift() -> None:
    looks = Looks()
    with sampling(FakeSampler(), looks, interval=0.25):
        looks.wait(9)
    times = [sample.at for sample, _ in looks.seen]
    # a look may be late, never early: the n-th is due n intervals after the first began
    assert all(at - times[0] > 0.25 * number - 0.2 for number, at in enumerate(times))


def test_a_look_can_be_had_at_once_and_a_storm_of_wishes_is_one_look() -> None:
    looks, sampler = Looks(), FakeSampler()
    with sampling(sampler, looks) as thread:
        looks.wait(1)
        sampler.gate.clear()
        thread.sample_soon()
        assert sampler.entered.acquire(timeout=PATIENCE) and sampler.entered.acquire(timeout=PATIENCE)
        for _ in range(200):  # while a look is under way: that one may be too early for them
            thread.sample_soon()
        sampler.gate.set()
        looks.wait(3)
        thread.sample_soon()
        looks.wait(4)
    assert len(looks.seen) == 4


@pytest.mark.slow
def test_looks_are_dense_after_a_start_where_the_driver_remembers_nothing() -> None:
    looks = Looks()
    with sampling(FakeSampler(recent=None), looks) as thread:
        looks.wait(1)
        thread.sample_soon(dense=PATIENCE)
        looks.wait(4)


@pytest.mark.parametrize("interval", [0.5, 2.0, 10.0])
def test_dense_looks_follow_the_age_of_the_job(interval: float) -> None:
    age, steps = 0.0, []
    while age < DENSE:
        steps.append(dense_step(age, interval))
        assert steps[-1] <= interval and steps[-1] <= max(1.0, 0.1 * age)
        age += steps[-1]
    assert steps == sorted(steps)
    assert len(steps) <= max(30.0, DENSE / interval + 10)


def test_a_driver_that_remembers_is_not_asked_densely() -> None:
    looks, sampler = Looks(), FakeSampler(recent=((1.0, 5.0),))
    with sampling(sampler, looks) as thread:
        looks.wait(1)
        thread.sample_soon(dense=PATIENCE)
        looks.wait(2)
        assert thread._next(time.monotonic() + LONG, time.monotonic()) > time.monotonic() + LONG / 2


def test_a_look_that_hangs_holds_up_nobody() -> None:
    sampler = FakeSampler()
    sampler.gate.clear()
    with sampling(sampler, Looks()) as thread:
        assert sampler.entered.acquire(timeout=PATIENCE)
        thread.sample_soon()
        assert thread.last() is None
        assert thread.stop(0.0) is False


def test_a_bug_in_who_counts_does_not_end_the_looking() -> None:
    looks = Looks()

    def fails_first(sample: GpuSample, at: float) -> None:
        looks(sample, at)
        if len(looks.seen) == 1:
            raise ValueError("a bug")

    with sampling(FakeSampler(), fails_first) as thread:
        looks.wait(1)
        thread.sample_soon()
        looks.wait(2)


def test_one_that_never_started_can_be_stopped() -> None:
    assert Sampling(FakeSampler, LONG, Looks()).stop(1.0)


def test_the_schedule_neither_drifts_nor_catches_up() -> None:
    thread = Sampling(FakeSampler, 10.0, Looks())
    now = time.monotonic()
    assert thread._next(now - 0.5, now - 0.5) == now - 0.5 + 10  # a slow look does not move the next
    assert thread._next(now - 25.0, now - 25.0) == now - 25.0 + 30  # what was missed is not made up for
    assert thread._next(now + 7.0, now) == now + 7.0  # a look out of turn moves nothing


def test_a_look_that_raises_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    looks = Looks()

    class Faulty(FakeSampler):
        faults = 3

        def sample(self) -> GpuSample:
            if self.faults:
                self.faults -= 1
                raise RuntimeError("cannot start")
            return super().sample()

    with sampling(Faulty(), looks, interval=0.1):
        looks.wait(2)
    assert len([record for record in caplog.records if record.exc_info]) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_says_so_and_one_that_was_stopped_does_not() -> None:
    broken = Sampling(FakeSampler, 0.0, Looks())  # no schedule can be made of this interval
    assert not broken.has_died()
    broken.start()
    broken.join(PATIENCE)
    assert broken.has_died()
    with sampling(FakeSampler(), Looks()) as thread:
        assert not thread.has_died()
    assert not thread.has_died()
