"""`gsub admin backup`, `restore` and `db`: on a store of the test's own, and where they cannot work."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gsub.cli import main
from profiler.store import open_store
from profiler.store.upgrade import HEAD
from tests.unit.gsub.cli.service import write_site
from tests.unit.profiler.store import records as told
from tests.unit.prolog_epilog.agent.conftest import mount

AS_USER = (
    "import os, sys; from gsub.cli import main; import gsub.commands.admin.store, profiler.store, gsub.site;"
    "import site_configs.site; os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[1]));"
    "sys.exit(main(['admin', 'db', 'version', '--store', sys.argv[3]]))"
)


@pytest.fixture
def admin(capfd: pytest.CaptureFixture[str]):
    def run(*words: object) -> tuple[int, str, str]:
        code = main(["admin", *map(str, words)])
        return (code, *capfd.readouterr())

    return run


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The site's store, with a job in it."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    write_site(tmp_path / "site.toml", "", "", f'[store]\nurl = "{url}"\n')
    monkeypatch.setenv("GSUB_SITE", str(tmp_path / "site.toml"))
    store = open_store(url)
    store.migrate()
    store.take([told.started(7), told.usage(7), told.ended(7)], told.T0)
    store.close()
    return url


def jobs(url: str) -> list[int]:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        return [row[0] for row in connection.execute("SELECT job_id FROM job ORDER BY job_id")]


def test_backup_and_restore(url: str, admin, tmp_path: Path) -> None:
    copy = tmp_path / "copy.backup"
    code, out, err = admin("backup", copy)
    assert (code, err) == (0, "") and "1 job," in out
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    store = open_store(url)
    store.take([told.started(8)], told.T0)
    store.close()
    code, out, err = admin("restore", copy)
    assert code == 1 and "is not empty" in err and "--replace" in err and jobs(url) == [7, 8]
    assert admin("restore", copy, "--replace")[0] == 0
    assert jobs(url) == [7]


def test_a_store_that_gsubd_writes_to_is_not_replaced(url: str, admin, tmp_path: Path) -> None:
    admin("backup", tmp_path / "copy")
    with (tmp_path / "keeper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = admin("restore", tmp_path / "copy", "--replace")
        assert code == 1 and "systemctl stop gsubd" in err
        assert admin("backup", tmp_path / "another")[0] == 0
    assert admin("restore", tmp_path / "copy", "--replace")[0] == 0


def test_restore_into_a_store_that_is_not_there_yet(url: str, admin, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    admin("backup", tmp_path / "copy")
    code, out, _ = admin("restore", tmp_path / "copy", "--store", other)
    assert code == 0 and "restored" in out and jobs(other) == [7]


def test_a_backup_never_takes_the_place_of_a_file(url: str, admin, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("precious")
    code, _, err = admin("backup", tmp_path / "there")
    assert code == 2 and "is there already" in err and (tmp_path / "there").read_text() == "precious"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert admin("backup", tmp_path / "link")[0] == 2


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b not gzip", b"SQLite format 3\0 not one", b"hello"])
def test_what_is_no_backup(url: str, admin, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "copy").write_bytes(content)
    code, out, err = admin("restore", tmp_path / "copy", "--replace")
    assert (code, out) == (1, "") and "not a whole backup" in err and len(err.splitlines()) == 3
    assert jobs(url) == [7]


def test_version_and_upgrade(url: str, admin, tmp_path: Path) -> None:
    assert admin("db", "version") == (0, f"schema {HEAD}, in {url}\n", "")
    assert "is up to date" in admin("db", "upgrade")[1]
    fresh = f"sqlite:///{tmp_path / 'fresh.db'}"
    assert admin("db", "upgrade", "--store", fresh)[1].startswith(f"schema {HEAD} (was none)")
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    code, _, err = admin("db", "upgrade")
    assert code == 1 and "9999" in err and "  try: " in err


def test_not_on_the_services_host(admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_site(tmp_path / "site.toml", "", "", f'[store]\nurl = "sqlite:///{tmp_path}/none/store.db"\n')
    monkeypatch.setenv("GSUB_SITE", str(tmp_path / "site.toml"))
    for words in (
        ("backup", tmp_path / "copy"),
        ("db", "version"),
        ("db", "upgrade"),
        ("restore", tmp_path / "x"),
    ):
        code, out, err = admin(*words)
        assert (code, out) == (1, "") and "no store here" in err and "host where gsubd runs" in err, words
    assert not (tmp_path / "none").exists() and not (tmp_path / "copy").exists()
    monkeypatch.setattr("gsub.site.read_site", lambda environ, **_: None)
    assert "no site file" in admin("db", "version")[2]


@pytest.mark.parametrize(
    "words", [("db", "version"), ("audit",), ("shadow",), ("alerts", "--dry-run"), ("reasons",), ("nodes",)]
)
def test_a_broken_site_file_is_told_without_words_on_submissions(
    words: tuple[str, ...], admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.toml").write_text('cluster = "lab"\npolicy.mode = 7\n')
    monkeypatch.setenv("GSUB_SITE", str(tmp_path / "site.toml"))
    code, out, err = admin(*words)
    assert (code, out) == (2, "") and "cannot be used" in err and "  try: " in err
    assert "submitted" not in err and "sbatch" not in err


def test_an_address_that_is_none(admin) -> None:
    code, _, err = admin("db", "version", "--store", "mysql://x")
    assert code == 2 and "  try: " in err


@pytest.mark.root
def test_a_store_of_others_is_theirs(url: str, tmp_path: Path) -> None:
    """As a user who may enter the folder, but not read the store; and as one who may not even enter."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are for nobody else
        here = Path(name)
        here.chmod(0o755)
        store = here / "store.db"
        store.write_bytes((tmp_path / "store.db").read_bytes())
        store.chmod(0o600)
        for file, owner in ((store, "root"), (tmp_path / "store.db", "another user")):
            _refused(f"sqlite:///{file}", owner)


@pytest.fixture
def fixed(url: str, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Copies the store, while it is in use, to a read-only disk: the files with these ends; returns its address."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount("-t", "tmpfs", "none", str(disk))

    def copied(*ends: str) -> str:
        with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
            connection.execute("UPDATE job SET job_id = 8")
            connection.commit()
            for end in ends:
                shutil.copy(f"{tmp_path}/store.db{end}", f"{disk}/store.db{end}")
        mount("-o", "remount,ro", str(disk))
        return f"sqlite:///{disk}/store.db"

    yield copied
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize(("ends", "job"), [(("",), 7), (("", "-wal", "-shm"), 8)])
def test_a_store_on_a_read_only_disk_is_read(
    fixed, ends: tuple[str, ...], job: int, admin, tmp_path: Path
) -> None:
    store = fixed(*ends)
    assert admin("db", "version", "--store", store) == (0, f"schema {HEAD}, in {store}\n", "")
    code, _, err = admin("backup", tmp_path / "copy", "--store", store)
    assert (code, err) == (0, "") and jobs(f"sqlite:///{tmp_path}/copy") == [job]
    assert admin("audit", "--since", "2020-01-01", "--store", store)[0] == 0


@pytest.mark.root
def test_what_cannot_be_done_on_a_read_only_disk_is_told(fixed, admin, tmp_path: Path) -> None:
    assert admin("backup", tmp_path / "copy")[0] == 0
    store = fixed("", "-wal")
    for words in (("db", "upgrade"), ("restore", tmp_path / "copy", "--replace")):
        code, _, err = admin(*words, "--store", store)
        assert code == 1 and "is on a read-only file system" in err and "--store" in err, err
    code, _, err = admin("db", "version", "--store", store)
    assert code == 1 and "store.db-wal was not taken in" in err and "another folder" in err, err


def _refused(url: str, owner: str) -> None:
    user = pwd.getpwnam("nobody")
    done = subprocess.run(
        [sys.executable, "-c", AS_USER, str(user.pw_uid), str(user.pw_gid), url],
        capture_output=True,
        text=True,
        env={**os.environ, "GSUB_SITE": ""},
    )
    assert done.returncode == 1 and "not yours" in done.stderr and f"belongs to {owner}" in done.stderr, (
        done.stderr
    )


@pytest.mark.root
def test_what_root_makes_is_the_services(
    url: str, admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the service, which is not root, could not write to it."""
    site = tmp_path / "site.toml"
    site.write_text(site.read_text().replace('user = "root"', 'user = "nobody"'))
    other = tmp_path / "other.db"
    admin("backup", tmp_path / "copy")
    admin("restore", tmp_path / "copy", "--store", f"sqlite:///{other}")
    assert other.stat().st_uid == pwd.getpwnam("nobody").pw_uid
    assert (tmp_path / "copy").stat().st_uid == 0


def test_without_the_packages(url: str, admin, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name
        for name in sys.modules
        if name.split(".")[0] == "sqlalchemy" or name.startswith("profiler.store")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    code, _, err = admin("db", "version")
    assert code == 2 and "sqlalchemy is not installed here" in err and "pip install 'gsub[service]'" in err


def test_help_needs_no_database() -> None:
    program = (
        "import sys; from gsub.cli import main; code = main(['admin', 'backup', '--help']);"
        "assert 'sqlalchemy' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "FILE" in done.stdout, done.stderr
