"""Which schema a store has, and bringing it up to date. alembic is imported when it is needed: it is slow to load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from profiler.store.errors import StoreError

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

__all__ = ["EMPTY", "HEAD", "check", "refuse_newer", "scripts", "tables", "upgrade", "version"]

_SCRIPTS: Final = Path(__file__).with_name("migrations")
EMPTY: Final = ""
"""The version of a store without tables."""
_VERSION: Final = text("SELECT version_num FROM alembic_version")
HEAD: Final = "0008"
"""The schema that this gsub works with."""


def version(connection: Connection) -> str:
    """The schema's version ("0001"); EMPTY without one."""
    if not inspect(connection).has_table("alembic_version"):
        return EMPTY
    return connection.execute(_VERSION).scalar() or EMPTY


def tables(connection: Connection) -> frozenset[str]:
    """The names of the tables that are there."""
    return frozenset(inspect(connection).get_table_names())


def check(connection: Connection, name: str) -> None:
    """Raise StoreError unless the schema is this gsub's."""
    # Asked straight: this is looked at in every transaction that writes
    found = connection.execute(_VERSION).scalar() or EMPTY
    if found != HEAD:
        refuse_newer(found, name)
        raise StoreError(
            "older",
            f"The store at {name} has schema {found or 'none'}; this gsub needs {HEAD}.",
            "It was not upgraded yet.",
            "Upgrade it (the service does so when it starts): gsub admin db upgrade",
        )


def refuse_newer(found: str, name: str) -> None:
    """Raise StoreError for a schema from the future: an older gsub would write what a newer one cannot read."""
    if found > HEAD:
        raise StoreError(
            "newer",
            f"The store at {name} has schema {found}; this gsub knows schemas up to {HEAD}.",
            "A newer gsub has upgraded it.",
            "Install that gsub again, or restore the backup from before: gsub admin restore FILE",
        )


def upgrade(connection: Connection, name: str, to: str = HEAD) -> tuple[str, str]:
    """Bring the schema up to date, in the transaction of `connection`; the versions before and after."""
    before = version(connection)
    refuse_newer(before, name)
    if before < to:
        from alembic import command

        if connection.dialect.name == "postgresql":
            # A step over millions of rows, and a restore after it, may take their time
            connection.execute(text("SET LOCAL statement_timeout = 0"))
        command.upgrade(_config(connection), to)
    return before, version(connection)


def scripts() -> ScriptDirectory:
    """The steps of the schema's history."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config(None))


def _config(connection: Connection | None) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
