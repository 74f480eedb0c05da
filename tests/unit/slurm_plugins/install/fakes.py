"""A machine in dictionaries: what doctor, plan and install look at and change, with any fault that a test plants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slurm_plugins.install.host import FileKind, HostError, Ran, Stat, Usage

Answer = Ran | Callable[[tuple[str, ...], str], Ran]
"""What a command says: always the same, or made from its argv and what it reads."""

_MOST_LINKS: Final = 40  # as Linux: a ring of links is no file


class Killed(BaseException):
    """Our own process was killed before a change; nothing of ours runs after it, as after SIGKILL."""


@dataclass
class Entry:
    """What a path is on the fake machine."""

    kind: FileKind = "file"
    content: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: float = 1_700_000_000.0
    target: str = ""


@dataclass(frozen=True)
class Call:
    """A command that was run."""

    argv: tuple[str, ...]
    timeout: float
    env: Mapping[str, str]
    stdin: str


@dataclass
class FakeHost:
    """A `Host` whose files, users and commands are what the test says.

    Paths are absolute. `put`, `folder`, `put_link`, `says` set it up; `calls` and `changes` tell what was done to it.

    >>> host = FakeHost()
    >>> host.put("/etc/slurm/slurm.conf", b"ClusterName=lab", mode=0o600)
    >>> host.read(Path("/etc/slurm/slurm.conf"))
    b'ClusterName=lab'
    >>> host.says("scontrol ping", "Slurmctld(primary) at ctl is UP")
    >>> host.run(["scontrol", "ping"]).out
    'Slurmctld(primary) at ctl is UP'
    """

    name: str = "ctl"
    whoami: int = 0
    entries: dict[Path, Entry] = field(default_factory=lambda: {Path("/"): Entry("folder", mode=0o755)})
    users: dict[str, int] = field(default_factory=lambda: {"root": 0})
    members: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"root": ("root",)})
    """User -> its groups, the first one too; a user who is not named here is in a group of its own name."""
    answers: dict[tuple[str, ...], Answer] = field(default_factory=dict)
    """The beginning of an argv -> what it says; the longest that fits counts. No answer: it is not on the machine."""
    programs: dict[str, str] = field(default_factory=dict)
    """Commands that `which` finds beside those that have an answer."""
    usages: dict[Path, Usage] = field(default_factory=dict)
    """File systems by where they are mounted; elsewhere there is plenty."""
    unreadable: dict[Path, str] = field(default_factory=dict)
    """Paths that are there and cannot be read, and why."""
    refuses: dict[Path, str] = field(default_factory=dict)
    """Paths at and below which nothing can be changed, and why: a full disk, a read-only one."""
    killed_before: int | None = None
    """The number, from 0, of the change before which our process is killed."""
    now: float = 1_700_000_100.0
    """The time that a change gives to a file."""
    calls: list[Call] = field(default_factory=list)
    changes: list[tuple[str, Path]] = field(default_factory=list)
    """(write, make_folder, link, touch or remove; path) in order."""
    on_change: Callable[[str, Path], None] | None = None
    """Called after each change: what a daemon does that watches the file."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- setting it up ----------------------------------------------------------------------------------------------

    def put(
        self, path: str | Path, content: bytes | str = b"", *, mode: int = 0o644, uid: int = 0, gid: int = 0
    ) -> None:
        """A file, its folders too."""
        raw = content.encode() if isinstance(content, str) else content
        self._parents(Path(path))
        self.entries[Path(path)] = Entry("file", raw, mode, uid, gid, self.now)

    def folder(self, path: str | Path, *, mode: int = 0o755, uid: int = 0, gid: int = 0) -> None:
        """A folder, those above it too."""
        self._parents(Path(path))
        self.entries[Path(path)] = Entry("folder", b"", mode, uid, gid, self.now)

    def put_link(self, path: str | Path, target: str) -> None:
        """A symbolic link."""
        self._parents(Path(path))
        self.entries[Path(path)] = Entry("link", b"", 0o777, mtime=self.now, target=target)

    def put_socket(self, path: str | Path, *, mode: int = 0o660, uid: int = 0, gid: int = 0) -> None:
        """A socket."""
        self._parents(Path(path))
        self.entries[Path(path)] = Entry("socket", b"", mode, uid, gid, self.now)

    def lose(self, path: str | Path) -> None:
        """Take a path away, and what is below it."""
        gone = Path(path)
        self.entries = {
            at: entry for at, entry in self.entries.items() if at != gone and gone not in at.parents
        }

    def says(self, command: str | Sequence[str], out: str = "", *, code: int = 0, err: str = "") -> None:
        """What a command answers whose argv begins so (a text is split at blanks)."""
        self.answers[_argv(command)] = Ran(code, out, err)

    def answer(self, command: str | Sequence[str], answer: Answer) -> None:
        """As `says`, with an answer that may depend on the rest of the argv."""
        self.answers[_argv(command)] = answer

    def hangs(self, command: str | Sequence[str]) -> None:
        """A command that never answers: its caller waits out the whole deadline, on a clock that a test need not."""
        argv = _argv(command)
        self.answers[argv] = Ran(None, why=f"{argv[0]} did not answer in time")

    def account(self, user: str, uid: int, *groups: str) -> None:
        """A user; without groups in one of its own name."""
        self.users[user] = uid
        if groups:
            self.members[user] = groups

    def tree(self) -> dict[str, tuple[FileKind, bytes | str, int, int, int]]:
        """All of it, times left out: kind, content or target, mode, uid, gid; to compare before with after."""
        return {
            str(path): (found.kind, found.target or found.content, found.mode, found.uid, found.gid)
            for path, found in sorted(self.entries.items())
        }

    def ran(self, *beginning: str) -> list[tuple[str, ...]]:
        """The argv of the commands run that begin so, in order."""
        return [call.argv for call in self.calls if call.argv[: len(beginning)] == beginning]

    def _parents(self, path: Path) -> None:
        assert path.is_absolute(), path
        for parent in path.parents:
            self.entries.setdefault(parent, Entry("folder", mode=0o755))

    # --- reading ----------------------------------------------------------------------------------------------------

    def euid(self) -> int:
        return self.whoami

    def read(self, path: Path) -> bytes | None:
        place = self._real(path)
        why = self._why(self.unreadable, path) or self._why(self.unreadable, place)
        if why:
            raise HostError(f"{path}: {why}")
        found = self.entries.get(place)
        if found is None:
            return None
        if found.kind == "link":
            raise HostError(f"{path}: Too many levels of symbolic links")
        if found.kind != "file":
            raise HostError(f"{path}: it is no regular file")
        return found.content

    def stat(self, path: Path) -> Stat | None:
        place = self._real(path.parent) / path.name
        found = self.entries.get(place)
        if found is None:
            return None
        size = len(found.target or found.content)
        return Stat(found.kind, found.mode, found.uid, found.gid, size, found.mtime, found.target)

    def names(self, folder: Path) -> tuple[str, ...]:
        place = self._real(folder)
        if self._why(self.unreadable, place):
            return ()
        return tuple(sorted(path.name for path in self.entries if path.parent == place and path != place))

    def usage(self, path: Path) -> Usage | None:
        place = self._real(path)
        if place not in self.entries:
            return None
        for mount in (place, *place.parents):
            if mount in self.usages:
                return self.usages[mount]
        return Usage(100 << 30, 80 << 30, 1_000_000, 900_000)

    def which(self, command: str) -> str | None:
        if command in self.programs:
            return self.programs[command]
        return f"/usr/bin/{command}" if any(argv[0] == command for argv in self.answers) else None

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 20.0,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> Ran:
        asked = tuple(argv)
        with self._lock:
            self.calls.append(Call(asked, timeout, dict(env or {}), stdin))
        for length in range(len(asked), 0, -1):
            found = self.answers.get(asked[:length])
            if found is not None:
                return found if isinstance(found, Ran) else found(asked, stdin)
        return Ran(None, why=f"{asked[0]} is not on this machine")

    def uid(self, user: str) -> int | None:
        return self.users.get(user)

    def user(self, uid: int) -> str | None:
        return next((name for name, number in self.users.items() if number == uid), None)

    def groups(self, user: str) -> tuple[str, ...]:
        return self.members.get(user, (user,)) if user in self.users else ()

    # --- changing ---------------------------------------------------------------------------------------------------

    def write(
        self, path: Path, content: bytes, *, mode: int, uid: int | None = None, gid: int | None = None
    ) -> None:
        place = self._change("write", path, follow=True)
        self._is_folder(place.parent, path)
        if (found := self.entries.get(place)) and found.kind == "folder":
            raise HostError(f"{path}: Is a directory")
        owner = self.whoami if uid is None else uid
        self.entries[place] = Entry(
            "file", content, mode, owner, self.whoami if gid is None else gid, self.now
        )
        self._changed("write", path)

    def make_folder(self, path: Path, *, mode: int, uid: int | None = None, gid: int | None = None) -> None:
        place = self._change("make_folder", path, follow=True)
        for parent in place.parents:
            self.entries.setdefault(parent, Entry("folder", mode=0o755, uid=self.whoami, gid=self.whoami))
            self._is_folder(parent, path)
        found = self.entries.setdefault(
            place, Entry("folder", uid=self.whoami, gid=self.whoami, mtime=self.now)
        )
        self._is_folder(place, path)
        found.mode = mode
        found.uid = found.uid if uid is None else uid
        found.gid = found.gid if gid is None else gid
        self._changed("make_folder", path)

    def link(self, path: Path, target: str) -> None:
        place = self._change("link", path)
        self._is_folder(place.parent, path)
        if (found := self.entries.get(place)) and found.kind == "folder":
            raise HostError(f"{path}: Is a directory")
        self.entries[place] = Entry("link", b"", 0o777, self.whoami, self.whoami, self.now, target)
        self._changed("link", path)

    def touch(self, path: Path) -> None:
        place = self._change("touch", path, follow=True)
        if place not in self.entries:
            raise HostError(f"{path}: No such file or directory")
        self.entries[place].mtime = self.now
        self._changed("touch", path)

    def remove(self, path: Path) -> None:
        place = self._change("remove", path)
        found = self.entries.get(place)
        if found is not None and found.kind == "folder" and self.names(place):
            raise HostError(f"{path}: Directory not empty")
        self.entries.pop(place, None)
        self._changed("remove", path)

    def _change(self, what: str, path: Path, *, follow: bool = False) -> Path:
        if self.killed_before is not None and len(self.changes) >= self.killed_before:
            raise Killed(f"before {what} {path}")
        place = self._real(path) if follow else self._real(path.parent) / path.name
        why = self._why(self.refuses, place)
        if why:
            raise HostError(f"{path}: {why}")
        return place

    def _changed(self, what: str, path: Path) -> None:
        self.changes.append((what, path))
        if self.on_change is not None:
            self.on_change(what, path)

    def _is_folder(self, place: Path, asked: Path) -> None:
        found = self.entries.get(place)
        if found is None:
            raise HostError(f"{asked}: No such file or directory")
        if found.kind != "folder":
            raise HostError(f"{asked}: Not a directory")

    def _real(self, path: Path) -> Path:
        """The path without links; as it is where a ring of them never ends."""
        assert path.is_absolute(), path
        place = Path("/")
        parts = list(path.parts[1:])
        links = 0
        while parts:
            step = parts.pop(0)
            if step == "..":
                place = place.parent
                continue
            found = self.entries.get(place / step)
            if found is None or found.kind != "link":
                place /= step
                continue
            links += 1
            if links > _MOST_LINKS:
                return path
            target = Path(found.target)
            if target.is_absolute():
                place, parts = Path("/"), [*target.parts[1:], *parts]
            else:
                parts = [*target.parts, *parts]
        return place

    @staticmethod
    def _why(table: Mapping[Path, str], place: Path) -> str:
        return next((table[at] for at in (place, *place.parents) if at in table), "")


def _argv(command: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(command.split()) if isinstance(command, str) else tuple(command)
