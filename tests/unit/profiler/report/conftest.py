"""Stores of both kinds for tests of reports."""

from __future__ import annotations

from tests.unit.profiler.store.conftest import new_url, store, url
from tests.unit.profiler.store.postgres import postgres

__all__ = ["new_url", "postgres", "store", "url"]
