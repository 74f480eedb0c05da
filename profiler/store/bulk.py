"""Many rows by one statement, alike on SQLite and PostgreSQL."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Table, case, func, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.dml import Insert

__all__ = ["chunks", "insert_new", "lock", "upsert"]

_CHUNK: Final = 500
"""Values in one IN list: far below the bounds of both, and few shapes of a statement to be remembered."""
_LOCK: Final = 0x67737562
"""Our space of PostgreSQL's advisory locks."""
_T = TypeVar("_T")


def chunks(values: Sequence[_T], size: int = _CHUNK) -> Iterator[Sequence[_T]]:
    """The values, so many at a time."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    *,
    newer: str | None = None,
    key: tuple[str, ...] = (),
    keep: tuple[str, ...] = (),
    least: tuple[str, ...] = (),
) -> None:
    """Insert rows; where one with that key (the primary one, if no other is named) is there, it becomes this one.

    All rows have the same columns. `newer` names one: a row is replaced only by one whose value there is higher. The
    columns in `keep` stay as they were first written, those in `least` keep the lower value of both.
    """
    if rows:
        statement = _upsert(connection.dialect.name, table, tuple(rows[0]), newer, key, keep, least)
        connection.execute(statement, rows)


@lru_cache(maxsize=64)
def _upsert(  # noqa: PLR0917 - remembered by them
    dialect: str,
    table: Table,
    columns: tuple[str, ...],
    newer: str | None,
    key: tuple[str, ...],
    keep: tuple[str, ...],
    least: tuple[str, ...],
) -> Insert:
    key = key or tuple(column.name for column in table.primary_key)
    changed = [name for name in columns if name not in key and name not in keep]
    made = _insert(dialect, table)
    where = None if newer is None else made.excluded[newer] > table.c[newer]
    values: dict[str, Any] = {name: made.excluded[name] for name in changed}
    for name in least:
        # Spelt out: the function for it is called min by one, and least by the other
        values[name] = case((made.excluded[name] < table.c[name], made.excluded[name]), else_=table.c[name])
    return made.on_conflict_do_update(index_elements=key, set_=values, where=where)


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert those rows that break no rule of uniqueness; leave the others out."""
    if rows:
        connection.execute(_insert_new(connection.dialect.name, table), rows)


@lru_cache(maxsize=16)
def _insert_new(dialect: str, table: Table) -> Insert:
    return _insert(dialect, table).on_conflict_do_nothing()


def _insert(dialect: str, table: Table) -> sqlite.Insert:
    """An insertion with the methods for conflicts, which both dialects have, and no common type for them."""
    if dialect == "sqlite":
        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # a fifth of a second that a site with SQLite is spared

    return postgresql.insert(table)  # type: ignore[return-value]


def lock(connection: Connection, clusters: Sequence[str]) -> None:
    """Be the only writer of these clusters until the transaction ends.

    On SQLite it is the only one anyway. On PostgreSQL several services may write, each for its cluster; by mistake two
    for the same: what we look at before we write must not change meanwhile.
    """
    if connection.dialect.name == "postgresql":
        for key in sorted({zlib.crc32(name.encode()) - (1 << 31) for name in clusters}):
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK, key)))
