"""Which job came of which decision: a table, and what a restart must not lose."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timezone
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_plugins.client.values import Job, JobState, Tres
from slurm_plugins.decide.decision import Change, Decision
from slurm_plugins.decide.request import Job as Asked
from slurm_plugins.decide.request import Request
from slurm_plugins.service.counts import Counts
from slurm_plugins.service.joins import LOST_AFTER, WINDOW, Outcome, join
from slurm_plugins.service.pending import PendingJoins
from slurm_plugins.service.submitted import Pending, Submission, submissions
from slurm_plugins.service.wire import Report
from slurm_plugins.service.written import decision_line
from tests.properties import examples

T = 1_800_000_000.0
LATER = T + 60  # when Slurm was looked at: all that belongs to T can be seen


def asked(id_: str = "a", at: float = 0.3, **more: object) -> Pending:
    fields: dict[str, object] = {"uid": 1000, "name": "train", "partition": "gpu", "work_dir": "/home/u"}
    return Pending(f"d-{id_:0>16}", T + at, **fields | more)  # type: ignore[arg-type]


def job(number: int = 7, at: float = 0.0, **more: object) -> Job:
    fields: dict[str, object] = {
        "name": "train",
        "user": "u",
        "uid": 1000,
        "partition": "gpu",
        "work_dir": "/home/u",
        "tres_per_node": Tres((("gres/gpu", 8),)),
        "gpus": 8,
        "state": JobState.PENDING,
        "submitted": datetime.fromtimestamp(T + at, timezone.utc),
    }
    return Job(id=number, **fields | more)  # type: ignore[arg-type]


def joined(pending: list[Pending], jobs: list[Job], looked: float = LATER) -> dict[str, int]:
    """Decision's name -> job's id."""
    outcome = join(pending, submissions(jobs), looked=looked, default_partition="gpu")
    return {one.decision.lstrip("d-0"): one.job.id for one in outcome.joined}


TAG = "gsub:d-000000000000000a"

# what, decisions, jobs, decision -> job
TABLE: list[tuple[str, list[Pending], list[Job], dict[str, int]]] = [
    ("one and one", [asked()], [job()], {"a": 7}),
    ("no decision", [], [job()], {}),
    ("no job", [asked()], [], {}),
    ("another's job", [asked()], [job(uid=1001)], {}),
    ("uid not shown, user is", [asked(user="u")], [job(uid=None)], {"a": 7}),
    ("uid not shown, another user", [asked(user="v")], [job(uid=None)], {}),
    ("uid not shown, user not told", [asked()], [job(uid=None)], {}),
    ("another name", [asked()], [job(name="eval")], {}),
    ("name not told", [replace(asked(), name=None)], [job(name="x")], {"a": 7}),
    ("another folder", [asked()], [job(work_dir="/home/u/2")], {}),
    ("another partition", [asked()], [job(partition="old")], {}),
    ("default partition", [asked(partition=None)], [job()], {"a": 7}),
    ("not the default partition", [asked(partition=None)], [job(partition="old")], {}),
    ("one of several partitions, running", [asked(partition="old,gpu")], [job(partition="gpu")], {"a": 7}),
    ("several partitions, pending", [asked(partition="old,gpu")], [job(partition="old,gpu")], {"a": 7}),
    ("submitted before", [asked()], [job(at=-1)], {}),
    ("submitted long after", [asked()], [job(at=WINDOW + 2)], {}),
    ("submitted seconds after", [asked()], [job(at=4)], {"a": 7}),
    ("a clock that lags by a tick", [asked(at=1.005)], [job(at=0)], {"a": 7}),
    ("array and array", [asked(array=True)], [job(array_job_id=7, array_tasks="1-3")], {"a": 7}),
    (
        "array, some tasks started",
        [asked(array=True)],
        [job(8, array_job_id=7, array_task_id=1), job(7, array_job_id=7, array_tasks="2-3")],
        {"a": 7},
    ),
    ("array and job", [asked(array=True)], [job()], {}),
    ("job and array", [asked()], [job(array_job_id=7)], {}),
    (
        "components of a heterogeneous job",
        [asked("a", het_offset=0), asked("b", het_offset=1)],
        [job(7, het_job_id=7, het_offset=0), job(8, het_job_id=7, het_offset=1)],
        {"a": 7, "b": 8},
    ),
    ("component and job", [asked(het_offset=0)], [job()], {}),
    ("other GPUs", [asked(gpus=(None, "gres:gpu:4", None, None))], [job()], {}),
    (
        "the same GPUs in Slurm's other spelling",
        [asked(gpus=(None, "gres/gpu:8", None, None))],
        [job()],
        {"a": 7},
    ),
    ("GPUs that nobody can read", [asked(gpus=(None, ";;", None, None))], [job()], {"a": 7}),
    (
        "told apart by their GPUs",
        [
            asked("a", gpus=(None, "gres:gpu:8", None, None)),
            asked("b", gpus=(None, "gres:gpu:2", None, None)),
        ],
        [job(7), job(8, tres_per_node=Tres((("gres/gpu", 2),)))],
        {"a": 7, "b": 8},
    ),
    ("two alike in a second, one job", [asked("a"), asked("b")], [job()], {}),
    ("two alike in a second, two jobs", [asked("a"), asked("b")], [job(7), job(8)], {"a": 7, "b": 8}),
    ("three alike in a second, two jobs", [asked("a"), asked("b"), asked("c")], [job(7), job(8)], {}),
    (
        "in the order in which they were asked about",
        [asked("b", 0.1), asked("a", 0.2), asked("c", 0.3)],
        [job(9), job(7), job(8)],
        {"b": 7, "a": 8, "c": 9},
    ),
    (
        "fifteen of a client's, over two seconds",
        [asked(f"{number + 16:x}", number / 8) for number in range(1, 16)],
        [job(100 + number, number // 8) for number in range(1, 16)],
        {f"{number + 16:x}": 100 + number for number in range(1, 16)},
    ),
    (
        "told apart by their time",
        [asked("a", minutes=10), asked("b", minutes=20)],
        [job(7, time_limit=1200), job(8, time_limit=600)],
        {"a": 8, "b": 7},
    ),
    (
        "told apart by their CPUs",
        [asked("a", cpus=2), asked("b", cpus=4)],
        [job(7, cpus_per_task=4), job(8, cpus_per_task=2)],
        {"a": 8, "b": 7},
    ),
    ("another time", [asked(minutes=10)], [job(time_limit=1200)], {}),
    ("one and two jobs alike", [asked()], [job(7), job(8)], {}),
    (
        "alike, seconds apart: the first job can only be the first's",
        [asked("a", 0.3), asked("b", 2.3), asked("c", 4.3)],
        [job(7, 0), job(8, 2), job(9, 4)],
        {"a": 7, "b": 8, "c": 9},
    ),
    (
        "alike, seconds apart, the first without a job",
        [asked("a", 0.3), asked("b", 2.3)],
        [job(8, 2)],
        {},
    ),
    (
        "alike, seconds apart, the last without a job",
        [asked("a", 0.3), asked("b", 2.3)],
        [job(7, 0)],
        {"a": 7},
    ),
    ("further apart than the window", [asked("a", 0.3), asked("b", 9.3)], [job(9, 9)], {"b": 9}),
    ("a job of theirs that opted out", [asked()], [job(7), job(8, comment="x gsub:off")], {"a": 7}),
    ("a job without GPUs", [asked()], [job(7), job(8, gpus=0, tres_per_node=Tres())], {"a": 7}),
    ("AdminComment says it", [asked(tagged=True)], [job(admin_comment=TAG)], {"a": 7}),
    ("among other words", [asked(tagged=True)], [job(admin_comment=f"x {TAG},y")], {"a": 7}),
    (
        "AdminComment counts, whatever else fits",
        [asked(tagged=True)],
        [job(7), job(8, at=99, admin_comment=TAG)],
        {"a": 8},
    ),
    ("it should be there and is not", [asked(tagged=True)], [job()], {}),
    ("another decision's", [asked()], [job(admin_comment="gsub:d-000000000000000b")], {}),
    ("like it and not it", [asked(tagged=True)], [job(admin_comment=TAG + "0")], {}),
    (
        "bytes that are no text",
        [replace(asked(), name="a\ufffd\ufffdb")],
        [job(name="a\udcff\udcfeb")],
        {"a": 7},
    ),
]


@pytest.mark.parametrize(
    ("pending", "jobs", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_the_table(pending: list[Pending], jobs: list[Job], expected: dict[str, int]) -> None:
    assert joined(pending, jobs) == expected
    assert joined(pending[::-1], jobs[::-1]) == expected


def outcome(pending: list[Pending], jobs: list[Job], looked: float = LATER) -> Outcome:
    return join(pending, submissions(jobs), looked=looked, default_partition="gpu")


def test_what_more_than_one_decision_may_explain_is_given_up_and_said() -> None:
    found = outcome([asked("a"), asked("b"), asked("c")], [job(7), job(8)])
    assert (len(found.ambiguous), found.joined, found.open) == (3, (), ())
    assert found.spoilt == {7, 8}


def test_nothing_is_judged_before_all_jobs_that_matter_can_be_seen() -> None:
    found = outcome([asked()], [job()], looked=T + 1)
    assert (found.joined, found.ambiguous, len(found.open)) == ((), (), 1)
    tagged = outcome([asked(tagged=True)], [job(admin_comment=TAG)], looked=T + 1)
    assert len(tagged.joined) == 1  # it says so itself: nothing to wait for


def test_a_decision_without_a_job_is_given_up_after_ten_minutes() -> None:
    assert len(outcome([asked()], [], looked=T + LOST_AFTER - 1).open) == 1
    assert len(outcome([asked()], [], looked=T + LOST_AFTER + 1).lost) == 1


def test_a_job_is_joined_once() -> None:
    jobs = submissions([job()])
    found = join([asked()], jobs, looked=LATER, taken={7}, default_partition="gpu")
    assert found.joined == ()


@given(st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=12))
@settings(max_examples=examples(200), deadline=None, derandomize=True)
def test_no_join_is_ever_wrong(history: list[tuple[float, bool]]) -> None:
    """One user, jobs all alike, some decisions without a job (--test-only): what is joined is true."""
    pending, jobs, truth = [], [], {}
    for number, (at, has_job) in enumerate(sorted(history)):
        pending.append(asked(f"{number:x}", at))
        if has_job:
            jobs.append(job(100 + number, at=int(at)))
            truth[pending[-1].id] = 100 + number
    found = outcome(pending, jobs)
    assert all(truth.get(one.decision) == one.job.id for one in found.joined)
    told = [*(one.decision for one in found.joined), *(one.id for one in (*found.ambiguous, *found.open))]
    assert sorted(told) == sorted(one.id for one in pending)


# --- over polls and restarts ----------------------------------------------------------------------------------------


class Written:
    """Where records go."""

    def __init__(self) -> None:
        self.records: list[dict[str, object]] = []

    def __call__(self, line: object) -> None:
        self.records.append(json.loads(line()))  # type: ignore[operator]


def request(**fields: object) -> Request:
    values: dict[str, object] = {"name": "train", "work_dir": "/home/u", "tres_per_node": "gres:gpu:8"}
    return Request(id=1, uid=1000, job=Asked(**values | fields))  # type: ignore[arg-type]


def report(at: float, *jobs: Job) -> Report:
    return msgspec.structs.replace(Report(), jobs_at=at, jobs=tuple(submissions(jobs).values()))


def waiting(*names: str) -> tuple[PendingJoins, Written, Counts]:
    written, counts = Written(), Counts()
    joins = PendingJoins(written, counts)
    for name in names:
        joins.add(asked(name))
    return joins, written, counts


def test_a_join_is_written_once_and_the_decision_waits_no_more() -> None:
    joins, written, counts = waiting("a")
    for _ in range(2):
        asyncio.run(joins.take(report(LATER, job()), "gpu"))
    (record,) = written.records
    assert (record["kind"], record["job"], record["by"]) == ("job", 7, "submission")
    assert (len(joins), asyncio.run(joins.wanted()), counts.joined.value("submission")) == (
        0,
        (None, None),
        1,
    )


@pytest.mark.case("S2")
def test_jobs_are_asked_for_only_while_a_decision_waits_and_of_its_users_alone() -> None:
    joins, _, _ = waiting()
    assert asyncio.run(joins.wanted()) == (None, None)
    joins.add(asked("a", uid=1001))
    since, uids = asyncio.run(joins.wanted())
    assert since is not None and since < T and uids == (1001,)
    joins.add(asked("b", uid=1000))
    joins.add(asked("c", uid=1000))
    assert asyncio.run(joins.wanted()) == (since, (1000, 1001))
    for uid in range(2000, 3000):
        joins.add(asked(str(uid), uid=uid))
    assert asyncio.run(joins.wanted()) == (since, None), "a command line has an end"


def test_what_an_ambiguous_decision_left_is_not_given_to_the_next_one() -> None:
    joins, written, counts = waiting("a", "b")
    joins.add(asked("c", 3.3))  # of the same user, too young to be judged at the first look
    jobs = [job(7, at=3), job(8, at=3)]
    asyncio.run(joins.take(report(T + 3.3 + WINDOW - 0.1, *jobs), "gpu"))
    asyncio.run(joins.take(report(LATER, *jobs), "gpu"))
    assert [record["kind"] for record in written.records if record["kind"] == "job"] == []
    assert counts.unjoined.value("ambiguous") == 2


def test_a_burst_of_jobs_all_alike_is_given_up_and_costs_no_minutes() -> None:
    """Compared each with each, these were a hundred million pairs."""
    pending = [replace(asked(f"{number:x}", number / 1000)) for number in range(10_000)]
    jobs = {
        number: Submission(number, T + number // 1000, "train", 1000, "u", "gpu") for number in range(10_000)
    }
    found = join(pending, jobs, looked=LATER, default_partition="gpu")
    assert (len(found.ambiguous), len(found.spoilt), found.joined) == (10_000, 10_000, ())


def test_a_burst_takes_nothing_from_others() -> None:
    pending = [asked(f"{number:x}", 0.3) for number in range(50)]
    others = [asked("aaaa", 0.3, name="other"), asked("bbbb", 0.3, uid=1001), asked("cccc", 20.3)]
    jobs = [job(100 + number) for number in range(50)]
    theirs = [job(7, name="other"), job(8, uid=1001), job(9, at=20)]
    assert joined([*pending, *others], [*jobs, *theirs]) == {"aaaa": 7, "bbbb": 8, "cccc": 9}


def test_a_long_row_is_resolved_from_its_start() -> None:
    pending = [asked(f"{number + 1:x}", number + 0.3) for number in range(2000)]
    jobs = [job(1 + number, at=number) for number in range(2000)]
    found = outcome(pending, jobs, looked=T + 3000)
    assert all(int(one.decision[2:], 16) == one.job.id for one in found.joined)
    assert len(found.joined) == 2000


def test_a_burst_is_joined_while_questions_have_their_turn() -> None:
    joins, written, _ = waiting()
    jobs = []
    for number in range(1000):
        joins.add(replace(asked(f"{number:x}"), name=f"n{number}"))
        jobs.append(job(1 + number, name=f"n{number}"))
    turns: list[int] = []

    async def asking() -> None:
        while True:
            turns.append(len(written.records))
            await asyncio.sleep(0)

    async def run() -> None:
        task = asyncio.ensure_future(asking())
        await joins.take(report(LATER, *jobs), "gpu")
        task.cancel()

    asyncio.run(run())
    assert len(written.records) == 1000
    assert max(after - before for before, after in pairwise([*turns, 1000])) <= 50


def test_slurm_that_does_not_answer_loses_no_decision() -> None:
    joins, written, _ = waiting("a")
    asyncio.run(joins.take(Report(jobs_error="slurmctld does not answer"), "gpu"))
    assert (len(joins), written.records) == (1, [])


def test_a_restart_takes_up_what_waits_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def line(name: str, at: float, **fields: object) -> dict[str, object]:
        decision = Decision(f"d-{name:0>16}", "observe", **fields)  # type: ignore[arg-type]
        return json.loads(decision_line(request(), decision, at))  # type: ignore[no-any-return]

    records: list[dict[str, object]] = [
        line("1", T - 2 * LOST_AFTER),
        line("2", T - 10),
        line("3", T - 9),
        {"v": 1, "kind": "job", "decision": f"d-{2:0>16}", "job": 7, "submitted": T - 10},
        line("4", T),
        {"kind": "decision"},
        {"kind": "decision", "decision": 7, "at": "x", "asked": {}},
        {"kind": "ambiguous", "decision": f"d-{3:0>16}"},
        {"nothing": 1},
    ]
    joins, written, _ = waiting()
    joins.restore(records, T)
    assert len(joins) == 1
    asyncio.run(joins.take(report(LATER, job(7, -10), job(8, 0)), "gpu"))
    assert [(one["decision"], one["job"]) for one in written.records] == [(f"d-{4:0>16}", 8)]


@pytest.mark.parametrize("mode", ["observe", "advise", "enforce"])
@pytest.mark.parametrize("comment", [None, "site's own"])
def test_a_decision_is_looked_for_alike_before_and_after_a_restart(mode: str, comment: str | None) -> None:
    changes = (Change("min_nodes", None, 2),) if comment else (Change("admin_comment", None, TAG),)
    decision = Decision("d-000000000000000a", mode, changes)  # type: ignore[arg-type]
    what = request(array_inx="1-3", partition="gpu", user_name="u", admin_comment=comment)
    live = Pending.of(what, decision, T)
    assert live == Pending.of_record(json.loads(decision_line(what, decision, T)))
    assert live.tagged == (mode == "enforce" and not comment)
    assert live.gpus == (None, "gres:gpu:8", None, None)


def test_gpus_that_gsub_wrote_otherwise_are_not_compared() -> None:
    decision = Decision("d-000000000000000a", "enforce", (Change("gres", "gres:gpu:8", "gpu:4"),))
    live = Pending.of(request(), decision, T)
    assert live.gpus is None and live == Pending.of_record(json.loads(decision_line(request(), decision, T)))


def test_a_name_that_was_cut_is_not_compared() -> None:
    what = msgspec.structs.replace(request(), cut=("name",))
    decision = Decision("d-000000000000000a", "observe")
    for one in (
        Pending.of(what, decision, T),
        Pending.of_record(json.loads(decision_line(what, decision, T))),
    ):
        assert one is not None and one.name is None


def test_what_nobody_joins_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugins.service.pending._MOST", 10)
    joins, _, counts = waiting(*(str(number) for number in range(25)))
    assert (len(joins), counts.unjoined.value("overflow")) == (10, 15)


def test_submissions_hold_what_crosses_the_wire() -> None:
    (one,) = submissions([job(name="a\udcffb", work_dir="/h\udc80")]).values()
    assert one == msgspec.json.decode(msgspec.json.encode(one), type=Submission)
