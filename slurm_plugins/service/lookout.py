"""Running a look at Slurm as a child process, so that neither its work nor its hanging is ours."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from slurm_plugins.service.errors import one_line
from slurm_plugins.service.wire import Question, Report, decode_report, encode_question

__all__ = ["ChildLookout", "Lookout"]

_SECONDS = 120.0
_MAX_REPORT = 256 << 20
_NICER = 10


class Lookout(Protocol):
    """Where reports come from."""

    async def look(self, question: Question) -> Report:
        """Look once. What went wrong is in the report, whatever it was."""
        ...


class ChildLookout:
    """`Lookout` over ``python -m slurm_plugins.service.look``; `env` is what it and Slurm's commands run in."""

    def __init__(self, env: Mapping[str, str] | None = None, *, seconds: float = _SECONDS) -> None:
        self._env = dict(os.environ if env is None else env)
        # systemd's socket is for us alone
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            self._env.pop(name, None)
        self._seconds = seconds

    async def look(self, question: Question) -> Report:
        """See `Lookout.look`."""
        isolated = ["-I"] if sys.flags.isolated else []
        try:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, *isolated, "-m", "slurm_plugins.service.look"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._env,
                start_new_session=True,
            )
        except OSError as error:
            return _failed(f"a process to look at Slurm cannot be started: {error}")
        # Submissions go first, from its first import on: half of its time is over before it could say so itself
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
        try:
            output, said = await asyncio.wait_for(child.communicate(encode_question(question)), self._seconds)
        except asyncio.TimeoutError:
            return _failed(f"a look at Slurm took more than {self._seconds:g} s")
        finally:
            await _end(child)
        if child.returncode or len(output) > _MAX_REPORT:
            last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            return _failed(f"looking at Slurm ended with {child.returncode}: {one_line(last)}")
        try:
            return await asyncio.to_thread(decode_report, output)
        except (ValueError, KeyError, TypeError) as error:
            return _failed(f"a report about Slurm could not be read: {one_line(str(error))}")


def _failed(why: str) -> Report:
    return Report(error=why, jobs_error=why)


async def _end(child: asyncio.subprocess.Process) -> None:
    """End the child if it is still there: asked first, so that it ends Slurm's command with it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(child.wait(), 0.3)
