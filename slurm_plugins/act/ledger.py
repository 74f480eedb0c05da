"""What the journal's lines add up to: what was asked and how it ended, and which jobs are held. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from slurm_plugins.act.mark import needs_mark

__all__ = ["HOLD_SECONDS", "MOST_PROMISED", "Book", "Entry", "Event", "Held", "Standing"]

HOLD_SECONDS: Final = 180.0
"""A job that nobody has promised to release is released after so long."""
MOST_PROMISED: Final = 3600.0
"""The furthest promise, in seconds."""
REMEMBERED: Final = 3600.0
"""How long an id is known after it was asked; a request is taken for ten minutes (`wire.STALE`)."""

Event = Literal["asked", "done", "failed", "unknown", "refused", "more", "forgot"]
"""`asked` is on disk before Slurm is asked; `done`, `failed` or `unknown` follows. `refused`: nothing was asked;
`more`: so many refusals were not written one by one. `forgot`: a held job is not held any more, not by our release;
with `verb` update, a job whose memory was set waits no more."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the journal; times are seconds since the epoch.

    `uid` asked, `restarts` is how often the job had been restarted, `expected` how often the asker said that it had
    been, `request` what two requests of one id share.
    """

    event: Event
    at: Annotated[float, msgspec.Meta(ge=0)]
    id: str = ""
    uid: int | None = None
    job: str = ""
    verb: str = ""
    fields: dict[str, str] = {}
    why: str = ""
    by: str = ""
    until: float | None = None
    restarts: int = 0
    expected: int | None = None
    request: str = ""
    said: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """A job that gsub-act holds.

    `since` and `until` are seconds since the epoch, and at `until` it is released by itself. `by` is the decision's or
    verdict's id, `certain` is False while it is not known yet whether the hold came about.
    """

    job: str
    since: float
    until: float
    by: str
    why: str
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Standing:
    """How it stands with a request: what was asked, and how it ended; None: not known yet."""

    asked: Entry
    ended: Entry | None = None

    @property
    def open(self) -> bool:
        """Whether it came about has still to be found out."""
        return self.ended is None or self.ended.event == "unknown"


class Book:
    """The sum of the entries so far."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.standing: dict[str, Standing] = {}
        self._open: dict[str, Entry] = {}
        self._held: dict[str, Held] = {}
        self._guarded: dict[str, Entry] = {}
        self._stopped: dict[str, Entry] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Take one more entry in; one that does not fit to those before it changes nothing."""
        if entry.event == "asked":
            self.standing[entry.id] = Standing(entry)
            self._open[entry.id] = entry
        elif entry.event in ("done", "failed", "unknown"):
            before = self.standing.get(entry.id)
            if before is not None and before.open:
                self.standing[entry.id] = Standing(before.asked, entry)
                if entry.event != "unknown":
                    self._open.pop(entry.id, None)
                if entry.event == "done":
                    self._came_about(before.asked)
        elif entry.event == "forgot" and entry.verb == "update":
            self._guarded.pop(entry.job, None)
            self._stopped.pop(entry.job, None)
        elif entry.event == "forgot":
            self._held.pop(entry.job, None)

    def _came_about(self, asked: Entry) -> None:
        if asked.verb in ("hold", "requeuehold"):
            self._held[asked.job] = _held(asked)
        elif asked.verb == "release":
            self._held.pop(asked.job, None)
            self._stopped.pop(asked.job, None)
        elif asked.verb == "stop":
            self._stopped[asked.job] = asked
        elif asked.verb == "update" and needs_mark(asked.fields):
            self._guarded[asked.job] = asked

    @property
    def open(self) -> tuple[Entry, ...]:
        """The requests whose end is not known, oldest first."""
        return tuple(self._open.values())

    @property
    def guarded(self) -> tuple[Entry, ...]:
        """The updates that took a job out of a limit's reach, and may still be in force, by job; oldest first."""
        return tuple(self._guarded.values())

    def is_stopped(self, job: str) -> bool:
        """Whether a job is held since it has grown beyond what it may have."""
        return job in self._stopped

    def held(self, job: str) -> Held | None:
        """The hold of a job, if it is ours for certain."""
        return self._held.get(job)

    def all_held(self) -> tuple[Held, ...]:
        """All holds, those that are not certain too, oldest first."""
        unsure = {
            asked.job: _held(asked, certain=False)
            for asked in self.open
            if asked.verb in ("hold", "requeuehold") and asked.job not in self._held
        }
        return tuple(sorted((*self._held.values(), *unsure.values()), key=lambda held: held.since))

    def living(self, now: float) -> Iterator[Entry]:
        """The entries that still matter, in order: a journal of these alone adds up to the same."""
        holding = {(held.job, held.since) for held in self._held.values()}
        replayed = Book()
        for standing in self.standing.values():
            asked = standing.asked
            holds = (asked.job, asked.at) in holding
            guards = asked in (self._guarded.get(asked.job), self._stopped.get(asked.job))
            if standing.open or holds or guards or asked.at > now - REMEMBERED:
                for entry in (asked, standing.ended):
                    if entry is not None:
                        replayed.add(entry)
                        yield entry
        for job in replayed._held.keys() - self._held.keys():
            yield Entry(event="forgot", at=now, job=job)
        for job in replayed._guarded.keys() - self._guarded.keys():
            yield Entry(event="forgot", at=now, job=job, verb="update")

    def forget(self, now: float) -> None:
        """Drop what matters no more."""
        kept = {entry.id for entry in self.living(now) if entry.id}
        self.standing = {id_: standing for id_, standing in self.standing.items() if id_ in kept}
        self._open = {id_: asked for id_, asked in self._open.items() if id_ in kept}


def _held(asked: Entry, *, certain: bool = True) -> Held:
    until = asked.at + HOLD_SECONDS if asked.until is None else min(asked.until, asked.at + MOST_PROMISED)
    return Held(asked.job, asked.at, until, asked.by, asked.why, certain)
