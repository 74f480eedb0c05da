"""What the database sums up for `gsub report` is what an audit of the same attempts says, to the last one not known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pandas as pd
import pytest
from sqlalchemy import event as calls_of
from sqlalchemy import insert

from profiler.answers import Advice, Figure, Report
from profiler.report import figures
from profiler.report.frames import jobs
from profiler.store import ReportQuery, Store
from profiler.store.report import OUTCOMES
from profiler.store.schema import WAITED, finding, job, job_node, verdict
from tests.unit.profiler.report.history import CLUSTER, SINCE, UNTIL, fill
from tests.unit.profiler.report.test_figures import DAYS, MONDAY, rows
from tests.unit.profiler.store.empty import empty_store

ADA, BOB = 1000, 1001
HOUR = 3600.0
GIB = float(1 << 30)


def asked(store: Store, since: float, until: float, uid: int = ADA, cluster: str = "lab") -> Report:
    return store.report(ReportQuery(cluster=cluster, uid=uid, since=since, until=until))


Attempt = tuple[dict[str, Any], "str | None", str]


def put(store: Store, *attempts: Attempt) -> None:
    """Attempts, each with its reason and the body of its verdict, made of its logs unless that is empty."""
    with store.writing("test") as connection:
        for row, reason, body in attempts:
            told = {"pk": row["job_id"], "cluster": "lab", "restarts": 0, "uid": ADA, "user": "ada"} | row
            told = {"sort_at": told.get("started") or 0.0, "touched": told.get("ended") or 0.0} | told
            connection.execute(insert(job).values(told))
            if told.get("ended") is None:
                open_ = {"job": told["pk"], "node": "n1", "started_at": told["sort_at"]}
                connection.execute(insert(job_node).values(open_))
            if reason is not None:
                why = {"job": told["pk"], "cluster": "lab", "job_id": told["job_id"], "at": told["touched"]}
                why |= {"reason": reason, "tier": "explicit", "source": "user", "body": body}
                connection.execute(insert(verdict).values(why))
            if body:
                read = {"job": told["pk"], "node": "n1", "serial": 1, "at": told["touched"], "body": body}
                connection.execute(insert(finding).values(read))


def same(found: Report, frame: pd.DataFrame) -> None:
    """Every figure of the report is the audit's of that frame."""
    tables = {
        made.name: made
        for made in (
            figures.totals(frame),
            figures.outcomes(frame),
            figures.failures(frame),
            figures.waiting(frame),
            figures.waiting_by_cause(frame),
        )
    }
    totals = tables["totals"].rows.set_index("figure")
    assert found.attempts == totals.value["attempts"] and found.jobs == totals.value["jobs"]
    for name, one in (
        ("GPU-hours", found.gpu_seconds),
        ("GPU-hours of GPUs never used", found.idle_gpu_seconds),
        ("GPU-hours of failed attempts", found.failed_gpu_seconds),
        ("GPU-hours wasted, by both", found.wasted_gpu_seconds),
        ("utilisation", found.utilisation),
    ):
        told = totals.loc[name]
        unit = 1.0 if name == "utilisation" else HOUR
        assert alike(one.value, told.value * unit), name
        assert (one.attempts, one.unknown) == (told.attempts, told.unknown), name
    outcomes = tables["outcomes"].rows.set_index("outcome")
    assert [one.outcome for one in found.outcomes] == list(outcomes.index)
    for outcome in found.outcomes:
        told = outcomes.loc[outcome.outcome]
        assert (outcome.attempts, outcome.unknown) == (told.attempts, told.unknown)
        assert alike(outcome.gpu_seconds, told.gpu_hours * HOUR)
    failures = tables["failures"].rows.set_index("reason")
    assert {one.reason for one in found.failures} == set(failures.index)
    for failure in found.failures:
        told = failures.loc[failure.reason]
        assert (failure.attempts, failure.unknown) == (told.attempts, told.unknown)
        assert alike(failure.gpu_seconds, told.gpu_hours * HOUR) and alike(
            failure.runtime_p50, told.run_s_p50
        )
    waiting = tables["waiting"].rows.set_index("gpus")
    assert [one.gpus for one in found.waits] == list(waiting.index)
    for wait in found.waits:
        told = waiting.loc[wait.gpus]
        assert (wait.attempts, wait.unknown) == (told.attempts, told.unknown)
        assert alike(wait.wait_p50, told.wait_s_p50) and alike(wait.wait_p90, told.wait_s_p90)
        known = wait.attempts - wait.unknown
        assert alike(wait.wait_seconds, told.wait_s_mean * known)
        assert not known or alike(100 * wait.over_10_min / known, told.over_10_min_percent)

    causes = tables["waiting_by_cause"].rows.set_index("cause")
    assert [one.cause for one in found.causes] == list(causes.index)
    for cause in found.causes:
        told = causes.loc[cause.cause]
        assert (cause.attempts, cause.unknown, cause.waited) == (told.attempts, told.unknown, told.waited)
        assert alike(cause.wait_seconds, told.wait_hours * HOUR), cause.cause


def alike(found: float | None, told: float) -> bool:
    return pd.isna(told) if found is None else found == pytest.approx(told, rel=1e-9, abs=1e-6)


def test_the_history_that_was_reckoned_by_hand(store: Store) -> None:
    put(store, *((row, reason, "{}") for row, reason in rows()))
    found = asked(store, MONDAY, MONDAY + DAYS)
    assert found.attempts == 30 and found.gpu_seconds.value == pytest.approx(225.13 * HOUR)
    assert found.wasted_gpu_seconds == Figure(pytest.approx(160.13 * HOUR), 29, 1)  # type: ignore[arg-type]
    same(found, jobs(store, cluster="lab", since=MONDAY, until=MONDAY + DAYS))


def drawn(random: Random, count: int) -> Iterator[Attempt]:
    """Attempts of two users, of which anything may be not known."""

    def maybe(value: Any) -> Any:
        return None if random.random() < 0.15 else value

    states = [*(state for states in OUTCOMES.values() for state in states), "COMPLETING", "PENDING"]
    for number in range(1, count + 1):
        begun = MONDAY + random.uniform(-3, 3) * 86400
        long = random.choice([0.0, 60.0, 4000.0, 90000.0, 300000.0])
        ended = maybe(begun + long * random.random())
        state = maybe(random.choice(states if ended is not None else ["RUNNING", "SUSPENDED", "COMPLETED"]))
        gpus = maybe(random.choice([0, 1, 1, 2, 4, 5, 8, 9, 16, 17, 64]))
        known = random.choice([gpus or 0, gpus or 0, (gpus or 0) // 2, 0])
        wait = random.choice([0.0, 30.0, 600.0, 9000.0, -5.0])
        mine = random.random() < 0.8
        # The first may be of more than was waited: Slurm has corrected itself
        causes = [random.choice([0.0, 0.0, 40.0, 500.0]) if random.random() < 0.7 else 0.0 for _ in WAITED]
        looked = random.random() < 0.6
        yield {
            "pk": number, "job_id": 1 + number // 2, "restarts": number % 2, "uid": ADA if mine else BOB,
            "user": "ada" if mine else "bob", "sort_at": begun, "started": maybe(begun), "ended": ended,
            "touched": begun + random.uniform(0, 2) * 86400, "facts_at": maybe(begun + random.uniform(0, 5) * 86400),
            "facts_final": ended is not None and random.random() < 0.8, "state": state, "gpus": gpus,
            "node_count": maybe(random.choice([1, 2])), "submitted": maybe(begun - wait - 50), "cpus": maybe(8),
            "eligible": maybe(begun - wait), "utilisation_mean": maybe(random.uniform(0, 100)),
            "gpus_known": known, "gpus_idle": maybe(random.randint(0, known)), "cpu_seconds": maybe(long * 7),
            "memory_asked_bytes": maybe(64 << 30), "memory_peak_bytes": maybe(random.choice([9, 60]) << 30),
            "time_limit": maybe(86400.0), "partition": "gpu",
            **(dict(zip(WAITED, causes, strict=True)) if looked else {}),
        }, maybe(random.choice(["gpu_oom", "import_error", "time_limit", "none", "nccl_error"])), "{}"  # fmt: skip


def test_a_random_history(store: Store) -> None:
    put(store, *drawn(Random(1), 250))
    for first, last in ((-10, 10), (-0.5, 0.25)):
        since, until = MONDAY + first * 86400, MONDAY + last * 86400
        frame = jobs(store, cluster="lab", since=since, until=until)
        assert 0 < (frame.user == "ada").sum() < len(frame)
        same(asked(store, since, until), frame[frame.user == "ada"].reset_index(drop=True))


def run(number: int, **more: Any) -> dict[str, Any]:
    """An attempt of an hour on four GPUs of one node, all of them used well; limits and memory fit."""
    known = {
        "job_id": number, "started": MONDAY, "ended": MONDAY + HOUR, "state": "COMPLETED", "facts_final": True,
        "gpus": 4, "gpus_known": 4, "gpus_idle": 0, "node_count": 1, "utilisation_mean": 90.0, "cpus": 8,
        "cpu_seconds": 4 * HOUR, "memory_asked_bytes": int(64 * GIB), "memory_peak_bytes": int(50 * GIB),
        "time_limit": 2 * HOUR, "name": "train",
    }  # fmt: skip
    return known | more


def late(**more: Any) -> Attempt:
    return run(1, state="TIMEOUT", **more), "time_limit", "{}"


def failed(**more: Any) -> Attempt:
    return run(1, **({"state": "FAILED", "ended": MONDAY + 60} | more)), "import_error", "{}"


def starts(seconds: float, **more: Any) -> dict[str, Any]:
    """It runs, heard of last after so many seconds, and has used no GPU."""
    now = {"state": "RUNNING", "ended": None, "touched": MONDAY + seconds, "gpus_idle": 4}
    return run(1, **(now | more))


LATE = Advice("no_checkpoint", 1, 1, 1, 4 * HOUR)
SAVED = '{"reason":"time_limit","evidence":[],"checkpoint":"/scratch/7.pt"}'
UNREAD = '{"reason":"time_limit","unseen":["out.txt: no such file"]}'
QUOTED = '{"reason":"time_limit","evidence":[{"text":"x,\\"checkpoint\\":\\"no"}]}'
EARLY = Advice("smoke", 1, 1, 1, 4 * 60.0, {"import_error": 1.0})
ADVICE: dict[str, tuple[Attempt, Advice | None]] = {
    "all is well": ((run(1), None, ""), None),
    "a limit": (late(), LATE),
    "a limit, saved": ((late()[0], "time_limit", SAVED), None),
    "a limit, a log that speaks of it": ((late()[0], "time_limit", QUOTED), LATE),
    "a limit, without a verdict": ((late()[0], None, "{}"), None),
    "a limit, and nobody read the log": ((late()[0], "time_limit", ""), None),
    "a limit, and not all logs were read": ((late()[0], "time_limit", UNREAD), None),
    "an import": (failed(), EARLY),
    "an import after an hour": (failed(ended=MONDAY + HOUR), None),
    "an import in a smoke run": (failed(name="smoke-train"), None),
    "an import on one GPU": (failed(gpus=1), None),
    "an import without GPUs": (failed(gpus=0, gpus_known=0), None),
    "out of GPU memory": ((run(1, state="FAILED"), "gpu_oom", "{}"), None),
    "no GPU used": ((run(1, gpus_idle=4, utilisation_mean=0.0), None, ""), Advice("unused_gpus", 1, 1, 1, 4 * HOUR)),
    "no GPU used, and failed": ((run(1, gpus_idle=4, state="FAILED", utilisation_mean=0.0), "gpu_oom", "{}"), None),
    "no GPU used of those seen": ((run(1, gpus_known=2, gpus_idle=2), None, ""), None),
    "no GPU used so far": ((starts(60), None, ""), None),
    "no GPU used for long": ((starts(900), None, ""), Advice("unused_gpus", 1, 1, 1, 4 * 900.0)),
    "one GPU used so far": ((starts(60, gpus_idle=3), None, ""), None),
    "one GPU used": (
        (run(1, gpus_idle=3), None, ""),
        Advice("spare_gpus", 1, 1, 1, 3 * HOUR, {"gpus": 4.0, "unused": 3.0}),
    ),
    "busy CPUs": (
        (run(1, utilisation_mean=20.0, cpu_seconds=7 * HOUR), None, ""),
        Advice("cpus", 1, 1, 1, 4 * HOUR, {"seen": 4 * HOUR, "busy": pytest.approx(0.8 * HOUR)}),  # type: ignore[dict-item]
    ),
    "busy CPUs and GPUs": ((run(1, cpu_seconds=7 * HOUR), None, ""), None),
    "idle CPUs and GPUs": ((run(1, utilisation_mean=20.0), None, ""), None),
    "busy CPUs for a moment": (
        (run(1, utilisation_mean=20.0, cpu_seconds=8 * 60.0, ended=MONDAY + 60), None, ""),
        None,
    ),
    "much memory": (
        (run(1, memory_peak_bytes=int(9 * GIB)), None, ""),
        Advice("memory", 1, 1, 1, None, {"asked": 64 * GIB, "most_used": 9 * GIB}),
    ),
    "much memory, on two nodes": ((run(1, memory_peak_bytes=int(9 * GIB), node_count=2), None, ""), None),
    "much of little memory": (
        (run(1, memory_asked_bytes=int(4 * GIB), memory_peak_bytes=int(GIB)), None, ""),
        None,
    ),
    "much memory, unknown": ((run(1, memory_peak_bytes=None), None, ""), None),
    "a long limit": (
        (run(1, time_limit=24 * HOUR), None, ""),
        Advice("time_limit", 1, 1, 1, None, {"asked": 24 * HOUR, "most_used": HOUR}),
    ),
    "a short limit": ((run(1, time_limit=50 * 60.0, ended=MONDAY + 610), None, ""), None),
    "no limit": ((run(1, time_limit=None), None, ""), None),
}  # fmt: skip


def test_what_would_have_helped(store: Store) -> None:
    """Each case is a user's only job."""
    cases = list(enumerate(ADVICE.items(), 1))
    put(store, *((row | {"job_id": n, "uid": n}, why, body) for n, (_, ((row, why, body), _)) in cases))
    for number, (name, (_, expected)) in cases:
        wanted = () if expected is None else (msgspec.structs.replace(expected, job_id=number),)
        assert asked(store, MONDAY, MONDAY + DAYS, number).advice == wanted, name


def test_advice_counts_all_and_begins_with_the_costliest(store: Store) -> None:
    rows = [
        (run(number, gpus_idle=3 if number < 4 else 0, memory_peak_bytes=int(number * GIB)), None, "")
        for number in range(1, 6)
    ]
    put(store, *rows, (run(9, state="TIMEOUT", ended=MONDAY + 9 * HOUR), "time_limit", "{}"))
    found = {one.what: one for one in asked(store, MONDAY, MONDAY + DAYS).advice}
    assert [*found] == ["no_checkpoint", "spare_gpus", "memory"]
    assert (found["spare_gpus"].attempts, found["spare_gpus"].of, found["spare_gpus"].job_id) == (3, 5, 3)
    assert found["spare_gpus"].gpu_seconds == 9 * HOUR and found["no_checkpoint"].gpu_seconds == 36 * HOUR
    assert found["memory"].values == {"asked": 5 * 64 * GIB, "most_used": 5 * GIB}


def test_time_held_and_time_queued(store: Store) -> None:
    times: tuple[dict[str, float], ...] = (
        {"submitted": MONDAY - 5000, "eligible": MONDAY - 2000},
        {"submitted": MONDAY - 700},
        {},
    )
    put(store, *((run(number, **one), None, "") for number, one in enumerate(times, 1)))
    found = asked(store, MONDAY, MONDAY + DAYS)
    assert found.held_seconds == Figure(3000.0, 3, 2) and found.queued_seconds == Figure(2700.0, 3, 1)


def test_nothing(store: Store) -> None:
    put(store, (run(1, uid=BOB), None, ""), (run(2, cluster="other"), None, ""))
    found = asked(store, MONDAY, MONDAY + DAYS)
    assert (found.attempts, found.jobs, found.outcomes, found.waits, found.advice) == (0, 0, (), (), ())
    assert found.gpu_seconds == found.utilisation == Figure(None, 0, 0)


def test_only_indexes_are_read(tmp_path: Path) -> None:
    store = empty_store(f"sqlite:///{tmp_path / 'store.db'}")
    statements: list[tuple[str, Any]] = []
    calls_of.listen(
        store.engines.reader, "before_cursor_execute", lambda *call: statements.append((call[2], call[3]))
    )
    asked(store, MONDAY, MONDAY + DAYS)
    with store.reading("test") as connection:
        plans = [
            [row[3] for row in connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, values)]
            for statement, values in list(statements)
            if statement != "BEGIN"
        ]
    store.close()
    assert len(plans) == 1
    for plan in plans:
        tables = [step for step in plan if step.split()[1] in ("job", "job_node", "verdict")]
        # One user's attempts by their start, and by their end; of all users only what is open
        assert "ix_job_uid (cluster=? AND uid=? AND sort_at>? AND sort_at<?)" in tables[0]
        assert any("ix_job_uid_ended (cluster=? AND uid=? AND ended>?)" in step for step in tables)
        for step in tables:
            by_key = "INTEGER PRIMARY KEY (rowid=?)" in step
            assert by_key or "ix_job_uid" in step or step == "SCAN job_node USING INDEX ix_job_node_open", (
                plan
            )


@pytest.mark.slow
def test_a_long_history_is_summed_up_at_once(store: Store) -> None:
    """A made-up year, with what still runs and ends after the window."""
    fill(store, 1500)
    for since, until in ((SINCE - 1, UNTIL), (SINCE + 40 * 86400, SINCE + 47 * 86400)):
        frame = jobs(store, cluster=CLUSTER, since=since, until=until)
        mine = frame[frame.user == "user000"].reset_index(drop=True)
        same(asked(store, since, until, 10_000, CLUSTER), mine)
