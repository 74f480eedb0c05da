"""What gsub-act runs of Slurm's commands, and what it reads in their answers."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

import pytest

from slurm_plugins.act.slurm import Commands, Whom
from slurm_plugins.client.errors import NoSuchJob, SlurmRefused, SlurmUnreachable
from slurm_plugins.client.states import JobState
from tests.paths import REPOSITORY
from tests.unit.slurm_plugins.client.recording import RELEASES

ANSWER = """\
#!{python} -B
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.unit.slurm_plugins.client.recording import Replay
if "--jobs=5_1" in sys.argv:
    sys.exit("slurm_load_jobs error: Invalid job id specified")
done = Replay({release!r}, "job", "jobs")([Path(sys.argv[0]).name, *sys.argv[1:]])
print(done.stdout, end="")
sys.exit(done.returncode)
"""
SHOWN = "JobId={job} JobName=a NumNodes=1 {memory} MinTmpDiskNode=0 Features=(null)\n"


def commands(folder: Path, **texts: str) -> Commands:
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    return Commands(lambda: env, Whom(890, "gsub-act"))


def recorded(folder: Path, release: str) -> Commands:
    text = ANSWER.format(python=sys.executable, root=str(REPOSITORY), release=release)
    return commands(folder, squeue=text, sinfo=text, scontrol=text, sbatch=text)


@pytest.mark.parametrize("release", RELEASES)
def test_a_job_is_read_as_this_release_shows_it(tmp_path: Path, release: str) -> None:
    slurm = recorded(tmp_path, release)
    job = slurm.job("1", number=1)
    assert (job.shown_id, job.state) == ("1", JobState.RUNNING)
    assert slurm.job("1") == job
    assert slurm.jobs(["1"])[0].shown_id == "1"
    assert slurm.begun("1")


def test_a_number_that_is_another_jobs_is_not_taken_for_it(tmp_path: Path) -> None:
    """A task that was not split off yet has its array's number, and Slurm gives numbers out anew."""
    slurm = recorded(tmp_path, RELEASES[0])
    assert slurm.job("1", number=1).id == 1
    with pytest.raises(NoSuchJob):
        slurm.job("5_1", number=1)


def test_an_action_is_the_command_as_it_stands(tmp_path: Path) -> None:
    slurm = commands(tmp_path, scontrol=f'#!/bin/sh\necho "$0 $*" > {tmp_path}/ran\n')
    slurm.act(["scontrol", "uhold", "7"])
    assert (tmp_path / "ran").read_text() == f"{tmp_path}/scontrol uhold 7\n"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("Access/permission denied for job 7", SlurmRefused),
        ("Unable to contact slurm controller (connect failure)", SlurmUnreachable),
    ],
)
def test_what_slurm_refuses_is_raised(tmp_path: Path, said: str, error: type[Exception]) -> None:
    slurm = commands(tmp_path, scontrol=f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    with pytest.raises(error, match=said.partition(" (")[0]):
        slurm.act(["scontrol", "uhold", "7"])


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ("MinMemoryNode=4000M", {"MinMemoryNode": 4000}),
        ("MinMemoryNode=1.50G", {"MinMemoryNode": 1536}),
        ("MinMemoryCPU=2T", {"MinMemoryCPU": 2 << 20}),
        ("MinMemoryNode=0", {}),
        ("XMinMemoryNode=4M", {}),
    ],
)
def test_the_memory_that_a_job_asks_for_in_mib(tmp_path: Path, memory: str, expected: dict[str, int]) -> None:
    shown = SHOWN.format(job=7, memory=memory)
    slurm = commands(
        tmp_path, scontrol=f"#!/bin/sh\n[ \"$*\" = '--oneliner show job 7' ] && echo '{shown}'\n"
    )
    assert slurm.memory("7") == expected


def test_who_we_are_is_the_user_of_this_process() -> None:
    found = Whom.us(as_slurm_user=True)
    assert found == Whom(os.geteuid(), pwd.getpwuid(os.geteuid()).pw_name, as_slurm_user=True)
    assert not Whom.us().as_slurm_user
