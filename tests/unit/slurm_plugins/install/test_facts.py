"""What is looked at before anything is planned."""

from __future__ import annotations

from pathlib import Path

from slurm_plugins.install.facts import slurm_env
from slurm_plugins.install.layout import Layout
from tests.unit.slurm_plugins.install.fakes import FakeHost


def test_slurms_commands_are_named_only_a_slurm_conf_that_is_there():
    """They wait a minute for one that is not: in an image that is being made, or on a configless host, for ever."""
    host, layout = FakeHost(), Layout(Path("/etc/slurm/slurm.conf"))
    assert "SLURM_CONF" not in slurm_env(host, layout)
    host.put(layout.slurm_conf, "ClusterName=c\n")
    assert slurm_env(host, layout)["SLURM_CONF"] == "/etc/slurm/slurm.conf"
