"""Wicked rows of squeue, sacct and scontrol for the readers, and what must hold of every answer.

Each answer holds one good row among the wicked ones: whatever those are, it is read, and what is read crosses to the
service and fits into the store.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from random import Random

import msgspec

from profiler.records import JobRef
from profiler.store.facts import JobFacts
from site_configs.site import Site
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import SlurmError
from slurm_plugins.client.tables import Unread
from slurm_plugins.client.values import Partition
from slurm_plugins.client.versions import Version, fields_for
from slurm_plugins.decide.context import SlurmFacts
from slurm_plugins.limits.records import Associations
from slurm_plugins.service.keeper.ask import Seen, ask
from slurm_plugins.service.look import Slurm, look
from slurm_plugins.service.slurm_config import SlurmConfig
from slurm_plugins.service.wire import Question, decode_report, encode_report
from tests.fuzz.words import NUMBERS, TEXTS
from tests.unit.slurm_plugins.client.fake import FakeClient
from tests.unit.slurm_plugins.client.slurm_rows import Answers, Row, attempt, job, node

RELEASES = ("22.05.8", "24.11.5", "26.05.5")
OF_AN_ANSWER = 100
GOOD = 1_000_000
"""The id of the good row."""

_WORDS = (
    *(
        "",
        "(null)",
        "N/A",
        "None",
        "Unknown",
        "UNLIMITED",
        "INVALID",
        "INFINITE",
        "NOT_SET",
        "Partition_Limit",
        "*",
    ),
    *(
        "604801795311497",
        "-9223372036854775808",
        "9" * 30,
        "9" * 5000,
        "1" + "0" * 18,
        "253402300800",
        "#" * 20,
    ),
    *(
        "1-3",
        "2K",
        "65534K",
        "1.5",
        "8?",
        "16E",
        "0x10",
        "1e9",
        "+5",
        "-2",
        "²",
        "٣",
        "1-00:00:00",
        "1:2:3:4",
        "99999-0",
    ),
    *(
        "cpu=1,mem=8?",
        "mem=18446744073709551614",
        "gres/gpu=9999999999999999999",
        "gpu:a100:2(S:0-1)",
        "gres/gpu:-1",
    ),
    *(
        "cpu=1,cpu=",
        "billing=1e5",
        ",,,,",
        "=",
        "gpu",
        "mem=9223372036854775807M",
        "n[1-",
        "n[3-1]",
        "n[0-99]",
    ),
    *(
        "0-4000000",
        "0,3-5%2",
        "[1-3]",
        "4294967294",
        "5-1",
        "1-2:0",
        "...",
        "RUNNING+COMPLETING",
        "CANCELLED by ²",
    ),
    *(
        "a\nb",
        "\n",
        "\x1f",
        "\udcff\udc80",
        "%j%999999999999j",
        "x" * 4000,
        "afterok:1(unfulfilled),afterany:2_*",
        "é",
    ),
)


@dataclass
class Found:
    """What came of all rows."""

    rows: int = 0
    unread: int = 0
    slowest: float = 0.0
    """Seconds of the slowest answer."""


def value(random: Random) -> str:
    """Return one value at the edges of what a field may hold, or beyond them."""
    kind = random.randrange(4)
    if kind == 0:
        return str(random.choice(NUMBERS))
    if kind == 1:
        return str(random.choice(TEXTS))
    if kind == 2:
        bits = random.choice((8, 16, 32, 40, 63, 64, 70))
        return str((1 << bits) + random.randrange(-3, 3))
    return random.choice(_WORDS)


def spoil(random: Random, row: Row, columns: tuple[str, ...]) -> Row:
    """Return the row with one to four wrong values; one in four may have all of them wrong."""
    count = random.randrange(1, 5) if random.random() < 0.75 else random.randrange(1, len(columns))
    return {**row, **{column: value(random) for column in random.sample(columns, count)}}


def _answers(random: Random) -> tuple[Answers, int]:
    release = random.choice(RELEASES)
    table = fields_for(Version.parse(release))
    squeue = (*table.squeue, *table.squeue_short)
    sacct = tuple(table.sacct)
    scontrol = (
        "CPUTot",
        "CPUAlloc",
        "RealMemory",
        "FreeMem",
        "CfgTRES",
        "AllocTRES",
        "Gres",
        "BootTime",
        "State",
    )
    jobs = [spoil(random, job(number, nodes="n1"), squeue) for number in range(1, OF_AN_ANSWER)]
    attempts = [spoil(random, attempt(number), sacct) for number in range(1, OF_AN_ANSWER)]
    # a record has no separators: a newline begins another
    nodes: list[Row] = [
        {key: text.replace("\n", "") for key, text in spoil(random, node(f"n{number}"), scontrol).items()}
        for number in range(1, OF_AN_ANSWER // 4)
    ]
    place = random.randrange(len(nodes))
    jobs.insert(random.randrange(len(jobs)), job(GOOD, tres_per_node="gres/gpu:2"))
    attempts.insert(random.randrange(len(attempts)), attempt(GOOD + 1))
    nodes.insert(place, node("good"))
    return Answers(release, jobs=jobs, attempts=attempts, nodes=nodes), len(jobs) + len(attempts) + len(nodes)


class _Client(CommandClient):
    """Its partitions are not what is tried here."""

    def partitions(self) -> tuple[Partition, ...]:
        return FakeClient().partitions()


def try_answer(seed: int, number: int, found: Found) -> None:
    """Read one answer of each command as gsubd and the recorder do. Raises AssertionError for what must not be."""
    random = Random(f"{seed} {number}")
    answers, rows = _answers(random)
    unread = Unread()
    client = _Client({}, run=answers, unread=unread)
    where = f"seed {seed}, answer {number}"
    begin = time.perf_counter()
    wanted = [JobRef(GOOD + 1), *(JobRef(number) for number in range(1, OF_AN_ANSWER))]
    try:
        seen = ask(client, "lab", [JobRef(GOOD), *wanted], 1_795_236_200.0, unread)
        seen = msgspec.json.decode(msgspec.json.encode(seen), type=Seen)
        report = look(
            Slurm(client, _config, lambda _: Associations(), unread), Site(cluster="lab"), _QUESTION
        )
        report = decode_report(encode_report(report))
        nodes = [one.name for one in client.nodes()]
    except SlurmError as error:
        raise AssertionError(f"{where}: an answer was lost: {error}") from error
    except Exception as error:
        raise AssertionError(f"{where}: {error!r}") from error
    assert not seen.error and not seen.accounting_error, f"{where}: {seen.error} {seen.accounting_error}"
    assert not report.error and not report.jobs_error, f"{where}: {report.error} {report.jobs_error}"
    told = {one.job_id for one in seen.facts}
    assert {GOOD, GOOD + 1} <= told, f"{where}: the good row is lost"
    assert report.jobs is not None and GOOD in {one.id for one in report.jobs}, (
        f"{where}: a submission is lost"
    )
    assert "good" in nodes, f"{where}: the good node is lost"
    for one in seen.facts:
        _fits(one, where)
    found.rows += rows
    found.unread += sum(unread.kinds.values()) // 2  # each is read by both services
    found.slowest = max(found.slowest, time.perf_counter() - begin)


def _fits(facts: JobFacts, where: str) -> None:
    """Check that a store can hold it."""
    for one in fields(facts):
        name, value = one.name, getattr(facts, one.name)
        if isinstance(value, int):
            assert -(1 << 63) <= value < 1 << 63, f"{where}: {name}={value} fits into no store"
        if isinstance(value, str):
            value.encode()


_QUESTION = Question(site="", site_path="", jobs_since=0.0)


def _config() -> SlurmConfig:
    return SlurmConfig(SlurmFacts())


def run(count: int, seed: int) -> Found:
    """Read `count` rows at least."""
    found = Found()
    number = 0
    while found.rows < count:
        try_answer(seed, number, found)
        number += 1
    return found
