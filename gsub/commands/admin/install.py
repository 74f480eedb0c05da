"""`gsub admin install`, `upgrade` and `rollback`: gsub put on this host, renewed, and taken off again.

The work is `slurm_plugins.install`'s; here the plan is shown, a yes asked for, and what came of it told.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from gsub.errors import FAILED, USAGE, UserError
from gsub.term import harmless, one_line

if TYPE_CHECKING:
    from slurm_plugins.install.apply import Done
    from slurm_plugins.install.around import Around
    from slurm_plugins.install.facts import Wish
    from slurm_plugins.install.host import Host
    from slurm_plugins.install.plan import Plan
    from slurm_plugins.install.steps import Step

__all__ = ["ask_first", "install", "rollback", "upgrade"]

_F = TypeVar("_F", bound=Callable[..., object])
_SLURM_CONF: Final = Path("/etc/slurm/slurm.conf")
_SETTLE: Final = 15.0


def _common(command: _F) -> _F:
    options = (
        click.option("--plan", "only_plan", is_flag=True, help="Show what would be done; change nothing."),
        click.option("--yes", "-y", is_flag=True, help="Do it without asking."),
        click.option(
            "--role",
            "roles",
            type=click.Choice(["controller", "node"]),
            multiple=True,
            help="What this host is; may be given twice. Default: what runs here or slurm.conf says.",
        ),
        click.option(
            "--slurm-conf",
            type=click.Path(path_type=Path),
            help=f"The cluster's slurm.conf. Default: $SLURM_CONF, the site file's, {_SLURM_CONF}.",
        ),
        click.option(
            "--prefix",
            type=click.Path(path_type=Path),
            help="Everything below this folder, without systemd: a second cluster on this host, or a trial.",
        ),
        click.option("--quiet", "-q", is_flag=True, help="Say only what went wrong, and what is left to do."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _install_options(command: _F) -> _F:
    options = (
        click.option("--uid", type=click.IntRange(1), help="The user gsub's number, where it is to be made."),
        click.option(
            "--service-url",
            metavar="URL",
            default="",
            help="What nodes and users connect to. Default: slurmctld's host, port 6831.",
        ),
        click.option(
            "--nodes-ready",
            is_flag=True,
            help="The nodes have gsub's hooks: have Slurm run them, whether the service has heard of all nodes or not.",
        ),
        click.option("--task-prolog", is_flag=True, help="Set TaskProlog too, where there is none."),
        click.option("--full", is_flag=True, help="Show gsub's own new files in full, too."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@_common
@_install_options
def install(**options: object) -> None:
    """Put gsub on this host: what is missing, and nothing that is there already.

    On each node first (files only: Slurm does not run them yet), then on slurmctld's host. It starts in observe: jobs
    are looked at and recorded, none is changed. `gsub admin rollback` takes all of it back.
    """
    _forward("install", options)


@click.command()
@_common
@_install_options
def upgrade(**options: object) -> None:
    """Replace what an earlier version of gsub placed by this version's.

    Hooks and shim are tried first. When what slurmctld makes of them cannot be proven, or the service does not come up,
    the old ones are put back at once.
    """
    _forward("upgrade", options)


@click.command()
@_common
@click.option("--remove-records", is_flag=True, help="Remove the store of records too, and the user gsub.")
@click.option(
    "--settle",
    metavar="SECONDS",
    type=click.FloatRange(0, 3600),
    default=_SETTLE,
    show_default=True,
    help="How long to wait, once slurmctld has let go of the hooks, for each slurmd to do so.",
)
def rollback(**options: object) -> None:
    """Take gsub off this host: Slurm's own files as they were, then everything else but the store.

    On slurmctld's host first, then on the nodes.
    """
    from slurm_plugins.install import engine
    from slurm_plugins.install.host import HostError, LocalHost
    from slurm_plugins.install.journal import Journal

    host = LocalHost()
    wish = _wish(host, options)
    settle = options["settle"]
    around = _around(quiet=bool(options["quiet"]), settle=settle if isinstance(settle, float) else _SETTLE)
    records = bool(options["remove_records"])
    try:
        journal = Journal(host, wish.layout.keep, around.now)
        wish = engine.covering(engine.remembered(wish, journal.asked()), journal)
        found = engine.rolled_back(host, wish, journal, around, records=records)
        _show(found, only_plan=bool(options["only_plan"]), quiet=bool(options["quiet"]), full=False)
        if options["only_plan"]:
            return
        if not _go_on(found, yes=bool(options["yes"])) and (os.geteuid() or not journal.entries):
            return
        with _alone(wish.layout.keep):
            journal, shown = Journal(host, wish.layout.keep, around.now), found
            found = engine.rolled_back(host, wish, journal, around, records=records)
            _check_shown(shown, found, yes=bool(options["yes"]))
            done = engine.rollback(host, wish, journal, around, found)
    except HostError as error:
        raise _unreadable(error) from error
    _tell(done, found)


def _forward(kind: str, options: dict[str, object]) -> None:
    from dataclasses import replace

    from slurm_plugins.install import engine
    from slurm_plugins.install.host import HostError, LocalHost
    from slurm_plugins.install.journal import Journal

    host = LocalHost()
    wish = replace(_wish(host, options), upgrade=kind == "upgrade")
    quiet, only_plan = bool(options["quiet"]), bool(options["only_plan"])
    around = _around(quiet=quiet)
    try:
        journal = Journal(host, wish.layout.keep, around.now)
        wish = engine.remembered(wish, journal.asked())
        found = engine.planned(host, wish, journal, around)
        _show(found, only_plan=only_plan, quiet=quiet, full=bool(options["full"]))
        if only_plan or not _go_on(found, yes=bool(options["yes"])):
            return
        with _alone(wish.layout.keep):
            # Made anew under the lock: what was shown may be a minute old.
            journal, shown = Journal(host, wish.layout.keep, around.now), found
            found = engine.planned(host, wish, journal, around)
            _check_shown(shown, found, yes=bool(options["yes"]))
            done = engine.install(host, wish, journal, around, found)
    except HostError as error:
        raise _unreadable(error) from error
    _tell(done, found)


# --- what is asked for ------------------------------------------------------------------------------------------------


def _wish(host: Host, options: dict[str, object]) -> Wish:
    from gsub import __version__
    from slurm_plugins.install.facts import NoRoleError, Wish, roles_of
    from slurm_plugins.install.layout import Layout

    prefix = options["prefix"]
    if isinstance(prefix, Path) and (there := [name for name in ("bin", "lib") if (prefix / name).exists()]):
        raise UserError(
            f"--prefix {prefix} is no folder of gsub's own",
            why=f"{prefix / there[0]} is there; spool, run and others below it would be gsub's, and go with a rollback",
            fix="name a folder that is empty or not there yet, for instance /srv/gsub-trial",
            exit_code=USAGE,
        )
    conf = _slurm_conf(options["slurm_conf"])
    layout = Layout.under(prefix.absolute(), conf) if isinstance(prefix, Path) else Layout(conf)
    said = options["roles"]
    try:
        roles = frozenset(said) if isinstance(said, tuple) and said else roles_of(host, layout)
    except NoRoleError as error:
        raise UserError(
            "it cannot be told what this host is to Slurm",
            why=str(error),
            fix="say --role controller, --role node or both, and --slurm-conf PATH where it is elsewhere",
            exit_code=USAGE,
        ) from error
    uid = options.get("uid")
    return Wish(
        layout=layout,
        bin=Path(sys.prefix) / "bin",
        roles=roles,
        prefixed=prefix is not None,
        uid=uid if isinstance(uid, int) else None,
        service_url=str(options.get("service_url") or ""),
        nodes_ready=bool(options.get("nodes_ready")),
        task_prolog=bool(options.get("task_prolog")),
        version=__version__,
    )


def _slurm_conf(said: object) -> Path:
    if isinstance(said, Path):
        return said.absolute()
    if named := os.environ.get("SLURM_CONF"):
        return Path(named).absolute()
    from site_configs.site import SiteError, find_site, load_site

    site = find_site()
    if site is not None:
        # A broken site file is doctor's business; slurm.conf is where it is.
        with contextlib.suppress(SiteError):
            if conf := load_site(site).slurm.conf:
                return Path(conf)
    return _SLURM_CONF


def _around(*, quiet: bool, settle: float = _SETTLE) -> Around:
    from slurm_plugins.install.around import local_around

    def say(line: str) -> None:
        if not quiet:
            print(f"  {one_line(line)}", flush=True)

    return local_around(say=say, settle=settle)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    from slurm_plugins.install.engine import BusyError, LockError, alone

    try:
        with alone(folder):
            yield
    except BusyError as error:
        raise UserError(
            "another gsub admin is changing this installation",
            why="it holds the lock",
            fix="wait for it to end",
        ) from error
    except LockError as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> UserError:
    return UserError(
        "this host cannot be looked at or changed as it must be",
        why=str(error),
        fix="run this as root" if os.geteuid() else "mend that, and run this again: it goes on where it was",
    )


# --- what is told -----------------------------------------------------------------------------------------------------


def _go_on(plan: Plan, *, yes: bool) -> bool:
    """Whether to do it. Raises UserError: not by this user; or nobody can be asked."""
    if not plan.steps:
        if plan.waits:
            raise UserError(plan.waits[0], exit_code=FAILED)
        return False
    if os.geteuid():
        raise UserError(
            "only root can do this", fix="the same with sudo; --plan works for anybody", exit_code=USAGE
        )
    ask_first(f"Do these {len(plan.steps)} steps?", yes=yes)
    return True


def ask_first(question: str, *, yes: bool) -> None:
    """Ask the person at the terminal; `yes` is the answer given in advance. Raises UserError."""
    if yes:
        return
    if not sys.stdin or not sys.stdin.isatty():
        raise UserError("nobody is there to say yes", fix="--yes does it without asking", exit_code=USAGE)
    if not click.confirm(question):
        raise UserError("nothing was done")


def _check_shown(shown: Plan, found: Plan, *, yes: bool) -> None:
    """What was said yes to is what is done. Raises UserError."""
    if not yes and shown.steps != found.steps:
        raise UserError(
            "this host has changed since the plan was shown; nothing was done", fix="run it again"
        )


def _show(plan: Plan, *, only_plan: bool, quiet: bool, full: bool) -> None:
    if quiet and not only_plan:
        return
    if not plan.steps:
        print("nothing to do")
    for number, step in enumerate(plan.steps, 1):
        why = f"  # {one_line(step.why)}" if step.why else ""
        print(f"{number:3}. {one_line(step.line())}{why}")
        for line in _diff(step, full=full):
            print(f"       {line}")
    for note in plan.notes:
        print(f"  -- {one_line(note)}")
    for wait in plan.waits:
        print(f"  !! {one_line(wait)}")


def _diff(step: Step, *, full: bool) -> list[str]:
    """The change of a file, as diff -u has it; of gsub's own new files only in full."""
    from slurm_plugins.install.steps import Put

    if not isinstance(step, Put) or (step.shipped and step.before is None and not full):
        return []
    before, after = _lines(step.before or b""), _lines(step.content)
    name = str(step.path)
    lines = difflib.unified_diff(
        before, after, name if step.before is not None else "/dev/null", name, lineterm=""
    )
    return [harmless(line) for line in lines]


def _lines(content: bytes) -> list[str]:
    return content.decode(errors="backslashreplace").splitlines()


def _tell(done: Done, plan: Plan) -> None:
    for note in done.notes:
        print(f"  -- {one_line(note)}")
    if done.ok:
        print(f"{plan.kind}: done, {done.steps} steps")
        for wait in plan.waits:
            print(f"  !! {one_line(wait)}")
        if plan.kind == "rollback" and plan.waits:
            raise UserError("gsub is not off this host yet", why=plan.waits[0])
        return
    raise _failed(done, plan)


def _failed(done: Done, plan: Plan) -> UserError:
    """What did not work and how Slurm stands now, why, and what to do."""
    why = f"{done.failed}: {done.why}"
    again = "mend that, and run this again"
    if done.left:
        state = "what Slurm sees is not as it was"
        why = f"{'; '.join(done.left)}. It began with: {why}"
    elif plan.kind == "rollback":
        state = f"{done.steps} of {len(plan.steps)} steps were done"
    elif done.back is None:
        state = "Slurm was not touched"
    else:
        state = "all that Slurm sees is as it was"
        why += f". Taken back: {'; '.join(done.back)}" if done.back else ""
    if plan.kind != "rollback":
        again += "; or `gsub admin rollback` takes the rest away"
    return UserError(f"{plan.kind} did not work; {state}", why=why, fix=done.remedy or again)
