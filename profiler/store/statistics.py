"""What the database's planner believes of the tables.

PostgreSQL looks by itself. SQLite believes what it was told last; a fresh store is told how one looks that has been
filled for a year, so that the plans of its first day are those of its last. They are not measured anew: on SQLite a
plan that changes by itself, some night, is worse than one that is a little off.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

__all__ = ["tidy"]


def tidy(connection: Connection) -> None:
    """Refresh what PostgreSQL's planner knows; nothing on SQLite."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("ANALYZE"))
