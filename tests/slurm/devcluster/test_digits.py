"""The example job: how its ranks meet, what they compute, what they say when one is lost; a run on Slurm."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster
from tests.unit.examples.test_digits import EPOCH, EXAMPLE, FINAL
from tests.waiting import wait_until


@pytest.fixture
def folder(cluster: Cluster) -> Iterator[Path]:
    """A copy of the example where the cluster's user can write."""
    where = cluster.home(user_of(cluster)) / "digits"
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(EXAMPLE, where, ignore=shutil.ignore_patterns("__pycache__", "*.out"))
    if user := user_of(cluster):
        for path in (where, *where.rglob("*")):
            shutil.chown(path, user)
    yield where
    shutil.rmtree(where)


def user_of(cluster: Cluster) -> str | None:
    return next(iter(cluster.users), None)


def submit(cluster: Cluster, folder: Path, *args: str, **env: str) -> tuple[str, str]:
    """State and output of train.sh, run as a job to its end."""
    user = user_of(cluster)
    sent = cluster.run(["sbatch", "--parsable", "train.sh", *args], user=user, cwd=folder, env=env)
    assert sent.returncode == 0, sent.stderr
    job = sent.stdout.strip()

    def ended() -> str | None:
        shown = cluster.run(["scontrol", "show", "job", job], check=True).stdout
        state: str = re.findall(r"JobState=(\w+)", shown)[0]
        return state if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING") else None

    # `sbatch --wait` looks every half minute
    return wait_until(ended, message=f"the end of job {job}"), (folder / f"digits-{job}.out").read_text()


@pytest.mark.slurm
def test_the_job_trains_on_two_nodes(cluster: Cluster, folder: Path) -> None:
    state, out = submit(cluster, folder, "--epochs", "12", "--min-accuracy", "0.9")
    assert state == "COMPLETED", out
    [(accuracy, size, nodes)] = FINAL.findall(out)
    assert float(accuracy) > 0.9
    assert (size, nodes) == ("4", "2")
    assert [int(epoch) for epoch, *_ in EPOCH.findall(out)] == list(range(1, 13))
    places = re.findall(r"(?m)^rank (\d) of 4: node (\S+), local rank (\d), GPU (\d)$", out)
    assert {rank for rank, *_ in places} == set("0123")
    gpus: dict[str, set[str]] = {}
    for _, node, _, gpu in places:
        gpus.setdefault(node, set()).add(gpu)
    assert [len(on_node) for on_node in gpus.values()] == [2, 2], (
        "two nodes, and a GPU of its own for each rank"
    )
    assert len(out.splitlines()) == 4 + 12 + 1, "nothing else is said, no warning of srun's"
    assert not list(folder.glob(".digits-*"))


@pytest.mark.slurm
def test_a_rank_that_fails_ends_the_job_and_shows_why(cluster: Cluster, folder: Path) -> None:
    broken = folder / "python"
    lines = [
        "#!/bin/sh",
        '[ "$SLURM_PROCID" != 2 ] || { echo "no GPU today" >&2; exit 7; }',
        'exec python3 "$@"',
    ]
    broken.write_text("\n".join(lines) + "\n")
    broken.chmod(0o755)
    began = time.monotonic()
    state, out = submit(cluster, folder, PYTHON="./python")
    assert state == "FAILED"
    assert time.monotonic() - began < 45, "the others did not wait until their time-out of 60 s"
    assert "no GPU today" in out
    assert re.search(r"srun: error: \w+: task 2: Exited with exit code 7", out)
    assert "epoch" not in out
