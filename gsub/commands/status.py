"""`gsub status`: my jobs; live on a terminal, a plain table in a pipe."""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

import click

from gsub.client import connect, telling
from gsub.render import clock, elapsed, state_name, style
from gsub.term import console, is_terminal, one_line
from slurm_plugins.client.purposes import STATUS

if TYPE_CHECKING:
    from rich.table import Table

    from slurm_plugins.client.protocol import SlurmClient
    from slurm_plugins.client.values import Job

REFRESH: Final = 5.0
"""Seconds between questions to Slurm while live."""
COLUMNS: Final = ("JOB", "NAME", "STATE", "TIME", "LIMIT", "NODES", "GPUS", "PARTITION", "WHERE")
_CUT: Final = ("NAME", "WHERE")
"""What is cut where the terminal is narrow: to `_NARROW` at least; on a wide one at `_WIDE`."""
_LEFT_OUT: Final = ("PARTITION", "LIMIT", "NODES", "GPUS", "TIME")
"""What goes, one after the other, before that."""
_NARROW: Final = 16
_GAP: Final = 2
_WIDE: Final = 28


@click.command()
@click.option("--ended", is_flag=True, help="Also the jobs that ended and that Slurm still holds.")
@click.option("--once", is_flag=True, help="Print once, also on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(ended: bool, once: bool, as_json: bool) -> int:
    """My jobs. On a terminal the table is kept up to date until Ctrl-C or until no job is left."""
    user = pwd.getpwuid(os.getuid()).pw_name
    client = connect()
    with telling():
        jobs = my_jobs(client, user, ended=ended)
        if as_json:
            from gsub.commands.submit import print_json

            print_json({"jobs": [facts(job) for job in jobs]})
        elif is_terminal(sys.stdout):
            _show(client, user, jobs, ended=ended, once=once)
        elif jobs:
            print("\n".join(plain_table(jobs)))
    return 0


def my_jobs(client: SlurmClient, user: str, *, ended: bool) -> tuple[Job, ...]:
    """The user's jobs, those that ended only when asked for."""
    return tuple(job for job in client.jobs(user=user, values=STATUS) if ended or not job.ended)


def row(job: Job, now: datetime) -> tuple[str, ...]:
    """A job's cells, one for each of COLUMNS; harmless text."""
    shown = f"{job.id}_[{job.array_tasks}]" if job.array_tasks else job.shown_id
    gpus = job.gpu_count
    attempt = f", attempt {job.restarts + 1}" if job.restarts else ""
    where = str(job.nodes) if job.nodes else f"({job.reason}{attempt})" if job.reason else ""
    cells = (
        shown,
        job.name,
        state_name(job),
        clock(elapsed(job, now)),
        clock(job.time_limit) if job.time_limit is not None else "none",
        str(job.num_nodes or ""),
        str(gpus or "-"),
        job.partition,
        where,
    )
    return tuple(one_line(cell) for cell in cells)


def plain_table(jobs: Sequence[Job], now: datetime | None = None) -> list[str]:
    """The table as text, a line a job; nothing is cut off, since programs read it too."""
    now = now or datetime.now(timezone.utc)
    lines = [COLUMNS, *(row(job, now) for job in jobs)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def facts(job: Job) -> dict[str, object]:
    """A job for `--json`: times in ISO 8601, durations in seconds."""
    return {
        "job_id": job.id,
        "id": job.shown_id,
        "array_tasks": job.array_tasks,
        "name": job.name,
        "state": state_name(job),
        "reason": job.reason,
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "nodes": str(job.nodes) or None,
        "num_nodes": job.num_nodes,
        "gpus": job.gpu_count,
        "cpus": job.num_cpus,
        "submitted": job.submitted.isoformat() if job.submitted else None,
        "start": job.start.isoformat() if job.start else None,
        "time_limit": job.time_limit,
        "stdout": job.stdout,
        "restarts": job.restarts,
    }


def _show(client: SlurmClient, user: str, jobs: Sequence[Job], *, ended: bool, once: bool) -> None:
    screen = console()
    if not jobs or once:
        screen.print(_table(jobs, screen.width) if jobs else "You have no jobs.")
        return
    from rich.live import Live

    try:
        with Live(_table(jobs, screen.width), console=screen, auto_refresh=False, transient=False) as live:
            while any(not job.ended for job in jobs):
                time.sleep(REFRESH)
                jobs = my_jobs(client, user, ended=ended)
                live.update(_table(jobs, screen.width) if jobs else "You have no jobs.", refresh=True)
    except KeyboardInterrupt:
        pass


def shown_columns(rows: Sequence[Sequence[str]], width: int) -> tuple[str, ...]:
    """Those of COLUMNS that have room on a terminal of that width, for rows that have a cell for each.

    >>> shown_columns([("7", "train", "RUNNING", "1:00", "2:00", "1", "8", "gpu", "n1")], 40)
    ('JOB', 'NAME', 'STATE', 'TIME', 'GPUS', 'WHERE')
    """
    needs = {name: max(map(len, (name, *cells))) for name, *cells in zip(COLUMNS, *rows, strict=True)}
    needs.update({name: min(needs[name], _NARROW) for name in _CUT})
    shown = list(COLUMNS)
    for name in _LEFT_OUT:
        if sum(needs[one] + _GAP for one in shown) - _GAP <= width:
            break
        shown.remove(name)
    return tuple(shown)


def _table(jobs: Sequence[Job], width: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    now = datetime.now(timezone.utc)
    rows = [row(job, now) for job in jobs]
    shown = shown_columns(rows, width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 0), show_edge=False)
    for name in shown:
        table.add_column(
            name.capitalize(),
            justify="right" if name in ("TIME", "LIMIT", "NODES", "GPUS") else "left",
            no_wrap=name not in _CUT,
            max_width=_WIDE if name in _CUT else None,
        )
    for cells in rows:
        table.add_row(
            *(
                # Text and not str: a job's name is no markup
                Text(cell, style=style(cell) if name == "STATE" else "")
                for name, cell in zip(COLUMNS, cells, strict=True)
                if name in shown
            )
        )
    return table
