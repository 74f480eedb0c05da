"""What keeping a job together is worth: the formula, its bounds, and where its figures come from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_configs.site_model import Locality
from slurm_plugins.decide.context import Workload
from slurm_plugins.decide.worth import SHORTEST, spoken, worth_of_waiting
from tests.paths import REPOSITORY

HOUR = 3600
SITE = Locality(slowdown=1.15, run_time=4 * HOUR, max_wait=30 * 60)


def known(slowdown: float | None = None, run_time: int | None = None, source: str = "workload") -> Workload:
    return Workload("k", runs=7, slowdown=slowdown, run_time=run_time, source=source)


# workload, time limit, max_switch_wait -> wanted, wait, clipped_by, sources of slowdown and run time
TABLE = {
    "site's defaults": (None, None, None, 2160, 1800, "locality.max_wait", "site", "site"),
    "Slurm's bound is the shorter": (None, None, 300, 2160, 300, "max_switch_wait", "site", "site"),
    "never beyond the time limit": (None, HOUR, None, 540, 540, "", "site", "time limit"),
    "a workload that does not mind": (known(1.0, HOUR), None, 300, 0, 0, "", "workload", "workload"),
    "spread was faster by noise": (known(0.97, HOUR), None, 300, 0, 0, "", "workload", "workload"),
    "a workload that minds much": (known(2.0, 600), None, None, 600, 600, "", "workload", "workload"),
    "known run time only": (known(None, 2 * HOUR), None, None, 1080, 1080, "", "site", "workload"),
    "known slowdown only": (known(1.05), None, None, 720, 720, "", "workload", "site"),
    "its class": (known(1.1, HOUR, "class"), None, None, 360, 360, "", "class", "class"),
    "a short job does not wait": (None, 300, None, 45, 0, "", "site", "time limit"),
    "Slurm allows no wait": (None, None, 0, 2160, 0, "max_switch_wait", "site", "site"),
}


@pytest.mark.parametrize("name", TABLE)
def test_table(name):
    workload, limit, slurm, wanted, wait, clipped, of_slowdown, of_run_time = TABLE[name]
    worth = worth_of_waiting(workload, SITE, time_limit=limit, max_switch_wait=slurm)
    assert (worth.wanted, worth.wait, worth.clipped_by) == (wanted, wait, clipped)
    assert (worth.slowdown_source, worth.run_time_source) == (of_slowdown, of_run_time)


def test_what_explain_shows_holds_every_figure_and_its_source():
    worth = worth_of_waiting(known(1.3, HOUR), SITE, time_limit=2 * HOUR, max_switch_wait=300)
    assert worth.inputs == {
        "slowdown": 1.3,
        "slowdown_source": "workload",
        "run_time": HOUR,
        "run_time_source": "workload",
        "runs": 7,
        "worth": 1080,
        "locality.max_wait": 1800,
        "max_switch_wait": 300,
        "wait": 300,
    }
    assert worth.formula == "(1.3 - 1) x 1 h = 18 min, cut to 5 min by max_switch_wait"


def test_the_guides_worked_example():
    guide = " ".join((REPOSITORY / "docs/how-it-decides.md").read_text().split())
    worth = worth_of_waiting(None, Locality(), time_limit=2 * HOUR, max_switch_wait=300)
    formula, _, cut = worth.formula.partition(", cut to ")
    assert formula in guide
    assert cut == "5 min by max_switch_wait"
    assert f"so the job waits up to {spoken(worth.wait)} for one leaf switch" in guide


slowdowns = st.none() | st.floats(0, 100, allow_nan=False)
times = st.none() | st.integers(0, 10**9)


@given(slowdowns, times, times, times, st.integers(0, 10**7), st.floats(1, 10))
def test_never_longer_than_any_bound_nor_than_what_spreading_costs(slow, run, limit, slurm, cap, default):
    worth = worth_of_waiting(
        known(slow, run), Locality(default, HOUR, cap), time_limit=limit, max_switch_wait=slurm
    )
    assert worth.wait == 0 or SHORTEST <= worth.wait <= min(worth.wanted, cap)
    assert slurm is None or worth.wait <= slurm
    assert limit is None or worth.run_time <= limit
    assert worth.wait <= max(worth.slowdown - 1, 0) * worth.run_time + 1


@given(st.floats(1, 10), st.floats(1, 10), st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_at_stake_is_never_worth_less(slow, slower, run, longer):
    (slow, slower), (run, longer) = sorted((slow, slower)), sorted((run, longer))
    less = worth_of_waiting(known(slow, run), SITE, time_limit=None)
    more = worth_of_waiting(known(slower, longer), SITE, time_limit=None)
    assert less.wanted <= more.wanted
    assert less.wait <= more.wait


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (90, "1 min 30 s"), (3600, "1 h"), (8130, "2 h 16 min"), (90061, "1 d 1 h")],
)
def test_times_are_said_as_people_say_them(seconds, text):
    assert spoken(seconds) == text
