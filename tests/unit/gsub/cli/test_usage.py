"""`gsub usage JOB`: against a real keeper, against services that are down, wrong or forged, and the view by itself."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsub.cli import COMMANDS, main
from gsub.sparkline import ASCII, BLOCKS, ramp, resample, sparkline
from gsub.term import console
from gsub.usage_view import NOTES, PLOTTED, ROWS, Look, lines
from profiler.answers import JobSummary, NodeSeries, NodeUse, Problem, RuleTold, Series, Usage
from profiler.munge import Munge
from profiler.records import GpuRef, GpuSeries, GpuUse, HostUse
from profiler.store.facts import JobFacts
from slurm_plugins.client.values import Job, JobState
from tests.unit.gsub.cli.service import Site, keeper, write_site
from tests.unit.profiler.store import records as told
from tests.unit.prolog_epilog.agent.munged import Munged, munged
from tests.unit.prolog_epilog.agent.sealing import Sealing, sealing

OTHER = 1001


def facts(job: int, **more: object) -> JobFacts:
    """Slurm's word on a job that completed after an hour."""
    known = {
        "name": "train", "user": "ada", "uid": 1000, "state": "COMPLETED", "exit_code": 0, "started": told.T0,
        "ended": told.T0 + 3600, "time_limit": 36000.0, "nodes": "n1", "cpus": 8, "gpus": 2,
        "memory_asked_bytes": 16 << 30, "restarts": 0, "final": True,
    }  # fmt: skip
    return JobFacts(cluster=told.CLUSTER, job_id=job, **(known | more))  # type: ignore[arg-type]


def whole(job: int, **more: int) -> list[object]:
    """All that a node tells of a job that has ended."""
    return [
        told.started(job, uid=more.get("uid", 1000)),
        told.usage(job, serial=60, final=True, unseen_seconds=0.0),
        told.series(job, serial=60, final=True),
        told.ended(job),
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    jobs = [
        facts(1),
        facts(2, array_job_id=40, array_task_id=7),
        facts(3, het_job_id=50, het_offset=1),
        facts(4, uid=OTHER),
    ]
    records = [*whole(1), *whole(2), *whole(3), *whole(4, uid=OTHER), told.started(5), told.usage(5)]
    with keeper(tmp_path_factory.mktemp("keeper"), jobs, records) as site:  # type: ignore[arg-type]
        yield site


@pytest.fixture
def gsub(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def run(site: Site | Path, *words: str) -> tuple[int, str, str]:
        monkeypatch.setenv("GSUB_SITE", str(site.file if isinstance(site, Site) else site))
        code = main(["usage", *words])
        return (code, *capfd.readouterr())

    return run


# --- a real keeper --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_that_ended(site: Site, gsub) -> None:
    code, out, err = gsub(site, "1")
    assert (code, err) == (0, "")
    assert 'job 1 "train" on n1: COMPLETED after 1 h, exit code 0' in out
    table = [line.split("  ") for line in out.splitlines() if line.startswith("  n1    ")]
    assert [row[-1] for row in table if "80 GiB" in " ".join(row)] == [
        "-",
        "never used",
    ] or "never used" in out
    assert "80 %" in out and "40 of 80 GiB" in out and "memory at most 6 GiB of 16 GiB" in out
    assert "utilisation over time" in out and "n1:0" in out and "memory over time" in out


@pytest.mark.parametrize("word", ["40_7", "50+1"])
def test_tasks_of_arrays_and_components(site: Site, gsub, word: str) -> None:
    assert f'job {word} "train"' in gsub(site, word)[1]


def test_a_job_that_runs(site: Site, gsub) -> None:
    code, out, _ = gsub(site, "5")
    assert code == 0 and "job 5 on n1" in out and "so far" in out and "COMPLETED" not in out


def test_receipt(site: Site, gsub) -> None:
    code, out, _ = gsub(site, "1", "--receipt")
    assert code == 0 and len(out.splitlines()) == 6
    assert "--gpus=1 (1 of 2 GPUs never used)" in out and "--mem=5G (peak 4 GiB + 20 %)" in out


class Terminal:
    """`gsub usage ...` on a terminal of its own."""

    def __init__(self, site: Site, *words: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import sys; from gsub.cli import main; sys.exit(main())", "usage", *words],
            env={**os.environ, "GSUB_SITE": str(site.file), "TERM": "xterm", "GSUB_RECEIPTS": "off", "COLUMNS": "90"},
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            # a test run in the background ignores ^C, and its children would too
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        os.close(slave)
        self.text = ""

    def until(self, wanted: str) -> None:
        while wanted not in self.text:
            assert select.select([self.master], [], [], 60)[0], self.text
            self.text += os.read(self.master, 65536).decode(errors="replace")

    def end(self) -> int:
        try:
            while select.select([self.master], [], [], 60)[0]:
                self.text += os.read(self.master, 65536).decode(errors="replace")
        except OSError:  # Linux: the other side is closed
            pass
        os.close(self.master)
        return self.process.wait(60)


def test_watching_a_job_that_ended_ends(site: Site) -> None:
    terminal = Terminal(site, "1", "--watch")
    assert terminal.end() == 0 and "COMPLETED after 1 h" in terminal.text


def test_watching_a_job_that_runs_ends_with_ctrl_c(site: Site) -> None:
    terminal = Terminal(site, "5", "--watch")
    terminal.until("note")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0 and "Traceback" not in terminal.text and "so far" in terminal.text


def test_colour_on_a_terminal_only(site: Site, gsub) -> None:
    terminal = Terminal(site, "1")
    assert terminal.end() == 0 and "\x1b[1m" in terminal.text and "\x1b[33m" in terminal.text
    assert "\x1b" not in gsub(site, "1")[1]


def test_json_is_what_the_service_says(site: Site, gsub) -> None:
    out = gsub(site, "1", "--json")[1]
    usage = msgspec.json.decode(out, type=Usage)
    assert (
        out.count("\n") == 1 and usage.job.name == "train" and usage.nodes[0].gpus[0].utilisation_mean == 80
    )


def test_one_node_one_attempt(site: Site, gsub) -> None:
    assert gsub(site, "1", "--node=n1", "--restarts=0")[0] == 0
    code, _, err = gsub(site, "1", "--node=n9")
    assert (code, err.splitlines()[0]) == (1, "gsub: job 1 has told nothing of a node n9")
    assert "it has of: n1" in err
    assert gsub(site, "1", "--restarts=3")[0] == 1


def test_a_job_that_is_not_there(site: Site, gsub) -> None:
    code, out, err = gsub(site, "999")
    assert (code, out) == (1, "") and err.startswith("gsub: there is no record of a job 999 of yours\n")
    assert "  try: " in err


@pytest.mark.root
def test_another_users_job_is_not_there(site: Site, gsub) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are for nobody else
        Path(name).chmod(0o755)
        file = Path(name, "site.toml")
        write_site(file, site.url, site.socket)
        gsub(file, "1")  # what is imported is read as root
        os.seteuid(OTHER)
        try:
            mine, hidden = gsub(file, "4"), gsub(file, "1")
        finally:
            os.seteuid(0)
    assert mine[0] == 0 and 'job 4 "train"' in mine[1]
    assert hidden[:2] == (1, "") and "no record of a job 1 of yours" in hidden[2] and "ada" not in hidden[2]


@pytest.mark.parametrize("word", ["x", "0", "1_", "1;2", "../1", "1?uid=0", "12345678901"])
def test_what_is_no_job(site: Site, gsub, word: str) -> None:
    code, _, err = gsub(site, word)
    assert code == 2 and "is no job id" in err


# --- a service that is not there, or not itself ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def daemon() -> Iterator[Munged]:
    with munged() as daemon:
        yield daemon


@pytest.fixture
def service(daemon: Munged) -> Iterator[Sealing]:
    with sealing(Munge(daemon.socket)) as service:
        yield service


@pytest.fixture
def file(tmp_path: Path, service: Sealing, daemon: Munged) -> Path:
    write_site(tmp_path / "site.toml", service.url, daemon.socket)
    return tmp_path / "site.toml"


def test_no_service(tmp_path: Path, gsub) -> None:
    write_site(tmp_path / "site.toml", "", "/nowhere")
    code, _, err = gsub(tmp_path / "site.toml", "1")
    assert code == 2 and "there are no records of jobs here" in err and "service.url" in err


def test_no_site(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gsub.site.read_site", lambda environ, **_: None)
    code, err = main(["usage", "1"]), capfd.readouterr().err
    assert code == 2 and "no records of jobs here" in err and "no site file" in err


def test_a_broken_site(tmp_path: Path, gsub) -> None:
    (tmp_path / "site.toml").write_text("cluster = 7")
    code, _, err = gsub(tmp_path / "site.toml", "1")
    assert code == 2 and "cannot be used" in err


def test_a_service_that_is_down(tmp_path: Path, gsub, daemon: Munged) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        write_site(tmp_path / "site.toml", f"http://127.0.0.1:{taken.getsockname()[1]}", daemon.socket)
        code, out, err = gsub(tmp_path / "site.toml", "1")
    assert (
        (code, out) == (1, "")
        and "does not answer" in err
        and "refused" in err
        and len(err.splitlines()) == 3
    )


def test_a_service_that_hangs(tmp_path: Path, gsub, daemon: Munged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gsub.service.records.__kwdefaults__", {"timeout": 0.2})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write_site(tmp_path / "site.toml", f"http://127.0.0.1:{silent.getsockname()[1]}", daemon.socket)
        code, _, err = gsub(tmp_path / "site.toml", "1")
    assert code == 1 and "did not answer in time" in err


def test_a_forged_service(file: Path, gsub, service: Sealing) -> None:
    service.seal = lambda credential, status, body: ""
    service.reply = lambda asked: (200, msgspec.json.encode(Usage(JobSummary("lab", 1, name="a lie"), ())))
    code, out, err = gsub(file, "1")
    assert (code, out) == (1, "") and "not known to be gsub's service" in err and "a lie" not in err


def test_no_munge(tmp_path: Path, gsub, service: Sealing) -> None:
    write_site(tmp_path / "site.toml", service.url, str(tmp_path / "no.socket"))
    code, _, err = gsub(tmp_path / "site.toml", "1")
    assert code == 1 and "cannot prove" in err and "munge" in err


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, msgspec.json.encode(Problem("there is no job 1 of yours")), "no record of a job 1 of yours"),
        (400, msgspec.json.encode(Problem("bad\x1b[31m query", "give less")), "refuses to tell"),
        (503, msgspec.json.encode(Problem("the store is locked", "wait")), "cannot tell"),
        (500, b"<html>oops", "cannot tell"),
        (200, b'{"job": 7}', "in words that are not understood here"),
        (200, b"\xff", "in words that are not understood here"),
    ],
)
def test_answers_that_are_none(
    file: Path, gsub, service: Sealing, status: int, body: bytes, said: str
) -> None:
    service.reply = lambda asked: (status, body)
    code, out, err = gsub(file, "1")
    assert (code, out) == (1, "") and said in err and "\x1b" not in err and len(err.splitlines()) == 3
    assert service.asked[-1].by is not None and service.asked[-1].target == "/v1/jobs/1/usage"


def test_json_that_is_none(file: Path, gsub, service: Sealing) -> None:
    service.reply = lambda asked: (200, b"<html>")
    code, out, err = gsub(file, "1", "--json")
    assert (code, out) == (1, "") and "not understood" in err


def test_a_component_is_asked_for_by_its_name(file: Path, gsub, service: Sealing) -> None:
    gsub(file, "12+1", "--restarts", "2")
    assert service.asked[-1].target == "/v1/jobs/12%2B1/usage?restarts=2"


def test_it_is_a_command() -> None:
    assert {"usage", "admin"} <= COMMANDS.keys()


# --- a job that has just started -------------------------------------------------------------------------------------


@dataclass
class FakeSlurm:
    """Slurm has these jobs."""

    all: list[Job]

    def jobs(self, *, ids: list[str]) -> list[Job]:
        return self.all


def a_job(state: JobState = JobState.RUNNING, ended: float | None = None, uid: int | None = None) -> Job:
    end = None if ended is None else datetime.fromtimestamp(time.time() - ended, timezone.utc)
    uid = os.geteuid() if uid is None else uid
    return Job(id=7, name="new", user="ada", uid=uid, state=state, end=end)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    slurm = FakeSlurm([a_job()])
    monkeypatch.setattr("gsub.commands.usage.connect", lambda: slurm)
    monkeypatch.setattr("gsub.commands.usage.NEWS", 1.0)
    return slurm


NOT_YET = (404, msgspec.json.encode(Problem("there is no job 7 of yours")))


def test_its_nodes_are_given_time_to_tell(file: Path, gsub, service: Sealing, slurm: FakeSlurm) -> None:
    there = msgspec.json.encode(Usage(JobSummary("lab", 7, name="new"), ()))
    service.reply = lambda asked: (200, there) if len(service.asked) > 1 else NOT_YET
    code, out, _ = gsub(file, "7", "--receipt")
    assert code == 0 and 'job 7 "new"' in out and len(service.asked) == 2


def test_but_not_for_ever(file: Path, gsub, service: Sealing, slurm: FakeSlurm) -> None:
    service.reply = lambda asked: NOT_YET
    code, _, err = gsub(file, "7")
    assert code == 1 and "have not told of it yet" in err and len(service.asked) > 1


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (a_job(JobState.PENDING), "job 7 has not started"),
        (a_job(JobState.COMPLETED, ended=9999), "no record of a job 7"),
        (a_job(uid=4242), "no record of a job 7"),
        (None, "no record of a job 7"),
    ],
)
def test_nor_where_nothing_is_to_come(
    file: Path, gsub, service: Sealing, slurm: FakeSlurm, job: Job | None, said: str
) -> None:
    slurm.all = [job] if job else []
    service.reply = lambda asked: NOT_YET
    code, _, err = gsub(file, "7")
    assert code == 1 and said in err and len(service.asked) == 1


# --- the view -------------------------------------------------------------------------------------------------------

EVIL = "\x1b]0;owned\x07\u202e\rname"


def view(nodes: int = 1, gpus: int = 1, width: int = 80, steps: int = 400, text: str = "n") -> list[str]:
    names = [f"{text}{number}" for number in range(nodes)]
    uses = tuple(GpuUse(GpuRef(minor, text), utilisation_mean=50.0) for minor in range(gpus))
    courses = tuple(GpuSeries(GpuRef(minor), (50.0, None) * (steps // 2)) for minor in range(gpus))
    job = JobSummary(
        "lab", 1, name=text, user=text, nodes=text, state="RUNNING", started=1e9, gpus=nodes * gpus
    )
    told = (RuleTold(text, 1e9, text, text, 1e9),)
    usage = Usage(job, tuple(NodeUse(name, gpus=uses, note=text) for name in names), told=told)
    series = Series(job, tuple(NodeSeries(name, 1e9, 10.0, courses) for name in names))
    return [line.text for line in lines(usage, series, Look(BLOCKS, width, 1e9 + 60))]


def test_nothing_of_others_steers_the_terminal() -> None:
    assert all(line.isprintable() for line in view(text=EVIL))


def test_a_rule_that_its_user_was_told_of_is_the_first_note() -> None:
    notes = [line for line in view() if "note" in line]
    assert notes[0].startswith("  note  rule n, told by mail on 2001-09-") and len(notes) == 2
    assert notes[0].endswith(": n (n); it was cancelled for that")


@pytest.mark.parametrize("width", [1, 40, 80, 200])
def test_plots_fit_the_screen(width: int) -> None:
    plots = [line for line in view(width=width) if any(sign in line for sign in BLOCKS[:6])]
    assert plots and all(len(line) <= max(width, 30) for line in plots)


def test_many_gpus_are_one_line_a_node_and_many_nodes_are_some() -> None:
    few, many = view(gpus=PLOTTED), view(nodes=PLOTTED + 4, gpus=8)
    assert sum("100 %" in line for line in few) == PLOTTED
    assert sum("100 % of 8 GPUs" in line for line in many) == PLOTTED
    assert any("and 4 more nodes" in line for line in many)


def test_a_job_on_ten_thousand_gpus_is_told_in_pages_not_in_books() -> None:
    names = [f"n{number:04d}" for number in range(1250)]
    lazy = {("n0007", 3): 0.0, ("n1200", 0): 7.0}
    uses = tuple(
        NodeUse(
            name,
            gpus=tuple(
                GpuUse(GpuRef(minor), samples=1, utilisation_mean=lazy.get((name, minor), 90.0))
                for minor in range(8)
            ),
            host=HostUse("proc", memory_peak_bytes=1 << 30),
            note="so and so",
        )
        for name in names
    )
    job = JobSummary("lab", 1, state="RUNNING", started=1e9, gpus=10_000)
    shown = [line.text for line in lines(Usage(job, uses), None, Look(BLOCKS, 80, 1e9 + 60))]
    assert len(shown) < 2 * ROWS + NOTES + 20
    assert any("n0007" in line and "never used" in line for line in shown), "what stands out is there"
    assert any("n1200" in line and "7 %" in line for line in shown)
    assert sum("... and" in line for line in shown) == 3 and any(
        f"{10_000 - ROWS} more GPUs" in line for line in shown
    )


def test_a_name_is_shown_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    console().print("x:smile:", markup=False)
    assert capfd.readouterr().out == "x:smile:\n"


@given(st.lists(st.none() | st.floats(0, 1e12), max_size=300), st.integers(0, 120), st.floats(0, 1e12))
def test_a_sparkline_is_as_wide_as_it_may_be(values, width, top):
    drawn = sparkline(values, width, top)
    assert len(drawn) == min(len(values), width) and set(drawn) <= {*BLOCKS, " "}
    if not any(value is not None for value in values):
        assert not drawn.strip()


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300), st.integers(1, 120))
def test_resampling_keeps_the_mean(values, width):
    made = [value for value in resample(values, width) if value is not None]
    assert sum(made) / len(made) == pytest.approx(sum(values) / len(values), abs=1e-6)


def test_what_is_not_known_is_blank_and_nought_is_not() -> None:
    assert sparkline([0.0, None, 100.0], 9, 100, ASCII) == "_ #"


@pytest.mark.parametrize(
    ("environ", "signs"),
    [
        ({"LANG": "de_DE.UTF-8"}, BLOCKS),
        ({"LANG": "C.utf8"}, BLOCKS),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, ASCII),
        ({"LANG": "de_DE.ISO-8859-1"}, ASCII),
        ({}, ASCII),
    ],
)
def test_blocks_only_where_the_locale_has_them(environ, signs, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="utf-8") as stream:
        assert ramp(stream, environ) == signs
    with (tmp_path / "out").open("w", encoding="latin-1") as stream:
        assert ramp(stream, environ) == ASCII


def test_json_of_a_job_in_latin_and_han(file: Path, gsub, service: Sealing) -> None:
    service.reply = lambda asked: (200, json.dumps({"name": "学\x1b"}, ensure_ascii=False).encode())
    out = gsub(file, "1", "--json")[1]
    assert out.isascii() and "\x1b" not in out and json.loads(out) == {"name": "学\x1b"}
