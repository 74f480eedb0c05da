"""Nodes that somebody has looked after: what speaks against one from before then does not count any more."""

from __future__ import annotations

from sqlalchemy import Connection, select

from profiler.answers import Clearance
from profiler.store.bulk import upsert
from profiler.store.merge import clean
from profiler.store.schema import node_clearance

__all__ = ["clear", "clearances"]


def clear(connection: Connection, cluster: str, one: Clearance) -> None:
    """Write that a node was looked after; of two times the later one stays."""
    row = {
        "cluster": cluster,
        "node": clean(one.node),
        "at": one.at,
        "by": clean(one.by),
        "why": clean(one.why),
    }
    upsert(connection, node_clearance, [row], newer="at")


def clearances(connection: Connection, cluster: str) -> tuple[Clearance, ...]:
    """The nodes that were cleared, and the last time of each."""
    columns = (node_clearance.c[name] for name in ("node", "at", "by", "why"))
    wanted = select(*columns).where(node_clearance.c.cluster == cluster).order_by(node_clearance.c.node)
    return tuple(Clearance(*row) for row in connection.execute(wanted))
