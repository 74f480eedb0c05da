"""What happened, kept: one schema for SQLite and PostgreSQL, written by the service alone.

SQLAlchemy takes 0.4 s to load: it is loaded when something of it is first asked for, not by who wants a fact's type.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiler.store.backup import restore
    from profiler.store.errors import StoreError
    from profiler.store.facts import JobFacts, Wanted
    from profiler.store.judging import Case, Judged
    from profiler.store.queries import CursorError, EventQuery, JobQuery
    from profiler.store.report import ReportQuery
    from profiler.store.resubmissions import Due, Undecided
    from profiler.store.store import Store, open_store
    from profiler.store.verdicts import ReasonsQuery, VerdictQuery

__all__ = [
    "Case",
    "CursorError",
    "Due",
    "EventQuery",
    "JobFacts",
    "JobQuery",
    "Judged",
    "ReasonsQuery",
    "ReportQuery",
    "Store",
    "StoreError",
    "Undecided",
    "VerdictQuery",
    "Wanted",
    "open_store",
    "restore",
]

_HOMES = {
    "restore": "backup",
    "StoreError": "errors",
    "JobFacts": "facts",
    "Wanted": "facts",
    "Case": "judging",
    "Judged": "judging",
    "CursorError": "queries",
    "EventQuery": "queries",
    "JobQuery": "queries",
    "ReportQuery": "report",
    "Due": "resubmissions",
    "Undecided": "resubmissions",
    "Store": "store",
    "open_store": "store",
    "ReasonsQuery": "verdicts",
    "VerdictQuery": "verdicts",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
