"""docs/resubmission.md says what the code does."""

from __future__ import annotations

import re
from typing import get_args

from profiler.resubmissions import ACTIONS, Stop
from site_configs.site import parse_site
from site_configs.site_model import Resubmit
from slurm_plugins.resubmit.actions import action_for
from slurm_plugins.resubmit.reference import updated
from tests.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "resubmission.md").read_text(encoding="utf-8")


def test_the_table_is_what_the_code_says():
    assert updated(PAGE) == PAGE, "run: python -m slurm_plugins.resubmit.reference docs/resubmission.md"


def test_each_action_and_each_stop_is_explained():
    for action in ACTIONS:
        assert f"\n| `{action}` |" in PAGE, action
    for stop in get_args(Stop):
        assert not stop or f"`{stop}`" in PAGE, stop


def test_the_figures_are_the_defaults():
    policy = Resubmit()
    assert f"**The budget is {policy.budget}** further attempts" in PAGE
    assert f"**{policy.budget_most} in a job's whole life**" in PAGE
    assert f"less sure than {policy.confidence:g}" in PAGE
    assert (policy.backoff, policy.backoff_most, policy.memory_factor, policy.avoid_most) == (
        60,
        3600,
        1.5,
        8,
    )


def test_the_example_is_a_site_file():
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    site = parse_site('cluster = "lab"\n' + example[1])
    assert site.resubmit.budget == 2
    assert action_for("gpu_oom", site.resubmit) == "once"
    assert action_for("no_signature", site.resubmit) == "once" and site.resubmit.without_gpus
