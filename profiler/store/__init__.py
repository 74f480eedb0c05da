"""What happened, kept: one schema for SQLite and PostgreSQL, written by the service alone.

Import it late: SQLAlchemy takes its time to load.
"""

from profiler.store.backup import restore
from profiler.store.errors import StoreError
from profiler.store.facts import JobFacts, Wanted
from profiler.store.queries import CursorError, EventQuery, JobQuery, VerdictQuery
from profiler.store.store import Store, open_store

__all__ = [
    "CursorError",
    "EventQuery",
    "JobFacts",
    "JobQuery",
    "Store",
    "StoreError",
    "VerdictQuery",
    "Wanted",
    "open_store",
    "restore",
]
