"""What is known of each command of a script, as tables."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gsub.preflight.command import Command
from gsub.preflight.commands import commands
from gsub.preflight.cuda import cuda
from gsub.preflight.launch import program
from gsub.preflight.lexer import UnreadableError, tokens
from gsub.preflight.shell import interpreter, option_lines
from gsub.preflight.values import Submission
from gsub.script import Asked
from tests.properties import examples


def read(script: str, **more: object) -> tuple[Command, ...]:
    return commands(Submission("job.sh", script, folder="/job", home="/home/ada", **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("a 'b c' \"d e\"", ("a", "b c", "d e")),
        ("a \\\n  b # c", ("a", "b")),
        ("X=1\na $X ${X} ${Y:-z} '$X'", ("a", "1", "1", "z", "$X")),
        ("a $(b) `c` *.txt {1,2}", ("a", None, None, None, None)),
        ("a ~/x ~bob/x", ("a", "/home/ada/x", None)),
        ("X='1 2'\na $X \"$X\"", ("a", None, "1 2")),
        ("a $SLURM_JOB_ID $1 $2", ("a", None, "one")),
        ('a "$@" b', ("a", "one", "b")),
        ("a <<E b\nif (\nE\n", ("a", "b")),
        ("a <<-'E'\n\tx $(\n\tE\n", ("a",)),
        ("a 2>&1 >x b", ("a", "b")),
        ("a=(1 2 3)\nb", ("b",)),
        ("if read X; then :; fi\na $X", ("a", None)),
        ("shift\na $1", ("a", None)),
        ("set -- x y\na $1 $@", ("a", None, None)),
        ("set -euo pipefail\na $1", ("a", "one")),
        ("set -o pipefail\na $1", ("a", "one")),
        ("X=1\nprintf -v X '%03d' 7\na $X", ("a", None)),
    ],
)
def test_words(script: str, words: tuple[str | None, ...]) -> None:
    assert read(script, args=("one",))[-1].words == words


@pytest.mark.parametrize(
    ("script", "sure", "decisive"),
    [
        ("python x", True, True),
        ("python x\necho done", True, True),
        ("python x\nother", True, False),
        ("set -e\npython x\nother", True, True),
        ("set -e\nset +e\npython x\nother", True, False),
        ("python x || exit 1\nother", True, True),
        ("python x || { echo no; exit 1; }\nother", True, True),
        ("python x || true", False, True),
        ("if python x; then :; fi", False, True),
        ("for i in 1; do python x; done", False, True),
        ("(python x)", False, True),
        ("f() { python x; }", None, None),
        ("python x &\nwait", False, True),
        ("python x | tee log", True, True),
        ("python x | other", True, False),
        ("[ -f x ] && python x", False, True),
        ("cd y && python x", True, True),
        ("! python x", False, True),
        ("exit 0\npython x", None, None),
        ("[ -f y ] && echo\npython x", True, True),
        ("[[ -f y ]] || exit 1\npython x", True, True),
        ("if [ -f y ]; then exit 2; fi\npython x", True, True),
        ("if [ -f y ]; then exit; fi\npython x", False, True),
        ("[ -f y ] && exit 0\npython x", False, True),
        ("[ -f y ] || exec z\npython x", False, True),
    ],
)
def test_what_decides(script: str, sure: bool | None, decisive: bool | None) -> None:
    found = [one for one in read(script) if one.name == "python"]
    assert len(found) == (sure is not None)
    for one in found:
        assert one.sure == sure
        if sure:
            assert one.decisive == decisive


@pytest.mark.parametrize(
    ("script", "allowed"),
    [
        ("[ -f x ] && source x", True),
        ("test -d y && cd y && python x", True),
        ("python x || true", True),
        ("python x || :", True),
        ("python x || exit 1", False),
        ("python x || echo failed", False),
        ("cd y && python x", False),
    ],
)
def test_what_a_script_allows_to_fail(script: str, allowed: bool) -> None:
    (found,) = [one for one in read(script) if "x" in one.words[1:2]]
    assert found.allowed == allowed


@pytest.mark.parametrize(
    ("script", "folder"),
    [
        ("cd a\nx", "/job/a"),
        ("cd a; cd ../b\nx", "/job/b"),
        ("cd\nx", "/home/ada"),
        ("cd $(dirname $0)\nx", None),
        ("cd a || exit\nx", "/job/a"),
        ("[ -d a ] && cd a\nx", None),
        ("if true; then cd a; fi\nx", None),
        ("source setup.sh\nx", None),
        ("f() { cd a; }\nx", "/job"),
        ("f() { cd a; }\nf\nx", None),
    ],
)
def test_folders(script: str, folder: str | None) -> None:
    assert read(script)[-1].folder == folder


@pytest.mark.parametrize(
    ("line", "kind", "file"),
    [
        ("srun -N 2 --mpi=pmix python -u train.py --x", "python", "train.py"),
        (
            "time srun --cpu-bind none timeout 10m torchrun --nproc_per_node 8 --standalone train.py",
            "python",
            "train.py",
        ),
        ("env A=b nohup bash run.sh", "shell", "run.sh"),
        ("python -m torch.distributed.run --nnodes=2 train.py", "python", "train.py"),
        ("python -c 'print(1)'", None, ""),
        ("python -m pytest", "python", ""),
        ("srun --container-image=x python train.py", None, ""),
        ("srun --of-a-plugin x python train.py", None, ""),
        ("srun $OPTIONS python train.py", None, ""),
        ("accelerate launch --multi_gpu --num_processes 8 train.py --lr 1", "python", "train.py"),
        ("accelerate config", "other", ""),
        ("accelerate launch --no_python ./run.sh", None, ""),
        ("deepspeed --num_gpus=8 --no_local_rank train.py --deepspeed", "python", "train.py"),
        ("mpirun -np 8 --map-by ppr:4:node -x PATH --mca btl ^tcp python -u train.py", "python", "train.py"),
        ("mpirun --some-new-option 8 python train.py", None, ""),
        ("srun torchrun --nproc_per_node=8 -m proj.train", "python", ""),
    ],
)
def test_programs(line: str, kind: str | None, file: str) -> None:
    found = program(read(line)[-1])
    assert (found.kind if found else None, found.file if found else "") == (kind, file)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("#!/bin/sh\n#SBTACH -N 2\n", [2]),
        ("#!/bin/sh\n# SBATCH -N 2\n#sbatch --nodes=2\n", [2, 3]),
        ("#!/bin/sh\n##SBATCH -N 2\n# SBATCH lines follow - all of them\n# batch -size 3\n", []),
        ("#!/bin/sh\ntrue\n#SBATCH -N 2\n#SBATCH is read by sbatch\n", [3]),
    ],
)
def test_lines_that_sbatch_does_not_read(text: str, lines: list[int]) -> None:
    assert [one.line for one in option_lines(Submission("job.sh", text))] == lines


@pytest.mark.parametrize(
    ("gres", "module", "warned"),
    [("gpu:h100:4", "cuda/10.2", True), ("gpu:h100:4", "CUDA/12.1.1", False), ("gpu:4", "cuda/8.0", False),
     ("gpu:a100_3g.20gb:1", "nvidia/cuda/9.1", True), ("gpu:a100:1,gpu:v100:1", "cuda/9.1", False)],
)  # fmt: skip
def test_gpus_that_are_newer_than_cuda(gres: str, module: str, warned: bool) -> None:
    asked = ((Asked("gres", gres, "command line"),),)
    found = list(cuda(Submission("job.sh", f"#!/bin/sh\nmodule load {module}\n", components=asked)))
    assert [one.level for one in found] == ["warning"] * warned


def test_the_first_line_is_read_through_env() -> None:
    assert interpreter("#!/usr/bin/env bash\n") == ("bash",)
    assert interpreter("#! /bin/bash -e\n") == ("/bin/bash", "-e")


@settings(max_examples=examples(300), deadline=None)
@given(st.text(st.sampled_from("ab $'\"\\\n`(){}<>|&;=#*[]-1ifdonesacexit "), max_size=80))
def test_any_text_is_read_or_given_up(text: str) -> None:
    with contextlib.suppress(UnreadableError):
        list(tokens(text))
    read(text)


@pytest.mark.slow
def test_a_huge_script_is_read_in_no_time() -> None:
    for text in (
        "a" * 1_000_000,
        "$(" * 100_000,
        "(" * 100_000,
        "a && " * 100_000,
        "x=$y;" * 50_000,
        "<<E\n" * 20_000,
    ):
        assert isinstance(read(text), tuple)
