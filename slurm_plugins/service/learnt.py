"""What gsubd and its keeper tell each other through the state folder: nodes to avoid, curves, and what partitions hold.

The keeper has the store, and so the evidence; gsubd makes the decisions, and knows the partitions from Slurm. Each
writes its files whole (a reader sees the old one or the new one), and neither waits for the other:

- ``avoid.jsonl``, by the keeper: `AvoidRecord` lines as in ``profiles.jsonl``. Old ones mean nothing: while no keeper
  weighs the evidence, no node is kept from jobs for it.
- ``curves.jsonl``, by the keeper: `WorkloadRecord` lines, what runs measured. They stay true while no keeper runs.
- ``partitions.json``, by gsubd: partition -> hostlist.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from profiler.answers import WorkloadCurve
from profiler.logs import Troubles, one_line
from profiler.whole_file import put
from prolog_epilog.failures.taxonomy import REASONS
from site_configs.hostlist import HostlistError, expand, fold
from slurm_plugins.decide.inventory import Inventory
from slurm_plugins.decide.knowledge import PROFILES, AvoidRecord, CurveRecord, Profiles, WorkloadRecord, load

__all__ = [
    "AVOID",
    "CURVES",
    "PARTITIONS",
    "STALE",
    "Learnt",
    "Partitions",
    "read_partitions",
    "records_of",
    "why_avoided",
    "write_avoided",
    "write_curves",
]

_log = logging.getLogger("gsubd")

AVOID: Final = "avoid.jsonl"
CURVES: Final = "curves.jsonl"
PARTITIONS: Final = "partitions.json"
STALE: Final = 6 * 3600.0
"""Seconds after which a list of nodes to avoid that nobody has renewed means nothing."""
_WORDS: Final = 200
_FLAT: Final = 0.9999
_Mark = tuple[int, int, int]
_BYTES: Final = 64 << 20


def write_avoided(state: Path, records: Iterable[AvoidRecord]) -> None:
    """Write what is to be avoided; also where nothing has changed, since that is news. Raises OSError."""
    _write(state / AVOID, b"".join(msgspec.json.encode(one) + b"\n" for one in records))


def write_curves(state: Path, records: Iterable[WorkloadRecord]) -> None:
    """Write what is known of workloads. Raises OSError."""
    _write(state / CURVES, b"".join(msgspec.json.encode(one) + b"\n" for one in records))


def records_of(cluster: str, uid: int, known: WorkloadCurve) -> Iterator[WorkloadRecord]:
    """What decisions are told of a workload, under each of its names: throughput as shares of the best."""
    curve = None
    if known.curve and known.error is not None:
        best = max(rate for _, rate in known.curve)
        points = _bent((cpus, rate / best) for cpus, rate in known.curve)
        curve = CurveRecord(points, uncertainty=round(known.error, 5))
    peak = None if known.memory_peak is None else max(-(-known.memory_peak >> 20), 1)
    if curve is None and peak is None:
        return
    for name in (known.workload, *known.also):
        yield WorkloadRecord(cluster, uid, name, known.gpu_type, known.runs, memory_peak=peak, curve=curve)


def _bent(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Points up to the plateau, and its end: what lies between says nothing more."""
    kept: list[tuple[float, float]] = []
    for cpus, share in points:
        if len(kept) > 1 and kept[-2][1] >= _FLAT and share >= _FLAT:
            kept.pop()
        kept.append((cpus, round(share, 5)))
    return tuple(kept)


def why_avoided(reason: str) -> str:
    """The sentence that a user reads: the reason, and nothing of whose jobs failed there.

    >>> why_avoided("gpu_hardware")
    'a GPU or its links are broken (gpu_hardware)'
    """
    known = REASONS.get(reason)
    return reason[:_WORDS] if known is None else f"{known.about} ({reason})"


def read_partitions(state: Path) -> dict[str, tuple[str, ...]] | None:
    """Partition -> its nodes, as gsubd saw them last; None: it has not told, or in words that cannot be read."""
    try:
        told = msgspec.json.decode(_read(state / PARTITIONS), type=dict[str, str])
        return {name: tuple(expand(hosts)) for name, hosts in told.items()}
    except (OSError, msgspec.MsgspecError, HostlistError):
        return None


class Partitions:
    """Tells the keeper what partitions hold; `tell` writes only what is new."""

    def __init__(self, state: Path) -> None:
        self._path = state / PARTITIONS
        self._told: Mapping[str, object] = {}
        self._text = b""
        self._troubles = Troubles(_log)

    def is_new(self, inventory: Inventory) -> bool:
        """Whether these may be other partitions than were told."""
        pools = inventory.pools
        return pools.keys() != self._told.keys() or any(self._told[name] is not pools[name] for name in pools)

    def tell(self, inventory: Inventory) -> None:
        """Write them down. Never raises: without them the keeper goes by what jobs had."""
        self._told = dict(inventory.pools)
        nodes = {
            name: fold(node for kind in pool.kinds for node in kind.nodes)
            for name, pool in inventory.pools.items()
        }
        text = msgspec.json.encode(nodes, order="deterministic")
        if text == self._text:
            return
        try:
            _write(self._path, text)
        except OSError as error:
            self._troubles.say("partitions cannot be written down", one_line(str(error)))
            return
        self._troubles.say("partitions cannot be written down", "")
        self._text = text


class Learnt:
    """What gsubd's folder holds of workloads and nodes. `changed` is cheap: it looks at two files' dates."""

    def __init__(self, state: Path, *, now: Callable[[], float] = time.time) -> None:
        self._state = state
        self._now = now
        self._mark = self._marked()
        self._said: frozenset[str] = frozenset()

    def changed(self) -> bool:
        """Whether the keeper has told anew, or what it told has grown old."""
        return self._marked() != self._mark

    def read(self, cluster: str) -> Profiles:
        """All that is known; what of it cannot be used is left out, and said in the log. Never raises OSError."""
        self._mark = mark = self._marked()
        problems: list[str] = []
        # What the site wrote down comes first, and in its words
        profiles = _loaded(self._state / PROFILES, cluster, problems)
        for name, there in zip((AVOID, CURVES), mark, strict=True):
            if there is not None:
                profiles = profiles.beside(_loaded(self._state / name, cluster, problems))
        for problem in problems:
            if problem not in self._said:
                _log.warning("left out: %s", one_line(problem))
        self._said = frozenset(problems)
        return profiles

    def _marked(self) -> tuple[_Mark | None, _Mark | None]:
        """Both files as they are; None for one that is not there, or means nothing any more."""
        return self._mark_of(AVOID, STALE), self._mark_of(CURVES, None)

    def _mark_of(self, name: str, stale: float | None) -> _Mark | None:
        try:
            found = (self._state / name).stat()
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode) or (stale is not None and self._now() - found.st_mtime > stale):
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _loaded(path: Path, cluster: str, problems: list[str]) -> Profiles:
    try:
        profiles, wrong = load(path, cluster)
    except OSError as error:
        problems.append(str(error))
        return Profiles()
    problems += wrong
    return profiles


def _write(path: Path, data: bytes) -> None:
    """Put a file in its place, whole. Raises OSError."""
    put(path, data, 0o640, beside=f"{path.name}.new")


def _read(path: Path) -> bytes:
    """A file's bytes; a FIFO must not hang the keeper. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        return file.read(_BYTES)
