"""Batches of wicked records for the collector, and what must hold of every answer."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from profiler.answers import Problem, Taken
from profiler.records import Record, decode, encode
from slurm_plugins.service.keeper.collect import Batch
from tests.fuzz import words
from tests.unit.profiler.store.records import ended, event, series, started, usage
from tests.unit.profiler.store.records import found as finding
from tests.unit.slurm_plugins.keeper.door import ADA, CLUSTER, Door, Got, new_store

NODE = "n1"
OF_A_BATCH = 50
_MAKERS = (started, ended, usage, series, finding)


class WrongError(AssertionError):
    """The collector did what it must never do."""

    def __init__(self, what: str, body: bytes, got: Got) -> None:
        super().__init__(f"{what}\n  sent: {body[:3000]!r}\n  got: {got.status} {got.body[:500]!r}")


@dataclass
class Found:
    """What came of all records."""

    accepted: int = 0
    refused: int = 0
    batches_refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Refusals by the first word of their reason."""


def record(random: Random) -> bytes:
    """One record: in ten, one is good, five have wrong values, two are mangled, two are something else."""
    kind = random.randrange(10)
    good = _good(random)
    if kind == 0:
        return encode(good)
    if kind < 6:
        value = msgspec.json.decode(encode(good))
        for _ in range(random.randrange(1, 4)):
            value = _spoilt(random, value)
        return words.encode(random, value)
    if kind < 8:
        return words.mangle(random, encode(good))
    return words.noise(random) if random.random() < 0.3 else words.encode(random, words.anything(random))


def _good(random: Random) -> Record:
    number = random.randrange(1, 200)
    if random.random() < 0.2:
        return event(random.choice(("xid", "gpu_count")), at=float(number))
    make = random.choice(_MAKERS)
    more: dict[str, Any] = {"restarts": random.randrange(3)}
    if make in (usage, series):
        more |= {"serial": random.randrange(50), "final": random.random() < 0.2}
    elif make is started:
        more["uid"] = ADA
    elif make is finding:
        more["serial"] = random.randrange(50)
    return make(number, node=NODE, **more)


def _spoilt(random: Random, value: Any) -> Any:
    """The same with something else at a place in it, however deep."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        name = random.choice(sorted(value))
        kind = random.randrange(6)
        if kind == 0:
            return {key: inner for key, inner in value.items() if key != name}
        if kind == 1:
            return value | {words.text(random): words.anything(random)}
        if kind == 2:
            return value | {name: words.anything(random)}
        return value | {name: _spoilt(random, value[name])}
    if isinstance(value, list) and value and random.random() < 0.9:
        at = random.randrange(len(value))
        if random.random() < 0.2:
            return value * random.choice((2, 30))
        return [*value[:at], _spoilt(random, value[at]), *value[at + 1 :]]
    return random.choice((words.anything, words.number, words.text))(random)


def batch(random: Random, records: list[bytes]) -> bytes:
    """A batch of them; one in ten is spoilt itself."""
    body = b'{"v":1,"node":"%s","cluster":"%s","records":[%s]}' % (
        NODE.encode(),
        CLUSTER.encode(),
        b",".join(records),
    )
    return words.mangle(random, body) if random.random() < 0.1 else body


def _check(body: bytes, got: Got, found: Found) -> None:
    if got.status == 400:
        found.batches_refused += 1
        problem = msgspec.json.decode(got.body, type=Problem)
        if not problem.error or not problem.remedy:
            raise WrongError("refused without a reason", body, got)
        return
    if got.status != 200:
        raise WrongError("neither taken nor refused", body, got)
    taken = msgspec.json.decode(got.body, type=Taken)
    places = {one.index for one in taken.refused}
    if len(places) != len(taken.refused) or not all(one.why for one in taken.refused):
        raise WrongError("a record refused twice, or without a reason", body, got)
    told = msgspec.json.decode(body, type=Batch).records
    if len(taken.accepted) + len(taken.refused) != len(told):
        raise WrongError("a record that nobody knows what became of", body, got)
    good = [one for index, one in enumerate(told) if index not in places]
    if [_id(bytes(one)) for one in good] != list(taken.accepted):
        raise WrongError("a record that is none was taken", body, got)
    found.accepted += len(taken.accepted)
    found.refused += len(taken.refused)
    found.reasons.update(one.why.partition(" ")[0] for one in taken.refused)


def _id(line: bytes) -> str:
    try:
        return decode(line).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "none"


async def _run(count: int, seed: int, folder: Path) -> Found:
    store = new_store(folder)
    door = Door(store)
    found = Found()
    try:
        for number in range(0, count, OF_A_BATCH):
            random = Random(f"{seed}:{number}")
            records = [record(random) for _ in range(min(OF_A_BATCH, count - number))]
            # what is no JSON at all spoils its batch: alone, so that it takes no others with it
            whole = [one for one in records if _is_json(one)]
            for part in (whole, *([one] for one in records if not _is_json(one))):
                body = batch(random, part)
                try:
                    _check(body, await door.ask(0, "POST", "/v1/records", body), found)
                except (AssertionError, ValueError) as error:
                    raise AssertionError(f"record {number} of seed {seed}: {error}") from error
    finally:
        door.close()
        store.close()
    return found


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def run(count: int, seed: int) -> Found:
    """So many records, in batches. Raises AssertionError, naming the number of the batch at fault."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_run(count, seed, Path(folder)))
