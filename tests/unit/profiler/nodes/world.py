"""Jobs that ran on the nodes of a cluster, told as nodes and Slurm tell them, and judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import msgspec

from profiler.bad_nodes import DAY
from profiler.findings import Evidence
from profiler.records import NodeEvent, Record
from profiler.store import JobFacts, Store
from slurm_plugins.service.keeper.judging import judged
from tests.unit.profiler.store.records import CLUSTER, ended, event, found, started

NOW = 20_000 * DAY + DAY / 2
NODES = tuple(f"n{i}" for i in range(1, 21))
XID = "GPU-00000001: Xid 79 (GPU has fallen off the bus)"

_ids = count(1)


@dataclass(frozen=True)
class Run:
    """An attempt. `log`: the reason that its log gives, "" for one that ended well; `named`: the node named there."""

    nodes: tuple[str, ...] = ("n1",)
    uid: int = 1000
    name: str = "train"
    days_ago: float = 0.0
    log: str = ""
    named: str = ""
    state: str = ""
    xid: bool = False
    partition: str = "gpu"


def say(
    runs: Iterable[Run], events: Sequence[NodeEvent] = (), now: float = NOW
) -> tuple[list[Record], list[JobFacts]]:
    """What nodes tell of them, and what Slurm says."""
    records: list[Record] = list(events)
    facts = []
    for run in runs:
        job, at = next(_ids), now - run.days_ago * DAY
        for node in run.nodes:
            records += [
                started(job, node, at - 600, uid=run.uid, user=f"u{run.uid}", partition=run.partition),
                ended(job, node, at, exit_code=1 if run.log else 0),
            ]
        if run.xid:
            records.append(event("xid", "error", run.nodes[0], at - 1 + job * 1e-5, detail=XID))
        if run.log:
            said = (Evidence(f"it says {run.log}", "/home/ada/run/slurm-1.out", 12),)
            record = found(job, run.log, run.nodes[0], at=at, evidence=said)
            finding = msgspec.structs.replace(record.finding, node=run.named)
            records.append(msgspec.structs.replace(record, finding=finding))
        failed = bool(run.log or run.xid or run.state)
        facts.append(
            JobFacts(
                cluster=CLUSTER,
                job_id=job,
                restarts=0,
                final=True,
                uid=run.uid,
                user=f"u{run.uid}",
                name=run.name,
                partition=run.partition,
                state=run.state or ("FAILED" if failed else "COMPLETED"),
                exit_code=1 if failed else 0,
                started=at - 600,
                ended=at,
                nodes=",".join(run.nodes),
            )
        )
    return records, facts


def told(store: Store, runs: Iterable[Run], events: Sequence[NodeEvent] = ()) -> None:
    """Have the store hear of them, and judge those that failed."""
    records, facts = say(runs, events)
    for start in range(0, len(records), 500):
        store.take(records[start : start + 500], NOW)
    store.enrich(facts, NOW)
    while cases := store.unjudged(CLUSTER, 500, NOW + 1000):
        store.put_verdicts([judged(case) for case in cases], NOW + 1000)
