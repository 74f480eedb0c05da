"""slurm.conf: read as Slurm reads it, changed so that the change can be taken out again to the byte.

Slurm's own rules (`src/common/parse_config.c`, the same from 22.05 to 26.05): a `#` that no backslash escapes begins a
comment, also between quotes; then a backslash at the end of a line joins the next one to it; a line holds one key,
whatever its case, but for those that describe nodes and partitions; of a key that is set twice the last counts, or,
from 24.05 for Prolog and Epilog, both.

A change leaves three kinds of marks, and `unedit` needs nothing but them:

    #gsub:was# Prolog=/etc/slurm/prolog            a line that was there, each of its parts if it was continued
    # >>> gsub: ...                                around what is new, at the end of the file
    Prolog=/usr/libexec/gsub/prolog.d/*  #gsub#    what is new, line by line: a frame that was torn does no harm
    # <<< gsub
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from slurm_plugins.install.host import MOST_BYTES, Host, HostError

__all__ = [
    "Changes",
    "Setting",
    "SlurmConf",
    "edit",
    "edit_files",
    "is_edited",
    "unedit",
    "unedit_files",
    "with_included",
]

Changes: TypeAlias = Mapping[str, str | tuple[str, ...] | None]
"""What keys are to be: a value, several lines of one (24.05 and newer, for Prolog and Epilog), None: not set."""

WAS: Final = b"#gsub:was# "
OURS: Final = b"  #gsub#"
BEGIN: Final = b"# >>> gsub"
END: Final = b"# <<< gsub"
_TOLD: Final = b": `gsub admin rollback` takes these lines out, and puts back what they stand for"
_NO_END: Final = b" (and the end of the line above)"

_DEEPEST: Final = 16  # Include in Include; Slurm has no limit, and ends in a circle
_MOST_INCLUDES: Final = 1000  # of one slurm.conf: files that include each other go on for long

_KEY_VALUE: Final = re.compile(rb'\s*([A-Za-z0-9_.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))(?=\s|\Z)')
_INCLUDE: Final = re.compile(rb"include\s+(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of slurm.conf that is set: the key as it is written, its value without quotes, the file and the number of
    its first line there, from 1. Bytes that are no UTF-8 are surrogates."""

    key: str
    value: str
    path: Path
    line: int


@dataclass(frozen=True, slots=True)
class _Line:
    """A line as Slurm sees it: the numbers of its physical lines from `first` (0 is the file's first) to before
    `after`, and its text, without comments, joined, escapes resolved."""

    first: int
    after: int
    text: bytes

    @property
    def setting(self) -> tuple[bytes, bytes] | None:
        """Key and value, None where it sets nothing."""
        found = _KEY_VALUE.match(self.text)
        if found is None or self.include is not None:
            return None
        quoted, plain = found[2], found[3]
        return found[1], plain if quoted is None else quoted

    @property
    def include(self) -> bytes | None:
        """The file that it includes."""
        found = _INCLUDE.match(self.text)
        return found[1] if found else None


@dataclass(frozen=True, slots=True)
class SlurmConf:
    """A slurm.conf with all that it includes, in the order in which Slurm reads it.

    files: the content of each file that was read, slurm.conf first.
    problems: what of it Slurm cannot read either, one line each: a file that is not there, a circle.
    """

    path: Path
    settings: tuple[Setting, ...]
    files: Mapping[Path, bytes]
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, host: Host, path: Path) -> SlurmConf:
        """Read it from a host, as slurmctld would.

        Raises
        ------
        HostError: slurm.conf itself is not there or cannot be read.
        """
        content = host.read(path)
        if content is None:
            raise HostError(f"{path}: no such file")
        reading = _Reading(host, [], {}, [])
        reading.file(path, content, 0)
        return cls(path, tuple(reading.settings), reading.files, tuple(reading.problems))

    @classmethod
    def parse(cls, text: bytes, path: Path = Path("slurm.conf")) -> SlurmConf:
        """One file's own settings, what it includes left out.

        >>> SlurmConf.parse(b"prologflags = Alloc,\\\\\\nX11 # both\\n").value("PrologFlags")
        'Alloc,X11'
        """
        return cls(path, tuple(_settings(text, path)), {path: text})

    def values(self, key: str) -> tuple[str, ...]:
        """All that `key` is set to, in order; case does not count."""
        return tuple(setting.value for setting in self.where(key))

    def value(self, key: str) -> str | None:
        """What `key` is set to last, None: it is not set."""
        values = self.values(key)
        return values[-1] if values else None

    def where(self, key: str) -> tuple[Setting, ...]:
        """Where `key` is set, in order."""
        return tuple(setting for setting in self.settings if setting.key.lower() == key.lower())


@dataclass(slots=True)
class _Reading:
    host: Host
    settings: list[Setting]
    files: dict[Path, bytes]
    problems: list[str]
    rows: list[bytes] = field(default_factory=list)
    """The lines of all files as they are written, in the order in which Slurm reads them."""
    includes: int = 0
    size: int = 0
    full: bool = False

    def file(self, path: Path, text: bytes, depth: int) -> None:
        self.files[path] = text
        self.size += len(text)
        rows = _rows(text)
        for line in _lines(text):
            if line.include is not None:
                self._include(line.include, path, line.first + 1, depth)
                continue
            self.rows += rows[line.first : line.after]
            if (found := _setting(line, path)) is not None:
                self.settings.append(found)
        # The file's last line may have no end, or ask for another line to follow: it goes no further than its file.
        self.rows.append(b"\n\n")

    def _include(self, name: bytes, path: Path, line: int, depth: int) -> None:
        text = _str(name)
        if "%c" in text:
            cluster = [item.value for item in self.settings if item.key.lower() == "clustername"]
            if not cluster:
                self.problems.append(f"{path} line {line}: {text} comes before ClusterName")
                return
            text = text.replace("%c", cluster[-1].lower())
        target = path.parent / text  # of the name that was used, as Slurm does: a link is not followed
        if depth == _DEEPEST:
            self.problems.append(f"{path} line {line}: files that include each other, down to {target}")
            return
        self.includes += 1
        if self.includes > _MOST_INCLUDES or self.size > MOST_BYTES:
            if not self.full:  # once: what follows is as much too much
                self.full = True
                self.problems.append(
                    f"{path} line {line}: more than {_MOST_INCLUDES} files or {MOST_BYTES >> 20} MiB are included"
                )
            return
        try:
            content = self.host.read(target)
        except HostError as error:
            self.problems.append(f"{path} line {line}: {error}")
            return
        if content is None:
            self.problems.append(f"{path} line {line}: {target} is not there")
            return
        self.file(target, content, depth + 1)


def with_included(host: Host, path: Path, text: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The text of the slurm.conf at `path` with what it includes in the places of its Include lines, and what of that
    cannot be read, one line each. A text that includes nothing comes back as it is.
    """
    if not any(line.include is not None for line in _lines(text)):
        return text, ()
    reading = _Reading(host, [], {}, [])
    reading.file(path, text, 0)
    return b"".join(reading.rows), tuple(reading.problems)


# --- changing ---------------------------------------------------------------------------------------------------------


def edit(text: bytes, changes: Changes) -> bytes:
    """One file with `changes`: a line that sets one of the keys becomes a comment, what is new stands at the end.

    Changes that were made before stay unless they are made anew; those that say what is there already change
    nothing. Everything else stays as it is, to the byte.

    Raises
    ------
    ValueError: a key or a value that Slurm could not read back.
    """
    wanted = {key.lower(): (key, _tuple(value)) for key, value in {**_made(text), **changes}.items()}
    original = unedit(text)
    now = SlurmConf.parse(original)
    wanted = {lower: pair for lower, pair in wanted.items() if now.values(lower) != pair[1]}
    rows = _rows(original)
    for line in _lines(original):
        setting = line.setting
        if setting is not None and setting[0].lower().decode() in wanted:
            for number in range(line.first, line.after):
                rows[number] = WAS + rows[number]
    fresh = [_written(key, value) for key, values in wanted.values() for value in values]
    result = b"".join(rows)
    if not fresh:
        return result
    end = b"\r\n" if original.split(b"\n", 1)[0].endswith(b"\r") else b"\n"
    begin = BEGIN + _TOLD
    if result and not result.endswith(b"\n"):
        result, begin = result + end, begin + _NO_END
    return result + end.join([begin, *(line + OURS for line in fresh), END, b""])


def unedit(text: bytes) -> bytes:
    """One file without any change of ours. What was changed by others since stays."""
    result: list[bytes] = []
    added: tuple[int, bytes] | None = None  # how many lines there were when we gave the last one an end
    for row in _rows(text):
        bare = row.rstrip(b"\r\n")
        if bare.startswith(BEGIN):
            if bare.endswith(_NO_END):
                added = len(result), b"\r\n" if row.endswith(b"\r\n") else b"\n"
        elif row.startswith(WAS):
            result.append(row[len(WAS) :])
        elif not bare.startswith(END) and not bare.endswith(OURS):
            result.append(row)
    # Where others have put lines behind ours since, that line needs its end.
    if result and added and added[0] == len(result):
        result[-1] = result[-1].removesuffix(added[1])
    return b"".join(result)


def is_edited(text: bytes) -> bool:
    """Whether anything of ours is in it."""
    return unedit(text) != text


def edit_files(conf: SlurmConf, changes: Changes) -> dict[Path, bytes]:
    """The files of a slurm.conf that `changes` change, with their new content: each key in the file where it was set
    last, slurm.conf itself where it is set nowhere; its lines in other files become comments.
    """
    result = dict(conf.files)
    for key, value in changes.items():
        places = [setting.path for setting in conf.where(key)]
        home = places[-1] if places else conf.path
        for path in {*places, home}:
            result[path] = edit(result[path], {key: value if path == home else None})
    return {path: text for path, text in result.items() if text != conf.files[path]}


def unedit_files(conf: SlurmConf) -> dict[Path, bytes]:
    """The files of a slurm.conf that hold anything of ours, with their content without it."""
    return {path: unedit(text) for path, text in conf.files.items() if is_edited(text)}


def _made(text: bytes) -> dict[str, tuple[str, ...]]:
    """The changes of ours that a file holds."""
    ours: list[bytes] = []
    was: list[bytes] = []
    for row in _rows(text):
        if row.startswith(WAS):
            was.append(row[len(WAS) :])
        elif row.rstrip(b"\r\n").endswith(OURS):
            ours.append(row)
    found: dict[str, tuple[str, ...]] = {}
    new = SlurmConf.parse(b"".join(ours))
    for setting in new.settings:
        found.setdefault(setting.key, new.values(setting.key))
    made = {key.lower() for key in found}
    for setting in SlurmConf.parse(b"".join(was)).settings:
        if setting.key.lower() not in made:
            found[setting.key] = ()
    return found


def _tuple(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


def _written(key: str, value: str) -> bytes:
    """The line that sets `key`, as Slurm wants it escaped and quoted."""
    escaped = value.replace("\\", "\\\\").replace("#", "\\#")
    if not value or re.search(r"\s", value):
        escaped = f'"{escaped}"'
    line = _bytes(f"{key}={escaped}")
    read = [] if b"\n" in line else list(_lines(line + OURS))
    if len(read) != 1 or read[0].setting != (_bytes(key), _bytes(value)):
        raise ValueError(f"slurm.conf cannot hold {key}={value!r}")
    return line


# --- reading a file as Slurm does -------------------------------------------------------------------------------------


def _rows(text: bytes) -> list[bytes]:
    """The physical lines, with their ends: \\n alone ends one."""
    return [row for row in re.split(rb"(?<=\n)", text) if row]


def _lines(text: bytes) -> Iterator[_Line]:
    parts: list[bytes] = []
    first = 0
    rows = _rows(text)
    for number, row in enumerate(rows):
        bare = _without_comment(row.split(b"\0", 1)[0])  # to C the line ends there
        joined = _joined(bare)
        if joined is not None and number + 1 < len(rows):
            parts.append(joined)
            continue
        parts.append(bare if joined is None else joined)
        yield _Line(first, number + 1, _without_escapes(b"".join(parts)))
        parts, first = [], number + 1


def _without_comment(row: bytes) -> bytes:
    """Up to the first # with an even number of backslashes before it."""
    found = re.match(rb"((?:[^\\#]|\\.|\\\Z)*)", row, re.DOTALL)
    return found[1] if found else row


def _joined(row: bytes) -> bytes | None:
    """What of a row goes before the next row, None: it is not continued."""
    bare = row.rstrip(b" \t\n\r\f\v")
    backslashes = len(bare) - len(bare.rstrip(b"\\"))
    return bare[:-1] if backslashes % 2 else None


def _without_escapes(line: bytes) -> bytes:
    return re.sub(rb"\\(.?)", rb"\1", line, flags=re.DOTALL)


def _settings(text: bytes, path: Path) -> Iterator[Setting]:
    for line in _lines(text):
        if (found := _setting(line, path)) is not None:
            yield found


def _setting(line: _Line, path: Path) -> Setting | None:
    found = line.setting
    return None if found is None else Setting(_str(found[0]), _str(found[1]), path, line.first + 1)


def _str(value: bytes) -> str:
    return value.decode(errors="surrogateescape")


def _bytes(value: str) -> bytes:
    return value.encode(errors="surrogateescape")
