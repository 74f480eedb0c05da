"""`gsub why JOB`: what became of a job, and why; `gsub why --log FILE...`: what a log says of it."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gsub.errors import USAGE, UserError


@click.command()
@click.argument("words", nargs=-1, metavar="JOB | --log FILE...")
@click.option(
    "--log", "of_log", is_flag=True, help="Classify log files ('-': standard input), without a job."
)
@click.option(
    "--state", metavar="STATE", help="With --log: how Slurm says that it ended (FAILED, TIMEOUT...)."
)
@click.option(
    "--exit-code",
    metavar="N",
    help="With --log: its exit code, as a number or as Slurm writes it (1:0, 0:9).",
)
@click.option("--together", is_flag=True, help="With --log: the files are of the ranks of one job.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: one object a file, or one for the job.")
def why(
    words: Sequence[str],
    *,
    of_log: bool,
    state: str | None,
    exit_code: str | None,
    together: bool,
    as_json: bool,
) -> int:
    """Why JOB (12, 12_3 or 12+1) waits or failed, in one sentence with its evidence.

    With --log FILE... the files alone are looked at: no job, no Slurm and no service is needed.
    """
    if of_log:
        from gsub.why_log import ended_as, why_logs

        if not words:
            raise UserError(
                "there is no log to look at",
                fix="gsub why --log FILE...; '-' reads standard input",
                exit_code=USAGE,
            )
        return why_logs(words, ended_as(state, exit_code), together=together, as_json=as_json)
    for given, name in ((state, "--state"), (exit_code, "--exit-code"), (together, "--together")):
        if given:
            raise UserError(
                f"{name} is of log files only", fix=f"gsub why --log FILE... {name} ...", exit_code=USAGE
            )
    if len(words) != 1:
        raise UserError(
            "gsub why wants one job" if not words else "gsub why tells of one job at a time",
            fix="gsub why JOB, or gsub why --log FILE...; 'gsub status --ended' lists your jobs",
            exit_code=USAGE,
        )
    from gsub.why_job import why_job

    return why_job(words[0], as_json=as_json)
