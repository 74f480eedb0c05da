"""Findings in, attempts to be judged out, verdicts in; and what is asked of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from profiler.answers import ReasonRow
from profiler.findings import Evidence, Finding
from profiler.records import JobRef
from profiler.store import Case, CursorError, JobFacts, Judged, ReasonsQuery, Store, VerdictQuery, open_store
from profiler.store.upgrade import HEAD, upgrade
from tests.unit.profiler.store.contents import contents
from tests.unit.profiler.store.records import (
    CLUSTER,
    T0,
    ended,
    event,
    found,
    gpu,
    judge_by_logs,
    started,
    usage,
    use,
)

DAY = 86400.0
LATER = T0 + 1e6


def failed(number: int = 1, state: str = "FAILED", **more: Any) -> JobFacts:
    """Slurm's last word on an attempt that ran for an hour on two GPUs."""
    values: dict[str, Any] = {
        "restarts": 0,
        "uid": 1000,
        "user": "ada",
        "account": "vision",
        "name": "train",
        "started": T0,
        "ended": T0 + 3600,
        "gpus": 2,
        "final": True,
    } | more
    return JobFacts(cluster=CLUSTER, job_id=number, state=state, **values)


def due(store: Store, at: float = T0 + 10) -> dict[int, Case]:
    return {case.job.job_id: case for case in store.unjudged(CLUSTER, 1000, at)}


def reasons(store: Store, **more: Any) -> tuple[ReasonRow, ...]:
    return store.reasons(ReasonsQuery(cluster=CLUSTER, **({"since": 0.0, "until": 4e9} | more))).reasons


# What is to be judged


@pytest.mark.parametrize(
    "state", ["FAILED", "OUT_OF_MEMORY", "TIMEOUT", "CANCELLED", "NODE_FAIL", "PREEMPTED"]
)
def test_what_ended_badly_is_judged_once_slurm_has_said_so(store: Store, state: str) -> None:
    store.take([started(), ended(exit_code=1)], T0)
    assert due(store, LATER) == {}, "how it ended is not known"
    store.enrich([failed(state=state, final=False)], T0)
    assert due(store, LATER) == {}
    store.enrich([failed(state=state)], T0)
    (case,) = due(store).values()
    assert (case.job.state, case.job.exit_code, case.finding) == (state, 1, None)


def test_what_ended_well_is_not(store: Store) -> None:
    store.take([started(), started(2), started(3)], T0)
    store.enrich([failed(1, "COMPLETED"), failed(2, "COMPLETED", derived_exit_code=1)], T0)
    assert set(due(store)) == {2}, "a step of it failed"
    store.take([found(1), found(3)], T0)
    assert set(due(store)) == {1, 2}, "its log tells of something"
    assert set(due(store, T0 + 61)) == {1, 2, 3}, "Slurm says nothing"


def test_slurms_word_waits_a_moment_for_what_the_logs_say(store: Store) -> None:
    end = T0 + 3600
    store.take([started(), ended(exit_code=1, at=end), started(2), ended(2, exit_code=1, at=end)], end)
    store.enrich([failed(), failed(2)], end + 1)
    assert due(store, end + 10) == {}
    store.take([found()], end + 3)
    assert set(due(store, end + 3)) == {1}
    assert set(due(store, end + 11)) == {1, 2}, "no log was read"
    store.take([started(3), ended(3, exit_code=1, at=end)], LATER)
    store.enrich([failed(3)], LATER)
    assert set(due(store, LATER)) == {1, 2, 3}, "it ended long ago"


def test_slurms_silence_is_not_waited_for_for_ever(store: Store) -> None:
    store.take([started(), ended(), found()], T0)
    for seconds in range(0, 60, 15):
        store.enrich([failed(state="COMPLETING", final=False)], T0 + seconds)
        assert due(store, T0 + seconds) == {}
    assert set(due(store, T0 + 60)) == {1}


def test_a_case_holds_what_is_known(store: Store) -> None:
    troubled = use(1, 99.0, xids=(79,), ecc_uncorrected=2, stuck_seconds=400.0)
    store.take(
        [
            started(nodes="n[1-2]"),
            started(node="n2", nodes="n[1-2]"),
            usage(gpus=(use(0, 50.0, throttled={"hw_thermal": 90.0}), troubled), serial=3),
            usage(node="n2", gpus=(use(0, 50.0),)),
            ended(exit_code=137, signal=9),
            ended(node="n2"),
            found(serial=2),
            found(reason="older"),
            found(node="n2", reason="another"),
            found(node="n9", reason="of a node that the job was never on", serial=99),
            *(event("xid", "info", at=T0 + at) for at in (-3000, 100, 3650, 8000)),
            event("gpu_count", "ok", at=T0 + 101),
        ],
        T0,
    )
    store.enrich([failed(derived_exit_code=3, nodes="n[1-2]")], T0)
    (case,) = due(store).values()
    assert (case.job.job_id, case.job.exit_code, case.job.signal, case.derived_exit_code) == (1, 137, 9, 3)
    assert case.finding is not None and case.finding.reason == "gpu_oom"
    first, second = case.nodes
    assert (first.node, first.gpus[1], second.gpus) == ("n1", troubled, ())
    assert first.gpus[0].throttled == {"hw_thermal": 90.0} and first.host is not None
    assert [one.at - T0 for one in case.events] == [100, 3650]
    assert case.silent == ()


def test_a_case_knows_where_no_epilog_told_of_its_end(store: Store) -> None:
    store.take(
        [
            *(started(node=name, nodes="n[1-3]") for name in ("n1", "n2", "n3")),
            ended(),
            ended(node="n2", source="reconciled"),
            found(),
        ],
        T0,
    )
    store.enrich([failed(state="NODE_FAIL", nodes="n[1-3]")], T0)
    (case,) = due(store).values()
    assert case.silent == ("n2", "n3")


@pytest.mark.parametrize(
    ("more", "concerns"),
    [
        ({}, True),
        ({"gpu": gpu(1)}, True),
        ({"gpu": gpu(7)}, False),
        ({"gpu": gpu(7), "job": JobRef(1)}, True),
        ({"job": JobRef(1, 1)}, False),
        ({"gpu": gpu(1), "job": JobRef(2)}, False),
    ],
)
def test_an_event_of_another_job_on_the_node_is_none_of_its_own(
    store: Store, more: dict[str, Any], concerns: bool
) -> None:
    store.take([started(), ended(), event("xid", "info", at=T0 + 5, **more)], T0)
    store.enrich([failed()], T0)
    assert len(due(store)[1].events) == concerns


def test_of_many_events_the_last_count(store: Store) -> None:
    store.take([started(), ended(), *(event("xid", "info", at=T0 + at) for at in range(100))], T0)
    store.enrich([failed()], T0)
    assert [one.at - T0 for one in due(store)[1].events] == list(range(36, 100))


# Again, when more becomes known


@pytest.mark.parametrize(
    "late",
    [
        found(),
        found(serial=9),
        usage(serial=9, final=True),
        ended(at=T0 + 3590),
        event("xid", "info", at=T0 + 3599),
    ],
    ids=lambda record: type(record).__name__,
)
def test_what_comes_late_brings_the_attempt_up_again(store: Store, late: Any) -> None:
    store.take([started(), usage(), ended(at=T0 + 3600, source="reconciled")], T0)
    store.enrich([failed()], T0)
    assert len(judge_by_logs(store)) == 0 and due(store) == {}
    store.take([late], T0 + 50)
    assert set(due(store, T0 + 60)) == {1}


def test_an_event_of_another_time_or_node_does_not(store: Store) -> None:
    store.take([started(), ended(), started(2, node="n2"), ended(2, node="n2")], T0)
    store.enrich([failed(), failed(2, "COMPLETED")], T0)
    judge_by_logs(store)
    store.take(
        [
            event("xid", "info", at=T0 - 120),
            event("xid", "info", at=T0 + 3800),
            event("xid", "info", at=T0 + 5, node="n2"),
            event("gpu_count", "ok", at=T0 + 5),
        ],
        T0,
    )
    assert due(store, LATER) == {}


def test_a_verdict_that_was_made_without_the_last_word_is_not_written(store: Store) -> None:
    store.take([started(), ended(), found(reason="nccl_error")], T0)
    store.enrich([failed()], T0)
    (case,) = due(store).values()
    store.take([found(serial=2)], T0)
    assert store.put_verdicts([Judged(case, case.finding)]) == ()
    assert store.verdicts(VerdictQuery(cluster=CLUSTER)).verdicts == ()
    (news,) = judge_by_logs(store)
    assert news.finding is not None and news.finding.reason == "gpu_oom" and due(store) == {}


def test_only_what_is_new_is_told(store: Store) -> None:
    store.take([started(), ended(), found()], T0)
    store.enrich([failed()], T0)
    assert len(judge_by_logs(store)) == 1
    store.take([found(serial=2)], T0)
    assert judge_by_logs(store) == ()
    store.take([found(serial=3, reason="cpu_oom")], T0)
    assert len(judge_by_logs(store)) == 1


def test_an_older_finding_and_a_repeat_change_nothing(store: Store) -> None:
    store.take([started(), found(serial=2), ended()], T0)
    once = contents(store, told_only=True)
    store.take(
        [found(serial=1, reason="other"), found(serial=2), found(serial=2, at=T0, reason="earlier")], T0 + 5
    )
    assert contents(store, told_only=True) == once


def test_a_verdict_that_is_none_any_more_goes(store: Store) -> None:
    store.take([started(), found()], T0)
    judge_by_logs(store)
    store.enrich([failed(state="COMPLETED")], T0)
    store.put_verdicts([Judged(case) for case in store.unjudged(CLUSTER, 9, LATER)])
    assert store.verdicts(VerdictQuery(cluster=CLUSTER)).verdicts == ()


def test_a_long_finding_is_cut_and_its_first_line_stays(store: Store) -> None:
    evidence = tuple(Evidence("\x01" * 600, "/" + "é" * 4000, n) for n in range(1, 17))
    remarks = ("\x02" * 600,) * 16
    store.take([started(), found(evidence=evidence, remarks=remarks, unseen=remarks)], T0)
    judge_by_logs(store)
    answer = store.verdict(CLUSTER, 1)
    assert answer is not None and answer.verdict is not None
    kept = answer.verdict.finding
    assert kept.evidence[0] == evidence[0] and len(msgspec.json.encode(kept)) <= 64 << 10


def test_a_finding_that_this_release_cannot_read_holds_up_no_other(store: Store) -> None:
    store.take([started(), started(2), found(), found(2)], T0)
    with store.writing("test") as connection:
        connection.execute(text("UPDATE finding SET body = :body WHERE job = 1"), {"body": '{"reason":1}'})
    assert sorted((number, case.finding is None) for number, case in due(store, LATER).items()) == [
        (1, True),
        (2, False),
    ]


# What is asked


def test_a_verdict_with_all_that_decided_it(store: Store) -> None:
    told = found(rank=3, remarks=("r",), advice="less")
    store.take([started(), ended(), told], T0)
    assert store.verdict(CLUSTER, 2) is None
    answer = store.verdict(CLUSTER, 1)
    assert answer is not None and answer.verdict is None and answer.job.job_id == 1
    store.enrich([failed()], T0)
    judge_by_logs(store)
    answer = store.verdict(CLUSTER, 1)
    assert answer is not None and answer.verdict is not None and answer.similar is None
    one = answer.verdict
    assert (one.finding, one.source, one.at, one.state) == (told.finding, "user", T0 + 3600, "FAILED")
    assert one.gpu_seconds == 7200.0


def many(store: Store) -> None:
    """Five failures of ada's, one of bob's, and runs that ended well."""
    for number, (why, name, uid) in enumerate(
        [
            ("gpu_oom", "train", 1000),
            ("gpu_oom", "train", 1000),
            ("gpu_oom", "eval", 1000),
            ("nccl_error", "train", 1000),
            ("gpu_oom", "train", 1001),
            ("no_signature", "", 1000),
        ],
        1,
    ):
        begin = T0 + number * DAY
        who: dict[str, Any] = {"uid": uid, "user": "ada" if uid == 1000 else "bob", "name": name}
        store.take([started(number, at=begin, uid=uid), ended(number, at=begin + 3600)], T0)
        prints: dict[str, Any] = {"fingerprint": ""} if why == "no_signature" else {}
        store.take([found(number, why, at=begin + 3600, **prints)], T0)
        store.enrich([failed(number, started=begin, ended=begin + 3600 * number, **who)], T0)
    for number, name in ((10, "train"), (11, "train"), (12, "eval")):
        begin = T0 + number * DAY
        store.take([started(number, at=begin), ended(number, at=begin + 5)], T0)
        store.enrich([failed(number, "COMPLETED", started=begin, ended=begin + 5, name=name)], T0)
    judge_by_logs(store)


def test_pages_and_filters(store: Store) -> None:
    many(store)

    def ids(**query: Any) -> list[int]:
        pages: list[int] = []
        cursor = None
        while True:
            page = store.verdicts(VerdictQuery(cluster=CLUSTER, limit=2, cursor=cursor, **query))
            pages += [one.job_id for one in page.verdicts]
            if (cursor := page.next) is None:
                return pages

    assert ids() == [6, 5, 4, 3, 2, 1]
    assert ids(uid=1000) == [6, 4, 3, 2, 1] and ids(user="bob") == [5]
    assert ids(reason="gpu_oom") == [5, 3, 2, 1] and ids(uid=1000, reason="gpu_oom") == [3, 2, 1]
    assert ids(fingerprint="f-gpu_oom") == [5, 3, 2, 1]
    assert ids(uid=1000, fingerprint="f-gpu_oom", since=T0 + 2 * DAY) == [3, 2]
    assert ids(job_id=3) == [3] and ids(job_id=3, restarts=1) == [] and ids(job_id=99) == []
    with pytest.raises(CursorError):
        store.verdicts(VerdictQuery(cluster=CLUSTER, cursor="nonsense"))


def test_similar_failures(store: Store) -> None:
    many(store)

    def like(number: int) -> Any:
        answer = store.verdict(CLUSTER, number)
        assert answer is not None
        return answer.similar

    by_evidence = like(2)
    assert (by_evidence.count, by_evidence.jobs, by_evidence.last_job) == (2, ("3", "1"), "3")
    assert by_evidence.last_at == T0 + 3 * DAY + 3 * 3600 and by_evidence.by == "fingerprint"
    assert by_evidence.passed_after == 2, "two runs of train ended well since"
    assert like(3).passed_after == 1, "its own name is eval"
    assert like(5) is None, "bob's are bob's" and like(6) is None
    store.take([started(20, at=T0 + 6 * DAY), found(20, fingerprint="f-new", at=T0 + 6 * DAY + 9)], T0)
    store.enrich([failed(20, started=T0 + 6 * DAY, ended=T0 + 6 * DAY + 9)], T0)
    judge_by_logs(store)
    by_name = like(20)
    assert (by_name.count, by_name.jobs, by_name.by) == (2, ("2", "1"), "reason")
    assert store.verdicts(VerdictQuery(cluster=CLUSTER, job_id=20)).verdicts[0].finding.fingerprint == "f-new"


def test_failures_of_long_ago_are_not_similar(store: Store) -> None:
    for number, begin in ((1, T0), (2, T0 + 31 * DAY)):
        store.take([started(number, at=begin), found(number, at=begin + 5)], T0)
        store.enrich([failed(number, started=begin, ended=begin + 5)], T0)
    judge_by_logs(store)
    answers = [store.verdict(CLUSTER, number) for number in (1, 2)]
    assert [one and one.similar and one.similar.count for one in answers] == [1, None]


def test_the_table_of_reasons(store: Store) -> None:
    many(store)
    # 1 to 6 ran for as many hours on two GPUs; nothing was found of 6
    assert reasons(store) == (
        ReasonRow("gpu_oom", 4, 4, 2, 3600.0 * 2 * (1 + 2 + 3 + 5), 2 * 3600.0),
        ReasonRow("no_signature", 1, 1, 1, 3600.0 * 2 * 6, 6 * 3600.0),
        ReasonRow("nccl_error", 1, 1, 1, 3600.0 * 2 * 4, 4 * 3600.0),
    )
    assert [row.reason for row in reasons(store, uid=1001)] == ["gpu_oom"]
    assert [row.attempts for row in reasons(store, user="ada", until=T0 + 3 * DAY)] == [2]
    assert reasons(store, account="other") == () == reasons(store, since=T0 + 9 * DAY)
    # An attempt that was queued again is one job, and what has no reason is no failure
    store.take([started(1, restarts=1), found(1, restarts=1), started(30), found(30, "none")], T0)
    store.enrich([failed(1, restarts=1, gpus=None), failed(30)], T0)
    judge_by_logs(store)
    assert [(row.attempts, row.jobs) for row in reasons(store)] == [(5, 4), (1, 1), (1, 1)]


def test_what_was_decided_at_submission(store: Store) -> None:
    def line(kind: str, key: str, at: float, **more: Any) -> dict[str, Any]:
        return {"kind": kind, "decision": key, "at": at} | more

    store.take([started(101), started(5), started(6), started(7)], T0)
    store.enrich(
        [
            failed(101, array_job_id=100, array_task_id=1, submitted=T0),
            *(failed(n, submitted=T0) for n in (5, 6, 7)),
        ],
        T0,
    )
    lines = [
        line("decision", "d-1", T0, uid=1000, mode="observe"),
        line("job", "d-1", T0 + 20, job=100),
        line("decision", "d-2", T0, uid=1001),
        line("job", "d-2", T0 + 20, job=5),
        line("decision", "d-3", T0 - 9, uid=1000),
        line("job", "d-3", T0, job=6),
        line("decision", "d-4", T0 + DAY, uid=1000),
        line("job", "d-4", T0 + DAY, job=6),
    ]
    store.put_decisions(CLUSTER, lines)
    answers = {number: store.decision(CLUSTER, number) for number in (101, 5, 6, 7)}
    assert {number: one and (one.decision, one.joined) for number, one in answers.items()} == {
        101: (lines[0], lines[1]),
        5: (None, None),  # another user's: the number came again
        6: (lines[4], lines[5]),  # not that of a later job of this number
        7: (None, None),
    }
    assert store.decision(CLUSTER, 8) is None


@pytest.mark.slow
def test_verdicts_while_records_come(store: Store) -> None:
    """Two threads: nothing is judged by half of what is known, and in the end all is."""
    numbers = range(1, 31)
    store.take([record for number in numbers for record in (started(number), ended(number))], T0)
    store.enrich([failed(number) for number in numbers], T0)
    failures: list[BaseException] = []

    def bring() -> None:
        try:
            for serial in range(1, 6):
                for number in numbers:
                    store.take([found(number, serial=serial, reason=f"r{serial}")], T0)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=bring)
    thread.start()
    while thread.is_alive():
        judge_by_logs(store)
    thread.join()
    judge_by_logs(store)
    assert failures == [] and due(store, LATER) == {}
    assert [(row.reason, row.attempts) for row in reasons(store)] == [("r5", 30)]


# The schema before


def test_verdicts_of_the_schema_before_are_carried_over(new_url: Callable[[], str]) -> None:
    store = open_store(new_url())
    store.engines.create()
    with store.writing("test", checked=False) as connection:
        upgrade(connection, "test", to="0002")
        job = text(
            "INSERT INTO job (pk, cluster, job_id, restarts, sort_at, touched, facts_final, state, uid, gpus, started,"
            ' ended, name, "user", derived_exit_code)'
            " VALUES (:pk, 'lab', :pk, 0, 1, 1, :final, :state, 1000, 4, 100, 160, 'train', 'ada', :derived)"
        )
        states = ["FAILED", "FAILED", "COMPLETED", "TIMEOUT", "COMPLETED", "RUNNING"]
        connection.execute(
            job,
            [
                {"pk": pk, "state": state, "final": state != "RUNNING", "derived": int(pk == 5)}
                for pk, state in enumerate(states, 1)
            ],
        )
        old = text(
            "INSERT INTO verdict (job, cluster, uid, at, reason, confidence, evidence, source)"
            " VALUES (:job, 'lab', 1000, 160, :reason, :confidence, :evidence, :source)"
        )
        rows = [
            {"job": 1, "reason": "cpu_oom", "confidence": 0.5, "evidence": "x" * 900, "source": "root"},
            {"job": 1, "reason": "other", "confidence": 0.5, "evidence": "", "source": "user"},
            {"job": 2, "reason": "gpu_oom", "confidence": None, "evidence": "", "source": "user"},
        ]
        connection.execute(old, rows)
    assert store.migrate() == ("0002", HEAD)
    first, second = sorted(store.verdicts(VerdictQuery(cluster=CLUSTER)).verdicts, key=lambda one: one.job_id)
    evidence = (Evidence("x" * 600, source="root"),)
    assert (first.finding, first.source) == (Finding("cpu_oom", 0.5, "explicit", evidence), "root")
    assert (first.gpu_seconds, first.at) == (240.0, 160.0)
    assert (second.finding, second.source) == (Finding("gpu_oom", 0.0, "explicit"), "user")
    assert set(due(store)) == {4, 5}, "failures without a verdict are judged now"
    assert reasons(store)[0].runtime_p50 == 60.0
    store.close()


def test_many_verdicts_of_the_schema_before(new_url: Callable[[], str]) -> None:
    """More than the thousand that are carried over at once: the two of attempt 667 are the 1000th and the next one."""
    store = open_store(new_url())
    store.engines.create()
    numbers = range(1, 701)
    with store.writing("test", checked=False) as connection:
        upgrade(connection, "test", to="0002")
        connection.execute(
            text(
                "INSERT INTO job (pk, cluster, job_id, restarts, sort_at, touched)"
                " VALUES (:pk, 'lab', :pk, 0, 1, 1)"
            ),
            [{"pk": pk} for pk in numbers],
        )
        connection.execute(
            text(
                "INSERT INTO verdict (job, cluster, at, reason, source) VALUES (:pk, 'lab', :pk, :why, :why)"
            ),
            [{"pk": pk, "why": why} for pk in numbers for why in ("user", "root")[: 1 + pk % 2]],
        )
    assert store.migrate() == ("0002", HEAD)
    carried = store.verdicts(VerdictQuery(cluster=CLUSTER, limit=1000)).verdicts
    assert [(one.job_id, one.finding.reason) for one in reversed(carried)] == [
        (pk, "root" if pk % 2 else "user") for pk in numbers
    ]
    store.close()
