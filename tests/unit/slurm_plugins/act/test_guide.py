"""docs/gsub-act.md: its tables are the program's, and its commands run."""

from __future__ import annotations

from slurm_plugins.act.allowed import PARTITION_LIMITS
from slurm_plugins.act.limits import ALL, CANCELS, EACH_JOB, RELEASES
from slurm_plugins.act.verbs import FIELDS, VERBS
from slurm_plugins.limits.bounds import LIMITS
from tests.paths import REPOSITORY

GUIDE = REPOSITORY / "docs/gsub-act.md"


def test_the_tables_are_the_programs():
    verbs = "".join(
        f"| `{name}` | {verb.about} | `{' '.join(verb.command)}` |\n" for name, verb in VERBS.items()
    )
    fields = "".join(f"| `{name}` | {field.about} |\n" for name, field in FIELDS.items())
    wanted = f"| verb | what | command |\n|---|---|---|\n{verbs}\n| field of `update` | what |\n|---|---|\n{fields}"
    assert wanted in GUIDE.read_text()


def test_the_limits_and_rates_are_the_programs():
    text = " ".join(GUIDE.read_text().split())
    limits = " ".join(f"| `{name}` | {about} |" for name, about in {**PARTITION_LIMITS, **LIMITS}.items())
    assert f"| limit | whose, and what counts | |---|---| {limits} <!-- end -->" in text
    at_once, a_second = ALL
    releases, releases_a_second = RELEASES
    assert f"more than {EACH_JOB[0]} acts a minute on one job" in text
    assert f"more than {at_once} at once and {a_second:g} a second after that" in text
    assert f"more than {CANCELS[0]} at once and {CANCELS[1] * 3600:g} an hour after that" in text
    assert f"(releases: {releases} and {releases_a_second:g} a second, apart)" in text
