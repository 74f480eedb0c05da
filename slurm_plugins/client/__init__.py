"""Talking to Slurm: one protocol, several back ends.

>>> from slurm_plugins.client import client
>>> client().nodes()                             # doctest: +SKIP
"""

from __future__ import annotations

# As typing.TYPE_CHECKING, without the 2 ms of typing
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from .protocol import SlurmClient

__all__ = ["client"]


def client(
    env: Mapping[str, str] | None = None, backend: Literal["auto", "commands", "pyslurm"] = "auto"
) -> SlurmClient:
    """A client for the cluster that ``env`` (default: this process's environment) points to.

    ``commands`` runs Slurm's commands. ``pyslurm`` reads over pyslurm in a child process and acts over the
    commands; raises SlurmNotInstalled where it cannot be imported. ``auto`` is ``commands``: they are on every
    cluster, apply cli_filter and SPANK, and cost 10 ms a call; pyslurm pays only for services that read often.
    """
    # Late: who needs one back end does not pay for the other.
    if backend == "pyslurm":
        from .pyslurm_client import PyslurmClient

        return PyslurmClient(env)
    from .commands import CommandClient

    return CommandClient(env)
