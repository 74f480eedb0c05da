"""`gsub admin`: what a site's administrators do, on the host where the service runs, on nodes, or anywhere."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

__all__ = ["admin"]

_MODULES: Final = {
    "alerts": "alerts",
    "audit": "audit",
    "backup": "store",
    "db": "store",
    "doctor": "doctor",
    "install": "install",
    "mode": "mode",
    "nodes": "nodes",
    "reasons": "reasons",
    "replay": "replay",
    "restore": "store",
    "rollback": "install",
    "selftest": "selftest",
    "shadow": "shadow",
    "upgrade": "install",
}
"""The commands, and the modules that hold them: a command's module is imported when the command is asked for."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        found: click.Command = getattr(import_module(f"{__name__}.{_MODULES[cmd_name]}"), cmd_name)
        return found


@click.group(cls=_Lazy)
def admin() -> None:
    """For a site's administrators: installing gsub and taking it off, its mode, its store of records, its audit, its
    alerts, its shadow, its failures, its nodes; and what other policies would have done to its jobs.

    Exit codes: 0 done, 1 it did not work, 2 wrong usage or configuration.
    """
