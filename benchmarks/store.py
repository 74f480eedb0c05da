"""The store with a million jobs in it: how fast records go in, how much room they take, how long questions wait.

    python -m benchmarks.store [--jobs 1000000] [--on sqlite,postgresql] [--seed 1]

A year of a cluster of 256 nodes with 8 GPUs each, made up from a seed by the shape of public traces (most jobs have one
GPU, a few users most jobs, one in four fails). Each job is told as nodes tell it: start, usage (twice), end, its course
for those of the last quarter, and what the log says of those that failed; then come Slurm's word, the verdict, and what
was decided by it. The last thousand failures wait for that, the thousand before them are to be worked on.
Batches come as from 256 spools, 500 records each.
Rates count the store's time alone, not that of making records up. PostgreSQL is a server of the bench's own.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from profiler.findings import Evidence, Finding
from profiler.records import (
    GpuRef,
    GpuSeries,
    GpuUse,
    HostUse,
    JobEnded,
    JobFinding,
    JobRef,
    JobSeries,
    JobStarted,
    JobUsage,
    NodeEvent,
    Record,
)
from profiler.resubmissions import Resubmission, State
from profiler.store import EventQuery, JobFacts, JobQuery, ReasonsQuery, Store, VerdictQuery, open_store
from slurm_plugins.service.keeper.judging import judged
from tests.unit.profiler.store.postgres import Postgres

CLUSTER = "bench"
YEAR = 365 * 86400.0
NOW = 1_760_000_000.0
_GIB = 1 << 30
_NODES = 256
_RUNNING = 600
"""The last so many jobs still run."""
_BATCH = 500
_WAITING = 2000
_SIZES = ((1, 70), (2, 8), (4, 8), (8, 9), (16, 3), (32, 1.5), (64, 0.5))
_ENDS = (
    ("COMPLETED", 68),
    ("FAILED", 17),
    ("CANCELLED", 11),
    ("TIMEOUT", 3),
    ("OUT_OF_MEMORY", 0.9),
    ("NODE_FAIL", 0.1),
)
_ALL_REASONS = "reasons of all time"
_WHY = (
    ("import_error", 20),
    ("gpu_oom", 20),
    ("semantic_error", 30),
    ("missing_input", 15),
    ("nccl_timeout", 4),
    ("gpu_hardware", 1),
    ("no_signature", 10),
)


class Site:
    """Jobs and events, made up one after the other."""

    def __init__(self, seed: int, jobs: int) -> None:
        self.random = random.Random(seed)
        self.jobs = jobs
        self.users = [(f"user{n:03d}", 10_000 + n, f"group{n % 40:02d}") for n in range(400)]
        self._weights = [1 / (n + 1) for n in range(400)]
        self._courses = [self._course() for _ in range(64)]

    def job(self, number: int) -> tuple[list[Record], JobFacts]:
        """What nodes and Slurm tell of a job."""
        r = self.random
        user, uid, account = r.choices(self.users, self._weights)[0]
        gpus = r.choices([size for size, _ in _SIZES], [weight for _, weight in _SIZES])[0]
        state = r.choices([name for name, _ in _ENDS], [weight for _, weight in _ENDS])[0]
        length = min(r.lognormvariate(7.5, 1.8), 7 * 86400.0)
        begin = NOW - YEAR + YEAR * number / self.jobs + r.random() * 60
        end = begin + length
        code = 0 if state == "COMPLETED" else r.choice((1, 2, 127, 137))
        running = number >= self.jobs - _RUNNING
        first = r.randrange(_NODES)
        nodes = [f"node{(first + n) % _NODES:03d}" for n in range((gpus + 7) // 8)]
        hosts = ",".join(nodes)
        ref = JobRef(number + 1, 1 if r.random() < 0.01 else 0)
        if running:
            state = "RUNNING"
        records: list[Record] = []
        for node in nodes:
            refs = tuple(
                GpuRef(n, f"GPU-{node}-{n:08x}-aaaa-bbbb", "NVIDIA A100-SXM4-80GB")
                for n in range(min(gpus, 8))
            )
            word = (CLUSTER, node)
            records.append(
                JobStarted(
                    self._id(), *word, begin, ref, "prolog", uid, uid, user, account, "gpu", hosts, refs,
                    None, f"/home/{user}/project/run-{number % 97}", "slurm-%j.out", "slurm-%j.out",
                )
            )  # fmt: skip
            for serial, at in ((1, begin + length / 2), (2, end)):
                uses = tuple(self._use(gpu, at - begin) for gpu in refs)
                host = HostUse("cgroup2", (at - begin) * 6.5, 8.0, 30 * _GIB, 22 * _GIB, 64 * _GIB, 0)
                records.append(
                    JobUsage(
                        self._id(),
                        *word,
                        at,
                        ref,
                        serial,
                        serial == 2 and not running,
                        begin,
                        at,
                        uses,
                        host,
                        0.0,
                    )
                )
            if not running:
                records.append(JobEnded(self._id(), *word, end, ref, "epilog", code, 0, 0))
            if state == "FAILED" and not running and node == nodes[0]:
                records.append(JobFinding(self._id(), *word, end, ref, self._finding(user, number)))
            if number > self.jobs * 3 / 4:
                course = r.choice(self._courses)
                columns = tuple(GpuSeries(gpu, *course) for gpu in refs)
                records.append(
                    JobSeries(
                        self._id(),
                        *word,
                        end,
                        ref,
                        2,
                        True,
                        begin,
                        length / 120,
                        columns,
                        course[0],
                        course[1],
                    )
                )
        facts = JobFacts(
            cluster=CLUSTER, job_id=ref.job_id, restarts=ref.restarts, name=f"train-{number % 1013}", user=user,
            uid=uid,
            account=account, partition="gpu", qos="normal", state=state, exit_code=code, submitted=begin - 600,
            eligible=begin - 600, started=begin, ended=end, time_limit=86400.0, nodes=hosts, cpus=8 * gpus, gpus=gpus,
            memory_asked_bytes=64 * _GIB,
            work_dir=f"/home/{user}/project/run-{number % 97}", final=not running,
        )  # fmt: skip
        return records, facts

    def event(self, number: int, events: int) -> NodeEvent:
        """What a health check says."""
        r = self.random
        name = r.choice(("gpu_count", "ecc", "disk_space", "clock_offset", "xid"))
        state: Any = "info" if name == "xid" else r.choice(("ok", "ok", "warning", "error"))
        at = NOW - YEAR + YEAR * number / events
        return NodeEvent(
            self._id(), CLUSTER, f"node{r.randrange(_NODES):03d}", at, name, state, "as it was found"
        )

    def _finding(self, user: str, number: int) -> Finding:
        r = self.random
        reason = r.choices([name for name, _ in _WHY], [weight for _, weight in _WHY])[0]
        if reason == "no_signature":
            return Finding(reason, 0.5)
        log = f"/home/{user}/project/run-{number % 97}/slurm-{number}.out"
        lines = tuple(
            Evidence(
                f"RuntimeError: what was found to be wrong, number {number} at step {n}",
                log,
                1000 + n,
                rank=n,
            )
            for n in range(3)
        )
        # The same mistake comes again a few times
        like = f"{reason}-{user}-{number % 1013}-{r.randrange(3)}"
        return Finding(
            reason,
            0.9,
            "explicit",
            lines,
            "Look at that line, and at what is written about it.",
            f"tool-{reason}",
            like,
        )

    def _id(self) -> str:
        return f"{self.random.getrandbits(128):032x}"

    def _use(self, gpu: GpuRef, seconds: float) -> GpuUse:
        r = self.random
        mean = 0.0 if r.random() < 0.1 else r.betavariate(2, 1.2) * 100
        return GpuUse(
            gpu, int(seconds / 10), seconds, mean, mean * 0.3, mean, min(100.0, mean * 1.2), mean,
            r.randrange(80 * _GIB), r.random() * 80 * _GIB, 80 * _GIB, 100 + mean * 3, 420.0, 400.0, seconds * 250.0,
            61 + r.randrange(20), 1200 + r.random() * 200, seconds * 0.9, seconds * 0.02, seconds * 0.05, 0.0, 0.0, 0.0,
            {"sw_power_cap": seconds * 0.1} if r.random() < 0.3 else None, 0, 0,
        )  # fmt: skip

    def _course(self) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        r = self.random
        busy = tuple(round(min(100.0, max(0.0, r.gauss(75, 12))), 1) for _ in range(120))
        memory = tuple(float(40 * _GIB + r.randrange(_GIB)) for _ in range(120))
        return busy, memory, tuple(round(100 + 3 * value, 1) for value in busy)


def fill(store: Store, site: Site) -> dict[str, float]:
    """Put all in; the rates."""
    taking = telling = judging = deciding = 0.0
    verdicts = decisions = 0
    count = 0
    spool: list[Record] = []
    facts: list[JobFacts] = []
    for number in range(site.jobs):
        records, one = site.job(number)
        spool += records
        facts.append(one)
        last = number == site.jobs - 1
        while len(spool) >= _BATCH or (last and spool):
            batch, spool = spool[:_BATCH], spool[_BATCH:]
            begun = time.perf_counter()
            store.take(batch, one.started or NOW)
            taking += time.perf_counter() - begun
            count += len(batch)
        if len(facts) >= 200 or last:
            begun = time.perf_counter()
            store.enrich(facts, one.started)
            telling += time.perf_counter() - begun
            facts = []
            begun = time.perf_counter()
            while cases := store.unjudged(CLUSTER, 100, one.started or NOW):
                # As of long ago, by when nothing had ended for long: what failed waits for a decision
                store.put_verdicts([judged(case) for case in cases], 0.0)
                verdicts += len(cases)
            judging += time.perf_counter() - begun
            begun = time.perf_counter()
            while number < site.jobs - 4 * _WAITING and (decided := decide(store, "stopped")):
                decisions += decided
            deciding += time.perf_counter() - begun
        if number % 100_000 == 99_999:
            print(f"  {number + 1} jobs, {count / taking:.0f} records/s", file=sys.stderr, flush=True)
    events = site.jobs // 10
    for start in range(0, events, _BATCH):
        store.take([site.event(number, events) for number in range(start, min(start + _BATCH, events))], NOW)
    # Events of a year that come at once bring up all failures of that year again; they would come one by one
    while cases := store.unjudged(CLUSTER, 100, NOW):
        store.put_verdicts([judged(case) for case in cases], NOW)
    for _ in range(_WAITING // 200):
        decide(store, "planned")
    return {
        "records": count,
        "records_per_s": round(count / taking),
        "jobs_per_s": round(site.jobs / taking),
        "enriched_per_s": round(site.jobs / telling),
        "judged": verdicts,
        "judged_per_s": round(verdicts / judging),
        "decided": decisions,
        "decided_per_s": round(decisions / deciding),
    }


def decide(store: Store, state: State) -> int:
    """Decide about a hundred failures; how many that were."""
    of = store.undecided(CLUSTER, 100, 4e9)
    rows = [
        Resubmission(
            *(CLUSTER, one.job.job_id, one.job.restarts, one.finding.reason, "once", state, NOW),
            "What is known does not surely say why it failed: it is tried again once.",
        )
        for one in of
    ]
    return len(store.put_resubmissions(rows, NOW, of=of))


def questions(store: Store, site: Site) -> dict[str, Callable[[], object]]:
    """The API's, each with something else asked for every time."""
    r = random.Random(7)
    jobs = site.jobs

    def person() -> tuple[str, int, str]:
        return r.choices(site.users, site._weights)[0]

    def a_time() -> float:
        return NOW - YEAR * r.random()

    def page(**what: object) -> object:
        return store.jobs(JobQuery(cluster=CLUSTER, **what))  # type: ignore[arg-type]

    def second(**what: object) -> object:
        first = store.jobs(JobQuery(cluster=CLUSTER, until=a_time(), **what))  # type: ignore[arg-type]
        return store.jobs(JobQuery(cluster=CLUSTER, cursor=first.next, **what))  # type: ignore[arg-type]

    failures = store.verdicts(VerdictQuery(cluster=CLUSTER, uid=10_000, limit=1000)).verdicts

    def failure_of_the_busiest() -> object:
        return store.verdict(CLUSTER, r.choice(failures).job_id)

    return {
        "job": lambda: store.job(CLUSTER, r.randrange(jobs) + 1),
        "job, not there": lambda: store.job(CLUSTER, jobs + r.randrange(jobs) + 1),
        "usage": lambda: store.usage(CLUSTER, r.randrange(jobs) + 1),
        "series": lambda: store.series(CLUSTER, jobs - r.randrange(jobs // 4)),
        "jobs": page,
        "jobs, 1000 a page": lambda: page(limit=1000),
        "jobs, two pages from any time": second,
        "jobs of a user": lambda: page(uid=person()[1]),
        "jobs of a user by name": lambda: page(user=person()[0]),
        "jobs of a user, two pages": lambda: second(uid=person()[1]),
        "jobs of a user that failed": lambda: page(uid=person()[1], state="FAILED"),
        "jobs of a user in a rare state": lambda: page(uid=person()[1], state="NODE_FAIL"),
        "jobs of a user in no state": lambda: page(uid=10_000, state="DEADLINE"),
        "jobs of a user in a week": lambda: page(
            uid=person()[1], since=(at := a_time()), until=at + 7 * 86400
        ),
        "jobs of a user that ended since": lambda: page(uid=person()[1], ended_since=NOW - 7 * 86400),
        "jobs that ended since": lambda: page(ended_since=NOW - 7 * 86400),
        "jobs of an account that ended since": lambda: page(account=person()[2], ended_since=NOW - 7 * 86400),
        "jobs of an account": lambda: page(account=person()[2]),
        "jobs of an account that failed": lambda: page(account=person()[2], state="FAILED"),
        "jobs in a rare state": lambda: page(state="NODE_FAIL"),
        "jobs in a rare state, any time": lambda: page(state="NODE_FAIL", until=a_time()),
        "jobs of nobody": lambda: page(uid=5),
        "nodes": lambda: store.nodes(CLUSTER),
        "events of a node": lambda: store.events(
            EventQuery(cluster=CLUSTER, node=f"node{r.randrange(_NODES):03d}")
        ),
        "verdicts": lambda: store.verdicts(VerdictQuery(cluster=CLUSTER)),
        "verdicts of a user": lambda: store.verdicts(VerdictQuery(cluster=CLUSTER, uid=person()[1])),
        "verdicts of a job": lambda: store.verdicts(
            VerdictQuery(cluster=CLUSTER, job_id=r.randrange(jobs) + 1)
        ),
        "verdicts of a user, by reason": lambda: store.verdicts(
            VerdictQuery(cluster=CLUSTER, uid=person()[1], reason="nccl_timeout")
        ),
        "verdicts of a user by name": lambda: store.verdicts(VerdictQuery(cluster=CLUSTER, user=person()[0])),
        "verdicts by a rare reason": lambda: store.verdicts(
            VerdictQuery(cluster=CLUSTER, reason="gpu_hardware", until=a_time())
        ),
        "verdict, with its likes": lambda: store.verdict(CLUSTER, r.randrange(jobs) + 1),
        "verdict of the busiest user's": failure_of_the_busiest,
        "decision": lambda: store.decision(CLUSTER, r.randrange(jobs) + 1),
        "reasons of a month": lambda: store.reasons(
            ReasonsQuery(cluster=CLUSTER, since=(at := a_time()) - 30 * 86400.0, until=at)
        ),
        "reasons of a user in a month": lambda: store.reasons(
            ReasonsQuery(cluster=CLUSTER, since=(at := a_time()) - 30 * 86400.0, until=at, uid=person()[1])
        ),
        _ALL_REASONS: lambda: store.reasons(ReasonsQuery(cluster=CLUSTER, since=0.0, until=4e9)),
        "unjudged": lambda: store.unjudged(CLUSTER, 100, NOW),
        "undecided": lambda: store.undecided(CLUSTER, 100, 4e9),
        "due": lambda: store.due_resubmissions(CLUSTER, 100, 4e9),
        "resubmissions of a job": lambda: store.resubmissions(CLUSTER, r.randrange(jobs) + 1),
        "past of a job": lambda: store.past_of(CLUSTER, r.randrange(jobs) + 1, 1),
        "wanting": lambda: store.wanting(CLUSTER, 100, NOW),
    }


def ask(store: Store, site: Site, rounds: int) -> dict[str, tuple[float, float]]:
    """p50 and p95 of each question, in milliseconds."""
    figures = {}
    for name, question in questions(store, site).items():
        question()
        times = []
        for _ in range(rounds if name != _ALL_REASONS else min(rounds, 20)):
            begun = time.perf_counter()
            question()
            times.append(time.perf_counter() - begun)
        times.sort()
        figures[name] = (times[len(times) // 2] * 1000, times[int(len(times) * 0.95)] * 1000)
    return figures


def _limit(name: str) -> float:
    """Milliseconds that a question may take: the sum over everything is asked for by operators, now and then."""
    return 1000.0 if name == _ALL_REASONS else 100.0


@contextmanager
def database(kind: str, folder: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """The address of an empty store, and a call that says how many bytes it takes.

    PostgreSQL is given the vacuum first that it would give itself in quiet hours.
    """
    if kind == "sqlite":
        file = folder / "store.db"
        yield f"sqlite:///{file}", lambda: sum(path.stat().st_size for path in folder.glob("store.db*"))
        return
    server = Postgres(folder, ("shared_buffers = 256MB", "max_wal_size = 2GB"))
    server.start()
    try:
        url = server.database()

        def size() -> int:
            server.sql("VACUUM ANALYZE", "gsub0")
            return int(server.sql("SELECT pg_database_size('gsub0')", "gsub0"))

        yield url, size
    finally:
        server.stop("immediate")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures the store.")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--on", default="sqlite,postgresql", help="databases, comma-separated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=200, help="times that each question is asked")
    parser.add_argument("--folder", help="where the databases are made; default: the temporary folder")
    parser.add_argument("--keep", action="store_true", help="leave SQLite's file there")
    parser.add_argument(
        "--wait-for", type=Path, help="ask only when this file is there: the machine may be busy now"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    report: dict[str, object] = {}
    slow = 0
    for kind in asked.on.split(","):
        folder = Path(tempfile.mkdtemp(prefix=f"gsub-bench-{kind}-", dir=asked.folder))
        try:
            with database(kind, folder) as (url, size):
                store, site = open_store(url), Site(asked.seed, asked.jobs)
                store.migrate()
                print(f"{kind}: putting {asked.jobs} jobs into {url}", file=sys.stderr, flush=True)
                rates = fill(store, site)
                rates["bytes"] = size()
                rates["bytes_per_job"] = round(rates["bytes"] / asked.jobs)
                while asked.wait_for and not asked.wait_for.exists():
                    time.sleep(1)
                figures = ask(store, site, asked.rounds)
                store.close()
        finally:
            if not asked.keep:
                shutil.rmtree(folder)
        report[kind] = rates | {"ms": {name: [round(ms, 2) for ms in both] for name, both in figures.items()}}
        slow += sum(p95 > _limit(name) for name, (_, p95) in figures.items())
        if not asked.json:
            print(
                f"{kind}, {asked.jobs} jobs: " + ", ".join(f"{name} {value}" for name, value in rates.items())
            )
            for name, (p50, p95) in figures.items():
                print(
                    f"  {name:34} p50 {p50:8.2f} ms   p95 {p95:8.2f} ms{'   SLOW' if p95 > _limit(name) else ''}"
                )
    if asked.json:
        print(json.dumps(report, indent=1))
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
