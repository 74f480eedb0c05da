"""docs/alerts.md: its tables are the program's, its site file is read, and its commands run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gsub.cli import main
from profiler.alerts import fresh_seconds
from site_configs.alerts_table import BUILT_IN, PLACEHOLDERS, QUANTITIES
from site_configs.site import parse_site
from slurm_plugins.act.limits import CANCELS
from tests.paths import REPOSITORY
from tests.unit.profiler.store.empty import empty_store

GUIDE = (REPOSITORY / "docs/alerts.md").read_text(encoding="utf-8")
SAID = {
    "number": "a number",
    "duration": "a duration",
    "share": "a share",
    "text": "a text",
    "name": "a text",
    "flag": "true or false",
}


def test_the_tables_are_the_programs() -> None:
    rules = "".join(f"| `{name}` | `{when}` | {about} |\n" for name, (when, about) in BUILT_IN.items())
    assert f"| rule | when | said of the job |\n|---|---|---|\n{rules}<!-- end -->" in GUIDE
    rows = "".join(f"| `{name}` | {SAID[sort]} | {about} |\n" for name, (sort, about) in QUANTITIES.items())
    assert f"| quantity | is | meaning |\n|---|---|---|\n{rows}<!-- end -->" in GUIDE
    assert all(f"`${name}`" in GUIDE for name in PLACEHOLDERS)


def test_the_figures_are_the_programs() -> None:
    text = " ".join(GUIDE.split())
    site = parse_site('cluster = "lab"')
    assert f"({fresh_seconds(site.agent):g} s unless `[agent]` says otherwise)" in text
    assert f"It ends {CANCELS[0]} jobs at once and {CANCELS[1] * 3600:g} an hour" in text
    assert all(rule.do == "observe" and rule.grace == 3600 for rule in site.alerts.every())
    assert not site.alerts.mail and not site.alerts.cancel


def test_its_site_file_is_read() -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    rules = {rule.name: rule for rule in parse_site(f'cluster = "lab"\n{toml}').alerts.every()}
    assert (
        rules["idle_from_start"].do == "notify"
        and rules["idle_from_start"].when == parse_site('cluster = "lab"').alerts.every()[0].when
    )
    assert rules["idle_debug"].exempt.users == ("admin1",) and rules["idle_debug"].exempt.qos == ("teaching",)


def test_its_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store = empty_store(f"sqlite:///{tmp_path / 'store.db'}")
    store.close()
    site = tmp_path / "site.toml"
    site.write_text(f'cluster = "lab"\nstore.url = "sqlite:///{tmp_path / "store.db"}"\n')
    monkeypatch.setenv("GSUB_SITE", str(site))
    lines = re.findall(r"^controller# gsub (.*)$", GUIDE, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        assert main(shlex.split(line)) == 0, capfd.readouterr().err
