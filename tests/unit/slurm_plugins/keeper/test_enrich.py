"""Slurm's word on jobs: facts only, each for its own attempt, and never from an empty answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import msgspec
import pytest

from profiler.records import JobRef
from profiler.store.facts import JobFacts
from site_configs.site import Site
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import SlurmRefused, SlurmUnreachable
from slurm_plugins.client.protocol import JobId
from slurm_plugins.client.resources import Hosts, Tres
from slurm_plugins.client.states import ExitStatus, JobFlag, JobState
from slurm_plugins.client.tables import Unread
from slurm_plugins.client.values import AccountingRecord, Job
from slurm_plugins.service.keeper import enrich as enriching
from slurm_plugins.service.keeper.ask import Question, Seen, ask
from slurm_plugins.service.keeper.enrich import Enrichment
from slurm_plugins.service.keeper.facts import of_accounting, of_job, running
from slurm_plugins.service.site_watch import Taken
from slurm_plugins.service.within import is_set_within
from tests.unit.profiler.store.records import T0, ended, started, usage
from tests.unit.slurm_plugins.client.fake import FakeClient, only
from tests.unit.slurm_plugins.client.slurm_rows import Answers, attempt, job
from tests.unit.slurm_plugins.keeper.door import ADA, OPERATOR, PATIENCE, Door
from tests.unit.slurm_plugins.keeper.fakes import FakeSlurm

GIB = 1 << 30


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def a_job(number: int = 1, state: JobState = JobState.RUNNING, **more: Any) -> Job:
    values: dict[str, Any] = {
        "name": "train",
        "user": "ada",
        "uid": ADA,
        "start": at(T0),
        "end": at(T0 + 3600),
        "submitted": at(T0 - 60),
        "nodes": Hosts("n[1-2]"),
        "num_cpus": 16,
        "gpus": 4,
        "tres": Tres((("mem", 64 * GIB),)),
    } | more
    return Job(id=number, state=state, **values)


def a_row(number: int = 1, state: JobState = JobState.COMPLETED, **more: Any) -> AccountingRecord:
    values: dict[str, Any] = {
        "name": "train",
        "user": "ada",
        "uid": ADA,
        "start": at(T0),
        "end": at(T0 + 3600),
        "submitted": at(T0 - 60),
        "nodes": Hosts("n[1-2]"),
    } | more
    return AccountingRecord(id=number, state=state, **values)


class Both(FakeClient):
    """A client with these jobs in slurmctld and these rows in slurmdbd."""

    def __init__(self, jobs: Iterable[Job] = (), rows: Iterable[AccountingRecord] = ()) -> None:
        super().__init__()
        self.here = tuple(jobs)
        self.rows = tuple(rows)
        self.asked_for: list[list[JobId]] = []

    def jobs(
        self,
        *,
        ids: Iterable[JobId] | None = None,
        values: Collection[str] | None = None,
        **_: object,
    ) -> tuple[Job, ...]:
        if "slurmctld" in self.down:
            raise SlurmUnreachable("slurmctld", "it is down")
        wanted = None if ids is None else set(ids)
        found = [job for job in self.here if wanted is None or job.id in wanted]
        return tuple(found if values is None else (only(job, values) for job in found))

    def accounting(self, *, ids: Iterable[JobId] | None = None, **_: Any) -> tuple[AccountingRecord, ...]:
        wanted = list(ids or ())
        if wanted:
            self.asked_for.append(wanted)
        if "slurmdbd" in self.down:
            raise SlurmUnreachable("slurmdbd", "it is down")
        return self.rows


# What is a fact


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (a_job(), {"state": "RUNNING", "started": T0, "ended": None, "exit_code": None, "final": False}),
        (a_job(state=JobState.PENDING, nodes=Hosts("")), {"started": None, "ended": None, "final": False}),
        (a_job(start=at(T0 + 7000)), {"started": None}),
        (
            a_job(state=JobState.FAILED, exit=ExitStatus(3, 0)),
            {"state": "FAILED", "ended": T0 + 3600, "exit_code": 3, "signal": 0, "final": True},
        ),
        (
            a_job(state=JobState.UNKNOWN, flags=frozenset({JobFlag.COMPLETING})),
            {"state": None, "ended": None, "exit_code": None, "final": False},
        ),
        (
            a_job(state=JobState.COMPLETED, flags=frozenset({JobFlag.COMPLETING})),
            {"ended": None, "exit_code": None, "final": False},
        ),
    ],
)
def test_what_slurmctld_plans_is_no_fact(job: Job, told: dict[str, Any]):
    facts = of_job(job, "lab", T0 + 5000)
    assert {name: getattr(facts, name) for name in told} == told


def test_what_is_asked_for_comes_along():
    facts = of_job(a_job(time_limit=600, restarts=2), "lab", T0)
    wanted = (4, 16, 64 * GIB, 600.0, 2, "n[1-2]")
    found = facts.gpus, facts.cpus, facts.memory_asked_bytes, facts.time_limit, facts.restarts, facts.nodes
    assert found == wanted


def test_an_attempt_that_was_requeued_has_ended():
    row = a_row(state=JobState.UNKNOWN, flags=frozenset({JobFlag.REQUEUED}), restarts=0)
    facts = of_accounting(row, "lab")
    assert (facts.state, facts.ended, facts.final) == ("REQUEUED", T0 + 3600, True)
    assert facts.exit_code is None and facts.signal is None, "it did not end by itself"
    facts = of_accounting(replace(row, exit=ExitStatus(7)), "lab")
    assert facts.exit_code == 7, "the one for which the site has it requeued (RequeueExit)"


def test_a_row_without_an_end_is_not_final():
    """slurmdbd 22.05 shows a final state before the end and exit code that belong to it."""
    assert not of_accounting(a_row(end=None), "lab").final


def test_text_of_users_can_be_stored():
    facts = of_job(a_job(name="a\udcff\0b", work_dir="/\udc80"), "lab", T0)
    assert (facts.name, facts.work_dir) == ("a??b", "/?")
    facts.name.encode()


def test_what_runs_where():
    jobs = [
        a_job(1, restarts=2),
        a_job(2, JobState.SUSPENDED, nodes=Hosts("n2")),
        a_job(3, JobState.PENDING, nodes=Hosts("")),
        a_job(4, JobState.COMPLETED),
        a_job(5, JobState.UNKNOWN, nodes=Hosts("n1"), flags=frozenset({JobFlag.COMPLETING})),
    ]
    assert running(jobs) == {"n1": (JobRef(1, 2), JobRef(5)), "n2": (JobRef(1, 2), JobRef(2))}


# One look


def test_slurmdbd_is_asked_for_what_slurmctld_does_not_hold_only():
    client = Both([a_job(1), a_job(2, restarts=1)], [a_row(2, restarts=0), a_row(3), a_row(99)])
    seen = ask(client, "lab", [JobRef(1), JobRef(2, 0), JobRef(2, 1), JobRef(3)], T0)
    assert client.asked_for == [[2, 3]]
    found = sorted((one.job_id, one.restarts if one.restarts is not None else -1) for one in seen.facts)
    assert found == [(1, 0), (2, 0), (2, 1), (3, -1)], "99 was not asked about"


def test_many_are_asked_for_a_part_at_a_time():
    client = Both([a_job(1)])
    ask(client, "lab", [JobRef(number) for number in range(2, 1002)], T0)
    assert [len(part) for part in client.asked_for] == [400, 400, 200]


@pytest.mark.case("T2", "S1")
def test_one_part_that_is_refused_does_not_lose_the_others():
    class Picky(Both):
        def accounting(
            self, *, ids: Iterable[JobId] | None = None, **more: Any
        ) -> tuple[AccountingRecord, ...]:
            asked = list(map(int, ids or ()))
            if 3 in asked:
                raise SlurmRefused("sacct", "no")
            return super().accounting(ids=asked, **more)

    client = Picky([a_job(1)], [a_row(3), a_row(900)])
    seen = ask(client, "lab", [JobRef(number) for number in range(2, 1002)], T0)
    assert [one.job_id for one in seen.facts] == [900] and seen.accounting_error == "no"
    client.down = {"slurmdbd"}
    client.asked_for.clear()
    ask(client, "lab", [JobRef(number) for number in range(2, 1002)], T0)
    assert len(client.asked_for) <= 1, "each would wait for a daemon that is silent"


@pytest.mark.case("A2", "S1", "T2")
def test_odd_rows_and_ids_cost_themselves_alone():
    jobs = [job(65534), job(2, eligible="604801795311497"), job(3, tres="mem=lots"), job(4, tres="mem=8?")]
    attempts = [attempt(65535), attempt(6, end="soon"), attempt(7, end="604801795311497")]
    unread = Unread()
    client = CommandClient({}, run=Answers(jobs=jobs, attempts=attempts), unread=unread)
    wanted = [JobRef(number) for number in (65534, 2, 3, 4, 65535, 6, 7, 4294952826)]
    seen = msgspec.json.decode(msgspec.json.encode(ask(client, "lab", wanted, T0, unread)), type=Seen)
    assert [one.job_id for one in seen.facts] == [2, 4, 65534, 7, 65535]
    assert seen.running == {} and not seen.error and not seen.accounting_error
    assert seen.unread == {"job": 1, "attempt": 1}


@pytest.mark.case("A2")
def test_a_wanted_job_that_cannot_be_read_whole_costs_itself_alone():
    """Whatever is asked for whole may be unreadable: what runs and waits is known all the same."""
    waits = job(5, array_job_id="5", array_task="1,7-9", state="PENDING")
    jobs = [job(2, nice="lots"), waits, job(6, array_job_id="5", array_task="3", nice="lots")]
    unread = Unread()
    client = CommandClient({}, run=Answers(jobs=jobs), unread=unread)
    seen = ask(client, "lab", [JobRef(2)], T0, unread)
    assert not seen.error and seen.queue is not None
    assert unread.kinds == {"job": 1}
    assert [one.id for one in client.jobs(ids=[5, 6])] == [5]


@pytest.mark.parametrize("down", [{"slurmctld"}, {"slurmdbd"}, {"slurmctld", "slurmdbd"}])
def test_what_is_down_is_told_and_the_other_is_asked(down: set[str]):
    client = Both([a_job(1)], [a_row(3)])
    client.down = down
    seen = ask(client, "lab", [JobRef(1), JobRef(3)], T0)
    assert bool(seen.error) == ("slurmctld" in down)
    assert bool(seen.accounting_error) == ("slurmdbd" in down)
    assert (seen.running is None) == ("slurmctld" in down)
    assert {one.job_id for one in seen.facts} == (
        {1} - ({1} if "slurmctld" in down else set()) | ({3} if "slurmdbd" not in down else set())
    )


def test_no_jobs_at_all_is_no_fact():
    assert ask(Both(), "lab", [], T0).running is None


# Round after round


def enrichment(door: Door, slurm: FakeSlurm) -> Enrichment:
    """Its clock is an hour ahead: what was just told of is due."""
    site = Taken(Site(cluster="lab"), 'cluster = "lab"\n')
    return Enrichment(
        slurm, door.storing, door.counts, site=site, site_path="", every=30.0, now=lambda: time.time() + 3600
    )


def facts_of(client: FakeClient, now: float = T0 + 4000) -> FakeSlurm:
    return FakeSlurm(lambda question: ask(client, "lab", question.wanted, now))


@pytest.mark.case("S8")
def test_the_keeper_waits_longer_after_a_queue_that_was_late(both: Door):
    answers = [Seen(at=0.0, error="late", queue_late=True), Seen(at=0.0, queue_took=30.0), Seen(at=0.0)]
    slurm = FakeSlurm(lambda _: answers[len(slurm.asked) - 1])
    one = enrichment(both, slurm)
    for _ in answers:
        asyncio.run(one.once())
    assert [question.queue_seconds for question in slurm.asked] == [20, 40, 150]
    assert one.patience.took == 30.0


def test_a_job_gets_slurms_word(both: Door):
    asyncio.run(both.bring(started(1, uid=ADA), usage(1)))
    client = Both([a_job(1, account="vision", qos="high", array_job_id=1, array_task_id=3)])
    asyncio.run(enrichment(both, facts_of(client)).once())
    found = asyncio.run(both.ask(ADA, "GET", "/v1/jobs/1_3")).json
    wanted = {"job_id": 1, "qos": "high", "state": "RUNNING", "nodes": "n[1-2]", "gpus": 4, "name": "train"}
    assert {name: found[name] for name in wanted} == wanted


def test_the_attempts_of_a_requeued_job_are_told_apart_by_their_start(both: Door):
    """22.05 does not say which row is which attempt."""
    first, second = T0, T0 + 1000
    asyncio.run(
        both.bring(
            started(1, uid=ADA, at=first + 2),
            ended(1, at=first + 502),
            started(1, uid=ADA, at=second + 2, restarts=1),
            ended(1, at=second + 302, restarts=1),
        )
    )
    rows = [
        a_row(1, JobState.UNKNOWN, flags=frozenset({JobFlag.REQUEUED}), end=at(first + 500)),
        a_row(1, JobState.FAILED, exit=ExitStatus(7), start=at(second), end=at(second + 300)),
    ]
    asyncio.run(enrichment(both, facts_of(Both([a_job(77)], rows))).once())
    states = [asyncio.run(both.ask(ADA, "GET", f"/v1/jobs/1?restarts={number}")).json for number in (0, 1)]
    assert [one["state"] for one in states] == ["REQUEUED", "FAILED"]
    assert states[1]["exit_code"] == 7 and states[0]["ended"] == first + 500


def test_without_accounting_scontrol_does(both: Door):
    asyncio.run(both.bring(started(1, uid=ADA), started(2, uid=ADA, node="n2"), node="n1"))
    client = Both([replace(a_job(1, JobState.FAILED), exit=ExitStatus(1))])
    client.down = {"slurmdbd"}
    asyncio.run(enrichment(both, facts_of(client)).once())
    assert asyncio.run(both.ask(ADA, "GET", "/v1/jobs/1")).json["state"] == "FAILED"


def test_a_silent_slurm_leaves_all_as_it_was(door: Door, caplog: pytest.LogCaptureFixture):
    asyncio.run(door.bring(started(1, uid=ADA)))
    before = asyncio.run(door.ask(ADA, "GET", "/v1/jobs/1")).body
    one = enrichment(door, FakeSlurm())
    for _ in range(3):
        asyncio.run(one.once())
    assert asyncio.run(door.ask(ADA, "GET", "/v1/jobs/1")).body == before
    assert one.running() is None and caplog.text.count("no Slurm here") == 1


def test_an_old_look_says_nothing_of_the_present(door: Door, monkeypatch: pytest.MonkeyPatch):
    one = enrichment(door, FakeSlurm(lambda _: Seen(at=5.0, running={"n1": (JobRef(1),)})))
    asyncio.run(one.once())
    running = one.running()
    assert running is not None and running.by_node == {"n1": (JobRef(1),)} and running.at == 5.0
    later = time.monotonic() + 1000
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert one.running() is None


@pytest.mark.case("A2")
def test_a_fact_that_the_store_cannot_hold_does_not_lose_the_others(
    both: Door, caplog: pytest.LogCaptureFixture
):
    asyncio.run(both.bring(*(started(number, uid=ADA) for number in (1, 2, 3))))
    facts = tuple(of_job(a_job(number), "lab", T0) for number in (1, 2, 3))
    facts = (facts[0], replace(facts[1], memory_asked_bytes=1 << 64), facts[2])
    one = enrichment(both, FakeSlurm(lambda _: Seen(at=5.0, facts=facts)))
    for _ in range(2):
        asyncio.run(one.once())
    states = [
        asyncio.run(both.ask(ADA, "GET", f"/v1/jobs/{number}")).json.get("state") for number in (1, 2, 3)
    ]
    assert states == ["RUNNING", None, "RUNNING"]
    assert caplog.text.count("what Slurm says of a job cannot be kept: job 2: ") == 1


@pytest.mark.case("A2")
def test_rows_that_were_left_out_are_counted(door: Door, caplog: pytest.LogCaptureFixture):
    one = enrichment(
        door, FakeSlurm(lambda _: Seen(at=5.0, unread={"attempt": 3}, unread_example="attempt 7: x"))
    )
    for _ in range(2):
        asyncio.run(one.once())
    assert door.counts.unread.value("attempt") == 6
    assert caplog.text.count("attempt 7: x (and 2 more)") == 1


def test_many_facts_are_written_a_part_at_a_time(door: Door, monkeypatch: pytest.MonkeyPatch):
    parts: list[int] = []

    def enrich(facts: Sequence[JobFacts], at: float, waits: object) -> int:
        parts.append(len(facts))
        return len(facts)

    monkeypatch.setattr(door.storing.store, "enrich", enrich, raising=False)
    facts = tuple(JobFacts(cluster="lab", job_id=number) for number in range(1, 1202))
    asyncio.run(enrichment(door, FakeSlurm(lambda _: Seen(at=5.0, facts=facts))).once())
    assert parts == [500, 500, 201]


def test_what_is_wanted_is_asked_for(door: Door):
    asyncio.run(door.bring(started(1, uid=ADA), started(2, uid=ADA, restarts=3)))
    slurm = FakeSlurm()
    asyncio.run(enrichment(door, slurm).once())
    (question,) = slurm.asked
    assert isinstance(question, Question)
    assert set(question.wanted) == {JobRef(1), JobRef(2, 3)}
    assert asyncio.run(door.ask(OPERATOR, "GET", "/metrics")).body.count(b"gsub_enrich_looks_total") == 3


def test_a_silent_slurm_is_asked_for_no_job_until_it_speaks(door: Door):
    """What is asked in vain is asked ever more rarely: an outage must not use that up."""
    asyncio.run(door.bring(started(1, uid=ADA)))
    slurm = FakeSlurm()
    one = enrichment(door, slurm)
    for _ in range(3):
        asyncio.run(one.once())
    slurm.answer = lambda _: Seen(at=5.0)
    asyncio.run(one.once())
    one._now = lambda: time.time() + 7200
    asyncio.run(one.once())
    assert [len(question.wanted) for question in slurm.asked] == [1, 0, 0, 0, 1]


def test_news_bring_the_next_look_forward(door: Door, monkeypatch: pytest.MonkeyPatch):
    """A job's end is told of at once by its nodes; its state must not wait for a whole interval."""

    monkeypatch.setattr(enriching, "_SOON", 0.0)

    async def look() -> int:
        waits: asyncio.Queue[float] = asyncio.Queue()

        async def note(news: asyncio.Event, seconds: float) -> bool:
            waits.put_nowait(seconds)
            return await is_set_within(news, seconds)

        monkeypatch.setattr(enriching, "is_set_within", note)
        slurm = FakeSlurm(lambda _: Seen(at=5.0))
        site = Taken(Site(cluster="lab"), "")
        one = Enrichment(slurm, door.storing, door.counts, site=site, site_path="", every=600.0)
        running = asyncio.ensure_future(one.run())
        try:
            for number in range(1, 4):
                assert await waits.get() > 300, "without news it waits"
                assert len(slurm.asked) == number
                one.soon()
            await waits.get()
        finally:
            running.cancel()
        return len(slurm.asked)

    assert asyncio.run(asyncio.wait_for(look(), PATIENCE)) == 4
