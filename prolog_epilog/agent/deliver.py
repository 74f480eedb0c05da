"""Brings what waits in the spool to the service, in batches, for as long as it takes.

A record is removed when the service says that it is in its store, and set aside when the service says that it never
will be. Anything else (no service, a busy one, one that cannot be believed, a mistake in the site file) means: later.
What goes wrong is told once in the log, and once more when it is over.

Records are sent to nobody who has not just sealed an answer: while the service starts anew, somebody else could listen
on its port, and read them.

Waits are by the monotonic clock, and random, so that the nodes of a cluster do not come all at once after an outage.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import msgspec

from profiler.answers import Taken
from profiler.records import JobRef, NodeEvent, now
from profiler.release import release
from profiler.sealed import Answer, ServiceError
from prolog_epilog.agent.spool import Spool, Trouble, Waiting

__all__ = ["Backoff", "Delivery", "Pace"]

TARGET = "/v1/records"
_PROOF = "/healthz"  # asks for nothing; its answer is sealed where the question has a credential
_PROVEN = 10.0  # seconds for which a sealed answer proves who listens

# The service takes 5000 records and 4 MiB at once; smaller batches give way sooner to what matters more
_RECORDS, _BYTES = 500, 1 << 20
_SLICE = 5.0  # seconds after which a waiting thread sees whether the spool's disk is well again

_log = logging.getLogger(__name__)


class _About(msgspec.Struct):
    """The node that a record is about."""

    node: str = ""


_about = msgspec.json.Decoder(_About)
_taken = msgspec.json.Decoder(Taken)

OnRunning: TypeAlias = Callable[[tuple[JobRef, ...], float], None]
_Outcome: TypeAlias = Literal["taken", "nothing", "too_large", "broken", "narrowed", "busy", "refused"]

_OUTCOMES: dict[int, _Outcome] = {
    200: "taken",
    408: "busy",
    413: "too_large",
    429: "busy",
    502: "busy",
    503: "busy",
    504: "busy",
}
"""What an answer's status means. Others: below 500 "refused", something is set up wrongly, the records are good; from
500 on "broken": perhaps by one record, which must not hold up the others."""


_UNWANTED = (401, 403)  # also without a seal: it changes no more than how long we wait


class Asking(Protocol):
    """The service: `profiler.sealed.Service`."""

    def ask(self, method: str, target: str, body: bytes = b"", *, timeout: float | None = None) -> Answer:
        """Ask. Raises ServiceError."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to wait, in seconds: at most `jitter` after news; after failures from `least` to `most`, doubling; from
    `slow` on where trying again soon cannot help; `held` (doubling, to `most`) for a record that the service fails on.
    After `heartbeat` without news the service is asked which jobs Slurm has here."""

    jitter: float = 2.0
    least: float = 1.0
    most: float = 300.0
    slow: float = 60.0
    held: float = 60.0
    heartbeat: float = 300.0


class Backoff:
    """How long to wait after failures in a row: random between 0 and a bound that doubles ("full jitter")."""

    def __init__(self, pace: Pace, rng: random.Random) -> None:
        self._pace, self._rng = pace, rng
        self.failures = 0

    def next(self, *, slow: bool = False) -> float:
        """Seconds to wait after one more failure. `slow`: half of the bound at least, which begins high."""
        self.failures += 1
        first = self._pace.slow if slow else self._pace.least
        bound = min(self._pace.most, first * 2 ** min(self.failures - 1, 32))
        return self._rng.uniform(bound / 2, bound) if slow else self._rng.uniform(bound / 20, bound)


class Delivery(threading.Thread):
    """A thread that delivers. `start` it; `stop` ends it.

    `on_running` is told, in this thread, which jobs Slurm had on this node, and when (seconds since the epoch by the
    service's clock), whenever the service knows.
    """

    def __init__(
        self,
        spool: Spool,
        service: Asking,
        cluster: str,
        node: str,
        on_running: OnRunning = lambda jobs, at: None,
        *,
        pace: Pace | None = None,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(name="deliver", daemon=True)
        self._spool, self._service, self._cluster, self._node = spool, service, cluster, node
        self._on_running = on_running
        self._pace, self._rng = pace or Pace(), rng or random.Random()  # noqa: S311 - no secret
        self._backoff = Backoff(self._pace, self._rng)
        self._stopping = threading.Event()
        self._deadline: float | None = None
        self._most = _RECORDS
        self._proven = float("-inf")
        self._held: dict[
            str, float
        ] = {}  # ids of records that the service fails on -> until when (monotonic)
        self._failed_on: dict[str, int] = {}  # and how often it did
        self._heartbeat = 0.0
        self._trouble = ""

    def stop(self, seconds: float) -> bool:
        """Deliver what waits, for at most so many seconds, and end; whether all was delivered."""
        self._deadline = time.monotonic() + seconds
        self._stopping.set()
        self._spool.news.set()
        if self.ident is not None:
            self.join(seconds)
        return not self.is_alive() and self._spool.counts().records == 0

    def run(self) -> None:
        """Deliver until `stop`."""
        self._stopping.wait(self._rng.uniform(0.0, self._pace.jitter))
        while not self._stopping.is_set():
            self._spool.news.clear()
            delay = self._deliver()
            if delay is not None:
                self._pause(delay)
            elif self._wait_for_news():
                self._stopping.wait(self._rng.uniform(0.0, self._pace.jitter))
        self._held.clear()
        self._deliver()

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._stopping.wait(min(left, _SLICE)):
            self._spool.settle()

    def _wait_for_news(self) -> bool:
        """Wait; True for news, False when it is time for a heartbeat or for a record that was held back."""
        until = min([self._heartbeat, *self._held.values()])
        while (left := until - time.monotonic()) > 0:
            if self._spool.news.wait(min(left, _SLICE)):
                return True
            self._spool.settle()
        return False

    def _left(self) -> float | None:
        return None if self._deadline is None else self._deadline - time.monotonic()

    # -- delivering ------------------------------------------------------------------------------------------------

    def _deliver(self) -> float | None:
        """Deliver batch after batch, until nothing waits (None) or one fails (seconds to wait)."""
        while (left := self._left()) is None or left > 0:
            outcome: _Outcome
            try:
                outcome, why = self._deliver_one(left)
            except Exception as error:  # this thread must not end while there are records
                _log.exception("Delivery failed")
                outcome, why = "busy", f"{type(error).__name__}: {error}"
            if outcome == "nothing":
                return None
            if outcome == "taken":
                self._well()
            elif outcome == "narrowed":
                self._pause(self._rng.uniform(0.0, self._pace.least))
            elif outcome != "too_large":
                self._unwell(why)
                return self._backoff.next(slow=outcome == "refused")
        return None

    def _deliver_one(self, timeout: float | None) -> tuple[_Outcome, str]:
        self._tell_troubles()
        at = time.monotonic()
        self._held = {record_id: until for record_id, until in self._held.items() if until > at}
        batch = self._spool.batch(self._most, _BYTES, self._held)
        if not batch and at < self._heartbeat:
            return "nothing", ""
        node, batch = self._of_one_node(batch)
        told = {"v": 1, "node": node, "cluster": self._cluster, "release": release()}
        head = msgspec.json.encode(told)[:-1]
        body = head + b',"records":[' + b",".join(waiting.line for waiting in batch) + b"]}"
        within = timeout and min(timeout, 10.0)
        try:
            if batch and at >= self._proven + _PROVEN:
                self._service.ask("GET", _PROOF, timeout=within)
            answer = self._service.ask("POST", TARGET, body, timeout=within)
            self._proven = time.monotonic()
        except ServiceError as error:
            self._proven = float("-inf")
            return "refused" if error.status in _UNWANTED else "busy", str(error)
        outcome = _OUTCOMES.get(answer.status) or ("refused" if answer.status < 500 else "broken")
        why = f"the service answers {answer.status}: {answer.body[:300].decode(errors='replace')}"
        if outcome == "taken":
            return self._taken(batch, answer.body, ours=node == self._node)
        if outcome == "too_large" and len(batch) == 1:
            self._spool.set_aside(batch[0].id, f"{len(batch[0].line)} bytes are too many for the service")
        elif outcome in ("too_large", "broken"):
            outcome = self._narrow(batch)
        return outcome, why

    def _of_one_node(self, batch: tuple[Waiting, ...]) -> tuple[str, tuple[Waiting, ...]]:
        """The records that are about the same node as the first one: some may be of before it got another name."""
        nodes = [_about.decode(waiting.line).node for waiting in batch]
        if not nodes:
            return self._node, batch
        return nodes[0], tuple(
            waiting for waiting, node in zip(batch, nodes, strict=True) if node == nodes[0]
        )

    def _taken(self, batch: Sequence[Waiting], body: bytes, *, ours: bool) -> tuple[_Outcome, str]:
        try:
            taken = _taken.decode(body)
        except msgspec.MsgspecError as error:
            return "busy", f"the service's answer cannot be read: {error}"
        sent = {waiting.id for waiting in batch}
        accepted = sent.intersection(taken.accepted)
        self._spool.done(accepted)
        for record_id in accepted:
            self._failed_on.pop(record_id, None)
        refused = {}
        for each in taken.refused:
            # where the service could not read the id, its place in the batch tells
            place = batch[each.index].id if not each.id and 0 <= each.index < len(batch) else each.id
            if place in sent - accepted:
                refused[place] = each.why
        for record_id, why in refused.items():
            self._spool.set_aside(record_id, f"the service refused it: {why}")
            self._failed_on.pop(record_id, None)
        self._heartbeat = time.monotonic() + self._pace.heartbeat * self._rng.uniform(0.8, 1.2)
        if ours and taken.running is not None and taken.seen_at is not None:
            try:
                self._on_running(taken.running, taken.seen_at)
            except Exception:  # what is done with the news is not delivery's
                _log.exception("Comparing the jobs here with Slurm's failed")
        if batch and not accepted and not refused:
            return "busy", "the service takes none of a batch, and does not say why"
        self._most = min(self._most * 2, _RECORDS)
        return "taken", ""

    def _narrow(self, batch: Sequence[Waiting]) -> _Outcome:
        """The service fails on a batch: try half of it; a record that it fails on alone lets the others go first."""
        if len(batch) > 1:
            self._most = len(batch) // 2
            return "narrowed"
        for waiting in batch:
            times = self._failed_on.get(waiting.id, 0)
            self._held[waiting.id] = time.monotonic() + min(self._pace.held * 2**times, self._pace.most)
            if len(self._failed_on) < _RECORDS:
                self._failed_on[waiting.id] = min(times + 1, 32)
        return "broken"

    def _tell_troubles(self) -> None:
        for trouble in self._spool.troubles():
            if self._spool.put(self._event(trouble)):
                self._spool.told(trouble)

    def _event(self, trouble: Trouble) -> NodeEvent:
        return NodeEvent(
            id=trouble.id,
            cluster=self._cluster,
            node=self._node,
            at=min(max(now(), 0.0), 4e9),
            name=trouble.name,
            state="error" if trouble.name == "spool_dropped" else "warning",
            detail=trouble.detail[:4096],
        )

    # -- telling ---------------------------------------------------------------------------------------------------

    def _unwell(self, why: str) -> None:
        """Say what is wrong, once: until it is another thing, or all is well."""
        if why != self._trouble:
            level = logging.WARNING if not self._trouble else logging.INFO
            _log.log(level, "Records cannot be delivered now, and wait: %s", why)
        self._trouble = why

    def _well(self) -> None:
        if self._trouble:
            _log.warning("Records are delivered again.")
        self._trouble = ""
        self._backoff.failures = 0
