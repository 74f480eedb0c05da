"""docs/gsub-act.md: its tables are the program's, and its commands run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_plugins.act.allowed import LIMITS
from slurm_plugins.act.limits import ALL, CANCELS, EACH_JOB, RELEASES
from slurm_plugins.act.verbs import FIELDS, VERBS
from tests.act.conftest import Acting

GUIDE = Path(__file__).parents[2] / "docs/gsub-act.md"


def test_the_tables_are_the_programs():
    verbs = "".join(
        f"| `{name}` | {verb.about} | `{' '.join(verb.command)}` |\n" for name, verb in VERBS.items()
    )
    fields = "".join(f"| `{name}` | {field.about} |\n" for name, field in FIELDS.items())
    wanted = f"| verb | what | command |\n|---|---|---|\n{verbs}\n| field of `update` | what |\n|---|---|\n{fields}"
    assert wanted in GUIDE.read_text()


def test_the_limits_and_rates_are_the_programs():
    text = " ".join(GUIDE.read_text().split())
    limits = " ".join(f"| `{name}` | {about} |" for name, about in LIMITS.items())
    assert f"| limit of memory | whose, and what counts | |---|---| {limits} <!-- end -->" in text
    at_once, a_second = ALL
    releases, releases_a_second = RELEASES
    assert f"more than {EACH_JOB[0]} acts a minute on one job" in text
    assert f"more than {at_once} at once and {a_second:g} a second after that" in text
    assert f"more than {CANCELS[0]} at once and {CANCELS[1] * 3600:g} an hour after that" in text
    assert f"(releases: {releases} and {releases_a_second:g} a second, apart)" in text


@pytest.mark.root
def test_the_commands_run(acting: Acting) -> None:
    """Those of root on the controller's host, with this cluster's places; its user and unit are there already."""
    cluster = acting.cluster
    text = cluster.paths.site.read_text()
    lines = re.findall(r"^controller# (.*)$", GUIDE.read_text(), re.MULTILINE)
    left_out = [line for line in lines if line.startswith(("useradd", "install"))]
    assert len(left_out) == 2 and len(lines) == 11
    try:
        for line in lines:
            if line in left_out:
                continue
            here = line.replace("/etc/gsub", str(cluster.paths.etc)).replace(
                "/var/lib/gsub-act", str(cluster.paths.act_state)
            )
            if "admin mode" in line:
                here += f" --force --metrics=127.0.0.1:{cluster.ports.gsubd} --prefix={cluster.paths.root}"
            done = cluster.run(["bash", "-c", here])
            said = done.stdout + done.stderr
            # an operator that is there already is no error of the guide's
            assert done.returncode == 0 or "Nothing" in said, f"{here}: {said}"
            if "adminlevel" in line and "show" in line:
                assert said.strip() == "Operator"
    finally:
        cluster.write_site(text)
        in_force(acting)


def in_force(acting: Acting) -> None:
    """Wait until gsub-act enforces again: it looks at the site file once a second."""
    job = acting.waiting()
    acting.wait(lambda: acting.ask("hold", job)["result"] == "done")
    assert acting.ask("release", job)["result"] == "done"
