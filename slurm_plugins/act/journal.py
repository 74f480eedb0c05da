"""The journal of gsub-act: on disk before Slurm is asked, so that a crash at any point leaves what is to be found out.

``STATE/journal.jsonl`` is one `ledger.Entry` a line. Where it would grow beyond a size it is begun anew with the
entries that still matter, and the one before is kept beside it as journal.jsonl.1 and so on.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from slurm_plugins.act.ledger import Book, Entry, Held
from slurm_plugins.act.limits import Bucket
from slurm_plugins.service.errors import StartError

__all__ = ["NAME", "Journal", "JournalError", "entries", "held", "held_in"]

NAME: Final = "journal.jsonl"
FILE_BYTES: Final = 8 << 20
FILES: Final = 3
"""Files kept beside the present one."""
_REFUSALS: Final = (100, 1.0)
"""Refusals written one by one: so many at once, so many a second. The others are counted."""
_SUM_SECONDS: Final = 60.0
"""How often the refusals that were counted are written down as one line."""


class JournalError(Exception):
    """The journal cannot be written; the message is the system's reason."""


def held(folder: Path) -> tuple[Held, ...]:
    """The jobs that gsub-act holds, by its journal in `folder`, oldest first; none where there is no journal.

    Reads only, with or without a gsub-act that runs. Raises OSError when the journal cannot be read.
    """
    try:
        return held_in((folder / NAME).read_bytes())
    except FileNotFoundError:
        return ()


def held_in(content: bytes) -> tuple[Held, ...]:
    """The same of a journal's content."""
    return Book(entries(content)).all_held()


def entries(content: bytes) -> Iterator[Entry]:
    """The lines of a journal; one that was cut off by a crash is none, and stands for nothing that was done."""
    for line in content.split(b"\n"):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield _ENTRY.decode(line)


_ENTRY: Final = msgspec.json.Decoder(Entry)
_ENCODER: Final = msgspec.json.Encoder()


class Journal:
    """The file, and in `book` what it adds up to. One process has it at a time. Raises StartError."""

    def __init__(self, folder: Path, *, now: float, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        self.path = folder / NAME
        self._file_bytes = file_bytes
        self._files = files
        self._begun = 0
        """Bytes with which the present file was begun anew."""
        _check(folder)
        self._lock = _locked(folder)
        try:
            self._handle = self._open()
            self.book = Book(entries(_content(self._handle)))
        except OSError as error:
            os.close(self._lock)
            raise StartError(
                f"the journal {self.path} cannot be opened",
                error,
                "see its owner and the disk",
            ) from None
        self._bucket = Bucket(_REFUSALS, now=now)
        self._unwritten = 0
        self._summed = now

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._handle)
        os.close(self._lock)

    def put(self, *new: Entry) -> None:
        """Write entries down, on disk when this returns. Raises JournalError; then none of them counts."""
        data = b"".join(map(_line, new))
        try:
            self._make_room(len(data), new[-1].at)
            self._append(data)
        except OSError as error:
            raise JournalError(error.strerror or str(error)) from error
        for entry in new:
            self.book.add(entry)

    def refused(self, entry: Entry) -> None:
        """Write a refusal down. One of too many is counted; one that cannot be written is gone: nothing was done."""
        if self._bucket.take(entry.at):
            self._unwritten += 1
        else:
            with suppress(OSError):
                data = _line(entry)
                self._make_room(len(data), entry.at)
                self._append(data, sync=False)
        self.sum_up(entry.at)

    def sum_up(self, now: float, *, at_once: bool = False) -> None:
        """Write how many refusals were not written one by one."""
        if self._unwritten and (at_once or now - self._summed >= _SUM_SECONDS):
            with suppress(OSError):
                data = _line(Entry(event="more", at=now, count=self._unwritten))
                self._make_room(len(data), now)
                self._append(data, sync=False)
                self._unwritten = 0
                self._summed = now

    # --- the file -----------------------------------------------------------------------------------------------------

    def _open(self) -> int:
        handle = os.open(self.path, _FLAGS | os.O_APPEND, 0o600)
        # What a crash cut off was not on disk when Slurm was asked: it stands for nothing
        content = _content(handle)
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(handle, whole)
        return handle

    def _append(self, data: bytes, *, sync: bool = True) -> None:
        """All of it or nothing."""
        start = os.fstat(self._handle).st_size
        try:
            _write(self._handle, data)
            if sync:
                os.fsync(self._handle)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._handle, start)
            raise

    def _make_room(self, more: int, now: float) -> None:
        """Begin the file anew when it is full, or when it was taken away."""
        try:
            here = self.path.stat()
            ours = os.path.samestat(here, os.fstat(self._handle))
        except FileNotFoundError:
            ours = False
        # Not before it has doubled: what has to be kept may be more than a file is meant to hold
        if ours and here.st_size + more <= max(self._file_bytes, 2 * self._begun):
            return
        self.book.forget(now)
        # Not by profiler.whole_file: it stays open for what is appended, and that the old one is kept comes in between
        fresh = self.path.with_name(f".{NAME}.new")
        fresh.unlink(missing_ok=True)
        handle = os.open(fresh, _FLAGS | os.O_APPEND | os.O_EXCL, 0o600)
        try:
            _write(handle, b"".join(map(_line, self.book.living(now))))
            os.fsync(handle)
            if ours:
                self._keep_old()
            # At every moment there is a whole journal under the name.
            fresh.replace(self.path)
            _sync_folder(self.path.parent)
        except BaseException:
            os.close(handle)
            fresh.unlink(missing_ok=True)
            raise
        os.close(self._handle)
        self._handle = handle
        self._begun = os.fstat(handle).st_size

    def _keep_old(self) -> None:
        for number in range(self._files, 1, -1):
            with suppress(FileNotFoundError):
                self._numbered(number - 1).rename(self._numbered(number))
        self._numbered(1).unlink(missing_ok=True)
        self._numbered(1).hardlink_to(self.path)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{NAME}.{number}")


_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def _line(entry: Entry) -> bytes:
    """ASCII: what others wrote is read in a terminal."""
    line = _ENCODER.encode(entry)
    if not line.isascii():
        line = json.dumps(msgspec.json.decode(line), separators=(",", ":")).encode()
    return line + b"\n"


def _write(handle: int, data: bytes) -> None:
    done = 0
    while done < len(data):
        done += os.write(handle, data[done:])


def _content(handle: int) -> bytes:
    return b"".join(_chunks(handle))


def _chunks(handle: int) -> Iterable[bytes]:
    at = 0
    while chunk := os.pread(handle, 1 << 20, at):
        at += len(chunk)
        yield chunk


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check(folder: Path) -> None:
    """Nobody else may write what we take for our own doing. Raises StartError."""
    fix = f"install -d -m 700 -o gsub-act -g gsub-act {folder} (StateDirectory=gsub-act in the unit)"
    try:
        found = folder.stat()
    except OSError as error:
        raise StartError(f"no folder for the journal: {folder}", error, fix) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StartError(
            f"the folder of the journal is not safe: {folder}",
            "it must be a folder of gsub-act's user, which nobody else may write to",
            fix,
        )


def _locked(folder: Path) -> int:
    try:
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StartError(f"cannot write in {folder}", error, "see its disk and owner") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StartError(
            f"another gsub-act has the journal in {folder}", "it holds the lock", "end that one first"
        ) from None
    return lock
