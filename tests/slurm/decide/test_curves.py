"""What a user's run measured is what that user's next job gets, on a real Slurm; others' jobs get what they got."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest

from profiler.records import new_id
from site_configs.devcluster import Cluster
from tests.waiting import wait_until

SCRIPT = "#!/bin/bash\n#SBATCH -G 1 -J resnet-1 -o /dev/null\nexec python train.py $@\n"
DELIVER = """
import os, sys, time
from gsub.argv import split
from gsub.points import deliver
from gsub.sbatch_options import Table
from gsub.site import read_site
from gsub.workload_name import identified
from profiler.curves import Point
from profiler.points import Measured

line = split(["curves.sh", "--lr", "0.1"], Table.of_all())
names = identified(line, open("curves.sh", "rb").read(), os.environ).fingerprints
points = tuple(Point(cpus, min(cpus, 11.4), 0.03, 60, 10.0) for cpus in (24, 12, 6, 13, 10, 11))
where = read_site(os.environ).cluster  # homes are those of all clusters on this machine
run = Measured(sys.argv[1], time.time(), "learn", names, where, gpu_type="a100", cap=24, points=points)
print(deliver(run))
"""


@pytest.fixture
def folder(enforcing: Cluster, clean: Cluster, user: str | None) -> Path:
    home = clean.home(user)
    clean.run(["sh", "-ec", f"cat > {home}/curves.sh <<'END'\n{SCRIPT}END\n"], user=user, check=True)
    return home


def healthy(cluster: Cluster) -> bool:
    """Whether the keeper answers: it begins anew with each site file."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.ports.api}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def cpus(cluster: Cluster, folder: Path, user: str | None, *words: str) -> tuple[str, str]:
    """What a job got, held; and what was said at its submission."""
    done = cluster.run([*words, "curves.sh", "--lr", "0.1"], user=user, cwd=folder, check=True)
    shown = cluster.run(["scontrol", "show", "job", done.stdout.strip()], check=True).stdout
    found = re.search(r"CpusPerTres=\S*gpu:(\d+)", shown)
    return found[1] if found else "", done.stderr


def test_measured_points_are_the_next_jobs_cpus(enforcing: Cluster, folder: Path, user: str | None) -> None:
    by_gsub, by_sbatch = ("gsub", "-H", "--parsable", "--no-preflight"), ("sbatch", "-H", "--parsable")
    before, _ = cpus(enforcing, folder, user, *by_sbatch)
    assert before != "12"
    wait_until(lambda: healthy(enforcing))
    run = new_id()

    def delivered() -> bool:
        """Sent; a service that is busy may have to be asked again, and passes over a repeat."""
        sent = enforcing.run(["python3", "-c", DELIVER, run], user=user, cwd=folder, check=True)
        told = sent.stdout.strip()
        assert told == "what was measured is with gsub's service" or "it is kept" in told, told
        return "it is kept" not in told

    wait_until(delivered)
    wait_until(lambda: cpus(enforcing, folder, user, *by_gsub)[0] == "12")
    got, said = cpus(enforcing, folder, user, *by_sbatch)
    assert got == "12"
    assert "its throughput is at its best from 12 CPUs for each GPU on (measured in 1 run)" in said
    assert cpus(enforcing, folder, user, *by_gsub, "--workload=another")[0] == before
    explained = enforcing.run(["gsub", "explain", "curves.sh", "--lr", "0.1"], user=user, cwd=folder)
    assert "--cpus-per-gpu=12" in explained.stdout and "workload run:" in explained.stdout
    assert cpus(enforcing, folder, user, *by_sbatch, "--comment=gsub:sensitivity=share")[0] == before
    assert cpus(enforcing, folder, user, "env", "GSUB_SENSITIVITY=off", *by_sbatch)[0] == ""
    forget = ["gsub", "learn", "--forget", "curves.sh", "--lr", "0.1"]
    if enforcing.users[1:]:  # of whom nothing was measured, whatever the script
        theirs = ["gsub", "learn", "--forget", "--workload=run:"]
        assert enforcing.run(theirs, user=enforcing.users[1], cwd=Path("/tmp")).returncode == 1
        assert cpus(enforcing, folder, user, *by_gsub)[0] == "12"
    for other in enforcing.users[1:2]:
        enforcing.run(["sh", "-ec", f"cp {folder}/curves.sh /tmp/curves-of-{other}.sh"], check=True)
        done = enforcing.run(
            ["sbatch", "-H", "--parsable", f"/tmp/curves-of-{other}.sh"],
            user=other,
            cwd=Path("/tmp"),
            check=True,
        )
        shown = enforcing.run(["scontrol", "show", "job", done.stdout.strip()], check=True).stdout
        assert "gpu:12" not in shown
    forgotten = enforcing.run(forget, user=user, cwd=folder, check=True)
    assert re.fullmatch(r"forgotten: run:[0-9a-f]{32}, measured in 1 run\n", forgotten.stdout)
    wait_until(lambda: cpus(enforcing, folder, user, *by_gsub)[0] == before)
    assert enforcing.run(forget, user=user, cwd=folder).returncode == 1
