"""Records in: a node's batch, each record read apart, the good ones into the store in one transaction.

A record that cannot be taken is refused with a reason, so that the node sets it aside and the others are not held up
by it. Nothing is acknowledged that is not in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from profiler.answers import Refused, Sign, Taken
from profiler.logs import one_line
from profiler.records import JobRef, Record, decode, kind_of
from profiler.store.errors import StoreError
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.keeper.whence import Place, Whence

__all__ = ["MAX_RECORDS", "Batch", "Collected", "Collector", "Running", "count", "read_batch", "sort_out"]

MAX_RECORDS: Final = 5000
_WHY: Final = 300
_NODES: Final = 100_000


class Batch(msgspec.Struct, frozen=True):
    """What a node sends: its records, each still as it came."""

    v: Literal[1]
    node: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,254}$")]
    cluster: Annotated[str, Meta(min_length=1, max_length=64)]
    records: Annotated[list[msgspec.Raw], Meta(max_length=MAX_RECORDS)]
    release: Annotated[str, Meta(pattern=r"^[0-9A-Za-z.+!-]{0,32}$")] = ""
    """The agent's release of gsub; empty where it does not know it."""


@dataclass(frozen=True, slots=True)
class Running:
    """The jobs that Slurm had on each node when it was asked at `at` (seconds since the epoch)."""

    at: float
    by_node: dict[str, tuple[JobRef, ...]]


@dataclass(frozen=True, slots=True)
class Collected:
    """What became of a batch: the answer, the kinds of those taken, and in a word why each other was refused.

    `place`: whose address it came from.
    """

    taken: Taken
    place: Place
    records: tuple[Record, ...]
    reasons: tuple[str, ...]


_batch: msgspec.json.Decoder[Batch] = msgspec.json.Decoder(Batch)


def read_batch(body: bytes, cluster: str) -> Batch:
    """The batch of a request's body. Raises RefusedError (400): then none of it can be told apart.

    A batch for another cluster is refused as a whole: its node is configured wrongly, and its records are good.
    """
    try:
        batch = _batch.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(
            400,
            f"this is no batch of records: {one_line(str(error), _WHY)}",
            'Send {"v":1,"node":"n1","cluster":"...","records":[...]}, see docs/api.md.',
        ) from None
    if batch.cluster != cluster:
        raise RefusedError(
            400,
            f"this service collects for the cluster {cluster}, not for {one_line(batch.cluster, 64)}",
            "Compare `cluster` and `service.url` in the site file of the node with the service's.",
        )
    return batch


def sort_out(batch: Batch) -> tuple[list[tuple[int, Record]], list[tuple[Refused, str]]]:
    """The good records with their places, and the others, each with a word for the metrics."""
    good: list[tuple[int, Record]] = []
    bad: list[tuple[Refused, str]] = []
    for index, raw in enumerate(batch.records):
        try:
            record = decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            bad.append((Refused(index, _id_of(raw), one_line(str(error), _WHY)), "malformed"))
            continue
        if record.node != batch.node or record.cluster != batch.cluster:
            why = f"it is about {record.cluster} {record.node}, in a batch of {batch.cluster} {batch.node}"
            bad.append((Refused(index, record.id, one_line(why, _WHY)), "other_node"))
        elif rb"\u0000" in bytes(raw) and _has_nul(record):
            # no name or path holds one, and PostgreSQL cannot
            bad.append((Refused(index, record.id, "a text in it holds a NUL character"), "malformed"))
        else:
            good.append((index, record))
    return good, bad


class _Id(msgspec.Struct):
    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]


_id: msgspec.json.Decoder[_Id] = msgspec.json.Decoder(_Id)


def _id_of(raw: msgspec.Raw) -> str:
    try:
        return _id.decode(raw).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def _has_nul(record: Record) -> bool:
    return any("\0" in text for text in _texts(msgspec.to_builtins(record)))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


class Collector:
    """Takes batches for one cluster. `collect` blocks, and belongs to the thread that writes.

    `take` is the store's: all of them in one transaction. `running` is the last look at Slurm, None where there is none
    to go by. `whence` tells whether a node speaks for itself.
    """

    def __init__(
        self,
        cluster: str,
        take: Callable[[Sequence[Record], float], None],
        running: Callable[[], Running | None],
        whence: Whence,
    ) -> None:
        self._cluster = cluster
        self._take = take
        self._running = running
        self._whence = whence
        self.heard: dict[str, Sign] = {}
        """Each node's last batch, were it an empty one: a sign of life is not written to a disk."""

    def collect(self, body: bytes, at: float, peer: str = "") -> Collected:
        """Take a batch that came from the address `peer`.

        Raises RefusedError where it is none, ElsewhereError where that is not its node, StoreError where nothing is
        acknowledged.
        """
        batch = read_batch(body, self._cluster)
        place = self._whence.check(peer, batch.node)
        if batch.node in self.heard or len(self.heard) < _NODES:
            self.heard[batch.node] = Sign(at, batch.release)
        good, bad = sort_out(batch)
        kept = self._keep(good, bad, at)
        bad.sort(key=lambda one: one[0].index)
        running = self._running()
        taken = Taken(
            accepted=tuple(record.id for record in kept),
            refused=tuple(refused for refused, _ in bad),
            running=None if running is None else running.by_node.get(batch.node, ()),
            seen_at=None if running is None else running.at,
        )
        return Collected(taken, place, kept, tuple(word for _, word in bad))

    def _keep(
        self, good: Sequence[tuple[int, Record]], bad: list[tuple[Refused, str]], at: float
    ) -> tuple[Record, ...]:
        if not good:
            return ()
        try:
            self._take([record for _, record in good], at)
        except StoreError as error:
            if error.kind != "refused":
                raise
        else:
            return tuple(record for _, record in good)
        # One of them is what the store cannot hold: each for itself
        kept = []
        for index, record in good:
            try:
                self._take([record], at)
            except StoreError as error:
                if error.kind != "refused":
                    raise
                bad.append(
                    (Refused(index, record.id, one_line(error.why or error.what, _WHY)), "not_to_store")
                )
            else:
                kept.append(record)
        return tuple(kept)


def count(counts: Counts, collected: Collected, now: float) -> None:
    """Enter what became of a batch into the metrics."""
    counts.batches.add(collected.place)
    for record in collected.records:
        counts.records.add(kind_of(record))
        counts.lag.add(max(0.0, now - record.at))
    for word in collected.reasons:
        counts.refused.add(word)
