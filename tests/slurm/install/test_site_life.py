"""gsub's whole life on a site that has rules, hooks and users of its own: none of their jobs comes to harm.

Everything is typed as an administrator types it, under a stream of jobs, and slurmctld is restarted at every stage.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from site_configs.devcluster import Cluster, ClusterSpec
from tests.slurm.install.site.admin import Admin, newer
from tests.slurm.install.site.dressed import Hooks, Site
from tests.slurm.install.site.judge import Judge, Watch
from tests.slurm.install.site.life import Life, no_lua, no_service
from tests.slurm.install.site.stream import Stream

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two nodes with four GPUs each; Slurm alone."""
    os.umask(0o022)
    name = f"t{os.getpid()}-site{request.param}"
    try:
        yield Cluster.up(ClusterSpec(name, 2, 4, request.param, gsub=False, agents=False, short_delays=True))
    finally:
        Cluster.down(name)


def test_a_site_without_gsub(cluster: Cluster) -> None:
    """What the judge finds on a site as it was: what it says of gsub later is gsub's."""
    site = Site.dress(cluster, "scripts")
    stream = Stream(site)
    admin = Admin(site, stream)
    with Watch(site) as watch:
        try:
            stream.begin()
            stream.more()
            admin.restart_slurmctld()
            stream.more()
            admin.restart_slurmctld(kill=True)
            stream.more(16)
            stream.end()
        finally:
            stream.kill()
    verdict = Judge(site, stream, admin.windows).verdict(*watch.faults)
    print(verdict)
    assert not verdict.faults, "\n".join(verdict.faults)


def test_the_whole_life(cluster: Cluster) -> None:
    with Life.on(cluster, "scripts") as life:
        admin, stream = life.admin, life.stream
        with life.stage("doctor and plan"):
            admin.type("doctor", code=None)
            plan = admin.type("install", "--role=controller", "--plan", "--nodes-ready")
            assert "site/bin/prolo[gz]" in plan
            life.untouched(alone=True)
            assert admin.files() == []
        admin.write_site_file()
        with life.stage("nodes"):
            life.install_nodes()
        with life.stage("controller"):
            life.install_controller()
            admin.start_gsubd()
            life.install_controller()
        with life.stage("observe", restart=False):
            admin.more_decisions("observe")
        with life.stage("advise", kill=True):
            admin.type("mode", "advise")
            life.told("gsub would set", "-G2")
        with life.stage("enforce"):
            admin.type("mode", "enforce", "--yes")
            life.told("gsub set", "-G2")
            stream.more(8)
        with life.stage("upgrade"), admin.other_package(newer("0.2.0", "the next one")):
            admin.type("upgrade", "--role=controller", "--yes")
            admin.restart_gsubd()
            shim = (admin.site.prefix / "libexec/gsub.lua").read_text()
            assert shim.startswith("-- the next one")
            admin.more_decisions("enforce")
        for name, change in (("a shim that is no Lua", no_lua), ("a service that cannot start", no_service)):
            with life.stage(name), admin.other_package(change):
                print(admin.type("upgrade", "--role=controller", "--yes", "--quiet", code=1))
                assert (admin.site.prefix / "libexec/gsub.lua").read_text() == shim
            admin.more_decisions("enforce")
        with (
            life.stage("an upgrade that is killed", kill=True),
            admin.other_package(newer("0.5.0", "killed")),
        ):
            lines = admin.journal_lines() + 3
            assert admin.killed(
                "upgrade", "--role=controller", "--yes", when=lambda: admin.journal_lines() >= lines
            )
        with life.stage("the same upgrade again"), admin.other_package(newer("0.5.0", "killed")):
            admin.type("upgrade", "--role=controller", "--yes")
        with life.stage("observe again"):
            admin.type("mode", "observe")
            admin.more_decisions("observe")
        with life.stage("rollback"):
            life.rollback()
        verdict = life.end()
    assert not verdict.faults, "\n".join(verdict.faults)


OTHERS: dict[str, Hooks] = {"host": "glob", "trixie": "none"}
"""One kind of site a release: the life above has used up most of what time there is."""


def test_on_other_sites(cluster: Cluster) -> None:
    """Folders of hooks, or nothing at all: put on while it is killed now and then, and taken off again."""
    hooks = OTHERS.get(cluster.release)
    if hooks is None:
        pytest.skip("tried on the other releases")
    chance = random.Random(cluster.release + hooks)
    with Life.on(cluster, hooks) as life:
        admin = life.admin
        admin.write_site_file()
        with life.stage("nodes", restart=False):
            life.install_nodes()
        with life.stage("an install that is killed", kill=True):
            life.killed_install(chance)
        with life.stage("rollback of half an install"):
            admin.type("rollback", "--role=controller", "--yes")
            life.untouched()
        admin.write_site_file()
        with life.stage("another one that is killed"):
            life.killed_install(chance)
        with life.stage("the rest of it"):
            life.install_controller()
            admin.start_gsubd()
            life.install_controller()
            admin.more_decisions("observe")
        with life.stage("rollback"):
            life.rollback()
        verdict = life.end()
    assert not verdict.faults, "\n".join(verdict.faults)
