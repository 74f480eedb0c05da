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
    from .tables import Unread

__all__ = ["client"]


def client(
    env: Mapping[str, str] | None = None,
    backend: Literal["auto", "commands", "pyslurm"] = "auto",
    *,
    timeout: float = 60.0,
    unread: Unread | None = None,
) -> SlurmClient:
    """Return a client for the cluster that ``env`` (default: this process's environment) points to.

    ``commands`` runs Slurm's commands. ``pyslurm`` reads nodes and partitions over pyslurm in a child process, and
    raises SlurmNotInstalled where that cannot be used. ``auto`` is ``commands``: they are on every cluster, and as
    fast. ``timeout`` is in seconds; rows that cannot be read are counted in ``unread``.
    """
    # Late: who needs one back end does not pay for the other.
    if backend == "pyslurm":
        from .pyslurm_client import PyslurmClient

        return PyslurmClient(env, timeout=timeout, unread=unread)
    from .commands import CommandClient

    return CommandClient(env, timeout=timeout, unread=unread)
