"""The keeper as a process: what it survives, what brings it back, and that it never outlives gsubd."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import msgspec
import pytest

from profiler.answers import Taken
from slurm_plugins.service import keeping
from tests.unit.profiler.store.postgres import Postgres
from tests.unit.profiler.store.records import ended, started
from tests.unit.prolog_epilog.agent.munged import Munged, munged
from tests.unit.slurm_plugins.keeper.door import batch
from tests.unit.slurm_plugins.keeper.keeping import PATIENCE, Kept, kept, write_site
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def munge() -> Iterator[Munged]:
    with munged() as one:
        yield one


def until(holds: Callable[[], object], what: str) -> None:
    wait_until(holds, PATIENCE, what, pause=0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def keeper_of(parent: int) -> int:
    """The pid of the keeper that `parent` has started."""
    found: list[int] = []

    def look() -> bool:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                ours = int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            except OSError:
                continue
            if ours and b"slurm_plugins.service.keeper" in words and alive(int(folder.name)):
                found.append(int(folder.name))
        return bool(found)

    until(look, "a keeper")
    return found[0]


def deliver(one: Kept, *records: object) -> Taken:
    service = one.service()
    until(lambda: json.loads(service.ask("GET", "/healthz").body)["ready"], "the store")
    answer = service.ask("POST", "/v1/records", batch(*records))
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body, type=Taken)


@pytest.mark.slow
def test_it_collects_and_answers(tmp_path: Path, munge: Munged):
    with kept(tmp_path, munge) as one:
        assert len(deliver(one, started(1), ended(1)).accepted) == 2
        answer = one.service().ask("GET", "/v1/jobs/1")
        assert answer.status == 200 and json.loads(answer.body)["user"] == "ada"


@pytest.mark.slow
def test_a_keeper_that_is_killed_comes_back_with_what_it_took(tmp_path: Path, munge: Munged):
    with kept(tmp_path, munge) as one:
        deliver(one, started(1))
        first = keeper_of(os.getpid())
        os.kill(first, signal.SIGKILL)
        until(lambda: one.keeping.starts == 2, "its next start")
        until(lambda: one.keeping.address is not None, "its answer")
        deliver(one, ended(1))
        assert one.service().ask("GET", "/v1/jobs/1").status == 200


@pytest.mark.slow
def test_a_keeper_that_hangs_is_started_anew(
    tmp_path: Path, munge: Munged, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(keeping, "_SILENT", 8.0)
    monkeypatch.setattr(keeping, "_END", 0.2)
    with kept(tmp_path, munge) as one:
        deliver(one, started(1))
        first = keeper_of(os.getpid())
        os.kill(first, signal.SIGSTOP)
        until(lambda: not alive(first), "the end of the one that hangs")
        until(lambda: one.keeping.starts >= 2, "its next start")
        assert len(deliver(one, ended(1)).accepted) == 1
    assert "hangs" in caplog.text


@pytest.mark.slow
def test_the_keeper_takes_a_new_site_file(tmp_path: Path, munge: Munged):
    with kept(tmp_path, munge) as one:
        deliver(one, started(1))
        write_site(tmp_path, munge.socket, f"sqlite:///{tmp_path / 'other.db'}")
        assert one.site.read()
        one.begin_anew()
        until(lambda: one.keeping.starts == 2, "its next start")
        deliver(one)
        assert one.service().ask("GET", "/v1/jobs/1").status == 404, "the other store is empty"


GSUBD = """
    import asyncio, os, sys
    from pathlib import Path
    from slurm_plugins.service.keeping import Keep, Keeping
    from slurm_plugins.service.site_watch import SiteFile
    site = SiteFile(Path(sys.argv[1]))
    keeping = Keeping(Keep(("127.0.0.1", 0)), site=lambda: site.taken, site_path=site.path,
                      state=site.path.parent, every=30.0, env=os.environ)
    asyncio.run(keeping.run())
"""


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True], ids=["well", "hanging"])
def test_whatever_ends_gsubd_ends_the_keeper(tmp_path: Path, munge: Munged, stopped: bool):
    site = write_site(tmp_path, munge.socket)
    gsubd = subprocess.Popen([sys.executable, "-c", textwrap.dedent(GSUBD), str(site)])
    try:
        keeper = keeper_of(gsubd.pid)
        until(lambda: (tmp_path / "keeper.lock").exists(), "its begin")
        if stopped:
            os.kill(keeper, signal.SIGSTOP)
        gsubd.kill()
        until(lambda: not alive(keeper), "its end")
    finally:
        gsubd.kill()
        gsubd.wait()


@pytest.mark.slow
def test_a_port_that_is_taken_is_waited_for(tmp_path: Path, munge: Munged, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        site = write_site(tmp_path, munge.socket)
        argv = [sys.executable, "-m", "slurm_plugins.service.keeper", f"--site={site}", f"--state={tmp_path}"]
        keeper = subprocess.Popen([*argv, f"--listen=127.0.0.1:{port}"], stderr=subprocess.PIPE, text=True)
        assert keeper.stderr is not None
        try:
            assert any("cannot listen" in line for line in iter(keeper.stderr.readline, ""))
            other.close()
            assert any(f"port {port}" in line for line in iter(keeper.stderr.readline, ""))
        finally:
            keeper.terminate()
            keeper.stderr.close()
            assert keeper.wait(PATIENCE) == 0


def test_without_the_extra_it_is_said_once_what_to_install(
    tmp_path: Path, munge: Munged, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    find = importlib.util.find_spec
    searches: list[str] = []

    def find_none(name: str) -> ModuleSpec | None:
        if name != "uvicorn":
            return find(name)
        searches.append(name)
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_none)
    with kept(tmp_path, munge) as one:
        until(lambda: "pip install 'gsub[service]'" in caplog.text, "the message")
        for count in (2, 3):  # at its third search it has done with the second one
            one.begin_anew()
            until(lambda count=count: len(searches) >= count, "another search")  # type: ignore[misc]
        assert one.keeping.starts == 0 and one.keeping.up == 0.0
    assert caplog.text.count("pip install") == 1


@pytest.mark.slow
def test_a_store_that_cannot_be_opened_is_waited_for(tmp_path: Path, munge: Munged):
    """PostgreSQL may come up after us: nodes hear 503 until then, and keep their records."""
    folder = tmp_path / "later"
    with kept(tmp_path, munge, f"sqlite:///{folder / 'store.db'}") as one:
        service = one.service()
        assert service.ask("GET", "/v1/jobs").status == 503
        assert service.ask("POST", "/v1/records", batch(started(1))).status == 503
        folder.mkdir()
        assert len(deliver(one, started(1)).accepted) == 1


@pytest.mark.slow
def test_decisions_of_gsubd_come_over(tmp_path: Path, munge: Munged):
    import sqlite3

    line = {"v": 1, "kind": "decision", "at": 1.5, "decision": "d-1", "mode": "observe", "uid": 7}
    journal = tmp_path / "decisions.jsonl"
    journal.write_text(json.dumps(line) + "\n")
    with kept(tmp_path, munge) as one:
        deliver(one)

        def stored() -> set[str]:
            with sqlite3.connect(tmp_path / "store.db") as store:
                return {row[0] for row in store.execute("SELECT id FROM decision")}

        until(lambda: stored() == {"d-1"}, "the decision in the store")
        with journal.open("a") as file:
            file.write(json.dumps(line | {"decision": "d-2"}) + "\n")
        until(lambda: stored() == {"d-1", "d-2"}, "the next one")


@pytest.mark.slow
def test_a_database_that_goes_away_and_comes_back_loses_nothing(tmp_path: Path, munge: Munged):
    with tempfile.TemporaryDirectory(prefix="gsub-pg-") as folder:
        server = Postgres(Path(folder))
        server.start()
        url = server.database()
        try:
            with kept(tmp_path, munge, url) as one:
                deliver(one, started(1))
                server.stop("immediate")
                body = batch(started(2), ended(1))
                service = one.service()
                for _ in range(3):
                    assert service.ask("POST", "/v1/records", body).status == 503
                assert service.ask("GET", "/v1/jobs/1").status == 503
                assert service.ask("GET", "/healthz").status == 503
                server.start()
                until(lambda: service.ask("POST", "/v1/records", body).status == 200, "its recovery")
                found = json.loads(service.ask("GET", "/v1/jobs").body)["jobs"]
                assert {job["job_id"] for job in found} == {1, 2}
                assert one.keeping.starts == 1, "it was no reason to start anew"
        finally:
            server.stop("immediate")


@pytest.mark.slow
def test_a_database_that_is_made_anew_is_taken_up_by_itself(tmp_path: Path, munge: Munged):
    with tempfile.TemporaryDirectory(prefix="gsub-pg-") as folder:
        server = Postgres(Path(folder))
        server.start()
        url = server.database()
        name = url.partition("?")[0].rpartition("/")[2]
        try:
            with kept(tmp_path, munge, url) as one:
                deliver(one, started(1))
                server.sql(f"DROP DATABASE {name} WITH (FORCE)")
                assert one.service().ask("POST", "/v1/records", batch(started(2))).status == 503
                server.sql(f"CREATE DATABASE {name}")
                _taken_again(one)
        finally:
            server.stop("immediate")


@pytest.mark.slow
def test_a_file_that_was_removed_is_made_anew_and_nothing_acknowledged_goes_there(
    tmp_path: Path, munge: Munged
):
    with kept(tmp_path, munge) as one:
        deliver(one, started(1))
        for file in tmp_path.glob("store.db*"):
            file.unlink()
        _taken_again(one)
        assert (tmp_path / "store.db").exists()


def _taken_again(one: Kept) -> None:
    service = one.service()
    until(
        lambda: service.ask("POST", "/v1/records", batch(started(2))).status == 200,
        "the new store",
    )
    assert [job["job_id"] for job in json.loads(service.ask("GET", "/v1/jobs").body)["jobs"]] == [2]
    assert one.keeping.starts == 1, "it was no reason to start anew"
