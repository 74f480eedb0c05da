"""What is kept of a user's runs: bounded, the last and the telling ones first, and removed with age."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from profiler.points import Measured
from profiler.store import Store
from profiler.store.points import RUNS, WORKLOADS
from tests.unit.profiler.curves.place import points
from tests.unit.profiler.store.empty import empty_store
from tests.unit.profiler.store.postgres import postgres
from tests.unit.profiler.store.records import record_id

__all__ = ["postgres"]
T0 = 1_790_000_000.0


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if getattr(request, "param", "") == "postgresql":
        url = str(request.getfixturevalue("postgres").database())
    made = empty_store(url)
    yield made
    made.close()


def run(number: int, family: str = "like:one", *, learnt: bool = False) -> Measured:
    return Measured(
        record_id(number, family, learnt),
        T0 + number,
        "learn" if learnt else "run",
        (f"run:{number}", family),
        points=points(6.0) if learnt else (),
        peak_memory=1 << 30,
    )


@pytest.mark.parametrize("store", ["sqlite", "postgresql"], indirect=True)
def test_a_sweep_does_not_push_out_the_run_that_learnt(store: Store) -> None:
    assert store.put_points("lab", 1, [run(0, learnt=True)]) == 1
    sweep = [run(number) for number in range(1, 10 * RUNS)]
    assert store.put_points("lab", 1, sweep) == len(sweep)
    assert store.put_points("lab", 1, sweep[-5:]) == 0
    kept = store.measured("lab", 1)
    assert len(kept) == RUNS + 1 and kept[-1] == run(0, learnt=True)
    assert kept[0] == sweep[-1]
    assert store.put_points("lab", 2, [run(1)]) == 1 and store.put_points("other", 1, [run(1)]) == 1
    assert store.measuring("lab") == (1, 2) and len(store.measured("other", 1)) == 1


def test_nor_do_ordinary_runs_that_told_their_steps(store: Store) -> None:
    store.put_points("lab", 1, [run(0, learnt=True)])
    sweep = [msgspec.structs.replace(run(number), points=points(6.0)[:1]) for number in range(1, 2 * RUNS)]
    store.put_points("lab", 1, sweep)
    kept = store.measured("lab", 1)
    assert len(kept) == RUNS + 1 and kept[-1].source == "learn"


def test_the_workloads_that_were_measured_last_stay(store: Store) -> None:
    store.put_points("lab", 1, [run(number, f"own:{number}") for number in range(WORKLOADS + 7)])
    kept = store.measured("lab", 1)
    assert len(kept) == WORKLOADS and kept[-1].workload[-1] == "own:7"


def test_made_up_types_of_gpus_are_no_way_around_that(store: Store) -> None:
    many = [msgspec.structs.replace(run(number), gpu_type=f"g{number}") for number in range(WORKLOADS + 7)]
    store.put_points("lab", 1, many)
    assert len(store.measured("lab", 1)) == WORKLOADS


def test_retention(store: Store) -> None:
    store.put_points("lab", 1, [run(number) for number in range(10)])
    store.purge(T0 + 105, 100.0, 100.0)
    assert [one.at - T0 for one in store.measured("lab", 1)] == [9, 8, 7, 6, 5]
