"""Where the program stands among srun's words, and which steps are left as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gsub.smoke.overlay import outside
from gsub.smoke.steps import MARK, position, words

ONE_NODE = {"SLURM_JOB_NUM_NODES": "1"}


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ("python train.py -n 4", 0),
        ("-n 2 python", 2),
        ("-n2 -lu python", 2),
        ("-un2 python", 1),
        ("--ntasks=2 --gpus-per-task 1 -K --kill-on-bad-exit=1 python a", 5),
        ("--exclusive -- python", 2),
        ("-o log.txt python", 2),
        ("-o log-%t.txt python", None),
        ("--output=log-%j python", None),
        ("--container-image=x python", None),
        ("--multi-prog conf", None),
        ("--het-group=0,1 python", None),
        ("--not-known python", None),
        ("-Z python", None),
        ("-n", None),
        ("-n 2", None),
        ("", None),
        ("-n1 a : -n2 b", None),
    ],
)
def test_where_the_program_stands(given: str, at: int | None) -> None:
    assert position(given.split()) == at


def test_a_step_on_two_nodes_or_in_a_container_is_left_as_it_is() -> None:
    assert words(["python"], {"SLURM_JOB_NUM_NODES": "2"}, pid=1, boot="b", folder="/x") is None
    assert words(["python"], {**ONE_NODE, "SLURM_CONTAINER": "x"}, pid=1, boot="b", folder="/x") is None
    assert words(["python"], {}, pid=1, boot="b", folder="/x") is None
    found = words(["-n2", "--", "python", "--", "a"], ONE_NODE, pid=1, boot="b", folder="/x")
    assert found is not None and found[0] == "-n2" and found[-6:] == ["1", "b", "/x", "python", "--", "a"]


def test_on_another_machine_the_task_is_run_and_a_mark_is_left(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    environ = {**os.environ, "GSUB_SMOKE_DIR": str(tmp_path / "dir")}
    enter = [sys.executable, "-I", "-m", "gsub.smoke.steps", "enter", "1", "another boot", str(tmp_path)]
    done = subprocess.run([*enter, "echo", "a b"], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "a b\n" and (tmp_path / MARK).exists()
    gone = subprocess.run([*enter, "no-such-program"], env=environ, capture_output=True, text=True)
    assert gone.returncode == 127 and "execve(): no-such-program: No such file" in gone.stderr


def test_programs_that_run_elsewhere_are_known_by_name() -> None:
    assert outside(["apptainer exec x.sif python train.py"]) == "apptainer"
    assert outside(["ssh $host hostname", "python a.py"]) == "ssh"
    assert outside(["x=1\n/opt/slurm/bin/srun python"], but="srun") == ""
    assert outside(["srun python\nmpirun -n 2 x"], but="srun") == "mpirun"
    assert outside(["python srun_helper.py --ssh-key=x\n# mpirun\necho ok # ssh"]) == ""
