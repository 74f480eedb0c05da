"""The ledger of the mixed day (benchmarks.mixed_day): what it reads out of stamps, and that it sees what is wrong."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.mixed_kinds import DAY, Attempt, cells, differences, read

BY_NAME = {kind.name: kind for kind in DAY}


def attempt(name: str, job: int, outcome: str = "completed", reason: str = "") -> Attempt:
    kind = BY_NAME[name]
    return Attempt(kind, job, outcome, reason, "ada", 7.5, kind.gpus * kind.load / 100 * 6, 8)


def test_a_day_is_mixed() -> None:
    assert sum(kind.times for kind in DAY) >= 150
    assert {kind.outcome for kind in DAY} == {"completed", "cancelled", "timeout", "preempted", "failed", ""}
    assert len({kind.reason for kind in DAY if kind.reason}) >= 10
    assert {0, 1, 2, 4, 8, 16} == {kind.gpus for kind in DAY}


def test_what_jobs_stamped_is_read(tmp_path: Path) -> None:
    stamps = {
        "7-7-0-": "began 100.0\nloaded 101.0 120.0\nended 106.0\n",  # killed under load
        "7-7-1-": "began 130.0\nloaded 131.0 120.0\nunloaded 136.0 120.0\nended 136.5\n",
        "9-9-0-": "began 10.0\nloaded 11.0 520.0\nloaded 12.0 520.0\n"
        "unloaded 16.0 520.0\nunloaded 17.0 520.0\nended 18.0\n",
        "20-23-0-3": "began 1.0\nended 3.0\n",
    }
    for name, text in stamps.items():
        (tmp_path / name).write_text(text)
    jobs = {7: (BY_NAME["again"], "ada"), 9: (BY_NAME["wide"], "bob"), 20: (BY_NAME["sweep"], "ada")}
    held = {(7, 0): 6.0, (7, 1): 7.0, (9, 0): 8.0, (23, 0): 2.0}
    found = {(one.job, one.outcome): one for one in read(tmp_path, jobs, held)}
    assert found[7, "preempted"].busy_s == pytest.approx(1.2 * 5) and found[7, "preempted"].held_s == 6
    assert found[7, "completed"].run_s == pytest.approx(6.5)
    assert found[9, "completed"].busy_s == pytest.approx(5.2 * 10) and found[9, "completed"].user == "bob"
    assert found[23, "failed"].reason == "semantic_error", "a task that is to fail"


def test_every_wrong_cell_is_told() -> None:
    ledger = [
        attempt("one", 1),
        attempt("idle", 2),
        attempt("cpu", 3),
        attempt("gpu-oom", 4, "failed", "gpu_oom"),
    ]
    wanted = cells(ledger)
    tables: dict[str, dict[str, list[dict[str, object]]]] = {}
    for table, part in pd.DataFrame([(*cell, *span) for cell, span in wanted.items()]).groupby(0):
        rows = [
            {
                "first": row,
                **{name: (low + high) / 2 for name, low, high in some[[2, 3, 4]].itertuples(index=False)},
            }
            for row, some in part.groupby(1)
        ]
        tables[str(table)] = {"rows": rows}
    assert differences(tables, ledger) == []
    assert len(differences(tables, ledger[:-1])) > 10, "an attempt more than was run"
    for rows in (table["rows"] for table in tables.values()):
        for row in rows:
            for name in row.keys() - {"first"}:
                right, wrong = row[name], 1e6
                for row[name] in (wrong, None):
                    assert len(differences(tables, ledger)) == 1, (row, name)
                row[name] = right
    tables["failures"]["rows"].append({"first": "gpu_hardware", "attempts": 1})
    assert differences(tables, ledger) == ["failures / gpu_hardware: nothing of the kind was run"]
