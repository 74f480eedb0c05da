"""The data frame of attempts: against SQL of the test's own, and what is not known, on both databases."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import text

from profiler.records import GpuRef, GpuUse
from profiler.report import figures
from profiler.report.figures import NEEDED
from profiler.report.frames import COLUMNS, jobs, pseudonymous, span
from profiler.store import JobFacts, Store
from tests.unit.profiler.report.history import CLUSTER, SINCE, UNTIL, fill
from tests.unit.profiler.store import records
from tests.unit.profiler.store.records import T0, ended, started, usage

DAY = 86400.0
WINDOWS = ((SINCE, UNTIL), (SINCE + 100 * DAY, SINCE + 107 * DAY), (UNTIL - DAY, UNTIL + DAY))

# Hours inside the window, spelt out in SQL that both databases know
HOURS = """
SELECT job."user", count(*) AS attempts, sum(gpus * (
    CASE WHEN coalesce(ended, touched) < :until THEN coalesce(ended, touched) ELSE :until END
    - CASE WHEN started > :since THEN started ELSE :since END) / 3600) AS hours
FROM job WHERE cluster = 'philly' AND started < :until AND coalesce(ended, touched) > :since GROUP BY job."user"
"""


def lab(store: Store, since: float = T0 - DAY, until: float = T0 + DAY) -> pd.DataFrame:
    frame: pd.DataFrame = jobs(store, cluster=records.CLUSTER, since=since, until=until).set_index("job")
    return frame


def facts(number: int = 1, **more: Any) -> JobFacts:
    values: dict[str, Any] = {
        "state": "COMPLETED",
        "started": T0,
        "ended": T0 + 3600,
        "gpus": 2,
        "final": True,
    }
    return JobFacts(cluster=records.CLUSTER, job_id=number, restarts=0, **(values | more))


@pytest.mark.slow
def test_gpu_hours_are_those_of_an_independent_sql(store: Store) -> None:
    fill(store, 8000)  # some 22 a day: the last window is a day
    for since, until in WINDOWS:
        frame = jobs(store, cluster=CLUSTER, since=since, until=until)
        assert list(frame) == list(COLUMNS)
        with store.reading("SQL") as connection:
            rows = connection.execute(text(HOURS), {"since": since, "until": until}).all()
        assert len(rows) >= 5
        found = frame.groupby("user", observed=True).gpu_hours.agg(["size", "sum"])
        assert found["size"].to_dict() == {row[0]: row[1] for row in rows}
        assert found["sum"].to_dict() == pytest.approx({row[0]: row[2] for row in rows})


def test_windows_beside_each_other_add_up(store: Store) -> None:
    fill(store, 2000)
    edges = [SINCE, SINCE + 30 * DAY, SINCE + 200 * DAY, UNTIL]
    parts = [jobs(store, cluster=CLUSTER, since=a, until=b) for a, b in pairwise(edges)]
    whole = jobs(store, cluster=CLUSTER, since=SINCE, until=UNTIL)
    assert sum(map(len, parts)) > len(whole) == 2000, "some ran across an edge"
    for name in ("failed", "completed", "running"):
        hours = [part.gpu_hours[part.outcome == name].sum() for part in parts]
        assert sum(hours) == pytest.approx(whole.gpu_hours[whole.outcome == name].sum())


def test_what_nobody_told_is_na_and_nothing_is_made_up(store: Store) -> None:
    store.take([started(1, gpus=None, account="", partition="")], T0 + 60)
    row = lab(store).loc[1]
    for name in (
        "gpus",
        "gpu_hours",
        "utilisation_mean",
        "gpus_idle",
        "wait_s",
        "limit_s",
        "cpus_used",
        "ended",
    ):
        assert pd.isna(row[name]), name
    for name in ("account", "partition", "qos", "gpu_type", "state", "reason", "tier"):
        assert pd.isna(row[name]), name
    assert (row.user, row.nodes, row.outcome) == ("ada", 1, "unknown")
    assert not (row.run_known or row.use_known or row.why_known)


def test_what_is_known_has_the_units_that_are_told(store: Store) -> None:
    store.take([started(), usage(final=True, at=T0 + 3600), ended()], T0 + 3600)
    store.enrich(
        [facts(submitted=T0 - 700, eligible=T0 - 600, cpus=16, time_limit=7200.0, account="vision")], T0
    )
    row = lab(store).loc[1]
    assert (row.wait_s, row.run_s, row.limit_s, row.gpu_hours) == (600, 3600, 7200, 2)
    assert (row.gpus, row.gpus_idle, row.gpus_known, row.utilisation_mean) == (2, 1, 2, 40)
    assert row.cpus_used == pytest.approx(120.5 / 3600)
    assert row.started == pd.Timestamp(T0, unit="s", tz="UTC") and row.ended - row.started == pd.Timedelta(
        "1h"
    )
    assert (row.gpu_type, row.outcome) == ("NVIDIA A100-SXM4-80GB", "completed")


def test_a_job_runs_until_it_was_last_heard_of(store: Store) -> None:
    store.take([started(), started(2)], T0 + 60)
    store.enrich([facts(state="RUNNING", ended=None, final=False)], T0 + 1800)
    frame = lab(store)
    assert frame.loc[1, "outcome"] == "running" and frame.loc[1, "gpu_hours"] == 1.0
    assert frame.loc[2, "outcome"] == "unknown" and frame.loc[2, "run_s"] == 60, "nobody spoke of it since"
    assert list(lab(store, T0 + 900).index) == [1], "the other one is not known to have run then"


def test_the_most_common_gpu_is_the_type(store: Store) -> None:
    def gpus(*names: str) -> tuple[GpuUse, ...]:
        return tuple(
            GpuUse(GpuRef(n, f"GPU-{n}", name), samples=9, seconds=9.0) for n, name in enumerate(names)
        )

    told = {1: ("A100", "H100", "H100"), 2: ("H100", "A100"), 3: ("", "T4"), 4: ("",)}
    for number, names in told.items():
        store.take([started(number), usage(number, gpus=gpus(*names))], T0)
    store.enrich([facts(number) for number in told], T0)
    found = lab(store).gpu_type
    assert found[found.notna()].to_dict() == {1: "H100", 2: "A100", 3: "T4"}


def test_an_end_on_the_edge_is_outside(store: Store) -> None:
    store.take([started(), ended()], T0)
    store.enrich([facts()], T0)
    assert lab(store, T0 + 3600).empty and lab(store, T0 - DAY, T0).empty
    assert len(lab(store, T0 + 3599)) == 1 and len(lab(store, T0 - DAY, T0 + 1)) == 1


def test_an_empty_store_gives_an_empty_frame_with_its_columns(store: Store) -> None:
    frame = jobs(store, cluster="none", since=0, until=4e9)
    assert frame.empty and list(frame) == list(COLUMNS)
    assert span(store, "none") is None


def test_pseudonyms_hold_within_a_frame_and_nowhere_else(store: Store) -> None:
    fill(store, 500)
    frame = jobs(store, cluster=CLUSTER, since=SINCE, until=UNTIL)
    one, other = pseudonymous(frame), pseudonymous(frame)
    for column in ("user", "account", "name"):
        names = set(frame[column].cat.categories)
        assert names.isdisjoint(one[column]) and set(one[column]).isdisjoint(other[column])
        # Who is who is gone; who has how much is not
        for made in (one, other):
            old, new = (x.groupby(column, observed=True).gpu_hours.sum() for x in (frame, made))
            assert sorted(new) == pytest.approx(sorted(old))
    assert (
        not one.astype(str).apply(lambda column: column.str.contains("user000|group00|train-1$")).any().any()
    )
    assert list(one.job) == list(range(1, 501)) and one.gpu_hours.sum() == pytest.approx(
        frame.gpu_hours.sum()
    )


@pytest.mark.slow
def test_some_columns_are_those_of_all(store: Store) -> None:
    fill(store, 500)
    window = {"cluster": CLUSTER, "since": SINCE, "until": UNTIL}
    whole = jobs(store, **window)  # type: ignore[arg-type]
    for some in (NEEDED, ("job", "name"), ("cpus_used", "gpu_type", "user")):
        found = jobs(store, **window, columns=some)  # type: ignore[arg-type]
        wanted = [name for name in COLUMNS if name in some]
        assert list(found) == wanted
        pd.testing.assert_frame_equal(found, whole[wanted])
    tables = [figures.audit(one, since=SINCE, until=UNTIL) for one in (whole, whole[list(NEEDED)])]
    for one, other in zip(*tables, strict=True):
        pd.testing.assert_frame_equal(one.rows, other.rows)
    hidden = pseudonymous(jobs(store, **window, columns=NEEDED))  # type: ignore[arg-type]
    assert not set(hidden.user.dropna()) & set(whole.user.dropna())
