"""`gsub cancel JOB...`: cancel jobs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from gsub.client import connect, job_id, telling
from gsub.errors import FAILED, UserError
from gsub.job_parts import live_parts
from gsub.term import is_terminal

if TYPE_CHECKING:
    from slurm_plugins.client.protocol import SlurmClient


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--yes", is_flag=True, help="Do not ask, however many they are.")
def cancel(jobs: tuple[str, ...], yes: bool) -> int:
    """Cancel each JOB (12, 12_3 or 12+1). On a terminal several jobs are cancelled after a question only."""
    wanted = tuple(dict.fromkeys(job_id(job) for job in jobs))
    asking = len(wanted) > 1 and not yes and is_terminal(sys.stdin) and is_terminal(sys.stdout)
    if asking and not click.confirm(f"Cancel {len(wanted)} jobs ({', '.join(wanted)})?"):
        raise UserError("nothing was cancelled", exit_code=FAILED)
    from slurm_plugins.client.errors import NoSuchJob

    client = connect()
    done = []
    gone = []
    with telling():
        over = _over(client, wanted)
        for job in (job for job in wanted if job not in over):
            try:
                # One by one: Slurm names only the first that it does not know.
                client.cancel([job])
                done.append(job)
            except NoSuchJob:
                gone.append(job)
    if done:
        print(f"Cancelled {', '.join(done)}.", flush=True)
    for job, state in over.items():
        print(f"{job} had ended before ({state}): nothing to cancel.", flush=True)
    if gone:
        raise UserError(
            f"Slurm has no job {', '.join(gone)}", fix="'gsub status' lists your jobs", exit_code=FAILED
        )
    return 0


def _over(client: SlurmClient, wanted: Sequence[str]) -> Mapping[str, str]:
    """The jobs of which nothing waits or runs any more, and how they ended: scancel says nothing about these."""
    found = {}
    for job in wanted:
        parts = live_parts(job, client)
        if parts and all(part.ended for part in parts):
            found[job] = ", ".join(sorted({part.state.value for part in parts}))
    return found
