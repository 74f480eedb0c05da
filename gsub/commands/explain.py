"""`gsub explain SCRIPT`: what gsub would change about a job, and why; nothing is submitted."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from gsub.argv import OURS, read_options, split
from gsub.commands.submit import installed_table, print_json
from gsub.errors import FAILED, USAGE, UserError
from gsub.sbatch import clean_environment
from gsub.sbatch_options import Table
from gsub.site import check_sbatch
from gsub.term import is_terminal


class Verbatim(click.Command):
    """All words but a first cry for help are sbatch's and ours, to be read as `gsub` itself reads them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep every word."""
        if args[:1] in (["--help"], ["-h"], ["--usage"]):
            click.echo(ctx.get_help())
            ctx.exit()
        ctx.params = {"words": tuple(args)}
        return []


@click.command(cls=Verbatim, options_metavar="[OPTIONS]")
@click.argument("words", nargs=-1, metavar="SCRIPT [ARGS]")
def explain(words: Sequence[str]) -> int:
    """What gsub would change about a job, and why. Nothing is submitted.

    OPTIONS are sbatch's; #SBATCH lines, SBATCH_* variables, --wrap and a script on standard input count as they do
    at submission. With --json the answer is one JSON object.

    The decision is worked out here, by the code that decides beside Slurm's controller, over the cluster as it is
    now. Ends with 0, with 1 for a job that can never run or when Slurm does not answer, with 2 for wrong usage.
    """
    line = split(words, Table.of_all())
    try:
        environ = clean_environment()
        if line.unsure:  # an option of a site's plugin: only sbatch knows whether the next word belongs to it
            table = installed_table(environ, check_sbatch(environ).folder)
            line = split(words, table)
            _known(words, table)
        from gsub.explanation import explain_submission

        explanation = explain_submission(line, environ)
    except UserError as error:
        if "--json" in line.ours:
            print_json(error.facts())
        raise
    from gsub.explanation_view import facts, show

    if "--json" in line.ours:
        print_json(facts(explanation))
    else:
        show(explanation, terminal=is_terminal(sys.stdout))
    return FAILED if explanation.refused else 0


def _known(words: Sequence[str], table: Table) -> None:
    """Refuse a word that no sbatch of this site reads as an option."""
    for place in read_options(words, table, ours=frozenset(OURS)).unsure:
        name = words[place].partition("=")[0]
        several = name.startswith("--") and table.candidates(name[2:])
        raise UserError(
            f"the option {name} is an abbreviation of several" if several else f"no such option: {name}",
            fix="write it in full"
            if several
            else "'sbatch --help' lists the options of this Slurm, 'gsub --help' ours",
            exit_code=USAGE,
        )
