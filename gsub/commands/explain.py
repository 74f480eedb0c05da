"""`gsub explain SCRIPT`: what gsub would change about a job, and why; nothing is submitted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gsub.argv import CommandLine, split
from gsub.errors import FAILED, USAGE, UserError
from gsub.sbatch import clean_environment
from gsub.sbatch_options import Table
from gsub.term import is_terminal

if TYPE_CHECKING:
    from gsub.decide import Explanation


class _Verbatim(click.Command):
    """All words but a first `--help` are sbatch's and ours, to be read as `gsub` itself reads them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["--help"]:
            click.echo(ctx.get_help())
            ctx.exit()
        ctx.params = {"words": tuple(args)}
        return []


@click.command(cls=_Verbatim, options_metavar="[OPTIONS]")
@click.argument("words", nargs=-1, metavar="SCRIPT [ARGS]")
def explain(words: Sequence[str]) -> int:
    """What gsub would change about a job, and why. Nothing is submitted.

    OPTIONS are sbatch's, #SBATCH lines and SBATCH_* variables count too; with --json the answer is one JSON
    object. The decision is worked out here, by the code that decides beside Slurm's controller, over the cluster
    as it is now. Ends with 0, with 1 for a job that can never run, with 2 for wrong usage.
    """
    line = split(words, Table.of_all())
    try:
        explanation = _explain(line)
    except UserError as error:
        if "--json" in line.ours:
            from gsub.commands.submit import print_json

            print_json(error.facts())
        raise
    if "--json" in line.ours:
        from gsub.commands.submit import print_json
        from gsub.explained import facts

        print_json(facts(explanation))
    else:
        from gsub.explained import show

        show(explanation, terminal=is_terminal(sys.stdout))
    return FAILED if explanation.refused else 0


def _explain(line: CommandLine) -> Explanation:
    from gsub.decide import explain_submission

    if line.script is None and line.wrap is None and sys.stdin is not None and sys.stdin.isatty():
        raise UserError(
            "there is no script to explain",
            fix="gsub explain [sbatch's options] SCRIPT, or --wrap='COMMAND'",
            exit_code=USAGE,
        )
    return explain_submission(line, clean_environment())
