"""The schema: what the migrations make is what the tables say, and lists are read from indexes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy import event as calls_of

from profiler.resubmissions import Resubmission
from profiler.store import (
    EventQuery,
    JobFacts,
    JobQuery,
    ReasonsQuery,
    Store,
    StoreError,
    VerdictQuery,
    open_store,
)
from profiler.store.schema import metadata
from profiler.store.upgrade import HEAD, scripts, upgrade
from tests.unit.profiler.store.records import CLUSTER, T0, event, found, judge_by_logs, started

REVISIONS = [script.revision for script in scripts().walk_revisions()][::-1]


def definitions(connection: Connection) -> set[str]:
    """How the database describes its tables and indexes."""
    if connection.dialect.name == "sqlite":
        rows = connection.execute(text("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")).scalars()
        found = {" ".join(row.replace("(false)", "false").split()) for row in rows}
    else:
        found = set(
            connection.execute(text("SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'")).scalars()
        )
    return {one for one in found if "alembic_version" not in one and "sqlite_stat" not in one}


def test_the_numbers_are_in_order() -> None:
    assert sorted(REVISIONS) == REVISIONS and REVISIONS[-1] == HEAD
    assert isinstance(scripts(), ScriptDirectory)


@pytest.mark.parametrize("revision", ["", *REVISIONS])
def test_upgrade_from_each_earlier_schema(new_url: Callable[[], str], revision: str) -> None:
    upgraded, made = open_store(new_url()), open_store(new_url())
    upgraded.engines.create()
    if revision:
        with upgraded.writing("test", checked=False) as connection:
            upgrade(connection, "test", to=revision)
    assert upgraded.version() == revision
    assert upgraded.migrate() == (revision, HEAD)
    assert upgraded.migrate() == (HEAD, HEAD)
    upgraded.check()
    made.engines.create()
    with made.writing("test", checked=False) as connection:
        metadata.create_all(connection)
        expected = definitions(connection)
    with upgraded.writing("test") as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": False}
        )
        differences = [one for one in compare_metadata(context, metadata) if "sqlite_stat" not in str(one)]
        assert differences == []
        assert definitions(connection) == expected
    upgraded.take([started()], T0)
    upgraded.close()
    made.close()


def test_two_that_start_at_once(url: str) -> None:
    stores = [open_store(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        versions = list(threads.map(lambda store: store.migrate(), stores))
    assert sorted(versions) == [("", HEAD), *[(HEAD, HEAD)] * 3]
    for store in stores:
        store.close()


def test_a_newer_schema_is_left_alone(store: Store) -> None:
    store.take([started()], T0)
    with store.writing("test") as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    calls: list[Callable[[], object]] = [lambda: store.take([started(2)], T0), store.migrate, store.check]
    for call in calls:
        with pytest.raises(StoreError, match="9999") as refused:
            call()
        assert refused.value.kind == "newer" and "Install that gsub" in refused.value.next


def test_a_store_without_tables_says_so(url: str) -> None:
    store = open_store(url)
    store.engines.create()
    calls: list[Callable[[], object]] = [
        lambda: store.take([started()], T0),
        lambda: store.job(CLUSTER, 1),
        store.check,
    ]
    for call in calls:
        with pytest.raises(StoreError) as refused:
            call()
        assert refused.value.kind == "older" and "gsub admin db upgrade" in refused.value.next
    store.close()


def test_a_failed_upgrade_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import op

    store, made = open_store(url), op.create_index

    def fails(name: str, *rest: Any, **more: Any) -> None:
        if name == "ix_smoke_at":
            raise OSError(28, "No space left on device")
        made(name, *rest, **more)

    monkeypatch.setattr(op, "create_index", fails)
    with pytest.raises(StoreError) as failed:
        store.migrate()
    assert failed.value.kind == "full" and store.version() == ""
    monkeypatch.undo()
    assert store.migrate() == ("", HEAD)
    store.close()


RESUBMISSION = Resubmission(CLUSTER, 1, 0, "gpu_oom", "requeue", "planned", T0, "tried again")

LISTS: dict[str, Callable[[Store], object]] = {
    "all": lambda store: store.jobs(JobQuery(cluster=CLUSTER, cursor="MTcuMCA1")),
    "in a week": lambda store: store.jobs(JobQuery(cluster=CLUSTER, since=5, until=9)),
    "uid": lambda store: store.jobs(JobQuery(cluster=CLUSTER, uid=5, cursor="MTcuMCA1")),
    "uid, state": lambda store: store.jobs(JobQuery(cluster=CLUSTER, uid=5, state="FAILED")),
    "uid, account": lambda store: store.jobs(JobQuery(cluster=CLUSTER, uid=5, account="a")),
    "user": lambda store: store.jobs(JobQuery(cluster=CLUSTER, user="a", since=5)),
    "account": lambda store: store.jobs(JobQuery(cluster=CLUSTER, account="a")),
    "account, state": lambda store: store.jobs(JobQuery(cluster=CLUSTER, account="a", state="FAILED")),
    "state": lambda store: store.jobs(JobQuery(cluster=CLUSTER, state="FAILED", cursor="MTcuMCA1")),
    "ended": lambda store: store.jobs(JobQuery(cluster=CLUSTER, ended_since=5)),
    "ended, account, state": lambda store: store.jobs(
        JobQuery(cluster=CLUSTER, ended_since=5, account="a", state="FAILED", cursor="MTcuMCA1")
    ),
    "ended, user": lambda store: store.jobs(JobQuery(cluster=CLUSTER, ended_since=5, user="a", since=3)),
    "ended, uid": lambda store: store.jobs(JobQuery(cluster=CLUSTER, ended_since=5, uid=5)),
    "ended, uid, state": lambda store: store.jobs(
        JobQuery(cluster=CLUSTER, ended_since=5, uid=5, state="FAILED", until=9, cursor="MTcuMCA1")
    ),
    "events": lambda store: store.events(EventQuery(cluster=CLUSTER, node="n", cursor="MTcuMCA1")),
    "verdicts": lambda store: store.verdicts(VerdictQuery(cluster=CLUSTER)),
    "verdicts, uid": lambda store: store.verdicts(VerdictQuery(cluster=CLUSTER, uid=5)),
    "verdicts, job": lambda store: store.verdicts(VerdictQuery(cluster=CLUSTER, job_id=5)),
    "verdicts, in a week": lambda store: store.verdicts(VerdictQuery(cluster=CLUSTER, since=5, until=9)),
    "verdicts, user, reason": lambda store: store.verdicts(
        VerdictQuery(cluster=CLUSTER, user="ada", reason="gpu_oom", cursor="MTcuMCA1")
    ),
    "verdicts, fingerprint": lambda store: store.verdicts(VerdictQuery(cluster=CLUSTER, fingerprint="f")),
    "verdicts, uid, reason": lambda store: store.verdicts(
        VerdictQuery(cluster=CLUSTER, uid=5, reason="gpu_oom", cursor="MTcuMCA1")
    ),
    "verdicts, uid, fingerprint": lambda store: store.verdicts(
        VerdictQuery(cluster=CLUSTER, uid=5, fingerprint="f", cursor="MTcuMCA1")
    ),
    "verdict": lambda store: store.verdict(CLUSTER, 1),
    "verdict, without evidence": lambda store: store.verdict(CLUSTER, 2),
    "decision": lambda store: store.decision(CLUSTER, 1),
    "reasons": lambda store: store.reasons(ReasonsQuery(cluster=CLUSTER, since=1, until=4e9)),
    "reasons, account": lambda store: store.reasons(
        ReasonsQuery(cluster=CLUSTER, since=1, until=4e9, user="ada", account="vision")
    ),
    "reasons, uid": lambda store: store.reasons(ReasonsQuery(cluster=CLUSTER, since=1, until=4e9, uid=5)),
    "unjudged": lambda store: store.unjudged(CLUSTER, 5, 4e9),
    "judging": lambda store: judge_by_logs(store, T0),
    "undecided": lambda store: store.undecided(CLUSTER, 5, 4e9),
    "due": lambda store: store.due_resubmissions(CLUSTER, 5, 4e9),
    "resubmissions": lambda store: store.resubmissions(CLUSTER, 1),
    "resubmissions, uid": lambda store: store.resubmissions(CLUSTER, 1, uid=1000),
    "past": lambda store: store.past_of(CLUSTER, 1, 1),
    "put": lambda store: store.put_resubmissions([RESUBMISSION], T0, of=store.undecided(CLUSTER, 5, 4e9)),
    "clearances": lambda store: store.clearances(CLUSTER),
    "an event": lambda store: store.take([event("xid", "info", at=T0 + 7)], T0),
    "wanting": lambda store: store.wanting(CLUSTER, 5, 1.0),
    "nodes": lambda store: store.nodes(CLUSTER),
    "id of a task": lambda store: store.id_of(CLUSTER, 5, task=3),
    "purge": lambda store: store.purge(T0, 5, 5),
}


_SMALL = {
    "node",
    "node_check",
    "node_clearance",
    "CONSTANT",
    "anon_1",
    *(f"(subquery-{number})" for number in range(1, 5)),
}
_WAITING = {"unjudged", "judging", "undecided", "due", "put"}
"""What waits, users in turn: all of it is sorted, which an index finds (`profiler.store.turns`)."""
_SORTED = {"verdicts, job", "reasons", "reasons, account", "reasons, uid", *_WAITING}
"""Few rows, or a sum over all that is asked for."""
_ONE = {
    "verdict",
    "verdict, without evidence",
    "decision",
    "reasons",
    "reasons, account",
    "reasons, uid",
    "an event",
    "past",
    "clearances",
}
"""Not a page: a row by its key, or a subquery first."""


@pytest.mark.parametrize("name", LISTS)
def test_sqlite_reads_no_table_from_end_to_end(other_url: Callable[[str], str], name: str) -> None:
    """By the plans that SQLite makes: no scan of a large table, and nothing sorted but a handful."""
    store = open_store(other_url("sqlite"))
    store.migrate()
    store.take([started()], T0)
    store.take([found(), found(2, fingerprint="")], T0)
    store.enrich(
        [
            JobFacts(
                cluster=CLUSTER,
                job_id=n,
                state="FAILED",
                uid=1000,
                name="a",
                started=T0,
                final=True,
                restarts=0,
            )
            for n in (1, 2)
        ],
        T0,
    )
    judge_by_logs(store)
    store.take([found(serial=2)], T0)
    asked: list[tuple[str, Any]] = []
    for engine in (store.engines.reader, store.engines.writer):
        calls_of.listen(engine, "before_cursor_execute", lambda *call: asked.append((call[2], call[3])))
    LISTS[name](store)
    plans = []
    with store.reading("test") as connection:
        for statement, values in list(asked):
            if statement.startswith("SELECT") and "alembic_version" not in statement:
                rows = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, values)
                plans += [row[3] for row in rows]
    store.close()
    assert plans
    for step in plans:
        assert "TEMP B-TREE" not in step or name in _SORTED, plans
        assert "uq_job_attempt (cluster=?)" not in step, plans
        assert not step.endswith("USING PRIMARY KEY (cluster=?)") or step.split()[1] in _SMALL, plans
        counted = name == "purge" and "USING COVERING INDEX" in step  # how many rows there are, once a purge
        small = step.split()[1] in _SMALL or "ix_job_node_open" in step
        assert not step.startswith("SCAN") or small or counted, plans
    if name == "verdicts, job":
        assert "INTEGER PRIMARY KEY" in plans[1], plans
    if name not in ("verdicts, job", "nodes", "purge", "id of a task", "wanting", *_ONE):
        searched = [step for step in plans if not step.startswith(("CO-ROUTINE", "USE", "SCAN"))]
        assert "COVERING INDEX" in searched[0], plans
