from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import msgspec
import pytest

from profiler.answers import Refused, Taken
from profiler.munge import Munge
from profiler.records import JobRef, Record, decode, identity
from profiler.release import release
from profiler.sealed import Answer, Service, ServiceError
from prolog_epilog.agent import deliver as deliver_
from prolog_epilog.agent.deliver import Backoff, Delivery, Pace
from prolog_epilog.agent.spool import Spool
from tests.paths import REPOSITORY
from tests.unit.prolog_epilog.agent.crashing import PACE, records
from tests.unit.prolog_epilog.agent.munged import munged
from tests.unit.prolog_epilog.agent.sealing import Asked, Reply, Sealing, sealing
from tests.unit.prolog_epilog.agent.test_spool import ended, event, series, started, usage
from tests.waiting import wait_until

MIB = 1 << 20
ME = os.geteuid()
PATIENCE = 60.0


def until(what: Callable[[], object], seconds: float = PATIENCE) -> None:
    wait_until(what, seconds, pause=0.005)


@dataclass
class Shop:
    """A store as the service has it: what comes twice is there once, and the highest serial counts."""

    kept: dict[tuple[object, ...], Any] = field(default_factory=dict)
    batches: list[list[Any]] = field(default_factory=list)
    repeats: int = 0

    def take(self, body: bytes) -> list[Any]:
        batch = json.loads(body)
        assert batch["v"] == 1
        read = [decode(msgspec.json.encode(record)) for record in batch["records"]]
        assert {record.node for record in read} <= {batch["node"]}
        self.batches.append(read)
        for record in read:
            there = self.kept.get(identity(record))
            self.repeats += there is not None and there.id == record.id
            if there is None or getattr(record, "serial", 0) > getattr(there, "serial", 0):
                self.kept[identity(record)] = record
        return read

    def answer(self, asked: Asked) -> Reply:
        if asked.method == "GET":
            return 200, b""
        return 200, msgspec.json.encode(Taken(tuple(record.id for record in self.take(asked.body))))


@dataclass
class Fake:
    """A service that does what it is told to, without a network."""

    reply: Callable[[bytes], Answer]
    asked: list[bytes] = field(default_factory=list)
    timeouts: list[float | None] = field(default_factory=list)
    proofs: int = 0

    def ask(self, method: str, target: str, body: bytes = b"", *, timeout: float | None = None) -> Answer:
        if (method, target, body) == ("GET", "/healthz", b""):
            self.proofs += 1
            return Answer(200, b"")
        assert (method, target) == ("POST", "/v1/records")
        self.asked.append(body)
        self.timeouts.append(timeout)
        return self.reply(body)


def taking(shop: Shop) -> Callable[[bytes], Answer]:
    return lambda body: Answer(*shop.answer(Asked("POST", "/v1/records", body, None)))


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def spool(tmp_path) -> Spool:
    return Spool(tmp_path, 16 * MIB)


@pytest.fixture
def deliver(spool):
    """Start deliveries from the spool; they are ended with the test."""
    running: list[Delivery] = []

    def start(service: Any, pace: Pace = PACE, **more: Any) -> Delivery:
        delivery = Delivery(spool, service, "c", "n1", pace=pace, **more)
        running.append(delivery)
        delivery.start()
        return delivery

    yield start
    for delivery in running:
        delivery.stop(0.0)
        delivery.join(PATIENCE)


def empty(spool: Spool) -> Callable[[], bool]:
    return lambda: spool.counts().records == 0


# -- the ordinary ------------------------------------------------------------------------------------------------------


def test_what_waits_and_what_comes_is_delivered_and_removed(spool, shop, deliver):
    before: list[Record] = [started(1), usage(1)]
    after: list[Record] = [ended(1), series(1), event()]
    for record in before:
        spool.put(record)
    deliver(Fake(taking(shop)))
    until(empty(spool))
    for record in after:
        spool.put(record)
    until(empty(spool))
    assert {record.id for record in shop.kept.values()} == {record.id for record in [*before, *after]}


def test_an_envelope_says_who_sends_and_names_with_quotes_stay_inside(spool, shop):
    fake = Fake(taking(shop))
    assert Delivery(spool, fake, 'c"', "n1", pace=PACE).stop(1.0)
    delivery = Delivery(spool, fake, 'c"', "n1", pace=PACE)
    delivery.start()
    until(lambda: fake.asked)
    delivery.stop(PATIENCE)
    told = {"v": 1, "node": "n1", "cluster": 'c"', "release": release(), "records": []}
    assert json.loads(fake.asked[0]) == told
    assert release() == version("gsub")


def test_what_waits_under_the_nodes_former_name_is_delivered_under_it(spool, shop):
    before: list[Any] = [msgspec.structs.replace(each, node="node1") for each in (started(1), usage(1))]
    now: list[Any] = [started(2), ended(2)]
    for record in (before[0], now[0], before[1], now[1]):
        spool.put(record)
    heard: list[tuple[JobRef, ...]] = []

    def reply(body: bytes) -> Answer:
        ids = tuple(record.id for record in shop.take(body))
        running = (JobRef(2),) if json.loads(body)["node"] == "n1" else ()
        return Answer(200, msgspec.json.encode(Taken(ids, running=running, seen_at=float(len(shop.batches)))))

    delivery = Delivery(spool, Fake(reply), "c", "n1", lambda jobs, at: heard.append(jobs), pace=PACE)
    delivery.start()
    until(empty(spool))
    delivery.stop(PATIENCE)
    assert {record.id for record in shop.kept.values()} == {record.id for record in before + now}
    assert set(heard) == {(JobRef(2),)}, "what runs on a node of another name is not what runs here"


def test_which_jobs_slurm_has_is_told_even_when_nothing_waits(spool, deliver):
    told: list[object] = []
    jobs = (JobRef(1), JobRef(2, 3))
    reply = msgspec.json.encode(Taken(running=jobs, seen_at=12.5))
    deliver(Fake(lambda body: Answer(200, reply)), on_running=lambda *args: told.append(args))
    until(lambda: told)
    assert told[0] == (jobs, 12.5)


@pytest.mark.parametrize("taken", [Taken(), Taken(running=()), Taken(seen_at=1.0)])
def test_what_slurm_did_not_say_is_not_told(spool, deliver, taken):
    told: list[object] = []
    fake = Fake(lambda body: Answer(200, msgspec.json.encode(taken)))
    deliver(
        fake, Pace(0, 0.001, 0.01, 0.01, 0.01, heartbeat=0.01), on_running=lambda *args: told.append(args)
    )
    until(lambda: len(fake.asked) > 3)
    assert told == []


def test_a_listener_that_fails_ends_nothing(spool, shop, deliver):
    def fails(jobs: tuple[JobRef, ...], at: float) -> None:
        raise RuntimeError

    def reply(body: bytes) -> Answer:
        return Answer(200, msgspec.json.encode(Taken(tuple(r.id for r in shop.take(body)), (), (), 1.0)))

    spool.put(started(1))
    deliver(Fake(reply), on_running=fails)
    until(empty(spool))
    spool.put(started(2))
    until(empty(spool))


def test_what_matters_most_goes_first_when_there_is_much(spool, shop, deliver):
    for job in range(600):
        spool.put(series(job + 1))
    spool.put(started(1000))
    deliver(Fake(taking(shop)))
    until(empty(spool))
    assert shop.batches[0][0].job.job_id == 1000
    assert all(len(batch) <= 500 for batch in shop.batches)


def test_batches_are_bounded_in_bytes(spool, shop, deliver):
    for job in range(30):
        spool.put(series(job + 1, values=2000))
    spool.put(series(99, values=2048))
    fake = Fake(taking(shop))
    deliver(fake)
    until(empty(spool))
    assert max(map(len, fake.asked)) <= MIB + 200
    assert len(shop.kept) == 31


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def _raise(error: Exception) -> Answer:
    raise error


_OTHER = Refused(99, "", "one that nobody sent")
FAILURES: dict[str, Callable[[], Answer]] = {
    "unreachable": lambda: _raise(ServiceError("unreachable", "nobody there")),
    "timeout": lambda: _raise(ServiceError("timeout", "too slow")),
    "unsealed": lambda: _raise(ServiceError("unsealed", "somebody else", 200)),
    "unwanted": lambda: _raise(ServiceError("unsealed", "other clocks", 401)),
    "no-munge": lambda: _raise(ServiceError("munge", "no munged")),
    "bug": lambda: _raise(RuntimeError("a bug of ours")),
    "busy": lambda: Answer(503, b""),
    "many": lambda: Answer(429, b""),
    "error": lambda: Answer(500, b"oh"),
    "unauthorised": lambda: Answer(401, b'{"error":"the credential is too old"}'),
    "forbidden": lambda: Answer(403, b'{"error":"only root"}'),
    "other-cluster": lambda: Answer(400, b'{"error":"this service collects for d"}'),
    "not-there": lambda: Answer(404, b""),
    "redirect": lambda: Answer(302, b""),
    "no-json": lambda: Answer(200, b"<html>"),
    "nothing-said": lambda: Answer(200, b"{}"),
    "others": lambda: Answer(
        200, msgspec.json.encode(Taken(("0" * 32,), (Refused(99, "", "x"), Refused(-1, "", "x"))))
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_whatever_the_service_does_nothing_is_lost_and_it_is_told_once(spool, shop, deliver, caplog, name):
    caplog.set_level(logging.WARNING)
    take = threading.Event()
    fake = Fake(lambda body: taking(shop)(body) if take.is_set() else FAILURES[name]())
    put: list[Record] = [started(1), usage(1), series(1), event(), ended(1)]
    for record in put:
        spool.put(record)
    deliver(fake)
    until(lambda: len(fake.asked) > 20)
    assert spool.counts().records == 5
    assert spool.counts().poisoned == 0
    take.set()
    until(empty(spool))
    assert {record.id for record in shop.kept.values()} == {record.id for record in put}
    until(lambda: "delivered again" in caplog.text)
    assert caplog.text.count("cannot be delivered now") == 1


@pytest.mark.parametrize("name", FAILURES)
def test_what_a_person_must_mend_is_tried_again_slowly(spool, deliver, monkeypatch, name):
    slowly: list[bool] = []

    def recorded(self: Backoff, *, slow: bool = False) -> float:
        slowly.append(slow)
        return 0.0

    monkeypatch.setattr(Backoff, "next", recorded)
    spool.put(started(1))
    deliver(Fake(lambda body: FAILURES[name]()))
    until(lambda: slowly)
    people = {"unwanted", "unauthorised", "forbidden", "other-cluster", "not-there", "redirect"}
    assert slowly[0] == (name in people)


def test_what_was_taken_but_not_acknowledged_is_sent_again_and_there_once(spool, shop, deliver):
    lost = 3

    def reply(body: bytes) -> Answer:
        nonlocal lost
        answer = taking(shop)(body)
        if (lost := lost - 1) >= 0:
            raise ServiceError("timeout", "the answer was lost")
        return answer

    for job in range(5):
        spool.put(started(job + 1))
    deliver(Fake(reply))
    until(empty(spool))
    assert shop.repeats == 15
    assert len(shop.kept) == 5


def test_only_what_was_taken_is_removed(spool, shop, deliver):
    """One record at a time, whatever was asked."""

    def reply(body: bytes) -> Answer:
        batch = shop.take(body)
        return Answer(200, msgspec.json.encode(Taken(tuple(record.id for record in batch[:1]))))

    for job in range(4):
        spool.put(started(job + 1))
    deliver(Fake(reply))
    until(empty(spool))
    assert [len(batch) for batch in shop.batches if batch] == [4, 3, 2, 1]


@pytest.mark.parametrize("by", ["id", "place"])
def test_what_the_service_refuses_is_set_aside_and_told_and_holds_up_nothing(
    spool, shop, deliver, tmp_path, by
):
    bad = usage(66)

    def reply(body: bytes) -> Answer:
        batch = shop.take(body)
        ids = [record.id for record in batch]
        refused: tuple[Refused, ...] = ()
        if bad.id in ids:
            shop.kept.pop(identity(bad))
            refused = (Refused(ids.index(bad.id), bad.id if by == "id" else "", "no such thing"),)
        return Answer(200, msgspec.json.encode(Taken(tuple(each for each in ids if each != bad.id), refused)))

    for record in (started(1), bad, usage(2)):
        spool.put(record)
    deliver(Fake(reply))
    until(lambda: spool.counts().records == 0 and len(shop.kept) == 3)
    (told,) = [record for record in shop.kept.values() if record.__struct_config__.tag == "node_event"]
    assert (told.name, told.node, told.cluster) == ("poison_record", "n1", "c")
    assert "job_usage: the service refused it: no such thing" in told.detail
    (why,) = (tmp_path / "poison").glob("*.why")
    assert why.read_text() == "the service refused it: no such thing\n"
    assert decode(why.with_suffix("").read_bytes()) == bad


def test_a_batch_that_is_too_long_is_halved_and_a_record_that_is_goes_to_the_poison(spool, shop, deliver):
    def reply(body: bytes) -> Answer:
        return taking(shop)(body) if len(body) < 2000 else Answer(413, b"")

    for job in range(40):
        spool.put(started(job + 1))
    big = series(77, values=1000)
    spool.put(big)
    deliver(Fake(reply))
    until(lambda: spool.counts().records == 0 and len(shop.kept) == 41)
    assert spool.counts().poisoned == 1
    assert big.id not in {record.id for record in shop.kept.values()}
    assert any(getattr(record, "name", "") == "poison_record" for record in shop.kept.values())


def test_a_record_that_the_service_breaks_on_holds_up_no_other_and_is_kept(spool, shop, deliver, monkeypatch):
    bad = started(13)  # first in the order
    waits: list[float] = []
    plain = Backoff.next

    def counted(self: Backoff, *, slow: bool = False) -> float:
        waits.append(plain(self, slow=slow))
        return waits[-1]

    monkeypatch.setattr(Backoff, "next", counted)
    mended = threading.Event()

    def reply(body: bytes) -> Answer:
        return Answer(500, b"") if bad.id.encode() in body and not mended.is_set() else taking(shop)(body)

    spool.put(bad)
    for job in range(100, 130):
        spool.put(started(job))
    spool.put(series(1))
    first = deliver(Fake(reply), Pace(jitter=0.0, least=0.001, most=1000.0, slow=0.01, held=1000.0))
    until(lambda: len(shop.kept) == 31)
    assert len(waits) == 1  # finding out which one it is took no wait that grows
    assert spool.counts().records == 1
    assert spool.counts().poisoned == 0
    mended.set()
    first.stop(PATIENCE)
    until(empty(spool))


def test_what_there_was_no_room_for_is_told_when_there_is(tmp_path, shop):
    spool = Spool(tmp_path, 4 * 4096)
    for job in range(6):
        spool.put(series(job + 1))
    delivery = Delivery(spool, Fake(taking(shop)), "c", "n1", pace=PACE)
    delivery.start()
    until(lambda: any(getattr(record, "name", "") == "spool_dropped" for record in shop.kept.values()))
    delivery.stop(PATIENCE)
    (told,) = [record for record in shop.kept.values() if hasattr(record, "detail")]
    assert told.state == "error"
    assert "2 job_series" in told.detail
    assert spool.counts().dropped == {}


def test_a_clock_that_is_stepped_changes_nothing(spool, shop, deliver, monkeypatch):
    fake = Fake(taking(shop))
    deliver(fake)
    until(lambda: fake.asked)
    for step in (-1e9, 1e9, 0.0):
        monkeypatch.setattr(time, "time", lambda step=step: 1.6e9 + step)
        spool.put(started(int(step % 1000) + 1))
        until(empty(spool))


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_waits_grow_to_a_bound_and_are_random():
    rng = random.Random(7)
    bounds = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    waits = []
    for _ in range(300):
        backoff = Backoff(Pace(), rng)
        waits.append([backoff.next() for _ in bounds])
    for column, bound in zip(zip(*waits, strict=True), bounds, strict=True):
        assert bound / 20 <= min(column) < bound / 6
        assert bound * 0.9 < max(column) <= bound
        assert len(set(column)) == 300
    slow = Backoff(Pace(), rng)
    assert [slow.next(slow=True) >= least for least in (30, 60, 120, 150, 150)] == [True] * 5
    for _ in range(2000):
        backoff.next()  # no overflow after days
    assert backoff.next() <= 300


def test_the_first_words_of_many_nodes_are_spread(spool):
    """After a restart of all agents, or of the service, they do not come at once."""
    waits = []

    class Recording(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return True

    for seed in range(50):
        delivery = Delivery(spool, Fake(lambda body: Answer(503, b"")), "c", "n1", rng=random.Random(seed))
        delivery._stopping = Recording()
        delivery._stopping.set()
        delivery.run()
    assert all(wait is not None and 0 <= wait <= 2 for wait in waits)
    assert len({round(wait, 2) for wait in waits if wait is not None}) > 40


def test_stop_delivers_what_waits_without_waiting(spool, shop, deliver):
    fake = Fake(taking(shop))
    delivery = deliver(fake, Pace(jitter=1000.0, heartbeat=1000.0))
    spool.put(started(1))
    assert delivery.stop(PATIENCE) is True
    assert len(shop.kept) == 1


def test_stop_ends_a_long_wait_after_failures_with_one_more_try(spool, deliver):
    fake = Fake(lambda body: Answer(503, b""))
    spool.put(started(1))
    delivery = deliver(fake, Pace(0.0, 1000.0, 1000.0, 1000.0, 1000.0))
    until(lambda: len(fake.asked) == 1)
    assert delivery.stop(PATIENCE) is False
    assert not delivery.is_alive()
    assert len(fake.asked) == 2
    assert spool.counts().records == 1


def test_stop_does_not_wait_for_a_service_that_hangs(spool, deliver):
    hanging, go = threading.Event(), threading.Event()

    def hang(body: bytes) -> Answer:
        hanging.set()
        go.wait(PATIENCE)
        return Answer(503, b"")

    delivery = deliver(Fake(hang))
    assert hanging.wait(PATIENCE)
    began = time.monotonic()
    assert delivery.stop(0.2) is False
    assert time.monotonic() - began < PATIENCE / 2
    go.set()


def test_while_the_disk_is_bad_waiting_brings_memory_to_it(tmp_path, monkeypatch):
    """However long the service is away."""
    from prolog_epilog.agent import deliver as module

    monkeypatch.setattr(module, "_SLICE", 0.01)
    (tmp_path / "out").write_text("")  # no folder: nothing can be written
    spool = Spool(tmp_path, MIB)
    record = started(1)
    assert spool.put(record) is False
    fake = Fake(lambda body: Answer(503, b""))
    delivery = Delivery(spool, fake, "c", "n1", pace=Pace(0.0, 1000.0, 1000.0))
    delivery.start()
    until(lambda: fake.asked)
    (tmp_path / "out").unlink()
    until(lambda: spool.counts().in_memory == 0)
    assert len(fake.asked) == 1
    delivery.stop(0.0)
    delivery.join(PATIENCE)


# -- over a real network, by a real munged -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def socket():
    with munged() as running:
        yield running.socket


@pytest.fixture
def server(socket):
    with sealing(Munge(socket)) as running:
        yield running


def test_over_the_network(spool, shop, deliver, server: Sealing):
    server.reply = shop.answer
    for record in records("n1"):
        spool.put(record)
    deliver(Service(server.url, server.munge, {ME}))
    until(empty(spool))
    assert len(shop.kept) == 5
    assert all(asked.by is not None and asked.by.uid == ME for asked in server.asked)


@pytest.mark.case("A5")
@pytest.mark.parametrize("seal", ["", "MUNGE:AAAA:", "another"])
def test_somebody_who_plays_the_service_gets_no_record_off_the_node(
    spool, shop, deliver, server: Sealing, seal
):
    server.reply = shop.answer  # acknowledges everything
    trusted = {ME + 1} if seal == "another" else {ME}
    if seal != "another":
        server.seal = lambda *of: seal
    spool.put(started(1))
    deliver(Service(server.url, server.munge, trusted))
    until(lambda: len(server.asked) > 10)
    assert spool.counts().records == 1
    assert {(asked.method, asked.target, asked.body) for asked in server.asked} == {("GET", "/healthz", b"")}


@pytest.mark.case("A5")
def test_a_proof_holds_for_seconds_and_not_beyond_a_failure(spool, shop, deliver, monkeypatch):
    fake = Fake(taking(shop))
    spool.put(started(1))
    deliver(fake)
    for number in range(2, 6):
        spool.put(started(number))
        until(empty(spool))
    assert fake.proofs == 1
    monkeypatch.setattr(deliver_, "_PROVEN", 0.0)
    spool.put(started(6))
    until(empty(spool))
    assert fake.proofs == 2
    monkeypatch.setattr(deliver_, "_PROVEN", 1000.0)
    failures = iter([ServiceError("unreachable", "gone")])

    def once(body: bytes) -> Answer:
        for failure in failures:
            raise failure
        return taking(shop)(body)

    fake.reply = once
    spool.put(started(7))
    until(empty(spool))
    assert fake.proofs == 3


@pytest.mark.slow
def test_killed_at_every_step_nothing_is_lost_and_nothing_is_doubled(tmp_path, server: Sealing):
    """SIGKILL at each system call of putting and delivering, and around each request; then a start anew."""
    shops: dict[str, Shop] = {}
    answers = 0

    def reply(asked: Asked) -> Reply:
        nonlocal answers
        if asked.method == "GET":
            return 200, b""
        answers += 1
        answer = shops.setdefault(json.loads(asked.body)["node"], Shop()).answer(asked)
        return answer if answers % 5 else (503, b"")  # now and then an acknowledgement is lost on top

    server.reply = reply
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.unit.prolog_epilog.agent.crashing",
            str(tmp_path),
            server.url,
            server.munge._socket,  # type: ignore[attr-defined]
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    points = [line.split() for line in run.stdout.splitlines()]
    assert len(points) > 60
    assert [ended for _, ended in points] == ["-9"] * (len(points) - 1) + ["0"]
    for number, _ in points:
        told = records(f"n{number}")
        counting = {record.id for record in told if getattr(record, "serial", 2) == 2}
        shop = shops[f"n{number}"]
        assert {record.id for record in shop.kept.values()} == counting
        assert len(shop.kept) == 5
    assert sum(shop.repeats for shop in shops.values()) > 0  # the store was told twice, and kept it once
