"""`gsub admin audit`: what a site's GPUs were used for over a span of time, out of the store of records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gsub.commands.admin.reasons import window
from gsub.commands.admin.store import cluster_of, of_store, opened, telling
from gsub.errors import USAGE, UserError
from gsub.page_file import put, refuse
from gsub.term import counting

if TYPE_CHECKING:
    from profiler.report.figures import Table
    from profiler.report.files import About
    from profiler.report.frames import Frame
    from profiler.store import Store

__all__ = ["audit"]

BY: Final = ("user", "account", "partition", "reason", "gpu-type")
"""As `profiler.report.figures` has them, which would bring pandas along."""
_STEP: Final = 100_000
"""Attempts between two words of progress."""


@click.command()
@click.option(
    "--since", default="30d", metavar="WHEN", help="That ran then or later: 12h, 30d, 8w, 2026-11-01. [30d]"
)
@click.option("--until", metavar="WHEN", help="That ran before then. [now]")
@click.option(
    "--by", "split", multiple=True, type=click.Choice(BY), help="Also by this; may be said several times."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--csv", "csv", type=click.Path(path_type=Path), metavar="DIR", help="Write the tables as CSV into DIR."
)
@click.option(
    "--parquet",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="... as Parquet, with the data frame of all jobs.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="One page with plots, that needs nothing else: for a browser, a mail, a printer.",
)
@click.option(
    "--pseudonyms", is_flag=True, help="Made-up names for users, accounts and jobs: for publishing."
)
@click.option("--cluster", metavar="NAME", help="Another cluster than the site file's.")
@of_store
def audit(  # noqa: PLR0917 - click gives them by their names
    since: str,
    until: str | None,
    split: tuple[str, ...],
    as_json: bool,
    csv: Path | None,
    parquet: Path | None,
    html: Path | None,
    pseudonyms: bool,
    cluster: str | None,
    url: str | None,
) -> None:
    """What the GPUs were used for: hours by outcome, utilisation, failures, waste, waiting, locality.

    Of all attempts at jobs that ran from --since on and before --until; GPU-hours are those in between. Each table
    says how many attempts it rests on, and of how many something is not known. Run this where the store can be
    reached. JSON, CSV, Parquet and HTML are split by all that --by knows, unless it is given.
    """
    from profiler.wording import plain

    if sum((as_json, csv is not None, parquet is not None, html is not None)) > 1:
        raise UserError(
            "--json, --csv, --parquet and --html exclude each other", fix="give one of them", exit_code=USAGE
        )
    begin, end = window(since, until)
    name = cluster_of(cluster)
    with opened(url, read_only=True) as store, telling():
        if parquet is not None:
            from profiler.report.files import check_parquet

            check_parquet()  # told before the work, not after
        if html is not None:
            import profiler.report.html  # noqa: F401 - what it lacks: the same

            refuse(html, "audit")
        frame = _frame(store, name, begin, end, everything=parquet is not None)
        if not len(frame):
            raise _nothing(store, name, begin, end)
        from profiler.report.frames import pseudonymous, span

        # Before the first record nothing is known, which is not that nothing ran
        records = span(store, name)
        begin = begin if records is None else max(begin, records[0])
    from profiler.report.figures import audit as figures
    from profiler.report.files import About
    from profiler.report.files import as_json as json_of

    if pseudonyms:
        frame = pseudonymous(frame)
    about = About(name, begin, end, pseudonyms)
    folder = csv or parquet
    everything = as_json or folder is not None or html is not None
    tables = figures(frame, since=begin, until=end, split=split or (BY if everything else ()))
    if as_json:
        print(json_of(about, tables))
    elif folder is not None:
        _put(folder, about, tables, None if parquet is None else frame)
        print(f"{plain(str(folder))}: {len(tables)} tables of {len(frame):,} attempts")
    elif html is not None:
        from profiler.report.html import page

        put(html, page(about, tables), "audit")
        print(f"{plain(str(html))}: {len(frame):,} attempts")
    else:
        from gsub.audit_view import show

        show(about, tables)


def _frame(store: Store, cluster: str, since: float, until: float, *, everything: bool) -> Frame:
    """The attempts, with a sign of life while they are read; `everything` of them, or what tables are made of."""
    from profiler.report.figures import NEEDED
    from profiler.report.frames import COLUMNS, jobs

    with counting("attempts read", _STEP) as progress:
        store.check()
        columns = tuple(COLUMNS) if everything else NEEDED
        return jobs(store, cluster=cluster, since=since, until=until, columns=columns, progress=progress)


def _nothing(store: Store, cluster: str, since: float, until: float) -> UserError:
    """What to tell where nothing ran."""
    from datetime import datetime

    from profiler.report.frames import span

    days = [datetime.fromtimestamp(at).strftime("%Y-%m-%d") for at in (since, until)]
    known = span(store, cluster)
    if known is None:
        return UserError(
            f"the store has no jobs of the cluster {cluster}",
            fix="name another cluster with --cluster, or another store with --store",
        )
    first, last = (datetime.fromtimestamp(at).strftime("%Y-%m-%d") for at in known)
    return UserError(
        f"no job ran from {days[0]} to {days[1]}",
        why=f"the jobs in the store started from {first} to {last}",
        fix=f"gsub admin audit --since {first}",
    )


def _put(folder: Path, about: About, tables: list[Table], frame: Frame | None) -> None:
    """Write the files. Raises UserError, and then nothing is there."""
    from gsub.folder import filling
    from profiler.report.files import put_csv, put_parquet

    with filling(folder):
        if frame is None:
            put_csv(folder, about, tables)
        else:
            put_parquet(folder, about, tables, frame)
