"""What was done to this host, a line before and a line after each step: by it an installation that was killed goes on,
and any installation is taken back.

The file is written whole and put in place at once, so that no kill leaves half a line; it has a few hundred lines at
most. What a path was before is kept beside it, in `copies`, under its SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from slurm_plugins.install.host import Host, HostError

__all__ = ["ABSENT", "COPIES", "Entry", "Event", "Journal", "State", "followed", "state_of"]

Event: TypeAlias = Literal["begun", "doing", "done", "failed", "taken back", "proven"]
"""`begun` opens an install, upgrade or rollback; `proven` closes what is changed together."""

_FILE: Final = "journal.jsonl"
COPIES: Final = "copies"
"""The folder of the copies, beside the journal."""
_MOST_LINKS: Final = 40


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a path was: nothing, a file (by its content's SHA-256), a folder, a link (by its target)."""

    kind: Literal["none", "file", "folder", "link", "other"] = "none"
    sha: str = ""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    target: str = ""

    def same(self, other: State) -> bool:
        """The same thing, whoever owns it."""
        return (self.kind, self.sha, self.target) == (other.kind, other.sha, other.target)


ABSENT: Final = State()


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line.

    Parameters
    ----------
    at: seconds since the epoch.
    what: the step, or the command that was begun, in words.
    path, before, after: of a step that changes a path: what it was, what it becomes.
    together: the step is one of those that are taken back together.
    undo: the command that takes a command back.
    version, asked: of `begun`: gsub's version, and what was asked for.
    """

    at: float
    event: Event
    what: str = ""
    path: str = ""
    before: State | None = None
    after: State | None = None
    together: bool = False
    undo: tuple[str, ...] = ()
    version: str = ""
    asked: dict[str, str | tuple[str, ...] | None] | None = None


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Entry)


class Journal:
    """The journal in a folder of a host; the folder is made with the first line.

    Parameters
    ----------
    now: seconds since the epoch.
    """

    def __init__(self, host: Host, folder: Path, now: Callable[[], float]) -> None:
        self._host = host
        self._folder = folder
        self._now = now
        self._raw: list[bytes] = []
        entries = []
        for line in (_readable(host, self._path) or b"").splitlines():
            self._raw.append(line)
            try:
                entries.append(_decoder.decode(line))
            except msgspec.MsgspecError:
                continue  # of a later version, or somebody's: kept, and not gone by
        self.entries: tuple[Entry, ...] = tuple(entries)

    @property
    def _path(self) -> Path:
        return self._folder / _FILE

    # --- writing ------------------------------------------------------------------------------------------------------

    def add(self, event: Event, what: str = "", **fields: object) -> None:
        """Write a line down; it is on disk when this returns. Raises HostError."""
        entry = msgspec.convert({"at": self._now(), "event": event, "what": what, **fields}, Entry)
        try:
            self._raw.append(_encoder.encode(entry))
        except UnicodeEncodeError as error:
            raise HostError(f"{what}: a name in it is no UTF-8, and cannot be written down") from error
        made = () if self.entries else self._missing()
        self._make_folder(self._folder)
        self._raw += map(_encoder.encode, made)
        self._host.write(self._path, b"\n".join(self._raw) + b"\n", mode=0o600, uid=0, gid=0)
        self.entries = (*self.entries, entry, *made)

    def _missing(self) -> tuple[Entry, ...]:
        """Lines for the folders that have to be made for the journal itself: they go with it."""
        folder = State("folder", mode=0o755)
        above = [path for path in reversed(self._folder.parents) if self._host.stat(path) is None]
        return tuple(Entry(self._now(), "doing", "folder", str(path), ABSENT, folder) for path in above)

    def keep(self, path: Path, *, follow: bool = True) -> State:
        """What a path is now, as `state_of`; a file's content is kept. Raises HostError."""
        state = state_of(self._host, path, follow=follow)
        if state.kind == "file":
            copy = self._folder / COPIES / state.sha
            if self._host.stat(copy) is None:
                self._make_folder(self._folder)
                self._make_folder(copy.parent)
                self._host.write(copy, self._host.read(path) or b"", mode=0o600, uid=0, gid=0)
        return state

    def _make_folder(self, folder: Path) -> None:
        if self._host.stat(folder) is None:
            self._host.make_folder(folder, mode=0o700, uid=0, gid=0)

    def paths(self) -> tuple[Path, ...]:
        """The journal's own files and folders that are there, to be removed in this order."""
        copies = self._folder / COPIES
        found = [copies / name for name in self._host.names(copies)]
        own = (*found, copies, self._path)
        return tuple(path for path in own if self._host.stat(path) is not None)

    # --- reading ------------------------------------------------------------------------------------------------------

    def copy(self, state: State) -> bytes | None:
        """The content that is kept of a file; None: there is none, or it is not what it was."""
        try:
            content = self._host.read(self._folder / COPIES / state.sha) if state.sha else None
        except HostError:
            return None
        return content if content is not None and _sha(content) == state.sha else None

    def originals(self) -> Mapping[Path, State]:
        """Each path that was changed, and what it was before the first time, in the order of those times."""
        return _first(self._changes())

    def unproven(self) -> Mapping[Path, State]:
        """The paths changed together that were neither proven nor taken back since, and what they were before."""
        start = max(
            (i for i, e in enumerate(self.entries) if e.event in ("proven", "taken back")), default=-1
        )
        return _first(e for e in self._changes(self.entries[start + 1 :]) if e.together)

    def is_ours(self, path: Path, state: State) -> bool:
        """Whether a path is as one of our steps left it."""
        return any(
            entry.after is not None and entry.after.same(state)
            for entry in self._changes()
            if entry.path == str(path)
        )

    def is_ours_alone(self, path: Path) -> bool:
        """Whether nobody else changed a path from our first step there to our last: each found what one before it had
        found or left. Else what it was at first lacks what they changed."""
        known: list[State] = []
        for entry in self._changes():
            if entry.path == str(path):
                before = entry.before or ABSENT
                if known and not any(before.same(state) for state in known):
                    return False
                known += [before, *([entry.after] if entry.after else [])]
        return True

    def undo(self) -> tuple[tuple[str, ...], ...]:
        """What takes back the commands that were run, the last first, each once."""
        found = [entry.undo for entry in self.entries if entry.event == "doing" and entry.undo]
        return tuple(dict.fromkeys(reversed(found)))

    def asked(self) -> Mapping[str, str | tuple[str, ...] | None]:
        """What the last installation was asked to be; empty: there was none."""
        return next((e.asked for e in reversed(self.entries) if e.asked), None) or {}

    def _changes(self, entries: Iterable[Entry] | None = None) -> Iterable[Entry]:
        chosen = self.entries if entries is None else entries
        return (entry for entry in chosen if entry.event == "doing" and entry.path)


def _readable(host: Host, path: Path) -> bytes | None:
    """A file's content. One that only root may read is none to others, who may plan and do nothing."""
    try:
        return host.read(path)
    except HostError:
        if host.euid() == 0:
            raise
        return None


def state_of(host: Host, path: Path, *, follow: bool = True) -> State:
    """What a path is; of a link, unless told otherwise, the file that it leads to: that is what a write would change.

    Raises HostError: a file that cannot be read.
    """
    found = host.stat(path)
    if found is None:
        return ABSENT
    if found.kind == "link":
        place = followed(host, path) if follow else path
        if place == path:
            return State("link", target=found.target)
        return state_of(host, place, follow=False)
    if found.kind == "file":
        return State("file", _sha(host.read(path) or b""), found.mode, found.uid, found.gid)
    return State(found.kind if found.kind == "folder" else "other", "", found.mode, found.uid, found.gid)


def followed(host: Host, path: Path) -> Path:
    """Where the links of a path's last part lead to; the path itself where that is nothing, or a ring."""
    place = path
    for _ in range(_MOST_LINKS):
        found = host.stat(place)
        if found is None:
            return path
        if found.kind != "link":
            return place
        place = place.parent / found.target
    return path


def _first(entries: Iterable[Entry]) -> dict[Path, State]:
    first: dict[Path, State] = {}
    for entry in entries:
        first.setdefault(Path(entry.path), entry.before or ABSENT)
    return first


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
