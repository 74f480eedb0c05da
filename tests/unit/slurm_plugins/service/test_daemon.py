"""gsubd as a process: how it starts, what it says when it cannot, how it ends, what it leaves."""

from __future__ import annotations

import json
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_plugins.decide.context import Context
from slurm_plugins.decide.decision import Change, Proposal
from slurm_plugins.decide.request import Request
from slurm_plugins.decide.stage import Stage
from slurm_plugins.service import joins
from slurm_plugins.service.errors import StartError
from slurm_plugins.service.socket_file import SocketFile
from tests.unit.slurm_plugins.service.serving import (
    PATIENCE,
    SITE,
    FakeLookout,
    Peer,
    Serving,
    question,
    serving,
)
from tests.unit.slurm_plugins.service.test_look import slurm_in
from tests.waiting import wait_until


class Process:
    """``python -m slurm_plugins.service`` in a folder, beside a Slurm of scripts."""

    def __init__(
        self, folder: Path, *arguments: str, limit: str = "", env: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        # a socket's path has 107 bytes, and that of pytest has the user's name
        self.socket = folder / "run" / "d.sock"
        self.state = folder / "state"
        self.site = folder / "site.toml"
        for each in (self.socket.parent, self.state):
            each.mkdir(exist_ok=True)
        if not self.site.exists():
            self.site.write_text(SITE.format(mode="observe"))
        options = [f"--site={self.site}", f"--socket={self.socket}", f"--state={self.state}"]
        argv = [
            sys.executable,
            "-m",
            "slurm_plugins.service",
            *options,
            "--listen=127.0.0.1:0",
            "--api=none",
            *arguments,
        ]
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", f'{limit} exec "$@"', "sh", *argv],
                stderr=log,
                env=slurm_in(folder / "bin") | (env or {}),
            )

    def ready(self) -> Process:
        """Wait until it answers."""
        self.until(lambda: "answering on" in self.said and "decisions begin" in self.said)
        return self

    def until(self, true: Callable[[], bool]) -> None:

        def is_true() -> bool:
            found = true()
            assert found or self.process.poll() is None, "it has ended"
            return found

        try:
            wait_until(is_true, PATIENCE, pause=0.01)
        except AssertionError as error:
            raise AssertionError(self.said) from error

    @property
    def said(self) -> str:
        return self.log.read_text()

    def end(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.state / "decisions.jsonl").read_text().splitlines()]

    def metrics(self) -> str:
        port = int(re.findall(r"127\.0\.0\.1:(\d+)/metrics", self.said)[-1])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            with connection.makefile() as answer:
                return answer.read()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def starter(*arguments: str, **more: Any) -> Process:
        started.append(Process(tmp_path, *arguments, **more))
        return started[-1]

    yield starter
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_it_starts_answers_writes_and_ends(start: Callable[..., Process]) -> None:
    one = start().ready()
    assert "1 node in 1 partition, Slurm 22.05" in one.said
    answer = Peer(one.socket).ask()
    assert answer["mode"] == "observe"
    assert one.end() == 0
    (record,) = one.records()
    assert (record["decision"], record["asked"]["name"]) == (answer["decision"], "train")
    assert not one.socket.exists()


@pytest.mark.slow
def test_an_end_under_a_stream_of_questions_loses_none(start: Callable[..., Process]) -> None:
    """Each question that could be sent is answered, and each decision that was told is written down."""
    told: list[str] = []
    lost: list[str] = []
    enough = threading.Event()

    def ask(path: Path) -> None:
        while not enough.is_set():
            try:
                peer = Peer(path)
            except OSError:
                enough.wait(0.005)
                continue
            try:
                while not enough.is_set():
                    try:
                        peer.send(question(id=5))
                    except OSError:
                        break  # not taken: the shim lets the job pass
                    told.append(peer.read()["decision"])
            except (EOFError, OSError) as error:
                lost.append(repr(error))
            finally:
                peer.close()

    one = start().ready()
    askers = [threading.Thread(target=ask, args=(one.socket,)) for _ in range(4)]
    for thread in askers:
        thread.start()
    try:
        for _ in range(3):
            before = len(told)
            one.until(lambda before=before: len(told) > before + 100)  # type: ignore[misc]
            assert one.end() == 0, one.said
            one = start()
        before = len(told)
        one.until(lambda: len(told) > before + 100)
    finally:
        enough.set()
        for thread in askers:
            thread.join(PATIENCE)
    assert one.end() == 0
    assert lost == []
    written = [record["decision"] for record in one.records() if record["kind"] == "decision"]
    assert sorted(written) == sorted(told)


@pytest.mark.slow
def test_peers_that_wait_read_nothing_or_stop_halfway_do_not_hold_up_an_end(
    start: Callable[..., Process],
) -> None:
    one = start().ready()
    silent, half, deaf = Peer(one.socket), Peer(one.socket), Peer(one.socket)
    silent.ask()
    half.send(b'{"v":1,"id"')
    deaf.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        while True:
            deaf.send(question())
    assert one.end() == 0
    assert silent.ended() and half.ended()


def test_hung_up_it_reads_the_site_file_at_once(start: Callable[..., Process]) -> None:
    one = start().ready()
    one.site.write_text(SITE.format(mode="advise"))
    one.process.send_signal(signal.SIGHUP)
    one.until(lambda: "site file taken" in one.said)
    assert Peer(one.socket).ask()["mode"] == "advise"


def test_a_storm_of_sighup_is_taken_in_and_no_question_waits_for_it(start: Callable[..., Process]) -> None:
    one = start().ready()
    peer = Peer(one.socket)
    one.site.write_text(SITE.format(mode="advise"))
    for _ in range(500):
        one.process.send_signal(signal.SIGHUP)
        peer.ask()
    one.until(lambda: peer.ask()["mode"] == "advise")
    assert one.end() == 0
    assert "Traceback" not in one.said


def test_who_takes_the_port_of_the_metrics_ends_no_decisions(start: Callable[..., Process]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        one = start(f"--listen=127.0.0.1:{other.getsockname()[1]}").ready()
        assert Peer(one.socket).ask()["mode"] == "observe"
        assert "is taken by another program" in one.said
        assert one.end() == 0


def test_a_full_disk_costs_records_and_no_decision(start: Callable[..., Process]) -> None:
    one = start(limit="ulimit -f 40;").ready()  # in units of 512 bytes
    peer = Peer(one.socket)
    assert all(peer.ask()["mode"] == "observe" for _ in range(200))
    one.until(lambda: not re.search(r"gsub_records_dropped_total 0$", one.metrics(), re.MULTILINE))
    assert one.end() == 0
    assert 0 < len(one.records()) < 200  # whole lines, all of them
    assert one.said.count("cannot be written") == 1


def test_a_sites_stages_are_taken_and_what_is_wrong_with_one_is_said(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    package = tmp_path / "packages"
    (package / "sites-1.0.dist-info").mkdir(parents=True)
    (package / "sites-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sites\nVersion: 1.0\n"
    )
    (package / "sites-1.0.dist-info" / "entry_points.txt").write_text(
        "[gsub.stages]\nours = sites:Ours\ngone = sites:Gone\n"
    )
    (package / "sites.py").write_text(
        "from slurm_plugins.decide.stage import Change, Proposal, Stage\n"
        "class Ours(Stage):\n"
        "    name = 'ours'\n"
        "    def decide(self, request, context):\n"
        "        return Proposal((Change('prefer', None, 'v100', 'less in demand'),))\n"
    )
    one = start(env={"PYTHONPATH": str(package)}).ready()
    Peer(one.socket).ask()
    assert "gone" in one.said and "left out" in one.said
    assert one.end() == 0
    (record,) = one.records()
    assert [change["stage"] for change in record["changes"] if change["field"] == "prefer"] == ["ours"]


def test_systemd_is_told(start: Callable[..., Process], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(PATIENCE)
        systemd.bind(str(tmp_path / "notify"))
        one = start(env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"})
        assert systemd.recv(100) == b"READY=1"
        assert {systemd.recv(100) for _ in range(3)} == {b"WATCHDOG=1"}
        one.process.send_signal(signal.SIGTERM)
        while (heard := systemd.recv(100)) != b"STOPPING=1":
            assert heard == b"WATCHDOG=1"
        assert one.process.wait(PATIENCE) == 0


# --- what stands in the way of a start --------------------------------------------------------------------------------


def _refuses(one: Process, *words: str) -> None:
    assert one.process.wait(PATIENCE) == 2
    told = ("\n" + one.said).rpartition("\ngsubd: ")[2].splitlines()
    assert 2 <= len(told) <= 3, told
    assert all(word in one.said for word in words), one.said
    assert "Traceback" not in one.said


def test_a_bad_site_file(start: Callable[..., Process], tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('cluster = "x"\npolicy = 3\n')
    _refuses(start(), "policy", "site.toml")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--site=/nonexistent/site.toml"], "/nonexistent/site.toml"),
        (["--socket=/nonexistent/decision.sock"], "/nonexistent"),
        (["--socket=/" + "x" * 100], "too long"),
        (["--state=/nonexistent"], "/nonexistent"),
        (["--listen=6830"], "HOST:PORT"),
        (["--listen=127.0.0.1:99999"], "HOST:PORT"),
        (["--listen=203.0.113.1:80"], "cannot listen"),
        (["--group=no-such-group"], "no-such-group"),
        (["--allow-uid=no-such-user"], "no-such-user"),
    ],
)
def test_wrong_arguments(start: Callable[..., Process], arguments: list[str], word: str) -> None:
    _refuses(start(*arguments), word)


@pytest.mark.slow
def test_a_live_service_is_left_alone_and_a_dead_ones_socket_is_replaced(
    start: Callable[..., Process],
) -> None:
    one = start().ready()
    _refuses(start(), "in use")
    assert Peer(one.socket).ask()["mode"] == "observe"
    one.process.kill()
    one.process.wait()
    assert one.socket.is_socket()  # as a crash leaves it
    one.log.unlink()
    assert Peer(start().ready().socket).ask()["mode"] == "observe"


def test_what_answers_on_the_socket_is_left_alone_whoever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "decision.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(StartError, match="in use"):
            SocketFile(path)
    SocketFile(path).close()
    assert not path.exists()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_is_not_removed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "decision.sock"
    match kind:
        case "file":
            path.write_text("precious")
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to("/etc/passwd")
    with pytest.raises(StartError, match="no socket"):
        SocketFile(path)
    assert path.is_symlink() or path.exists()


def test_a_folder_that_everybody_may_write_to_is_no_place_for_a_socket(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(StartError, match="not safe"):
        SocketFile(tmp_path / "decision.sock")


def test_an_end_removes_no_socket_of_another(tmp_path: Path) -> None:
    path = tmp_path / "decision.sock"
    mine = SocketFile(path)
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        mine.close()
        assert path.is_socket()


@pytest.mark.root
def test_the_socket_gets_its_group(tmp_path: Path) -> None:
    file = SocketFile(tmp_path / "decision.sock", "4711")
    found = file.path.stat()
    assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (4711, 0o660)
    file.close()


# --- decisions ----------------------------------------------------------------------------------------------------


class TwoNodes(Stage):
    """Two nodes for everybody."""

    name = "two"

    def decide(self, request: Request, context: Context) -> Proposal:
        return Proposal((Change("min_nodes", None, 2, "two are better"),))


class Broken(Stage):
    """Raises."""

    name = "broken"

    def decide(self, request: Request, context: Context) -> Proposal:
        raise ZeroDivisionError


def test_stages_decide_and_one_that_fails_costs_itself_only(tmp_path: Path) -> None:
    with serving(tmp_path, mode="enforce", stages=(Broken(), TwoNodes())) as service:
        answer = service.peer().ask()
        assert answer["edits"]["min_nodes"] == 2
        assert service.metric('gsub_stage_failures_total{stage="broken"}') == 1
        assert service.metric('gsub_edits_total{stage="two",mode="enforce"}') == 1
    (record,) = service.records("decision")
    assert record["enforced"] and record["failures"][0]["stage"] == "broken"


class Refuses(Stage):
    """Nobody gets anything."""

    name = "refuses"

    def decide(self, request: Request, context: Context) -> Proposal:
        return Proposal(reject="gsub: there is no such node")


def test_no_job_is_refused_by_what_was_seen_long_ago(tmp_path: Path) -> None:
    """Nodes may have come while Slurm did not answer."""
    with serving(tmp_path, mode="enforce", stages=(TwoNodes(), Refuses()), poll=3600) as service:
        peer = service.peer()
        assert peer.ask()["reject"] == "gsub: there is no such node"
        service.daemon.polling.answered = time.monotonic() - 5 * 3600
        answer = peer.ask()
        assert (answer["reject"], answer["edits"], answer["say"]) == (None, {}, [])
    refused, passed = service.records("decision")
    assert refused["reject"] and not passed["reject"]
    assert "there is no such node" in passed["notes"][-1]["text"]


def test_before_slurm_has_answered_nothing_is_changed(tmp_path: Path) -> None:
    lookout = FakeLookout()
    with serving(tmp_path, mode="enforce", stages=(TwoNodes(),), lookout=lookout) as service:
        service.daemon.desk.context = Context(service.daemon.site.taken.site)
        answer = service.peer().ask()
        assert "min_nodes" not in answer["edits"]


def test_a_fault_of_our_own_is_an_answer_too(
    service: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("slurm_plugins.service.desk.decide", fault)
    peer = service.peer()
    for _ in range(3):
        assert "fault" in peer.ask()["error"]
    assert service.metric("gsub_faults_total") == 3
    assert caplog.text.count("a fault while deciding") == 1


def test_a_decision_finds_its_job_even_when_the_service_was_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joins, "WINDOW", 0.2)  # so long must pass before a submission is judged
    lookout = FakeLookout()
    lookout.client.uid = 1000
    with serving(tmp_path, lookout=lookout) as service:
        told = service.peer().ask(job={"work_dir": "/w", "tres_per_node": None, "user_name": "user1"})
        lookout.client.submit(["--gpus-per-node=1", "--job-name=train", "--chdir=/w"])
    assert len(service.records()) == 1
    with serving(tmp_path, lookout=lookout) as again:

        def found() -> bool:
            again.daemon.polling.look_now()
            return bool(again.daemon.counts.joined.value("submission"))

        again.wait(found)
    (record,) = again.records("job")
    assert (record["decision"], record["job"]) == (told["decision"], 1)
