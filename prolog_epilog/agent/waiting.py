"""What waits in the spool and in which order it goes, or is given up: an index in memory, without a disk.

A class is a number of `records.PRIORITY`: 0 matters most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

__all__ = ["Entry", "Index"]

_TURN = 4


@dataclass(slots=True, eq=False)
class Entry:
    """A record that waits.

    `key` names the fact: an entry takes the place of an older one with its class and key. `file` is what the file of
    that name takes of the disk, 0 where there is none. `line` is what is not in that file yet; None: all is on the
    disk. `id` and `serial` are None while nobody looked into a file of an earlier life.
    """

    priority: int
    order: int
    kind: str
    key: str
    id: str | None = None
    serial: int | None = None
    file: int = 0
    line: bytes | None = None
    flying: bool = False

    @property
    def name(self) -> str:
        """Of its file: in the order of the classes, then of time."""
        return f"{self.priority}.{self.order:012d}.{self.kind}.{self.key}"


class Index:
    """The entries, by class and oldest first, and what they take.

    `bytes` is of the disk, without those in flight, which are about to go; `memory` that of lines not on the disk.
    """

    def __init__(self, priorities: Collection[int]) -> None:
        self._classes: dict[int, dict[str, Entry]] = {number: {} for number in sorted(priorities)}
        self._flying: dict[str, Entry] = {}
        self._turn = 0
        self.bytes = 0
        self.memory = 0

    def __len__(self) -> int:
        return sum(map(len, self._classes.values()))

    def __iter__(self) -> Iterator[Entry]:
        for group in self._classes.values():
            yield from list(group.values())

    def get(self, priority: int, key: str) -> Entry | None:
        """The entry of that fact."""
        return self._classes[priority].get(key)

    def hold(self, entry: Entry) -> None:
        """Take an entry in, in place of the older one of its fact."""
        group = self._classes[entry.priority]
        if (older := group.get(entry.key)) is not None:
            self._count(older, -1)
        group[entry.key] = entry
        self._count(entry, 1)

    def forget(self, entry: Entry) -> None:
        """Take an entry out, unless another one took its place."""
        group = self._classes[entry.priority]
        if group.get(entry.key) is entry:
            self._count(entry, -1)
            del group[entry.key]

    def written(self, entry: Entry, file: int) -> None:
        """What was in memory is on the disk."""
        self._count(entry, -1)
        entry.file, entry.line = file, None
        self._count(entry, 1)

    def fly(self, entry: Entry) -> None:
        """An entry is being delivered."""
        self._count(entry, -1)
        entry.flying = True
        self._count(entry, 1)
        if entry.id is not None:
            self._flying[entry.id] = entry

    def land(self) -> None:
        """Nothing is being delivered any more."""
        for entry in self._flying.values():
            current = self.get(entry.priority, entry.key) is entry
            if current:
                self._count(entry, -1)
            entry.flying = False
            if current:
                self._count(entry, 1)
        self._flying.clear()

    def landed(self, record_id: str) -> Entry | None:
        """The entry that was delivered under this id; None if there was none, or a newer one took its place."""
        entry = self._flying.pop(record_id, None)
        return entry if entry is not None and self.get(entry.priority, entry.key) is entry else None

    def victims(self, least: int, *, in_memory: bool = False) -> Iterator[Entry]:
        """The entries to give up first, of class `least` and those that matter less: series before all, old ones
        before new ones; those that hold disk, or memory. None in flight."""
        for number in sorted((number for number in self._classes if number >= least), reverse=True):
            for entry in (
                list(self._classes[number].values()) if in_memory else self._classes[number].values()
            ):
                if not entry.flying and (entry.line is not None if in_memory else entry.file):
                    yield entry

    def in_turn(self) -> Iterator[Entry]:
        """The entries to deliver first: by class, the oldest first. Every fourth time another class leads, in turn:
        none waits for ever behind one whose records the service is slow to take."""
        self._turn += 1
        numbers = list(self._classes)
        if not self._turn % _TURN and len(numbers) > 1:
            lead = numbers[1 + self._turn // _TURN % (len(numbers) - 1)]
            numbers = [lead, *(number for number in numbers if number != lead)]
        for number in numbers:
            yield from list(self._classes[number].values())

    def _count(self, entry: Entry, sign: int) -> None:
        if not entry.flying:
            self.bytes += sign * entry.file
        self.memory += sign * len(entry.line or b"")
