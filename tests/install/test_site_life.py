"""gsub's whole life on a site that has rules, hooks and users of its own: none of their jobs comes to harm.

Everything is typed as an administrator types it, under a stream of jobs, and slurmctld is restarted at every stage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from site_configs.devcluster import Cluster, ClusterSpec
from tests.install.site.admin import Admin
from tests.install.site.dressed import Site
from tests.install.site.judge import Judge, Watch
from tests.install.site.stream import Stream

pytestmark = pytest.mark.root


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two nodes with two GPUs each; Slurm alone."""
    os.umask(0o022)
    name = f"t{os.getpid()}-site{request.param}"
    try:
        yield Cluster.up(ClusterSpec(name, 2, 2, request.param, gsub=False, agents=False))
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
    assert verdict.faults == ()
