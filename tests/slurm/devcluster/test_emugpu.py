"""The helper with which a training script drives its emulated GPUs."""

from __future__ import annotations

import json

import pytest

from site_configs.devcluster import Cluster

_PRINT = "from site_configs.devcluster import emugpu; print(*emugpu.gpus_of_this_process(), sep=',')"


@pytest.mark.all_releases
@pytest.mark.parametrize(
    ("options", "shares"),
    [
        (["-n1", "--gpus=3"], ["0,1,2"]),
        (["-n4", "--gpus=4"], ["0", "1", "2", "3"]),
        (["-n2", "--gpus-per-task=2"], ["0,1", "2,3"]),
        (["-n2", "--gpus=4", "--gpu-bind=single:1"], ["0", "1"]),
        (["-n2", "--gpus=4", "--gpu-bind=map_gpu:2,3"], ["2", "3"]),
        (["-n3", "--gpus=1"], ["0", "0", "0"]),
    ],
)
def test_tasks_of_a_real_step_share_its_gpus(cluster: Cluster, options: list[str], shares: list[str]) -> None:
    argv = ["srun", "-N1", "--exclusive", *options, "python3", "-c", _PRINT]
    done = cluster.run(argv, timeout=60, check=True)
    assert sorted(done.stdout.split()) == shares


_LOAD = """
import json, subprocess, sys
from site_configs.devcluster import emugpu
with emugpu.load(util=85, memory_mib=4000):
    argv = [sys.executable, "-m", "profiler.sampler", "--seconds", "1", "--interval", "0.2", "--json"]
    report = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
seen = ("utilisation_mean", "memory_peak_bytes")
# srun cuts the lines of its tasks at 1024 bytes and mixes the pieces
print(json.dumps({**report, "gpus": [[gpu[key] for key in seen] for gpu in report["gpus"]]}))
"""


def test_a_jobs_load_shows_in_nvml_on_its_node_and_gpus_alone(cluster: Cluster) -> None:
    user = cluster.users[0] if cluster.users else None
    argv = ["srun", "-N2", "-n2", "--gpus-per-node=2", "--exclusive", "python3", "-c", _LOAD]
    done = cluster.run(argv, timeout=60, check=True, user=user)
    reports = [json.loads(line) for line in done.stdout.splitlines() if line]
    assert len({report["node"] for report in reports}) == 2
    for report in reports:
        assert report["state"] == "ok"
        assert [use for use, _ in report["gpus"]] == [85, 85, 0, 0, 0, 0, 0, 0]
        assert [peak // 2**20 for _, peak in report["gpus"][:3]] == [4000, 4000, 0]
