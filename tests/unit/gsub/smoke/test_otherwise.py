"""What a smoke run fails by for want of what only the real job has: its log, its number, its other tasks."""

from __future__ import annotations

import pytest

from gsub.smoke.otherwise import asks_slurm, doubt
from tests.unit.gsub.smoke.test_runner import Place, place

__all__ = ["place"]


def why(words: str, reason: str = "missing_input", *, outputs: tuple[str, ...] = (), array: bool = False,
        script: str = "", asks: bool = False) -> str:  # fmt: skip
    return doubt(reason, [words], job=42, outputs=outputs, asks=asks, array=array, script=script)


@pytest.mark.parametrize(
    ("words", "outputs"),
    [
        ("cp: cannot stat 'slurm-42.out': No such file or directory", ()),
        ("cp: cannot stat '/local/job42/data.tar': No such file or directory", ()),
        ("cp: cannot stat 'train.log': No such file or directory", ("logs/train.log",)),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'logs/x-7_1.err'",
            ("logs/%x-%A_%04a.err",),
        ),
        ("cp: cannot stat 'slurm-_1.out': No such file or directory", ()),
    ],
)
def test_the_log_and_the_number_are_the_real_jobs(words: str, outputs: tuple[str, ...]) -> None:
    assert why(words, outputs=outputs)


def test_other_numbers_and_files_are_the_scripts() -> None:
    missing = "cp: cannot stat 'data/428-train.csv': No such file or directory"
    assert not why(missing, outputs=("train.log", "%j", "/dev/null", "%x.%j"))
    assert not why("ModuleNotFoundError: No module named 'x42'", "import_error", array=True)


def test_of_an_array_only_what_its_script_names_fails_all_tasks() -> None:
    script = "python train.py --lrr 3 --part part-$SLURM_ARRAY_TASK_ID.bin"
    assert why(
        "FileNotFoundError: [Errno 2] No such file or directory: 'part-1.bin'", array=True, script=script
    )
    assert why(
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied", "semantic_error", array=True, script=script
    )
    bad = "train.py: error: argument --lrr: invalid float value: '2e'"
    assert why(bad, "bad_arguments", array=True, script=script)
    assert why("train.py: cannot read 'conf-1.yaml'", array=True, script=script)
    gone = "python: can't open file '/home/ada/train.py': [Errno 2] No such file or directory"
    assert not why(gone, array=True, script=script)
    assert not why(
        "train.py: error: unrecognized arguments: --lrr 3", "bad_arguments", array=True, script=script
    )


def test_what_slurm_says_of_the_smoke_job_is_no_fact_of_the_real_one() -> None:
    assert why(
        "cat: /var/conf.yaml: No such file or directory", asks=asks_slurm(["a=$(scontrol show job $J)"])
    )
    assert not asks_slurm(["# scontrol release it\npython train.py --sacct=no"])


@pytest.mark.slow
def test_a_script_that_copies_its_own_log_is_not_called_failed(place: Place) -> None:
    script = "#!/bin/sh\necho loss 1\ncp slurm-$SLURM_JOB_ID.out kept.log\n"
    code, result = place.ran(script)
    assert (code, result.outcome) == (0, "inconclusive")
    assert "number" in result.sentence
    code, result = place.ran(
        "#!/bin/sh\ncat part-$SLURM_ARRAY_TASK_ID.csv\n", array={"SLURM_ARRAY_TASK_ID": "1"}
    )
    assert (code, result.outcome) == (0, "inconclusive")
    assert "first task" in result.sentence
