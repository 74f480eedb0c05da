"""Rules on use that a job's user was told of: what `gsub why`, `gsub usage` and the receipt remind of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, select

from profiler.answers import RuleTold
from profiler.store.bulk import chunks, upsert
from profiler.store.merge import clean
from profiler.store.schema import job, rule_told

__all__ = ["of_attempt", "put"]

_COLUMNS = ("rule", "at", "about", "evidence", "cancelled")


def put(connection: Connection, cluster: str, told: Mapping[tuple[int, int], Sequence[RuleTold]]) -> int:
    """Write what users were told of attempts (job id, restarts), and what followed; how much of it that was.

    Who is told of a rule again was last told then. Attempts that the store has not are passed over.
    """
    rows = []
    for numbers in chunks(sorted({number for number, _ in told})):
        found = select(job.c.pk, job.c.job_id, job.c.restarts).where(
            job.c.cluster == cluster, job.c.job_id.in_(numbers)
        )
        for key, number, restarts in connection.execute(found).all():
            for one in told.get((number, restarts), ()):
                values = (one.rule, one.at, one.about, one.evidence, one.cancelled)
                cleaned = [clean(value) if isinstance(value, str) else value for value in values]
                rows.append({"job": key} | dict(zip(_COLUMNS, cleaned, strict=True)))
    upsert(connection, rule_told, rows)
    return len(rows)


def of_attempt(connection: Connection, key: int) -> tuple[RuleTold, ...]:
    """What was told of an attempt, the first first."""
    wanted = select(*(rule_told.c[name] for name in _COLUMNS)).where(rule_told.c.job == key)
    return tuple(
        RuleTold(*row) for row in connection.execute(wanted.order_by(rule_told.c.at, rule_told.c.rule))
    )
