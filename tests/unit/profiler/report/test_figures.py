"""Thirty attempts made up by hand, and each cell of an audit of them reckoned by hand."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan, prod
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import insert

from profiler.report.figures import Table, audit, by, utilisation_over_time
from profiler.report.frames import jobs
from profiler.store.schema import WAITED, job, verdict
from tests.unit.profiler.store.empty import empty_store

MONDAY = 1_736_121_600.0
"""2025-01-06, UTC."""
HOUR = 3600.0
DAYS = 48 * HOUR
NO = None

# numbers, user, GPUs, nodes, state, reason, first and last hour (of the two days from MONDAY on), minutes waited
# ("+": as many as its number), utilisation, GPUs never used
HISTORY: tuple[tuple[Any, ...], ...] = (
    (range(1, 11), "ada", 1, 1, "COMPLETED", NO, 0, 1, "+", 50, 0),
    (range(11, 15), "ben", 4, 1, "COMPLETED", NO, 2, 4, 20, 25, 1),
    (range(15, 17), "ben", 4, 2, "CANCELLED", NO, 2, 3, 5, 75, 0),
    ((17,), "cy", 8, 1, "COMPLETED", NO, -2, 2, 120, 100, 0),
    ((18,), "cy", 8, 2, "FAILED", "gpu_oom", 10, 10.5, 60, 10, 0),
    ((19,), "ada", 1, 1, "FAILED", "import_error", 5, 5.01, 1, 0, 1),
    ((20,), "ada", 1, 1, "FAILED", "import_error", 5, 5.02, 1, 0, 1),
    ((21,), "ada", 1, 1, "FAILED", "import_error", 5, 5.1, 1, 0, 1),
    ((22,), "ben", 4, 1, "FAILED", "gpu_oom", 20, 23, NO, NO, NO),
    ((23,), "cy", 16, 2, "TIMEOUT", "time_limit", 40, 50, 30, 50, 0),
    ((24,), "cy", 1, 1, "PREEMPTED", "preempted", 24, 26, 2, 20, 0),
    ((25,), "", 1, 1, "FAILED", NO, 30, 31, 3, 40, 0),
    ((26,), "ada", 2, 1, "RUNNING", NO, 44, 47, 15, 60, 1),
    ((27,), "ben", 2, 2, NO, NO, 32, 34, 4, 30, 0),
    ((28,), "ada", 0, 1, "COMPLETED", NO, 0, 10, 7, NO, NO),
    ((29,), "cy", NO, 1, "COMPLETED", NO, 0, 1, 8, NO, NO),
    ((30,), "ada", 1, 1, "COMPLETED", NO, 12, 14, 12, 0, 1),
)  # fmt: skip
# Of some attempts: seconds before they could start, and seconds in the queue that were seen to be for this or that
CAUSES: dict[int, tuple[int | None, dict[str, int]]] = {
    1: (NO, {"other": 30}),
    11: (NO, {"resources": 1200}),
    17: (1800, {"priority": 3600, "resources": 1800, "user": 600}),
    18: (NO, {"locality": 3000}),
    23: (NO, {"limits": 1800}),
    28: (NO, {}),
}
ACCOUNTS = {"ada": "vision", "ben": "vision", "cy": "speech", "": ""}


def rows() -> Iterator[tuple[dict[str, Any], str | None]]:
    for numbers, user, gpus, nodes, state, reason, first, last, waited, use, idle in HISTORY:
        for number in numbers:
            start, end = MONDAY + first * HOUR, MONDAY + last * HOUR
            wait = number if waited == "+" else waited
            held, causes = CAUSES.get(number, (NO, None))
            told = (
                {}
                if causes is None
                else dict.fromkeys(WAITED, 0) | {f"waited_{k}": v for k, v in causes.items()}
            )
            if held is not None:
                told |= {"submitted": start - wait * 60 - held, "eligible": start - wait * 60}
            yield {
                "pk": number, "cluster": "lab", "job_id": number, "restarts": 0, "sort_at": start, "touched": end,
                "user": user, "account": ACCOUNTS[user], "partition": "gpu", "state": state, "node_count": nodes,
                "gpus": gpus, "submitted": None if wait is None else start - wait * 60, "started": start,
                "ended": None if state == "RUNNING" else end, "utilisation_mean": use, "gpus_idle": idle,
                "gpus_known": 0 if use is None and idle is None else gpus or 0,
            } | told, reason  # fmt: skip


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    store = empty_store(f"sqlite:///{Path(tmp_path_factory.mktemp('hand')) / 'store.db'}")
    with store.writing("The history cannot be written.") as connection:
        for row, reason in rows():
            connection.execute(insert(job).values(row))
            if reason is not None:
                why = {
                    "job": row["pk"],
                    "cluster": "lab",
                    "job_id": row["pk"],
                    "at": row["ended"],
                    "reason": reason,
                }
                connection.execute(insert(verdict).values(tier="explicit", source="user", body="{}", **why))
    found = jobs(store, cluster="lab", since=MONDAY, until=MONDAY + DAYS)
    store.close()
    return found


@pytest.fixture(scope="module")
def tables(frame: pd.DataFrame) -> dict[str, Table]:
    return {table.name: table for table in audit(frame, since=MONDAY, until=MONDAY + DAYS)}


def number(cell: str) -> float:
    """A number as it is written by hand: `12`, `100 * 105 / 213.13`; `-` is not known."""
    if cell == "-":
        return nan
    over, _, under = cell.partition("/")
    return prod(map(float, over.split("*"))) / float(under or 1)


def check(table: Table, expected: str) -> None:
    """All cells, as `column | column...` lines; "-" is not known."""
    lines = [[cell.strip() for cell in line.split("|")] for line in expected.strip().splitlines()]
    assert list(table.rows.columns) == lines[0]
    assert len(table.rows) == len(lines) - 1, table.rows.to_string()
    for row, line in zip(table.rows.itertuples(index=False), lines[1:], strict=True):
        for column, found, cell in zip(lines[0], row, line, strict=True):
            where = f"{table.name}, {line[0]}, {column}: {found}"
            if isinstance(found, str):
                assert found == cell, where
            else:
                assert float(found) == pytest.approx(number(cell), rel=1e-9, nan_ok=True), where


def test_totals(tables: dict[str, Table]) -> None:
    check(tables["totals"], """
        figure | value | unit | attempts | unknown
        attempts | 30 | | 30 | 0
        jobs | 30 | | 30 | 0
        users | 3 | | 30 | 1
        attempts without a GPU | 1 | | 30 | 1
        GPU-hours | 225.13 | h | 29 | 1
        utilisation | 100 * 105 / 213.13 | % | 29 | 2
        GPU-hours of GPUs never used | 13.13 | h | 29 | 2
        GPU-hours of failed attempts | 147.13 | h | 29 | 0
        GPU-hours wasted, by both | 160.13 | h | 29 | 1
        share never used | 1313 / 213.13 | % | 29 | 2
        share of failed attempts | 14713 / 225.13 | % | 29 | 0
        share wasted, by both | 16013 / 225.13 | % | 29 | 1
        median wait for GPUs | 360 | s | 29 | 1
    """)  # fmt: skip
    assert (tables["totals"].attempts, tables["totals"].unknown) == (30, 0)


def test_outcomes(tables: dict[str, Table]) -> None:
    check(tables["outcomes"], """
        outcome | attempts_percent | gpu_hours | gpu_hours_percent | attempts | unknown
        completed | 60 | 60 | 6000 / 225.13 | 18 | 1
        cancelled | 100 * 2 / 30 | 8 | 800 / 225.13 | 2 | 0
        timeout | 100 / 30 | 128 | 12800 / 225.13 | 1 | 0
        preempted | 100 / 30 | 2 | 200 / 225.13 | 1 | 0
        failed | 20 | 17.13 | 1713 / 225.13 | 6 | 0
        running | 100 / 30 | 6 | 600 / 225.13 | 1 | 0
        unknown | 100 / 30 | 4 | 400 / 225.13 | 1 | 0
    """)  # fmt: skip
    assert tables["outcomes"].unknown == 1


def test_utilisation_by_size_and_status(tables: dict[str, Table]) -> None:
    columns = [
        f"{who}_{what}"
        for who in ("passed", "killed", "unsuccessful", "all")
        for what in ("percent", "attempts")
    ]
    check(tables["utilisation"], f"""
        gpus | {' | '.join(columns)} | attempts | unknown
        1 | 500 / 12 | 11 | - | 0 | 80 / 3.13 | 5 | 580 / 15.13 | 16 | 16 | 0
        2-4 | 25 | 4 | 75 | 2 | - | 0 | 37.6 | 8 | 9 | 1
        5-8 | 100 | 1 | - | 0 | 10 | 1 | 82 | 2 | 2 | 0
        9-16 | - | 0 | - | 0 | 50 | 1 | 50 | 1 | 1 | 0
        n/a | - | 0 | - | 0 | - | 0 | - | 0 | 1 | 1
        all | 2900 / 60 | 16 | 75 | 2 | 6520 / 135.13 | 7 | 10500 / 213.13 | 27 | 29 | 2
    """)  # fmt: skip
    assert (tables["utilisation"].attempts, tables["utilisation"].unknown) == (29, 2)


def test_failures_by_reason(tables: dict[str, Table]) -> None:
    spans = "run_s_p50 | run_s_p90 | run_s_p95 | run_s_percent"
    sizes = "gpus_1 | gpus_2_4 | gpus_over_4"
    check(tables["failures"], f"""
        reason | jobs | users | {spans} | {sizes} | gpu_hours | gpu_hours_percent | attempts | unknown
        time_limit | 1 | 1 | 36000 | 36000 | 36000 | 3600000 / 59868 | 0 | 0 | 1 | 128 | 12800 / 147.13 | 1 | 0
        gpu_oom | 2 | 2 | 1800 | 1800 | 1800 | 1260000 / 59868 | 0 | 1 | 1 | 16 | 1600 / 147.13 | 2 | 0
        preempted | 1 | 1 | 7200 | 7200 | 7200 | 720000 / 59868 | 1 | 0 | 0 | 2 | 200 / 147.13 | 1 | 0
        n/a | 1 | 0 | 3600 | 3600 | 3600 | 360000 / 59868 | 1 | 0 | 0 | 1 | 100 / 147.13 | 1 | 0
        import_error | 3 | 1 | 72 | 72 | 72 | 46800 / 59868 | 3 | 0 | 0 | 0.13 | 13 / 147.13 | 3 | 0
    """)  # fmt: skip
    assert (tables["failures"].attempts, tables["failures"].unknown) == (8, 1)


def test_wasted_by_reason(tables: dict[str, Table]) -> None:
    check(tables["wasted"], """
        reason | wasted_hours | wasted_hours_percent | attempts | unknown
        time_limit | 128 | 12800 / 160.13 | 1 | 0
        gpu_oom | 16 | 1600 / 160.13 | 2 | 0
        (GPUs never used) | 13 | 1300 / 160.13 | 7 | 1
        preempted | 2 | 200 / 160.13 | 1 | 0
        n/a | 1 | 100 / 160.13 | 1 | 0
        import_error | 0.13 | 13 / 160.13 | 3 | 0
    """)  # fmt: skip


def test_wasted_by_user(tables: dict[str, Table]) -> None:
    check(tables["wasted_by_user"], """
        user | wasted_hours | failed_hours | idle_hours | gpu_hours | wasted_percent | attempts | unknown
        cy | 134 | 134 | 0 | 150 | 13400 / 150 | 5 | 1
        ben | 20 | 12 | 8 | 56 | 2000 / 56 | 8 | 0
        ada | 5.13 | 0.13 | 5.13 | 18.13 | 513 / 18.13 | 15 | 0
        n/a | 1 | 1 | 0 | 1 | 100 | 1 | 0
    """)  # fmt: skip


def test_queueing_delay_by_size(tables: dict[str, Table]) -> None:
    check(tables["waiting"], """
        gpus | wait_s_p50 | wait_s_p90 | wait_s_p95 | wait_s_mean | over_10_min_percent | attempts | unknown
        0 | 420 | 420 | 420 | 420 | 0 | 1 | 0
        1 | 180 | 540 | 600 | 281.25 | 12.5 | 16 | 0
        2-4 | 900 | 1200 | 1200 | 817.5 | 62.5 | 9 | 1
        5-8 | 3600 | 3600 | 3600 | 5400 | 100 | 2 | 0
        9-16 | 1800 | 1800 | 1800 | 1800 | 100 | 1 | 0
        n/a | 480 | 480 | 480 | 480 | 0 | 1 | 0
        all | 420 | 1200 | 1800 | 60 * 409 / 29 | 1000 / 29 | 30 | 1
    """)  # fmt: skip


def test_waiting_by_cause(tables: dict[str, Table]) -> None:
    check(tables["waiting_by_cause"], """
        cause | wait_hours | wait_hours_percent | waited | attempts | unknown
        priority | 1 | 100 * 3600 / 26340 | 1 | 30 | 24
        resources | 3000 / 3600 | 100 * 3000 / 26340 | 2 | 30 | 24
        locality | 3000 / 3600 | 100 * 3000 / 26340 | 1 | 30 | 24
        limits | 0.5 | 100 * 1800 / 26340 | 1 | 30 | 24
        user | 2400 / 3600 | 100 * 2400 / 26340 | 1 | 30 | 29
        other | 30 / 3600 | 100 * 30 / 26340 | 1 | 30 | 24
        n/a | 12510 / 3600 | 100 * 12510 / 26340 | 27 | 30 | 1
    """)  # fmt: skip
    assert (tables["waiting_by_cause"].attempts, tables["waiting_by_cause"].unknown) == (30, 24)


def test_waiting_by_cause_and_size(tables: dict[str, Table]) -> None:
    causes = [
        *(f"{cause}_percent" for cause in ("priority", "resources", "locality", "limits", "user", "other"))
    ]
    check(tables["waiting_by_cause_and_size"], f"""
        gpus | {' | '.join(causes)} | not_known_percent | wait_hours | attempts | unknown
        0 | 0 | 0 | 0 | 0 | 0 | 0 | 100 | 420 / 3600 | 1 | 0
        1 | 0 | 0 | 0 | 0 | 0 | 3000 / 4500 | 447000 / 4500 | 1.25 | 16 | 0
        2-4 | 0 | 120000 / 6540 | 0 | 0 | 0 | 0 | 534000 / 6540 | 6540 / 3600 | 9 | 1
        5-8 | 360000 / 12600 | 180000 / 12600 | 300000 / 12600 | 0 | 240000 / 12600 | 0 | 180000 / 12600 | 3.5 | 2 | 0
        9-16 | 0 | 0 | 0 | 100 | 0 | 0 | 0 | 0.5 | 1 | 0
        n/a | 0 | 0 | 0 | 0 | 0 | 0 | 100 | 480 / 3600 | 1 | 0
        all | 360000 / 26340 | 300000 / 26340 | 300000 / 26340 | 180000 / 26340 | 240000 / 26340 | 3000 / 26340 | 1251000 / 26340 | 26340 / 3600 | 30 | 1
    """)  # fmt: skip  # noqa: E501


def test_locality(tables: dict[str, Table]) -> None:
    check(tables["locality"], """
        gpus | nodes | nodes_mean | utilisation_percent | utilisation_p50_percent | gpu_hours | attempts | unknown
        2-4 | fewest | 1 | 1160 / 38 | 25 | 50 | 6 | 1
        2-4 | up to twice | 2 | 60 | 75 | 12 | 3 | 0
        5-8 | fewest | 1 | 100 | 100 | 16 | 1 | 0
        5-8 | up to twice | 2 | 10 | 10 | 4 | 1 | 0
        9-16 | fewest | 2 | 50 | 50 | 128 | 1 | 0
    """)  # fmt: skip


def test_utilisation_as_a_distribution(tables: dict[str, Table]) -> None:
    check(tables["utilisation_spread"], """
        utilisation | attempts_percent | gpu_hours | gpu_hours_percent | attempts | unknown
        0 | 400 / 27 | 2.13 | 213 / 213.13 | 4 | 0
        0-10 | 100 / 27 | 4 | 400 / 213.13 | 1 | 0
        10-20 | 100 / 27 | 2 | 200 / 213.13 | 1 | 0
        20-30 | 500 / 27 | 36 | 3600 / 213.13 | 5 | 0
        30-40 | 100 / 27 | 1 | 100 / 213.13 | 1 | 0
        40-50 | 1100 / 27 | 138 | 13800 / 213.13 | 11 | 0
        50-60 | 100 / 27 | 6 | 600 / 213.13 | 1 | 0
        60-70 | 0 | 0 | 0 | 0 | 0
        70-80 | 200 / 27 | 8 | 800 / 213.13 | 2 | 0
        80-90 | 0 | 0 | 0 | 0 | 0
        90-100 | 100 / 27 | 16 | 1600 / 213.13 | 1 | 0
        n/a | - | 12 | - | 2 | 1
    """)  # fmt: skip


def test_utilisation_over_time(tables: dict[str, Table], frame: pd.DataFrame) -> None:
    table = tables["utilisation_over_time"]
    assert list(table.rows.pop("from")) == [
        pd.Timestamp("2025-01-06", tz="UTC"),
        pd.Timestamp("2025-01-07", tz="UTC"),
    ]
    check(table, """
        gpu_hours | gpus_mean | utilisation_percent | attempts | unknown
        84.13 | 84.13 / 24 | 3540 / 72.13 | 23 | 1
        141 | 141 / 24 | 6960 / 141 | 5 | 0
    """)  # fmt: skip
    assert (table.attempts, table.unknown) == (29, 2)
    weeks = utilisation_over_time(frame, since=MONDAY - 90 * 86400, until=MONDAY + DAYS).rows
    assert set(weeks["from"].dt.day_name()[1:]) == {"Monday"} and len(weeks) == 14
    # Of the one that began before the days that were asked for, all is there now
    assert weeks.gpu_hours.sum() == pytest.approx(225.13 + 16)


def test_by_account(frame: pd.DataFrame) -> None:
    table = by(frame, "account")
    shares = (
        "gpu_hours | gpu_hours_percent | utilisation_percent | idle_hours | failed_hours | failed_percent"
    )
    check(table, f"""
        account | jobs | users | {shares} | wait_s_p50 | attempts | unknown
        speech | 5 | 1 | 150 | 15000 / 225.13 | 8080 / 150 | 0 | 134 | 60 | 1800 | 5 | 1
        vision | 24 | 2 | 74.13 | 7413 / 225.13 | 2380 / 62.13 | 13.13 | 12.13 | 100 / 6 | 360 | 24 | 1
        n/a | 1 | 0 | 1 | 100 / 225.13 | 40 | 0 | 1 | 100 | 180 | 1 | 0
    """)  # fmt: skip
    assert (table.attempts, table.unknown) == (30, 2)


def test_every_split_adds_up_to_the_whole(tables: dict[str, Table]) -> None:
    for name in (
        "outcomes",
        "by_user",
        "by_account",
        "by_partition",
        "by_gpu_type",
        "locality",
        "utilisation_over_time",
    ):
        rows = tables[name].rows
        whole = {"locality": 210.0}.get(name, 225.13)
        assert rows.gpu_hours.sum() == pytest.approx(whole), name
    assert tables["by_reason"].rows.gpu_hours.sum() == pytest.approx(147.13)


def test_nothing_is_no_error(frame: pd.DataFrame) -> None:
    for table in audit(frame.iloc[:0], since=MONDAY, until=MONDAY + DAYS):
        assert table.attempts == 0 and table.unknown == 0


def test_gpus_that_nobody_saw_are_neither_busy_nor_idle(frame: pd.DataFrame) -> None:
    whole = frame[frame.job == 17].copy()  # 8 GPUs, all busy
    half = whole.assign(gpus_known=4, gpus_idle=4, utilisation_mean=0.0)
    tables = {table.name: table for table in audit(half, since=MONDAY, until=MONDAY + 100 * HOUR)}
    totals = tables["totals"].rows.set_index("figure")
    print(totals)
    assert totals.loc["utilisation", "value"] == 0
    wasted = totals[totals.index.str.contains("idle|wasted")]
    assert wasted.unknown.tolist() and (wasted.unknown == 1).all()


def test_what_is_wasted_is_a_share_of_what_is_known(frame: pd.DataFrame) -> None:
    some = frame[frame.job.isin([17, 27, 30])].copy()  # 16, 4 and 2 GPU-hours; those of 30 were never used
    some.loc[some.job == 30, "user"] = "cy"
    some.loc[some.job == 17, "gpus_known"] = 4
    tables = {table.name: table.rows for table in audit(some, since=MONDAY, until=MONDAY + DAYS)}
    totals = tables["totals"].set_index("figure").value
    assert totals["share wasted, by both"] == pytest.approx(100 * 2 / 6) == totals["share never used"]
    users = tables["wasted_by_user"].set_index("user")
    assert users.wasted_percent.to_dict() == {"cy": 100, "ben": 0} and users.unknown["cy"] == 1
