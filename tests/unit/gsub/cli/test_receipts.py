"""Receipts at the next command: once a job, on a terminal, within the budget, whatever the service or the disk do."""

from __future__ import annotations

import io
import json
import os
import pty
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from gsub.errors import UserError
from gsub.receipts import AT_ONCE, SWITCH, Memory, due, memory_folder, show
from profiler.answers import Jobs, JobSummary, NodeUse, Usage
from profiler.munge import Munge
from profiler.records import GpuRef, GpuUse
from tests.unit.gsub.cli.service import write_site
from tests.unit.prolog_epilog.agent.munged import Munged, munged
from tests.unit.prolog_epilog.agent.sealing import Asked, Sealing, sealing

NOW = 1_700_000_000.0
DAY = 86400.0


def job(number: int = 1, ended: float | None = NOW - 60, **more: object) -> JobSummary:
    facts = {"state": "COMPLETED", "gpus": 1, "complete": True, "started": NOW - 7200, "uid": 1000}
    return JobSummary("lab", number, ended=ended, **(facts | more))  # type: ignore[arg-type]


def used(one: JobSummary) -> Usage:
    gpu = GpuUse(GpuRef(0), utilisation_mean=50.0)
    return Usage(one, (NodeUse("n1", final=True, gpus=(gpu,), unseen_seconds=0.0),))


@dataclass
class FakeRecords:
    """The service by its client: pages of what ended, as the API has them; `fails` says it does not answer."""

    all: list[JobSummary] = field(default_factory=list)
    fails: bool = False
    asked: int = 0
    meanwhile: Callable[[], object] = lambda: None

    def jobs(self, *, uid: int, ended_since: float, limit: int) -> Jobs:
        self.asked += 1
        self.meanwhile()
        if self.fails:
            raise UserError("the gsub service does not answer")
        found = [one for one in self.all if one.ended is not None and one.ended >= ended_since]
        found.sort(key=lambda one: -(one.ended or 0.0))
        return Jobs(tuple(found[:limit]), "cursor" if len(found) > limit else None)

    def usage(self, number: str, restarts: int | None = None) -> Usage:
        found = [one for one in self.all if (str(one.job_id), one.restarts) == (number, restarts)]
        return used(found[0])


def ask(service: FakeRecords, folder: Path, now: float = NOW, seconds: float = 60.0) -> list[str]:
    """A command at `now`."""
    with Memory.opened(folder, "lab") as memory:
        assert memory is not None
        if not memory.may_ask(now):
            return []
        return due(service, memory, 1000, now, time.monotonic() + seconds)  # type: ignore[arg-type]


def ids(lines: list[str]) -> list[int]:
    return [int(line.split()[1].rstrip(":")) for line in lines if line.startswith("job ")]


def test_once_each(tmp_path: Path) -> None:
    service = FakeRecords([job(1)])
    assert ids(ask(service, tmp_path)) == [1]
    assert ask(service, tmp_path, NOW + 60) == []
    service.all.append(job(2, NOW + 70))
    assert ids(ask(service, tmp_path, NOW + 120)) == [2]
    assert ids(ask(FakeRecords([job(1, restarts=1)]), tmp_path, NOW + 180)) == [1]


def test_the_first_has_a_word_on_how_to_leave_them_out(tmp_path: Path) -> None:
    service = FakeRecords([job(1)])
    assert SWITCH in ask(service, tmp_path)[-1]
    service.all.append(job(2))
    assert SWITCH not in "".join(ask(service, tmp_path, NOW + 60))


NOT_SHOWN = [
    job(state="RUNNING", ended=None),
    job(state="PREEMPTED", ended=None),
    job(gpus=0),
    job(gpus=None),
    job(complete=False),
    job(ended=NOW - 8 * DAY),
    job(ended=NOW - 2 * DAY),  # from before gsub was used for the first time
    job(state="REQUEUED"),
    job(state=None),
]


@pytest.mark.parametrize("one", NOT_SHOWN, ids=range(len(NOT_SHOWN)))
def test_not_shown(tmp_path: Path, one: JobSummary) -> None:
    assert ask(FakeRecords([one]), tmp_path) == []


def test_a_node_that_never_tells_its_end_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    assert ids(ask(FakeRecords([job(complete=False)]), tmp_path, NOW + 700)) == [1]


def test_of_many_the_last_to_end_are_shown_and_all_count_as_told(tmp_path: Path) -> None:
    service = FakeRecords([job(number, NOW - 100 + number) for number in range(1, 21)])
    lines = ask(service, tmp_path)
    assert ids(lines) == [18, 19, 20] and len(ids(lines)) == AT_ONCE
    assert "and 17 more of your jobs have ended" in lines[-2]
    assert ask(service, tmp_path, NOW + 60) == []


def test_a_job_that_ran_long_is_told_of_though_many_began_after_it(tmp_path: Path) -> None:
    long = job(1, NOW - 10, started=NOW - 60 * DAY)
    service = FakeRecords([*(job(number, NOW - 4000 + number) for number in range(2, 1000)), long])
    assert ids(ask(service, tmp_path))[-1] == 1


def test_of_more_than_a_page_the_rest_is_no_news_later(tmp_path: Path) -> None:
    service = FakeRecords([job(number, NOW - 1000 + number) for number in range(1, 1000)])
    assert "and at least 197 more" in ask(service, tmp_path)[-2]
    assert ask(service, tmp_path, NOW + 60) == []
    service.all.append(job(1000, NOW + 70))
    assert ids(ask(service, tmp_path, NOW + 120)) == [1000]


def test_commands_in_a_loop_do_not_ask_each_time(tmp_path: Path) -> None:
    service = FakeRecords()
    for second in range(10):
        ask(service, tmp_path, NOW + second)
    assert service.asked == 1
    ask(service, tmp_path, NOW + 11)
    assert service.asked == 2


def test_a_silent_service_is_left_alone_for_a_while(tmp_path: Path) -> None:
    service = FakeRecords([job(1)], fails=True)
    assert ask(service, tmp_path) == []
    service.fails = False
    assert ask(service, tmp_path, NOW + 60) == [] and service.asked == 1
    assert ids(ask(service, tmp_path, NOW + 301)) == [1]


def test_a_clock_that_was_set_back_does_not_silence_them(tmp_path: Path) -> None:
    ask(FakeRecords(), tmp_path, NOW + 10 * DAY)
    assert ids(ask(FakeRecords([job(1, NOW + 9.5 * DAY)]), tmp_path, NOW + 9.6 * DAY)) == [1]


def test_what_comes_too_late_is_news_later(tmp_path: Path) -> None:
    service = FakeRecords([job(1)])
    assert ask(service, tmp_path, seconds=0.0) == []
    assert ids(ask(service, tmp_path, NOW + 61)) == [1]


def test_not_shown_where_it_cannot_be_remembered(tmp_path: Path) -> None:
    """Else it would be shown at every command."""
    service = FakeRecords([job(1)], meanwhile=lambda: (tmp_path / "state").rename(tmp_path / "gone"))
    (tmp_path / "state").mkdir()
    with pytest.raises(OSError, match="No such file"):
        ask(service, tmp_path / "state")


@pytest.mark.parametrize(
    "spoilt", [b"", b"{", b"[1]", b'{"lab": 7}', b'{"lab": {"shown": 3, "ask_after": "x"}}', b"\xff"]
)
def test_a_memory_that_is_spoilt_begins_anew(tmp_path: Path, spoilt: bytes) -> None:
    (tmp_path / "receipts.json").write_bytes(spoilt)
    assert ids(ask(FakeRecords([job(1)]), tmp_path)) == [1]
    assert ask(FakeRecords([job(1)]), tmp_path, NOW + 60) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["receipts.json", "receipts.lock"]


def test_clusters_apart(tmp_path: Path) -> None:
    ask(FakeRecords([job(1)]), tmp_path)
    with Memory.opened(tmp_path, "other") as memory:
        assert memory is not None and memory.empty
        memory.asked(NOW, again=0)
        memory.save()
    assert ask(FakeRecords([job(1)]), tmp_path, NOW + 60) == []


def test_the_memory_is_bounded(tmp_path: Path) -> None:
    for day in range(30):
        now = NOW + day * DAY
        many = [job(day * 500 + number, now - 5) for number in range(1, 501)]
        with Memory.opened(tmp_path, "lab") as memory:
            assert memory is not None
            memory.add(many, now)
            memory.save()
    kept = json.loads((tmp_path / "receipts.json").read_bytes())["lab"]["shown"]
    assert len(kept) == 4000 and "15000/0" in kept and "1/0" not in kept


def test_two_commands_at_once(tmp_path: Path) -> None:
    with Memory.opened(tmp_path, "lab") as one, Memory.opened(tmp_path, "lab") as two:
        assert one is not None and two is None


def test_where_it_is_remembered(tmp_path: Path) -> None:
    home, state = tmp_path / "home", tmp_path / "state"
    home.mkdir()
    assert memory_folder({"HOME": str(home)}) == home / ".local/state/gsub"
    assert memory_folder({"HOME": str(home), "XDG_STATE_HOME": str(state)}) == state / "gsub"
    assert stat.S_IMODE((state / "gsub").stat().st_mode) == 0o700
    assert memory_folder({"HOME": str(home), "XDG_STATE_HOME": "state"}) == home / ".local/state/gsub"
    assert memory_folder({"HOME": ""}) is None


@pytest.mark.root
def test_root_writes_nothing_into_a_users_home(tmp_path: Path) -> None:
    """sudo keeps HOME on some systems."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 1000, 1000)
    assert memory_folder({"HOME": str(home)}) is None and not list(home.iterdir())
    (tmp_path / "state" / "gsub").mkdir(parents=True)
    os.chown(tmp_path / "state" / "gsub", 1000, 1000)
    assert memory_folder({"XDG_STATE_HOME": str(tmp_path / "state")}) is None


# --- the whole way --------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def daemon() -> Iterator[Munged]:
    with munged() as daemon:
        yield daemon


@dataclass
class Here:
    """A site with a service that has one job of the user's, just ended."""

    environ: dict[str, str]
    service: Sealing
    file: Path
    socket: str

    def shown(self, budget: float = 30.0, stream: io.StringIO | None = None, **more: str) -> str:
        stream = stream or Terminal()
        show(self.environ | more, stream, budget=budget)
        return stream.getvalue()


@pytest.fixture
def here(tmp_path: Path, daemon: Munged) -> Iterator[Here]:
    with sealing(Munge(daemon.socket)) as service:
        one = job(7, time.time() - 60, name="tr\x1bain")

        def reply(asked: Asked) -> tuple[int, bytes]:
            wanted = used(one) if asked.target.startswith("/v1/jobs/7/usage") else Jobs((one,))
            return 200, msgspec.json.encode(wanted)

        service.reply = reply
        file = tmp_path / "site.toml"
        write_site(file, service.url, daemon.socket)
        environ = {"GSUB_SITE": str(file), "HOME": str(tmp_path), "TERM": "xterm"}
        yield Here(environ, service, file, daemon.socket)


def test_shown_at_the_next_command_and_once(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    text = here.shown()
    assert text.startswith('\njob 7 "tr?ain": COMPLETED after ') and len(text.splitlines()) == 8
    assert "\x1b" not in text
    assert f"uid={os.geteuid()}" in here.service.asked[0].target
    there = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: there)
    assert here.shown() == "" and len(here.service.asked) == 3


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no"])
def test_a_user_may_leave_them_out(here: Here, word: str) -> None:
    assert here.shown(GSUB_RECEIPTS=word) == "" and not here.service.asked


def test_a_site_may_leave_them_out(here: Here) -> None:
    write_site(here.file, here.service.url, here.socket, "[receipt]\nshown = false\n")
    assert here.shown() == "" and not here.service.asked


def test_not_in_a_pipe(here: Here) -> None:
    assert here.shown(stream=io.StringIO()) == "" and not here.service.asked


@pytest.mark.parametrize("broken", ["cluster = 7", "", "[service]\nurl = 'x'"])
def test_a_broken_site_file_is_not_the_commands_trouble(here: Here, broken: str) -> None:
    here.file.write_text(broken)
    assert here.shown() == ""


def test_a_home_that_cannot_be_written_to(here: Here, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert here.shown(XDG_STATE_HOME=str(tmp_path / "file")) == ""
    assert here.shown(HOME=str(tmp_path / "none")) == "" and not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_service_that_hangs_takes_no_longer_than_the_budget_and_not_again(here: Here) -> None:
    hung = threading.Event()
    reply, here.service.reply = here.service.reply, lambda asked: (hung.wait(60), (200, b"{}"))[1]
    before = time.monotonic()
    assert here.shown(2.0) == ""
    assert time.monotonic() - before < 30  # not the minute for which it hangs
    assert len(here.service.asked) == 1
    hung.set()
    here.service.reply = reply
    assert here.shown() == "" and len(here.service.asked) == 1  # it is left alone for a while


def test_a_service_that_is_not_one(here: Here) -> None:
    here.service.seal = lambda credential, status, body: ""
    assert here.shown() == ""


@pytest.mark.parametrize("body", [b"", b"[]", b'{"jobs": 3}', b"\xff" * 100])
def test_answers_that_are_none(here: Here, body: bytes) -> None:
    here.service.reply = lambda asked: (200, body)
    assert here.shown() == ""


def test_a_terminal_that_has_gone(here: Here) -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    assert here.shown(stream=Gone()) == ""


# --- a command on a terminal ----------------------------------------------------------------------------------------

RUN = """
import sys
from gsub import receipts
from gsub.cli import main
receipts.show.__kwdefaults__["budget"] = 30  # a loaded machine is no reason
sys.exit(main())
"""


def on_terminal(here: Here, *words: str, **more: str) -> tuple[int, str, str]:
    """A `gsub` whose standard error is a terminal: exit code, output, what the terminal shows."""
    master, slave = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", RUN, *words],
            env={**os.environ, **here.environ, **more},
            stdout=subprocess.PIPE, stderr=slave, text=True, timeout=60,
        )  # fmt: skip
        os.set_blocking(master, False)
        try:
            shown = os.read(master, 65536).decode()
        except BlockingIOError:
            shown = ""
        return done.returncode, done.stdout, shown
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.slow
def test_after_any_commands_own_output(here: Here) -> None:
    code, out, shown = on_terminal(here, "usage", "7", "--receipt")
    assert code == 0 and out.startswith("job 7 ") and "job 7 " in shown and "next time" in shown
    assert on_terminal(here, "usage", "7", "--receipt")[2] == ""


def test_not_after_help_nor_an_error(here: Here) -> None:
    assert on_terminal(here, "--version")[2] == ""
    code, _, shown = on_terminal(here, "usage", "x")
    assert code == 2 and "is no job id" in shown and "job 7" not in shown
    assert not here.service.asked


@pytest.mark.slow
def test_the_exit_code_is_the_commands(here: Here) -> None:
    here.service.reply = lambda asked: (200, b"junk")
    assert on_terminal(here, "admin", "--help")[0] == 0
    here.file.write_text("cluster = 7")
    assert on_terminal(here, "admin", "--help")[0] == 0


def test_a_service_that_is_down(here: Here) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        write_site(here.file, f"http://127.0.0.1:{taken.getsockname()[1]}", here.socket)
        assert on_terminal(here, "admin", "--help")[::2] == (0, "")
