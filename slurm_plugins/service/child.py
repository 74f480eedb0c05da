"""Running a module as a child process that answers one question: neither its work nor its hanging is ours."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress

from profiler.logs import one_line
from slurm_plugins.service.within import within

__all__ = ["ChildError", "ChildLateError", "ask_child", "child_environment", "python"]


class ChildError(Exception):
    """No answer; the message is a sentence for the log."""


class ChildLateError(ChildError):
    """No answer in time."""


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """`env` for a child: systemd's socket is for us alone."""
    apart = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}
    return {name: value for name, value in env.items() if name not in apart}


def python(module: str) -> tuple[str, ...]:
    """The command that runs a module: isolated, or the working directory and PYTHONPATH would come first."""
    return (sys.executable, "-I", "-m", module)


async def ask_child(
    module: str,
    question: bytes,
    *,
    what: str,
    env: Mapping[str, str],
    seconds: float,
    most: int,
    nicer: int,
) -> bytes:
    """What the module writes to standard output, given `question` on standard input.

    Parameters
    ----------
    what: names it in messages ("looking at Slurm").
    seconds, most: how long it may take, how many bytes it may answer.
    nicer: how much further its processes stand back than we do.

    Raises ChildError, ChildLateError.
    """
    try:
        child = await asyncio.create_subprocess_exec(
            *python(module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(env),
            start_new_session=True,
        )
    except OSError as error:
        raise ChildError(f"a process for {what} cannot be started: {error}") from None
    # From its first import on: half of its time is over before it could say so itself
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, child.pid, os.getpriority(os.PRIO_PROCESS, 0) + nicer)
    try:
        output, said = await within(child.communicate(question), seconds)
    except asyncio.TimeoutError:
        raise ChildLateError(f"{what} took more than {seconds:g} s") from None
    finally:
        await _end(child)
    if child.returncode or len(output) > most:
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ChildError(f"{what} ended with {child.returncode}: {one_line(last)}")
    return output


async def _end(child: asyncio.subprocess.Process) -> None:
    """End the child if it is still there: asked first, so that it ends Slurm's command with it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(asyncio.TimeoutError):
            await within(child.wait(), 0.3)
