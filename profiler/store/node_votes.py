"""What a day says of the nodes: the failures that nodes can cause, what nodes told of themselves, and what ran there.

Read from indexes by time, a day at a time: a keeper keeps what a past day said and asks for the present one again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from sqlalchemy import Connection, select

from profiler.bad_nodes import DAY, REASONS, RULES, Vote
from profiler.findings import Finding
from profiler.node_votes import EVENTS, Failure, vote_of_event, votes_of, workload_of
from profiler.store.bodies import finding_of
from profiler.store.bulk import chunks
from profiler.store.schema import job, job_node, node_event, verdict
from profiler.store.store import Store

__all__ = ["NodeDay", "node_day"]

_OF_ONE: Final = 100
"""Failures of one user by one reason that are looked at, the last of the day: a thousand tell no more."""
_VERDICTS: Final = 100_000
"""Failures of one reason and day among which those are."""
_JOBS: Final = 200_000
"""Attempts of a day that are counted."""
_EVENTS: Final = 50_000


@dataclass(frozen=True, slots=True)
class NodeDay:
    """What a day says: votes, how many workloads ran on each node, and which nodes jobs of each partition had."""

    votes: tuple[Vote, ...]
    ran: Mapping[str, int]
    partitions: Mapping[str, frozenset[str]]


def node_day(store: Store, cluster: str, day: int, hardware_xids: Collection[int]) -> NodeDay:
    """What the day with that number (from 1970, UTC) says of a cluster's nodes. Raises StoreError.

    Of one user, `RULES.workloads` workloads count on a node at most, as of votes. `hardware_xids`: see `votes_of`.
    """
    since, until = day * DAY, (day + 1) * DAY
    with store.reading("What speaks against nodes cannot be read.") as connection:
        votes = [
            vote
            for failure in _failures(connection, cluster, since, until)
            for vote in votes_of(failure, hardware_xids)
        ]
        votes += _of_nodes(connection, cluster, since, until)
        ran, partitions = _ran(connection, cluster, since, until)
    return NodeDay(tuple(votes), ran, partitions)


def _failures(connection: Connection, cluster: str, since: float, until: float) -> Iterator[Failure]:
    keys: list[int] = []
    for reason in sorted(REASONS):
        keys += _keys(connection, cluster, reason, since, until)
    wanted = select(verdict.c.job, verdict.c.uid, verdict.c.name, verdict.c.at, verdict.c.body)
    where = select(job_node.c.job, job_node.c.node)
    for some in chunks(keys):
        nodes: dict[int, list[str]] = {}
        for row in connection.execute(where.where(job_node.c.job.in_(some))):
            nodes.setdefault(row[0], []).append(row[1])
        for key, uid, name, at, body in connection.execute(wanted.where(verdict.c.job.in_(some))):
            found = _read(body)
            if found is not None:
                yield Failure(found, uid, name, at, tuple(nodes.get(key, ())))


def _keys(connection: Connection, cluster: str, reason: str, since: float, until: float) -> Sequence[int]:
    """The attempts that failed for a reason, the last of each user: from an index alone."""
    wanted = (
        select(verdict.c.job, verdict.c.uid)
        .where(
            verdict.c.cluster == cluster,
            verdict.c.reason == reason,
            verdict.c.at >= since,
            verdict.c.at < until,
        )
        .order_by(verdict.c.at.desc())
        .limit(_VERDICTS)
    )
    of_user: dict[int | None, int] = {}
    keys = []
    for key, uid in connection.execute(wanted):
        of_user[uid] = of_user.get(uid, 0) + 1
        if of_user[uid] <= _OF_ONE:
            keys.append(key)
    return keys


def _read(body: str) -> Finding | None:
    """A finding; None for one that another release wrote."""
    try:
        return finding_of(body)
    except msgspec.MsgspecError:
        return None


def _of_nodes(connection: Connection, cluster: str, since: float, until: float) -> Iterator[Vote]:
    """What nodes told of themselves."""
    wanted = (
        select(
            node_event.c.cluster, node_event.c.node, node_event.c.name, node_event.c.state, node_event.c.at
        )
        .where(node_event.c.at >= since, node_event.c.at < until)
        .order_by(node_event.c.at.desc())
        .limit(_EVENTS)
    )
    for of, node, name, state, at in connection.execute(wanted):
        vote = vote_of_event(node, name, state, at) if of == cluster and name in EVENTS else None
        if vote is not None:
            yield vote


def _ran(
    connection: Connection, cluster: str, since: float, until: float
) -> tuple[dict[str, int], dict[str, frozenset[str]]]:
    """How many workloads ran on each node, and which nodes jobs of each partition had."""
    ended = (
        select(job.c.pk)
        .where(job.c.cluster == cluster, job.c.ended >= since, job.c.ended < until)
        .order_by(job.c.ended.desc())
        .limit(_JOBS)
    )
    wanted = select(job.c.partition, job.c.uid, job.c.name, job_node.c.node).join(
        job_node, job_node.c.job == job.c.pk
    )
    seen: dict[str, dict[int | None, set[str]]] = {}
    there: dict[str, set[str]] = {}
    for some in chunks(connection.execute(ended).scalars().all()):
        for partition, uid, name, node in connection.execute(wanted.where(job.c.pk.in_(some))):
            there.setdefault(partition, set()).add(node)
            workloads = seen.setdefault(node, {}).setdefault(uid, set())
            if len(workloads) < RULES.workloads:
                workloads.add(workload_of(name))
    ran = {node: sum(map(len, whose.values())) for node, whose in seen.items()}
    return ran, {name: frozenset(nodes) for name, nodes in there.items() if name}
