"""The smoke job's own process: tries the real job's script for some minutes, and says what came of it.

    python -I -m gsub.smoke.runner < PLAN

It reads a `Plan`, runs the script as a child in the folder of the real job, watches it and the real job, ends it by its
own clock, and writes a `Result`. It exits with 1 only where the script failed surely; a fault of gsub's own never
stands in the way of the real job: it is told, and the exit code is 0.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gsub.smoke.measuring import Measuring
from gsub.smoke.plan import Plan, PlanError, decoded
from gsub.smoke.result import CHANGED, Line, Result, lines, write

if TYPE_CHECKING:
    from gsub.smoke.changed import Seen
    from gsub.smoke.overlay import Overlay
    from gsub.smoke.real_job import Slurm
    from gsub.smoke.watching import Watched

__all__ = ["Ended", "Run", "environment", "main", "run", "shebang"]

_TURN: Final = 0.1  # seconds between two looks at the clock
_LOOK: Final = 1.0  # seconds between two samples
_PATIENCE: Final = 10.0
"""Seconds from TERM to KILL when its time is up."""
_HURRY: Final = 3.0
"""The same when the job itself is being ended, or the real one has started."""
_GATE: Final = 30.0
"""Seconds for which a gate's real job is looked for: it is submitted after the smoke job."""
_SHORT: Final = (
    70  # characters of a folder in which a Unix socket of a longer name can be made (108 is the most)
)
_MOST_PLAN: Final = 64 << 20
_HEADER: Final = 512  # bytes of a script's first line
_OFFLINE: Final = {"WANDB_MODE": "offline", "NEPTUNE_MODE": "offline", "CLEARML_OFFLINE_MODE": "1"}
"""Trackers of experiments by variables of theirs: a smoke run is none of a user's experiments."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Why the watching ended: `exit` (of itself), `time`, `started` or `gone` (the real job), `signal`, `room`."""

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
    measuring: Measuring | None = None

    def asked_to_stop(self, number: int, frame: object) -> None:
        """A handler of signals."""
        self.stop = True


def main() -> int:
    """Run the plan on standard input; the exit code of the smoke job."""
    try:
        plan = decoded(sys.stdin.buffer.read(_MOST_PLAN))
    except (PlanError, OSError) as error:
        print(f"gsub: smoke inconclusive: its plan cannot be read ({error})", flush=True)
        return 0
    smoke = _number(os.environ.get("SLURM_JOB_ID", ""))
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
            print(f"gsub: the result could not be kept: {error}", file=sys.stderr)
        if result.outcome == "passed":
            from gsub.smoke.passes import remember

            remember(Path(plan.state), plan.key, smoke, result.seconds)
    with suppress(OSError):
        print("\n".join(lines(result)), flush=True)
    return 1 if result.outcome == "failed" else 0


def run(plan: Plan, smoke: int, environ: Mapping[str, str], slurm: Slurm | None = None) -> Result:
    """Try a plan's script and say what came of it; a sure failure holds the real job."""
    from gsub.smoke import real_job

    slurm = slurm or real_job.Slurm.here(_slurm_environment(environ))
    if plan.real and plan.mode == "race":
        standing = slurm.look(plan.real)
        if standing in ("started", "gone"):
            return _left(plan, smoke, standing)
    folder = Path(tempfile.mkdtemp(prefix="gsub-smoke-", dir=_temporary(environ)))
    job = Run(plan, smoke, folder, environ)
    previous = [(one, signal.signal(one, job.asked_to_stop)) for one in (signal.SIGTERM, signal.SIGINT)]
    try:
        return _tried(job, slurm)
    finally:
        if job.overlay is not None:
            job.overlay.remove()
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in previous:
            signal.signal(number, handler)


def _tried(job: Run, slurm: Slurm) -> Result:
    from gsub.smoke.real_job import Poller

    plan = job.plan
    started = time.monotonic()
    script = _script(job)
    _look_before(job)
    watched = _start(job, script)
    poller = Poller(lambda: slurm.look(plan.real)) if plan.real and plan.mode == "race" else None
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
        watched.end(_PATIENCE if not job.stop and (poller is None or not poller.left) else _HURRY)
    result = _told(job, watched, ended)
    held, dependants = _hold(plan, job.smoke, slurm) if result.outcome == "failed" else (False, ())
    if not held and result.outcome == "failed" and plan.mode != "only":
        result = msgspec.structs.replace(result, sentence=f"{result.sentence} (nothing was there to be held)")
    gpu_seconds = (time.monotonic() - started) * plan.gpus
    _keep_output(plan, job.smoke, watched)
    result = msgspec.structs.replace(
        result, seconds=seconds, gpu_seconds=gpu_seconds, held=held, dependants=dependants
    )
    if job.measuring is None or result.outcome == "left" or job.stop:
        return result
    delivered = job.measuring.deliver(result, job.environ)
    said = (*(job.measuring.said if plan.learn else ()), *([delivered] if delivered else []))
    return msgspec.structs.replace(result, said=said[-40:])


# -- before -----------------------------------------------------------------------------------------------------------


def environment(
    environ: Mapping[str, str], folder: Path, array: Mapping[str, str], name: str
) -> dict[str, str]:
    """The script's variables: the smoke job's as Slurm set them, ours, and those that trackers heed."""
    found = {key: value for key, value in environ.items() if not key.startswith("GSUB_SMOKE")}
    found |= _OFFLINE | dict(array)
    found |= {
        "GSUB_SMOKE": "1",
        "GSUB_SMOKE_DIR": str(folder / "dir"),
        "GSUB_STEPS": str(folder / "steps"),
        "PYTHONUNBUFFERED": "1",  # steps are read from the output as they come
        "WANDB_DIR": str(folder / "dir"),
    }
    if len(str(folder / "tmp")) <= _SHORT:
        found["TMPDIR"] = str(folder / "tmp")
    if "SLURM_JOB_NAME" in found and name:
        found["SLURM_JOB_NAME"] = name
    return found


def shebang(script: bytes) -> list[str]:
    """The interpreter and its argument as execve(2) reads them; a script without one is sh's.

    >>> shebang(b"#!/bin/bash -l -x\\n"), shebang(b"#! /usr/bin/env python3\\n"), shebang(b"echo")
    (['/bin/bash', '-l -x'], ['/usr/bin/env', 'python3'], ['/bin/sh'])
    """
    first = script[:_HEADER].split(b"\n", 1)[0]
    if not first.startswith(b"#!"):
        return ["/bin/sh"]
    words = os.fsdecode(first[2:]).strip().split(None, 1)
    return [word.strip() for word in words] or ["/bin/sh"]


def _temporary(environ: Mapping[str, str]) -> str | None:
    """The job's own folder for temporary files, if it has one; else Python's choice."""
    for name in ("SLURM_TMPDIR", "TMPDIR"):
        path = environ.get(name, "")
        if path.startswith("/") and os.access(path, os.W_OK | os.X_OK):
            return path
    return None


def _slurm_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for Slurm's commands, which may lie where the site file says."""
    from gsub.site import Slurm as Place
    from gsub.site import check_site

    found = dict(environ)
    place = Place()
    with suppress(Exception):  # a broken site file is no reason not to ask
        place = check_site(found)
    if place.conf:
        found.setdefault("SLURM_CONF", place.conf)
    if place.folder:
        found["PATH"] = os.pathsep.join((place.folder, found.get("PATH", os.defpath)))
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
    from gsub.smoke import changed, overlay

    words, texts = _named(job.plan)
    job.named = changed.named_paths(words, job.plan.cwd)
    found = overlay.outside(texts)
    try:
        if found:
            raise overlay.NoOverlayError(f"its script uses {found}, whose processes run elsewhere")
        writable = [path for path in job.named if stat.S_ISDIR(os.stat(path).st_mode)]  # noqa: PTH116
        job.overlay = overlay.laid(job.plan.cwd, writable, job.folder / "apart")
    except overlay.NoOverlayError as why:
        job.kept_why = str(why)
    except OSError as error:
        job.kept_why = f"no overlay could be laid ({error.strerror})"
    apart = job.overlay
    roots = [path for path in (job.plan.cwd, *job.named) if apart is None or not apart.covers(path)]
    job.before = changed.look(roots)


def _named(plan: Plan) -> tuple[list[str], list[str]]:
    """The words of the script's command lines, and the texts of it and of the scripts that it runs."""
    from gsub.preflight.children import read_file
    from gsub.preflight.commands import commands
    from gsub.preflight.values import Submission

    text = plan.script.decode(errors="replace")
    words: list[str] = list(plan.args)
    with suppress(Exception):  # a reader of shell that stumbles takes nothing from the run
        submission = Submission(
            name=plan.name,
            text=text,
            args=plan.args,
            folder=plan.cwd,
            environ=dict(os.environ),
            home=_home(),
            cwd=plan.cwd,
        )
        for command in commands(submission):
            outputs = (command.path(one) for one in command.outputs if one)
            words += [one for one in (*command.words, *outputs) if one]
    texts = [text]
    for word in dict.fromkeys(words):
        if len(texts) < 32 and word.endswith((".sh", ".bash", ".py", ".slurm", ".sbatch")):
            with suppress(OSError, ValueError):
                # Python's text names such programs in quotes; a false find only means that no overlay is laid
                texts.append(
                    read_file(os.path.join(plan.cwd, word), 1 << 18).decode(errors="replace")  # noqa: PTH118
                )
    return words, texts


def _home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return os.environ.get("HOME", "/")


def _start(job: Run, script: Path) -> Watched:
    from gsub.smoke.watching import Watched

    plan = job.plan
    environ = environment(job.environ, job.folder, plan.array, plan.name)
    argv = [*shebang(plan.script), str(script), *plan.args]
    if job.overlay is not None:
        try:
            before = job.overlay.enter(plan.cwd)
            return Watched(argv, cwd=plan.cwd, environ=environ, before=before)
        except (OSError, subprocess.SubprocessError):
            job.overlay.remove()
            job.overlay = None
            job.kept_why = "no overlay could be laid when it began"
    return Watched(argv, cwd=plan.cwd, environ=environ)


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
            # often at the start, when files are opened and steps begin
            look = seconds + (_LOOK if seconds > 10 * _LOOK else _LOOK / 5)
            if job.overlay is not None and job.overlay.too_much:
                return Ended("room")
        measuring.turn()
        if job.plan.learn and measuring.done:
            return Ended("learnt")
        time.sleep(min(_TURN, max(0.0, job.plan.seconds - seconds)))


# -- after ------------------------------------------------------------------------------------------------------------


def _told(job: Run, watched: Watched, ended: Ended) -> Result:
    """The result but for what it cost and what was held."""
    result = _judged(job, watched, ended)
    names, more, note = _changed(job, watched)
    return msgspec.structs.replace(
        result,
        exit_code=ended.code,
        peak_memory=watched.peak,
        steps_per_second=job.measuring.rate if job.measuring else 0.0,
        points=job.measuring.points if job.measuring else (),
        changed=names,
        changed_more=more,
        changed_note=note,
        kept="overlay" if job.overlay is not None else "none",
        kept_why=job.kept_why,
    )


def _judged(job: Run, watched: Watched, ended: Ended) -> Result:
    from gsub.render import duration
    from gsub.smoke.judging import Setting, verdict
    from gsub.smoke.overlay import OUTSIDE

    plan = job.plan
    base = Result(smoke=job.smoke, real=plan.real, mode=plan.mode, outcome="inconclusive", key=plan.key)
    if ended.how in ("started", "gone"):
        left = _left(plan, job.smoke, ended.how)
        return msgspec.structs.replace(left)
    sentence = {
        "signal": "the smoke job itself was ended (cancelled, preempted, or out of time)",
        "room": "it wrote more than can be kept apart here",
        "learnt": f"it ran for {duration(watched.seconds)} and was measured",
        "time": f"it ran for {duration(watched.seconds)} and was alive",
        "exit": f"it ended well after {duration(watched.seconds)}",
    }
    if ended.how in ("time", "learnt") or (ended.how == "exit" and ended.code == 0):
        return msgspec.structs.replace(base, outcome="passed", sentence=sentence[ended.how])
    if ended.how != "exit":
        return msgspec.structs.replace(base, sentence=sentence[ended.how])
    apart = job.overlay
    wrote = frozenset(Path(path).name for path in apart.changed()) if apart else frozenset()
    steps = any(OUTSIDE.fullmatch(word) for word in watched.words)
    judged = verdict(_log(watched), ended.code, Setting(apart is not None, wrote - {""}, steps))
    found = judged.finding
    if found is None:
        return msgspec.structs.replace(base, sentence=judged.sentence)
    return msgspec.structs.replace(
        base,
        outcome=judged.outcome,
        sentence=judged.sentence,
        reason=found.reason,
        advice=found.advice if judged.outcome == "failed" else "",
        evidence=tuple(Line(one.file or one.what, one.line, one.text) for one in found.evidence[:8]),
    )


def _log(watched: Watched) -> Any:  # noqa: ANN401 - LogText, imported late
    from prolog_epilog.failures.text import LogText

    head, tail = watched.output.text
    if not watched.output.left_out:
        return LogText.of("output", head + tail)
    return LogText.of(
        "output", head, tail, unseen=(f"output: {watched.output.left_out} bytes amid it were not kept",)
    )


def _changed(job: Run, watched: Watched) -> tuple[tuple[str, ...], int, str]:
    """Names of files that it changed, how many more, and what was not looked at."""
    from gsub.smoke.changed import changes, look

    apart = job.overlay
    ours = (str(job.folder), *((job.plan.state,) if job.plan.state else ()))
    found: dict[str, None] = {}
    note = ""
    if apart is not None:
        found |= dict.fromkeys(apart.changed())
    if job.before is not None:
        roots = [path for path in (job.plan.cwd, *job.named) if apart is None or not apart.covers(path)]
        opened = [path for path in watched.opened if apart is None or not apart.covers(path)]
        seen = changes(job.before, look(roots), opened=opened, ours=ours)
        if apart is not None and seen.paths:
            note = f"not kept apart of these: {', '.join(seen.paths[:5])}"
        elif seen.cut:
            note = "there are too many files to look at them all: others may have changed"
        found = dict.fromkeys(seen.paths) | found
    names = list(found)
    return tuple(names[:CHANGED]), max(0, len(names) - CHANGED), note


def _hold(plan: Plan, smoke: int, slurm: Slurm) -> tuple[bool, tuple[int, ...]]:
    """Hold what would fail in the same way, while it waits; whether something is held, and which jobs."""
    if plan.mode == "only":
        return False, ()
    if plan.mode == "race":
        held = bool(plan.real) and slurm.look(plan.real) == "waits" and slurm.hold(plan.real)
        return held, ((plan.real,) if held else ())
    user = _user()
    until = time.monotonic() + _GATE
    found: tuple[int, ...] = ()
    while not (found := slurm.dependants(smoke, user)) and time.monotonic() < until:
        time.sleep(2.0)
    held_ones = tuple(job for job in found if slurm.hold(job))
    return bool(held_ones), held_ones


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _left(plan: Plan, smoke: int, standing: str) -> Result:
    why = "the real job has started" if standing == "started" else "the real job is gone"
    return Result(smoke=smoke, real=plan.real, mode=plan.mode, outcome="left", sentence=why, key=plan.key)


def _keep_output(plan: Plan, smoke: int, watched: Watched) -> None:
    """What the script said, its two ends, beside the result."""
    if not plan.state or not smoke:
        return
    head, tail = watched.output.text
    with suppress(OSError):
        folder = Path(plan.state, "smoke", str(smoke))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(head)
            if watched.output.left_out:
                file.write(f"\n... {watched.output.left_out} bytes left out ...\n".encode())
            file.write(tail)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 else 0


if __name__ == "__main__":
    sys.exit(main())
