"""`gsub check SCRIPT`: what would break a job, before it is queued; nothing is submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from gsub.argv import CommandLine, split
from gsub.commands.explain import Verbatim
from gsub.commands.submit import installed_table, print_json
from gsub.errors import FAILED, UserError
from gsub.sbatch import clean_environment
from gsub.sbatch_options import Table
from gsub.site import check_sbatch
from gsub.term import one_line


@click.command(cls=Verbatim, options_metavar="[OPTIONS]")
@click.argument("words", nargs=-1, metavar="SCRIPT [ARGS]")
def check(words: Sequence[str]) -> int:
    """What would break a job on the compute node, as far as the login node can tell. Nothing is submitted.

    OPTIONS are sbatch's; #SBATCH lines, SBATCH_* variables, --wrap and a script on standard input count as they do
    at submission. With --json the answer is one JSON object. No code of the script is run.

    Ends with 0, also when there are warnings only, and with 1 when the job would fail.
    """
    line = split(words, Table.of_all())
    try:
        environ = clean_environment()
        slurm = check_sbatch(environ)
        if slurm.conf:
            environ.setdefault("SLURM_CONF", slurm.conf)
        if line.unsure:
            line = split(words, installed_table(environ, slurm.folder))
        return _check(line, environ, slurm.folder)
    except UserError as error:
        if "--json" in line.ours:
            print_json(error.facts())
        raise


def _check(line: CommandLine, environ: Mapping[str, str], folder: str) -> int:
    from gsub.preflight.gate import lines_of, looked_at
    from gsub.preflight.runner import preflight
    from gsub.script_text import needed

    text = needed(line, "check")
    verdict = preflight(looked_at(line, text, environ, folder), alone=True)
    code = FAILED if verdict.errors else 0
    if "--json" in line.ours:
        left_out = [{"check": name, "why": one_line(why)} for name, why in verdict.given_up]
        facts = {
            "preflight": [one.facts() for one in verdict.findings],
            "left_out": left_out,
            "exit_code": code,
        }
        print_json(facts)
        return code
    for finding in verdict.findings:
        print("\n".join(lines_of(finding)).replace("  ", "", 1))
    for name, why in verdict.given_up:
        print(f"not looked at: {name} ({one_line(why)})")
    errors, warnings = len(verdict.errors), len(verdict.findings) - len(verdict.errors)
    told = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in ((errors, "error"), (warnings, "warning"))
    ]
    print(f"{', '.join(told)}; nothing was submitted")
    return code
