"""Where gsub only observes, and where a user opts out, a job is the one that Slurm makes without it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster
from tests.slurm.cli.drive import Case, Done, drive
from tests.slurm.cli.test_parity import cases, differences, submitted
from tests.slurm.decide.conftest import policy, recorded, site_text, submit, without_plugin
from tests.waiting import wait_until

pytestmark = pytest.mark.all_releases

OFF = ("GSUB", "off")


@pytest.fixture(scope="module")
def table(closed: Cluster, here: Path, user: str | None) -> list[Case]:
    """The command lines of the parity test: every way to ask sbatch for something."""
    found = cases(here, submit(closed, "-H", "-J", "chain", user=user))
    assert len(found) >= 60
    return found


@pytest.fixture(scope="module")
def bare(closed: Cluster, table: list[Case], here: Path, user: str | None) -> list[Done]:
    """What becomes of each without the plugin."""
    with without_plugin(closed):
        return drive(closed, ["sbatch"], table, cwd=here, user=user)


def same(cluster: Cluster, table: Sequence[Case], bare: Sequence[Done], now: Sequence[Done]) -> int:
    """Hold each command's answer and job to those without the plugin; how many jobs were compared."""
    known = recorded(cluster)
    compared = 0
    for case, one, two in zip(table, bare, now, strict=True):
        said = f"{case}\nwithout: {one}\nwith: {two}"
        assert two.code == one.code, said
        for text, other in ((one.out, two.out), (one.err, two.err)):
            if "-vv" not in case.words:
                assert re.sub(r"\d+", "N", other) == re.sub(r"\d+", "N", text), said
        if one.code == 0 and "-HQ" not in case.words:
            differ = differences(known[submitted(one)], known[submitted(two)])
            assert not differ, f"{differ}\n{said}"
            compared += 1
    return compared


def test_observe_changes_no_job(closed, table, bare, here, user):
    asked = len(closed.decisions())
    with policy(closed, site_text(closed, "observe")):
        now = drive(closed, ["sbatch"], table, cwd=here, user=user)
    assert same(closed, table, bare, now) >= 60
    # It was there, and it was asked.
    wait_until(lambda: len(closed.decisions()) >= asked + 10)
    fresh = [record for record in closed.decisions()[asked:] if record["kind"] == "decision"]
    assert {record["mode"] for record in fresh} == {"observe"}


def test_a_variable_opts_out(closed, table, bare, here, user):
    quiet = [replace(case, env=(*case.env, OFF)) for case in table]
    with policy(closed, site_text(closed, "enforce")):
        now = drive(closed, ["sbatch"], quiet, cwd=here, user=user)
    assert same(closed, table, bare, now) >= 60


def test_a_word_in_the_comment_opts_out(closed, table, here, user):
    table = [
        replace(case, words=("--comment=on call gsub:off", *case.words))
        for case in table
        if not any("comment" in word or "quotes" in word for word in case.words)
    ]
    with without_plugin(closed):
        bare = drive(closed, ["sbatch"], table, cwd=here, user=user)
    with policy(closed, site_text(closed, "enforce")):
        now = drive(closed, ["sbatch"], table, cwd=here, user=user)
        # The same mode does change a job that did not opt out; at the second try where the machine is busy.
        wait_until(lambda: _changed(closed, submit(closed, "-G2", user=user)))
    assert same(closed, table, bare, now) >= 60


def _changed(cluster: Cluster, job: int) -> bool:
    return "AdminComment" in recorded(cluster)[job][0]
