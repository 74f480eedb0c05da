"""The runner on a real Slurm: what it holds, when it leaves, what it never touches."""

from __future__ import annotations

import os
import re

import pytest

from site_configs.devcluster import Cluster
from tests.slurm.smoke.running import PATIENCE_S, Site
from tests.waiting import wait_until

BROKEN = "#!/bin/bash\nmkdir out\npython3 -c 'import einops_of_nobody'\n"
GOOD = "#!/bin/bash\nmkdir out || exit 3\necho mine > out/log\necho more >> kept\nsleep 60\n"


def running(cluster: Cluster, seconds: str) -> bool:
    """Whether a `sleep` of these seconds runs."""
    return f"sleep\0{seconds}\0" in cluster.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).stdout


@pytest.fixture
def site(clean: Cluster, user: str | None) -> Site:
    return Site(clean, user)


def test_a_sure_failure_holds_the_real_job_and_its_user_can_release_it(site: Site) -> None:
    real = site.sbatch("--begin=now+1hour", "-N1", script=GOOD)
    job = site.smoke(site.plan(BROKEN, mode="race", real=real))
    result = site.result(job)
    assert (result.outcome, result.reason, result.held) == ("failed", "import_error", True), site.said(job)
    assert "einops_of_nobody" in result.evidence[0].text
    assert "Reason=JobHeldUser" in site.shown(real)
    site.until(job, "JobState=FAILED")
    site.cluster.run(["scontrol", "release", str(real)], user=site.user, check=True)
    assert "Priority=0" not in site.shown(real)
    assert not (site.work / "out").exists() or result.kept == "none"


def test_it_leaves_when_the_real_job_has_started(site: Site) -> None:
    real = site.sbatch("-N1", script="#!/bin/sh\nsleep 100\n")
    site.until(real, "JobState=RUNNING")
    result = site.result(job := site.smoke(site.plan(BROKEN, mode="race", real=real)))
    assert result.outcome == "left" and not result.held, site.said(job)
    site.until(job, "JobState=COMPLETED")


def test_it_gives_way_to_a_real_job_that_lacks_nothing_but_its_gpu(site: Site) -> None:
    site.sbatch("-N7", "--gpus-per-node=8", "-t60", script="#!/bin/sh\nsleep 900\n")
    there = site.sbatch("-N1", "--gpus-per-node=7", "-t60", script="#!/bin/sh\nsleep 900\n")
    site.until(there, "JobState=RUNNING")
    real = site.sbatch("-N1", "--gpus-per-node=8", "-t60", script="#!/bin/sh\nsleep 100\n")
    job = site.smoke(
        site.plan("#!/bin/sh\ntrap '' TERM\nsleep 300 & wait; wait\n", mode="race", real=real, seconds=240)
    )
    found = re.search(r" BatchHost=(\S+)", site.until(job, "JobState=RUNNING"))
    assert found
    look = (
        f"import os; from gsub.smoke.real_job import Slurm; print(Slurm.here(os.environ).taken('{found[1]}'))"
    )
    python = str(site.cluster.paths.venv / "bin/python")
    assert site.cluster.run([python, "-Ic", look], user=site.user, check=True).stdout == "(8, 8)\n"
    site.until(real, "Reason=Resources")
    site.cluster.run(["scancel", str(there)], check=True)
    result = site.result(job)
    assert result.outcome == "left" and "waits for nothing but the GPU" in result.sentence, site.said(job)
    assert f"BatchHost={found[1]} " in site.until(real, "JobState=RUNNING")


def test_a_gate_that_fails_at_once_holds_a_job_that_comes_after_it(site: Site) -> None:
    job = site.smoke(site.plan("#!/bin/sh\npython3 -c 'import einops_of_nobody'\n", mode="gate"))
    real = site.sbatch(f"--dependency=afterany:{job}", "-N1", "--array=0-3", script=GOOD)
    result = site.result(job)
    assert result.outcome == "failed" and result.dependants == (real,), site.said(job)
    site.until(job, "JobState=FAILED")
    assert "JobState=PENDING" in site.shown(real) and "Priority=0" in site.shown(real)


def test_what_it_writes_and_what_runs_on_is_gone_with_it(site: Site) -> None:
    site.file("kept", "mine\n")
    far = site.file("../far/kept", "mine\n")
    script = f"#!/bin/bash\nsetsid sleep 4321 &\necho more >> {far}\n" + GOOD.split("\n", 1)[1]
    result = site.result(job := site.smoke(site.plan(script, seconds=3.0)))
    assert result.outcome == "passed", site.said(job)
    assert {path.rsplit("/", 1)[1] for path in result.changed} >= {"kept", "log"}
    if result.kept == "overlay":
        assert (site.work / "kept").read_text() == "mine\n"
        assert not (site.work / "out").exists()
        assert far.read_text() == "mine\n"
    site.until(job, "JobState=COMPLETED")
    assert not running(site.cluster, "4321")


def test_a_cancelled_smoke_job_says_nothing_against_the_real_one(site: Site) -> None:
    real = site.sbatch("--begin=now+1hour", "-N1", script=GOOD)
    script = "#!/bin/sh\ntrap '' TERM; sleep 65.4321; exit 1\n"
    job = site.smoke(site.plan(script, mode="race", real=real, seconds=60.0))
    site.until(job, "JobState=RUNNING")
    wait_until(lambda: running(site.cluster, "65.4321"), PATIENCE_S, "the script to begin")
    site.cluster.run(["scancel", str(job)], user=site.user, check=True)
    assert site.result(job).outcome == "inconclusive", site.said(job)
    assert "Priority=0" not in site.shown(real)


def test_a_step_that_wants_two_nodes_is_no_failure(site: Site) -> None:
    script = "#!/bin/bash\nsrun -N2 -n2 python3 train.py\n"
    result = site.result(job := site.smoke(site.plan(script, mode="only")))
    assert result.outcome == "inconclusive", site.said(job)


@pytest.mark.all_releases
def test_steps_of_srun_write_where_their_script_does(site: Site) -> None:
    site.file("kept", "mine\n")
    site.file(
        "train.py",
        "import pathlib; print(pathlib.Path('made/by_script').read_text()); open('kept', 'a').write('x')\n",
    )
    script = """#!/bin/bash
        set -e
        mkdir made; cd made; echo theirs > by_script; cd ..
        srun -n1 --ntasks-per-node 1 python3 train.py
        (cd made && srun sh -c 'pwd; echo y > by_step')
        cat kept made/by_step
    """
    result = site.result(job := site.smoke(site.plan(script.replace("        ", ""))))
    said = site.said(job) + (site.state / f"smoke/{job}/output").read_text()
    assert result.outcome == "passed" and result.exit_code == 0, said
    assert {path.rsplit("/", 1)[1] for path in result.changed} >= {"kept", "by_script", "by_step"}, said
    if result.kept == "overlay":
        assert (site.work / "kept").read_text() == "mine\n"
        assert not (site.work / "made").exists()
    else:  # within a chroot nobody may make a user namespace (unshare(2), EPERM)
        assert site.cluster.spec.slurm != "host" or os.uname().release.startswith(("4.", "5.")), (
            result.kept_why
        )
