"""Running a look at Slurm as a child process, so that neither its work nor its hanging is ours."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Protocol

import msgspec

from profiler.logs import one_line
from slurm_plugins.service.child import Child, ChildError, ChildLateError
from slurm_plugins.service.patience import COMMAND_SECONDS
from slurm_plugins.service.wire import Question, Report, decode_report, encode_question

__all__ = ["ChildLookout", "Lookout"]

_SECONDS = 120.0
_READINGS = 2
"""Times that the queue is read: more than once where array tasks wait to run again, or this host lacks a user."""
_MAX_REPORT = 256 << 20
_NICER = 10
"""Submissions go first."""


class Lookout(Protocol):
    """Where reports come from."""

    async def look(self, question: Question) -> Report:
        """Look once. What went wrong is in the report, whatever it was."""
        ...

    async def close(self) -> None:
        """End what the looks left running."""
        ...


class ChildLookout:
    """`Lookout` over ``python -m slurm_plugins.service.look``; `env` is what it and Slurm's commands run in."""

    def __init__(self, env: Mapping[str, str] | None = None, *, seconds: float = _SECONDS) -> None:
        self._child = Child(
            "slurm_plugins.service.look",
            what="looking at Slurm",
            env=os.environ if env is None else env,
            nicer=_NICER,
        )
        self._seconds = seconds

    async def look(self, question: Question) -> Report:
        """See `Lookout.look`."""
        try:
            output = await self._child.ask(
                encode_question(question),
                seconds=self._seconds + _READINGS * (question.queue_seconds - COMMAND_SECONDS),
                most=_MAX_REPORT,
            )
        except ChildError as error:
            late = isinstance(error, ChildLateError)
            return msgspec.structs.replace(_failed(str(error)), queue_late=late)
        try:
            return await asyncio.to_thread(decode_report, output)
        except (ValueError, KeyError, TypeError) as error:
            return _failed(f"a report about Slurm could not be read: {one_line(str(error))}")

    async def close(self) -> None:
        """See `Lookout.close`."""
        await self._child.close()


def _failed(why: str) -> Report:
    return Report(error=why, jobs_error=why)
