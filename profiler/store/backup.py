"""A copy of the whole store in one file, and back.

From SQLite it is a database file, by its own online copying; from PostgreSQL rows as lines of JSON, by gzip, all of one
moment. Either can be restored into either. Both can be made while the service writes.
"""

from __future__ import annotations

import gzip
import os
import sqlite3
import tempfile
import time
import zlib
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import msgspec
from sqlalchemy import Boolean, Connection, LargeBinary, MetaData, Table, func, insert, select, text

from profiler.store import upgrade
from profiler.store.engine import Engines
from profiler.store.errors import StoreError, told
from profiler.store.schema import TABLES, metadata

__all__ = ["Copied", "back_up", "restore"]

_FORMAT: Final = 1
_ROWS: Final = 1000
_SQLITE: Final = b"SQLite format 3\0"
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied: the schema's version, and rows by table."""

    schema: str
    rows: dict[str, int]


def back_up(engines: Engines, path: Path) -> Copied:
    """Copy the store to a file that only its owner can read. It appears under its name when it is whole and on disk.

    Raises StoreError; nothing is left behind then.
    """
    what = f"The store cannot be backed up to {path}."
    with told(what), _appearing(path) as temporary:
        with engines.reader.connect() as connection:
            upgrade.check(connection, engines.name)
        try:
            return _copy_file(engines, temporary) if engines.sqlite else _dump(engines, temporary)
        except sqlite3.Error as error:
            raise StoreError(
                "full" if "full" in str(error) else "failed", what, str(error), "Try another disk."
            ) from error


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its name when all went well. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        try:
            yield temporary
            os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _copy_file(engines: Engines, path: Path) -> Copied:
    how = urlencode({**engines.reading, "mode": "ro"})
    # By connections of its own: one step, so that no writer makes it begin again; a reader of a WAL stops nobody
    with (
        closing(sqlite3.connect(f"{engines.file.as_uri()}?{how}", uri=True)) as source,
        closing(sqlite3.connect(path)) as copy,
    ):
        source.backup(copy)
        # One file, that can be read from a medium that cannot be written to
        copy.execute("PRAGMA journal_mode = DELETE")
        found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise _damaged(engines.file, found)
        version = copy.execute("SELECT version_num FROM alembic_version").fetchone()[0]
        return Copied(version, _counted(copy, [str(table.name) for table in TABLES]))


def _counted(connection: sqlite3.Connection, names: Iterable[str]) -> dict[str, int]:
    # The names are ours, from the schema
    return {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}  # noqa: S608


def _dump(engines: Engines, path: Path) -> Copied:
    encode = msgspec.json.Encoder().encode
    counts: dict[str, int] = {}
    with gzip.open(path, "wb", compresslevel=4) as file, engines.reader.connect() as connection:
        version = upgrade.version(connection)
        tables = {str(table.name): [str(column.name) for column in table.columns] for table in TABLES}
        file.write(
            encode({"gsub_store": _FORMAT, "schema": version, "at": time.time(), "tables": tables}) + b"\n"
        )
        for table in TABLES:
            name = str(table.name)
            counts[name] = 0
            rows = connection.execute(
                select(table), execution_options={"stream_results": True, "max_row_buffer": _ROWS}
            )
            for some in rows.partitions(_ROWS):
                file.writelines(encode([name, *row]) + b"\n" for row in some)
                counts[name] += len(some)
        file.write(encode({"rows": counts}) + b"\n")
    read = dict.fromkeys(counts, 0)
    for name, again in _Dump(path).rows():
        read[name] += len(again)
    if read != counts:
        raise _damaged(path, "what was written cannot be read again")
    return Copied(version, counts)


def restore(path: Path, url: str, *, replace: bool = False) -> Copied:
    """Fill a store from a backup, in one transaction, and bring it to this gsub's schema.

    Raises StoreError: for a file that is no whole backup, for a store that holds something (unless `replace`, which
    removes it), and whenever something else fails; the store is as it was then.
    """
    engines = Engines(url)
    what = f"{path} cannot be restored to {engines.name}."
    try:
        with told(what):
            source = _source(path)
            upgrade.refuse_newer(source.schema, str(path))
            engines.create()
            with engines.writer.begin() as connection:
                upgrade.refuse_newer(upgrade.version(connection), engines.name)
                if not replace:
                    _refuse_filled(connection, engines.name)
                return _fill(connection, source, engines.name)
    except sqlite3.Error as error:
        raise _damaged(path, str(error)) from error
    finally:
        engines.close()


def _refuse_filled(connection: Connection, name: str) -> None:
    there = upgrade.tables(connection)
    for table in TABLES:
        if table.name in there and connection.execute(select(text("1")).select_from(table).limit(1)).first():
            raise StoreError(
                "not_empty",
                f"The store at {name} is not empty.",
                f"Its table {table.name} has rows, which a restore would remove.",
                "Back it up first, then restore with --replace.",
            )


def _fill(connection: Connection, source: _Source, name: str) -> Copied:
    metadata.drop_all(connection)
    connection.execute(text("DROP TABLE IF EXISTS alembic_version"))
    # The tables as they were when the backup was made; then the way that every store of that age goes
    upgrade.upgrade(connection, name, to=source.schema)
    found = MetaData()
    found.reflect(connection)
    counts = dict.fromkeys(
        (table.name for table in found.sorted_tables if table.name != "alembic_version"), 0
    )
    for table_name, rows in source.rows():
        if table_name not in counts:
            raise _damaged(source.path, f"it has a table {table_name!r} that schema {source.schema} has not")
        table = found.tables[table_name]
        connection.execute(insert(table), [_fitted(table, row) for row in rows])
        counts[table_name] += len(rows)
    written = {
        name: connection.execute(select(func.count()).select_from(found.tables[name])).scalar()
        for name in counts
    }
    if written != counts or counts != source.counts():
        raise _damaged(source.path, f"it says that it has {source.counts()} and has {counts}")
    if connection.dialect.name == "postgresql":
        for table in found.sorted_tables:
            if "pk" in table.c:
                last = select(func.max(table.c.pk)).scalar_subquery()
                sequence = func.pg_get_serial_sequence(table.name, "pk")
                connection.execute(select(func.setval(sequence, func.coalesce(last, 1), last.is_not(None))))
    _, version = upgrade.upgrade(connection, name)
    return Copied(version, counts)


def _fitted(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the database's driver wants it."""
    fitted = dict(row)
    for column in table.columns:
        value = fitted.get(column.name)
        if value is None:
            continue
        if isinstance(column.type, Boolean):
            fitted[column.name] = bool(value)
        elif isinstance(column.type, LargeBinary) and isinstance(value, str):
            fitted[column.name] = b64decode(value)
    return fitted


class _Source(Protocol):
    """A backup. `rows` come table by table, each table after those it refers to; `counts` is known after them."""

    path: Path
    schema: str

    def rows(self) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]: ...

    def counts(self) -> dict[str, int]: ...


def _source(path: Path) -> _Source:
    with path.open("rb") as file:
        head = file.read(len(_SQLITE))
    if head == _SQLITE:
        return _File(path)
    if head.startswith(_GZIP):
        return _Dump(path)
    raise _damaged(path, "it is neither a SQLite file nor a dump of ours")


class _File:
    """A file of SQLite's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(self._open()) as connection:
            check = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if check != "ok":
                raise _damaged(path, check)
            names = {
                row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if "alembic_version" not in names:
                raise _damaged(path, "it is a database, and none of ours")
            self.schema: str = connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]
            self._names = [str(table.name) for table in TABLES if table.name in names]

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)

    def rows(self) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
        with closing(self._open()) as connection:
            connection.row_factory = sqlite3.Row
            for name in self._names:
                found = connection.execute(f'SELECT * FROM "{name}"')  # noqa: S608 - a name of ours
                while some := found.fetchmany(_ROWS):
                    yield name, [dict(row) for row in some]

    def counts(self) -> dict[str, int]:
        with closing(self._open()) as connection:
            return _counted(connection, self._names)


class _Dump:
    """Lines of JSON: what it is, rows as [table, values...], and how many there were."""

    def __init__(self, path: Path) -> None:
        self.path = path
        head = next(iter(self._lines()), None)
        if not isinstance(head, dict) or head.get("gsub_store") != _FORMAT:
            raise _damaged(path, "it does not begin like a dump of ours")
        self.schema = str(head.get("schema"))
        self._columns: dict[str, list[str]] = head["tables"]
        self._counts: dict[str, int] | None = None

    def _lines(self) -> Iterator[Any]:
        decode = msgspec.json.Decoder().decode
        try:
            with gzip.open(self.path, "rb") as file:
                for line in file:
                    yield decode(line)
        except (EOFError, gzip.BadGzipFile, zlib.error, msgspec.DecodeError) as error:
            raise _damaged(self.path, str(error)) from error

    def rows(self) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
        name, rows = "", list[dict[str, Any]]()
        for line in islice(self._lines(), 1, None):
            if isinstance(line, dict):
                self._counts = line["rows"]
                break
            if line[0] != name or len(rows) >= _ROWS:
                if rows:
                    yield name, rows
                name, rows = line[0], []
            rows.append(self._row(name, line[1:]))
        if rows:
            yield name, rows
        if self._counts is None:
            raise _damaged(self.path, "its end is missing")

    def _row(self, name: str, values: Iterable[Any]) -> dict[str, Any]:
        try:
            return dict(zip(self._columns[name], values, strict=True))
        except (KeyError, ValueError) as error:
            raise _damaged(self.path, f"a row of {name!r} does not fit") from error

    def counts(self) -> dict[str, int]:
        return self._counts or {}


def _damaged(path: Path, why: str) -> StoreError:
    return StoreError("damaged", f"{path} is not a whole backup.", why, "Take another one.")
