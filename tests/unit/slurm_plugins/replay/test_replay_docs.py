"""docs/replay.md: every command in it does what it says, on files of the names that it uses."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from gsub.cli import main
from slurm_plugins.replay.policy import PRESETS, WORDS, Policy, PolicyError
from slurm_plugins.replay.retrying import RETRIES
from slurm_plugins.replay.smoking import SMOKES
from slurm_plugins.replay.traces.sacct import EXPORT
from tests.paths import REPOSITORY
from tests.unit.slurm_plugins.replay.test_replay_command import T, export

TEXT = (REPOSITORY / "docs/replay.md").read_text()
ORDERS = {word for word, fields in WORDS.items() if "order" in fields}
COMMANDS = re.findall(r"^controller# (gsub admin replay .*)$", TEXT, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    export(folder / "october.psv")
    for name in ("slurm.conf", "topology.conf"):
        shutil.copy(REPOSITORY / "site_configs/examples/small-lab" / name, folder)
    site = (REPOSITORY / "site_configs/examples/small-lab.toml").read_text()
    (folder / "site.toml").write_text(site.replace("small-lab/topology.conf", "topology.conf"))
    rows = [f"2017-10-0{1 + n // 24} {n % 24:02}:00:00,3600,{(1, 8)[n % 2]},0,a" for n in range(48)]
    (folder / "philly_jobs.csv.gz").write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n" + "\n".join(rows)
    )
    (folder / "shares").write_text("Account|User|RawShares|RawUsage\nroot||1|0\nlab||1|5\n lab|ada|1|5\n")
    (folder / "qos").write_text("Name|Priority\nnormal|0\n")
    return folder


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_works(line, folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    words = shlex.split(line)[1:]
    # the page's dates are those of a month; the export here is of another day
    words = [word.replace("2026-10-06", "2026-01-01").replace("2026-10-20", "2027-01-01") for word in words]
    assert T > 1_767_000_000
    code = main(words)
    out, err = capfd.readouterr()
    assert code == 0, err
    if "--json" in words:
        assert json.loads(out)["runs"]
    elif "--html" in words:
        assert (folder / words[words.index("--html") + 1]).stat().st_size > 20_000
    else:
        assert "Side by side" in out and "Queueing delay by size" in out


def test_there_are_commands():
    assert len(COMMANDS) > 8


def test_the_export_is_the_readers_own():
    assert f"controller# {EXPORT} > october.psv" in TEXT


def test_words_of_the_page_are_words():
    table = TEXT[TEXT.index("## Policies") : TEXT.index("## Failures")]
    told = [
        word
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for word in re.findall(r"`([^`]+)`", row)
    ]
    assert len(told) > 20
    for text in told:
        for word in text.split("+"):
            name, equals, _ = word.partition("=")
            assert equals or name in {*PRESETS, *WORDS}, word
        first = text.partition("=")[0].partition("+")[0]
        try:
            Policy.parse(text if first in {*PRESETS, *ORDERS} else f"fifo+{text}")
        except PolicyError as error:
            # some words say nothing beside some orders; what they are is known all the same
            assert "known:" not in str(error), text
    remedies = TEXT[TEXT.index("## Failures") : TEXT.index("## What each figure means")]
    assert all(f"`{name}`" in remedies for name in (*RETRIES, *SMOKES))
