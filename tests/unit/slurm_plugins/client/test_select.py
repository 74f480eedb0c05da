"""Choosing a back end."""

import pytest

from slurm_plugins.client import client
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.protocol import SlurmClient
from slurm_plugins.client.pyslurm_client import PyslurmClient


@pytest.mark.parametrize(
    ("backend", "kind"), [("auto", CommandClient), ("commands", CommandClient), ("pyslurm", PyslurmClient)]
)
def test_backends(backend, kind):
    chosen = client({}, backend)
    assert isinstance(chosen, kind)
    assert isinstance(chosen, SlurmClient)


def test_the_default_is_the_commands():
    assert isinstance(client(), CommandClient)
