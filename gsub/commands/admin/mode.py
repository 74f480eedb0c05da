"""`gsub admin mode`: how far gsub may go, shown and changed."""

from __future__ import annotations

import codecs
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gsub.commands.admin.install import ask_first
from gsub.errors import FAILED, USAGE, UserError
from gsub.term import one_line

if TYPE_CHECKING:
    from site_configs.site_model import Mode, Site
    from slurm_plugins.install.host import Host
    from slurm_plugins.install.layout import Layout
    from slurm_plugins.install.mode import Scope, Service

__all__ = ["mode"]

_METRICS: Final = "127.0.0.1:6830"
_UNIT: Final = "gsub-act.service"
_SLURM_CONF: Final = "/etc/slurm/slurm.conf"
_UNTIL_THEN: Final = (
    "Until then 'systemctl stop gsubd' ends all decisions: jobs pass as their users wrote them."
)


@click.command()
@click.argument("new", metavar="[observe|advise|enforce]", required=False,
                type=click.Choice(["observe", "advise", "enforce"]))  # fmt: skip
@click.option("--partition", metavar="P", help="For one partition, instead of the site.")
@click.option("--account", metavar="A", help="For one account, instead of the site.")
@click.option(
    "--rollout", metavar="PERCENT", type=click.IntRange(0, 100), help="For this share of the users."
)
@click.option(
    "--all", "everywhere", is_flag=True, help="End what partitions and accounts state beyond it, too."
)
@click.option("--plan", "only_plan", is_flag=True, help="Show what would change; change nothing.")
@click.option("--yes", "-y", is_flag=True, help="To enforce without asking.")
@click.option("--force", is_flag=True, help="Although doctor finds errors, or a name is not known to Slurm.")
@click.option("--site", "path", type=click.Path(path_type=Path), help="The site file.")
@click.option("--prefix", type=click.Path(path_type=Path), help="The installation below this folder.")
@click.option(
    "--metrics", metavar="HOST:PORT", default=_METRICS, show_default=True, help="gsubd's own pages."
)
def mode(
    *,
    new: Mode | None,
    partition: str | None,
    account: str | None,
    rollout: int | None,
    everywhere: bool,
    only_plan: bool,
    yes: bool,
    force: bool,
    path: Path | None,
    prefix: Path | None,
    metrics: str,
) -> None:
    """Show how far gsub may go, or change it: observe, advise, enforce.

    The site file is changed in its place, comments and all else stay, and the one before is kept. Before enforce doctor
    looks the host over, and you are asked. A partition or an account that states a mode of its own keeps it when the
    site's is changed: `gsub admin mode observe --all` ends everything.

    Exit codes: 0 it is so and gsubd has taken it, or does not run; 1 it is not in force; 2 wrong usage.
    """
    from site_configs.site import SiteError, parse_site
    from slurm_plugins.install.host import HostError, LocalHost
    from slurm_plugins.install.mode import WrongModeError, change_everywhere, changed

    _check_address(metrics)
    scope = _scope(partition, account)
    _check_everywhere(new, scope, rollout, everywhere=everywhere)
    host = LocalHost()
    file = _file(path, prefix)
    try:
        content = host.read(file)
        if content is None:
            raise UserError(f"there is no site file {file}", fix="name it with --site", exit_code=USAGE)
        # An editor's byte order mark, which every reader of the file passes over, stays
        mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
        text = content.removeprefix(mark).decode("utf-8")
        site = parse_site(text, str(file))
        if new is None and rollout is None:
            _show(site, scope, _ask(metrics), _mtime(host, file))
            return
        if everywhere:
            after = change_everywhere(text, str(file), new or "observe")
        else:
            after = changed(text, str(file), scope, new, rollout)
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text", fix="write it anew", exit_code=USAGE) from error
    except SiteError as error:
        said = " = ".join(part for part in (error.key, error.value) if part)
        raise UserError(
            f"the site file {file} cannot be used; nothing was changed",
            why=": ".join(part for part in (said, error.problem) if part),
            fix=f"{error.remedy} {_UNTIL_THEN}",
            exit_code=USAGE,
        ) from error
    except WrongModeError as error:
        raise UserError(f"{file} stays as it is", why=str(error), exit_code=USAGE) from error
    except HostError as error:
        raise UserError(
            "the site file cannot be read", why=str(error), fix=_UNTIL_THEN, exit_code=FAILED
        ) from error
    layout = _layout(site, file, prefix)
    _check_name(site, scope, force=force)
    meant = parse_site(after, str(file))
    if after != text:
        _tell(site, meant, file)
    if scope.kind == "site":
        _tell_rest(meant)
    if _more(site, meant):
        _look_over(host, layout, metrics, force=force, only_plan=only_plan)
        ask_first("Have gsub change jobs so?", yes=yes or only_plan)
    if only_plan:
        print(f"\nonly a plan: {one_line(str(file))} is as it was")
        return
    if after == text:
        print(f"{scope}: it is so already; {one_line(str(file))} is as it was")
    else:
        _write(host, layout, file, content, mark + after.encode())
    _see_in_force(host, meant, file, metrics, prefix)


# --- before -----------------------------------------------------------------------------------------------------------


def _file(path: Path | None, prefix: Path | None) -> Path:
    """The site file that is meant. Raises UserError."""
    from site_configs.site import find_site

    file = path or (prefix / "etc/site.toml" if prefix else find_site())
    if file is None:
        raise UserError(
            "there is no site file here, so gsub observes",
            fix="gsub admin install writes one; or name it with --site",
            exit_code=USAGE,
        )
    return file.resolve()


def _scope(partition: str | None, account: str | None) -> Scope:
    """What the mode is for. Raises UserError."""
    from slurm_plugins.install.mode import Scope

    if partition is not None and account is not None:
        raise UserError(
            "--partition and --account are two changes", fix="make one after the other", exit_code=USAGE
        )
    if "" in (partition, account):
        # A variable of a script that was not set must not turn a partition's mode into the whole site's.
        raise UserError(
            "--partition or --account names nothing; nothing was changed",
            fix="name one, or leave the option out to mean the whole site",
            exit_code=USAGE,
        )
    return Scope("partition", partition) if partition else Scope("account", account) if account else Scope()


def _check_everywhere(new: Mode | None, scope: Scope, rollout: int | None, *, everywhere: bool) -> None:
    """`--all` only ends something, everywhere. Raises UserError."""
    if everywhere and (new not in ("observe", "advise") or scope.kind != "site" or rollout is not None):
        raise UserError(
            "--all goes with observe or advise for the whole site; nothing was changed",
            fix="gsub admin mode observe --all",
            exit_code=USAGE,
        )


def _check_address(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 65536):
        raise UserError(
            f"--metrics {address} is no HOST:PORT", fix=f"write it like {_METRICS}", exit_code=USAGE
        )


def _layout(site: Site, file: Path, prefix: Path | None) -> Layout:
    from dataclasses import replace

    from slurm_plugins.install.layout import Layout

    conf = Path(os.environ.get("SLURM_CONF") or site.slurm.conf or _SLURM_CONF)
    if prefix is not None:
        return replace(Layout.under(prefix.absolute(), conf), etc=file.parent)
    return replace(Layout(conf), etc=file.parent)


def _check_name(site: Site, scope: Scope, *, force: bool) -> None:
    """A name that Slurm does not know is a slip: nothing would change, and nobody would notice. Raises UserError."""
    if scope.kind == "site" or force:
        return
    from gsub.term import harmless
    from slurm_plugins.client.commands import CommandClient
    from slurm_plugins.client.errors import SlurmError
    from slurm_plugins.client.runner import Runner, check
    from slurm_plugins.service.look import slurm_environment

    env = slurm_environment(os.environ, site)
    try:
        if scope.kind == "partition":
            known = {found.name for found in CommandClient(env, timeout=20).partitions()}
        else:
            asked = ["sacctmgr", "--noheader", "--parsable2", "show", "account", "format=account"]
            known = set(check(Runner(env, timeout=20).read(asked, daemon="slurmdbd")).stdout.split())
    except SlurmError as error:
        print(f"note: whether Slurm knows {scope} was not found out: {one_line(str(error))}", file=sys.stderr)
        return
    if scope.name not in known:
        some = ", ".join(sorted(known)[:8])
        raise UserError(
            f"Slurm has no {scope}; nothing was changed",
            why=harmless(f"it has {some}") if some else "",
            fix="correct the name, or say --force",
            exit_code=USAGE,
        )


def _more(site: Site, meant: Site) -> bool:
    """Whether jobs may be changed that may not now."""
    from slurm_plugins.install.mode import rows

    before = {str(row.scope): row.rollout for row in rows(site) if row.mode == "enforce"}
    # Fewer users than now: a step back, which nothing is to stop.
    return any(row.mode == "enforce" and row.rollout > before.get(str(row.scope), -1) for row in rows(meant))


def _look_over(host: Host, layout: Layout, metrics: str, *, force: bool, only_plan: bool) -> None:
    """Doctor's errors keep a site from enforce. Raises UserError."""
    from slurm_plugins.install.doctor import Question, diagnose

    found = diagnose(host, layout, Question(metrics=f"http://{metrics}", programs=Path(sys.prefix)))
    errors = [finding for finding in found if finding.level == "error"]
    for finding in errors:
        print(
            f"doctor: {finding.check}: {one_line(finding.seen)}\n  try: {one_line(finding.remedy)}",
            file=sys.stderr,
        )
    if errors and not force and not only_plan:
        raise UserError(
            f"gsub admin doctor finds {len(errors)} error{'s' * (len(errors) > 1)}; nothing was changed",
            fix="mend them first, or say --force",
        )


# --- what is told -----------------------------------------------------------------------------------------------------


def _show(site: Site, scope: Scope, service: Service | str | None, mtime: float) -> None:
    from slurm_plugins.install.mode import rows

    shown = [row for row in rows(site) if scope.kind == "site" or str(row.scope) in ("site", str(scope))]
    width = max(len(str(row.scope)) for row in shown)
    for row in shown:
        print(f"{one_line(str(row.scope)):<{width}}  {row}")
    if len(shown) > 1:
        print(
            "\nA partition's or an account's mode replaces the site's; where both speak, the more cautious counts."
        )
    print(f"\n{_in_force(service, mtime)}")


def _in_force(service: Service | str | None, mtime: float) -> str:
    if service is None:
        return (
            "gsubd does not run here: jobs pass as their users wrote them. It takes this file when it starts."
        )
    if isinstance(service, str):
        return f"gsubd was not asked: {one_line(service)}"
    if not service.ok:
        return "gsubd has NOT taken this file, the one before it is in force: journalctl -u gsubd says why"
    if service.changed != mtime:
        return "gsubd has another file in force: it reads one elsewhere, or has not seen this one yet"
    return "gsubd has this file in force"


def _tell(site: Site, meant: Site, file: Path) -> None:
    """What is changed, before and after, and what it means to people."""
    from slurm_plugins.install.mode import CHANGES, list_modes_beyond, rows

    old = {str(row.scope): str(row) for row in rows(site)}
    told: list[str] = []
    for row in rows(meant):
        name = str(row.scope)
        if old.get(name) == str(row):
            continue
        before = old.get(name, f"as the site, {old['site']}")
        print(f"{one_line(name)}: {before} -> {row}   ({one_line(str(file))})")
        if row.scope.kind == "site" and list_modes_beyond(meant, row.mode):
            print("  For jobs of partitions and accounts that state no mode of their own:")
        for line in CHANGES[row.mode]:
            if line not in told:
                print(f"  {line}")
        told += CHANGES[row.mode]


def _tell_rest(site: Site) -> None:
    """What goes on acting on jobs, whatever the site's mode, and how it is ended: an off switch that is off says so."""
    from slurm_plugins.install.mode import list_modes_beyond

    mode = site.policy.mode
    rest = list_modes_beyond(site, mode)
    for row in rest:
        does = "jobs are still changed" if row.mode == "enforce" else "users are still told"
        print(f"still in force: {one_line(str(row.scope))}, {row}: {does} there")
    if rest:
        print(f"  end that too: gsub admin mode {mode} --all")
    smoke = site.smoke
    if mode == "observe" and smoke.enabled and smoke.above_gpus is not None:
        print(
            f"still in force: smoke.above_gpus = {smoke.above_gpus}: gsub puts a smoke run before jobs of more GPUs\n"
            "  end that too: take the key out of the site file"
        )


# --- doing it ---------------------------------------------------------------------------------------------------------


def _write(host: Host, layout: Layout, file: Path, old: bytes, new: bytes) -> None:
    from slurm_plugins.install.host import HostError
    from slurm_plugins.install.mode import keep_and_write

    try:
        if host.read(file) != old:  # doctor took half a minute: somebody has edited it meanwhile
            raise UserError(
                f"{file} was changed by somebody else meanwhile; it stays as it is now",
                fix="say the same again",
            )
        kept = keep_and_write(host, layout.keep, file, old, new)
    except HostError as error:
        fix = "run it as root" if host.euid() != 0 else "see the disk and the folder"
        raise UserError(f"{file} was not changed", why=str(error), fix=fix) from error
    print(f"\nwritten; the one before is {one_line(str(kept))}")


def _mtime(host: Host, file: Path) -> float:
    found = host.stat(file)
    return found.mtime if found is not None else 0.0


def _ask(metrics: str) -> Service | str | None:
    from slurm_plugins.install.mode import service_of

    try:
        return service_of(metrics)
    except (OSError, ValueError) as error:
        return f"{metrics} did not answer: {error}"


def _settle(metrics: str, mtime: float, prefix: Path | None) -> bool:
    """Wait until gsubd has it, and say so; whether all is well."""
    from slurm_plugins.install.mode import service_of, wait_until_taken

    try:
        said: Service | str | None = wait_until_taken(lambda: service_of(metrics), mtime)
    except (OSError, ValueError) as error:
        said = f"{metrics} did not answer: {error}"
    print(_in_force(said, mtime))
    where = "etc/site.toml below its prefix" if prefix else "/etc/gsub/site.toml"
    print(f"Nodes and login hosts read their own copy ({where}): put it there too.")
    return said is None or (not isinstance(said, str) and said.ok and said.changed == mtime)


def _see_in_force(host: Host, meant: Site, file: Path, metrics: str, prefix: Path | None) -> None:
    """Wait for gsubd, and start or end gsub-act. Raises SystemExit: the one or the other did not work."""
    from site_configs.site import DEFAULT_PATH

    taken = _settle(metrics, _mtime(host, file), prefix)
    well = _set_unit(host, meant, prefix, own=file == DEFAULT_PATH.resolve())
    sys.stdout.flush()
    if not (taken and well):
        raise SystemExit(FAILED)


def _set_unit(host: Host, meant: Site, prefix: Path | None, *, own: bool = True) -> bool:
    """Have gsub-act run where something is enforced, and nowhere else; whether that worked, or is another's to do.

    `own`: the site file is the one that the unit reads. By another's the gsub-act of this host is not started or ended.
    """
    from slurm_plugins.install.mode import enforces

    wanted = enforces(meant)
    verb = "enable" if wanted else "disable"
    command = ["systemctl", verb, "--now", _UNIT]
    if prefix is not None or host.stat(Path("/run/systemd/system")) is None:
        what = "start gsub-act" if wanted else "end gsub-act if it runs"
        print(
            f"{what}: there is no systemd {'for an installation with --prefix' if prefix else 'on this host'}"
        )
        return True
    if not own:
        what = "start gsub-act for this file" if wanted else "end gsub-act if it runs for this file"
        print(f"{what}: {_UNIT} reads /etc/gsub/site.toml, and is left as it is")
        return True
    if not host.run(["systemctl", "cat", _UNIT]).ok:
        if wanted:
            print(f"{_UNIT} is not installed on this host: held and requeued jobs need it (docs/gsub-act.md)")
        return True
    done = host.run(command, timeout=180)
    said = "" if done.ok else f" did not work: {one_line(done.trouble)}"
    print(f"{' '.join(command)}{said}")
    if wanted and not done.ok:
        print("Until it runs no failed job is tried again: journalctl -u gsub-act; docs/gsub-act.md")
    return done.ok
