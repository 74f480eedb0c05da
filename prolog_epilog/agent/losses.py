"""What will never be delivered: counted, and told to the service as an event of the node once there is room."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from profiler.records import new_id
from prolog_epilog.agent.disk import Disk

__all__ = ["Losses", "Trouble"]

_LONGEST = 1 << 16
_WHYS = 5
_LONGEST_WHY = 300


@dataclass(frozen=True, slots=True)
class Trouble:
    """What the service shall be told of the spool itself, as an event of the node with this id."""

    id: str
    name: Literal["spool_dropped", "poison_record"]
    detail: str


class _State(msgspec.Struct):
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    dropped_id: str = ""
    poisoned: int = 0
    poisoned_id: str = ""
    whys: list[str] = msgspec.field(default_factory=list)


class Losses:
    """Counts of lost records, kept in a file so that a restart does not forget them; and in memory where it fails.

    The event that tells of a loss has its id from the first lost record on: told twice, it is one event.
    """

    def __init__(self, file: Path, disk: Disk) -> None:
        self._file, self._disk = file, disk
        self._state = _State()
        self._told: deque[str] = deque(maxlen=64)
        with suppress(OSError, msgspec.MsgspecError):
            self._state = msgspec.json.decode(disk.read(file, _LONGEST), type=_State)

    @property
    def dropped(self) -> dict[str, int]:
        """How many records there was no room for, by kind."""
        return dict(self._state.dropped)

    def drop(self, kind: str) -> None:
        """Count a record that there was no room for, or whose file is gone."""
        self._state.dropped_id = self._state.dropped_id or new_id()
        self._state.dropped[kind] = self._state.dropped.get(kind, 0) + 1
        self._note()

    def poison(self, kind: str, record_id: str | None, why: str) -> None:
        """Count a record that was set aside; but not the very event that tells of such ones, over and over."""
        if record_id in self._told:
            return
        self._state.poisoned_id = self._state.poisoned_id or new_id()
        self._state.poisoned += 1
        if len(self._state.whys) < _WHYS:
            self._state.whys.append(f"{kind}: {why[:_LONGEST_WHY]}")
        self._note()

    def troubles(self) -> tuple[Trouble, ...]:
        """What is to be told."""
        state, troubles = self._state, []
        if state.dropped:
            what = ", ".join(f"{count} {kind}" for kind, count in sorted(state.dropped.items()))
            troubles.append(
                Trouble(state.dropped_id, "spool_dropped", f"Records lost for want of room: {what}.")
            )
        if state.poisoned:
            what = "; ".join([*state.whys, *(["..."] if state.poisoned > len(state.whys) else [])])
            troubles.append(
                Trouble(state.poisoned_id, "poison_record", f"{state.poisoned} set aside: {what}")
            )
        return tuple(troubles)

    def told(self, trouble: Trouble) -> None:
        """The event of this trouble is on its way; what is lost from now on is another one."""
        state = self._state
        self._told.append(trouble.id)
        if trouble.id == state.dropped_id:
            state.dropped, state.dropped_id = {}, ""
        elif trouble.id == state.poisoned_id:
            state.poisoned, state.poisoned_id, state.whys = 0, "", []
        self._note()

    def _note(self) -> None:
        with suppress(OSError):
            if self._state.dropped or self._state.poisoned:
                self._disk.write(self._file, msgspec.json.encode(self._state), durable=False)
            else:
                self._disk.remove(self._file)
