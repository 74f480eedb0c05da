"""An ordinary run on a real Slurm, submitted by gsub: its steps become a point of the curve that was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiler.records import new_id
from site_configs.devcluster import Cluster
from tests.slurm.decide.test_curves import DELIVER, healthy
from tests.unit.gsub.train.running import HELPER
from tests.waiting import wait_until

TRAIN = """\
import time
import gsub_train
gsub_train._FIRST_TOLD, gsub_train._PACE_OF_RUN, gsub_train._LAST_WORD = 1.0, 0.2, 30.0
begun = time.monotonic()
for number in range(1, 400):
    time.sleep(max(begun + number * 0.05 - time.monotonic(), 0))  # 20 in a second, whatever else runs here
    gsub_train.step()
"""
SCRIPT = """\
#!/bin/bash
#SBATCH -N 1 -G 1 -J steps-1 -o /dev/null
sbatch -N 1 -G 1 -o /dev/null --wrap 'exec python3 train.py'
exec python3 train.py
"""


@pytest.fixture
def folder(enforcing: Cluster, clean: Cluster, user: str | None) -> Path:
    work = clean.home(user) / "runs"
    clean.run(["mkdir", "-p", str(work)], user=user, check=True)
    for name, text in (
        ("curves.sh", SCRIPT),
        ("train.py", TRAIN),
        ("gsub_train.py", HELPER.read_text()),
    ):
        clean.run(["sh", "-c", f"cat > {name}"], user=user, cwd=work, input=text, check=True)
    return work


def test_an_ordinary_run_is_one_more_point(enforcing: Cluster, folder: Path, user: str | None) -> None:
    state = {"XDG_STATE_HOME": str(folder / f"state-{new_id()}")}

    def run(*words: str) -> str:
        line = " ".join(f"{name}={text}" for name, text in state.items())
        words = ("sh", "-ec", f"export {line}; {' '.join(words)}")
        return enforcing.run(words, user=user, cwd=folder, check=True).stdout

    def curves(name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(run("gsub learn --show --json"))["curves"]
        return [one for one in found if name in (one["workload"], *one.get("also", ()))]

    wait_until(lambda: healthy(enforcing))
    # What a learning run would have told of a loop that makes 20 steps a second from 11 CPUs on
    deliver = DELIVER.replace("min(cpus, 11.4)", "min(cpus, 11.4) / 11.4 * 20")
    learnt = new_id()
    told = ["python3", "-c", deliver, learnt]
    wait_until(lambda: "is with" in enforcing.run(told, user=user, cwd=folder, check=True).stdout)
    held = "sbatch -H --parsable curves.sh --lr 0.1"
    # Decisions hear of it a second or two later, and a run that was given fewer CPUs contradicts the curve
    wait_until(lambda: "gpu:12" in run(f"number=$({held}); scontrol show job $number; scancel $number"))
    job = run("gsub --parsable --no-preflight curves.sh --lr 0.1").strip()
    mark = json.loads(run(f"cat $XDG_STATE_HOME/gsub/runs/*/{job}.json"))
    (before,) = curves(mark["workload"][0])
    wait_until(lambda: not run("squeue --me --noheader").strip())
    # The job that it submitted itself has its variables, and is not gsub's
    assert run("ls $XDG_STATE_HOME/gsub/runs/*").count(".run") == 1

    def refined() -> dict[str, Any] | None:
        """The curve with one more run; a service that is busy may have to be asked again."""
        run("rm -f $XDG_STATE_HOME/gsub/points/.tried")
        (found,) = curves(mark["workload"][0])
        return found if found["runs"] == 2 else None

    after = wait_until(refined, 180.0)
    assert (after["gpu_type"], after["knee"]) == ("a100", before["knee"]), after
    (point,) = [one for one in after["measured"] if one not in before["measured"]]
    assert point["cpus"] == 12
    assert point["rate"] == pytest.approx(20, rel=0.1) and point["error"] > 0.05 * point["rate"]
    assert run("ls $XDG_STATE_HOME/gsub/runs/*").split() == [f"{job}.json"]
