"""After how long jobs fail of what a smoke run would have seen: of all users, without names."""

from __future__ import annotations

import pytest

from profiler.early import History, smoke_time
from profiler.store import Store
from profiler.store.early import EarlyQuery
from tests.unit.profiler.store.records import CLUSTER, T0, found, judge_by_logs, started
from tests.unit.profiler.store.test_verdicts import failed


def put(
    store: Store,
    number: int,
    seconds: float,
    reason: str = "",
    gpus: int = 8,
    *,
    name: str = "train",
    uid: int | None = None,
    workload: tuple[str, ...] | None = None,
) -> None:
    """A job that failed of that reason after so long, or ended well; `workload`: the names in its decision."""
    if workload is not None:
        line = {"v": 1, "kind": "decision", "decision": f"d-{number}", "at": T0, "workload": workload}
        joined = {"v": 1, "kind": "job", "decision": f"d-{number}", "at": T0, "job": number}
        store.put_decisions(CLUSTER, [line, joined])
    store.take([started(number), *([found(number, reason=reason)] if reason else [])], T0)
    state = "FAILED" if reason else "COMPLETED"
    times = {"started": T0, "ended": T0 + seconds}
    store.enrich([failed(number, state, gpus=gpus, name=name, uid=uid or number, **times)], T0)
    judge_by_logs(store)


def early(store: Store, *, several: bool = True, since: float = 0.0) -> History:
    told = store.early_failures(EarlyQuery(cluster=CLUSTER, several=several, since=since))
    return History.of(told.jobs, told.failed)


def test_what_counts(store: Store) -> None:
    assert early(store) == History(0)
    put(store, 1, 30.4, "import_error")
    put(store, 2, 4000.0, "missing_input")
    put(store, 3, 200.0, "gpu_oom")  # of what one GPU cannot tell
    put(store, 4, 300.0)  # too short to say anything
    put(store, 5, 7200.0)
    put(store, 6, 20.0, "syntax_error", gpus=1)
    # In place of the job that it saved
    put(store, 7, 15.0, "semantic_error", gpus=1, name="smoke-train.sh", workload=())
    put(store, 8, 700.0, gpus=1, name="smoke-train.sh", workload=())
    put(store, 9, 9.0, "syntax_error", gpus=0)
    assert early(store) == History(4, (15.0, 30.0, 4000.0))
    assert early(store, several=False) == History(2, (15.0, 20.0))
    assert early(store, since=T0 + 1) == History(0)


@pytest.mark.case("A7")
@pytest.mark.parametrize("workload", [None, ("name:smoke-x",), ('name:"workload":[]',)])
def test_a_name_makes_no_smoke_job(store: Store, workload: tuple[str, ...] | None) -> None:
    put(store, 1, 9.0, "syntax_error", gpus=1, name="smoke-x", workload=workload)
    assert early(store) == early(store, several=False) == History(0)


@pytest.mark.case("A7")
def test_a_user_has_a_vote_a_workload_and_day(store: Store) -> None:
    for number in range(1, 4):
        put(store, number, 300.0, "syntax_error", name=f"x-{number}", uid=1000)
        put(store, 100 + number, 9.0, "syntax_error", gpus=1, name="smoke-x", uid=1000, workload=())
        put(store, 200 + number, 4000.0, name=f"sweep-{number}", uid=1001)
    assert early(store) == History(3, (9.0, 300.0))
    put(store, 301, 300.0, "syntax_error", name="x-1", uid=1002)
    assert early(store) == History(4, (9.0, 300.0, 300.0))
    for number, name in enumerate("abcde", 401):
        put(store, number, 500.0, "syntax_error", name=name, uid=1003)
    assert early(store).failed.count(500.0) == 3


@pytest.mark.slow
def test_the_length_of_a_run_follows_the_sites_own_history(store: Store) -> None:
    for number in range(1, 61):
        put(store, number, 20.0, "import_error")
    assert smoke_time(early(store)) < smoke_time()
