"""The contract of a store, on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from profiler.answers import NodeUse
from profiler.records import GpuRef, HostUse, JobRef, JobUsage, Record
from profiler.store import EventQuery, JobFacts, JobQuery, Store, StoreError
from profiler.store.schema import TABLES
from tests.properties import examples
from tests.unit.profiler.store.contents import contents
from tests.unit.profiler.store.records import (
    CLUSTER,
    GIB,
    T0,
    ended,
    event,
    found,
    gpu,
    series,
    started,
    usage,
    use,
)


def job_of(store: Store, number: int = 1, restarts: int | None = None):
    job = store.job(CLUSTER, number, restarts)
    assert job is not None
    return job


def test_job_from_start_to_end(store: Store) -> None:
    store.take([started()], T0)
    job = job_of(store)
    assert (job.started, job.ended, job.complete, job.gpus_known, job.gpus_idle) == (T0, None, False, 0, None)
    store.take([usage(serial=1), ended(exit_code=3, signal=0)], T0)
    job = job_of(store)
    assert (job.user, job.uid, job.nodes, job.work_dir) == ("ada", 1000, "n1", "/home/ada/run")
    assert (job.exit_code, job.signal, job.ended, job.complete) == (3, 0, T0 + 3600, True)
    assert (job.gpus, job.gpus_known, job.gpus_idle, job.utilisation_mean) == (2, 2, 1, 40.0)
    assert (job.gpu_memory_peak_bytes, job.gpu_memory_total_bytes, job.power_mean_w) == (
        40 * GIB,
        80 * GIB,
        250.0,
    )
    assert (job.gpu_seconds, job.cpu_seconds, job.memory_peak_bytes) == (7200.0, 120.5, 6 * GIB)
    assert job.state is None  # Slurm was not asked


def test_usage_comes_back_as_it_was_told(store: Store) -> None:
    full = use(
        3, 100.0, energy_j=1e9 + 0.125, temperature_peak_c=81, xids=(13, 79), faults=("power",),
        ecc_corrected=2**63 - 1, stuck_seconds=0.1, throttled={"sw_power_cap": 0.3},
    )  # fmt: skip
    bare = usage().gpus[0].__class__(GpuRef())
    told = usage(gpus=(full, bare), unseen_seconds=0.0, note="the driver hung", final=True)
    store.take([told], T0)
    found = store.usage(CLUSTER, 1)
    assert found is not None
    assert found.nodes == (
        NodeUse("n1", T0, T0 + 60, True, None, (full, bare), told.host, 0.0, "the driver hung"),
    )
    assert store.usage(CLUSTER, 1, node="n2") is not None and store.usage(CLUSTER, 1, node="n2").nodes == ()  # type: ignore[union-attr]
    assert store.usage(CLUSTER, 2) is None


def test_what_is_not_known_is_none(store: Store) -> None:
    store.take([started(gpus=None, uid=None, nodes=""), usage(gpus=(), host=None)], T0)
    job = job_of(store)
    assert (job.uid, job.gpus, job.gpus_idle, job.gpu_seconds, job.utilisation_mean) == (None,) * 5
    assert (job.cpu_seconds, job.memory_peak_bytes, job.gpus_known) == (None, None, 0)
    store.take(
        [usage(gpus=(use(0, None, busy_seconds=None), use(1, 0.0)), host=HostUse("proc"), serial=2)], T0
    )
    job = job_of(store)
    assert (job.gpus_idle, job.utilisation_mean, job.cpu_seconds) == (1, 0.0, None)


def test_a_gpu_without_utilisation_counts_by_its_processes(store: Store) -> None:
    store.take([usage(gpus=(use(0, None, busy_seconds=5.0), use(1, None, busy_seconds=0.0)))], T0)
    assert job_of(store).gpus_idle == 1


def test_no_gpus_is_not_unknown(store: Store) -> None:
    store.take([started(gpus=())], T0)
    assert job_of(store).gpus == 0


def test_several_nodes(store: Store) -> None:
    store.take([started(node="n1", nodes="n[1-2]"), ended(node="n1"), usage(node="n1")], T0)
    assert (job_of(store).ended, job_of(store).complete) == (None, False), "n2 has not told anything yet"
    store.take([ended(node="n2", at=T0 + 4000, exit_code=1)], T0)
    job = job_of(store)
    assert (job.ended, job.complete, job.exit_code) == (T0 + 4000, True, 1)
    store.take([usage(node="n2", gpus=(use(0, 10.0), use(1, 30.0)))], T0)
    job = job_of(store)
    assert (job.gpus_known, job.utilisation_mean, job.cpu_seconds) == (4, 30.0, 241.0)
    found = store.usage(CLUSTER, 1)
    assert found is not None and [one.node for one in found.nodes] == ["n1", "n2"]


def test_requeues_are_attempts_of_their_own(store: Store) -> None:
    store.take([started(), ended(exit_code=1), started(restarts=1, at=T0 + 9000)], T0)
    assert (job_of(store).restarts, job_of(store).complete) == (1, False)
    assert (job_of(store, restarts=0).exit_code, job_of(store, restarts=0).complete) == (1, True)
    assert store.job(CLUSTER, 1, 2) is None and store.job("other", 1) is None


def test_the_better_witness_counts(store: Store) -> None:
    store.take([started(source="reconciled", at=T0 - 50, user="ghost")], T0)
    store.take([started(), ended(source="reconciled", at=T0 + 1), ended(source="reboot", at=T0 + 2)], T0)
    assert (job_of(store).started, job_of(store).user, job_of(store).ended) == (T0, "ada", T0 + 1)
    store.take([ended(at=T0 + 3, exit_code=9), started(source="reconciled", at=T0 - 60)], T0)
    assert (job_of(store).started, job_of(store).ended, job_of(store).exit_code) == (T0, T0 + 3, 9)


def test_the_higher_serial_counts(store: Store) -> None:
    store.take([usage(serial=5, gpus=(use(0, 50.0), use(1, 50.0), use(2, 50.0))), series(serial=5)], T0)
    store.take([usage(serial=4), series(serial=4, step=99.0)], T0)
    assert job_of(store).gpus_known == 3
    store.take([usage(serial=6, gpus=(use(0, 60.0),)), series(serial=6, step=20.0)], T0)
    assert (job_of(store).gpus_known, job_of(store).utilisation_mean) == (1, 60.0)
    found, course = store.usage(CLUSTER, 1), store.series(CLUSTER, 1)
    assert found is not None and len(found.nodes[0].gpus) == 1, "GPUs of the older word are gone"
    assert course is not None and course.nodes[0].step == 20.0


def test_series(store: Store) -> None:
    told = [series(node=f"n{n}") for n in (2, 1, 3)]
    store.take(told, T0)
    course = store.series(CLUSTER, 1)
    assert course is not None and [one.node for one in course.nodes] == ["n1", "n2", "n3"]
    assert (course.nodes[0].gpus, course.nodes[0].cpus) == (told[0].gpus, told[0].cpus)
    assert course.nodes[0].memory_bytes == told[0].memory_bytes
    one = store.series(CLUSTER, 1, node="n3", limit=1)
    assert one is not None and [course.node for course in one.nodes] == ["n3"]
    assert course.job.started is None and store.jobs(JobQuery(cluster=CLUSTER, since=T0)).jobs == (
        course.job,
    )


@pytest.mark.parametrize(
    "text", ["a\0b", "\ud800", "\u202e\u2603\U0001f600", "'; DROP TABLE job; --", "%s :x ?"]
)
def test_any_text_is_kept(store: Store, text: str) -> None:
    bad = "\0" in text or "\ud800" in text
    store.take([started(user=text, work_dir=text), usage(note=text), event(detail=text)], T0)
    job = job_of(store)
    found = store.events(EventQuery(cluster=CLUSTER, node="n1")).events[0].detail
    for kept in (job.user, job.work_dir, found):
        assert kept == text if not bad else len(kept) == len(text)


def test_a_value_that_cannot_be_kept_is_refused_with_nothing_written(store: Store) -> None:
    before = contents(store)
    with pytest.raises(StoreError) as refused:
        store.take([started(1), usage(2, serial=2**70)], T0)
    assert refused.value.kind == "refused"
    assert contents(store) == before
    store.take([started(1)], T0)


# Slurm's word


def facts(number: int = 1, **more: Any) -> JobFacts:
    values: dict[str, Any] = {
        "cluster": CLUSTER, "job_id": number, "restarts": 0, "name": "train", "user": "grace", "uid": 1001,
        "account": "nlp", "partition": "big", "qos": "high", "state": "COMPLETED", "exit_code": 0, "signal": 0,
        "submitted": T0 - 60, "started": T0 - 1, "ended": T0 + 3601, "time_limit": 7200.0, "nodes": "n1", "cpus": 16,
        "gpus": 2, "memory_asked_bytes": 64 * GIB, "work_dir": "/w", "stdout": "o", "stderr": "e", "final": True,
    } | more  # fmt: skip
    return JobFacts(**values)


def test_slurms_word_stays(store: Store) -> None:
    store.take([started(gpus=None)], T0)
    assert store.enrich([facts()], T0 + 5) == 1
    store.take([usage(), ended(exit_code=7), started(source="prolog", at=T0 - 30, user="x")], T0)
    job = job_of(store)
    assert (job.name, job.user, job.uid, job.state, job.exit_code) == ("train", "grace", 1001, "COMPLETED", 0)
    assert (job.started, job.ended, job.gpus, job.complete) == (T0 - 1, T0 + 3601, 2, True)
    assert [one.job_id for one in store.jobs(JobQuery(cluster=CLUSTER, user="grace")).jobs] == [1]


def test_what_slurm_does_not_say_stays(store: Store) -> None:
    store.take([started(), ended(exit_code=4)], T0)
    store.enrich(
        [JobFacts(cluster=CLUSTER, job_id=1, state="RUNNING", name="a", ended=T0 + 1e6, exit_code=0)], T0
    )
    assert job_of(store).state is None, "without restarts and start it may be any attempt"
    running = JobFacts(
        cluster=CLUSTER, job_id=1, restarts=0, state="RUNNING", name="a", ended=T0 + 1e6, exit_code=0
    )
    store.enrich([running], T0)
    job = job_of(store)
    assert (job.name, job.user, job.ended, job.exit_code, job.gpus) == ("a", "ada", T0 + 3600, 4, 2)
    store.enrich([facts(name="")], T0)
    assert (job_of(store).name, job_of(store).state) == ("a", "COMPLETED")
    store.enrich([running], T0)
    assert job_of(store).state == "COMPLETED", "an older look changes nothing"


def test_a_state_from_before_the_end_is_not_told_after_it(store: Store) -> None:
    def states() -> set[str | None]:
        listed = [one for one in store.jobs(JobQuery(cluster=CLUSTER)).jobs if one.job_id == 1]
        used, course = store.usage(CLUSTER, 1), store.series(CLUSTER, 1)
        assert used is not None and course is not None
        return {one.state for one in (job_of(store), used.job, course.job, *listed)}

    def running() -> list[int]:
        return [one.job_id for one in store.jobs(JobQuery(cluster=CLUSTER, state="RUNNING")).jobs]

    store.take([started(1), started(2)], T0)
    store.enrich([facts(n, state="RUNNING", ended=None, final=False) for n in (1, 2)], T0 + 5)
    assert states() == {"RUNNING"} and running() == [2, 1]
    store.take([ended(1, exit_code=0)], T0 + 6)
    assert states() == {None} and running() == [2]
    store.enrich([facts(1, state="FAILED", final=False)], T0 + 7)  # its nodes are not free yet
    assert states() == {"FAILED"}
    store.enrich([facts(1, state="OUT_OF_MEMORY")], T0 + 8)
    assert states() == {"OUT_OF_MEMORY"} and running() == [2]


def test_attempts_are_told_apart_by_their_start(store: Store) -> None:
    store.take([started(), ended(), started(restarts=1, at=T0 + 9000)], T0)
    first = facts(restarts=None, state="NODE_FAIL", started=T0 - 5, ended=T0 + 3600)
    second = facts(restarts=None, started=T0 + 8990, ended=T0 + 9900)
    lost = facts(restarts=None, started=T0 + 80_000, ended=T0 + 80_001)
    assert store.enrich([second, first, lost, facts(99)], T0) == 2
    assert [job_of(store, 1, n).state for n in (0, 1)] == ["NODE_FAIL", "COMPLETED"]


def test_wanting(store: Store) -> None:
    store.take([started(1), started(2)], T0)
    wanted = store.wanting(CLUSTER, 10, T0)
    assert {one.job for one in wanted} == {JobRef(1), JobRef(2)} and wanted[0].started == T0
    assert store.wanting(CLUSTER, 10, T0) == (), "they were just asked about"
    assert len(store.wanting(CLUSTER, 1, T0 + 16)) == 1
    assert len(store.wanting(CLUSTER, 10, T0 + 47)) == 2
    store.enrich([facts(1, state="RUNNING", final=False, ended=None)], T0 + 47)
    assert store.wanting(CLUSTER, 10, T0 + 48) == ()
    store.take([ended(1)], T0 + 50)
    assert [one.job.job_id for one in store.wanting(CLUSTER, 10, T0 + 50)] == [1], "its end is news"
    store.enrich([facts(1), facts(2)], T0 + 51)
    store.take([usage(1), ended(2)], T0 + 52)
    assert store.wanting(CLUSTER, 10, T0 + 1e6) == (), "Slurm has said the last word"


@pytest.mark.slow
def test_wanting_gives_up_in_the_end(store: Store) -> None:
    store.take([started(1)], T0)
    asked = sum(len(store.wanting(CLUSTER, 10, T0 + hour * 3600)) for hour in range(24 * 30))
    assert 24 * 6 < asked < 24 * 8
    store.take([ended(1)], T0 + 30 * 86400)
    assert len(store.wanting(CLUSTER, 10, T0 + 30 * 86400)) == 1


def test_what_ended_since_comes_by_its_end(store: Store) -> None:
    """However long ago it began; in pages, and narrowed down as any list of jobs."""
    for number in range(1, 8):  # 1 ran longest, and ended last
        store.take([started(number, at=T0 + number), ended(number, at=T0 + 100 - number)], T0)
    store.take([started(8, at=T0 + 8), started(9, at=T0, uid=5), ended(9, at=T0 + 200)], T0)
    told = {"user": "ada", "uid": 1000, "account": "vision", "started": T0 + 2, "ended": T0 + 98}
    store.enrich([facts(2, state="FAILED", **told)], T0 + 300)

    def ids(**query: Any) -> list[int]:
        found: list[int] = []
        cursor = None
        while True:
            page = store.jobs(JobQuery(cluster=CLUSTER, limit=2, cursor=cursor, **query))
            found += [one.job_id for one in page.jobs]
            if (cursor := page.next) is None:
                return found

    assert ids(ended_since=T0 + 96) == [9, 1, 2, 3, 4]
    assert ids(ended_since=T0 + 96, uid=1000) == [1, 2, 3, 4]
    assert ids(ended_since=T0 + 96, user="ada", account="vision", state="FAILED") == [2]
    assert ids(ended_since=T0 + 96, since=T0 + 2, until=T0 + 4) == [2, 3]
    assert ids(ended_since=T0 + 201) == [] and ids(ended_since=0.0, uid=5) == [9]


def test_arrays_and_hetjobs(store: Store) -> None:
    store.take([started(101), started(102, het_job_id=102), started(103, het_job_id=102)], T0)
    store.enrich(
        [facts(101, array_job_id=100, array_task_id=7), facts(103, het_job_id=102, het_offset=1)], T0
    )
    assert store.id_of(CLUSTER, 100, task=7) == 101 and store.id_of(CLUSTER, 100, task=8) is None
    assert store.id_of(CLUSTER, 102, offset=1) == 103
    assert (job_of(store, 101).array_task_id, job_of(store, 103).het_job_id) == (7, 102)


# Nodes, events, decisions


def test_nodes(store: Store) -> None:
    store.take([started(1), started(2, node="n2"), usage(3, node="n2"), ended(4, node="n3")], T0 + 7)
    store.take(
        [
            event("a", "error", at=T0),
            event("a", "warning", at=T0 + 1),
            event("b", "error"),
            event("xid", "info"),
        ],
        T0 + 9,
    )
    store.take([event("a", "error", at=T0), event("b", "ok", at=T0 + 5)], T0 + 8)
    n1, n2, n3 = store.nodes(CLUSTER).nodes
    assert (n1.name, n1.heard, n1.jobs) == ("n1", T0 + 9, (JobRef(1),))
    assert [(one.name, one.state, one.at) for one in n1.unwell] == [("a", "warning", T0 + 1)]
    assert (n2.jobs, n2.unwell, n3.jobs) == ((JobRef(2), JobRef(3)), (), ())
    store.take([ended(1), usage(3, node="n2", serial=2, final=True)], T0)
    store.enrich([facts(2)], T0)
    assert [one.jobs for one in store.nodes(CLUSTER).nodes] == [(), (), ()]
    assert store.nodes(CLUSTER, "n1").nodes[0].name == "n1" and store.nodes("other").nodes == ()


def test_events(store: Store) -> None:
    told = [event(at=T0 + n, gpu=gpu(n), job=JobRef(5, 1), action="drain") for n in range(5)]
    store.take(told + told, T0)
    store.take(told, T0)
    assert store.events(EventQuery(cluster=CLUSTER, node="n1")).events == tuple(reversed(told))
    first = store.events(EventQuery(cluster=CLUSTER, node="n1", limit=2))
    rest = store.events(EventQuery(cluster=CLUSTER, node="n1", limit=100, cursor=first.next))
    assert (*first.events, *rest.events) == tuple(reversed(told)) and rest.next is None
    some = store.events(EventQuery(cluster=CLUSTER, node="n1", since=T0 + 1, until=T0 + 3)).events
    assert [one.at for one in some] == [T0 + 2, T0 + 1]


def test_decisions_in_any_order(store: Store) -> None:
    made = {
        "v": 1,
        "kind": "decision",
        "decision": "d-1",
        "at": T0,
        "uid": 5,
        "mode": "observe",
        "enforced": False,
    }
    joined = {"v": 1, "kind": "job", "decision": "d-1", "at": T0 + 9, "job": 7}
    junk = {"kind": "decision", "at": "x"}
    assert store.put_decisions(CLUSTER, [joined]) == 1
    assert store.put_decisions(CLUSTER, [made, junk]) == 1
    once = contents(store)
    row = dict(once["decision"][0])
    assert (row["at"], row["uid"], row["outcome"], row["job_id"]) == (T0, 5, "job", 7)
    store.put_decisions(CLUSTER, [made, joined, made])
    assert contents(store) == once


# The same set of records, whatever the order

_WORLD: list[Record] = [
    *(
        record
        for node in ("n1", "n2")
        for restarts in (0, 1)
        for record in (
            started(node=node, restarts=restarts, nodes="n[1-2]", at=T0 + restarts * 5000 + (node == "n2") / 4),
            started(node=node, restarts=restarts, nodes="n1", at=T0 - 3, source="reconciled", user="ghost", uid=9),
            ended(node=node, restarts=restarts, at=T0 + restarts * 5000 + 900, exit_code=1 if node == "n1" else None),
            ended(node=node, restarts=restarts, at=T0 + restarts * 5000 + 800, source="reboot"),
            usage(node=node, restarts=restarts, serial=1, gpus=(use(0, 0.1), use(1, 0.2), use(2, 0.3))),
            usage(node=node, restarts=restarts, serial=2, gpus=(use(0, 33.3, seconds=7.7), use(1, 0.7))),
            usage(node=node, restarts=restarts, serial=2, final=True, at=T0 + 121),
            series(node=node, restarts=restarts, serial=1),
            series(node=node, restarts=restarts, serial=2, final=True, since=T0 - 1),
            found(node=node, restarts=restarts),
            found(node=node, restarts=restarts, reason="nccl_error", serial=2, at=T0 + restarts * 5000 + 901),
        )
    ),
    *(event(name, state, at=T0 + n) for n, (name, state) in enumerate([("a", "error"), ("a", "ok"), ("b", "warning")])),
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_order_and_repetition_gives_the_same_store(store: Store, data: st.DataObject) -> None:
    some = data.draw(st.lists(st.sampled_from(_WORLD), min_size=1, unique_by=lambda one: one.id))
    told = data.draw(st.permutations(some + data.draw(st.lists(st.sampled_from(some)))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(told)))))
    said = (
        [facts(restarts=0, state="FAILED", uid=4), facts(restarts=1, started=T0 + 4999)]
        if data.draw(st.booleans())
        else []
    )
    when = data.draw(st.integers(0, len(cuts)))
    empty(store)
    store.take(some, T0)
    store.enrich(said, T0)
    expected = contents(store, told_only=True)
    empty(store)
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(told)], strict=True)):
        if number == when:
            store.enrich(said, T0)
        store.take(told[start:end], T0 + number)
    store.enrich(said, T0)
    assert contents(store, told_only=True) == expected


def empty(store: Store) -> None:
    with store.writing("test") as connection:
        for table in reversed(TABLES):
            connection.execute(delete(table))


@pytest.mark.slow
def test_readers_see_one_moment_while_records_come(store: Store) -> None:
    store.take([started()], T0)
    stop, failures, seen = threading.Event(), list[BaseException](), set[int]()

    def read() -> None:
        try:
            while not stop.is_set():
                found = store.usage(CLUSTER, 1)
                assert found is not None
                count = sum(len(one.gpus) for one in found.nodes)
                assert found.job.gpus_known == count
                seen.add(count)
                page = store.jobs(JobQuery(cluster=CLUSTER, uid=1000))
                assert page.jobs
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for thread in readers:
        thread.start()
    try:
        for serial in range(1, 200):
            store.take([grown(serial), started(serial + 1)], T0)
    finally:
        stop.set()
        for thread in readers:
            thread.join()
    assert failures == []
    assert seen


def grown(serial: int) -> JobUsage:
    return usage(serial=serial, gpus=tuple(use(n, 5.0) for n in range(serial % 7 + 1)))


@pytest.mark.slow
def test_several_writers(store: Store) -> None:
    """Two services for one cluster by mistake, or two threads: nothing is lost."""
    from profiler.store import open_store

    other = open_store(store.engines.url.render_as_string(hide_password=False))
    failures: list[BaseException] = []

    def write(to: Store, node: str) -> None:
        try:
            for serial in range(1, 40):
                to.take(
                    [usage(node=node, serial=serial), started(node=node), event(node=node, at=T0 + serial)],
                    T0,
                )
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=write, args=(to, node))
        for to, node in ((store, "n1"), (other, "n2"), (store, "n3"), (other, "n4"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert failures == []
    assert job_of(store).gpus_known == 8
