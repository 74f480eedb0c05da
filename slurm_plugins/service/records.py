"""Decisions written down: JSON lines in a file, by a thread of its own, so that no submission waits for a disk.

``STATE/decisions.jsonl`` is appended to and turned over at a size: decisions.jsonl.1 is the one before, and so on. What
cannot be written is counted and gone; decisions go on. Until there is a store this is the record. It is ASCII: a user's
words, which a terminal might obey, are escaped as JSON has it.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from profiler.logs import Troubles, one_line
from slurm_plugins.service.errors import PASSING, StartError

__all__ = ["FILES", "FILE_BYTES", "Journal", "tail"]

FILE_BYTES: Final = 64 << 20
"""A file that has grown to this is turned over."""
FILES: Final = 8
"""Files kept beside the present one."""
_QUEUE = 10_000
_BATCH = 256
_GATHER = 0.05
"""Seconds that a record waits for others to be written with."""

_log = logging.getLogger("gsubd")


class Journal:
    """The file of records. `put` may be called from any thread and never waits.

    Raises StartError when the folder cannot be written to, unless that is for a disk that may recover.
    """

    def __init__(self, folder: Path, *, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        self.path = folder / "decisions.jsonl"
        self._file_bytes = file_bytes
        self._files = files
        self._queue: queue.SimpleQueue[Callable[[], bytes] | None] = queue.SimpleQueue()
        self.dropped = 0
        """Records that were lost: no room in the queue or on the disk."""
        self.written = 0
        self._failing = False
        self._odd = Troubles(_log)
        self._closing = threading.Event()
        self._handle: int | None = None
        try:
            self._handle = self._open()
        except OSError as error:
            if error.errno not in PASSING:
                raise StartError(
                    f"cannot write records to {self.path}",
                    error,
                    "give the folder to the user that gsubd runs as, or name another with --state",
                ) from None
            self._fail(error)
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)
        self._thread.start()

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(self.path, flags, 0o640)
        # What a crash or a full disk cut off must not swallow the next record
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            with suppress(OSError):
                os.write(handle, b"\n")
        return handle

    def put(self, line: Callable[[], bytes]) -> None:
        """Have a record written; `line` makes its JSON, without a newline, in the writer's thread."""
        if self._queue.qsize() >= _QUEUE:
            self.dropped += 1
        else:
            self._queue.put(line)

    def close(self, seconds: float = 1.0) -> None:
        """Write what is waiting, for so long at most."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        last = False
        while not last:
            batch: list[Callable[[], bytes]] = []
            item = self._queue.get()
            if item is not None and self._queue.qsize() < _BATCH:
                # One wake-up and one write for what comes together: the processor is slurmctld's too
                self._closing.wait(_GATHER)
            while True:
                if item is None:
                    last = True
                    break
                batch.append(item)
                if len(batch) >= _BATCH:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            self._write(batch)
        if self._handle is not None:
            os.close(self._handle)

    def _write(self, batch: list[Callable[[], bytes]]) -> None:
        lines = []
        for line in batch:
            try:
                lines.append(_ascii(line()) + b"\n")
            except Exception as error:
                # a record that cannot be encoded is our bug: it must not end the thread that writes the others
                self.dropped += 1
                self._odd.say("a record could not be encoded, it and others like it are counted", repr(error))
        if not lines:
            return
        before = self.written
        try:
            self._append(self._file_for(sum(map(len, lines))), lines)
        except OSError as error:
            self.dropped += len(lines) - (self.written - before)
            self._fail(error)
        else:
            if self._failing:
                self._failing = False
                _log.warning("records are written again to %s (%d were lost so far)", self.path, self.dropped)

    def _append(self, handle: int, lines: list[bytes]) -> None:
        """Append whole lines; one that does not fit is taken back, and those after it are lost."""
        done = 0
        start = os.fstat(handle).st_size
        try:
            data = b"".join(lines)
            while done < len(data):
                done += os.write(handle, data[done:])
        except OSError:
            kept, whole = 0, 0
            for line in lines:
                if kept + len(line) > done:
                    break
                kept += len(line)
                whole += 1
            with suppress(OSError):
                os.ftruncate(handle, start + kept)
            self.written += whole
            raise
        self.written += len(lines)

    def _fail(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            _log.error(
                "records cannot be written to %s: %s; decisions go on, records are lost",
                self.path,
                one_line(error.strerror or str(error)),
            )

    def _file_for(self, more: int) -> int:
        """The file to append `more` bytes to: a new one when this one is full or was taken away."""
        if self._handle is not None:
            here = os.fstat(self._handle)
            try:
                ours = os.path.samestat(here, self.path.stat())
            except FileNotFoundError:
                ours = False
            if ours and (here.st_size == 0 or here.st_size + more <= self._file_bytes):
                return self._handle
            if ours:
                for number in range(self._files, 0, -1):
                    newer = self._numbered(number - 1)
                    with suppress(FileNotFoundError):
                        newer.rename(self._numbered(number))
        handle = self._open()
        if self._handle is not None:
            os.close(self._handle)
        self._handle = handle
        return handle

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path


def _ascii(line: bytes) -> bytes:
    return line if line.isascii() else json.dumps(msgspec.json.decode(line), separators=(",", ":")).encode()


def tail(path: Path, limit: int = 32 << 20) -> Iterator[dict[str, Any]]:
    """The newest records of a journal, oldest first: those in the last `limit` bytes of it and of the file before.

    Lines that are no record (cut off by a crash) are left out.
    """
    for file in (path.with_name(f"{path.name}.1"), path):
        try:
            with file.open("rb") as opened:
                size = opened.seek(0, os.SEEK_END)
                opened.seek(max(0, size - limit))
                if size > limit:
                    opened.readline()
                yield from _decoded(opened)
        except OSError:
            continue


def _decoded(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            record = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record
