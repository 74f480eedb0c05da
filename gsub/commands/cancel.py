"""`gsub cancel JOB...`: cancel jobs."""

from __future__ import annotations

import sys

import click

from gsub.client import connect, job_id, telling
from gsub.errors import FAILED, UserError
from gsub.term import is_terminal


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
        for job in wanted:
            try:
                # One by one: Slurm names only the first that it does not know.
                client.cancel([job])
                done.append(job)
            except NoSuchJob:
                gone.append(job)
    if done:
        print(f"Cancelled {', '.join(done)}.", flush=True)
    if gone:
        raise UserError(
            f"Slurm has no job {', '.join(gone)}", fix="'gsub status' lists your jobs", exit_code=FAILED
        )
    return 0
