"""`gsub --dry-run`: what would be asked for, and sbatch's own estimate; nothing is submitted."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from gsub.argv import CommandLine
from gsub.commands.submit import installed_table, print_json
from gsub.remedies import explain
from gsub.sbatch import PROGRAM, Listener, run, told
from gsub.script import Request, request
from gsub.script_text import text_of
from gsub.site import Slurm
from gsub.term import one_line


def dry_run(line: CommandLine, environ: Mapping[str, str], slurm: Slurm) -> int:
    """Print the request and the estimate; returns the exit code. Raises UserError where sbatch objects."""
    folder = slurm.folder
    text = text_of(line)
    stdin = text if line.script is None and line.wrap is None else None
    table = installed_table(environ, folder)
    asked = request(line, text.decode(errors="replace"), environ, table)
    nobody = Listener(lambda _: None, lambda _: None, lambda _: None, lambda _: None)
    answer = run(("--test-only", *line.audible), nobody, environ=environ, folder=folder, stdin=stdin)
    if answer.returncode:
        raise explain(answer.errors + answer.messages)
    said = told(answer.messages + answer.errors).splitlines()
    ours = [one_line(text) for text in said if text.startswith("gsub")]
    estimate = one_line(
        " ".join(text for text in said if not text.startswith("gsub")).replace("sbatch: ", "")
    )
    command = (PROGRAM, *line.sbatch)
    smoke = _smoke(line, text, environ, slurm)
    if "--json" in line.ours:
        print_json(_facts(command, asked, estimate, ours) | ({"smoke": smoke} if smoke else {}))
    else:
        print("\n".join([*_lines(command, asked, estimate), *ours, *smoke]))
    return 0


def _smoke(line: CommandLine, text: bytes, environ: Mapping[str, str], slurm: Slurm) -> list[str]:
    """What would be said of a smoke run."""
    from gsub.smoke.options import may_be_wanted

    if not may_be_wanted(line, slurm.site.smoke if slurm.site is not None else None, environ):
        return []
    from gsub.smoke.prepare import prepare
    from gsub.smoke.view import before
    from site_configs.site_model import Site

    ready = prepare(line, text, slurm.site or Site(cluster=""), environ, slurm.folder)
    return before(ready) if ready is not None else []


def _lines(command: tuple[str, ...], asked: Request, estimate: str) -> list[str]:
    lines = [
        "Nothing was submitted (--dry-run).",
        f"  command   {one_line(shlex.join(command))}",
        f"  script    {one_line(asked.script)}",
        f"  job name  {one_line(asked.job_name)}",
    ]
    for index, component in enumerate(asked.components):
        lines.append(f"  component {index} asks for" if len(asked.components) > 1 else "  asks for")
        width = max((len(option.name) for option in component), default=0)
        for option in sorted(component, key=lambda option: option.name):
            value = "yes" if option.value is None else one_line(option.value)
            lines.append(f"    {option.name:<{width}}  {value}  ({option.source})")
        if not component:
            lines.append("    nothing but the cluster's defaults")
    return [*lines, f"sbatch --test-only: {estimate}", "  (a lower bound: it looks at running jobs only)"]


def _facts(command: tuple[str, ...], asked: Request, estimate: str, ours: list[str]) -> dict[str, object]:
    return {
        "dry_run": True,
        "command": list(command),
        "script": asked.script,
        "job_name": asked.job_name,
        "components": [
            {option.name: {"value": option.value, "source": option.source} for option in component}
            for component in asked.components
        ],
        "estimate": estimate,
        "messages": ours,
        "exit_code": 0,
    }
