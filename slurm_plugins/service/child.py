"""Running a module as a child process that answers questions: neither its work nor its hanging is ours."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from profiler.logs import one_line
from slurm_plugins.service.answering import LENGTH
from slurm_plugins.service.within import within

__all__ = ["Child", "ChildError", "ChildLateError", "child_environment", "python"]

_SAID: Final = 4096
"""Bytes of standard error that are kept."""


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


class Child:
    """A process that answers questions by `slurm_plugins.service.answering`, started with the first one.

    It stays for the next question; one that fails or is late is ended, and the next question starts another.

    Args:
        module: what it runs.
        what: names it in messages ("looking at Slurm").
        env: its environment.
        nicer: how much further its processes stand back than we do.
    """

    def __init__(self, module: str, *, what: str, env: Mapping[str, str], nicer: int) -> None:
        self._module = module
        self._what = what
        self._env = child_environment(env)
        self._nicer = nicer
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, question: bytes, *, seconds: float, most: int) -> bytes:
        """Return the answer to a question; one at a time.

        Args:
            question: what the module reads.
            seconds: how long it may take.
            most: how many bytes the answer may have.

        Raises:
            ChildError: no answer; ChildLateError: none in time.
        """
        answered = False
        try:
            process = self._process or await self._start()
            answer = await within(self._answer(process, question, most), seconds)
            answered = True
        except asyncio.TimeoutError:
            raise ChildLateError(f"{self._what} took more than {seconds:g} s") from None
        finally:
            if not answered:
                await self.close()
        return answer

    async def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            await _end(process)

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            child = await asyncio.create_subprocess_exec(
                *python(self._module),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._env,
                start_new_session=True,
            )
        except OSError as error:
            raise ChildError(f"a process for {self._what} cannot be started: {error}") from None
        self._process = child
        # From its first import on: half of its time is over before it could say so itself
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child.pid, os.getpriority(os.PRIO_PROCESS, 0) + self._nicer)
        return child

    async def _answer(self, process: asyncio.subprocess.Process, question: bytes, most: int) -> bytes:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101  (pipes, see above)
        said = asyncio.ensure_future(_last_line(process.stderr))
        try:
            with suppress(ConnectionError):  # told below
                process.stdin.write(LENGTH.pack(len(question)) + question)
                await process.stdin.drain()
            (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
            if length > most:
                raise ChildError(f"{self._what} answered {length} bytes, more than {most}")
            return await process.stdout.readexactly(length)
        except asyncio.IncompleteReadError:
            code = await process.wait()
            raise ChildError(f"{self._what} ended with {code}: {one_line(await said)}") from None
        finally:
            said.cancel()


async def _last_line(stream: asyncio.StreamReader) -> str:
    """Read a stream to its end, and return its last line."""
    last = b""
    while part := await stream.read(1 << 16):
        last = (last + part)[-_SAID:]
    return last.decode("utf-8", "replace").strip().rpartition("\n")[2]


async def _end(child: asyncio.subprocess.Process) -> None:
    """End the child if it is still there: asked first, so that it ends Slurm's command with it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(asyncio.TimeoutError):
            await within(child.wait(), 0.3)
