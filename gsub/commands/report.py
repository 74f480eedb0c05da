"""`gsub report`: what my jobs held, used and lost over a period, and what would have helped."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gsub.commands.admin.reasons import window
from gsub.errors import USAGE, UserError

if TYPE_CHECKING:
    from gsub.report_view import Queue

__all__ = ["report"]

_SECONDS: Final = 30.0
"""A year of a busy user that the service has not in memory takes a while; then it gives up by itself."""


@click.command()
@click.option(
    "--since", default="30d", metavar="WHEN", help="That ran then or later: 12h, 30d, 8w, 2026-11-01. [30d]"
)
@click.option("--until", metavar="WHEN", help="That ran before then. [now]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--csv", "csv", type=click.Path(path_type=Path), metavar="DIR", help="Write the tables as CSV into DIR."
)
def report(since: str, until: str | None, as_json: bool, csv: Path | None) -> None:
    """My jobs over a period: GPU-hours, utilisation, failures, waiting, and what would have helped.

    Of all attempts at my jobs that ran from --since on and before --until; GPU-hours are those in between. Each figure
    says how many attempts it rests on, and of how many it is not known.
    """
    if as_json and csv is not None:
        raise UserError("--json and --csv exclude each other", fix="give one of them", exit_code=USAGE)
    begin, end = window(since, until)
    from gsub.report_view import as_csv, facts, lines
    from gsub.service import records

    found = records(timeout=_SECONDS).report(begin, end)
    # What waits is of now, not of some week of last year
    queue, trouble = _queue() if until is None else (None, "")
    if as_json:
        from gsub.commands.submit import print_json

        print_json(facts(found, queue))
    elif csv is not None:
        from gsub.folder import filling
        from profiler.wording import plain

        with filling(csv):
            count = as_csv(csv, found, queue)
        print(f"{plain(str(csv))}: {count} tables of {found.attempts:,} attempts")
    else:
        from gsub.printed import show

        show(lines(found, queue, trouble))


def _queue() -> tuple[Queue | None, str]:
    """What of the user's waits now, and for what; or why that is not known."""
    from gsub.client import connect
    from gsub.report_view import Queue
    from slurm_plugins.client.errors import SlurmError
    from slurm_plugins.decide.free import Causes, wants_nodes

    try:
        client = connect()
        now = time.time()
        pending = [
            one for one in client.jobs(user=pwd.getpwuid(os.getuid()).pw_name) if one.state.value == "PENDING"
        ]
        nodes = client.nodes() if any(map(wants_nodes, pending)) else ()
    except SlurmError as error:
        return None, str(error)
    causes = Causes(nodes)
    waits = (
        (causes.of(one), one.gpu_count, None if one.submitted is None else now - one.submitted.timestamp())
        for one in pending
    )
    return Queue(tuple(waits)), ""
