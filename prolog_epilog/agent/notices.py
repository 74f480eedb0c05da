"""What the agent tells of the node and of itself, beside health: hooks' files that were cut off, a driver that hangs.

To the service as an event, and to the journal, for who is on the node while the service is not there.

A state is told when it changes, something that happened each time; but of one kind not more often than `EVERY`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from profiler.records import JobRef, NodeEvent, Record, new_id, now

__all__ = ["Notices"]

_log = logging.getLogger("gsub-noded")

State: TypeAlias = Literal["ok", "warning", "error", "unknown", "info"]

EVERY = 60.0
"""Seconds from one notice of what happened to the next of its kind; those in between are counted."""


class Notices:
    """Makes node events and hands them to `put`."""

    def __init__(self, cluster: str, node: str, put: Callable[[Record], object]) -> None:
        self._cluster = cluster
        self._node = node
        self._put = put
        self._states: dict[str, tuple[State, str]] = {}
        self._told: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def state(self, name: str, state: State, detail: str = "") -> None:
        """How something is; told if that is not what was told last. Nothing is told of what is well from the start."""
        last, _ = self._states.get(name, ("ok", ""))
        self._states[name] = (state, detail)
        if state != last:
            self._tell(name, state, detail, None)

    def happened(self, name: str, state: State, detail: str, job: JobRef | None = None) -> bool:
        """Something that happened; whether it was told now."""
        at = time.monotonic()
        if at - self._told.get(name, at - EVERY) < EVERY:
            self._untold[name] = self._untold.get(name, 0) + 1
            return False
        self._told[name] = at
        more = self._untold.pop(name, 0)
        self._tell(name, state, f"{detail} (and {more} more)" if more else detail, job)
        return True

    def _tell(self, name: str, state: State, detail: str, job: JobRef | None) -> None:
        text = detail.encode("utf-8", "backslashreplace").decode()[:1000]
        level = logging.INFO if state in ("ok", "info") else logging.WARNING
        _log.log(level, "%s: %s", name, text or ("well again" if state == "ok" else state))
        self._put(
            NodeEvent(
                id=new_id(),
                cluster=self._cluster,
                node=self._node,
                at=now(),
                name=name,
                state=state,
                detail=text,
                job=job,
            )
        )
