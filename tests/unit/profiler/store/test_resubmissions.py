"""What follows failed attempts: marked with their verdict, decided once, worked on until it has ended."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, select, text

from profiler.answers import Clearance
from profiler.records import Record
from profiler.resubmissions import PastAttempt, Resubmission
from profiler.store import Judged, Store, StoreError, Undecided, VerdictQuery, open_store, schema
from profiler.store import judging as judging_module
from profiler.store.marks import RECENT
from profiler.store.upgrade import HEAD, upgrade
from tests.paths import REPOSITORY
from tests.unit.profiler.store import decider
from tests.unit.profiler.store.contents import contents
from tests.unit.profiler.store.records import CLUSTER, T0, ended, found, judge_by_logs, started
from tests.unit.profiler.store.test_verdicts import failed

ROOT = REPOSITORY
END, NOW = decider.END, decider.NOW
LATER = NOW + 1e6


def fail(store: Store, *numbers: int, at: float = NOW, **more: Any) -> None:
    """Attempts that failed at END, judged at a time."""
    reason, restarts, serial = more.pop("reason", "gpu_oom"), more.get("restarts", 0), more.pop("serial", 1)
    uid, nodes = more.get("uid", 1000), more.pop("nodes", "n1")
    records: list[Record] = []
    for number in numbers:
        records += [
            started(number, restarts=restarts, uid=uid, nodes=nodes),
            ended(number, at=END, restarts=restarts),
            found(number, reason, serial=serial, restarts=restarts),
        ]
    store.take(records, at)
    store.enrich([failed(number, **more) for number in numbers], at)
    judge_by_logs(store, at)


def waiting(store: Store, now: float = LATER, limit: int = 1000) -> list[int]:
    return [one.job.job_id for one in store.undecided(CLUSTER, limit, now)]


def row(number: int = 1, **more: Any) -> Resubmission:
    values: dict[str, Any] = {
        "restarts": 0,
        "reason": "gpu_oom",
        "action": "requeue",
        "state": "planned",
        "at": NOW,
        "why": "tried again",
        "due": NOW + 60,
        "step": "requeue",
    } | more
    return Resubmission(CLUSTER, number, **values)


def decide(store: Store, *rows: Resubmission) -> list[int]:
    """Answer all that waits with these rows; the jobs of those that were written."""
    of = store.undecided(CLUSTER, 1000, LATER)
    return [one.job_id for one in store.put_resubmissions(rows, NOW, of=of)]


# Marks


@pytest.mark.slow
def test_a_failure_waits_until_it_is_decided_and_only_once(store: Store) -> None:
    fail(store, 1, 2, nodes="n[1-2]", comment="gsub:checkpoint")
    first, second = store.undecided(CLUSTER, 10, NOW)
    assert (first.job.job_id, first.finding.reason, first.source) == (1, "gpu_oom", "user")
    assert (first.nodes, first.runtime, first.comment) == (("n1", "n2"), 3600.0, "gsub:checkpoint")
    assert not first.unread, "its logs were read"
    assert first.resubmission is None and second.job.job_id == 2
    assert waiting(store) == [1, 2], "to look is not to take"
    assert decide(store, row(1)) == [1]
    store.put_resubmissions([], NOW, of=[second])
    assert waiting(store) == [2], "without an answer it stays"
    fail(store, 1, serial=2)
    assert waiting(store) == [2], "the same reason again"


@pytest.mark.parametrize(
    ("ago", "marked"), [(0, True), (RECENT - 1, True), (RECENT, False), (86400 * 300, False), (-30, True)]
)
def test_only_what_ended_lately_is_marked(store: Store, ago: float, marked: bool) -> None:
    fail(store, 1, at=END + ago)
    assert waiting(store) == [1] * marked


def test_nothing_is_marked_before_slurm_has_told_the_end(store: Store) -> None:
    store.take([started(), found()], T0)
    judge_by_logs(store, T0 + 100)
    assert store.verdict(CLUSTER, 1).verdict is not None and waiting(store) == []  # type: ignore[union-attr]
    store.enrich([failed()], NOW)
    judge_by_logs(store, NOW)
    assert waiting(store) == [1], "though the verdict is the same as before"


def test_what_ended_well_after_all_is_forgotten(store: Store) -> None:
    fail(store, 1, 2)
    store.take([found(1, serial=2), found(2, serial=2)], NOW)
    told = {case.job.job_id: case for case in store.unjudged(CLUSTER, 9, NOW)}
    remark = msgspec.structs.replace(found().finding, reason="none", remarks=("a step failed",))
    store.put_verdicts([Judged(told[1]), Judged(told[2], remark)], NOW)
    assert waiting(store) == []


def test_verdict_and_mark_are_written_together_or_not_at_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(judging_module, "mark_failed", fails)
    with pytest.raises(StoreError):
        fail(store, 1)
    assert store.verdicts(VerdictQuery(cluster=CLUSTER)).verdicts == () and waiting(store) == []
    monkeypatch.undo()
    judge_by_logs(store, NOW)
    assert waiting(store) == [1]


@pytest.mark.parametrize(
    ("before", "again"),
    [
        ({"state": "planned"}, True),
        ({"state": "requeued", "step": "update", "tries": 1}, True),
        ({"state": "done", "tries": 2}, False),
        ({"state": "stopped", "stop": "never"}, True),
        ({"state": "stopped", "stop": "mode"}, True),
        ({"state": "stopped", "stop": "limit", "tries": 1}, False),
        ({"state": "stopped", "stop": "moved_on"}, False),
        ({"state": "stopped", "stop": "gone"}, False),
        ({"state": "stopped", "stop": "slurm"}, False),
    ],
)
def test_another_reason_is_decided_anew_while_nothing_was_done(
    store: Store, before: dict[str, Any], again: bool
) -> None:
    fail(store, 1)
    decided = row(1, **before)
    decide(store, decided)
    fail(store, 1, reason="nccl_error", serial=2)
    assert waiting(store) == [1] * again
    if again:
        (one,) = store.undecided(CLUSTER, 1, NOW)
        assert one.finding.reason == "nccl_error" and one.resubmission == decided
        assert decide(store, row(1, reason="nccl_error")) == [1] and waiting(store) == []
    fail(store, 1, reason="cpu_oom", serial=3, at=END + RECENT)
    assert waiting(store) == [], "it is too late"


def test_what_was_decided_by_an_older_verdict_is_not_written(store: Store) -> None:
    fail(store, 1, 2)
    of = store.undecided(CLUSTER, 10, NOW)
    fail(store, 1, reason="nccl_error", serial=2)
    assert [one.job_id for one in store.put_resubmissions([row(1), row(2)], NOW, of=of)] == [2]
    assert store.resubmissions(CLUSTER, 1) == () and waiting(store) == [1]
    store.put_off(of, LATER + 5)
    assert waiting(store) == [1], "what was put off is judged anew"


def test_two_that_decide_about_the_same(store: Store) -> None:
    fail(store, 1)
    of = store.undecided(CLUSTER, 1, NOW)
    assert store.put_resubmissions([row(1, why="first")], NOW, of=of)
    assert store.put_resubmissions([row(1, why="second")], NOW, of=of) == ()
    assert store.resubmissions(CLUSTER, 1)[0].why == "first"


def test_put_off(store: Store) -> None:
    fail(store, 1, 2)
    store.put_off(store.undecided(CLUSTER, 1, NOW), NOW + 60)
    assert waiting(store, NOW) == [2] and waiting(store, NOW + 60) == [2, 1]


def test_users_in_turn(store: Store) -> None:
    fail(store, *range(1, 8))
    fail(store, 8, 9, uid=1001)
    assert waiting(store, limit=4) == [1, 8, 2, 9]
    decide(store, *(row(number, due=NOW) for number in range(1, 10)))
    assert [(one.resubmission.job_id, one.uid) for one in store.due_resubmissions(CLUSTER, 3, NOW)] == [
        (1, 1000),
        (8, 1001),
        (2, 1000),
    ]
    assert len(store.due_resubmissions(CLUSTER, 100, NOW)) == 9


@pytest.mark.slow
def test_ten_thousand_failures_of_one_user_keep_no_other_waiting(store: Store) -> None:
    """Neither from being judged, nor decided, nor carried out."""
    fail(store, 1)
    store.put_resubmissions([row(1, due=NOW)], NOW)
    crowd(store, 10_500)
    fail(store, 20_001, 20_002, at=NOW + 60, uid=1001)
    store.put_resubmissions([row(number, due=NOW + 60) for number in (20_001, 20_002)], NOW)
    store.take([found(20_001, "cpu_oom", serial=7), found(20_002, "cpu_oom", serial=7)], NOW + 90)
    other = {20_001, 20_002}
    for limit, all_ in ((4, True), (200, True), (2, False)):
        first = [one.job.job_id for one in store.unjudged(CLUSTER, limit, LATER)]
        second = waiting(store, limit=limit)
        third = [one.resubmission.job_id for one in store.due_resubmissions(CLUSTER, limit, LATER)]
        for ids in (first, second, third):
            assert len(ids) == limit
            assert other <= set(ids) if all_ else other & set(ids)


def crowd(store: Store, count: int) -> None:
    """The first job many times more, with all that waits of it, longer than anybody else."""
    with store.writing("copies") as connection:
        of_job = dict(connection.execute(select(schema.job)).mappings().one())
        jobs = [of_job | {"pk": 1000 + n, "job_id": 1000 + n} for n in range(count)]
        connection.execute(insert(schema.job), jobs)
        mark = {"job": of_job["pk"], "cluster": CLUSTER, "due": NOW, "mark": 1}
        connection.execute(insert(schema.unjudged), [mark | {"job": one["pk"]} for one in jobs])
        for table in (schema.undecided, schema.verdict, schema.resubmission):
            kept = dict(connection.execute(select(table)).mappings().one())
            connection.execute(insert(table), [kept | {"job": one["pk"]} for one in jobs])
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT setval(pg_get_serial_sequence('job', 'pk'), 100000)"))


# Rows


def test_a_row_is_kept_as_it_is_and_changed_by_the_next(store: Store) -> None:
    fail(store, 1)
    told = row(
        1, avoid=("n1",), memory_mib=48 << 10, memory_was_mib=32 << 10, memory_per="node", nth=1, budget=3
    )
    decide(store, told)
    assert store.resubmissions(CLUSTER, 1) == (told,)
    next_ = msgspec.structs.replace(told, state="requeued", step="update", said="ok")
    assert store.put_resubmissions([next_], NOW) == (next_,)
    assert store.resubmissions(CLUSTER, 1) == (next_,)
    done = msgspec.structs.replace(next_, state="done", step="", due=None)
    store.put_resubmissions([done], NOW)
    assert store.put_resubmissions([told], NOW) == (), "what is done is not undone"
    assert store.resubmissions(CLUSTER, 1) == (done,) and store.due_resubmissions(CLUSTER, 9, LATER) == ()


def test_due(store: Store) -> None:
    fail(store, 1, 2, 3, 4, 5)
    decide(
        store,
        row(1, due=NOW + 60),
        row(2, due=None),
        row(3, due=NOW - 5),
        row(4, state="done", due=NOW - 5, step=""),
        row(5, state="stopped", stop="never", due=NOW - 5, step=""),
    )

    def due(now: float) -> list[int]:
        return [one.resubmission.job_id for one in store.due_resubmissions(CLUSTER, 9, now)]

    assert due(NOW) == [3, 2], "without a time it is at once"
    assert due(NOW + 60) == [3, 2, 1]


def test_rows_of_attempts_that_are_not_there_are_passed_over(store: Store) -> None:
    fail(store, 1)
    assert store.put_resubmissions([row(7), row(1, restarts=3)], NOW) == ()
    assert contents(store)["resubmission"] == []


def test_what_this_release_cannot_read_holds_up_no_other(store: Store) -> None:
    fail(store, 1, 2, 3)
    decide(store, row(1, due=NOW - 9), row(2, due=NOW), row(3, due=NOW))
    with store.writing("test") as connection:
        connection.execute(text("UPDATE resubmission SET body = :body WHERE job_id = 1"), {"body": '{"v":9}'})
    assert [one.resubmission.job_id for one in store.due_resubmissions(CLUSTER, 1, NOW)] == [2]
    assert store.resubmissions(CLUSTER, 1) == ()
    assert store.past_of(CLUSTER, 1, 1)[0].resubmission is None


# Of one job


def test_all_attempts_of_a_job(store: Store) -> None:
    for count, nodes in enumerate(["n[1-2]", "n3", ""]):
        fail(store, 1, restarts=count, nodes=nodes, reason=f"r{count}")
        decide(store, row(1, restarts=count, reason=f"r{count}"))
    store.take([started(1, restarts=3)], NOW)
    assert [one.reason for one in store.resubmissions(CLUSTER, 1)] == ["r0", "r1", "r2"]
    assert store.resubmissions(CLUSTER, 1, uid=1001) == () == store.resubmissions(CLUSTER, 2)
    past = store.past_of(CLUSTER, 1, 3)
    assert [(one.restarts, one.finding and one.finding.reason, one.nodes) for one in past] == [
        (0, "r0", ("n1", "n2")),
        (1, "r1", ("n3",)),
        (2, "r2", ("n1",)),
    ]
    assert past[0] == PastAttempt(
        restarts=0,
        finding=found(reason="r0").finding,
        nodes=("n1", "n2"),
        runtime=3600.0,
        ended=END,
        resubmission=row(1, reason="r0"),
    )
    assert store.past_of(CLUSTER, 1, 1) == past[:1] and store.past_of(CLUSTER, 1, 0) == ()


def test_an_attempts_usage_tells_what_follows(store: Store) -> None:
    fail(store, 1)
    fail(store, 1, restarts=1)
    decide(store, row(1))
    told = [store.usage(CLUSTER, 1, restarts) for restarts in (0, 1)]
    assert [one and one.resubmission for one in told] == [row(1), None]


def test_a_number_that_came_again_has_no_past(store: Store) -> None:
    fail(store, 1, uid=1001)
    fail(store, 1, restarts=1)
    fail(store, 1, restarts=2)
    decide(store, row(1), row(1, restarts=1))
    assert [one.restarts for one in store.past_of(CLUSTER, 1, 2)] == [1]
    assert [one.restarts for one in store.resubmissions(CLUSTER, 1, uid=1000)] == [1]


def test_attempts_without_a_verdict_are_told_too(store: Store) -> None:
    store.take([started(1), started(1, restarts=1)], T0)
    assert store.past_of(CLUSTER, 1, 1) == (PastAttempt(0, nodes=("n1",)),)


# While others write


def test_no_failure_is_lost_or_decided_twice_while_verdicts_come(store: Store) -> None:
    """Reasons change while somebody decides: what stands in the end is by the last reason, and each was answered."""
    numbers = range(1, 31)
    fail(store, *numbers, reason="r0")
    failures: list[BaseException] = []

    def judge() -> None:
        try:
            for serial in range(1, 6):
                fail(store, *numbers, reason=f"r{serial}", serial=serial + 1)
        except BaseException as error:
            failures.append(error)

    def answer() -> bool:
        of = store.undecided(CLUSTER, 7, NOW)
        rows = [row(one.job.job_id, reason=one.finding.reason) for one in of]
        store.put_resubmissions(rows, NOW, of=of)
        return bool(of)

    thread = threading.Thread(target=judge)
    thread.start()
    while thread.is_alive():
        answer()
    thread.join()
    while answer():
        pass
    assert failures == []
    assert [store.resubmissions(CLUSTER, number)[0].reason for number in numbers] == ["r5"] * 30


@pytest.mark.slow
def test_killed_between_a_verdict_and_what_follows(store: Store) -> None:
    """Whenever it is: each failure that was judged either waits or is decided, and what is decided stays so."""
    chance = random.Random(5)
    address = store.engines.url.render_as_string(hide_password=False)
    seen: dict[int, Any] = {}
    begin = 1
    for _ in range(4):
        command = [sys.executable, "-m", "tests.unit.profiler.store.decider", address, str(begin)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as child:
            assert child.stdout is not None
            for _ in range(chance.randrange(1, 5)):
                begin = int(child.stdout.readline()) + decider.JOBS
            os.kill(child.pid, signal.SIGKILL)
            begin = max([begin, *(int(line) + decider.JOBS for line in child.stdout.read().split())])
        tables = {
            name: {dict(one)["job"][1] for one in rows}
            for name, rows in contents(store).items()
            if name in ("verdict", "undecided", "resubmission")
        }
        assert tables["undecided"] | tables["resubmission"] == tables["verdict"] >= set(range(1, begin))
        assert not tables["undecided"] & tables["resubmission"], "it would be decided twice"
        rows = {number: store.resubmissions(CLUSTER, number) for number in tables["resubmission"]}
        assert seen.items() <= rows.items() and all(len(one) == 1 for one in rows.values())
        # A batch that was cut off before its verdicts is told again, as nodes would
        seen, begin = rows, max([begin, *(number + 1 for number in tables["verdict"])])
    while decider.decide(store, 100, "in the end"):
        pass
    assert len(seen) < len(contents(store)["resubmission"]) == len(contents(store)["verdict"])
    assert store.undecided(CLUSTER, 1000, LATER) == ()


# Nodes


def test_clearances(store: Store) -> None:
    store.clear_node(CLUSTER, "n2", T0, "ada", "riser\0 reseated")
    store.clear_node(CLUSTER, "n1", T0, "ada", "")
    store.clear_node(CLUSTER, "n2", T0 + 5, "bob", "new GPU")
    store.clear_node(CLUSTER, "n2", T0 + 1, "eve", "late")
    assert store.clearances(CLUSTER) == (
        Clearance("n1", T0, "ada", ""),
        Clearance("n2", T0 + 5, "bob", "new GPU"),
    )
    assert store.clearances("other") == ()


# The schema before


def test_a_year_of_verdicts_of_the_schema_before_asks_for_nothing(new_url: Callable[[], str]) -> None:
    store = open_store(new_url())
    store.engines.create()
    with store.writing("test", checked=False) as connection:
        upgrade(connection, "test", to="0003")
        connection.execute(
            text(
                "INSERT INTO job (cluster, job_id, restarts, sort_at, touched, facts_final, state, uid, started, ended)"
                " VALUES ('lab', :pk, 0, 1, 1, :yes, 'FAILED', 1000, :started, :ended)"
            ),
            [
                {"pk": pk, "yes": True, "started": NOW - pk * 86400 - 60, "ended": NOW - pk * 86400}
                for pk in range(1, 366)
            ],
        )
        connection.execute(
            text("INSERT INTO unjudged (job, cluster, due, mark) SELECT pk, 'lab', 0, 0 FROM job")
        )
        connection.execute(
            text(
                "INSERT INTO verdict (job, cluster, job_id, uid, at, reason, tier, source, body)"
                " SELECT pk, 'lab', job_id, uid, ended, 'nccl_error', 'explicit', 'user', :body FROM job"
                " WHERE job_id > 99"
            ),
            {"body": '{"reason":"nccl_error"}'},
        )
    assert store.migrate() == ("0003", HEAD)
    while cases := store.unjudged(CLUSTER, 100, NOW):
        store.put_verdicts([Judged(case, found(reason="node_failure").finding) for case in cases], NOW)
    assert (
        len(store.verdicts(VerdictQuery(cluster=CLUSTER, reason="node_failure", limit=1000)).verdicts) == 365
    )
    assert store.undecided(CLUSTER, 1000, LATER) == () == store.due_resubmissions(CLUSTER, 1000, LATER)
    fail(store, 1000)
    of: tuple[Undecided, ...] = store.undecided(CLUSTER, 1000, LATER)
    assert [one.job.job_id for one in of] == [1000]
    store.close()
