"""What follows failed attempts: decided once, carried out step by step, and ended whatever happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gsub.again_view import rows
from profiler.answers import JobSummary
from profiler.findings import Finding
from profiler.resubmissions import SILENT, Resubmission
from profiler.store import StoreError, Undecided
from site_configs.site import parse_site
from slurm_plugins.act.ask import HandError
from slurm_plugins.act.wire import Answer, Request
from slurm_plugins.client.errors import SlurmRefused
from slurm_plugins.client.resources import Hosts
from slurm_plugins.client.states import JobFlag, JobState
from slurm_plugins.resubmit.plan import plan
from slurm_plugins.service.keeper.again_look import Asked, Look
from slurm_plugins.service.keeper.carrying_out import PATIENCE
from slurm_plugins.service.keeper.deciding import decided
from slurm_plugins.service.keeper.dependants import Dependants
from tests.unit.profiler.store.records import CLUSTER, found
from tests.unit.slurm_plugins.act.fakes import job as any_job
from tests.unit.slurm_plugins.keeper.again import END, NOW, SITE, Again, a_failed_job, over


@pytest.fixture
def again(tmp_path: Path) -> Iterator[Again]:
    one = Again(tmp_path, a_failed_job())
    yield one
    one.close()


def outcome(again: Again, number: int = 8) -> tuple[str, str]:
    row = again.row(number)
    return row.state, row.stop


# --- tried again ------------------------------------------------------------------------------------------------------


def test_a_failure_is_requeued_and_let_go(again: Again) -> None:
    again.fail(8, "core_dump")
    again.settle()
    assert again.hand.done == ["requeue 8", "update JobId=8 ExcNodeList=n1 StartTime=now"]
    row = again.row()
    assert (row.state, row.action, row.nth, row.due) == ("done", "once", 1, None)
    requeue, update = again.hand.asked
    assert (requeue.restarts, update.restarts) == (0, 1)
    assert again.row().why in requeue.why
    text = again.counts.registry.text()
    assert 'gsub_resubmissions_total{action="once",result="planned"} 1' in text
    assert 'gsub_resubmissions_total{action="once",result="done"} 1' in text


def test_a_backoff_waits_in_slurms_queue(again: Again) -> None:
    again.fail(8, "network_error")
    again.settle()
    row = again.row()
    assert row.delay_s > 0
    assert again.hand.done == ["requeue 8", f"update JobId=8 StartTime=now+{round(row.delay_s)}"]


def test_another_node_is_added_to_those_that_the_user_excludes(again: Again) -> None:
    again.change("8", excluded_nodes=Hosts("n7"))
    again.fail(8, "cuda_init_failed", nodes="n1", finding={"node": "n1"})
    again.settle()
    assert again.row().avoid == ("n1",)
    assert again.hand.done[1] == "update JobId=8 ExcNodeList=n[1,7] StartTime=now"


def test_more_memory_is_asked_for(again: Again) -> None:
    again.seen.memory[8] = Asked("node", 32768)
    again.fail(8, "cpu_oom", state="OUT_OF_MEMORY")
    again.settle()
    row = again.row()
    assert row.state == "done" and row.memory_was_mib == 32768 and (row.memory_mib or 0) > 32768
    memory = f"MinMemoryNode={row.memory_mib}"
    assert again.hand.done[1] == f"update JobId=8 {memory} StartTime=now Comment=gsub:guarded"


def test_where_slurms_delay_is_too_short_the_job_is_held_meanwhile(again: Again) -> None:
    again.seen.delay = 1.0
    again.fail(8, "core_dump")
    again.settle()
    assert again.hand.done == ["requeuehold 8", "update JobId=8 ExcNodeList=n1 StartTime=now", "release 8"]
    assert again.row().state == "done"
    assert again.world.slurm.known_jobs["8"].priority == 100


def test_an_old_slurm_is_not_hurried(again: Again) -> None:
    """Within its credential's life it may start the job without its prolog."""
    again.seen.quick = False
    again.fail(8, "core_dump")
    again.settle()
    assert again.hand.done == ["requeue 8", "update JobId=8 ExcNodeList=n1 StartTime=now+120"]


def test_of_an_array_the_task_is_meant(tmp_path: Path) -> None:
    again = Again(
        tmp_path,
        a_failed_job(
            "12_3",
        ),
    )
    again.change("12_3", id=15)
    again.fail(15, "core_dump", array_job_id=12, array_task_id=3)
    again.settle()
    assert again.hand.done == ["requeue 12_3", "update JobId=12_3 ExcNodeList=n1 StartTime=now"]
    assert outcome(again, 15) == ("done", "")
    again.close()


def test_each_attempt_is_decided_by_those_before_it(again: Again) -> None:
    again.fail(8, "core_dump")
    again.settle()
    again.change("8", state=JobState.FAILED, state_text="FAILED")
    again.fail(8, "core_dump", restarts=1)
    again.settle()
    assert outcome(again)[0] == "stopped" and len(again.hand.done) == 2
    assert [row.restarts for row in again.store.resubmissions(CLUSTER, 8)] == [0, 1]


# --- left alone -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "change", "more", "stop"),
    [
        ("import_error", {}, {}, "never"),
        ("core_dump", {"requeue": False}, {}, "no_requeue"),
        ("core_dump", {"batch": False}, {}, "no_requeue"),
        ("core_dump", {"comment": "gsub:off"}, {}, "off"),
        ("core_dump", {"comment": "run 3, gsub:resubmit=off"}, {}, "off"),
        ("core_dump", {"het_job_id": 8, "het_offset": 0}, {}, "array"),
        ("core_dump", {"restarts": 1, "state": JobState.PENDING}, {}, "moved_on"),
        ("core_dump", {"restarts": 1, "state": JobState.FAILED}, {}, "moved_on"),
        ("core_dump", {"state": JobState.CANCELLED}, {}, "moved_on"),
        ("cpu_oom", {}, {"state": "OUT_OF_MEMORY"}, "unknown"),
        pytest.param("no_signature", {}, {}, "never", marks=pytest.mark.case("T3")),
        pytest.param("core_dump", {}, {"gpus": 0}, "off", marks=pytest.mark.case("T3")),
        pytest.param("core_dump", {"comment": "rule_a_wildcards_b"}, {}, "off", marks=pytest.mark.case("F2")),
    ],
)
def test_who_is_not_tried_again(again: Again, reason: str, change: Any, more: Any, stop: str) -> None:
    again.change("8", **change)
    again.fail(8, reason, **more)
    again.settle()
    assert outcome(again) == ("stopped", stop)
    assert again.hand.asked == [] and again.row().why


@pytest.mark.case("F2")
@pytest.mark.parametrize(
    ("facts", "more", "stop"),
    [
        ({"client": "parsl", "gpus": 1}, "", "off"),
        ({"client": "parsl"}, "[clients.parsl]\nleave_alone = false\n", ""),
        ({"client": ["parsl"]}, "", ""),
        ({"gpus": 1}, "", ""),
    ],
)
def test_what_its_decision_says_of_the_program_counts(facts: dict[str, object], more: str, stop: str) -> None:
    case = Undecided(1, 1, JobSummary("lab", 8, gpus=1, state="FAILED"), Finding("core_dump", 0.9), "root")
    site = parse_site(SITE + more)
    job = a_failed_job()
    look = Look({8: job}, {}, {}, {})
    row = decided(
        case,
        look,
        (),
        site=site,
        opted_out=False,
        client=facts.get("client"),
        off=False,
        now=NOW,
        chance=lambda: 0.5,
    )
    assert (row.stop if row.stop == "off" else "") == stop


def test_a_record_that_is_gone_is_told_with_what_to_type(again: Again) -> None:
    del again.world.slurm.known_jobs["8"]
    again.fail(8, "core_dump")
    again.settle()
    assert outcome(again) == ("stopped", "gone")
    assert again.row().command == "gsub resubmit 8"


def test_another_job_of_that_number_is_not_it(again: Again) -> None:
    again.change("8", uid=4711)
    again.fail(8, "core_dump")
    again.settle()
    assert outcome(again) == ("stopped", "gone")


def test_a_job_that_ended_at_another_time_is_not_it(again: Again) -> None:
    again.change("8", end=datetime.fromtimestamp(END + 600, timezone.utc))
    again.fail(8, "core_dump")
    again.settle()
    assert outcome(again) == ("stopped", "gone")


def test_what_failed_while_the_keeper_was_down_is_not_brought_back(again: Again) -> None:
    again.change("8", end=datetime.fromtimestamp(END, timezone.utc))
    again.fail(8, "core_dump")
    again.time += 7200
    again.settle()
    assert outcome(again) == ("stopped", "gone") and again.row().command == "gsub resubmit 8"


def test_nor_what_was_planned_before(again: Again) -> None:
    again.fail(8, "core_dump")
    asyncio.run(again.driver.decide())
    again.time += 7200
    again.settle()
    assert outcome(again) == ("stopped", "slurm") and again.hand.asked == []


def test_a_job_that_others_wait_for_is_left_alone(again: Again) -> None:
    again.seen.waiting = {"8": ("9",)}
    again.fail(8, "core_dump")
    again.settle()
    assert outcome(again) == ("stopped", "dependants") and "9" in again.row().why


@pytest.mark.parametrize(
    ("state", "stop"),
    [(JobState.RUNNING, "dependants"), (JobState.COMPLETED, "dependants"), (JobState.CANCELLED, "")],
)
def test_a_job_that_has_begun_after_it_counts_too(tmp_path: Path, state: JobState, stop: str) -> None:
    """Slurm shows no dependency that is fulfilled: whoever waited for the failure, or for any end, is at work."""
    again = Again(tmp_path, a_failed_job(8), any_job(9, state))
    again.driver.dependants.seen({"8": (9,)}, again.time)
    again.fail(8, "core_dump")
    again.settle()
    assert again.row().stop == stop
    again.close()


@pytest.mark.parametrize("away", [5.0, 1500.0])
def test_who_waited_is_known_to_a_keeper_that_starts_anew(tmp_path: Path, away: float) -> None:
    again = Again(tmp_path, a_failed_job(8), any_job(9, JobState.RUNNING))
    again.driver.dependants.seen({"8": (9,)}, again.time - away - 1000)
    again.driver.dependants.seen({}, again.time - away)
    again.start()
    again.driver.dependants.seen({}, again.time)
    again.fail(8, "core_dump")
    again.settle()
    assert again.row().stop == "dependants" and again.hand.asked == []
    again.close()


def test_an_outage_does_not_count_in_how_long_it_is_known_who_waited(tmp_path: Path) -> None:
    file = tmp_path / "dependants.json"
    known = Dependants(file)
    known.seen({"8": (9,), "7": (6,)}, 1000.0)
    known.seen({"7": (6, 5)}, 2000.0)
    again = Dependants(file)
    assert again.of(["8", "7"]) == (9, 6, 5), "before the first look too"
    again.seen({}, 50_000.0)
    again.seen({}, 50_700.0)
    assert again.of(["8", "7"]) == (9, 6, 5)
    again.seen({}, 50_900.0)
    assert again.of(["8"]) == () and again.of(["7"]) == (6, 5)
    assert file.stat().st_mode & 0o007 == 0 and [one.name for one in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("spoilt", [b"", b"{", b'{"at": 1, "jobs": {"8": 9}}'])
def test_who_waited_is_begun_anew_where_the_file_is_spoilt(tmp_path: Path, spoilt: bytes) -> None:
    file = tmp_path / "dependants.json"
    file.write_bytes(spoilt)
    known = Dependants(file)
    known.seen({"8": (9,)}, 1000.0)
    assert Dependants(file).of(["8"]) == (9,)
    nowhere = Dependants(tmp_path / "not" / "there.json")
    nowhere.seen({"8": (9,)}, 1000.0)
    assert nowhere.of(["8"]) == (9,), "it is known all the same"


def test_a_task_whose_array_others_wait_for_is_left_alone(tmp_path: Path) -> None:
    again = Again(tmp_path, a_failed_job("12_3"))
    again.change("12_3", id=15)
    again.seen.waiting = {"12_*": ("20",)}
    again.fail(15, "core_dump", array_job_id=12, array_task_id=3)
    again.settle()
    assert outcome(again, 15) == ("stopped", "dependants")
    again.close()


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_in_other_modes_only_the_row_is_written(tmp_path: Path, mode: str) -> None:
    again = Again(tmp_path, a_failed_job(), site=SITE.replace("enforce", mode))
    again.fail(8, "core_dump")
    again.settle()
    assert outcome(again) == ("stopped", "mode") and "would" in again.row().why
    assert again.hand.asked == []
    again.close()


def test_the_site_may_switch_it_off(tmp_path: Path) -> None:
    again = Again(tmp_path, a_failed_job(), site=SITE + "[resubmit]\nenabled = false\n")
    again.fail(8, "core_dump")
    again.settle()
    assert outcome(again) == ("stopped", "off") and again.hand.asked == []
    again.close()


def test_the_off_switch_of_gsub_act_counts_at_once(again: Again) -> None:
    again.world.off.touch()
    again.fail(8, "core_dump")
    again.settle()
    assert outcome(again) == ("stopped", "off") and again.hand.asked == []


def test_gsub_off_in_the_environment_is_known_from_the_submission(again: Again) -> None:
    again.store.put_decisions(
        CLUSTER,
        [
            {"kind": "decision", "decision": "d-1", "at": NOW, "opted_out": True},
            {"kind": "job", "decision": "d-1", "at": NOW, "job": 8},
        ],
    )
    again.fail(8, "core_dump")
    again.settle()
    assert outcome(again) == ("stopped", "off")


# --- what happens in between ------------------------------------------------------------------------------------------


def test_a_job_that_somebody_requeued_meanwhile_is_theirs(again: Again) -> None:
    again.fail(8, "core_dump")
    asyncio.run(again.driver.decide())
    again.change("8", restarts=1, state=JobState.PENDING)
    again.settle()
    assert outcome(again) == ("stopped", "moved_on") and again.hand.done == []


def test_a_job_that_is_purged_meanwhile(again: Again) -> None:
    again.fail(8, "core_dump")
    asyncio.run(again.driver.decide())
    del again.world.slurm.known_jobs["8"]
    again.settle()
    assert outcome(again) == ("stopped", "gone") and again.row().command == "gsub resubmit 8"


def test_a_job_that_is_still_completing_is_asked_for_again(again: Again) -> None:
    again.fail(8, "core_dump")
    again.change("8", flags=frozenset({JobFlag.COMPLETING}))
    again.until(lambda: len(again.hand.asked) >= 2)
    again.change("8", flags=frozenset())
    again.settle()
    assert again.row().state == "done"


def test_slurms_no_is_taken_after_three_times(again: Again) -> None:
    again.world.slurm.no = SlurmRefused("scontrol", "Requested operation is presently disabled")
    again.fail(8, "core_dump")
    again.settle()
    assert outcome(again) == ("stopped", "slurm")
    assert "presently disabled" in again.row().why and again.row().command == "gsub resubmit 8"
    assert len({one.id for one in again.hand.asked}) == 3


def test_slurms_no_to_a_change_leaves_no_hold(again: Again) -> None:
    again.seen.delay = 1.0
    again.fail(8, "core_dump")
    again.until(lambda: bool(again.hand.done))
    again.world.slurm.no = SlurmRefused("scontrol", "Access denied")
    again.until(lambda: again.row().step == "release")
    again.world.slurm.no = None
    again.settle()
    assert outcome(again) == ("stopped", "slurm") and "Access denied" in again.row().why
    assert again.world.slurm.known_jobs["8"].priority == 100


def test_more_memory_than_may_be_had(again: Again) -> None:
    again.seen.memory[8] = Asked("node", 32768)
    again.fail(8, "cpu_oom", state="OUT_OF_MEMORY")
    again.world.slurm.space = replace(again.world.slurm.space, biggest=40000)
    again.settle()
    assert outcome(again) == ("stopped", "limit") and again.hand.done == []


def test_a_job_that_started_before_it_was_changed(again: Again) -> None:
    again.fail(8, "core_dump")
    again.until(lambda: bool(again.hand.done))
    again.change("8", state=JobState.RUNNING)
    again.settle()
    assert outcome(again) == ("stopped", "moved_on") and "started before" in again.row().why


def test_gsub_act_may_be_away_for_a_while(again: Again) -> None:
    again.hand.away = True
    again.fail(8, "core_dump")
    again.pass_time(0)
    for _ in range(5):
        again.pass_time(min(again.once()))
    assert again.row().state == "planned"
    again.hand.away = False
    again.settle()
    assert again.row().state == "done"


@pytest.mark.case("users 3")
def test_nothing_is_promised_while_gsub_act_is_away(again: Again) -> None:
    again.seen.memory[8] = Asked("node", 32768)
    again.hand.away = True
    again.fail(8, "cpu_oom", state="OUT_OF_MEMORY")
    again.once()
    row = again.row()
    assert row.state == "planned" and row.withheld
    assert "is tried again" not in row.why and "it would be tried again with" in row.why
    assert row.why.endswith(", but gsub-act does not answer.")
    (line,) = rows([row])
    assert "still to be done" not in line[1] and "gsub-act is asked again" in line[1]
    again.once()
    assert again.row() == row  # said once
    again.hand.away = False
    again.settle()
    after = again.row()
    assert after.state == "done" and "it is tried again with" in after.why and SILENT not in after.why
    assert again.hand.asked[0].why == after.why


@pytest.mark.case("users 3")
def test_none_of_several_is_promised_and_none_is_taken_back(tmp_path: Path) -> None:
    """Those that wait behind the one that was asked about, and one that is half done when gsub-act goes away."""
    again = Again(tmp_path, *(a_failed_job(number) for number in range(20, 24)))
    again.fail(20, "core_dump")
    asyncio.run(again.driver.decide())
    ask = again.hand.ask

    def once_then_away(request: Request) -> Answer:
        again.hand.ask = gone  # type: ignore[method-assign]
        return ask(request)

    def gone(request: Request) -> Answer:
        raise HandError("gsub-act is not there")

    again.hand.ask = once_then_away  # type: ignore[method-assign]
    for number in range(21, 24):
        again.fail(number, "core_dump")
    again.once()
    assert again.hand.done == ["requeue 20"]
    found = {number: again.row(number) for number in range(20, 24)}
    assert found[20].state == "requeued"
    assert all(found[number].withheld and found[number].state == "planned" for number in range(21, 24))
    # One that fails now is known to wait from the first moment on
    again.pass_time(600)
    again.hand.ask = ask  # type: ignore[method-assign]
    again.settle()
    assert {outcome(again, number) for number in range(20, 24)} == {("done", "")}
    again.close()


@pytest.mark.case("users 3")
def test_a_failure_while_gsub_act_is_known_to_be_away_is_never_promised(again: Again) -> None:
    again.hand.away = True
    again.driver._hand_silent = 1
    again.fail(8, "core_dump")
    asyncio.run(again.driver.decide())
    assert again.row().withheld and "is tried again" not in again.row().why


@pytest.mark.slow
def test_gsub_act_that_stays_away_is_told_of(tmp_path: Path) -> None:
    again = Again(tmp_path, *(a_failed_job(number) for number in range(20, 30)))
    again.hand.away = True
    for number in range(20, 30):
        again.fail(number, "core_dump")
    again.settle()
    assert {outcome(again, number) for number in range(20, 30)} == {("stopped", "slurm")}
    assert again.time - NOW > PATIENCE
    again.close()


def test_an_answer_that_got_lost_is_asked_for_once_more(again: Again) -> None:
    again.hand.lost = True
    again.fail(8, "core_dump")
    again.until(lambda: bool(again.hand.done))
    again.hand.lost = False
    again.settle()
    assert again.hand.done == ["requeue 8", "update JobId=8 ExcNodeList=n1 StartTime=now"]
    assert again.world.slurm.known_jobs["8"].restarts == 1


def test_a_slurm_that_does_not_say_whether_it_did_it(again: Again) -> None:
    again.world.slurm.deaf = True
    again.fail(8, "core_dump")
    again.until(lambda: bool(again.hand.done))
    again.world.slurm.deaf = False
    again.settle()
    assert again.hand.done == ["requeue 8", "update JobId=8 ExcNodeList=n1 StartTime=now"]


def test_slurm_may_be_silent_for_long(again: Again) -> None:
    again.seen.silent = True
    again.fail(8, "core_dump")
    for _ in range(10):
        again.pass_time(min(again.once()))
    assert again.undecided() == [8]
    again.seen.silent = False
    again.settle()
    assert again.row().state == "done"


def test_a_clock_that_is_set_back_forgets_nothing(again: Again) -> None:
    again.hand.away = True
    again.fail(8, "core_dump")
    again.once()
    again.time -= 86400.0
    again.hand.away = False
    again.settle()
    assert again.row().state == "done"


def test_logs_are_read_before_a_new_attempt_overwrites_them(again: Again) -> None:
    again.fail(8, "core_dump", read=False)
    for _ in range(10):
        again.pass_time(min(again.once()))
    assert again.undecided() == [8] and again.seen.looks == []
    again.store.take([found(8, "import_error")], again.time)
    again.pass_time(20)
    again.once()
    assert again.undecided() == [8], "the verdict is still the one without them"
    again.judge()
    again.settle()
    assert outcome(again) == ("stopped", "never")


@pytest.mark.parametrize(("state", "seconds"), [("FAILED", 120.0), ("NODE_FAIL", 15.0)])
def test_logs_that_nobody_reads_are_not_waited_for_too_long(again: Again, state: str, seconds: float) -> None:
    again.change("8", state=JobState(state))
    again.fail(8, "core_dump", read=False, state=state)
    again.until(lambda: not again.undecided())
    assert again.time - END < seconds + 5
    again.settle()
    assert again.row().state == "done"


def test_where_no_logs_are_read_none_are_waited_for(tmp_path: Path) -> None:
    again = Again(tmp_path, a_failed_job(), site=SITE + "[agent]\nfindings = false\n")
    again.fail(8, "core_dump", read=False)
    asyncio.run(again.driver.decide())
    assert again.row().state == "planned"
    again.close()


def test_another_reason_before_anything_was_done_decides_anew(again: Again) -> None:
    again.hand.away = True
    again.fail(8, "core_dump")
    again.once()
    assert again.row().state == "planned"
    again.store.take([_another("import_error")], again.time)
    again.judge()
    again.hand.away = False
    again.settle()
    assert outcome(again) == ("stopped", "never") and again.hand.done == []


def test_another_reason_after_the_requeue_does_not_stop_half_way(again: Again) -> None:
    again.fail(8, "core_dump")
    again.until(lambda: bool(again.hand.done))
    again.store.take([_another("import_error")], again.time)
    again.judge()
    again.settle()
    assert again.row().state == "done" and len(again.hand.done) == 2


def test_a_fault_of_ours_stops_one_job_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = Again(tmp_path, a_failed_job(8), a_failed_job(9))

    def faulty(attempt: Any, *rest: Any, **more: Any) -> Any:
        if attempt.job_id == 8:
            raise ZeroDivisionError
        return plan(attempt, *rest, **more)

    monkeypatch.setattr("slurm_plugins.service.keeper.deciding.plan", faulty)
    again.fail(8, "core_dump")
    again.fail(9, "core_dump")
    again.settle()
    assert outcome(again) == ("stopped", "unknown") and again.row(9).state == "done"
    again.close()


def test_a_row_that_could_not_be_read_again_is_a_fault(again: Again, monkeypatch: pytest.MonkeyPatch) -> None:
    def longwinded(*rest: Any, **more: Any) -> Resubmission:
        return msgspec.structs.replace(plan(*rest, **more), why="x" * 10_000)

    monkeypatch.setattr("slurm_plugins.service.keeper.deciding.plan", longwinded)
    again.fail(8, "core_dump")
    again.settle()
    assert outcome(again) == ("stopped", "unknown") and again.hand.asked == []


def test_a_row_that_the_store_cannot_hold_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Again(tmp_path, a_failed_job(8), a_failed_job(9))
    put = again.store.put_resubmissions

    def picky(rows: Sequence[Resubmission], *rest: Any, **more: Any) -> Any:
        if any(row.job_id == 8 and row.state == "planned" for row in rows):
            raise StoreError("refused", "It cannot be written.", "a value", "")
        return put(rows, *rest, **more)

    monkeypatch.setattr(again.store, "put_resubmissions", picky)
    again.fail(8, "core_dump")
    again.fail(9, "core_dump")
    again.settle()
    assert outcome(again) == ("stopped", "unknown") and again.row(9).state == "done"
    again.close()


def test_a_store_that_is_away_forgets_nothing(again: Again, monkeypatch: pytest.MonkeyPatch) -> None:
    put, fails = again.store.put_resubmissions, [True]

    def away(*rest: Any, **more: Any) -> Any:
        if fails[0]:
            raise StoreError("unreachable", "It cannot be written.", "no server", "")
        return put(*rest, **more)

    again.fail(8, "core_dump")
    asyncio.run(again.driver.decide())
    monkeypatch.setattr(again.store, "put_resubmissions", away)
    with pytest.raises(StoreError):
        asyncio.run(again.driver.carry_out())
    assert again.hand.done == ["requeue 8"] and again.row().state == "planned"
    fails[0] = False
    again.settle()
    assert again.hand.done == ["requeue 8", "update JobId=8 ExcNodeList=n1 StartTime=now"]


# --- many -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_many_failures_are_one_look_and_no_user_waits_for_another(tmp_path: Path) -> None:
    jobs = [a_failed_job(number) for number in range(100, 160)]
    again = Again(tmp_path, *jobs, a_failed_job(8, uid=2000))
    for number in range(100, 160):
        again.fail(number, "core_dump")
    again.fail(8, "core_dump", uid=2000)
    asyncio.run(again.driver.decide())
    assert [len(ids) for ids in again.seen.looks] == [61] and not again.undecided()
    asyncio.run(again.driver.carry_out())
    assert "requeue 8" in again.hand.done[:2]
    again.settle()
    assert all(over(again.row(number)) for number in range(100, 160))
    assert sorted(line for line in again.hand.done if line.startswith("requeue ")) == sorted(
        f"requeue {number}" for number in (8, *range(100, 160))
    )
    again.close()


def test_slurm_is_not_looked_at_without_a_rest(again: Again) -> None:
    again.fail(8, "core_dump")
    asyncio.run(again.driver.decide())
    again.fail(9, "core_dump")
    assert asyncio.run(again.driver.decide()) > 0
    assert again.seen.looks == [(8,)] and again.undecided() == [9]


def test_it_runs_until_it_is_cancelled(again: Again) -> None:
    again.fail(8, "core_dump")

    async def run() -> None:
        running = asyncio.ensure_future(again.driver.run())
        again.driver.soon()
        while again.row_or_none() is None or not over(again.row()):
            again.pass_time(1)
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert again.row().state == "done"


def _another(reason: str) -> Any:
    return found(8, reason, serial=2)
