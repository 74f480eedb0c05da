"""Verdicts: what the judge is asked of a case, that each failed attempt gets one, and who may read it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from profiler.answers import JobSummary, NodeUse
from profiler.findings import Evidence, Finding
from profiler.records import HostUse, NodeEvent
from profiler.store import Case, JobFacts, Judged
from slurm_plugins.service.keeper import judging as module
from slurm_plugins.service.keeper.judging import Judging, judged, node_words, slurm_word
from tests.unit.profiler.store.records import T0, ended, event, found, gpu, started, usage, use
from tests.unit.slurm_plugins.keeper.door import ADA, BOB, CLUSTER, OPERATOR, PATIENCE, SERVICE, Door
from tests.waiting import wait_until


def case(**more: Any) -> Case:
    job = {"state": "FAILED", "exit_code": 1, "started": T0, "ended": T0 + 3600, "gpus": 2} | more.pop(
        "job", {}
    )
    return Case(1, 1, JobSummary(CLUSTER, 7, **job), **more)


def use_of(*gpus: Any, oom_kills: int | None = None, node: str = "n1") -> NodeUse:
    return NodeUse(node, T0, T0 + 3600, gpus=gpus, host=HostUse("cgroup2", oom_kills=oom_kills))


def told(one: Case) -> list[tuple[str, str, str]]:
    return [(word.node, word.kind, word.text) for word in node_words(one)]


# Words


def test_slurms_word() -> None:
    word = slurm_word(case(derived_exit_code=3, nodes=(use_of(), use_of(node="n2")), job={"signal": 9}))
    assert (word.state, word.exit_code, word.signal, word.derived_exit_code) == ("FAILED", 1, 9, 3)
    assert word.nodes == ("n1", "n2")
    assert slurm_word(case(job={"state": None})).state == ""


@pytest.mark.parametrize(
    ("more", "kind", "text"),
    [
        ({"oom_kills": 1}, "oom", "the kernel killed a process of the job for memory"),
        ({"oom_kills": 3}, "oom", "the kernel killed 3 processes of the job for memory"),
        ({"xids": (79, 79)}, "xid", "GPU 1: Xid 79 (GPU has fallen off the bus)"),
        ({"ecc_uncorrected": 2}, "ecc", "GPU 1: 2 uncorrected ECC errors"),
        ({"stuck_seconds": 400.0}, "stuck", "GPU 1: stuck for 6 min 40 s at full utilisation and low power"),
        (
            {"throttled": {"hw_thermal": 50.0, "hw_slowdown": 20.0}},
            "throttle",
            "GPU 1: slowed by heat or power for 1 min 10 s",
        ),
    ],
)
def test_what_a_job_did_there_speaks(more: dict[str, Any], kind: str, text: str) -> None:
    kills = more.pop("oom_kills", None)
    assert told(case(nodes=(use_of(use(1, 50.0, **more), oom_kills=kills),))) == [("n1", kind, text)]


def test_what_is_no_trouble_is_silent() -> None:
    calm = use(0, 99.0, throttled={"sw_power_cap": 9000.0, "hw_thermal": 5.0}, ecc_uncorrected=0)
    assert told(case(nodes=(use_of(calm, oom_kills=0), NodeUse("n2")))) == []


@pytest.mark.parametrize(
    ("one", "kind"),
    [
        (event("xid", "info", detail="GPU 1: Xid 13 (exception)"), "xid"),
        (event("gpu_lost", "error"), "gpu_lost"),
        (event("gpu_count", "error"), "gpu_lost"),
        (event("gpu_lost", "warning"), "health"),
        (event("ecc_uncorrected", "error"), "ecc"),
        (event("hw_slowdown", "warning"), "throttle"),
        (event("nvlink", "error"), "health"),
        (event("read_only", "error"), "health"),
        (event("gpu_count", "unknown"), None),
        (event("spool_dropped", "error"), None),
        (event("a_check_of_tomorrow", "error"), None),
    ],
    ids=lambda one: one.name if isinstance(one, NodeEvent) else str(one),
)
def test_what_happened_beside_it_speaks(one: NodeEvent, kind: str | None) -> None:
    words = node_words(case(events=(one,)))
    assert [(word.kind, word.at) for word in words] == ([] if kind is None else [(kind, T0)])


def test_an_event_without_a_word_is_told_by_its_name() -> None:
    one = case(
        events=(event("nvlink", "error"), event("nvlink", "error", at=T0 + 1, detail="2 of 12 links up"))
    )
    assert [text for _, _, text in told(one)] == ["nvlink: error", "nvlink: 2 of 12 links up"]


def test_an_xid_that_came_as_an_event_is_told_once() -> None:
    came = event(
        "xid", "info", at=T0 + 9, detail="GPU-00000001: Xid 79 (GPU has fallen off the bus)", gpu=gpu(1)
    )
    both = case(
        nodes=(use_of(use(1, 1.0, xids=(79, 13))), use_of(use(1, 1.0, xids=(79,)), node="n2")), events=(came,)
    )
    assert [(word.node, word.text[:14], word.at) for word in node_words(both)] == [
        ("n1", "GPU 1: Xid 13 ", None),
        ("n2", "GPU 1: Xid 79 ", None),
        ("n1", "GPU-00000001: ", T0 + 9),
    ]


# Verdicts


def test_without_a_log_state_and_nodes_decide() -> None:
    one = judged(case(nodes=(use_of(use(1, 50.0, xids=(79,))),)))
    assert one.finding is not None and (one.finding.reason, one.source) == ("gpu_hardware", "root")
    bare = judged(case())
    assert bare.finding is not None and bare.finding.reason == "no_signature"
    killed = judged(case(job={"state": "TIMEOUT"}))
    assert killed.finding is not None and (killed.finding.reason, killed.source) == ("time_limit", "root")


def test_the_log_decides_where_it_knows() -> None:
    log = found(1, "import_error").finding
    one = judged(case(finding=log))
    assert one.finding is not None and (one.finding.reason, one.source) == ("import_error", "user")


def test_a_reason_that_nothing_is_quoted_for_is_not_roots_word() -> None:
    one = judged(case(finding=Finding("gpu_hardware", 0.9, "explicit")))
    assert one.finding is not None and (one.finding.reason, one.source) == ("gpu_hardware", "user")


def test_of_what_ended_well_only_a_step_that_failed_is_told() -> None:
    well = {"state": "COMPLETED", "exit_code": 0}
    assert judged(case(job=well)).finding is None
    assert judged(case(job=well, finding=Finding("none", 0.9))).finding is None
    one = judged(case(job=well, derived_exit_code=1))
    assert one.finding is not None and one.finding.reason == "none" and one.finding.remarks


# Round after round


def failed(number: int = 1, **more: Any) -> JobFacts:
    values: dict[str, Any] = {
        "restarts": 0,
        "uid": ADA,
        "name": "train",
        "started": T0,
        "ended": T0 + 3600,
        "gpus": 2,
        "state": "FAILED",
        "final": True,
    } | more
    return JobFacts(cluster=CLUSTER, job_id=number, **values)


def judging(door: Door, **more: Any) -> Judging:
    """Its clock is an hour ahead: what was just told of is due."""
    return Judging(CLUSTER, door.storing, door.counts, now=lambda: time.time() + 3600, **more)


def ask(door: Door, target: str, uid: int = ADA) -> Any:
    got = asyncio.run(door.ask(uid, "GET", target))
    assert got.status == 200, got.body
    return got.json


def test_a_failed_job_has_its_verdict(both: Door) -> None:
    log = found(1, "import_error")
    got = asyncio.run(both.bring(started(1, uid=ADA), usage(1), ended(1, exit_code=1), log))
    assert len(got.json["accepted"]) == 4
    assert ask(both, "/v1/jobs/1/verdict") == {"job": ask(both, "/v1/jobs/1")}, "not known yet"
    both.storing.store.enrich([failed()])
    assert asyncio.run(judging(both).once()) == 1
    answer = ask(both, "/v1/jobs/1/verdict")
    verdict = answer["verdict"]
    assert (verdict["finding"]["reason"], verdict["state"], verdict["gpu_seconds"]) == (
        "import_error",
        "FAILED",
        7200.0,
    )
    assert (
        verdict["finding"]["evidence"][0]["file"] == log.finding.evidence[0].file and "similar" not in answer
    )
    assert ask(both, "/v1/verdicts")["verdicts"] == [verdict] == ask(both, "/v1/jobs/1/verdicts")["verdicts"]
    assert (
        b'gsub_verdicts_total{reason="import_error"} 1' in asyncio.run(both.ask(None, "GET", "/metrics")).body
    )
    assert asyncio.run(judging(both).once()) == 0


def test_what_comes_late_changes_it_and_is_counted_when_it_does(door: Door) -> None:
    asyncio.run(door.bring(started(1, uid=ADA), ended(1)))
    door.storing.store.enrich([failed()])
    one = judging(door)
    asyncio.run(one.once())
    asyncio.run(door.bring(usage(1, gpus=(use(0, 1.0, xids=(79,)),))))
    assert asyncio.run(one.once()) == 1
    asyncio.run(door.bring(usage(1, serial=2, gpus=(use(0, 1.0, xids=(79,)),))))
    assert asyncio.run(one.once()) == 1
    assert ask(door, "/v1/jobs/1/verdict")["verdict"]["finding"]["reason"] == "gpu_hardware"
    counted = {reason: door.counts.verdicts.value(reason) for reason in ("no_signature", "gpu_hardware")}
    assert counted == {"no_signature": 1, "gpu_hardware": 1}


def test_one_that_cannot_be_judged_keeps_no_other_from_it(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(door.bring(started(1, uid=ADA), started(2, uid=ADA)))
    door.storing.store.enrich([failed(1), failed(2)])

    def decide(one: Case) -> Judged:
        if one.job.job_id == 1:
            raise RuntimeError("a bug")
        return judged(one)

    one = judging(door, decide=decide)
    assert asyncio.run(one.once()) == 2 and asyncio.run(one.once()) == 0
    assert [each["job_id"] for each in ask(door, "/v1/verdicts")["verdicts"]] == [2]
    assert caplog.text.count("a fault while judging job 1") == 1


def test_many_are_judged_one_go_after_the_other_and_news_are_not_waited_for(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 4)
    monkeypatch.setattr(module, "_REST", 0.0)
    monkeypatch.setattr(module, "_SECONDS", 600.0)
    asyncio.run(door.bring(*(started(number, uid=ADA) for number in range(1, 11))))
    door.storing.store.enrich([failed(number) for number in range(1, 10)])

    def judged() -> float:
        return door.counts.verdicts.value("no_signature")

    async def all_but_one_then_that() -> None:
        one = judging(door)
        running = asyncio.ensure_future(one.run())
        try:
            await asyncio.to_thread(wait_until, lambda: judged() >= 9, PATIENCE, "nine verdicts", 0.01)
            door.storing.store.enrich([failed(10)])
            one.soon()
            await asyncio.to_thread(wait_until, lambda: judged() >= 10, PATIENCE, "the last verdict", 0.01)
        finally:
            running.cancel()

    asyncio.run(asyncio.wait_for(all_but_one_then_that(), PATIENCE))


def test_hostile_texts_of_a_finding_are_kept_as_they_are(both: Door) -> None:
    """They are made harmless where they are shown; a store must hold them all."""
    text = "\x1b]0;x\x07 \u202e \U0001f600 '; DROP TABLE verdict; -- " + "é" * 500
    log = found(
        1,
        evidence=(Evidence(text[:600], "/home/\u2028/x\n", 1, node="n\x7f"),),
        fingerprint="a'b",
        signature="%s",
    )
    got = asyncio.run(both.bring(started(1, uid=ADA), log))
    assert len(got.json["accepted"]) == 2
    both.storing.store.enrich([failed()])
    asyncio.run(judging(both).once())
    kept = ask(both, "/v1/jobs/1/verdict")["verdict"]["finding"]
    assert kept["evidence"][0]["text"] == text[:600] and kept["signature"] == "%s"


@pytest.mark.parametrize(
    "broken",
    [
        {"finding": {"reason": "x" * 129}},
        {"finding": {"reason": "x", "confidence": 2}},
        {"finding": {"reason": "x", "tier": "certain"}},
        {"finding": {"reason": "x", "evidence": [{"text": "y" * 601}]}},
        {"finding": {"reason": "x", "evidence": [{"text": "y"}] * 17}},
        {"finding": {"reason": "nul\0"}},
        {"serial": -1},
    ],
)
def test_a_finding_out_of_bounds_is_refused(door: Door, broken: dict[str, Any]) -> None:
    record = {
        "kind": "job_finding",
        "id": "f" * 32,
        "cluster": CLUSTER,
        "node": "n1",
        "at": T0,
        "job": {"job_id": 1},
        "finding": {"reason": "gpu_oom"},
    }
    assert asyncio.run(door.bring(record)).json["accepted"] == ["f" * 32]
    got = asyncio.run(door.bring(record | broken)).json
    assert "accepted" not in got and len(got["refused"]) == 1


# Who may ask


@pytest.fixture
def kept(door: Door) -> Door:
    """Two verdicts on ada's jobs, one on bob's."""
    for number, uid, name in ((1, ADA, "ada"), (2, ADA, "ada"), (3, BOB, "bob")):
        end = T0 + 3600 + number
        asyncio.run(door.bring(started(number, uid=uid, user=name), ended(number, at=end), found(number)))
        door.storing.store.enrich(
            [failed(number, uid=uid, user=name, ended=end, account="vision", submitted=T0)]
        )
    door.storing.store.put_decisions(
        CLUSTER,
        [
            {"kind": "decision", "decision": "d-1", "at": T0, "uid": ADA, "mode": "observe"},
            {"kind": "job", "decision": "d-1", "at": T0 + 5, "job": 1},
        ],
    )
    asyncio.run(judging(door).once())
    return door


@pytest.mark.parametrize("what", ["verdict", "decision", "verdicts"])
@pytest.mark.parametrize(
    ("uid", "status"), [(ADA, 200), (0, 200), (SERVICE, 200), (OPERATOR, 200), (BOB, 404)]
)
def test_anothers_verdict_is_not_there(kept: Door, what: str, uid: int, status: int) -> None:
    got = asyncio.run(kept.ask(uid, "GET", f"/v1/jobs/1/{what}"))
    assert got.status == status
    if status == 404:
        nobodys = asyncio.run(kept.ask(uid, "GET", f"/v1/jobs/4711/{what}"))
        assert got.body == nobodys.body.replace(b"4711", b"1")


def test_of_a_number_that_came_again_each_sees_the_own_attempts(kept: Door) -> None:
    asyncio.run(kept.bring(started(1, restarts=1, uid=BOB, user="bob"), found(1, restarts=1)))
    kept.storing.store.enrich([failed(1, restarts=1, uid=BOB, user="bob", ended=T0 + 9000)])
    asyncio.run(judging(kept).once())
    seen = {uid: ask(kept, "/v1/jobs/1/verdicts", uid)["verdicts"] for uid in (BOB, OPERATOR)}
    assert {uid: [one["restarts"] for one in page] for uid, page in seen.items()} == {
        BOB: [1],
        OPERATOR: [1, 0],
    }


@pytest.mark.parametrize(
    "query", ["", "?reason=gpu_oom", "?fingerprint=f-gpu_oom", "?since=1", "?user=ada&reason=gpu_oom"]
)
def test_lists_of_verdicts_hold_a_users_own_only(kept: Door, query: str) -> None:
    mine = [one["job_id"] for one in ask(kept, f"/v1/verdicts{query}")["verdicts"]]
    assert mine == [2, 1]
    others = [one["job_id"] for one in ask(kept, f"/v1/verdicts{query}", BOB)["verdicts"]]
    assert others == ([] if "ada" in query else [3])
    everything = [one["job_id"] for one in ask(kept, f"/v1/verdicts{query}", OPERATOR)["verdicts"]]
    assert everything == ([2, 1] if "ada" in query else [3, 2, 1])


def test_similar_failures_are_the_users_own(kept: Door) -> None:
    similar = ask(kept, "/v1/jobs/1/verdict")["similar"]
    assert (similar["count"], similar["last_job"], similar["jobs"]) == (1, "2", ["2"])
    assert "similar" not in ask(kept, "/v1/jobs/3/verdict", BOB)


def test_the_table_of_reasons_is_of_the_askers_own_jobs(kept: Door) -> None:
    span = "since=1&until=4000000000"
    (everything,) = ask(kept, f"/v1/reasons?{span}", OPERATOR)["reasons"]
    assert (everything["attempts"], everything["users"], everything["gpu_seconds"]) == (
        3,
        2,
        2 * (3 * 3600 + 6),
    )
    (mine,) = ask(kept, f"/v1/reasons?{span}")["reasons"]
    assert (mine["attempts"], mine["users"]) == (2, 1)
    assert ask(kept, f"/v1/reasons?{span}&user=bob")["reasons"] == []
    (bobs,) = ask(kept, f"/v1/reasons?{span}&user=bob", OPERATOR)["reasons"]
    assert bobs["attempts"] == 1
    assert ask(kept, f"/v1/reasons?{span}&account=other", OPERATOR)["reasons"] == []
    (own,) = ask(kept, f"/v1/reasons?{span}&user=ada&account=vision")["reasons"]
    assert own["attempts"] == 2
    lately = ask(kept, "/v1/reasons", OPERATOR)
    assert lately["reasons"] == [] and lately["until"] - lately["since"] == 30 * 86400.0


def test_the_decision_as_the_journal_has_it(kept: Door) -> None:
    answer = ask(kept, "/v1/jobs/1/decision")
    assert (answer["decision"]["mode"], answer["joined"]["job"], answer["job"]["job_id"]) == ("observe", 1, 1)
    assert set(ask(kept, "/v1/jobs/2/decision")) == {"job"}


@pytest.mark.parametrize(
    "target",
    ["/v1/verdicts?reason=GPU", "/v1/verdicts?fingerprint=", "/v1/reasons?uid=1", "/v1/reasons?limit=3"],
)
def test_what_cannot_be_asked(kept: Door, target: str) -> None:
    assert asyncio.run(kept.ask(ADA, "GET", target)).status == 400
