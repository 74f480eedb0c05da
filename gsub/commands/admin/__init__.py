"""`gsub admin`: what a site's administrators do, on the host where the service runs."""

from __future__ import annotations

import click

from gsub.commands.admin.store import backup, db, restore

__all__ = ["admin"]


@click.group()
def admin() -> None:
    """For a site's administrators, on the host where gsubd runs: the store of records.

    Each command takes the store that the site file names, unless --store names another. Exit codes: 0 done, 1 it did
    not work, 2 wrong usage or configuration.
    """


for command in (backup, restore, db):
    admin.add_command(command)
