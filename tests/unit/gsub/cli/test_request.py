"""The question about a submission that is made here is the one that the shim asks: against recordings of each release,
and against the running ones.
"""

from __future__ import annotations

import re
from collections.abc import Set
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsub.argv import split
from gsub.decide import WISHES, components, wants_gpu
from gsub.errors import UserError
from gsub.notations import FOREVER, NotationError, mebibytes, minutes, nodes, seconds
from gsub.sbatch_options import Table
from gsub.script_text import wrapped
from slurm_plugins.decide.request import HEAD_BYTES, Job, Request
from slurm_plugins.decide.steps import ENV_NAMES
from tests.paths import REPOSITORY
from tests.slurm.cli.drive import Case
from tests.slurm.cli.listening import essence
from tests.slurm.cli.record_requests import PLAIN, Recording
from tests.unit.gsub.cli.request_lines import cases

RELEASES = ("22.05", "24.11", "26.05")


def made(case: Case, release: str, scripts: dict[str, str], uid: int = 1000) -> list[Request]:
    """The questions that we make about a command line: those that the shim would ask."""
    line = split(case.words, Table.of_all())
    if line.wrap is not None:
        script = wrapped(line.wrap)
    else:
        script = (scripts[Path(line.script).name] if line.script else case.stdin).encode()
    year, month = release.split(".")
    found = components(line, script, dict(case.env), (int(year), int(month)), uid=uid)
    return [one.request for one in found if wants_gpu(one.request.job) and not one.request.opted_out]


def differences(ours: list[Request], asked: list[dict[str, Any]], names: Set[str]) -> list[object]:
    """Fields and variables that differ, ours first."""
    if len(ours) != len(asked):
        return [f"{len(ours)} questions made, {len(asked)} asked"]
    found: list[object] = []
    for one, two in zip(map(essence, ours), asked, strict=True):
        one["env"], two = _only(one["env"], names), two | {"env": _only(two["env"], names)}
        for part in ("job", "env"):
            keys = sorted(one[part].keys() | two[part].keys())
            found += [
                (k, one[part].get(k), two[part].get(k)) for k in keys if one[part].get(k) != two[part].get(k)
            ]
        plain = [k for k in ("batch", "script_bytes", "script_head") if k in two]
        found += [(k, one[k], two[k]) for k in plain if one[k] != two[k]]
    return found


def _only(env: dict[str, str], names: Set[str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name in names}


# --- recorded -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_questions_are_those_that_were_recorded(release):
    recording = Recording(release)
    names = (ENV_NAMES | WISHES) & set(recording.env_names)
    wrong = []
    compared = refused = 0
    for case, asked in zip(cases(), recording.answers, strict=True):
        try:
            ours = made(case, release, {"plain.sh": PLAIN})
        except UserError as error:
            assert not asked, f"{case.words}: {error.why}"
            refused += 1
            continue
        # what sbatch refuses we need not, but no question was asked that we do not make
        if asked is not None and (differ := differences(ours, asked, names)):
            wrong.append((case.env, case.words, differ))
        compared += asked is not None
    assert not wrong
    assert compared > 150 and refused > 15
    # nearly all that sbatch refuses is told here too
    assert refused >= 0.8 * sum(asked is None for asked in recording.answers)


# --- what belongs to it ---------------------------------------------------------------------------------------------


def question(*words: str, script: str = "#!/bin/sh\n", **environ: str) -> Request:
    found = components(split(words, Table.of_all()), script.encode(), environ, (24, 11), uid=1000)
    return found[0].request


@pytest.mark.parametrize(
    ("job", "wanted"),
    [
        ({"tres_per_job": "gres:gpu:4"}, True),
        ({"tres_per_node": "gres/gpu:a100:4"}, True),
        ({"tres_per_node": "gres/gpu"}, True),
        ({"tres_per_task": "cpu=2,gres/gpu=1"}, True),
        ({"tres_per_socket": "gres:gpu:1"}, True),
        ({"ntasks_per_tres": 2}, True),
        ({}, False),
        ({"tres_per_task": "cpu=2"}, False),
        ({"tres_per_node": "gres/mps:100"}, False),
        ({"tres_per_node": "gres/gpufs:1"}, False),
    ],
)
def test_jobs_without_gpus_are_not_asked_about(job, wanted):
    assert wants_gpu(Job(**job)) is wanted


def test_wishes_are_those_that_the_shim_reads():
    told = (REPOSITORY / "slurm_plugins/lua/tables.lua").read_text()
    listed = re.search(r"M\.ENV_NAMES = \{(.*?)\n\}", told, re.DOTALL)
    assert listed and set(re.findall(r'"(\w+)"', listed[1])) == WISHES | ENV_NAMES


def test_an_option_of_another_release_is_refused():
    with pytest.raises(UserError, match="no such option: --segment"):
        components(split(["--segment=2", "t.sh"], Table.of_all()), b"#!/bin/sh\n", {}, (22, 5), uid=1)


@pytest.mark.parametrize(
    "words",
    [("--nodefile=x",), ("-m", "arbitrary", "-w", "n1"), ("-w", "./nodes"), ("-n1", "--gpus-per-task=a100")],
)
def test_what_is_not_read_here_is_not_guessed(words):
    with pytest.raises(UserError) as error:
        question("-G1", *words, "t.sh")
    assert "not read here" in error.value.why and error.value.exit_code == 2


def test_options_of_other_batch_systems_are_not_overlooked():
    script = "#!/bin/sh\n#BSUB -n 4\n#SBATCH -G 16\n"
    with pytest.raises(UserError, match="cannot be explained") as error:
        question("t.sh", script=script)
    assert (
        error.value.why == "PBS and LSF options are not read here: #BSUB -n 4" and error.value.exit_code == 2
    )
    for left_out in (
        question("--ignore-pbs", "t.sh", script=script),
        question("t.sh", script=script, SBATCH_IGNORE_PBS="1"),
    ):
        assert left_out.job.tres_per_job == "gres/gpu:16" and left_out.job.num_tasks is None


def test_long_texts_travel_cut_and_named():
    asked = question("-G1", "--comment", "é" * 3000, "t.sh", GSUB_REPACK="y" * 2000)
    assert asked.job.comment == "é" * 2048
    assert asked.env["GSUB_REPACK"] == "y" * 1024
    assert set(asked.cut) == {"comment", "env.GSUB_REPACK"}


def test_the_head_of_a_long_script_travels():
    script = "#!/bin/sh\n" + "é" * HEAD_BYTES
    asked = question("-G1", "t.sh", script=script)
    assert asked.script_bytes == len(script.encode())
    assert len(asked.script_head.encode()) == HEAD_BYTES and script.startswith(asked.script_head)
    odd = question("-G1", "t.sh", script="#" + script)
    assert len(odd.script_head.encode()) == HEAD_BYTES - 1  # no half character


def test_bytes_that_are_no_text_are_replaced():
    asked = question("-G1", "--comment", "a\udcffb", "t.sh")
    assert asked.job.comment == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize("text", ["", "x", "-5", "1:2:3:4", "1-2-3", "5:", "1.5"])
def test_no_time(text):
    with pytest.raises(NotationError):
        seconds(text)


@pytest.mark.parametrize("text", ["", "x", "4.5G", "-1", "4X", "G"])
def test_no_size(text):
    with pytest.raises(NotationError):
        mebibytes(text)


@pytest.mark.parametrize("text", ["", "two", "2-", "4-2", "2,4", "1-5:2", "-1"])
def test_no_nodes(text):
    with pytest.raises(NotationError):
        nodes(text)


@given(st.integers(0, 99), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_all_forms_of_a_time_say_the_same(days, hours, mins, secs):
    total = ((days * 24 + hours) * 60 + mins) * 60 + secs
    assert seconds(f"{days}-{hours}:{mins}:{secs}") == total
    assert seconds(f"{days * 24 + hours}:{mins:02}:{secs:02}") == total
    assert seconds(f"{(days * 24 + hours) * 60 + mins}:{secs}") == total
    assert minutes(f"{days}-{hours}:{mins}:{secs}") == (-(-total // 60) or FOREVER)


# --- the running releases -------------------------------------------------------------------------------------------


