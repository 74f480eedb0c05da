"""Killed in the middle, no room, no right, no server: nothing acknowledged is lost, nothing is half-written."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from profiler.store import JobQuery, Store, StoreError, engine, open_store, restore
from tests.paths import REPOSITORY
from tests.unit.profiler.store.contents import contents
from tests.unit.profiler.store.postgres import Postgres
from tests.unit.profiler.store.records import CLUSTER, T0, ended, series, started, usage
from tests.unit.profiler.store.writer import JOBS, batch

ROOT = REPOSITORY


def address(store: Store) -> str:
    return store.engines.url.render_as_string(hide_password=False)


@pytest.mark.slow
def test_killed_while_it_writes(store: Store) -> None:
    chance = random.Random(3)
    taken = -1
    for _ in range(4):
        command = [sys.executable, "-m", "tests.unit.profiler.store.writer", address(store), str(taken + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as writer:
            assert writer.stdout is not None
            for _ in range(chance.randrange(1, 6)):
                taken = int(writer.stdout.readline())
            # Somewhere within the next ones: how far it comes is chance, what must hold is not
            os.kill(writer.pid, signal.SIGKILL)
            taken = max([taken, *map(int, writer.stdout.read().split())])
        found = contents(store)
        jobs = {dict(row)["job_id"] for row in found["job"]}
        whole = [number for number in range(taken + 2) if number * JOBS + 2 in jobs]
        assert whole[: taken + 1] == list(range(taken + 1)), "what was acknowledged is there"
        told = 1 + len(whole) * JOBS
        assert len(jobs) == len(found["job_node"]) == told, "of what was not, all or nothing"
        assert (len(found["series"]), len(found["gpu_usage"])) == (told - 1, told * 2)
        assert {dict(row)["serial"] for row in found["job_node"]} == {1, whole[-1]} if whole[-1] else {1, 0}
        taken = whole[-1]
    if store.engines.sqlite:
        with closing(sqlite3.connect(store.engines.file)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    before = contents(store, told_only=True)
    for number in range(taken + 1):
        store.take(batch(number), T0)
    assert contents(store, told_only=True) == before, "told again, nothing changes"


def fill(store: Store) -> tuple[StoreError, int]:
    """Give it records until it refuses; its refusal, and how many jobs it took."""
    chance = random.Random(1)
    for number in range(1, 10_000):
        big = series(number, cpus=tuple(chance.random() for _ in range(2000)))
        try:
            store.take([started(number), usage(number), big, ended(number)], T0)
        except StoreError as error:
            return error, number - 1
    raise AssertionError("the disk is larger than it should be")


def holds(store: Store, jobs: int) -> None:
    found = contents(store)
    assert [len(found[name]) for name in ("job", "job_node", "series", "gpu_usage")] == [
        jobs,
        jobs,
        jobs,
        2 * jobs,
    ]


def test_disk_full_sqlite(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(300_000))
    store = open_store(f"sqlite:///{small_disk}/store.db")
    store.migrate()
    error, taken = fill(store)
    assert (error.kind, taken > 3) == ("full", True)
    assert "Make room" in error.next and "Records cannot be written" in error.what
    holds(store, taken)
    wide = tuple(map(float, range(2000)))
    with pytest.raises(StoreError):
        store.take([series(number, cpus=wide) for number in range(taken + 1, taken + 200)], T0)
    holds(store, taken)
    filler.unlink()
    store.take([started(taken + 1), usage(taken + 1), series(taken + 1)], T0)
    holds(store, taken + 1)
    store.close()


@pytest.mark.slow
@pytest.mark.needs("mounts")
def test_disk_full_postgresql() -> None:
    # A server of its own: one whose tablespace has gone cannot make databases for others any more
    with (
        tempfile.TemporaryDirectory(prefix="gsub-pg-") as place,
        tempfile.TemporaryDirectory(prefix="gsub-ts-") as name,
    ):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "gsub-test", name], check=True)
        filler = Path(name, "filler")
        server = Postgres(Path(place))
        server.start()
        try:
            small = Path(name, "small")
            small.mkdir()
            subprocess.run(["chown", "postgres", str(small)], check=True)
            filler.write_bytes(bytes(300_000))
            server.sql(f"CREATE TABLESPACE small LOCATION '{small}'")
            server.sql("CREATE DATABASE small TABLESPACE small")
            store = open_store(server.url("small"))
            store.migrate()
            error, taken = fill(store)
            assert (error.kind, taken > 3) == ("full", True)
            filler.unlink()  # a new connection writes a little
            holds(store, taken)
            store.close()
        finally:
            server.stop("immediate")
            subprocess.run(["umount", "-l", name], check=True)


def test_disk_read_only(small_disk: Path) -> None:
    store = open_store(f"sqlite:///{small_disk}/store.db")
    store.migrate()
    store.take([started()], T0)
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    store = open_store(f"sqlite:///{small_disk}/store.db")
    with pytest.raises(StoreError) as refused:
        store.take([started(2)], T0)
    assert refused.value.kind in ("read_only", "unreachable")
    store.close()
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert store.job(CLUSTER, 1) is not None and store.job(CLUSTER, 2) is None
    store.close()


def test_locked_by_another(other_url, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_BUSY_MS", 100)
    monkeypatch.setattr(engine, "_PRAGMAS", tuple(one for one in engine._PRAGMAS if "busy" not in one))
    store = open_store(other_url("sqlite"))
    store.migrate()
    with closing(sqlite3.connect(store.engines.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError) as refused:
            store.take([started()], T0)
        assert refused.value.kind == "locked"
        assert store.job(CLUSTER, 1) is None, "reading goes on"
    store.take([started()], T0)
    store.close()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/no/store.db")
    for call in (store.migrate, store.check):
        with pytest.raises(StoreError) as refused:
            call()
        assert refused.value.kind == "unreachable"


def test_a_file_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    with pytest.raises(StoreError) as refused:
        store.migrate()
    assert refused.value.kind == "damaged" and "restore" in refused.value.next


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///relative.db", "mysql://x/y", "what", "postgresql://u@h/d", ""]
)
def test_an_address_of_no_store(url: str) -> None:
    with pytest.raises(StoreError) as refused:
        open_store(url)
    assert refused.value.kind == "wrong"


def test_opened_for_reading(store: Store) -> None:
    store.take([started()], T0)
    reader = open_store(address(store), read_only=True)
    assert reader.job(CLUSTER, 1) == store.job(CLUSTER, 1)
    with pytest.raises(StoreError) as refused:
        reader.take([started(2)], T0)
    assert refused.value.kind == "read_only"
    reader.close()


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = open_store(f"sqlite:///{tmp_path}/a?b#c%20d.db")
        assert store.engines.file.name == "a"
        store = open_store(f"sqlite:///{tmp_path}/c#d%20e f.db")
        store.migrate()
        store.take([started()], T0)
    finally:
        os.umask(old)
    files = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert set(files.values()) == {0o600} and store.engines.file.name in files
    store.close()


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory(prefix="gsub-pg-") as folder:
        server = Postgres(Path(folder))
        server.start()
        yield server
        if (server.data / "postmaster.pid").exists():
            server.stop("immediate")


@pytest.mark.slow
def test_server_gone_and_back(own_server: Postgres) -> None:
    store = open_store(own_server.database())
    store.migrate()
    store.take([started(1)], T0)
    own_server.stop("immediate")  # what is acknowledged outlives a power cut
    calls: list[Callable[[], object]] = [lambda: store.take([started(2)], T0), lambda: store.job(CLUSTER, 1)]
    for call in calls:
        with pytest.raises(StoreError) as refused:
            call()
        assert refused.value.kind == "unreachable" and ".pgpass" in refused.value.next
    own_server.start()
    assert store.job(CLUSTER, 1) is not None and store.job(CLUSTER, 2) is None
    store.take([started(2)], T0)
    own_server.stop()
    own_server.start()
    store.take([started(3)], T0)
    assert len(store.jobs(JobQuery(cluster=CLUSTER)).jobs) == 3
    store.close()


def test_a_file_that_was_taken_away_is_not_written_to(tmp_path: Path) -> None:
    """SQLite itself would go on in the file that nobody can find any more, and call it kept."""
    url = f"sqlite:///{tmp_path}/store.db"
    store = open_store(url)
    store.migrate()
    store.take([started(1)], T0)
    file = store.engines.file
    file.rename(file.with_name("old.db"))
    calls: list[Callable[[], object]] = [lambda: store.take([started(2)], T0), lambda: store.job(CLUSTER, 1)]
    for call in calls:
        with pytest.raises(StoreError) as refused:
            call()
        assert refused.value.kind == "unreachable", refused.value
    other = open_store(url)
    other.migrate()
    store.take([started(2)], T0)
    assert other.job(CLUSTER, 1) is None and other.job(CLUSTER, 2) is not None
    other.close()
    store.close()


def test_no_such_database_or_right(postgres: Postgres) -> None:
    store = open_store(postgres.url("nothing_of_that_name"))
    with pytest.raises(StoreError, match="nothing_of_that_name") as refused:
        store.migrate()
    assert refused.value.kind == "unreachable"
    store = open_store(postgres.database())
    store.migrate()
    postgres.sql("DO $$ BEGIN CREATE ROLE stranger LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    stranger = open_store(postgres.url(store.engines.url.database or "", "stranger"))
    with pytest.raises(StoreError) as refused:
        stranger.take([started()], T0)
    assert refused.value.kind == "read_only" and "service.user" in refused.value.next
    store.close()
    stranger.close()


def test_the_driver_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match="psycopg") as refused:
        open_store("postgresql+psycopg://u@h/d")
    assert "gsub[service,postgresql]" in refused.value.next


@pytest.mark.slow
def test_a_password_comes_from_a_file(
    own_server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_server.sql("CREATE ROLE keeper LOGIN PASSWORD 'of the keeper'")
    own_server.sql("CREATE DATABASE kept OWNER keeper")
    own_server.stop()
    (own_server.data / "pg_hba.conf").write_text("local all keeper scram-sha-256\nlocal all all trust\n")
    own_server.start()
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    store = open_store(own_server.url("kept", "keeper"))
    with pytest.raises(StoreError) as refused:
        store.migrate()
    assert refused.value.kind == "unreachable" and ".pgpass" in refused.value.next
    (tmp_path / "pgpass").write_text("*:*:*:keeper:of the keeper\n")
    (tmp_path / "pgpass").chmod(0o600)
    store.migrate()
    store.check()
    store.close()


def test_a_password_is_never_shown() -> None:
    store = open_store("postgresql+psycopg://u:secret@localhost:1/d")
    with pytest.raises(StoreError) as refused:
        store.check()
    assert "secret" not in str(refused.value) and "secret" not in store.name


@pytest.mark.parametrize(
    "url",
    [
        "postgres://gsub:s3cret@db/gsub",
        "postgresql://gsub:s3cret@db:5432/gsub",
        "mysql://gsub:/s3cret@db/gsub",
        "gsub:s3cret@db",
        "postgresql+psycopg://gsub:s3c/s3cret@db:port/gsub",
        "sqlite://gsub:s3cret@/x",
        "postgresql+psycopg://gsub@127.0.0.1:1/gsub?password=s3cret&connect_timeout=1",
    ],
)
def test_nor_is_that_of_an_address_that_is_none(url: str, tmp_path: Path) -> None:
    (tmp_path / "copy").touch()
    for call in (lambda: open_store(url).version(), lambda: restore(tmp_path / "copy", url)):
        with pytest.raises(StoreError) as refused:
            call()
        assert "s3cret" not in str(refused.value)
