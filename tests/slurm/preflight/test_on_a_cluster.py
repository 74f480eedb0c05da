"""What Slurm itself does with what preflight calls an error: jobs that never start, and steps that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from gsub.argv import split
from gsub.preflight.limits import limits
from gsub.preflight.look import submission
from gsub.preflight.shape import shape
from gsub.preflight.values import Submission
from gsub.sbatch_options import Table
from site_configs.devcluster import Cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.all_releases

STEPS = (
    "srun -N4 true",
    "srun --gpus-per-node=8 true",
    "srun --gpus=16 true",
    "srun -n2 --ntasks-per-node=1 --gpus-per-task=8 true",
)
ALLOCATE = ["salloc", "-Q", "-N2", "--gpus-per-node=4", "--ntasks-per-node=4"]
HEAD = "#!/bin/bash\n#SBATCH -N2\n#SBATCH --gpus-per-node=4\n#SBATCH --ntasks-per-node=4\n"


def as_submitted(text: str, environ: dict[str, str]) -> Submission:
    return submission(split(["job.sh"], Table.of_all()), text, environ)


def sbatch(cluster: Cluster, text: str, user: str | None, *words: str) -> str:
    done = cluster.run(
        ["sbatch", "--parsable", "--output=/dev/null", *words], user=user, input=text, check=True
    )
    return done.stdout.strip().partition(";")[0]


def queue(cluster: Cluster, job: str) -> list[str]:
    return cluster.run(["squeue", "-h", "-j", job, "-o", "%T %r"], check=True).stdout.split()


def test_a_time_limit_beyond_the_partitions_is_accepted_and_never_starts(
    clean: Cluster, user: str | None, tmp_path: Path
) -> None:
    text = "#!/bin/bash\n#SBATCH -p debug\n#SBATCH -t 1:00:00\ntrue\n"
    job = sbatch(clean, text, user)
    wait_until(lambda: queue(clean, job) == ["PENDING", "PartitionTimeLimit"], message="Slurm's reason")
    asked = {
        "scontrol": ["-o", "show", "partition", "debug"],
        "sacctmgr": ["-nP", "show", "qos", "format=flags"],
    }
    for program, words in asked.items():  # what the cluster says, which may live in a chroot
        said_here = clean.run([program, *words])
        (tmp_path / f"{program}.out").write_text(said_here.stdout + said_here.stderr)
        (tmp_path / program).write_text(
            f"#!/bin/sh\ncat {tmp_path}/{program}.out\nexit {said_here.returncode}\n"
        )
        (tmp_path / program).chmod(0o755)
    found = list(limits(as_submitted(text, {"PATH": f"{tmp_path}:/usr/bin:/bin", "GSUB_SITE": ""})))
    assert [(one.level, one.line) for one in found] == [("error", 3)], found


def test_steps_larger_than_their_job_are_refused(clean: Cluster, user: str | None) -> None:
    for step in STEPS:
        found = list(shape(as_submitted(f"{HEAD}{step}\n", {})))
        assert [one.level for one in found] == ["error"], step
    lines = "".join(f"timeout 20 {step}; echo code $?\n" for step in STEPS)
    done = clean.run([*ALLOCATE, "bash", "-c", lines], user=user)
    codes = [line for line in done.stdout.splitlines() if line.startswith("code ")]
    assert len(codes) == len(STEPS) and not {"code 0", "code 124"} & set(codes), done
