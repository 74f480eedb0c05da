"""Empty stores, copied from one that was migrated once: migrating takes a tenth of a second or more."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Identifier
from sqlalchemy.engine import URL, make_url

from profiler.store import Store, open_store

_TEMPLATE = "gsub_empty"
_FOLDER = tempfile.TemporaryDirectory(prefix="gsub-store-")  # goes with the process


def empty_store(url: str) -> Store:
    """Open a new store with today's schema.

    Args:
        url: address of a file that does not exist, or of a database that holds nothing and is made anew.
    """
    address = make_url(url)
    if address.drivername == "sqlite":
        path = Path(address.database or "")
        assert not path.exists(), f"{path} is no new store"
        shutil.copy(_sqlite_template(), path)
        path.chmod(0o600)
    else:
        host = str(address.query["host"])
        _postgresql_template(address.set(database=_TEMPLATE), host)
        _create_database(host, address.username or "", address.database or "", _TEMPLATE)
    return open_store(url)


@cache
def _sqlite_template() -> Path:
    path = Path(_FOLDER.name) / "empty.db"
    _migrate(f"sqlite:///{path}")
    return path


@cache
def _postgresql_template(address: URL, host: str) -> None:
    _create_database(host, address.username or "", _TEMPLATE, "template0")
    _migrate(address.render_as_string(hide_password=False))


def _migrate(url: str) -> None:
    store = open_store(url)
    store.migrate()
    store.close()


def _create_database(host: str, user: str, name: str, template: str) -> None:
    with psycopg.connect(host=host, user=user, dbname="postgres", autocommit=True) as connection:
        connection.execute(SQL("DROP DATABASE IF EXISTS {}").format(Identifier(name)))
        line = SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(template))
        connection.execute(line)
