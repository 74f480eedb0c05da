"""Waiting for what another process does: the one place where tests poll."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PAUSE_S: Final = 0.1


def wait_until(
    ready: Callable[[], T | None], seconds: float = 120.0, message: str = "it", pause: float = PAUSE_S
) -> T:
    """Call `ready` until it returns something true, and return that.

    Args:
        ready: cheap enough to be called every `pause` seconds.
        seconds: how long to wait at most, on a machine that is busy with other tests.
        message: the awaited thing, for the failure.
        pause: seconds between two calls.

    Raises:
        AssertionError: `ready` returned nothing true in time.
    """
    deadline = time.monotonic() + seconds
    while not (found := ready()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {message}")
        time.sleep(pause)
    return found
