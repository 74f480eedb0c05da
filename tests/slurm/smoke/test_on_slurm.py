"""`gsub --smoke` from the command to what becomes of the real job, on a real Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.smoke_stage import site_text
from gsub.smoke.result import Result, read
from site_configs.devcluster import Cluster
from tests.slurm.smoke.running import PATIENCE_S, Site
from tests.waiting import wait_until

HEAD = "#!/bin/bash\n#SBATCH -N2 --gpus-per-node=8 -t5\n"
# preflight must not see it: that is not what is tested here
BROKEN = HEAD + 'echo {}\npython3 -c \'__import__("einops_" + "of_nobody")\'\n'
GOOD = (
    HEAD
    + 'mkdir out || exit 3\necho "{} $SLURM_JOB_ID" > out/log\nsrun -N2 -n2 true || test -n "$GSUB_SMOKE"\n'
)
SLOW = HEAD + "sleep 100\n"


@pytest.fixture
def site(clean: Cluster, user: str | None) -> Iterator[Site]:
    """A user's folder, at a site whose smoke runs take half a minute at most."""
    before = clean.paths.site.read_text()
    clean.write_site(site_text(before, 30, 60))
    yield Site(clean, user)
    clean.write_site(before)


def xdg(site: Site) -> Path:
    return site.folder / "state/xdg"


def gsub(site: Site, script: str, *words: str) -> tuple[int, str]:
    """Submit a script; the real job's id, 0 where there is none, and what was said."""
    site.file("job.sh", script)
    environ = {"XDG_STATE_HOME": str(xdg(site))}
    done = site.cluster.run(["gsub", *words, "job.sh"], user=site.user, cwd=site.work, env=environ)
    found = re.search(r"Submitted batch job (\d+)", done.stdout)
    return int(found[1]) if found else 0, done.stdout + done.stderr


def smoke_of(said: str) -> int:
    """The smoke job's id, from what the user was told."""
    found = re.search(r"smoke: job (\d+) tries it", said)
    assert found, said
    return int(found[1])


def outcome(site: Site, smoke: int) -> Result:
    """What the run came to, once its job is over."""
    return wait_until(lambda: read(xdg(site) / "gsub", smoke), PATIENCE_S, f"the result of job {smoke}")


@pytest.mark.all_releases
@pytest.mark.parametrize("way", ["race", "gate"])
def test_a_broken_script_is_held_before_it_takes_sixteen_gpus(site: Site, way: str) -> None:
    blocker = site.sbatch("-N8", "--gpus-per-node=1", script="#!/bin/sh\nsleep 300\n")
    site.until(blocker, "JobState=RUNNING")
    real, said = gsub(site, BROKEN.format(way), f"--smoke={way}")
    found = outcome(site, smoke := smoke_of(said))
    assert (found.outcome, found.reason, found.held) == ("failed", "import_error", True), (said, found)
    site.until(smoke, "JobState=FAILED")
    assert "Reason=JobHeldUser" in site.shown(real)


def test_a_good_script_starts_behind_its_gate_and_finds_its_files_as_they_were(site: Site) -> None:
    real, said = gsub(site, GOOD.format("gate"), "--smoke=gate")
    found = outcome(site, smoke_of(said))
    assert found.outcome != "failed", (said, found)
    shown = site.until(real, "JobState=COMPLETED" if found.kept == "overlay" else "EndTime=2")
    assert f"afterany:{found.smoke}" in said or "Dependency=(null)" in shown
    if found.kept == "overlay":
        assert (site.work / "out/log").read_text() == f"gate {real}\n"


def test_where_only_one_job_may_be_submitted_it_is_the_real_one(site: Site) -> None:
    """In a race the smoke job is refused; in a gate it comes first, and is withdrawn for the real one."""
    if not site.user:
        pytest.skip("needs root: limits are the administrator's")
    limit = ["sacctmgr", "-i", "modify", "user", site.user, "set"]
    site.cluster.run([*limit, "MaxSubmitJobs=1"], check=True)
    try:
        real, said = gsub(site, SLOW, "--smoke=race")
        assert real and "smoke: not submitted" in said, said
        site.cluster.run(["scancel", str(real)], check=True)
        site.cluster.clean()  # as long as it is ending it counts
        real, said = gsub(site, SLOW, "--smoke=gate")
        assert real and "withdrawn" in said and "the job goes ahead without" in said, said
        # the withdrawn one may have begun, and then takes a moment to end
        assert site.cluster.run(["squeue", "-h", "-t", "PD,R", "-o", "%i"]).stdout == f"{real}\n"
        assert "Dependency=(null)" in site.shown(real)
    finally:
        site.cluster.run([*limit, "MaxSubmitJobs=-1"], check=True)
