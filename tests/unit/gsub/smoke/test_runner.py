"""The runner as a process, as the batch script of a smoke job starts it; here without Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gsub.smoke.child import environment, named, shebang
from gsub.smoke.plan import Plan, encoded
from gsub.smoke.result import Result, read
from tests.waiting import wait_until

PATIENCE_S = 60.0
ENVIRON = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "42", "SLURM_NNODES": "1", "MINE": "kept", "HOME": "/"}


class Place:
    def __init__(self, folder: Path) -> None:
        self.work, self.state, self.tmp = folder / "work", folder / "state", folder / "tmp"
        for path in (self.work, self.state, self.tmp):
            path.mkdir()

    def start(self, script: str, *args: str, seconds: float = PATIENCE_S, array: dict[str, str] | None = None,
              cwd: str = "") -> subprocess.Popen[bytes]:  # fmt: skip
        plan = Plan(script=script.encode(), name="train.sh", args=args, cwd=cwd or str(self.work), mode="only",
                    seconds=seconds, state=str(self.state), array=array or {}, key="k")  # fmt: skip
        environ = {**ENVIRON, "TMPDIR": str(self.tmp)}
        argv = [sys.executable, "-I", "-m", "gsub.smoke.runner"]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
        assert process.stdin is not None
        process.stdin.write(encoded(plan))
        process.stdin.close()
        return process

    def end(self, process: subprocess.Popen[bytes]) -> tuple[int, Result]:
        assert process.stdout is not None
        said = process.stdout.read().decode()
        code = process.wait(PATIENCE_S)
        result = read(self.state, 42)
        assert result is not None, said
        assert said.startswith(f"smoke {result.outcome}: ")
        assert list(self.tmp.iterdir()) == []  # whatever came of it, nothing is left
        return code, result

    def ran(self, script: str, *args: str, seconds: float = PATIENCE_S, array: dict[str, str] | None = None,
            cwd: str = "") -> tuple[int, Result]:  # fmt: skip
        return self.end(self.start(script, *args, seconds=seconds, array=array, cwd=cwd))

    @property
    def output(self) -> str:
        return (self.state / "smoke/42/output").read_text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_script_finds_what_slurm_and_we_give_it(place: Place) -> None:
    script = """#!/bin/bash
echo "$PWD|$1|$2|$#|$MINE|$SLURM_ARRAY_TASK_ID|$GSUB_SMOKE|$WANDB_MODE"
[ -d "$GSUB_SMOKE_DIR" ] && [ -w "$TMPDIR" ] && basename "$0" && read -t 1 x || echo none
"""
    code, result = place.ran(script, "a b", "", array={"SLURM_ARRAY_TASK_ID": "3"})
    assert (code, result.outcome, result.exit_code) == (0, "passed", 0)
    assert place.output == f"{place.work}|a b||2|kept|3|1|offline\nslurm_script\nnone\n"


def test_a_sure_failure_and_an_unknown_one(place: Place) -> None:
    code, result = place.ran("#!/bin/bash\npython3 -c 'import einops_of_noone'\n")
    assert (code, result.outcome, result.reason, result.exit_code) == (1, "failed", "import_error", 1)
    code, result = place.ran("#!/bin/bash\necho 'something odd'\nexit 3\n")
    assert (code, result.outcome, result.exit_code) == (0, "inconclusive", 3)
    assert "exit code 3" in result.sentence


def test_alive_when_its_time_is_up_has_passed(place: Place) -> None:
    code, result = place.ran("#!/bin/sh\nsleep 600 &\nexec sleep 600\n", seconds=0.5)
    assert (code, result.outcome, result.exit_code) == (0, "passed", None)
    assert 0.5 <= result.seconds < PATIENCE_S


def test_a_signal_ends_it_at_once_and_says_nothing_against_the_script(place: Place) -> None:
    process = place.start("#!/bin/sh\ntouch $GSUB_SMOKE_DIR/../begun\nsleep 600\nexit 1\n")
    wait_until(lambda: list(place.tmp.glob("*/begun")), PATIENCE_S, "the script's begin", pause=0.02)
    process.send_signal(signal.SIGTERM)
    code, result = place.end(process)
    assert (code, result.outcome) == (0, "inconclusive")
    assert result.seconds < PATIENCE_S


@pytest.mark.slow
def test_steps_a_second_come_from_the_output(place: Place) -> None:
    script = "#!/bin/bash\nfor i in $(seq 400); do echo step $i; sleep 0.05; done\n"
    _, result = place.ran(script, seconds=2.0)
    assert 3 < result.steps_per_second < 25


def test_files_that_it_changed_are_told(place: Place) -> None:
    (place.work / "kept").write_text("mine")
    _, result = place.ran("#!/bin/sh\necho more >> kept; mkdir out; echo x > out/new\n")
    assert {os.path.relpath(path, place.work) for path in result.changed} >= {"kept", "out/new"}
    assert (place.work / "kept").read_text() == ("mine" if result.kept == "overlay" else "minemore\n")


@pytest.mark.parametrize("script", ["#!/no/such/shell\n", "#!\x00\n"])
def test_what_cannot_be_started_is_no_failure_of_ours_to_judge(place: Place, script: str) -> None:
    code, result = place.ran(script)
    assert (code, result.outcome) == (0, "inconclusive")


@pytest.mark.parametrize(("script", "code"), [("exit 0\n", 0), ("python3 -c 'import einops_of_nobody'\n", 1)])
def test_a_full_disk_makes_no_failure(place: Place, script: str, code: int) -> None:
    plan = Plan(script=b"#!/bin/sh\n" + script.encode(), name="t.sh", cwd=str(place.work), mode="only", seconds=9.0,
                state="/dev/full")  # fmt: skip
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-I", "-m", "gsub.smoke.runner"], input=encoded(plan), check=False,
                              env={**ENVIRON, "TMPDIR": str(place.tmp)}, stdout=full, stderr=full)  # fmt: skip
    assert done.returncode == code


def test_a_folder_that_has_gone_and_a_plan_that_is_none(place: Place) -> None:
    code, result = place.ran("#!/bin/sh\n", cwd=str(place.work / "gone"))
    assert (code, result.outcome) == (0, "inconclusive")
    argv = [sys.executable, "-I", "-m", "gsub.smoke.runner"]
    done = subprocess.run(argv, input=b"{}", capture_output=True, timeout=PATIENCE_S)
    assert done.returncode == 0 and done.stdout.startswith(b"gsub: smoke inconclusive: ")


def test_a_long_folder_leaves_the_users_own_for_temporary_files() -> None:
    found = environment({"TMPDIR": "/scratch"}, Path("/" + "x" * 90), {}, "")
    assert found["TMPDIR"] == "/scratch"
    assert environment({}, Path("/tmp/s"), {}, "")["TMPDIR"] == "/tmp/s/tmp"


def test_variables_of_an_outer_smoke_run_do_not_come_along() -> None:
    assert "GSUB_SMOKE_OLD" not in environment({"GSUB_SMOKE_OLD": "1"}, Path("/tmp/s"), {}, "")


def test_an_interpreter_is_read_as_the_kernel_does() -> None:
    assert shebang(b"#!/usr/bin/python3 -u\t \nprint()") == ["/usr/bin/python3", "-u"]
    assert shebang(b"#!\n") == ["/bin/sh"] == shebang(b"")


def test_words_and_texts_of_a_script_and_what_it_runs(tmp_path: Path) -> None:
    (tmp_path / "inner.sh").write_text("srun -N2 x\n")
    script = f"#!/bin/bash\nOUT={tmp_path}/o\nbash inner.sh --out=$OUT > log\n"
    words, texts = named(Plan(script=script.encode(), name="t.sh", cwd=str(tmp_path), seconds=1.0))
    assert f"--out={tmp_path}/o" in words and f"{tmp_path}/log" in words
    assert "srun -N2 x\n" in texts


def test_its_folder_goes_whatever_rights_the_script_left_there(place: Place) -> None:
    old, new = place.tmp / "gsub-smoke-old", place.tmp / "gsub-smoke-new"
    for folder in (old, new):
        (folder / "apart/work0/work").mkdir(parents=True)
        (folder / "apart/work0/work").chmod(0)
    os.utime(old, (1, 1))
    process = place.start("#!/bin/sh\nmkdir -p $GSUB_SMOKE_DIR/a/b; chmod 500 $GSUB_SMOKE_DIR/a\n")
    assert process.wait(PATIENCE_S) == 0
    assert list(place.tmp.iterdir()) == [new]


@pytest.mark.parametrize("asked", [True, False])
def test_unasked_it_does_not_begin_where_its_files_cannot_be_kept_apart(place: Place, asked: bool) -> None:
    script = "#!/bin/sh\ntouch here\nmpirun --version\nexit 0\n"
    plan = Plan(script=script.encode(), name="t.sh", cwd=str(place.work), mode="only", seconds=9.0, asked=asked,
                state=str(place.state))  # fmt: skip
    argv = [sys.executable, "-I", "-m", "gsub.smoke.runner"]
    environ = {**ENVIRON, "TMPDIR": str(place.tmp)}
    done = subprocess.run(argv, input=encoded(plan), env=environ, stdout=subprocess.PIPE, timeout=PATIENCE_S)
    result = read(place.state, 42)
    assert result is not None and done.returncode == 0
    assert (place.work / "here").exists() is asked
    assert result.outcome == ("passed" if asked else "inconclusive")
    assert "mpirun" in result.kept_why and list(place.tmp.iterdir()) == []
