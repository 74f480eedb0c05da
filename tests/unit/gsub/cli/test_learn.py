"""`gsub learn`: a command measured in place, its end and that of all that it started, and the plots."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gsub.argv import split
from gsub.cli import main
from gsub.curve_view import plot, rows
from gsub.learning import Asked, Learnt, learn_here
from gsub.sbatch_options import Table
from gsub.sparkline import ASCII, BLOCKS
from gsub.workload_name import identified
from profiler.answers import Curves
from profiler.curves import Point
from profiler.lever import EMULATED
from profiler.munge import Munge
from profiler.points import Measured
from profiler.records import new_id
from profiler.sealed import Service
from profiler.sensitivity import Budget
from tests.unit.gsub.cli.service import PATIENCE, Site, keeper, write_site
from tests.unit.gsub.train.running import HELPER
from tests.waiting import wait_until

QUICK = Budget(points=5, seconds=30, each=0.4, longest=2, steps=6, settling=0.05)
PLAYS = """
import os, subprocess, sys, time
sys.path.insert(0, {folder!r})
import train
sleeper = subprocess.Popen(["sleep", "1000"])
open("pids", "w").write(f"{{os.getpid()}} {{sleeper.pid}}")
while True:
    cpus = int(open(os.environ["GSUB_EMULATED_CPUS"]).read())
    open(f"seen-{{cpus}}", "w").close()
    time.sleep(0.02 / min(1, cpus / 3))
    {step}
"""


def learnt(folder: Path, step: str, **more: object) -> tuple[Learnt, list[str]]:
    """What is learnt of a script that plays at using three CPUs."""
    (folder / "cpus").write_text("8")
    script = folder / "script.py"
    script.write_text(textwrap.dedent(PLAYS.format(folder=str(HELPER.parent), step=step)))
    environ = {
        **os.environ,
        EMULATED: str(folder / "cpus"),
        "SLURM_CPUS_ON_NODE": "8",
        "SLURM_GPUS_ON_NODE": "1",
    }
    said: list[str] = []
    asked = Asked((sys.executable, str(script)), budget=QUICK, **more)  # type: ignore[arg-type]
    return learn_here(asked, environ, said.append), said


def gone(pid: int) -> bool:
    """Whether a process has ended, waited for or not."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "source"),
    [("train.step()", "counter"), ("n = globals().get('n', 0) + 1; print('step', n)", "log")],
)
def test_a_command_is_measured_and_all_of_it_ended(
    step: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    found, said = learnt(tmp_path, step)
    assert found.code is None
    assert found.driver.source == source
    assert [point.cpus for point in found.driver.points[:2]] == [8, 4]
    assert found.driver.result is not None
    assert {path.name for path in tmp_path.glob("seen-*")} >= {"seen-8", "seen-4"}
    assert (tmp_path / "cpus").read_text() == "8\n"
    assert any("the knee" in line for line in said)
    pids = [int(one) for one in (tmp_path / "pids").read_text().split()]
    wait_until(lambda: all(map(gone, pids)), 60, "the end of the script and its child")


def test_a_command_that_ends_by_itself_is_not_waited_for():
    asked = Asked((sys.executable, "-c", "print('a\\x1b[31mb'); raise SystemExit(3)"), budget=QUICK)
    found = learn_here(asked, dict(os.environ), lambda _: None)
    assert found.code == 3
    assert found.tail == b"a\x1b[31mb\n"
    assert found.driver.points == ()


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("outside")
def test_a_command_that_fails_is_told_with_the_end_of_its_output(capfd: pytest.CaptureFixture[str]):
    words = [
        "learn",
        "--here",
        "--json",
        "--",
        sys.executable,
        "-c",
        "print('a\\x1b[31mb'); raise SystemExit(3)",
    ]
    assert main(words) == 1
    out, err = capfd.readouterr()
    assert "ab\n" in err
    assert "ended with 3" in err
    facts = json.loads(out)
    assert (facts["exit_code"], facts["points"], facts["knee"]) == (3, [], None)


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to learn"),
        (["--here"], "no command to run"),
        (["--here", "--"], "no command to run"),
        (["--here", "--nodes=2", "--", "true"], "does not know --nodes"),
        (["--here", "--seconds", "5", "--", "true"], "from 20 to 3600"),
        (["--here", "--cpus=x", "--", "true"], "want a number"),
        (["--here", "--", "/does/not/exist"], "/does/not/exist cannot be run"),
        (["--show", "a", "b"], "one workload"),
        (["--forget"], "not said which workload"),
        (["--forget", "--workload"], "--workload wants a name"),
        (["--forget", "--workload= "], "not said which workload"),
        (["--forget", "--user=ada"], "not said which workload"),
        (["--forget", "--user=ada", "train.sh"], "--user goes with --workload"),
        (["--forget", "/does/not/exist.sh"], "cannot read the script /does/not/exist.sh"),
    ],
)
def test_wrong_usage_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["learn", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_shell_of_an_allocation_on_the_login_node_is_no_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert main(["learn", "--here", "--", "true"]) == 2
    assert "srun" in capsys.readouterr().err


# --- what is known ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with keeper(tmp_path_factory.mktemp("keeper")) as found:
        service = Service(found.url, Munge(found.socket), {os.geteuid()}, PATIENCE)
        for names in (("own:my-resnet",), ("run:" + "a1" * 16, "args:" + "b2" * 16)):
            points = tuple(Point(cpus, min(cpus, 6.0), 0.02, at=time.time()) for cpus in (16, 8, 4, 6))
            measured = Measured(new_id(), time.time(), "learn", names, gpu_type="a100", cap=16, points=points)
            answer = service.ask("POST", "/v1/points", msgspec.json.encode(measured))
            assert answer.status == 200, answer
        wait_until(
            lambda: len(msgspec.json.decode(service.ask("GET", "/v1/curves").body, type=Curves).curves) >= 2,
            PATIENCE,
            "both curves",
        )
        yield found


def test_what_is_known_is_plotted(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("GSUB_SITE", str(site.file))
    assert main(["learn", "--show"]) == 0
    out = capsys.readouterr().out
    assert "my-resnet: 1 run on 1 GPU of type a100" in out
    assert "run:a1a1a1a1a1a1: " in out
    assert out.count("CPUs for each GPU: 6") == 2
    assert out.count("<- the knee") == 2
    for name in ("My ResNet", "own:my"):
        assert main(["learn", "--show", name, "--json"]) == 0
        (one,) = json.loads(capsys.readouterr().out)["curves"]
        assert (one["workload"], one["knee"], len(one["measured"])) == ("own:my-resnet", 6, 4)
    assert main(["learn", "--show", "other"]) == 1
    assert "nothing was measured of a workload other" in capsys.readouterr().err


SCRIPT = "#!/bin/bash\nsrun python train.py --seed 7 $@\n"


def learnt_of(site: Site, *names: str) -> None:
    """Tell the service of a run of that workload."""
    service = Service(site.url, Munge(site.socket), {os.geteuid()}, PATIENCE)
    points = tuple(Point(cpus, min(cpus, 5.7), 0.02, at=time.time()) for cpus in (16, 8, 4, 6))
    measured = Measured(new_id(), time.time(), "learn", names, gpu_type="a100", cap=16, points=points)
    assert service.ask("POST", "/v1/points", msgspec.json.encode(measured)).status == 200


def test_a_workload_is_forgotten_by_its_name_or_its_script(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("GSUB_SITE", str(site.file))
    monkeypatch.delenv("GSUB_WORKLOAD", raising=False)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    learnt_of(site, "own:a-bad-one")
    assert main(["learn", "--forget", "--workload", "A bad One"]) == 0
    assert capsys.readouterr().out == "forgotten: own:a-bad-one, measured in 1 run\n"
    assert main(["learn", "--show", "a-bad-one"]) == 1
    assert main(["learn", "--forget", "--workload=a-bad-one"]) == 1
    assert "nothing was measured of a workload own:a-bad-one" in capsys.readouterr().err
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    words = ["-G", "1", str(script), "--lr", "0.1"]
    names = identified(split(words, Table.of_all()), SCRIPT.encode(), os.environ).fingerprints
    learnt_of(site, *names)
    assert main(["learn", "--forget", "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out) == {"workload": names[0], "runs": 1}
    assert main(["learn", "--forget", *words]) == 1
    assert "nothing was measured of this script with these arguments" in capsys.readouterr().err
    # What others were measured is still there
    assert main(["learn", "--show", "my-resnet"]) == 0


def test_a_service_that_is_away_forgets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write_site(tmp_path / "away.toml", "http://127.0.0.1:9", str(tmp_path / "no-munge"))
    monkeypatch.setenv("GSUB_SITE", str(tmp_path / "away.toml"))
    assert main(["learn", "--forget", "--workload=resnet"]) == 1
    assert "forgotten" not in capsys.readouterr().out
    write_site(tmp_path / "none.toml", "", "")
    monkeypatch.setenv("GSUB_SITE", str(tmp_path / "none.toml"))
    assert main(["learn", "--forget", "--workload=resnet"]) == 2
    assert "no service" in capsys.readouterr().err


# --- plots ------------------------------------------------------------------------------------------------------------

POINTS = [Point(32, 10.0, 0.1), Point(32, 10.1, 0.1), Point(16, 9.9, 0.1), Point(4, 5.0, 0.05)]


@pytest.mark.parametrize("signs", [ASCII, BLOCKS])
@pytest.mark.parametrize("width", [20, 60, 100, 500])
def test_a_bar_for_each_count_and_the_knee_marked(signs: str, width: int):
    lines = plot(rows(POINTS, 1, 8, 9.99), width, signs, knee=8)
    assert [line.split()[0] for line in lines] == ["CPUs", "4", "8", "16", "32"]
    assert ["<- the knee" in line for line in lines] == [False, False, True, False, False]
    assert "~9.99" in lines[2]  # of the curve: no point stands there
    sign = "#" if signs == ASCII else "█"
    bars = [line.count(sign) for line in lines[1:]]
    assert bars[0] < bars[1] <= bars[3]
    assert all(len(line) <= max(width, 50) for line in lines)
    assert signs != ASCII or all(line.isascii() for line in lines)


def test_nothing_measured_gives_no_plot():
    assert plot([], 80, ASCII) == []
