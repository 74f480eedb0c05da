"""The smoke job's own process: tries the real job's script for some minutes, and says what came of it.

    python -I -m gsub.smoke.runner < PLAN

It reads a `Plan`, runs the script as a child in the folder of the real job, watches it and the real job, ends it by its
own clock, and writes a `Result`. It exits with 1 only where the script failed surely; a fault of gsub's own never
stands in the way of the real job: it is told, and the exit code is 0.
"""

from __future__ import annotations

import io
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gsub.smoke.child import PREFIX, environment, named, shebang, sweep, sweep_old, temporary
from gsub.smoke.measuring import Measuring
from gsub.smoke.plan import Plan, PlanError, decoded
from gsub.smoke.result import Result, forget, lines, write
from gsub.smoke.telling import keep_output, left_alone, told

if TYPE_CHECKING:
    from gsub.smoke.changed import Seen
    from gsub.smoke.overlay import Overlay
    from gsub.smoke.real_job import Slurm
    from gsub.smoke.watching import Watched

__all__ = ["Ended", "Run", "main", "run"]

_TURN: Final = 0.1  # seconds between two looks at the clock
_LOOK: Final = 1.0  # seconds between two samples
_SHARE: Final = (
    20  # times as long as a look took, nothing is looked at: a node may have thousands of processes
)
_PATIENCE: Final = 10.0
"""Seconds from TERM to KILL when its time is up."""
_HURRY: Final = 3.0
"""The same when the job itself is being ended, or the real one has started."""
_AT_ONCE: Final = 1.0
"""The same when a job waits for nothing but the GPU."""
_GATE: Final = 30.0
"""Seconds for which a gate's real job is looked for: it is submitted after the smoke job."""
_MOST_PLAN: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Ended:
    """Why the watching ended: `exit` (of itself), `time`, `started` or `gone` (the real job), `way` (it lacks our GPU),
    `signal`, `room`."""

    how: str
    code: int | None = None


@dataclass(slots=True)
class Run:
    """One smoke run under way: `folder` is its private folder, `stop` is set by a signal."""

    plan: Plan
    smoke: int
    folder: Path
    environ: Mapping[str, str]
    stop: bool = False
    overlay: Overlay | None = None
    kept_why: str = ""
    before: Seen | None = None
    named: list[str] = field(default_factory=list)
    asks: bool = False
    measuring: Measuring | None = None

    def asked_to_stop(self, number: int, frame: object) -> None:
        """A handler of signals."""
        self.stop = True


def main() -> int:
    """Run the plan on standard input; the exit code of the smoke job."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # whatever the locale, a name of a file is told somehow
    try:
        plan = decoded(sys.stdin.buffer.read(_MOST_PLAN))
    except (PlanError, OSError) as error:
        print(f"gsub: smoke inconclusive: its plan cannot be read ({error})", flush=True)
        return 0
    smoke = _number(os.environ.get("SLURM_JOB_ID", ""))
    if plan.state:
        forget(plan.state, smoke)
    try:
        result = run(plan, smoke, os.environ)
    except Exception as error:  # whatever it is: the real job is not to suffer from it
        if "GSUB_DEBUG" in os.environ:
            raise
        why = f"gsub could not try it ({type(error).__name__}: {error})"
        result = Result(
            smoke=smoke, real=plan.real, mode=plan.mode, outcome="inconclusive", sentence=why, key=plan.key
        )
    if plan.state:
        try:
            write(result, plan.state)
        except OSError as error:
            with suppress(OSError):
                print(f"gsub: the result could not be kept: {error}", file=sys.stderr)
        if result.outcome == "passed":
            from gsub.smoke.passes import remember

            remember(Path(plan.state), plan.key, smoke, result.seconds)
    try:
        print("\n".join(lines(result)), flush=True)
    except OSError:  # a full disk; Python would try again at its end, and exit with 120
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    return 1 if result.outcome == "failed" else 0


def run(plan: Plan, smoke: int, environ: Mapping[str, str], slurm: Slurm | None = None) -> Result:
    """Try a plan's script and say what came of it; a sure failure holds the real job."""
    from gsub.smoke import real_job

    slurm = slurm or real_job.Slurm.here(_slurm_environment(environ))
    if plan.real and plan.mode == "race":
        standing = slurm.look(plan.real)
        if standing in ("started", "gone"):
            return left_alone(plan, smoke, standing)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=temporary(environ)))
    sweep_old(folder.parent)
    job = Run(plan, smoke, folder, environ)
    previous = [(one, signal.signal(one, job.asked_to_stop)) for one in (signal.SIGTERM, signal.SIGINT)]
    try:
        return _tried(job, slurm)
    finally:
        sweep(folder)
        for number, handler in previous:
            signal.signal(number, handler)


def _tried(job: Run, slurm: Slurm) -> Result:
    from gsub.smoke.looking import Looks
    from gsub.smoke.real_job import Poller

    plan = job.plan
    started = time.monotonic()
    script = _script(job)
    _look_before(job)
    watched = _start(job, script)
    if watched is None:
        return _not_tried(job)
    race = plan.real and plan.mode == "race"
    poller = Poller(Looks(slurm, plan.real, job.smoke, _user())) if race else None
    if poller is not None:
        poller.start()
    try:
        ended = _watch(job, watched, (lambda: poller.left) if poller else lambda: "")
    finally:
        if poller is not None:
            poller.stop()
        seconds = watched.seconds
        if job.measuring is not None:
            job.measuring.close()
        left = poller.left if poller is not None else ""
        watched.end(_AT_ONCE if left == "way" else _HURRY if job.stop or left else _PATIENCE)
    result = told(job, watched, ended)
    held, dependants = _hold(plan, job.smoke, slurm) if result.outcome == "failed" else (False, ())
    if not held and result.outcome == "failed" and plan.mode != "only":
        result = msgspec.structs.replace(result, sentence=f"{result.sentence} (nothing was there to be held)")
    gpu_seconds = (time.monotonic() - started) * plan.gpus
    keep_output(plan, job.smoke, watched)
    result = msgspec.structs.replace(
        result, seconds=seconds, gpu_seconds=gpu_seconds, held=held, dependants=dependants
    )
    if job.measuring is None or result.outcome == "left" or job.stop:
        return result
    delivered = job.measuring.deliver(result, job.environ)
    said = (*(job.measuring.said if plan.learn else ()), *([delivered] if delivered else []))
    return msgspec.structs.replace(result, said=said[-40:])


def _not_tried(job: Run) -> Result:
    plan = job.plan
    return Result(
        smoke=job.smoke,
        real=plan.real,
        mode=plan.mode,
        outcome="inconclusive",
        sentence="it was not tried: what it writes could not be kept apart from the real job's files",
        key=plan.key,
        kept_why=job.kept_why,
    )


# -- before -----------------------------------------------------------------------------------------------------------


def _slurm_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for Slurm's commands, which may lie where the site file says."""
    from gsub.site import read_site

    found = dict(environ)
    with suppress(Exception):  # a broken site file is no reason not to ask
        site = read_site(found)
        if site is not None and site.slurm.conf:
            found.setdefault("SLURM_CONF", site.slurm.conf)
        if site is not None and site.slurm.bin:
            found["PATH"] = os.pathsep.join((site.slurm.bin, found.get("PATH", os.defpath)))
    return found


def _script(job: Run) -> Path:
    """The folders of the run, and the script in them, under the name that Slurm gives it."""
    for name in ("dir", "tmp", "steps", "spool"):
        (job.folder / name).mkdir(mode=0o700)
    path = job.folder / "spool" / "slurm_script"
    path.write_bytes(job.plan.script)
    path.chmod(0o700)
    return path


def _look_before(job: Run) -> None:
    """Lay the overlay, or remember what files there are."""
    from gsub.smoke import changed, otherwise, overlay, steps

    words, texts = named(job.plan)
    job.asks = otherwise.asks_slurm(texts)
    job.named = changed.named_paths(words, job.plan.cwd)
    led = "srun" if _nodes(job.environ) == 1 else ""
    found = overlay.outside(texts, but=led)
    try:
        if found:
            raise overlay.NoOverlayError(f"its script uses {found}, whose processes run elsewhere")
        writable = overlay.places(words, texts, job.plan.cwd, job.environ)
        lies_over = steps.binds(job.folder / "spool", job.environ) if led else ()
        job.overlay = overlay.laid(job.plan.cwd, writable, job.folder / "apart", lies_over)
    except overlay.NoOverlayError as why:
        job.kept_why = str(why)
    except OSError as error:
        job.kept_why = f"no overlay could be laid ({error.strerror})"
    apart = job.overlay
    roots = [path for path in (job.plan.cwd, *job.named) if apart is None or not apart.covers(path)]
    job.before = changed.look(roots)


def _nodes(environ: Mapping[str, str]) -> int:
    return _number(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "")


def _start(job: Run, script: Path) -> Watched | None:
    """The script under way; None where its files cannot be kept apart, and nobody asked to try it all the same."""
    from gsub.smoke.watching import Watched

    plan = job.plan
    environ = environment(job.environ, job.folder, plan.array, plan.name)
    argv = [*shebang(plan.script), str(script), *plan.args]
    mark = environ["GSUB_STEPS"]
    if job.overlay is not None:
        try:
            before = job.overlay.enter(plan.cwd)
            return Watched(argv, cwd=plan.cwd, environ=environ, mark=mark, before=before)
        except (OSError, subprocess.SubprocessError):
            job.overlay.remove()
            job.overlay = None
            job.kept_why = "no overlay could be laid when it began"
    if not plan.asked:
        return None
    return Watched(argv, cwd=plan.cwd, environ=environ, mark=mark)


# -- while it runs ----------------------------------------------------------------------------------------------------


def _watch(job: Run, watched: Watched, left: Callable[[], str]) -> Ended:
    """Wait for the first of: its end, its time, the real job, a signal, room used up."""
    measuring = job.measuring = Measuring(job.plan, watched, job.folder / "steps", job.environ)
    look = 0.0
    while True:
        code = watched.code
        if code is not None:
            return Ended("exit", code)
        if job.stop:
            return Ended("signal")
        if found := left():
            return Ended(found)
        seconds = watched.seconds
        if seconds >= job.plan.seconds:
            return Ended("time")
        if seconds >= look:
            watched.look()
            # often at the start, when files are opened and steps begin; rarely where a look takes long
            pause = _LOOK if seconds > 10 * _LOOK else _LOOK / 5
            look = watched.seconds + max(pause, _SHARE * (watched.seconds - seconds))
            if job.overlay is not None and job.overlay.too_much:
                return Ended("room")
        measuring.turn()
        if job.plan.learn and measuring.done:
            return Ended("learnt")
        time.sleep(min(_TURN, max(0.0, job.plan.seconds - seconds)))


# -- after ------------------------------------------------------------------------------------------------------------


def _hold(plan: Plan, smoke: int, slurm: Slurm) -> tuple[bool, tuple[int, ...]]:
    """Hold what would fail in the same way, while it waits; whether something is held, and which jobs."""
    if plan.mode == "only":
        return False, ()
    if plan.mode == "race":
        held = bool(plan.real) and slurm.look(plan.real) == "waits" and slurm.hold(plan.real, _user())
        return held, ((plan.real,) if held else ())
    user = _user()
    until = time.monotonic() + _GATE
    found: tuple[int, ...] = ()
    while not (found := slurm.dependants(smoke, user)) and time.monotonic() < until:
        time.sleep(2.0)
    held_ones = tuple(job for job in found if slurm.hold(job, user))
    return bool(held_ones), held_ones


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 else 0


if __name__ == "__main__":
    sys.exit(main())
