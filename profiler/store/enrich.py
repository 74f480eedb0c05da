"""What others than nodes tell: Slurm's word on jobs, decisions of gsubd, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, bindparam, select, update

from profiler.records import JobRef
from profiler.store.bulk import chunks, lock, upsert
from profiler.store.facts import JobFacts, Seen, Wanted, fitted
from profiler.store.ingest import by_job, find_jobs, settle, write
from profiler.store.judging import mark, patience, settled_badly, with_finding
from profiler.store.merge import clean
from profiler.store.schema import WAITED, decision, job
from profiler.waits import CAUSES, Attempt, Wait, shares

__all__ = ["enrich", "put_decisions", "wanting"]

_RUNNING: Final = 120.0
"""Seconds until Slurm is asked again about a job that runs: its end is told by its nodes, at once."""
_ENDING: Final = 2.0
"""... about one whose nodes say that it is over: in a moment Slurm knows how."""
_PAUSES: Final = (15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
"""... about one of which it said nothing, each time more."""
_GIVE_UP: Final = 7 * 86400.0
"""An attempt that nobody spoke of for so long is not asked about any more."""

# What only the end of an attempt settles: of a running job, scontrol's EndTime is when its time will be up
_FINAL: Final = ("ended", "exit_code", "signal", "derived_exit_code")
_FACTS: Final = tuple(
    one.name
    for one in fields(JobFacts)
    if one.name not in ("cluster", "job_id", "restarts", "final", *_FINAL)
)
_WRITTEN: Final = (*_FACTS, *_FINAL, "slurm_gpus")
_WRITE = (
    update(job).where(job.c.pk == bindparam("pk_")).values({name: bindparam(f"{name}_") for name in _WRITTEN})
)
_DUE = (
    select(job.c.pk, job.c.job_id, job.c.restarts, job.c.started, job.c.ended, job.c.asked, job.c.touched)
    .where(
        job.c.cluster == bindparam("cluster_"), job.c.ask_at.is_not(None), job.c.ask_at <= bindparam("now_")
    )
    .order_by(job.c.ask_at)
    .limit(bindparam("limit_"))
)
_ASKED = (
    update(job)
    .where(job.c.pk == bindparam("pk_"))
    .values(ask_at=bindparam("ask_at_"), asked=bindparam("asked_"))
)


_WAITS = (
    update(job).where(job.c.pk == bindparam("pk_")).values({name: bindparam(f"{name}_") for name in WAITED})
)


def wanting(connection: Connection, cluster: str, limit: int, now: float) -> tuple[Wanted, ...]:
    """Attempts that Slurm is to be asked about now, the most overdue first.

    Each counts as asked by this: if no facts of it follow, it comes again after a pause that grows, up to a week after
    a node last spoke of it.
    """
    lock(connection, [cluster])
    rows = connection.execute(_DUE, {"cluster_": cluster, "now_": now, "limit_": limit}).all()
    values = []
    for row in rows:
        again = None if row.touched < now - _GIVE_UP else now + _PAUSES[min(row.asked, len(_PAUSES) - 1)]
        values.append({"pk_": row.pk, "ask_at_": again, "asked_": row.asked + 1})
    if values:
        connection.execute(_ASKED, values)
    return tuple(Wanted(JobRef(row.job_id, row.restarts), row.started, row.ended, row.asked) for row in rows)


def enrich(
    connection: Connection, facts: Sequence[JobFacts], at: float, waits: Mapping[Attempt, Wait]
) -> int:
    """Write what Slurm says; of how many attempts in the store that was. Facts of others are passed over.

    With the start of an attempt is written what it was seen to wait for until then (`waits`).
    """
    clusters = sorted({one.cluster for one in facts})
    lock(connection, clusters)
    count = 0
    for cluster in clusters:
        of_job: dict[int, list[JobFacts]] = {}
        for one in facts:
            if one.cluster == cluster:
                of_job.setdefault(one.job_id, []).append(one)
        for ids in chunks(sorted(of_job)):
            count += _enrich(connection, cluster, {number: of_job[number] for number in ids}, at, waits)
    return count


def _enrich(
    connection: Connection,
    cluster: str,
    of_job: Mapping[int, list[JobFacts]],
    at: float,
    waits: Mapping[Attempt, Wait],
) -> int:
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in find_jobs(connection, cluster, list(of_job), whole=True):
        rows.setdefault(row["job_id"], []).append(row)
    matched: list[tuple[dict[str, Any], JobFacts]] = []
    for number, several in of_job.items():
        attempts = {row["pk"]: row for row in rows.get(number, ())}
        seen = [Seen(pk, row["restarts"], row["sort_at"]) for pk, row in attempts.items()]
        matched += ((attempts[fit.pk], one) for one, fit in fitted(several, seen))
    nodes = by_job(connection, [row["pk"] for row, _ in matched])
    changed, settled = {}, {}
    for stored, one in matched:
        if stored["facts_final"] and not one.final:
            continue  # an older look at Slurm, or a cache of it
        row = stored | _told(stored, one)
        row |= {"facts_at": at, "facts_final": one.final, "asked": 0}
        if one.gpus is not None:
            row["slurm_gpus"] = one.gpus
        settle(row, list(nodes[row["pk"]].values()))
        if not one.final:
            row["ask_at"] = at + (_ENDING if row["ended"] is not None else _RUNNING)
        changed[row["pk"]] = {f"{name}_": row[name] for name in _WRITTEN} | {"pk_": row["pk"]}
        settled[row["pk"]] = row
    write(connection, list(settled.values()))
    if changed:
        connection.execute(_WRITE, list(changed.values()))
    waited = [values for row in settled.values() if (values := _waited(row, waits)) is not None]
    if waited:
        connection.execute(_WAITS, waited)
    found = with_finding(connection, list(settled))
    judged = (row for pk, row in settled.items() if pk in found or settled_badly(row))
    due = ((row["pk"], cluster, patience(row, at, found=row["pk"] in found)) for row in judged)
    mark(connection, due, at)
    return len(settled)


def _waited(row: Mapping[str, Any], waits: Mapping[Attempt, Wait]) -> dict[str, Any] | None:
    """What an attempt waited for, as it is written, once; None while that is not known, or is there already."""
    first = row["submitted"] if row["eligible"] is None else row["eligible"]
    if row["started"] is None or first is None or row[WAITED[0]] is not None:
        return None
    wait = waits.get((row["job_id"], row["restarts"]))
    if wait is None and row["restarts"] == 0 and row["array_job_id"] is not None:
        # A task without a record of its own before it started: it waited as part of its array
        wait = waits.get((row["array_job_id"], 0))
    if wait is None:
        return None
    seconds = shares(wait, since=first, until=row["started"])
    found = {f"{name}_": seconds.get(cause, 0.0) for name, cause in zip(WAITED, CAUSES, strict=True)}
    return found | {"pk_": row["pk"]}


def _told(row: Mapping[str, Any], one: JobFacts) -> dict[str, Any]:
    """The columns by Slurm's word; what it does not say stays as it was."""
    told: dict[str, Any] = {}
    for name in (*_FACTS, *_FINAL) if one.final else _FACTS:
        value = getattr(one, name)
        told[name] = row[name] if value in (None, "") else clean(value) if isinstance(value, str) else value
    return told


def put_decisions(connection: Connection, cluster: str, lines: Sequence[Mapping[str, Any]]) -> int:
    """Write lines of gsubd's journal of decisions, as it has them; how many were such lines.

    A line is a decision itself (kind "decision"), its job (kind "job"), or that it has none (another kind). They may
    come in any order, and again.
    """
    lock(connection, [cluster])
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for line in lines:
        key, at = line.get("decision"), line.get("at")
        if not isinstance(key, str) or not isinstance(at, int | float):
            continue
        kind = "body" if line.get("kind") == "decision" else "joined"
        rows.setdefault(kind, {})[clean(key)] = _decision(line) if kind == "body" else _joined(line)
    count = 0
    for kind, some in rows.items():
        values = [{"cluster": cluster, "id": key} | some[key] for key in sorted(some)]
        upsert(connection, decision, values, keep=() if kind == "body" else ("at",))
        count += len(some)
    return count


def _decision(line: Mapping[str, Any]) -> dict[str, Any]:
    mode, uid = line.get("mode"), line.get("uid")
    return {
        "at": float(line["at"]),
        "uid": uid if isinstance(uid, int) else None,
        "mode": clean(mode) if isinstance(mode, str) else None,
        "enforced": line.get("enforced") is True,
        "body": _json(line),
    }


def _joined(line: Mapping[str, Any]) -> dict[str, Any]:
    number = line.get("job")
    return {
        "at": float(line["at"]),
        "outcome": clean(str(line.get("kind"))),
        "job_id": number if isinstance(number, int) else None,
        "joined": _json(line),
    }


def _json(line: Mapping[str, Any]) -> str:
    return msgspec.json.encode(line).decode()
