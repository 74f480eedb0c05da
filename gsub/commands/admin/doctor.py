"""`gsub admin doctor`: what is not well with Slurm and gsub on this host, and what to do about it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gsub.errors import FAILED, USAGE, UserError
from gsub.term import console, one_line

if TYPE_CHECKING:
    from slurm_plugins.install.doctor import Role
    from slurm_plugins.install.finding import Finding, Level

__all__ = ["doctor"]

_SCHEMA: Final = 1
_SLURM_CONF: Final = "/etc/slurm/slurm.conf"
_STYLES: Final[dict[str, str]] = {"ok": "green", "unknown": "dim", "warning": "yellow", "error": "bold red"}
_ROLES: Final = ("controller", "node", "login")


@click.command()
@click.option(
    "--role", "roles", multiple=True, type=click.Choice(_ROLES), help="What this host is. Default: found out."
)
@click.option("--slurm-conf", type=click.Path(path_type=Path), help="The cluster's slurm.conf.")
@click.option("--prefix", type=click.Path(path_type=Path), help="Look at the installation below this folder.")
@click.option("--node", default="", help="This node's name in Slurm. Default: found out.")
@click.option("--metrics", metavar="HOST:PORT", help="gsubd's --listen. Default: 127.0.0.1:6830")
@click.option("--only", multiple=True, metavar="NAME", help="Make only this check; may be repeated.")
@click.option(
    "--fail-on",
    type=click.Choice(["warning", "error"]),
    default="warning",
    show_default=True,
    help="From where on the exit code is 1.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object; its keys are in docs/doctor.md."
)
@click.option("--quiet", is_flag=True, help="Print only what is not well.")
def doctor(
    *,
    roles: tuple[Role, ...],
    slurm_conf: Path | None,
    prefix: Path | None,
    node: str,
    metrics: str | None,
    only: tuple[str, ...],
    fail_on: Level,
    as_json: bool,
    quiet: bool,
) -> None:
    """Tell what is not well with Slurm and gsub on this host, and what to do about it. Nothing is changed.

    For the controller, compute nodes and login hosts; as root it sees most. It takes half a minute at most, whatever
    hangs.

    Exit codes: 0 all is well, as far as can be told; 1 a warning or an error (see --fail-on); 2 wrong usage.
    """
    from gsub import __version__
    from slurm_plugins.install.doctor import CHECKS, METRICS, Question, Sight, examine
    from slurm_plugins.install.finding import LEVELS, worst
    from slurm_plugins.install.host import LocalHost
    from slurm_plugins.install.layout import Layout

    names = {check.name for check in CHECKS}
    if unknown := [name for name in only if name not in names]:
        raise UserError(
            f"there is no check {unknown[0]}",
            fix="gsub admin doctor --json | grep check, or docs/doctor.md, has their names",
            exit_code=USAGE,
        )
    conf = slurm_conf or _slurm_conf(prefix)
    conf, prefix = conf.absolute(), prefix.absolute() if prefix else None
    layout = Layout.under(prefix, conf) if prefix else Layout(conf)
    question = Question(
        roles=roles,
        node=node,
        metrics=_url(metrics) if metrics else METRICS,
        programs=Path(sys.prefix),
        release=__version__,
    )
    sight = Sight(LocalHost(), layout, question)
    findings = examine(sight, only=only)
    here = sight.known_roles
    if as_json:
        _print_json(findings, sight.host.name, here, __version__)
    else:
        _print(findings, f"{sight.host.name}: {', '.join(here)}; gsub {__version__}", quiet=quiet)
    sys.stdout.flush()
    if LEVELS.index(worst(findings)) >= LEVELS.index(fail_on):
        raise SystemExit(FAILED)


def _url(given: str) -> str:
    """gsubd's --listen, or an address."""
    return given.rstrip("/") if "://" in given else f"http://{given}"


def _slurm_conf(prefix: Path | None) -> Path:
    """slurm.conf: $SLURM_CONF, the site file's, Slurm's default."""
    from site_configs.site import DEFAULT_PATH, SiteError, load_site

    if named := os.environ.get("SLURM_CONF"):
        return Path(named)
    try:
        stated = load_site(prefix / "etc/site.toml" if prefix else DEFAULT_PATH).slurm.conf
    except SiteError:
        stated = ""  # told by its own check
    return Path(stated or _SLURM_CONF)


def _print_json(findings: Sequence[Finding], host: str, roles: Sequence[str], release: str) -> None:
    import json

    from slurm_plugins.install.doctor import CHECKS
    from slurm_plugins.install.finding import LEVELS, worst

    groups = {check.name: check.group for check in CHECKS}
    answer = {
        "v": _SCHEMA,
        "host": host,
        "roles": list(roles),
        "gsub": release,
        "worst": worst(tuple(findings)),
        "counts": {level: sum(one.level == level for one in findings) for level in LEVELS},
        "findings": [
            {
                "check": one.check,
                "group": groups[one.check],
                "level": one.level,
                "seen": one.seen,
                "remedy": one.remedy,
            }
            for one in findings
        ],
    }
    print(json.dumps(answer, indent=1))


def _print(findings: Sequence[Finding], title: str, *, quiet: bool) -> None:
    """Group by group, one line a finding; what is not well once more at the end, in full."""
    from rich.text import Text

    from slurm_plugins.install.doctor import CHECKS
    from slurm_plugins.install.doctor.reference import TITLES
    from slurm_plugins.install.finding import LEVELS

    screen = console()
    width = max((len(one.check) for one in findings), default=0)
    bad = [one for one in findings if one.level in ("warning", "error")]

    def line(one: Finding) -> Text:
        text = Text()
        text.append(f"  {one.level:<8}", style=_STYLES[one.level])
        text.append(f"{one.check:<{width}}  {one_line(one.seen)}")
        return text

    screen.print(Text(one_line(title), style="bold"))
    if not quiet:
        for group, heading in TITLES.items():
            mine = {check.name for check in CHECKS if check.group == group}
            told = [one for one in findings if one.check in mine]
            if told:
                screen.print(Text(f"\n{heading}", style="bold"))
            for one in told:
                screen.print(line(one))
    if bad:
        screen.print(Text("\nNot well", style="bold"))
        for one in sorted(bad, key=lambda one: LEVELS.index(one.level)):
            screen.print(line(one))
            if one.remedy:
                screen.print(Text(f"  {'':<8}{'':<{width}}  do: {one_line(one.remedy)}"))
    counts = [f"{sum(one.level == level for one in findings)} {level}" for level in reversed(LEVELS)]
    screen.print(Text("\n" + ", ".join(counts)))
