"""`gsub admin alerts --dry-run`: which jobs of a store meet which rule, and what would follow."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gsub.cli import main
from profiler.records import GpuUse
from profiler.store import JobFacts, Store
from profiler.store.use import in_use
from tests.unit.profiler.store import records
from tests.unit.profiler.store.conftest import new_url, postgres, store, url
from tests.unit.profiler.store.empty import empty_store

__all__ = ["new_url", "postgres", "store", "url"]
NASTY = "bob\x1b[31m\u202e"
Run = Callable[..., tuple[int, str, str]]


def use(
    number: int, hours: float, *, busy: float = 0.0, stuck: float | None = None, spare: bool = False
) -> GpuUse:
    return GpuUse(
        records.gpu(number), samples=1000, seconds=hours * 3600, utilisation_mean=busy, power_limit_w=400.0,
        idle_at_start_seconds=0.0 if busy else hours * 3600, idle_at_end_seconds=0.0, stuck_seconds=stuck,
        stuck_at_end_seconds=stuck, memory_peak_bytes=1 if spare else None,
    )  # fmt: skip


def tell(
    store: Store, now: float, job: int, hours: float, *gpus: GpuUse, old: float = 30.0, **more: Any
) -> None:
    """A job on n<its id> that started so many hours ago, and whose last sample is `old` seconds old."""
    begin, node = now - hours * 3600, f"n{job}"
    values = {"user": "ada", "account": "vision", "gpus": tuple(one.gpu for one in gpus)} | more
    store.take([records.started(job, node, at=begin, **values)], now)
    told = records.usage(job, node, at=now - old, since=begin, until=now - old, gpus=gpus, unseen_seconds=0.0)
    store.take([told], now)
    facts = JobFacts(
        cluster=records.CLUSTER, job_id=job, restarts=0, user=values["user"], account=values["account"], uid=1000,
        partition="gpu", state="RUNNING", started=begin, time_limit=86400.0, nodes=node, gpus=len(gpus), cpus=8,
    )  # fmt: skip
    store.enrich([facts], now)


def fill(store: Store, now: float) -> None:
    tell(store, now, 1, 3.0, use(0, 3), use(1, 3))
    tell(store, now, 2, 3.0, use(0, 3, busy=90.0), use(1, 3, busy=80.0))
    tell(store, now, 3, 3.0, use(0, 3), old=900.0)
    tell(store, now, 4, 3.0, use(0, 3), user="exempted")
    tell(store, now, 5, 3.0, use(0, 3), user=NASTY)
    tell(store, now, 6, 3.0, *(use(number, 3, busy=99.0, stuck=5400.0) for number in (0, 1)))
    tell(store, now, 7, 3.0, use(0, 3), use(1, 3))
    store.take([records.ended(7, "n7", at=now - 600)], now)
    tell(store, now, 8, 30.0, use(0, 30))
    store.take([records.ended(8, "n8", at=now - 2 * 86400)], now)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    made = empty_store(f"sqlite:///{path}")
    fill(made, time.time())
    made.close()
    return path


@pytest.fixture
def run(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    site = tmp_path / "site.toml"
    site.write_text(
        f'cluster = "lab"\nstore.url = "sqlite:///{file}"\npolicy.mode = "enforce"\n'
        '[alerts]\nmail = true\nexempt.users = ["exempted"]\n[alerts.rules.idle_from_start]\ndo = "cancel"\n'
    )
    monkeypatch.setenv("GSUB_SITE", str(site))

    def run(*words: str, more: str = "") -> tuple[int, str, str]:
        with site.open("a") as handle:
            handle.write(more)
        code = main(["admin", "alerts", *words])
        return (code, *capfd.readouterr())

    return run


def test_it_says_who_meets_what_and_what_would_follow(run: Run) -> None:
    code, out, _ = run("--dry-run", "--json")
    assert code == 0
    said = json.loads(out)
    assert said["jobs"] == {"running": 6, "ended": 1}
    # the samples are 15 min old when they are written, and some seconds older when a slow machine reads them
    found = {
        (one["job_id"], one["rule"]): re.sub(r"(15 min) \d+ s", r"\1", one["would"]) for one in said["alerts"]
    }
    assert found == {
        (1, "idle_from_start"): "notify (cancel is not allowed here)",
        (3, "idle_from_start"): "nothing: the last sample of n3 is 15 min old",
        (4, "idle_from_start"): "nothing: user exempted is exempt",
        (5, "idle_from_start"): "notify (cancel is not allowed here)",
        (6, "stuck_collective"): "observe",
        (7, "idle_from_start"): "nothing: it has ended",
    }
    one = said["alerts"][0]
    assert one["evidence"]["idle_from_start_s"] == pytest.approx(10800) and one["samples"].keys() == {"n1"}
    stuck = next(one for one in said["alerts"] if one["job_id"] == 6)
    assert stuck["evidence"]["stuck_s"] == pytest.approx(5400)


def test_the_table_is_harmless_and_a_switch_shows(run: Run) -> None:
    code, out, _ = run(
        "--dry-run",
        "--since",
        "3d",
        "--rule",
        "idle_from_start",
        more="[alerts.rules.other]\nwhen = 'gpus > 0'\n",
    )
    assert code == 0 and "\x1b" not in out and "\u202e" not in out and "bob?[31m?" in out
    lines = out.splitlines()
    assert lines[0].startswith("6 jobs run, 2 ended lately; nothing is done") and "other" not in out
    assert [line.split()[0] for line in lines[2:]] == ["1", "3", "4", "5", "7", "8"]
    assert "idle_from_start_s 3 h" in lines[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "gsubd carries rules out by itself"),
        (["--dry-run", "--rule", "idle"], "there is no rule idle"),
        (["--dry-run", "--since", "soon"], "is no time"),
    ],
)
def test_what_is_wrong_is_told(run: Run, words: list[str], said: str) -> None:
    code, _, error = run(*words)
    assert code == 2 and said in error


@pytest.mark.slow
def test_both_databases_tell_the_same(store: Store) -> None:
    now = records.T0 + 86400
    fill(store, now)
    found = in_use(store, records.CLUSTER)
    assert [one.job.job_id for one in found] == [1, 2, 3, 4, 5, 6]
    assert found[0] == store.usage(records.CLUSTER, 1) and len(found[0].nodes[0].gpus) == 2
    assert [gpu.stuck_at_end_seconds for gpu in found[5].nodes[0].gpus] == [5400.0] * 2
    assert [one.job.job_id for one in in_use(store, records.CLUSTER, ended_since=now - 3600)] == [7]
    assert in_use(store, "other") == ()
