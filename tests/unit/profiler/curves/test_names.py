"""What gsub stores points under is what a decision looks up: the same names on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from gsub import workload_name
from gsub.argv import split
from gsub.decide import components
from gsub.errors import UserError
from gsub.explanation import Explanation
from gsub.explanation_view import facts, lines
from gsub.sbatch_options import Table
from gsub.workload_name import identified, with_workload
from site_configs.site_model import Site
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.knowledge import LIKE_BYTES, TOLD, names
from slurm_plugins.decide.request import HEAD_BYTES, Job, Request

PLAIN = (
    b"#!/bin/bash\n#SBATCH -G 1 -J resnet-7\nmodule load cuda\nsrun python train.py --seed 7 --out runs/7\n"
)
SHELL = {"HOME": "/home/ada", "USER": "ada", "VIRTUAL_ENV": "/opt/torch", "OMP_NUM_THREADS": "4"}


def asked(words: str, script: bytes, environ: dict[str, str]) -> tuple[tuple[str, ...], Request]:
    """The names that points of such a run get, and the question that Slurm's plugin would ask about it."""
    line = split(words.split(), Table.of_all())
    sent = with_workload(line, script, environ)
    (part,) = components(line, script, sent, (24, 11), uid=1000)
    return identified(line, script, environ).fingerprints, part.request


SAME = {
    "a script with arguments": ("-G 1 train.sh --lr 0.1", PLAIN, SHELL),
    "without a name of its own": ("-G 1 train.sh", b"#!/bin/sh\npython train.py\n", SHELL),
    "named on the command line": ("-G 1 -J other-3 train.sh", PLAIN, SHELL),
    "longer than what travels along": (
        "-G 1 train.sh 5",
        PLAIN + b"echo \xc3\xa4\xc3\xb6\xc3\xbc\n" * 9000,
        SHELL,
    ),
    "a text that is no UTF-8": ("-G 1 train.sh", PLAIN + b"echo \xff\xfe\n", SHELL),
    "by its own name": ("-G 1 --workload=My-ResNet train.sh", PLAIN, SHELL),
    "by its own name in the shell": ("-G 1 train.sh", PLAIN, SHELL | {"GSUB_WORKLOAD": "My ResNet"}),
    "by its own name in the comment": ("-G 1 --comment=x,gsub:workload=Mine train.sh", PLAIN, SHELL),
    "wrapped": (
        "-G 1 --wrap=python",
        b"#!/bin/sh\n# This script was created by sbatch --wrap.\n\npython\n",
        SHELL,
    ),
    "comments alone": ("-G 1 train.sh", b"#!/bin/sh\n#SBATCH -t 5\n", SHELL),
}


@pytest.mark.parametrize("case", SAME)
def test_both_sides_have_the_same_names(case: str) -> None:
    stored, request = asked(*SAME[case])
    assert stored and names(request) == stored


def test_arguments_and_environment_tell_runs_apart_where_gsub_submits() -> None:
    one, first = asked("-G 1 train.sh --lr 0.1", PLAIN, SHELL)
    other, second = asked("-G 1 train.sh --lr 0.2", PLAIN, SHELL)
    assert one[:2] != other[:2] and one[2:] == other[2:]
    assert names(first)[0] == one[0] != names(second)[0]
    plain = names(Request(id=1, uid=1000, job=first.job, script_head=first.script_head))
    assert plain == one[2:]  # by plain sbatch


def test_what_is_told_holds_nothing_of_the_arguments() -> None:
    line = split(["-G", "1", "train.sh", "--api-key", "s3cr3t"], Table.of_all())
    told = with_workload(line, PLAIN, SHELL)["GSUB_WORKLOAD"]
    assert TOLD.fullmatch(told)


def test_a_job_that_submits_another_does_not_name_it() -> None:
    outer = with_workload(split(["-G1", "outer.sh"], Table.of_all()), PLAIN, SHELL)
    inside = outer | {"SLURM_JOB_ID": "77"}
    inner = PLAIN.replace(b"train.py", b"evaluate.py")
    stored, request = asked("-G 1 inner.sh", inner, inside)
    assert names(request) == stored
    by_sbatch = Request(
        id=1,
        uid=1,
        job=request.job,
        env={"GSUB_WORKLOAD": outer["GSUB_WORKLOAD"]},
        script_head=inner.decode(),
    )
    assert names(by_sbatch) == stored[2:]
    stored, _ = asked("-G 1 inner.sh", inner, inside | {"GSUB_WORKLOAD": "outers-own"})
    assert not stored[0].startswith("own:")


def test_a_smoke_job_is_nobody(tmp_path: Path) -> None:
    from gsub.smoke.plan import Plan
    from gsub.smoke.submission import batch_script

    script = batch_script(Plan(script=PLAIN, name="train.sh", cwd=str(tmp_path), mode="race", seconds=60))
    _, request = asked("-G 1 train.sh", PLAIN, SHELL)
    smoke = Request(
        id=1, uid=1, job=request.job, env={"GSUB_WORKLOAD": "resnet"}, script_head=script.decode()
    )
    assert names(smoke) == ()


@pytest.mark.parametrize("word", ["--workload", "--workload=", "--workload=\t", "--workload=run:" + "0" * 32])
def test_a_name_that_is_none(word: str) -> None:
    with pytest.raises(UserError, match="name of your own"):
        identified(split([word, "train.sh"], Table.of_all()), PLAIN, SHELL)


def test_a_long_script_is_not_read_word_by_word_while_slurmctld_waits() -> None:
    long = PLAIN.decode() + "echo\n" * LIKE_BYTES
    by_sbatch = Request(id=1, uid=1, job=Job(name="x"), script_head=long, script_bytes=len(long))
    assert [name.partition(":")[0] for name in names(by_sbatch)] == ["script", "text"]
    stored, by_gsub = asked("-G 1 train.sh", long.encode(), SHELL)
    assert names(by_gsub)[-1] == stored[-1] and stored[-1].startswith("like:")


def test_as_much_of_a_script_counts_here_as_there() -> None:
    assert workload_name.HEAD_BYTES == HEAD_BYTES


def test_explain_shows_what_a_job_is_known_as_and_what_does_not_count() -> None:
    words = ["-G1", "train.sh", "--lr", "0.1", "--out", "runs/\x1b[31m7"]
    line = split(words, Table.of_all())
    found = Explanation(
        line, "train.sh", (), Context(Site(cluster="lab")), workload=identified(line, PLAIN, SHELL)
    )
    (shown,) = [text for text in lines(found) if text.strip().startswith("workload")]
    assert "run:" in shown and "--seed 7 (a seed)" in shown and "\x1b" not in shown
    told = facts(found)["workload"]
    assert told["names"][0].startswith("run:") and {"text": "--seed 7", "why": "a seed"} in told["left_out"]
    own = split(["--workload=mine", *words], Table.of_all())
    found = Explanation(own, "train.sh", (), found.context, workload=identified(own, PLAIN, SHELL))
    assert "own:mine, as you name it" in "\n".join(lines(found))
