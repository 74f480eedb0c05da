"""The table of edits: what fits, and what does not."""

from __future__ import annotations

import re

import pytest

from slurm_plugins.decide.edits import EDITS, MAX_ENV_VALUE, EditError, Value, check, check_env


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_nodes", 1),
        ("min_nodes", 65_000),
        ("num_tasks", 10_000_000),
        ("shared", 0),
        ("gres", "gpu:a100:8,nvme:1"),
        ("gres", "gres/gpu=8"),
        ("cpus_per_tres", "gres:gpu:8"),
        ("features", "[leaf1|leaf2]&(a100|h100)"),
        ("exc_nodes", "n[1-3,7],rack1-n02"),
        ("admin_comment", "gsub:d-0123456789abcdef"),
        ("wait4switch", 0),
    ],
)
def test_fits(name: str, value: Value) -> None:
    check(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", 1),
        ("min_nodes", 0),
        ("min_nodes", -1),
        ("min_nodes", 65_001),
        ("min_nodes", True),
        ("min_nodes", "2"),
        ("min_nodes", 2.0),
        ("shared", 1),
        ("gres", 8),
        ("gres", ""),
        ("gres", "gpu:8;id"),
        ("gres", "gpu:8\n"),
        ("gres", "gpu:" + "8" * 256),
        ("features", "a b"),
        ("features", "a'b"),
        ("exc_nodes", "n1|n2"),
        ("exc_nodes", "$(id)"),
        ("admin_comment", "gsub d"),
        ("admin_comment", "é"),
    ],
)
def test_does_not_fit(name: str, value: Value) -> None:
    with pytest.raises(EditError, match=re.escape(name)):
        check(name, value)


def test_the_bounds_of_every_field_are_its_own() -> None:
    for name, edit in EDITS.items():
        if edit.kind == "int":
            check(name, edit.low)
            check(name, edit.high)
            for outside in (edit.low - 1, edit.high + 1):
                with pytest.raises(EditError):
                    check(name, outside)
        else:
            check(name, "a" * edit.high)
            for text in ("", "a" * (edit.high + 1), "a\0", "\u202e"):
                with pytest.raises(EditError):
                    check(name, text)


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLURM_NTASKS", "16"), ("SRUN_CPUS_PER_TASK", "8"), ("GSUB_DECISION", "d-0123456789abcdef"),
     ("SLURM_TASKS_PER_NODE", "8(x2)"), ("SLURM_GPUS_PER_NODE", "")],
)  # fmt: skip
def test_variables_that_may_be_written(name: str, value: str) -> None:
    check_env(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("PATH", "/tmp"), ("LD_PRELOAD", "x"), ("SLURM_", "1"), ("slurm_ntasks", "1"), ("SLURM_NTASKS\n", "1"),
     ("SLURM_NTASKS=1;X", "1"), ("SLURM_NTASKS", "1\n2"), ("SLURM_NTASKS", "`id`"), ("SLURM_NTASKS", "$(id)"),
     ("SLURM_NTASKS", "1" * (MAX_ENV_VALUE + 1)), ("SLURM_NTASKS", "é")],
)  # fmt: skip
def test_variables_that_may_not(name: str, value: str) -> None:
    with pytest.raises(EditError):
        check_env(name, value)
