"""`gsub admin install` and `rollback` on the real Slurm of each release, with a prolog and an epilog of the site's own.

What a node does that has no gsub, or has lost it, only Slurm can tell. The life of a whole site is in test_site_life.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster, ClusterSpec
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.all_releases]

LUA = """\
function slurm_job_submit(job_desc, part_list, submit_uid)
  slurm.log_user("the site's own rules")
  return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One node; the user gsub is there, gsub is not."""
    os.umask(0o022)
    name = f"t{os.getpid()}-inst{request.param}"
    try:
        found = Cluster.up(
            ClusterSpec(name, 1, 1, request.param, accounting=False, agents=False, short_delays=True)
        )
        found.stop("gsubd")
        yield found
    finally:
        Cluster.down(name)


@dataclass
class Site:
    """The cluster with hooks and rules of its own, and its administrator."""

    cluster: Cluster

    @property
    def prefix(self) -> Path:
        return self.cluster.paths.root / "trial"

    @property
    def own(self) -> Path:
        return self.cluster.paths.root / "own"

    def dress(self) -> None:
        self.own.mkdir()
        for name in ("prolog", "epilog"):
            script = self.own / name
            script.write_text(f"#!/bin/sh\necho {name} >> {self.own}/ran\n")
            script.chmod(0o755)
        paths = self.cluster.paths
        (paths.etc / "job_submit.lua").write_text(LUA)
        lines = [f"Prolog={self.own}/prolog", f"Epilog={self.own}/epilog  # the site's"]
        paths.slurm_conf.write_text(paths.slurm_conf.read_text() + "\n".join(lines))
        self._join()
        self.cluster.run(["scontrol", "reconfigure"], check=True)
        self.wait("the node", self.idle)

    def _join(self) -> None:
        """gsub is in Slurm's group, as a directory would have it: a chroot's table is a mount, and usermod renames."""
        table = self.cluster.paths.etc / "group"
        if self.cluster.rootfs.is_chroot:
            text = table.read_text()
            table.write_text(re.sub(r"^(slurm:x:\d+:)$", r"\1gsub", text, flags=re.MULTILINE))

    def sums(self) -> dict[str, str]:
        files = [
            *self.cluster.paths.etc.iterdir(),
            *(path for path in self.own.iterdir() if path.name != "ran"),
        ]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    def admin(self, *words: str, user: str | None = None, code: int = 0) -> str:
        paths = self.cluster.paths
        places = [f"--prefix={self.prefix}", f"--slurm-conf={paths.slurm_conf}"]
        done = self.cluster.run(["gsub", "admin", words[0], *places, *words[1:]], user=user, timeout=120)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def wait(self, what: str, there: Callable[[], bool], seconds: float = 60) -> None:
        wait_until(there, seconds, what)

    def idle(self) -> bool:
        return self.cluster.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%t"]).stdout.split() == ["idle"]

    def job(self) -> list[str]:
        """Run a job to its end; the site's hooks that it met. The node is idle afterwards, not drained."""
        ran = self.own / "ran"
        ran.unlink(missing_ok=True)
        argv = ["sbatch", "--parsable", "--output=/dev/null", "--gres=gpu:1", "--wrap=true"]
        done = self.cluster.run(argv, user=self.cluster.users[0], check=True)
        assert "the site's own rules" in done.stderr
        job = done.stdout.strip()
        shown = ["scontrol", "show", "job", job]
        self.wait("the job", lambda: "JobState=COMPLETED" in self.cluster.run(shown).stdout)
        self.wait("the node", self.idle)
        self.wait("the epilog", lambda: ran.exists() and "epilog" in ran.read_text())
        return ran.read_text().split()


@pytest.fixture
def site(cluster: Cluster) -> Site:
    made = Site(cluster)
    made.dress()
    return made


def test_a_life_in_short(site: Site) -> None:
    before = site.sums()
    assert site.job() == ["prolog", "epilog"]

    planned = site.admin("install", "--role=controller", "--role=node", "--nodes-ready", "--plan")
    assert f"Prolog={site.own}/prolo[gz]" in planned
    as_user = site.admin("install", "--role=controller", "--plan", user=site.cluster.users[0])
    assert "you are not root" in as_user
    assert "only root" in site.admin("install", "--role=node", "--yes", user=site.cluster.users[0], code=2)
    assert site.sums() == before
    assert not site.prefix.exists()

    # Slurm is told of hooks that no node has: a new node is like that.
    site.admin("install", "--role=controller", "--nodes-ready", "--yes")
    for name in ("proloz", "epiloy"):
        (site.own / name).unlink()
    assert site.job() == ["prolog", "epilog"]

    site.admin("install", "--role=controller", "--role=node", "--yes")
    assert site.job() == ["prolog", "epilog"]
    left = {path.name.split(".")[0] for path in (site.prefix / "spool/new").iterdir()}
    assert left == {"prolog", "epilog"}
    mtimes = {path: path.stat().st_mtime_ns for path in site.prefix.rglob("*")}
    again = site.admin("install", "--role=controller", "--role=node", "--yes")
    assert "nothing to do" in again
    assert {path: path.stat().st_mtime_ns for path in site.prefix.rglob("*")} == mtimes

    site.admin("rollback", "--role=controller", "--role=node", "--yes", "--settle=1")
    assert site.sums() == before
    assert not site.prefix.exists()
    assert site.job() == ["prolog", "epilog"]
