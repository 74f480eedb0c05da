"""`gsub admin shadow`: what enforce would have changed in observe, against what really happened."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gsub.commands.admin.reasons import window
from gsub.commands.admin.store import cluster_of, of_store, opened, telling
from gsub.errors import USAGE, UserError
from gsub.page_file import put, refuse
from gsub.term import counting

__all__ = ["shadow"]

_STEP = 20_000
"""Decisions between two words of progress."""


@click.command()
@click.option(
    "--since",
    default="30d",
    metavar="WHEN",
    help="Jobs submitted then or later: 12h, 30d, 8w, 2026-11-01. [30d]",
)
@click.option("--until", metavar="WHEN", help="Jobs submitted before then. [now]")
@click.option("--partition", metavar="P", help="Only this partition; the line is for it then.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="One page that needs nothing else: for a browser, a mail, a printer.",
)
@click.option("--cluster", metavar="NAME", help="Another cluster than the site file's.")
@of_store
def shadow(  # noqa: PLR0917 - click gives them by their names
    since: str,
    until: str | None,
    partition: str | None,
    as_json: bool,
    html: Path | None,
    cluster: str | None,
    url: str | None,
) -> None:
    """What enforce would have changed, against what really happened; and the line that turns on what helps.

    Each stage of a decision with the attempts on which it would have acted in observe and advise, whom it would have
    helped, whom it would have harmed, and what that supposes. Where too little is known nothing is claimed. Run this
    where the store can be reached.
    """
    begin, end = window(since, until)
    if partition == "":
        raise UserError("--partition names nothing", fix="name one, or leave it out", exit_code=USAGE)
    if as_json and html is not None:
        raise UserError("--json and --html exclude each other", fix="give one of them", exit_code=USAGE)
    from gsub.site import read_site

    site = read_site(os.environ)
    name = cluster_of(cluster)
    with opened(url, read_only=True) as store, telling():
        if html is not None:
            import gsub.shadow_page  # noqa: F401 - what it lacks is told before the work

            refuse(html, "shadow")
        from profiler.report.shadow import shadow as read

        with counting("decisions read", _STEP) as progress:
            store.check()
            page = read(
                store,
                cluster=name,
                since=begin,
                until=end,
                partition=partition,
                site=site,
                progress=progress,
            )
    from profiler.report.advice import advice

    found = advice(page, site if site is not None and site.cluster == name else None)
    if as_json:
        import msgspec

        print(msgspec.json.encode({"page": page, "advice": found}).decode())
    elif html is not None:
        from gsub.shadow_page import page as whole
        from profiler.wording import plain

        put(html, whole(page, found), "shadow")
        print(f"{plain(str(html))}: {page.overview.decisions:,} decisions")
    else:
        from gsub.shadow_view import show

        show(page, found)
