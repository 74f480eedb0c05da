"""What pending jobs were seen to wait for, kept until the store knows of their start, and over a restart.

Each regular look at the queue is put together with those before it (`profiler.waits`). A job that has left the queue
is remembered for a while: that it started is known a moment later, by its nodes and by Slurm's next answer. What
nobody saw, before the first look, after the last one and while no keeper ran, belongs to no cause.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from profiler.logs import Troubles, one_line
from profiler.waits import Attempt, Seen, Wait, looked
from profiler.whole_file import put
from slurm_plugins.service.keeper.ask import Pending

__all__ = ["Waits"]

_log = logging.getLogger("gsubd.keeper")

_KEPT: Final = 3600.0
"""Seconds for which a job that has left the queue is remembered: a node may be slow to tell of its start."""
_MOST: Final = 200_000
"""Waits that are remembered."""
_EVERY: Final = 60.0
"""Seconds from one writing of the file to the next."""


class _File(msgspec.Struct):
    """As it is on disk: those that wait, and those that have left the queue, as (job id, restarts, wait)."""

    waiting: list[tuple[int, int, Wait]] = []
    left: list[tuple[int, int, Wait]] = []
    v: int = 1


class Waits:
    """Looks at the queue, put together. `seen` may be called in another thread than `known` is read in.

    >>> waits = Waits(gap=60.0)
    >>> waits.seen([Pending(7, 0, "priority")], at=100.0)
    >>> waits.seen([Pending(7, 0, "priority")], at=130.0)
    >>> waits.seen([], at=160.0)
    >>> waits.known[7, 0].spans
    (('priority', 100.0, 130.0),)
    """

    def __init__(self, file: Path | None = None, *, gap: float) -> None:
        """`file` is where they are kept while nobody runs; None: nowhere. `gap` is as in `profiler.waits.looked`."""
        self._file = file
        self._gap = gap
        self._troubles = Troubles(_log)
        kept = _File() if file is None else _read(file)
        self._waiting = {(job, restarts): wait for job, restarts, wait in kept.waiting}
        self._left = {(job, restarts): wait for job, restarts, wait in kept.left}
        self._saved = -_EVERY
        self.known: Mapping[Attempt, Wait] = self._left | self._waiting
        """The waits of which anything is known, by the attempt that they are before."""

    def seen(self, pending: Iterable[Pending], at: float) -> None:
        """A look at `at` saw these jobs wait, and no others; it returns when that is in the file, if it is time."""
        before = self._waiting
        now: dict[Attempt, Seen] = {}
        for one in pending:
            if len(now) >= _MOST:
                break
            leader = (one.array, 0) if one.array is not None and one.restarts == 0 else None
            now[one.job_id, one.restarts] = Seen(one.cause, leader)
        self._waiting = looked(before, now, at=at, gap=self._gap)
        left = self._left | {key: wait for key, wait in before.items() if key not in now}
        # The clock may have been set back: what is of later than now is kept
        self._left = {key: wait for key, wait in left.items() if key not in now and at - wait.at < _KEPT}
        while len(self._left) > _MOST:
            del self._left[next(iter(self._left))]
        self.known = self._left | self._waiting
        self._save(at)

    def _save(self, at: float) -> None:
        """Write the file; a disk that is full is told of, and waited for."""
        if self._file is None or 0 <= at - self._saved < _EVERY:
            return
        trouble = ""
        try:
            put(self._file, msgspec.json.encode(_File(_listed(self._waiting), _listed(self._left))), 0o640)
            self._saved = at
        except OSError as error:
            trouble = one_line(str(error))
        self._troubles.say("what pending jobs wait for is not kept beyond a restart", trouble)


def _listed(waits: Mapping[Attempt, Wait]) -> list[tuple[int, int, Wait]]:
    return [(*key, wait) for key, wait in waits.items()]


def _read(file: Path) -> _File:
    """What was kept; nothing where there is none, or where it cannot be read."""
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=_File)
    except FileNotFoundError:
        return _File()
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("%s is spoilt, and begun anew: %s", file, one_line(str(error)))
        return _File()
    return kept if kept.v == 1 else _File()
