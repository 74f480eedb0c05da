"""All that a store holds, for comparison."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from profiler.store import Store
from profiler.store.schema import TABLES


def contents(store: Store, *, told_only: bool = False) -> dict[str, list[Any]]:
    """Rows by table, sorted; keys that the database gave are replaced by what they stand for.

    `told_only` leaves out what depends on when a record came, by the service's clock.
    """
    by_clock = {"touched", "ask_at", "asked", "heard", "facts_at", "due", "mark"} if told_only else set()
    found: dict[str, list[Any]] = {}
    with store.reading("test") as connection:
        rows = {
            table.name: [dict(row) for row in connection.execute(select(table)).mappings()]
            for table in TABLES
        }
    jobs = {row["pk"]: (row["cluster"], row["job_id"], row["restarts"]) for row in rows["job"]}
    for name, some in rows.items():
        for row in some:
            row.pop("pk", None)
            if "job" in row:
                row["job"] = jobs[row["job"]]
        found[name] = sorted(
            (
                tuple(sorted((key, value) for key, value in row.items() if key not in by_clock))
                for row in some
            ),
            key=repr,
        )
    return found
