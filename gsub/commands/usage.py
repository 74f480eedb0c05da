"""`gsub usage JOB`: how a job uses its GPUs, CPUs and memory, while it runs and after."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import click

from gsub.client import connect, job_id
from gsub.errors import UserError
from gsub.printed import STYLES, Line, show
from gsub.sbatch import clean_environment
from gsub.service import NoRecordError, Records, records
from gsub.sparkline import ramp
from gsub.term import Spinner, console, is_terminal
from gsub.usage_view import Look, lines
from profiler.answers import JobSummary, Series, Usage
from profiler.receipt import receipt

_T = TypeVar("_T")

NEWS: Final = 15.0
"""Seconds in which the nodes of a new job are waited for."""
REFRESH: Final = 10.0
"""Seconds between looks with --watch; nodes tell of a running job once a minute."""
_PATIENCE: Final = 600.0
_PIPE: Final = 100
"""Signs of a line in a pipe."""


@click.command()
@click.argument("job")
@click.option("--node", metavar="NAME", help="Only this node.")
@click.option(
    "--restarts",
    type=click.IntRange(0, 1 << 20),
    metavar="N",
    help="The attempt after N requeues. Default: the last one.",
)
@click.option("--watch", is_flag=True, help="Keep it up to date until the job has ended.")
@click.option("--receipt", "brief", is_flag=True, help="Six lines: what it used, and what to ask for next.")
@click.option("--json", "as_json", is_flag=True, help="Print the service's answer, one JSON object.")
def usage(
    job: str, *, node: str | None, restarts: int | None, watch: bool, brief: bool, as_json: bool
) -> None:
    """How JOB (12, 12_3 or 12+1) uses its GPUs, CPUs and memory, while it runs and after.

    Utilisation is the share of time in which the GPU computed; memory is the peak; n/a is what nobody measured.
    """
    job_id(job)
    service = records()
    if as_json:
        _print_json(_patiently(job, lambda: service.body("usage", job, restarts, node)))
    elif brief:
        print("\n".join(receipt(_patiently(job, lambda: service.usage(job, restarts)))))
    elif watch and is_terminal(sys.stdout):
        _watch(service, job, restarts, node)
    else:
        found, course = _look(service, job, restarts, node)
        show(lines(found, course, _screen(), node))


def _look(service: Records, job: str, restarts: int | None, node: str | None) -> tuple[Usage, Series]:
    """The job now: what it used, and its course over time. Raises UserError."""
    found = _patiently(job, lambda: service.usage(job, restarts))
    if node is not None and node not in {one.node for one in found.nodes}:
        known = ", ".join(one.node for one in found.nodes[:8])
        raise UserError(
            f"job {job} has told nothing of a node {node}",
            fix=f"it has of: {known}" if known else "no node has told of it yet: try again in a minute",
        )
    # of the very attempt that was found: a requeue in between would show two in one picture
    return found, service.series(job, found.job.restarts, node)


def _patiently(job: str, ask: Callable[[], _T]) -> _T:
    """What is answered to `ask`; the nodes of a job that has just started are given time to tell of it.

    Raises UserError.
    """
    try:
        return ask()
    except NoRecordError:
        if not _may_come(job):
            raise
    spinner = Spinner()
    until = time.monotonic() + NEWS
    try:
        spinner.show(f"the nodes of job {job} have not told of it yet")
        while True:
            time.sleep(0.5)
            try:
                return ask()
            except NoRecordError as error:
                if time.monotonic() > until:
                    raise UserError(
                        f"the nodes of job {job} have not told of it yet",
                        why="they do within seconds, unless the service or their agents have trouble",
                        fix="try again in a minute; if it stays so, tell the site's administrators",
                    ) from error
    finally:
        spinner.hide()


def _may_come(job: str) -> bool:
    """Whether Slurm has it as a job of this user that has started, and did not end long ago. Raises UserError."""
    from slurm_plugins.client.errors import SlurmError

    try:
        jobs = connect().jobs(ids=[job])
    except SlurmError:
        return False
    own = [one for one in jobs if one.uid == os.geteuid()]
    if own and all(one.state.value == "PENDING" for one in own):
        raise UserError(
            f"job {job} has not started",
            fix=f"its record begins when it starts; 'gsub watch {job}' tells when that is",
        )
    return any(not one.ended or (one.end and time.time() - one.end.timestamp() < 2 * NEWS) for one in own)


def _screen() -> Look:
    terminal = is_terminal(sys.stdout)
    width = shutil.get_terminal_size().columns if terminal else _PIPE
    return Look(ramp(sys.stdout, clean_environment()), width, time.time())


def _watch(service: Records, job: str, restarts: int | None, node: str | None) -> None:
    """Show it anew until the job has ended. A service that is silent for a while is waited for, and that is said."""
    from rich.live import Live
    from rich.text import Text

    def drawn(view: Iterable[Line]) -> Text:
        return Text("\n").join(Text(line.text, style=STYLES.get(line.kind, "")) for line in view)

    found, course = _look(service, job, restarts, node)
    try:
        with Live(
            drawn(lines(found, course, _screen(), node)), console=console(), auto_refresh=False
        ) as live:
            while not _over(found.job):
                time.sleep(REFRESH)
                trouble: list[Line] = []
                try:
                    found, course = _look(service, job, restarts, node)
                except UserError as error:
                    trouble = [Line(line, "idle") for line in error.lines()]
                live.update(drawn([*lines(found, course, _screen(), node), *trouble]), refresh=True)
    except KeyboardInterrupt:
        pass


def _over(job: JobSummary) -> bool:
    """Whether nothing more is to come. A node that has died never tells its end."""
    return job.ended is not None and (job.complete or time.time() - job.ended > _PATIENCE)


def _print_json(body: bytes) -> None:
    """The service's object on one line; only ASCII, so that any terminal and any locale takes it. Raises UserError."""
    import json

    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserError(
            "the gsub service answers in words that are not understood here",
            why=str(error),
            fix="tell the site's administrators",
        ) from error
    print(json.dumps(found))
