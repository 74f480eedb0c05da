"""`gsub admin reasons`: the site's failures by reason, out of a real service."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsub.cli import main
from gsub.commands.admin.reasons import moment, table
from gsub.errors import UserError
from profiler.answers import ReasonRow, Reasons
from profiler.records import Record
from profiler.store import open_store
from profiler.store.facts import JobFacts
from tests.unit.gsub.cli.service import Site, keeper
from tests.unit.profiler.store.records import CLUSTER, ended, found, started
from tests.waiting import wait_until

NOW = float(int(time.time()) - 3600)
PATIENCE = 60.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two failures of today, and one of ten weeks ago; the asker is root or the service's user: an operator."""
    told = [(1, "gpu_oom", 0.0, 8), (2, "import_error", 60.0, 1), (3, "cpu_oom", 70 * 86400.0, 1)]
    facts: list[JobFacts] = []
    records: list[Record] = []
    for number, why, age, gpus in told:
        end = NOW - age
        records += [
            started(number, at=end - 1800, uid=os.getuid()),
            ended(number, at=end),
            found(number, why, at=end),
        ]
        facts.append(
            JobFacts(
                cluster=CLUSTER, job_id=number, restarts=0, state="FAILED", uid=os.getuid(), user="ada", name="train",
                account="vision", started=end - 1800, ended=end, gpus=gpus, final=True,
            )
        )  # fmt: skip
    with keeper(tmp_path_factory.mktemp("reasons"), facts, records) as one:
        store = open_store(one.store)
        wait_until(lambda: not store.unjudged(CLUSTER, 9, time.time()), PATIENCE, "the keeper's verdicts")
        store.close()
        yield one


@pytest.fixture
def admin(site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.setenv("GSUB_SITE", str(site.file))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["admin", "reasons", *words])
        return (code, *capfd.readouterr())

    return run


def test_the_costliest_first_with_a_sum(admin) -> None:
    code, out, err = admin()
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [row[:6] for row in rows] == [
        ["gpu_oom", "4.0", "89", "%", "1", "1"],
        ["import_error", "0.5", "11", "%", "1", "1"],
        ["in", "all", "4.5", "2"],
    ]
    assert "30 min" in out and out.splitlines()[2].endswith("its user")


def test_json_and_filters(admin) -> None:
    code, out, _ = admin("--json", "--since", "20w")
    answer = json.loads(out)
    assert code == 0 and [row["reason"] for row in answer["reasons"]] == [
        "gpu_oom",
        "cpu_oom",
        "import_error",
    ]
    assert answer["reasons"][0] == {
        "reason": "gpu_oom",
        "attempts": 1,
        "jobs": 1,
        "users": 1,
        "gpu_seconds": 14400.0,
        "runtime_p50": 1800.0,
    }
    assert len(json.loads(admin("--json", "--user", "ada", "--account", "vision")[1])["reasons"]) == 2
    assert json.loads(admin("--json", "--user", "bob")[1])["reasons"] == []
    assert "none is known" in admin("--account", "other", "--until", "1d", "--since", "2d")[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--since", "yesterday"), "is no time"),
        (("--since", "1d", "--until", "2d"), "lies after"),
        (("--until", "9999-99-99"), "is no time"),
        (("--user", "a b"), "user="),
    ],
)
def test_what_cannot_be_asked(admin, words: tuple[str, ...], says: str) -> None:
    code, out, err = admin(*words)
    assert code != 0 and out == "" and says in err and len(err.splitlines()) <= 3


@pytest.mark.parametrize(
    ("text", "at"),
    [("12h", 1e9 - 43200), ("1w", 1e9 - 604800), ("9999w", 0.0), ("2001-01-01T00:00+00:00", 978307200.0)],
)
def test_times_as_people_write_them(text: str, at: float) -> None:
    assert moment(text, 1e9, "--since") == at


@pytest.mark.parametrize(
    "text", ["", "d", "0d", "-1d", "1y", "1 d", "1e3d", "2001-13-01", "1969-01-01", "\x1b[31m"]
)
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(UserError) as refused:
        moment(text, 1e9, "--since")
    assert "\x1b" not in str(refused.value)


def test_a_reason_of_tomorrow_is_shown_harmless() -> None:
    rows = (ReasonRow("new\x1b[31m_one", 3, 2, 1, 60.0), ReasonRow("gpu_oom", 1, 1, 1))
    lines = list(table(Reasons(rows, 0.0, 1e9)))
    assert "\x1b" not in "".join(lines) and "<0.1" in lines[2] and "n/a" in lines[3]
    assert list(table(Reasons((ReasonRow("gpu_oom", 1, 1, 1),), 0.0, 1e9)))[2].split()[2] == "n/a"


def test_without_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GSUB_SITE", str(tmp_path / "site.toml"))
    (tmp_path / "site.toml").write_text('cluster = "lab"\n')
    assert main(["admin", "reasons"]) == 2
    assert "no records" in capfd.readouterr().err
