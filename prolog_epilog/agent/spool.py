"""Records on their way to the service: each a file until the service has it, whatever happens to us meanwhile.

    spool = Spool(Path("/var/spool/gsub"), limit_bytes=256 << 20)
    spool.put(record)                       # True: it is on the disk
    for waiting in spool.batch(500, 1 << 20):
        ...                                 # deliver waiting.line
        spool.done([waiting.id])            # only now it is removed

A file in ``out/`` is named ``<class>.<order>.<kind>.<key>``; a newer state of the same fact takes the older one's name
and place. Above the limit series go first, then events of the node, then usage; what tells that a job started or ended
is never given up while anything else can go (`records.PRIORITY`). On a full disk usage stays, too. What was given
up is counted, and told to the service once there is room. While the disk cannot be written, records wait in memory.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from profiler.records import PRIORITY, JobSeries, JobUsage, Record, decode, encode, identity, kind_of
from prolog_epilog.agent.disk import Calls, Disk, disk_cost
from prolog_epilog.agent.losses import Losses, Trouble
from prolog_epilog.agent.poison import Poison
from prolog_epilog.agent.waiting import Entry, Index

__all__ = ["Counts", "Spool", "Trouble", "Waiting"]

_NAME = re.compile(r"[0-9]\.([0-9]{12,18})\.([a-z_]{1,32})\.([0-9a-f]{24})")
_MOST_IN_MEMORY = 8 << 20
_LONGEST = 16 << 20  # bytes of a record's file that are read
_RETRY = 1.0  # seconds from one try of a disk that failed to the next
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_GIVEN_UP_FOR_ONE = 64  # of our own files, on a full disk, for a record that matters more
_OTHER = PRIORITY["node_event"]  # the class of a kind that this release does not know

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A record to be delivered: its id, its kind and its line of JSON."""

    id: str
    kind: str
    line: bytes


@dataclass(frozen=True, slots=True)
class Counts:
    """What a spool holds (of its records, `in_memory` are not on the disk; `bytes` of disk, as far as not in flight),
    and how many records it had no room for, by kind, since it last told of that."""

    records: int
    in_memory: int
    bytes: int
    poisoned: int
    dropped: dict[str, int]


class Spool:
    """The records of a node that the service does not have yet. For any number of threads; one of them delivers.

    Nothing here raises when the disk is full, read-only, broken or gone. `limit_bytes` bounds what the files take;
    those of the last batch are on their way and are not given up. `news` is set by every `put`.
    """

    def __init__(self, folder: Path, limit_bytes: int, calls: Calls | None = None) -> None:
        self.news = threading.Event()
        self._out = folder / "out"
        self._limit, self._memory_limit = limit_bytes, min(limit_bytes, _MOST_IN_MEMORY)
        self._lock = threading.RLock()
        self._index = Index(set(PRIORITY.values()))
        self._order = 1
        self._failed_at: float | None = None
        # delivered or given up, but the file could not be removed
        self._leftovers: deque[Path] = deque(maxlen=10_000)
        self._disk = disk = Disk(calls)
        self._poison = Poison(folder / "poison", max(limit_bytes // 16, 1 << 20), disk)
        self._losses = Losses(folder / "losses", disk)
        self._start()

    def _start(self) -> None:
        try:
            self._disk.make(self._out)
            self._disk.names(self._out.parent)  # what a kill left half-written there
            names = self._disk.names(self._out)
        except OSError as error:
            _log.error("The spool %s cannot be read: %s", self._out, error)
            return
        for name in names:
            path, match = self._out / name, _NAME.fullmatch(name)
            with suppress(OSError):
                state = path.lstat()
                if match is None or not stat.S_ISREG(state.st_mode):
                    self._poison.keep("unknown", path, f"{name!r} is not a record's file")
                    continue
                order, kind, key = int(match[1]), match[2], match[3]
                entry = Entry(PRIORITY.get(kind, _OTHER), order, kind, key, file=disk_cost(state.st_size))
                if entry.name != name:
                    self._poison.keep("unknown", path, f"{name!r} is in no class of this release")
                    continue
                self._index.hold(entry)
                self._order = max(self._order, order + 1)
        self._make_room(0, 0)

    # -- putting ---------------------------------------------------------------------------------------------------

    def put(self, record: Record) -> bool:
        """Take a record in.

        True: it is on the disk and outlives a power cut, or it is older than what waits already. False: it waits in
        memory, for the disk cannot be written now; or it was given up, for there is no room.
        """
        line, kind = encode(record), kind_of(record)
        serial = record.serial if isinstance(record, JobUsage | JobSeries) else None
        about = (kind, record.id) if serial is None else identity(record)
        key = hashlib.sha256(repr(about).encode()).hexdigest()[:24]
        with self._lock:
            self._settle()
            older, told = self._older(PRIORITY[kind], key)
            if older is not None and (told == line or _outdates(older, serial)):
                return older.line is None
            entry = Entry(PRIORITY[kind], self._order, kind, key, record.id, serial, line=line)
            freed = 0
            if older is not None:
                entry.order, entry.file = older.order, older.file
                freed = 0 if older.flying else older.file
            self._order += 1
            durable = self._admit(entry, freed)
        self.news.set()
        return durable

    def _older(self, priority: int, key: str) -> tuple[Entry | None, bytes | None]:
        """What waits of a fact, and its line."""
        older = self._index.get(priority, key)
        line = self._line(older) if older is not None else None
        return self._index.get(priority, key), line  # one that cannot be read is set aside

    def _admit(self, entry: Entry, freed: int) -> bool:
        """Keep a new entry; `freed` bytes that count now are its older state's, which it writes over."""
        assert entry.line is not None  # noqa: S101 - for the types
        size = disk_cost(len(entry.line))
        if not self._make_room(entry.priority, size - freed, but=entry.key):
            self._losses.drop(entry.kind)
            return False
        self._index.hold(entry)
        if self._write(entry):
            return True
        for victim in self._index.victims(entry.priority, in_memory=True):
            if self._index.memory <= self._memory_limit:
                break
            self._give_up(victim)
        return False

    def _write(self, entry: Entry) -> bool:
        """Bring an entry to the disk, if that can be written."""
        assert entry.line is not None  # noqa: S101 - for the types
        if self._failing():
            return False
        path = self._out / entry.name
        for _ in range(_GIVEN_UP_FOR_ONE):
            try:
                self._disk.write(path, entry.line)
            except OSError as error:
                # No usage for a start or an end: these have their hook's file on the disk, for as long as they wait
                victim = next(self._index.victims(max(entry.priority, PRIORITY["job_usage"]) + 1), None)
                if error.errno in _NO_ROOM and victim is not None and self._give_up(victim):
                    continue  # others' files may fill the disk, but these are ours to remove
                if self._failed_at is None:
                    _log.error("Records cannot be written to %s (%s): they wait in memory.", self._out, error)
                self._failed_at = time.monotonic()
                return False
            if self._failed_at is not None:
                _log.warning("Records can be written to %s again.", self._out)
            self._failed_at = None
            self._index.written(entry, disk_cost(len(entry.line)))
            return True
        return False

    def _failing(self) -> bool:
        return self._failed_at is not None and time.monotonic() - self._failed_at < _RETRY

    def settle(self) -> bool:
        """Try again to bring to the disk what waits in memory, if anything does; whether all is there now."""
        with self._lock:
            self._settle()
            return not self._index.memory

    def _settle(self) -> None:
        """Bring to the disk what waits in memory, and remove what could not be removed, if the disk is well again."""
        if self._failing():
            return
        for _ in range(len(self._leftovers)):
            if not self._remove(self._leftovers.popleft()):
                break
        if self._index.memory:
            for entry in self._index:
                if entry.line is None or self._index.get(entry.priority, entry.key) is not entry:
                    continue
                need = disk_cost(len(entry.line)) - entry.file
                if self._make_room(entry.priority, need, but=entry.key) and not self._write(entry):
                    return

    # -- room ------------------------------------------------------------------------------------------------------

    def _make_room(self, priority: int, need: int, but: str = "") -> bool:
        """Give up what does not matter more than class `priority`, until `need` more bytes are within the limit."""
        while self._index.bytes + need > self._limit:
            victim = next((each for each in self._index.victims(priority) if each.key != but), None)
            if victim is None:
                return False
            self._give_up(victim)
        return True

    def _give_up(self, entry: Entry) -> bool:
        """Forget an entry and count it as lost; whether its file is gone."""
        self._index.forget(entry)
        self._losses.drop(entry.kind)
        return self._remove(self._out / entry.name)

    def _remove(self, path: Path) -> bool:
        try:
            self._disk.remove(path)
        except OSError:
            self._leftovers.append(path)
            return False
        return True

    # -- delivering ------------------------------------------------------------------------------------------------

    def batch(self, max_records: int, max_bytes: int, without: Collection[str] = ()) -> tuple[Waiting, ...]:
        """The records to deliver next: those that matter most, the oldest first (`Index.in_turn`).

        At most `max_records`, and lines of `max_bytes` in all (but one record, however long); without those ids. They
        are on their way until the next call.
        """
        with self._lock:
            self._index.land()
            self._settle()
            batch: list[Waiting] = []
            size = 0
            for entry in self._index.in_turn():
                if len(batch) >= max_records:
                    break
                if entry.id in without:
                    continue
                line = self._line(entry)
                if line is None or entry.id is None or entry.id in without:
                    continue
                size += len(line)
                if batch and size > max_bytes:
                    break
                batch.append(Waiting(entry.id, entry.kind, line))
                self._index.fly(entry)
            return tuple(batch)

    def done(self, ids: Iterable[str]) -> None:
        """The service has these records of the last batch: remove them. A newer state that came meanwhile stays."""
        with self._lock:
            for record_id in ids:
                if (entry := self._index.landed(record_id)) is not None:
                    self._index.forget(entry)
                    self._remove(self._out / entry.name)

    def set_aside(self, record_id: str, why: str) -> None:
        """This record of the last batch will never be taken: keep it in ``poison/``, and say so (`troubles`)."""
        with self._lock:
            if (entry := self._index.landed(record_id)) is not None:
                self._set_aside(entry, why)

    def _line(self, entry: Entry) -> bytes | None:
        """An entry's line. None if it cannot be had: now, or, where the file is gone or no record, never."""
        if entry.line is not None:
            return entry.line
        path = self._out / entry.name
        try:
            line = self._disk.read(path, _LONGEST)
        except FileNotFoundError:
            self._index.forget(entry)
            self._losses.drop(entry.kind)
            return None
        except OSError as error:
            _log.warning("%s cannot be read: %s", path, error)
            return None
        try:
            record = decode(line)
        except msgspec.MsgspecError as error:
            self._set_aside(entry, f"it is not a record: {error}")
            return None
        entry.id, entry.serial = record.id, getattr(record, "serial", None)
        return line

    def _set_aside(self, entry: Entry, why: str) -> None:
        _log.error("A %s (%s) is set aside: %s", entry.kind, entry.id, why)
        self._index.forget(entry)
        path = self._out / entry.name
        if self._poison.keep(entry.kind, path if entry.line is None else entry.line, why):
            self._remove(path)
        self._losses.poison(entry.kind, entry.id, why)

    # -- telling ---------------------------------------------------------------------------------------------------

    def troubles(self) -> tuple[Trouble, ...]:
        """What the service shall be told of lost records; nothing while there is no room. Put it, then say `told`."""
        with self._lock:
            full = self._index.memory or self._index.bytes > self._limit * 0.95
            return () if full else self._losses.troubles()

    def told(self, trouble: Trouble) -> None:
        """The event that tells of this trouble was put."""
        with self._lock:
            self._losses.told(trouble)

    def counts(self) -> Counts:
        """How full the spool is."""
        with self._lock:
            in_memory = sum(entry.line is not None for entry in self._index)
            records, size = len(self._index), self._index.bytes
            return Counts(records, in_memory, size, len(self._poison), self._losses.dropped)


def _outdates(older: Entry, serial: int | None) -> bool:
    """Whether what waits is a later state of its fact."""
    return serial is not None and older.serial is not None and serial < older.serial
