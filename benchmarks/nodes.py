"""What it costs to weigh the evidence against nodes, with a million jobs of three weeks in the store.

    python -m benchmarks.nodes [--jobs 1000000] [--nodes 512] [--seed 1]

Rows are put into the tables as the keeper would have left them: a tenth of the attempts failed, half of these for
reasons that a node can cause; one user has forged 50,000 of them. It prints how long the first go takes after a start,
which reads all days, and one of those that follow every five minutes, and what of it is the judgement alone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import insert

from profiler.bad_nodes import DAY, REASONS, RULES
from profiler.findings import Evidence, Finding
from profiler.store import Store, open_store
from profiler.store.schema import job, job_node, verdict
from slurm_plugins.service.keeper.bad_nodes import EVERY, Assessing
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.storing import Storing

CLUSTER: Final = "bench"
NOW: Final = 20_000 * DAY + DAY / 2
_FORGED: Final = 50_000
_AT_ONCE: Final = 20_000
_GOES: Final = 5


def rows(
    jobs: int, nodes: int, seed: int
) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]]:
    """Rows of job, job_node and verdict."""
    r = random.Random(seed)
    reasons = sorted(REASONS)
    for pk in range(1, jobs + 1):
        at = NOW - RULES.window * DAY * (1 - pk / jobs)
        forged = pk % max(1, jobs // _FORGED) == 0
        uid = 666 if forged else 10_000 + int(400 * r.random() ** 3)
        node = f"node{r.randrange(nodes):04d}"
        name = f"run-{r.randrange(40)}-{chr(97 + r.randrange(26))}"
        failed = forged or r.random() < 0.1
        of = {
            "pk": pk, "cluster": CLUSTER, "job_id": pk, "restarts": 0, "sort_at": at - 600, "touched": at, "ended": at,
            "uid": uid, "user": f"u{uid}", "account": "a", "name": name, "partition": "gpu", "facts_final": True,
            "state": "FAILED" if failed else "COMPLETED", "started": at - 600,
        }  # fmt: skip
        told = {"job": pk, "node": node, "started_at": at - 600, "ended_at": at}
        if not failed:
            yield of, told, None
            continue
        reason = r.choice(reasons) if forged or r.random() < 0.5 else "import_error"
        found = Finding(
            reason, 0.9, "explicit", (Evidence("it is broken", "/home/u/slurm-1.out", 12),), node=node
        )
        yield of, told, {
            "job": pk, "cluster": CLUSTER, "job_id": pk, "uid": uid, "user": f"u{uid}", "account": "a", "name": name,
            "at": at, "reason": reason, "tier": "explicit", "confidence": 0.9, "source": "user",
            "body": msgspec.json.encode(found).decode(),
        }  # fmt: skip


def fill(store: Store, jobs: int, nodes: int, seed: int) -> None:
    """Put them in."""
    made: list[Any] = []

    def put() -> None:
        with store.writing("bench") as connection:
            for table, place in ((job, 0), (job_node, 1), (verdict, 2)):
                values = [row[place] for row in made if row[place] is not None]
                if values:
                    connection.execute(insert(table), values)
        made.clear()

    for row in rows(jobs, nodes, seed):
        made.append(row)
        if len(made) == _AT_ONCE:
            put()
    if made:
        put()


async def timed(assessing: Assessing) -> tuple[float, float]:
    """Seconds and CPU seconds of one go."""
    began, cpu = time.perf_counter(), time.process_time()
    await assessing.once()
    return time.perf_counter() - began, time.process_time() - cpu


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/store.db")
        store.migrate()
        fill(store, given.jobs, given.nodes, given.seed)
        storing, counts = Storing(Counts()), Counts()
        storing._store = store
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assessing = Assessing(CLUSTER, storing, counts, Path(folder), now=lambda: NOW)
        first, first_cpu = asyncio.run(timed(assessing))
        later = sorted(asyncio.run(timed(assessing)) for _ in range(_GOES))[_GOES // 2]
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        began = time.perf_counter()
        assessing._charges(assessing._days, (), NOW)
        alone = time.perf_counter() - began
        print(f"{given.jobs} jobs of {RULES.window} days on {given.nodes} nodes")
        print(f"first go: {first:.2f} s, {first_cpu:.2f} s of CPU, memory + {grown / 1024:.0f} MiB")
        print(
            f"one that follows: {later[0]:.2f} s, {later[1]:.2f} s of CPU: {later[1] / EVERY:.2%} of a core"
        )
        print(f"of which the judgement alone: {alone:.2f} s")
        found = assessing.current
        suspected = found.nodes if found is not None else ()
        print(
            f"{len(suspected)} suspicions, {len({one.node for one in suspected if one.avoided})} nodes avoided"
        )
        storing.close()
        store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
