"""The driver and the real lever in a job of a real Slurm, over tasks that `srun` starts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster
from tests.slurm.smoke.running import Site
from tests.unit.gsub.train.running import HELPER

TASK = """\
import os, sys, time
import gsub_train
least, most = 99, 0
while True:
    until = time.process_time() + 0.01
    while time.process_time() < until:
        pass
    gsub_train.step()
    now = len(os.sched_getaffinity(0))
    if (min(least, now), max(most, now)) != (least, most):
        least, most = min(least, now), max(most, now)
        with open("seen-" + os.environ["SLURM_PROCID"], "w") as file:
            file.write(f"{least} {most}")
"""
LEARN = """\
#!/bin/bash
PYTHON -I - <<'EOF'
import json, os
from gsub.learning import Asked, learn_here
from profiler.sensitivity import Budget
budget = Budget(points=4, seconds=60, each=0.6, longest=3, steps=8, settling=0.1)
said = []
found = learn_here(Asked(("srun", "-n2", "python3", "task.py"), budget=budget), os.environ, said.append)
points = [point.cpus for point in found.driver.points]
print(json.dumps({"points": points, "code": found.code, "said": said, "source": found.driver.source}))
EOF
squeue --steps --noheader --jobs=$SLURM_JOB_ID --format=%i > steps
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_tasks_of_srun_are_narrowed_counted_and_ended(clean: Cluster, user: str | None) -> None:
    site = Site(clean, user)
    site.file("gsub_train.py", Path(HELPER).read_text())
    site.file("task.py", TASK)
    script = LEARN.replace("PYTHON", str(clean.paths.venv / "bin/python"))
    job = site.sbatch("-N1", "-n2", "--output=out", script=script)
    site.until(job, "JobState=COMPLETED")
    found = json.loads((site.work / "out").read_text().splitlines()[-1])
    assert found["source"] == "counter", found
    assert 1 in found["points"], found
    assert [(site.work / f"seen-{rank}").read_text().split()[0] for rank in (0, 1)] == ["1", "1"], found
    assert "0" not in [step.rpartition(".")[2].strip() for step in (site.work / "steps").read_text().split()]
