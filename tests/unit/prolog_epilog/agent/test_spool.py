from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.records import (
    GpuRef,
    GpuSeries,
    JobEnded,
    JobRef,
    JobSeries,
    JobStarted,
    JobUsage,
    NodeEvent,
    Record,
    decode,
    identity,
    kind_of,
    new_id,
)
from prolog_epilog.agent import spool as spool_module
from prolog_epilog.agent.disk import Calls
from prolog_epilog.agent.spool import Spool
from tests.properties import examples
from tests.requirements import require

MIB = 1 << 20


def started(job: int) -> JobStarted:
    return JobStarted(id=new_id(), cluster="c", node="n1", at=1.0, job=JobRef(job))


def ended(job: int) -> JobEnded:
    return JobEnded(id=new_id(), cluster="c", node="n1", at=2.0, job=JobRef(job))


def usage(job: int, serial: int = 1, *, final: bool = False) -> JobUsage:
    job_ref = JobRef(job)
    return JobUsage(
        id=new_id(),
        cluster="c",
        node="n1",
        at=3.0,
        job=job_ref,
        serial=serial,
        final=final,
        since=1.0,
        until=3.0,
    )


def series(job: int, serial: int = 1, values: int = 1) -> JobSeries:
    gpus = (GpuSeries(GpuRef(minor=0), (12.5,) * values),)
    return JobSeries(
        id=new_id(),
        cluster="c",
        node="n1",
        at=3.0,
        job=JobRef(job),
        serial=serial,
        final=False,
        since=1.0,
        step=10.0,
        gpus=gpus,
    )


def event(name: str = "xid") -> NodeEvent:
    return NodeEvent(id=new_id(), cluster="c", node="n1", at=4.0, name=name, state="error")


MAKERS: dict[str, Callable[[int], Record]] = {
    "job_started": started,
    "job_ended": ended,
    "job_usage": usage,
    "job_series": series,
    "node_event": lambda job: event(),
}


def drain(spool: Spool) -> list[Any]:
    """Deliver all."""
    got: list[Any] = []
    while batch := spool.batch(100, MIB):
        got += [decode(waiting.line) for waiting in batch]
        spool.done([waiting.id for waiting in batch])
    return got


def waiting(spool: Spool) -> list[Any]:
    """What would be delivered first, most of all."""
    return [decode(each.line) for each in spool.batch(10_000, 64 * MIB)]


def out(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").iterdir())


# -- the ordinary ------------------------------------------------------------------------------------------------------


def test_what_was_put_is_there_after_a_restart_and_gone_after_delivery(tmp_path):
    records: list[Record] = [started(1), usage(1), series(1), event(), ended(1)]
    spool = Spool(tmp_path / "spool", MIB)
    assert all(spool.put(record) for record in records)
    spool = Spool(tmp_path / "spool", MIB)
    assert sorted(drain(spool), key=repr) == sorted(records, key=repr)
    assert out(tmp_path / "spool") == []
    assert drain(Spool(tmp_path / "spool", MIB)) == []


def test_nobody_but_the_owner_reads_a_spool(tmp_path):
    spool = Spool(tmp_path / "spool", MIB)
    spool.put(started(1))
    assert (tmp_path / "spool" / "out").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "spool" / "out").iterdir())


def test_what_matters_most_goes_first_and_the_oldest_of_it(tmp_path):
    spool = Spool(tmp_path, MIB)
    records: list[Record] = [series(1), event(), usage(1), started(1), usage(2), ended(1)]
    for record in records:
        spool.put(record)
    expected = [records[3], records[5], records[2], records[4], records[1], records[0]]
    assert waiting(spool) == expected
    assert waiting(Spool(tmp_path, MIB)) == expected


def test_every_class_leads_in_time(tmp_path):
    """However fast what matters most comes in, and however long it takes, the others get through."""
    spool = Spool(tmp_path, MIB)
    for record in (usage(1), event(), series(1)):
        spool.put(record)
    for job in range(20):
        spool.put(started(job + 1))
    led = {spool.batch(1, MIB)[0].kind for _ in range(16)}
    assert led == {"job_started", "job_usage", "node_event", "job_series"}
    firsts = [spool.batch(1, MIB)[0].kind for _ in range(16)]
    assert firsts.count("job_started") == 12


def test_a_batch_is_bounded_by_count_and_bytes_but_holds_one_at_least(tmp_path):
    spool = Spool(tmp_path, MIB)
    for job in range(10):
        spool.put(started(job + 1))
    line = len(spool.batch(1, MIB)[0].line)
    assert len(spool.batch(4, MIB)) == 4
    assert len(spool.batch(100, line * 3)) == 3
    assert len(spool.batch(100, 1)) == 1
    first = spool.batch(1, MIB)[0].id
    assert first not in {each.id for each in spool.batch(100, MIB, without={first})}


@pytest.mark.parametrize("make", [usage, series])
@pytest.mark.parametrize("again", [False, True], ids=["one-life", "after-a-restart"])
def test_a_newer_state_takes_the_older_ones_place_and_an_older_one_is_passed_over(tmp_path, make, again):
    spool = Spool(tmp_path, MIB)
    spool.put(make(1, 5))
    spool.put(make(2, 1))
    if again:
        spool = Spool(tmp_path, MIB)
    newer, older = make(1, 7), make(1, 6)
    assert spool.put(newer)
    assert spool.put(older)  # true: what says more is on the disk
    assert [record.serial for record in waiting(spool)] == [7, 1]
    assert len(out(tmp_path)) == 2
    assert waiting(Spool(tmp_path, MIB))[0] == newer


def test_a_newer_state_that_comes_while_the_older_is_on_its_way_stays(tmp_path):
    spool = Spool(tmp_path, MIB)
    spool.put(usage(1, 1))
    batch = spool.batch(10, MIB)
    newer = usage(1, 2)
    spool.put(newer)
    spool.done([each.id for each in batch])
    assert waiting(spool) == [newer] == waiting(Spool(tmp_path, MIB))


def test_the_same_record_put_twice_waits_once(tmp_path):
    spool = Spool(tmp_path, MIB)
    record = started(1)
    assert spool.put(record)
    assert spool.put(record)
    assert Spool(tmp_path, MIB).put(record)
    assert waiting(Spool(tmp_path, MIB)) == [record]


def test_a_record_that_was_completed_under_its_id_replaces_what_it_was(tmp_path):
    spool = Spool(tmp_path, MIB)
    record = started(1)
    spool.put(record)
    more = msgspec.structs.replace(record, gpus=(GpuRef(minor=3),))
    assert spool.put(more)
    assert waiting(spool) == [more] == waiting(Spool(tmp_path, MIB))


def test_two_facts_of_one_job_are_both_kept(tmp_path):
    """The hook's word and the agent's own finding: the store joins them."""
    spool = Spool(tmp_path, MIB)
    spool.put(started(1))
    spool.put(started(1))
    assert spool.counts().records == 2


def test_only_what_is_on_its_way_can_be_done(tmp_path):
    spool = Spool(tmp_path, MIB)
    record = started(1)
    spool.put(record)
    spool.done([record.id, "0" * 32])
    spool.set_aside(record.id, "x")
    assert waiting(spool) == [record]


def test_news_wake_who_waits(tmp_path):
    spool = Spool(tmp_path, MIB)
    assert not spool.news.is_set()
    spool.put(started(1))
    assert spool.news.is_set()


def test_many_threads_put_while_one_delivers(tmp_path):
    spool = Spool(tmp_path, 16 * MIB)
    got: list[Record] = []

    def put(number: int) -> None:
        for job in range(30):
            spool.put(started(number * 1000 + job + 1))

    threads = [threading.Thread(target=put, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        got += drain(spool)
    got += drain(spool)
    assert len({identity(record) for record in got}) == len(got) == 180


# -- no room -----------------------------------------------------------------------------------------------------------


def kinds(spool: Spool) -> dict[str, int]:
    counted: dict[str, int] = {}
    for each in spool.batch(10_000, 64 * MIB):
        counted[each.kind] = counted.get(each.kind, 0) + 1
    spool.batch(0, 0)
    return counted


def test_series_go_first_then_events_then_usage_and_starts_and_ends_last(tmp_path):
    spool = Spool(tmp_path, 8 * 4096)
    for job in range(2):
        for kind in ("job_series", "node_event", "job_usage", "job_started"):
            spool.put(MAKERS[kind](job + 1))
    seen = []
    for job in range(8):
        spool.put(ended(100 + job))
        seen.append(spool.counts().dropped)
    assert seen[1] == {"job_series": 2}
    assert seen[3] == {"job_series": 2, "node_event": 2}
    assert seen[5] == {"job_series": 2, "node_event": 2, "job_usage": 2}
    assert seen[7] == {"job_series": 2, "node_event": 2, "job_usage": 2, "job_started": 2}
    assert spool.counts().bytes <= 8 * 4096
    assert [record.job.job_id for record in waiting(spool)] == list(range(100, 108))


@pytest.mark.parametrize("make", [series, usage, lambda _: event()])
def test_what_matters_less_takes_no_room_from_what_matters_more(tmp_path, make):
    spool = Spool(tmp_path, 4 * 4096)
    for job in range(4):
        spool.put(started(job + 1))
    assert not spool.put(make(9))
    assert kinds(spool) == {"job_started": 4}


def test_the_oldest_of_a_class_goes_first(tmp_path):
    spool = Spool(tmp_path, 3 * 4096)
    for job in range(5):
        assert spool.put(series(job + 1))
    assert [record.job.job_id for record in waiting(spool)] == [3, 4, 5]


def test_what_is_on_its_way_is_not_given_up(tmp_path):
    spool = Spool(tmp_path, 2 * 4096)
    spool.put(series(1))
    batch = spool.batch(1, MIB)
    for job in range(4):
        spool.put(started(job + 1))
    assert (tmp_path / "out" / next(name for name in out(tmp_path) if "job_series" in name)).exists()
    spool.done([each.id for each in batch])
    assert "job_series" not in spool.counts().dropped


def test_a_newer_state_needs_room_of_its_own_while_the_older_is_on_its_way(tmp_path):
    spool = Spool(tmp_path, 2 * 4096)
    first = usage(1, 1)
    spool.put(first)
    (flying,) = spool.batch(1, MIB)
    spool.put(started(1))
    spool.put(started(2))
    assert spool.put(usage(1, 2)) is False
    assert spool.counts().bytes == 2 * 4096
    spool.done([flying.id])
    assert [record.job.job_id for record in waiting(spool)] == [1, 2]


def test_what_was_lost_is_told_when_there_is_room_and_survives_a_restart(tmp_path):
    spool = Spool(tmp_path, 3 * 4096)
    for job in range(5):
        spool.put(series(job + 1))
    assert spool.troubles() == ()  # still full
    spool = Spool(tmp_path, 3 * 4096)
    assert spool.counts().dropped == {"job_series": 2}
    drain(spool)
    (trouble,) = spool.troubles()
    assert trouble.name == "spool_dropped"
    assert "2 job_series" in trouble.detail
    assert Spool(tmp_path, 3 * 4096).troubles() == (trouble,)  # the same event, if told twice
    spool.told(trouble)
    assert spool.troubles() == () == Spool(tmp_path, 3 * 4096).troubles()
    assert spool.counts().dropped == {}


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(MAKERS)), st.integers(1, 6)), max_size=60),
    st.integers(1, 12),
)
def test_whatever_comes_the_limit_holds_and_every_record_is_accounted_for(tmp_path_factory, puts, blocks):
    folder = tmp_path_factory.mktemp("spool")
    spool = Spool(folder, blocks * 4096)
    told: dict[str, list[str]] = {}
    for kind, job in puts:
        record = MAKERS[kind](job)
        told.setdefault(kind, []).append(record.id)
        spool.put(record)
        counts = spool.counts()
        assert counts.bytes <= blocks * 4096
        assert counts.bytes == 4096 * len(out(folder)) == 4096 * counts.records
    left, dropped = drain(spool), spool.counts().dropped
    for kind in ("job_started", "job_ended", "node_event"):
        there = sum(kind_of(record) == kind for record in left)
        assert there + dropped.get(kind, 0) == len(told.get(kind, ()))
    assert out(folder) == []


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([*sorted(MAKERS), "batch", "done", "restart"]), st.integers(1, 5)),
        max_size=50,
    )
)
def test_the_books_agree_with_the_disk_whatever_happens_in_between(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("spool")
    limit = 6 * 4096
    spool = Spool(folder, limit)
    flying: list[str] = []
    facts = {"told": 0, "delivered": 0}
    for step, number in steps:
        if step == "batch":
            flying = [each.id for each in spool.batch(number, MIB)]
        elif step == "done":
            before = spool.counts().records
            spool.done(flying[:number])
            facts["delivered"] += before - spool.counts().records
        elif step == "restart":
            spool, flying = Spool(folder, limit), []
        else:
            kept = spool.counts()
            spool.put(MAKERS[step](number))
            lost = sum(spool.counts().dropped.values()) - sum(kept.dropped.values())
            facts["told"] += spool.counts().records - kept.records + lost
            assert spool.counts().bytes <= limit or spool.counts().bytes <= kept.bytes
    spool.batch(0, 0)
    counts = spool.counts()
    assert counts.bytes == 4096 * counts.records == 4096 * len(out(folder))
    assert facts["told"] == facts["delivered"] + counts.records + sum(counts.dropped.values())
    assert spool.counts().records == len(drain(Spool(folder, 100 * 4096)))


# -- what is no record -------------------------------------------------------------------------------------------------


def _poison(folder: Path) -> dict[str, str]:
    found = (folder / "poison").iterdir() if (folder / "poison").exists() else ()
    return {path.name: path.read_text() for path in found if path.suffix == ".why"}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\0" * 100, b"[]", b'{"kind":"job_started"}', b"\xff\xfe", b'{"kind":"other","id":"x"}'],
)
def test_a_file_that_is_no_record_is_set_aside_with_a_reason_and_told(tmp_path, content):
    spool = Spool(tmp_path, MIB)
    good = started(2)
    spool.put(started(1))
    spool.put(good)
    (tmp_path / "out" / out(tmp_path)[0]).write_bytes(content)
    spool = Spool(tmp_path, MIB)
    assert waiting(spool) == [good]
    (why,) = _poison(tmp_path).values()
    assert "not a record" in why
    assert spool.counts().poisoned == 1
    assert out(tmp_path) == out(tmp_path)[-1:]
    (trouble,) = spool.troubles()
    assert (trouble.name, "job_started: it is not a record" in trouble.detail) == ("poison_record", True)


def test_what_lies_in_the_folder_and_is_none_of_ours_is_put_out_of_the_way(tmp_path):
    Spool(tmp_path, MIB).put(started(1))
    name = out(tmp_path)[0]
    for other in ("README", "3" + name[1:], "x" + name, ".tmp.0123"):
        (tmp_path / "out" / other).write_text("{}")
    (tmp_path / ".tmp.4567").write_text("{")
    (tmp_path / "out" / "folder").mkdir()
    (tmp_path / "out" / "link").symlink_to("/etc/passwd")
    spool = Spool(tmp_path, MIB)
    assert out(tmp_path) == [name]
    assert len(waiting(spool)) == 1
    assert len(_poison(tmp_path)) == 5
    assert not (tmp_path / ".tmp.4567").exists()


def test_what_the_service_refused_is_set_aside_and_told_once(tmp_path):
    spool = Spool(tmp_path, MIB)
    for job in range(8):
        spool.put(usage(job + 1))
    for each in spool.batch(100, MIB):
        spool.set_aside(each.id, "it is about another node")
    assert out(tmp_path) == []
    (trouble,) = spool.troubles()
    assert trouble.detail.startswith("8 set aside: job_usage: it is about another node;")
    told = NodeEvent(id=trouble.id, cluster="c", node="n1", at=1.0, name=trouble.name, state="warning")
    spool.put(told)
    spool.told(trouble)
    spool.batch(1, MIB)
    spool.set_aside(told.id, "no events please")
    assert spool.troubles() == ()  # or it would go round for ever
    assert set(_poison(tmp_path).values()) == {"it is about another node\n", "no events please\n"}
    assert spool.counts().poisoned == 9


@pytest.mark.slow
def test_the_poison_is_bounded_and_keeps_the_newest(tmp_path):
    spool = Spool(tmp_path, MIB)
    for job in range(230):
        spool.put(started(job + 1))
        spool.batch(1, MIB)
        spool.set_aside(waiting(spool)[0].id, f"number {job + 1}")
    assert spool.counts().poisoned <= 200
    whys = set(_poison(tmp_path).values())
    assert "number 230\n" in whys
    assert "number 1\n" not in whys
    assert len(list((tmp_path / "poison").iterdir())) == 2 * spool.counts().poisoned


# -- a disk that is not well -------------------------------------------------------------------------------------------


class Faults:
    """Makes chosen system calls fail, until they do not."""

    def __init__(self) -> None:
        self.error: int | None = None
        self.calls: set[str] = set()

    def table(self) -> Calls:
        plain = Calls()
        return Calls(**{name: self._wrap(name, getattr(plain, name)) for name in Calls.__dataclass_fields__})

    def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def failing(*args, **kwargs):
            if self.error is not None and name in self.calls:
                raise OSError(self.error, os.strerror(self.error))
            return call(*args, **kwargs)

        return failing


@pytest.fixture
def no_pause(monkeypatch):
    """Every put tries the disk again."""
    monkeypatch.setattr(spool_module, "_RETRY", 0.0)


WRITES = [
    (errno.ENOSPC, {"write"}),
    (errno.ENOSPC, {"open"}),
    (errno.EDQUOT, {"write"}),
    (errno.EIO, {"fsync"}),
    (errno.EIO, {"close"}),
    (errno.EROFS, {"open", "unlink", "replace"}),
    (errno.EIO, {"replace"}),
    (errno.EIO, {"open", "write", "fsync", "close", "replace", "unlink", "read", "listdir", "makedirs"}),
]


@pytest.mark.parametrize(("error", "calls"), WRITES)
def test_while_the_disk_cannot_be_written_records_wait_in_memory_and_then_reach_it(
    tmp_path, no_pause, error, calls
):
    faults = Faults()
    spool = Spool(tmp_path, MIB, faults.table())
    before = started(1)
    during: list[Record] = [started(2), usage(2), ended(2)]
    assert spool.put(before)
    faults.error, faults.calls = error, calls
    for record in during:
        assert spool.put(record) is False
    assert spool.counts().in_memory == 3
    faults.error = None
    assert spool.settle()
    assert spool.counts().in_memory == 0
    there = waiting(Spool(tmp_path, MIB))
    assert sorted(there, key=repr) == sorted([before, *during], key=repr)
    assert not [name for name in out(tmp_path) if name.startswith(".tmp")]


@pytest.mark.parametrize(("error", "calls"), WRITES)
def test_what_waits_in_memory_is_delivered_from_there_and_does_not_come_back(
    tmp_path, no_pause, error, calls
):
    faults = Faults()
    spool = Spool(tmp_path, MIB, faults.table())
    faults.error, faults.calls = error, calls
    record = started(1)
    assert spool.put(record) is False
    assert drain(spool) == [record]
    faults.error = None
    spool.settle()
    assert drain(spool) == [] == waiting(Spool(tmp_path, MIB))


def test_a_newer_state_in_memory_leaves_the_older_one_on_the_disk_until_it_gets_there(tmp_path, no_pause):
    faults = Faults()
    spool = Spool(tmp_path, MIB, faults.table())
    first, second = usage(1, 1), usage(1, 2)
    spool.put(first)
    faults.error, faults.calls = errno.ENOSPC, {"write"}
    assert spool.put(second) is False
    assert waiting(Spool(tmp_path, MIB)) == [first]  # what a power cut would leave
    assert waiting(spool) == [second]
    spool.done([second.id])
    assert out(tmp_path) == []


def test_memory_is_bounded_by_the_same_policy(tmp_path, monkeypatch):
    faults = Faults()
    monkeypatch.setattr(spool_module, "_MOST_IN_MEMORY", 1500)
    spool = Spool(tmp_path, MIB, faults.table())
    faults.error, faults.calls = errno.EIO, {"open"}
    for job in range(10):
        spool.put(series(job + 1))
    for job in range(10):
        spool.put(started(job + 1))
        spool.put(ended(job + 1))
    assert sum(len(each.line) for each in spool.batch(1000, MIB)) <= 1500
    assert set(kinds(spool)) == {"job_started", "job_ended"}
    assert spool.counts().dropped["job_series"] == 10


def test_a_full_disk_costs_series_before_starts_and_ends(tmp_path, no_pause):
    """The disk is full by others: what we hold of it, we can give up ourselves."""
    folder = tmp_path / "out"
    plain = Calls()

    def write(handle: int, data: bytes) -> int:
        if len(list(folder.iterdir())) > 4:  # the new one among them
            raise OSError(errno.ENOSPC, "full")
        written: int = plain.write(handle, data)
        return written

    spool = Spool(tmp_path, MIB, Calls(write=write))
    for job in range(4):
        assert spool.put(series(job + 1))
    assert spool.put(started(1))
    assert kinds(spool) == {"job_series": 3, "job_started": 1}
    assert spool.put(ended(1))
    assert kinds(spool) == {"job_series": 2, "job_started": 1, "job_ended": 1}
    assert not spool.put(series(9))  # among equals nothing is given up


def test_a_full_disk_costs_no_usage(tmp_path, no_pause):
    """A start or an end that waits in memory has its hook's file on the disk; usage has nothing else."""
    full = False

    def write(handle: int, data: bytes) -> int:
        if full:
            raise OSError(errno.ENOSPC, "full")
        return os.write(handle, data)

    spool = Spool(tmp_path, MIB, Calls(write=write))
    assert spool.put(usage(1, 1))
    full = True
    assert spool.put(started(2)) is False
    assert kinds(spool) == {"job_started": 1, "job_usage": 1}
    assert spool.counts().dropped == {}


def test_a_folder_that_is_removed_is_made_again(tmp_path, no_pause):
    import shutil

    spool = Spool(tmp_path / "spool", MIB)
    spool.put(started(1))
    shutil.rmtree(tmp_path / "spool")
    second = started(2)
    assert spool.put(second)
    assert waiting(spool) == [second] == waiting(Spool(tmp_path / "spool", MIB))
    assert spool.counts().dropped == {"job_started": 1}  # and what went with it is told


def test_a_file_in_the_folders_place_is_no_reason_to_raise(tmp_path, no_pause):
    (tmp_path / "out").write_text("")
    spool = Spool(tmp_path, MIB)
    record = started(1)
    assert spool.put(record) is False
    assert waiting(spool) == [record]
    (tmp_path / "out").unlink()
    assert spool.settle()
    assert waiting(Spool(tmp_path, MIB)) == [record]


def test_a_file_that_cannot_be_read_now_waits_and_holds_up_no_other(tmp_path):
    faults = Faults()
    spool = Spool(tmp_path, MIB, faults.table())
    spool.put(started(1))
    faults.error, faults.calls = errno.EIO, {"read"}
    assert spool.batch(10, MIB) == ()
    assert spool.troubles() == ()
    faults.error = None
    assert len(spool.batch(10, MIB)) == 1


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    require("mounts")
    tmpfs = ["-t", "tmpfs", "-o", "size=64k,mode=700", "gsub-test"]
    subprocess.run(["mount", *tmpfs, str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_really_full(small_disk, no_pause):
    spool = Spool(small_disk, MIB)  # it may take more than there is
    for job in range(8):
        spool.put(series(job + 1, values=500))
    (small_disk / "others").write_bytes(b"x" * 4096)
    others = (small_disk / "others").open("ab", buffering=0)
    with pytest.raises(OSError):
        while True:
            others.write(b"x" * 4096)
    facts = [make(job + 1) for job in range(6) for make in (started, ended)]
    durable = [spool.put(record) for record in facts]
    assert True in durable  # series made room
    assert False in durable  # and when they were gone, there was only memory
    assert {record.id for record in facts} <= {record.id for record in waiting(spool)}
    others.truncate(0)
    others.close()
    assert spool.settle()
    assert {record.id for record in facts} <= {record.id for record in waiting(Spool(small_disk, MIB))}


def test_a_disk_that_becomes_read_only(small_disk, no_pause):
    spool = Spool(small_disk, MIB)
    first, second = started(1), started(2)
    spool.put(first)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert spool.put(second) is False
    assert sorted(drain(spool), key=repr) == sorted([first, second], key=repr)
    assert (
        spool.counts().records == 0
    )  # delivered, and not delivered again, though the file cannot be removed
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert spool.settle()
    assert out(small_disk) == []
