"""What a fixer looks at, and what it offers. Frozen values; the user's files are seen through `Files` only."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from gsub.resubmission.change import Change
from profiler.findings import Finding
from profiler.resubmissions import Resubmission

__all__ = ["Case", "Files", "Fix", "Fixer", "RealFiles"]


class Files(Protocol):
    """The user's files, as the user sees them on this machine. No method raises."""

    def kind(self, path: str) -> Literal["file", "folder", ""]:
        """What is there; "" where there is nothing, or nothing that may be seen."""
        ...

    def names(self, folder: str) -> tuple[str, ...]:
        """The first few thousand names in a folder, in order."""
        ...

    def may(self, path: str, what: Literal["execute", "write", "own"]) -> bool:
        """Whether this user may execute it, write to it, or owns it."""
        ...

    def free(self, path: str) -> tuple[int, int, int] | None:
        """Of its file system: bytes free to users, bytes in all, files that can still be made; None: not known."""
        ...

    def text(self, path: str) -> str:
        """The beginning of a file; "" where it cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """A job that failed.

    `evidence` are the lines that speak, the deciding one first; `row` is what the table has for it. `script` is its
    text ("" where not known), `wrap` the command of --wrap (None: it was a script). `words` are the script's
    arguments, `folder` is where it ran, `output` its output file ("" not known). `time_limit` and `most_time` (its
    partition's) are seconds, None: none or not known. `asks` finds the value of an option in effect (None: not
    asked for). `exclude` makes the change that keeps off nodes, `more_memory` the one to so many MiB for each "node"
    or "cpu".
    """

    shown: str
    finding: Finding
    evidence: tuple[str, ...]
    row: Resubmission | None
    script: str
    wrap: str | None
    words: tuple[str, ...]
    folder: str
    output: str
    files: Files
    asks: Callable[[str], str | None]
    exclude: Callable[[frozenset[str]], Change | None]
    more_memory: Callable[[int, str, str], Change]
    time_limit: int | None = None
    most_time: int | None = None
    peak_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Fix:
    """One change: `what` is done and `why`, in a sentence each.

    `options` are set on the command line. In the script (or the command of --wrap) `insert` is a line before the first
    command, `replace` pairs of an old and a new text, which count for the script's arguments too. `folders` are made
    before the submission. `typed` are commands that the user may type: they are never run. Without any of the first
    four there is nothing to submit.
    """

    what: str
    why: str
    options: tuple[Change, ...] = ()
    insert: str = ""
    replace: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()

    @property
    def submits(self) -> bool:
        """Whether there is something that can be submitted with it."""
        return bool(self.options or self.insert or self.replace or self.folders)


@dataclass(frozen=True, slots=True)
class Fixer:
    """A way to mend: the reasons that it is asked about, and what it offers."""

    reasons: frozenset[str]
    fix: Callable[[Case], Fix | None]


class RealFiles:
    """The file system."""

    def kind(self, path: str) -> Literal["file", "folder", ""]:
        """See `Files.kind`."""
        return "file" if os.path.isfile(path) else "folder" if os.path.isdir(path) else ""  # noqa: PTH112, PTH113

    def names(self, folder: str) -> tuple[str, ...]:
        """See `Files.names`."""
        found: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    found.append(entry.name)
                    if len(found) >= 4000:
                        break
        except OSError:
            return ()
        return tuple(sorted(found))

    def may(self, path: str, what: Literal["execute", "write", "own"]) -> bool:
        """See `Files.may`."""
        try:
            if what == "own":
                return os.stat(path).st_uid == os.geteuid()  # noqa: PTH116
            return os.access(path, os.X_OK if what == "execute" else os.W_OK)
        except (OSError, ValueError):
            return False

    def free(self, path: str) -> tuple[int, int, int] | None:
        """See `Files.free`."""
        try:
            found = os.statvfs(path)
        except (OSError, ValueError):
            return None
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, found.f_favail

    def text(self, path: str) -> str:
        """See `Files.text`."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                return file.read(1 << 16).decode(errors="replace")
        except (OSError, ValueError):
            return ""
