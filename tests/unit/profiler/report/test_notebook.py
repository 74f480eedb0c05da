"""The example notebook runs as it is, its figures are those of the audit, and its page tells each column rightly."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import insert

from profiler.report import figures
from profiler.report.frames import COLUMNS, jobs
from profiler.store import open_store
from profiler.store.schema import job
from tests.paths import REPOSITORY
from tests.unit.profiler.report.history import CLUSTER, UNTIL, fill
from tests.unit.profiler.store.empty import empty_store

NOW = UNTIL + 3 * 86400
"""When the notebook is run: days after the last start, when what ran then has run on."""
ROOT = REPOSITORY
NOTEBOOK: dict[str, Any] = json.loads((ROOT / "examples/audit.ipynb").read_text())
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
TOLD = """
import json
whole = {"by_size": by_size, "reasons": reasons, "waits": waits, "idle": idle.to_frame()}
print("RESULTS " + json.dumps({name: one.to_json(orient="index") for name, one in whole.items()}))
"""
KINDS = {"category": "text", "float64": "real", "int64": "whole", "int32": "whole", "bool": "yes/no"}
NULLABLE = {"Int32": "whole", "Int64": "whole"}


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a made-up history, in the end of which a job runs on that was the last one to start."""
    url = f"sqlite:///{tmp_path_factory.mktemp('notebook') / 'store.db'}"
    store = empty_store(url)
    fill(store, 3000)
    late = {"cluster": CLUSTER, "job_id": 900_001, "restarts": 0, "sort_at": UNTIL, "touched": NOW - 3600}
    late |= {"user": "late", "state": "COMPLETED", "gpus": 8, "started": UNTIL, "ended": NOW - 3600}
    with store.writing("The history cannot be written.") as connection:
        connection.execute(insert(job).values(late))
    store.close()
    return url


@pytest.fixture(scope="module")
def frame(store_url: str) -> pd.DataFrame:
    """Of the 90 days up to the notebook's moment."""
    store = open_store(store_url, read_only=True)
    return jobs(store, cluster=CLUSTER, since=NOW - 90 * 86400, until=NOW)


@pytest.fixture(scope="module")
def output(store_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What all cells print, each its last expression too, as a notebook shows it."""
    folder = tmp_path_factory.mktemp("run")
    done = ran(store_url, CLUSTER, folder)
    assert done.returncode == 0, done.stderr
    assert not [*folder.iterdir()], "it writes nothing"
    return done.stdout


def ran(store_url: str, cluster: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """All cells, one after the other, at NOW."""
    program = f"import time\ntime.time = lambda: {NOW}\n" + "\n".join(map(shown, CODE)) + TOLD
    env = {**os.environ, "GSUB_STORE": store_url, "GSUB_CLUSTER": cluster, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env=env, cwd=folder, capture_output=True, text=True
    )


def shown(source: str) -> str:
    """A cell that prints its last expression."""
    tree = ast.parse(source)
    if isinstance(tree.body[-1], ast.Expr):
        last = ast.unparse(tree.body.pop())
        return f"{ast.unparse(tree)}\nprint({last})"
    return source


def test_it_is_a_notebook_without_outputs() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"]) > 8
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None


@pytest.mark.slow
def test_its_figures_are_those_of_the_audit(output: str, frame: pd.DataFrame) -> None:
    assert output.startswith(f"{len(frame):,} attempts of {frame.user.nunique()} users\n")
    told = {name: json.loads(text) for name, text in json.loads(output.split("RESULTS ")[1]).items()}
    sizes = figures.utilisation(frame).rows.set_index("gpus").drop("all")
    hours = sum(row["gpu_hours"] for row in told["by_size"].values())
    late = frame[frame.user == "late"].gpu_hours.item()
    assert late == 8 * 71 and hours == pytest.approx(frame.gpu_hours.sum()), (
        "also of what ran after the last start"
    )
    assert {*told["by_size"]} == {*sizes.index} >= {"1", "2-4", "5-8"}
    for size, row in told["by_size"].items():
        assert (row["attempts"], row["not_seen"]) == (sizes.attempts[size], sizes.unknown[size])
        assert row["utilisation"] == pytest.approx(sizes.all_percent[size])
    reasons = figures.failures(frame).rows.set_index("reason").drop("n/a", errors="ignore")
    assert {*told["reasons"]} == {*reasons.index}
    for reason, row in told["reasons"].items():
        assert (row["attempts"], row["users"]) == (reasons.attempts[reason], reasons.users[reason])
        assert row["gpu_hours"] == pytest.approx(reasons.gpu_hours[reason])
    wasted = figures.wasted(frame).rows.set_index("reason").wasted_hours
    never = sum(row["unused_hours"] for row in told["idle"].values())
    assert never == pytest.approx(wasted["(GPUs never used)"])
    assert any(value for row in told["waits"].values() for value in row.values())


@pytest.mark.slow
def test_a_cluster_without_jobs_is_a_sentence(store_url: str, tmp_path: Path) -> None:
    done = ran(store_url, "other", tmp_path)
    said = "The store has no jobs of the cluster other: set GSUB_CLUSTER, or GSUB_STORE.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_the_page_tells_every_column(frame: pd.DataFrame) -> None:
    text = (ROOT / "docs/notebook.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\w/ ]+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    assert [name for name, *_ in rows] == [*COLUMNS]
    for name, kind, says, unknown in rows:
        assert says == COLUMNS[name]
        dtype = str(frame[name].dtype)
        assert kind == ("time" if dtype.startswith("datetime64") else {**KINDS, **NULLABLE}[dtype]), name
        never = (
            np.issubdtype(dtype, np.integer)
            if dtype in KINDS and dtype.startswith("int")
            else dtype == "bool"
        )
        assert (unknown == "always known") == never or name == "outcome", name
