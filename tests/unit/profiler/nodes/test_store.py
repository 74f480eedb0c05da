"""What a day in the store says of the nodes, on both databases; and that no table is read through for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event as calls_of

from profiler.bad_nodes import day_of
from profiler.store import Store
from profiler.store.node_votes import NodeDay, node_day
from prolog_epilog.failures.judge import HARDWARE_XIDS
from tests.unit.profiler.nodes.world import NOW, XID, Run, told
from tests.unit.profiler.store.empty import empty_store
from tests.unit.profiler.store.records import CLUSTER, event

TODAY = day_of(NOW)


def day(store: Store, number: int = TODAY, cluster: str = CLUSTER) -> NodeDay:
    return node_day(store, cluster, number, HARDWARE_XIDS)


def votes(found: NodeDay) -> set[tuple[str, str, str, int | None, str]]:
    return {(one.node, one.reason, one.source, one.uid, one.workload) for one in found.votes}


@pytest.mark.slow
def test_an_empty_store_says_nothing(store: Store) -> None:
    assert day(store) == NodeDay((), {}, {})


def test_what_failed_where_by_whose_word(store: Store) -> None:
    told(
        store,
        [
            Run(("n1",), 1000, "seed-1", log="cuda_init_failed"),
            Run(("n1",), 1001, "seed-2", xid=True),
            Run(("n2", "n3"), 1002, "big", log="nccl_timeout", named="n3"),
            Run(("n2", "n3"), 1003, "liar", log="cuda_init_failed", named="n9"),
            Run(("n4",), 1004, "gone", state="NODE_FAIL"),
            Run(("n5",), 1005, "mine", log="import_error"),
            Run(("n5",), 1005, "well"),
            Run(("n1",), 1006, "before", log="cuda_init_failed", days_ago=1),
        ],
        [event("stale_mounts", "error", "n6", NOW - 5), event("disk_space", "error", "n6", NOW - 4)],
    )
    found = day(store)
    assert votes(found) == {
        # an Xid came a second before the end of another's job there, on a GPU that both are said to have had
        ("n1", "gpu_hardware", "root", 1000, "seed-#"),
        ("n1", "gpu_hardware", "root", 1001, "seed-#"),
        ("n1", "gpu_hardware", "root", None, ""),
        ("n3", "nccl_timeout", "user", 1002, "big"),
        ("n4", "node_failure", "root", 1004, "gone"),
        ("n6", "filesystem_error", "root", None, ""),
    }
    assert found.ran == {"n1": 2, "n2": 2, "n3": 2, "n4": 1, "n5": 2}
    assert found.partitions == {"gpu": frozenset({"n1", "n2", "n3", "n4", "n5"})}
    assert votes(day(store, TODAY - 1)) == {("n1", "cuda_init_failed", "user", 1006, "before")}
    assert day(store, cluster="other") == NodeDay((), {}, {})


@pytest.mark.slow
def test_of_one_user_only_so_much_is_read_and_counted(store: Store) -> None:
    told(store, [Run(("n1",), 666, f"w{chr(97 + i % 26)}{i}", log="cuda_init_failed") for i in range(300)])
    told(store, [Run(("n1",), 1000, "honest", log="cuda_init_failed", days_ago=0.2)])
    found = day(store)
    assert sum(one.uid == 666 for one in found.votes) == 100 and found.ran == {"n1": 4}
    assert sum(one.uid == 1000 for one in found.votes) == 1


def test_no_table_is_read_through(tmp_path: Path) -> None:
    store = empty_store(f"sqlite:///{tmp_path / 'store.db'}")
    told(store, [Run(log="gpu_hardware", xid=True)], [event("xid", "error", "n1", NOW, detail=XID)])
    asked: list[tuple[str, Any]] = []
    calls_of.listen(
        store.engines.reader, "before_cursor_execute", lambda *call: asked.append((call[2], call[3]))
    )
    day(store)
    plans = []
    with store.reading("test") as connection:
        for statement, values in list(asked):
            if statement.startswith("SELECT") and "alembic_version" not in statement:
                rows = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, values)
                plans += [row[3] for row in rows]
    store.close()
    assert len(plans) > 10
    assert not [step for step in plans if step.startswith("SCAN") or "TEMP B-TREE" in step], plans
    for index in ("ix_verdict_reason", "ix_job_ended"):
        assert any(f"COVERING INDEX {index}" in step for step in plans), plans
    assert any("ix_node_event_at" in step for step in plans), plans
