"""Waiting with a time limit, so that whoever is told to end does end.

Until Python 3.12 ``asyncio.wait_for`` forgets a cancellation that comes just as what it waits for is done
(github.com/python/cpython/issues/86296): a loop around it then goes on for ever, and the daemon does not end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def within(work: Awaitable[_T], seconds: float) -> _T:
    """What comes of `work`. Raises asyncio.TimeoutError after so many seconds: it is cancelled then, and has ended.

    A cancellation always comes through, and `work` is cancelled with its waiter.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        await _ended(task)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether an event came in time."""
    try:
        await within(event.wait(), seconds)
    except asyncio.TimeoutError:
        return event.is_set()
    return True


async def _ended(task: asyncio.Future[_T]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # looked at: asyncio warns of one that nobody has seen
