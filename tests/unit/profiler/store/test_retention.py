"""What is old goes, a little at a time; what is not stays."""

from __future__ import annotations

import threading

import pytest

from profiler.resubmissions import Resubmission
from profiler.store import EventQuery, JobFacts, JobQuery, Store
from profiler.store import retention as module
from profiler.store.retention import Purged
from tests.unit.profiler.store.contents import contents
from tests.unit.profiler.store.records import (
    CLUSTER,
    T0,
    ended,
    event,
    found,
    judge_by_logs,
    series,
    started,
    usage,
)

DAY = 86400.0


def old_and_new(store: Store) -> None:
    for number, age in ((1, 400), (2, 364), (3, 91), (4, 1)):
        end = T0 - age * DAY
        begin = end - 3 * DAY
        store.take(
            [
                started(number, at=begin),
                usage(number, final=True, since=begin),
                series(number),
                ended(number, at=end),
            ],
            end,
        )
        store.take([found(number, at=end)], end)
        judge_by_logs(store, end + 60)
        store.put_resubmissions(
            [Resubmission(CLUSTER, number, 0, "gpu_oom", "never", "stopped", end, "no")], end
        )
        store.put_decisions(CLUSTER, [{"kind": "decision", "decision": f"d-{number}", "at": end}])
    store.take([found(number, serial=2) for number in (1, 2, 3, 4)], T0)
    # One that runs since long ago, and one that was never heard of again
    store.take([started(5, at=T0 - 500 * DAY), series(5)], T0 - 1)
    store.take([started(6, at=T0 - 500 * DAY, node="n6")], T0 - 500 * DAY)


def test_what_is_old_goes(store: Store) -> None:
    old_and_new(store)
    kept = [event("a", "error", at=T0 - 500 * DAY), event("b", at=T0 - 5)]
    store.take([*kept, event("a", "ok", at=T0 - 501 * DAY), event("xid", "info", at=T0 - 500 * DAY)], T0)
    store.clear_node(CLUSTER, "n1", T0 - 400 * DAY, "ada", "")
    store.clear_node(CLUSTER, "n2", T0 - 300 * DAY, "ada", "")
    purged = store.purge(T0, 365 * DAY, 90 * DAY)
    assert purged == Purged(jobs=2, series=3, events=2, decisions=1)
    kept_rows = contents(store)
    assert [dict(row)["job_id"] for row in kept_rows["job"]] == [2, 3, 4, 5]
    assert {dict(row)["job"][1] for row in kept_rows["series"]} == {4, 5}
    assert {dict(row)["job"][1] for row in kept_rows["gpu_usage"]} == {2, 3, 4}
    assert {dict(row)["job"][1] for row in kept_rows["job_node"]} == {2, 3, 4, 5}
    assert [dict(row)["node"] for row in kept_rows["node_clearance"]] == ["n2"]
    for table in ("verdict", "finding", "unjudged", "undecided", "resubmission"):
        assert {dict(row)["job"][1] for row in kept_rows[table]} == {2, 3, 4}
    assert [one.name for one in store.nodes(CLUSTER).nodes] == ["n1"], "n6 was silent for too long"
    assert store.events(EventQuery(cluster=CLUSTER, node="n1")).events == tuple(reversed(kept))
    assert [one.name for one in store.nodes(CLUSTER).nodes[0].unwell] == ["a", "b"]
    assert store.purge(T0, 365 * DAY, 90 * DAY) == Purged()
    assert contents(store) == kept_rows


def test_slurms_end_counts(store: Store) -> None:
    store.take([started(1, at=T0 - 400 * DAY)], T0 - 400 * DAY)
    store.enrich(
        [JobFacts(cluster=CLUSTER, job_id=1, restarts=0, state="COMPLETED", ended=T0 - 5, final=True)], T0
    )
    assert store.purge(T0, 365 * DAY, DAY).jobs == 0
    store.take([event("a", at=T0 + 366 * DAY)], T0 + 366 * DAY)
    assert store.purge(T0 + 366 * DAY, 365 * DAY, DAY).jobs == 1


def test_many_go_in_small_steps_and_others_write_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_JOBS", 10)
    told = [record for number in range(1, 101) for record in (started(number), series(number), ended(number))]
    store.take(told, T0)
    store.take([started(7000, at=T0 + 500 * DAY)], T0 + 500 * DAY)
    rests = []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        # Another writer gets in between any two steps, and a young job stays
        done = threading.Thread(target=store.take, args=([started(8000 + len(rests), at=T0 + 500 * DAY)], T0))
        done.start()
        done.join(30)
        assert not done.is_alive()

    purged = module.purge(lambda: store.writing("test"), T0 + 501 * DAY, 365 * DAY, 90 * DAY, rest=rest)
    assert (purged.jobs, purged.series) == (100, 100)
    assert len(rests) >= 20
    assert len(store.jobs(JobQuery(cluster=CLUSTER, limit=1000)).jobs) == 1 + len(rests)


def test_usage_that_comes_after_its_job_went_is_kept_again(store: Store) -> None:
    store.take([started(1), ended(1), event("a", at=T0 + 500 * DAY)], T0)
    assert store.purge(T0 + 500 * DAY, 365 * DAY, 90 * DAY).jobs == 1
    store.take([usage(1)], T0 + 500 * DAY)
    assert store.job(CLUSTER, 1) is not None


@pytest.mark.case("A9")
@pytest.mark.parametrize("ahead", [2 * DAY, 400 * DAY, 36500 * DAY])
def test_a_clock_that_is_far_ahead_removes_nothing(store: Store, ahead: float) -> None:
    old_and_new(store)
    store.purge(T0, 365 * DAY, 90 * DAY)
    before = contents(store)
    assert store.purge(T0 + ahead, 365 * DAY, 90 * DAY) == Purged()
    assert contents(store) == before


@pytest.mark.case("A9")
def test_without_jobs_the_newest_decision_counts(store: Store) -> None:
    lines = [{"kind": "decision", "decision": f"d-{day}", "at": T0 - day * DAY} for day in range(500)]
    store.put_decisions(CLUSTER, lines)
    assert store.purge(T0 + 36500 * DAY, 365 * DAY, 90 * DAY).decisions == 135


@pytest.mark.case("A9")
def test_one_purge_removes_so_much_and_the_next_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST", 20)
    monkeypatch.setattr(module, "_JOBS", 5)
    monkeypatch.setattr(module, "_ROWS", 5)
    told = [record for number in range(1, 101) for record in (started(number), series(number), ended(number))]
    store.take(told, T0)
    store.put_decisions(
        CLUSTER, [{"kind": "decision", "decision": f"d-{number}", "at": T0} for number in range(100)]
    )
    store.take([started(7000, at=T0 + 500 * DAY)], T0 + 500 * DAY)
    for _ in range(2):
        purged = store.purge(T0 + 500 * DAY, 365 * DAY, 90 * DAY)
        assert (purged.jobs, purged.series, purged.decisions) == (20, 20, 20)
