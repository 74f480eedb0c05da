"""Connections to SQLite and PostgreSQL, set up so that a record that was acknowledged is not lost.

SQLite: WAL, so that readers and the writer never wait for each other, with synchronous=FULL. The usual NORMAL writes
the log to disk only now and then: after a power cut the last commits would be gone, though nodes were told to forget
them. FULL costs one fsync a commit, and a commit is a whole batch.

PostgreSQL: by psycopg 3; a password only from ~/.pgpass. What waits for a lock or computes for long is given up, and a
connection that died is found out before it is used.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from profiler.store.errors import StoreError

__all__ = ["Engines", "parsed"]

_BUSY_MS: Final = 10_000
_STATEMENT_MS: Final = 30_000
_READERS: Final = 8
_PRAGMAS: Final = (
    "PRAGMA foreign_keys = ON",
    "PRAGMA synchronous = FULL",
    f"PRAGMA busy_timeout = {_BUSY_MS}",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -32768",
    # What a burst made of the log is given back
    "PRAGMA journal_size_limit = 67108864",
)


def parsed(url: str) -> URL:
    """The address of a store. Raises StoreError for one that is none of ours."""
    try:
        address = make_url(url)
    except ArgumentError as error:
        raise _wrong(url, str(error)) from None
    except ValueError as error:
        raise _wrong(url, f"the port is no number: {error}") from None
    if address.drivername not in ("sqlite", "postgresql+psycopg"):
        raise _wrong(url, f"{address.drivername} is not supported")
    if address.drivername == "sqlite" and not Path(address.database or "").is_absolute():
        raise _wrong(url, "SQLite wants an absolute path")
    return address


def _wrong(url: str, why: str) -> StoreError:
    return StoreError(
        "wrong",
        f"{_shown(url)!r} is not the address of a store.",
        why,
        'Write "sqlite:////PATH" or "postgresql+psycopg://..."',
    )


_SECRET: Final = re.compile(r"(?<=:)(?!//)[^@\s]+(?=@)|(?i:(?<=password=))[^&\s]*")


def _shown(url: str) -> str:
    """An address, were it none, without the password that may be in it: it is for a log."""
    return _SECRET.sub("***", url)


class Engines:
    """One engine that writes and one that only reads; both connect when first used.

    `reading`: how SQLite opens the file for the latter, as a query of its address.
    """

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self.url = parsed(url)
        self.sqlite = self.url.drivername == "sqlite"
        self.read_only = read_only
        self.reading = _reading(self.file) if self.sqlite and read_only else dict(_READING)
        try:
            self.reader = self._made(writes=False)
        except ImportError as error:
            raise StoreError(
                "wrong",
                f"{self.name} needs a driver that is not here.",
                str(error),
                'Install gsub with it: pip install "gsub[service,postgresql]"',
            ) from None
        self.writer = self.reader if read_only else self._made(writes=True)

    def _made(self, *, writes: bool) -> Engine:
        if not self.sqlite:
            return _postgresql(self.url, writes=writes)
        return _sqlite(self.url, {"mode": "rw"} if writes else self.reading, writes=writes)

    @property
    def file(self) -> Path:
        """SQLite's file."""
        return Path(self.url.database or "")

    @property
    def name(self) -> str:
        """The address as it may be shown."""
        return _shown(self.url.render_as_string(hide_password=True))

    def create(self) -> None:
        """Make SQLite's file, if it is not there, for its owner alone. Raises OSError."""
        if self.sqlite:
            with suppress(FileExistsError):
                os.close(os.open(self.file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))

    def close(self) -> None:
        """Give back all connections."""
        self.reader.dispose()
        self.writer.dispose()


_READING: Final = {"mode": "rw"}
"""A reader of a WAL takes part in its locks, and makes their file if it is the first."""


def _reading(file: Path) -> dict[str, str]:
    """How a file is opened that nothing will be written to: also where nothing can be.

    On a read-only disk SQLite finds no place for its locks (sqlite.org/wal.html, "Read-Only Databases"). Where there is
    a log, another may be writing by a mount of its own, and its locks are used; a file without one is nobody's.
    """
    try:
        fixed = bool(os.statvfs(file).f_flag & os.ST_RDONLY)
    except OSError:
        fixed = False
    if not fixed:
        return dict(_READING)
    if _size(file, "-wal") or _size(file, "-shm"):
        return {"mode": "ro"}
    return {"mode": "ro", "immutable": "1"}


def _size(file: Path, end: str) -> int:
    try:
        return file.with_name(file.name + end).stat().st_size
    except OSError:
        return 0


def _sqlite(url: URL, how: dict[str, str], *, writes: bool) -> Engine:
    # Never creates the file: `Engines.create` does, with the right mode
    engine = create_engine(
        URL.create("sqlite", database=f"file:{_escaped(url.database or '')}", query={**how, "uri": "true"}),
        poolclass=QueuePool,
        pool_size=1 if writes else _READERS,
        max_overflow=0,
        connect_args={"check_same_thread": False, "timeout": _BUSY_MS / 1000},
    )

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, entry: ConnectionPoolEntry) -> None:
        entry.info["file"] = _file(url)
        # The module's own transactions begin too late (before the first change, not the first look): ours are explicit
        connection.isolation_level = None
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        if writes:
            connection.execute("PRAGMA journal_mode = WAL")
        else:
            connection.execute("PRAGMA query_only = ON")

    @event.listens_for(engine, "checkout")
    def _taken_out(_: object, entry: ConnectionPoolEntry, __: object) -> None:
        # A file that was removed or replaced meanwhile takes what is written to it along: nobody would find it again
        if entry.info["file"] != _file(url):
            raise InvalidatePoolError("the store's file is another one now")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        # A writer that looks first and locks later could find its look outdated
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _file(url: URL) -> tuple[int, int] | None:
    """Which file it is; None where there is none."""
    try:
        found = Path(url.database or "").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _escaped(path: str) -> str:
    """A path as SQLite reads it in a URI."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _postgresql(url: URL, *, writes: bool) -> Engine:
    options = f"-c statement_timeout={_STATEMENT_MS} -c lock_timeout={_BUSY_MS} -c timezone=UTC"
    if not writes:
        options += " -c default_transaction_read_only=on"
    return create_engine(
        url,
        # A reader's statements all see one moment, as on SQLite
        isolation_level="READ COMMITTED" if writes else "REPEATABLE READ",
        pool_pre_ping=True,
        pool_size=2 if writes else _READERS,
        max_overflow=0,
        pool_recycle=3600,
        connect_args={
            "options": options,
            "connect_timeout": 5,
            "application_name": "gsub",
            # A host that went away without a word is noticed
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
        },
    )
