"""`gsub admin selftest`: what gsub promises, shown with a few small jobs in a partition of the site.

The work is `slurm_plugins.install.selftest`'s; here the site is looked at, the price told, the result written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import click

from gsub.errors import FAILED, USAGE, UserError
from gsub.term import is_terminal, one_line

if TYPE_CHECKING:
    from slurm_plugins.install.finding import Finding
    from slurm_plugins.install.host import Host
    from slurm_plugins.install.layout import Layout
    from slurm_plugins.install.selftest.bounds import Bounds
    from slurm_plugins.install.selftest.outcome import Result
    from slurm_plugins.install.selftest.table import Scenario
    from slurm_plugins.install.selftest.world import World

__all__ = ["selftest"]

_INTERRUPTED: Final = 130
_SLURM_CONF: Final = "/etc/slurm/slurm.conf"


@click.command()
@click.option("--partition", "-p", metavar="P", help="Where the jobs run. Required but for --list.")
@click.option(
    "--account", "-A", default="", metavar="A", help="Account of the jobs; else the user's default."
)
@click.option("--qos", default="", metavar="Q", help="QOS of the jobs; else the user's default.")
@click.option("--user", metavar="U", help="Whose jobs they are, when root runs this; an ordinary user.")
@click.option("--nodes", type=click.IntRange(1, 2), default=2, help="Most nodes of one job.  [default: 2]")
@click.option(
    "--time-limit",
    type=click.IntRange(1, 60),
    default=1,
    metavar="MINUTES",
    help="Of each job.  [default: 1]",
)
@click.option(
    "--wait",
    type=click.FloatRange(1, 86400),
    default=120.0,
    metavar="SECONDS",
    help="A job that has not started by then skips its scenario.  [default: 120]",
)
@click.option(
    "--record",
    type=click.FloatRange(1, 3600),
    default=60.0,
    metavar="SECONDS",
    help="A record that is not whole so long after a job's end counts as missing.  [default: 60]",
)
@click.option("--only", multiple=True, metavar="NAME", help="This scenario; may be repeated.")
@click.option("--no-pause", is_flag=True, help="Never stop gsubd for a moment (hung-service).")
@click.option("--stop-service", is_flag=True, help="Stop gsubd's unit for some seconds too (dead-service).")
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write a result file to send."
)
@click.option("--json", "as_json", is_flag=True, help="Print what the result file holds.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before the first job.")
@click.option("--list", "listed", is_flag=True, help="List the scenarios, and run none.")
@click.option("--slurm-conf", type=click.Path(path_type=Path), metavar="PATH", help="Another slurm.conf.")
@click.option("--prefix", type=click.Path(path_type=Path), metavar="DIR", help="An installation below DIR.")
def selftest(
    *,
    partition: str | None,
    account: str,
    qos: str,
    user: str | None,
    nodes: int,
    time_limit: int,
    wait: float,
    record: float,
    only: tuple[str, ...],
    no_pause: bool,
    stop_service: bool,
    output: Path | None,
    as_json: bool,
    yes: bool,
    listed: bool,
    slurm_conf: Path | None,
    prefix: Path | None,
) -> int:
    """Show with a few small jobs that gsub does here what it promises.

    A dozen jobs of at most one GPU and one minute, as an ordinary user, cancelled when this ends however it ends.
    What cannot be told (a full cluster, no root) is skipped, not failed. Nothing of the installation is changed.

    Exit codes: 0 all is as promised or was skipped, 1 something is not, 2 it could not be run.
    """
    from slurm_plugins.install.selftest.bounds import Bounds

    chosen = _chosen(only)
    if listed:
        for one in chosen:
            print(f"{one.name:<14} {one.shows}" + (f" (needs {one.needs})" if one.needs else ""))
        return 0
    if not partition:
        raise UserError(
            "no partition is named",
            fix="gsub admin selftest --partition P; 'sinfo -s' lists them",
            exit_code=USAGE,
        )
    bounds = Bounds(
        partition,
        account,
        qos,
        nodes,
        minutes=time_limit,
        wait=wait,
        record=record,
        pause=not no_pause,
        stop_service=stop_service,
    )
    with _output(output) as file:
        run = _found(bounds, user, slurm_conf, prefix)
        run.agree(yes=yes, terse=as_json)
        run.go(chosen, terse=as_json)
        if file or as_json:
            text = run.document(doctor=not only)
            if file:
                file.write(text)
            if as_json:
                print(text, end="")
    if not as_json:
        run.sum_up(output)
    if run.interrupted:
        return _INTERRUPTED
    return FAILED if any(one.outcome.level == "failed" for one in run.results) else 0


def _chosen(only: tuple[str, ...]) -> tuple[Scenario, ...]:
    """The scenarios that are named, and those that look at what is left. Raises UserError."""
    from slurm_plugins.install.selftest.table import SCENARIOS

    names = [one.name for one in SCENARIOS]
    for name in only:
        if name not in names:
            raise UserError(
                f"there is no scenario {one_line(name)!r}", fix=f"one of {', '.join(names)}", exit_code=USAGE
            )
    return tuple(one for one in SCENARIOS if not only or one.name in only or one.last)


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[IO[str] | None]:
    """The result file, made before any job is: what cannot be written is told first. Raises UserError."""
    if path is None:
        yield None
        return
    path = path.absolute()  # root leaves its folder
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise UserError(
            f"{path} is there already; no job was submitted", fix="give another name", exit_code=USAGE
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be written; no job was submitted",
            why=error.strerror or "",
            fix="name a file in a folder of yours with --output",
            exit_code=USAGE,
        ) from None
    file = os.fdopen(handle, "w", encoding="utf-8")
    try:
        with file:
            yield file
    finally:
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size == 0:
                path.unlink()


def _found(bounds: Bounds, user: str | None, slurm_conf: Path | None, prefix: Path | None) -> _Run:
    """Look at the site; nothing is submitted. Raises UserError."""
    from gsub.sbatch import clean_environment
    from gsub.site import read_site
    from site_configs.site_model import Site
    from slurm_plugins.client.errors import SlurmError
    from slurm_plugins.install.host import LocalHost
    from slurm_plugins.install.layout import Layout
    from slurm_plugins.install.selftest.looking import CannotRunError, look, submitter
    from slurm_plugins.service.look import slurm_environment

    environ = dict(os.environ)
    if prefix:
        environ["GSUB_SITE"] = str(Layout.under(prefix.absolute(), Path(_SLURM_CONF)).site)
    site = read_site(environ) or Site(cluster="")
    env = slurm_environment(clean_environment(), site)
    if slurm_conf:
        env["SLURM_CONF"] = str(slurm_conf.absolute())
    path = Path(env.get("SLURM_CONF") or _SLURM_CONF)
    layout = Layout.under(prefix.absolute(), path) if prefix else Layout(path)
    host = LocalHost()
    try:
        who = submitter(user)
        if who.become:
            os.chdir("/")  # our own folder may be closed to that user
        world = look(env, site, layout=layout, host=host, bounds=bounds, who=who)
        left = len(world.queue.others())
    except CannotRunError as error:
        raise UserError(error.what, why=error.why, fix=error.fix, exit_code=USAGE) from error
    except SlurmError as error:
        raise UserError("Slurm cannot be asked", why=str(error), exit_code=USAGE) from error
    return _Run(world, host, layout, left)


@dataclass(slots=True)
class _Run:
    """One run: the site, and what has been seen of it so far. `left_before`: jobs of an earlier run."""

    world: World
    host: Host
    layout: Layout
    left_before: int
    results: list[Result] = field(default_factory=list)
    interrupted: bool = False

    def agree(self, *, yes: bool, terse: bool) -> None:
        """Tell what it costs, and ask. Raises UserError, click.Abort."""
        world = self.world
        who = one_line(world.queue.who.name)
        if self.left_before:
            print(
                f"gsub: {self.left_before} jobs of an earlier selftest of {who} are still there; they end by "
                f"themselves, or: scancel --user={who} --name=gsub-selftest",
                file=sys.stderr,
            )
        told = sys.stderr if terse else sys.stdout
        print(f"partition {one_line(world.bounds.partition)}, user {who}, mode {world.mode}:", file=told)
        print(f"  {world.bounds.price(world.gpus)}", file=told)
        if world.bounds.pause and world.halt is not None and world.gpus:
            print(
                "  gsubd stands still for 3 s at most (not with --no-pause); submissions pass meanwhile",
                file=told,
            )
        if yes:
            return
        if not sys.stdin.isatty():
            raise UserError(
                "nobody is there to agree; no job was submitted",
                fix="say --yes",
                exit_code=USAGE,
            )
        click.confirm("Go on?", abort=True, err=terse)

    def go(self, scenarios: Sequence[Scenario], *, terse: bool) -> None:
        """Run them. What ends it early is kept in mind: the jobs are gone by then."""
        from slurm_plugins.install.selftest.runner import run

        def told(result: Result) -> None:
            self.results.append(result)
            if not terse:
                _tell(result)

        try:
            with _ending_as_interrupt():
                run(self.world, scenarios, told)
        except KeyboardInterrupt:
            self.interrupted = True
        if self.world.queue.left:
            who = one_line(self.world.queue.who.name)
            print(
                f"gsub: jobs of the selftest may be left: {one_line(self.world.queue.left)}\n"
                f"  try: scancel --user={who} --name=gsub-selftest",
                file=sys.stderr,
            )

    def document(self, *, doctor: bool) -> str:
        """The result file, with doctor's findings or without."""
        from gsub import __version__
        from slurm_plugins.install.selftest.looking import names_of
        from slurm_plugins.install.selftest.report import Facts, Pseudonyms, as_text, document

        world = self.world
        facts = Facts(
            gsub=__version__,
            slurm=world.config.get("SLURM_VERSION", ""),
            mode=world.mode,
            nodes=len(world.nodes),
            gpus=world.gpus,
            cpu_jobs=world.queue.cpu_jobs,
            jobs=world.queue.count,
            left_before=self.left_before,
            interrupted=self.interrupted,
        )
        names = Pseudonyms(names_of(world, self.layout))
        findings = self._doctor() if doctor and not self.interrupted else None
        return as_text(document(facts, self.results, findings, names))

    def _doctor(self) -> tuple[Finding, ...]:
        from gsub import __version__
        from slurm_plugins.install.doctor import Question, diagnose

        return diagnose(self.host, self.layout, Question(release=__version__))

    def sum_up(self, output: Path | None) -> None:
        """The last lines."""
        levels = [one.outcome.level for one in self.results]
        counts = ", ".join(f"{levels.count(level)} {level}" for level in ("ok", "skipped", "failed"))
        print(f"{counts}; {self.world.queue.count} jobs were made" + "; interrupted" * self.interrupted)
        if output:
            print(f"{one_line(str(output))} has it without names of yours; read it before you send it")


def _tell(result: Result) -> None:
    """A line for a scenario, and one for what to do."""
    outcome = result.outcome
    word = f"{'FAILED' if outcome.level == 'failed' else outcome.level:<8}"
    if is_terminal(sys.stdout) and not os.environ.get("NO_COLOR"):
        word = click.style(word, fg=_COLOURS[outcome.level])
    print(f"{word} {result.name:<14} {one_line(outcome.seen)}", flush=True)
    if outcome.remedy:
        print(f"{'':<8} {'':<14} try: {one_line(outcome.remedy)}", flush=True)


_COLOURS: Final = {"ok": "green", "skipped": "yellow", "failed": "red"}


@contextlib.contextmanager
def _ending_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end the run as ^C does: its jobs are cancelled first."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
