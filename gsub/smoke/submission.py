"""The two submissions, the real job and its smoke job, and their order.

race: the real job first, so that it queues at once; then the smoke job. If that is refused, the real job stays.
gate: the smoke job first, since the real one depends on it; if the real one is refused, or we are interrupted
between them, the smoke job is cancelled. If the smoke job is refused, the real one is submitted without a gate.
only: the smoke job alone.

Whatever becomes of us, nothing waits for ever: `afterany` opens when the smoke job ends in any way, and Slurm itself
drops it at its deadline.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gsub.argv import CommandLine, read_options
from gsub.sbatch import PROGRAM, submitted
from gsub.sbatch_options import Table
from gsub.smoke.dependency import gated
from gsub.smoke.plan import Plan, encoded

__all__ = ["Order", "Refused", "Smoked", "batch_script", "order", "shielded", "with_dependency", "withdraw"]

_SECONDS: Final = 60.0  # for one sbatch: it gives up by itself before that
_MOST_BYTES: Final = 3 << 20  # of a batch script; Slurm's own limit is 4 MiB (max_script_size)
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Refused(Exception):  # noqa: N818 - not ours: an answer of Slurm's
    """The smoke job was not submitted; the message says why, on one line."""


@dataclass(frozen=True, slots=True)
class Smoked:
    """A smoke job that was submitted: its number, the file that its result is told in, and how sbatch ended.

    That is 0 but where sbatch waited for it (`--wait`): then it is the job's exit code.
    """

    job_id: int
    output: str
    returncode: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """A smoke job that is ready to be submitted.

    Parameters
    ----------
    words: its options. plan: what it does. environ: the variables that its `sbatch` finds.
    own: the real job's own dependency. output: its file; `%j` stands for its number.
    folder: where `sbatch` lies; empty for PATH.
    """

    words: tuple[str, ...]
    plan: Plan
    environ: Mapping[str, str]
    own: str
    output: str
    folder: str


def batch_script(plan: Plan, python: str = sys.executable) -> bytes:
    """The smoke job's batch script: starts our runner, and hands it the plan. Raises PlanError, Refused."""
    line = encoded(plan)
    if len(line) > _MOST_BYTES:
        raise Refused("the script is too long to be tried")
    quoted = shlex.quote(python)
    head = (
        "#!/bin/sh\n"
        "# Tries another job's script on one GPU; see 'gsub --help', --smoke.\n"
        f"test -x {quoted} || {{ echo 'gsub is not installed on this node: nothing was tried'; exit 0; }}\n"
        f"exec {quoted} -I -m gsub.smoke.runner <<'GSUB_PLAN'\n"
    )
    # JSON on one line: no line of it can be the end of the here-document
    return head.encode("utf-8", "surrogateescape") + line + b"\nGSUB_PLAN\n"


def order(ready: Order, *, real: int = 0, more: Sequence[str] = ()) -> Smoked:
    """Submit a smoke job. Raises Refused, PlanError.

    Parameters
    ----------
    real: the real job, where it is there already. more: options of this submission (`--wait`).
    """
    import msgspec

    script = batch_script(msgspec.structs.replace(ready.plan, real=real))
    _make_folder(ready)
    program = str(Path(ready.folder, PROGRAM)) if ready.folder else PROGRAM
    try:
        done = subprocess.run(
            [PROGRAM, *ready.words, *more],
            executable=program,
            env=dict(ready.environ),
            input=script,
            capture_output=True,
            timeout=None if more else _SECONDS,
            check=False,
            # ^C on the terminal is for us: half a submission is what must not be
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"sbatch did not answer: {error}") from None
    job = submitted(done.stdout.decode(errors="replace"))
    if job is None:
        raise Refused(_why(done.stderr.decode(errors="replace")))
    output = ready.output.replace("%j", str(job.job_id)).replace("%%", "%")
    return Smoked(job.job_id, output, done.returncode)


def withdraw(smoked: Smoked, ready: Order) -> bool:
    """Cancel a smoke job; whether Slurm took it."""
    program = str(Path(ready.folder, "scancel")) if ready.folder else "scancel"
    try:
        done = subprocess.run(
            [program, str(smoked.job_id)],
            env=dict(ready.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False  # it ends by itself: nothing waits for it, and it has a deadline
    return done.returncode == 0


def with_dependency(words: Sequence[str], line: CommandLine, own: str, smoke: int) -> tuple[str, ...]:
    """The user's words for `sbatch` with the gate's dependency ahead of SCRIPT, where it counts as the last one.

    >>> from gsub.argv import split
    >>> line = split(["-d", "afterok:1", "--", "t.sh", "-x"], Table.of_all())
    >>> with_dependency(line.sbatch, line, "afterok:1", 9)
    ('-d', 'afterok:1', '--dependency=afterok:1,afterany:9', '--', 't.sh', '-x')
    """
    at = len(words) if line.script is None else len(words) - len(line.args) - 1
    if at and words[at - 1] == "--" and read_options(words[: at - 1], Table.of_all()).end == at - 1:
        at -= 1
    return (*words[:at], f"--dependency={gated(own, smoke)}", *words[at:])


@contextmanager
def shielded() -> Iterator[list[int]]:
    """Signals wait: those that came are in the list, for the caller to obey when nothing is half done."""
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)

    before = {
        number: signal.signal(number, note)
        for number in _SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _make_folder(ready: Order) -> None:
    folder = Path(ready.output.replace("%%", "%")).parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder}: {error.strerror or error}") from None
    if ready.plan.state:
        from gsub.smoke.kept import prune

        prune(Path(ready.plan.state))


def _why(said: str) -> str:
    from gsub.remedies import explain
    from gsub.term import one_line

    error = explain(said)
    return one_line(f"{error.what}: {error.why}" if error.why else error.what)


def environment_folder(environ: Mapping[str, str]) -> Path | None:
    """The user's folder of state; None where there is none that is the user's own."""
    from gsub.receipts import memory_folder

    try:
        return memory_folder(environ)
    except OSError:
        return None


def output_of(state: Path | None, folder: str) -> str:
    """Where a smoke job's output goes, in Slurm's notation: beside its result, else where the user is."""
    base = os.fspath(state / "smoke") if state is not None else folder
    name = "%j.out" if state is not None else "smoke-%j.out"
    return f"{base.replace('%', '%%')}/{name}"
