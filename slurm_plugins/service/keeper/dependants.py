"""Who waited for a job, remembered beyond its end, and beyond the keeper's own.

Slurm forgets a dependency once it is fulfilled: a job that waited `afterany` or `afternotok` for one that failed has
started before anybody looks, and works with what that one left behind. So what each regular look sees is kept, in
memory and in a file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from profiler.logs import Troubles, one_line
from profiler.whole_file import put

__all__ = ["Dependants"]

_log = logging.getLogger("gsubd.keeper")

_KEPT: Final = 1800.0
"""Seconds of looks for which a dependency is remembered after it was last seen; those of an outage do not count."""
_MOST: Final = 200_000
_EVERY: Final = 300.0
"""Seconds after which the file is written even where nothing has changed: when each was seen."""


class _File(msgspec.Struct):
    """`at` is the time of the last look; `jobs` are those that are waited for, when that was seen, and who waits."""

    at: float
    jobs: dict[str, tuple[float, tuple[int, ...]]]
    v: int = 1


class Dependants:
    """Dependencies as looks at Slurm see them: by the job that is waited for, as a dependency names it ("12", "12_*").

    `seen` may be called in another thread than `of`; it returns when what it saw is in the file.

    >>> known = Dependants()
    >>> known.seen({"12": (14, 15)}, now=0.0)
    >>> known.of(["12", "13"]), known.of(["12"])
    ((14, 15), (14, 15))
    >>> known.seen({}, now=4000.0)
    >>> known.of(["12"])
    ()
    """

    def __init__(self, file: Path | None = None) -> None:
        """`file` is where they are kept while nobody runs; None: nowhere."""
        self._file = file
        self._troubles = Troubles(_log)
        kept = _File(0.0, {}) if file is None else _read(file)
        self._known = kept.jobs
        self._away_since: float | None = kept.at if kept.jobs else None
        self._saved: tuple[float, Mapping[str, tuple[int, ...]]] = (-_EVERY, {})

    def seen(self, waiting: Mapping[str, tuple[int, ...]], now: float) -> None:
        """What a look saw at `now`."""
        known = self._known
        if self._away_since is not None:
            away, self._away_since = max(0.0, now - self._away_since), None
            known = {name: (min(at + away, now), jobs) for name, (at, jobs) in known.items()}
        kept = {name: one for name, one in known.items() if 0 <= now - one[0] < _KEPT}
        for name, jobs in waiting.items():
            if name in kept or len(kept) < _MOST:
                kept[name] = (now, jobs)
        self._known = kept
        self._save(now)

    def of(self, names: Iterable[str]) -> tuple[int, ...]:
        """The jobs that waited for any of these, each once."""
        known = self._known
        found = (job for name in names if name in known for job in known[name][1])
        return tuple(dict.fromkeys(found))

    def _save(self, now: float) -> None:
        """Write the file where it would say something else; a disk that is full is told of, and waited for."""
        at, before = self._saved
        jobs = {name: one[1] for name, one in self._known.items()}
        if self._file is None or (jobs == before and 0 <= now - at < _EVERY):
            return
        trouble = ""
        try:
            put(self._file, msgspec.json.encode(_File(now, self._known)), 0o640)
            self._saved = now, jobs
        except OSError as error:
            trouble = one_line(str(error))
        self._troubles.say("dependencies of jobs are not kept beyond a restart", trouble)


def _read(file: Path) -> _File:
    """What was kept; nothing where there is none, or where it cannot be read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=_File)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("%s is spoilt, and begun anew: %s", file, one_line(str(error)))
    return _File(0.0, {})
