"""A PostgreSQL server of the tests' own: Debian's programs, a temporary folder, a Unix socket and nothing else.

The machine's own server, if it has one, is not touched. Another test module uses it by

    from tests.unit.profiler.store.postgres import postgres  # noqa: F401 - a fixture

and asks `postgres.database()` for the address of a new, empty database.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.requirements import find_postgresql, require

_NOT_TO_DISK = ("fsync = off", "synchronous_commit = off", "full_page_writes = off")


class Postgres:
    """A server that can be stopped and started again."""

    def __init__(self, folder: Path, settings: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        self._programs = programs()
        # The server refuses to run as root
        self._user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        if os.geteuid() == 0:
            shutil.chown(folder, self._user)
        self._run(
            "initdb", "-D", str(self.data), "-U", self._user, "-A", "trust", "-E", "UTF8", "--no-locale", "-N"
        )
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write(f"listen_addresses = ''\nunix_socket_directories = '{folder}'\nmax_connections = 60\n")
            conf.write("shared_buffers = 32MB\n" + "".join(f"{line}\n" for line in settings))

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self.data), "-l", str(self.folder / "log"), "-w", "-t", "60", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it; "immediate" is as good as a power cut."""
        self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "-t", "60", "stop")

    def database(self) -> str:
        """The address of a new database."""
        name = f"gsub{next(self._numbers)}"
        self._run("createdb", "-h", str(self.folder), "-U", self._user, name)
        return self.url(name)

    def url(self, name: str, user: str = "") -> str:
        return f"postgresql+psycopg://{user or self._user}@/{name}?host={self.folder}"

    def sql(self, text: str, name: str = "postgres") -> str:
        """What psql says."""
        return self._run("psql", "-h", str(self.folder), "-U", self._user, "-d", name, "-XAtc", text)

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            user=self._user if os.geteuid() == 0 else None,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program == "psql" else subprocess.DEVNULL,
            stderr=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"
        return (done.stdout or "").strip()


def programs() -> Path:
    """Return where the newest PostgreSQL's programs are."""
    require("postgresql")
    found = find_postgresql()
    assert found is not None
    return found


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests."""
    # Not pytest's folder: its path may be longer than a socket's name may be, and closed to the user postgres
    with tempfile.TemporaryDirectory(prefix="gsub-pg-") as folder:
        server = Postgres(Path(folder), _NOT_TO_DISK)
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")
