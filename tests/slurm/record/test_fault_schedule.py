"""Jobs through a schedule of faults: none of their records is lost or doubled, no node is drained, no job delayed.

What ran is taken from Slurm's own accounting; how long a hook held a job, from a watch in the hook's place. Each fault
is done while one job runs, so that jobs end, run and start within it. See `faults` for the table.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from profiler.answers import NodeUse, Usage
from site_configs.devcluster import Cluster, ClusterSpec
from tests.slurm.record.broken import NODE, Nodes, slow
from tests.slurm.record.faults import FAULTS, OUTAGE, Fault, database_stopped
from tests.slurm.record.recorded import PATIENCE, Recorded
from tests.slurm.record.stream import Ran, Stream, all_jobs, books, usages
from tests.unit.profiler.store.postgres import Postgres
from tests.waiting import wait_until

pytestmark = pytest.mark.root

LONGEST = 1.0
"""Seconds that a hook may hold a job."""
GPUS = 4


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two nodes with four GPUs each."""
    os.umask(0o022)
    name = f"t{os.getpid()}-flt{request.param}"
    try:
        yield Cluster.up(ClusterSpec(name, 2, GPUS, request.param, deadline=1.0, short_delays=True))
    finally:
        Cluster.down(name)


@pytest.fixture(scope="module")
def record(cluster: Cluster) -> Recorded:
    """Jobs and what is known of them."""
    found = Recorded(cluster)
    found.wait_for("the service", found.jobs)
    return found


@pytest.fixture(scope="module")
def nodes(record: Recorded) -> Iterator[Nodes]:
    """The levers for faults."""
    # Not pytest's folder: chroots see /tmp only, and two file systems are mounted here
    folder = Path(tempfile.mkdtemp(prefix="gsub-faults-"))
    try:
        found = Nodes(record.cluster, folder)
        try:
            yield found
        finally:
            found.close()
    finally:
        for mounted in ("installation", "spool"):  # if it did not come so far
            subprocess.run(["umount", "--lazy", str(folder / mounted)], capture_output=True)
        shutil.rmtree(folder)


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A PostgreSQL that gsubd's user can reach."""
    with tempfile.TemporaryDirectory(prefix="gsub-pg-") as folder:
        Path(folder).chmod(0o755)
        found = Postgres(Path(folder))
        found.start()
        try:
            yield found
        finally:
            found.stop("immediate")


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name.replace(" ", "_") for fault in FAULTS])
def test_no_record_is_lost_or_doubled_no_node_drained_no_job_delayed(record, nodes, fault):
    run(record, nodes, fault)


def test_the_store_has_what_ran_and_nothing_else(record, nodes):
    ran = record.wait_for("Slurm's books", lambda: books(record) or None)
    told = all_jobs(record)
    assert sorted((job.job_id, job.restarts) for job in told) == sorted((each.job, 0) for each in ran)
    assert all(job.complete for job in told)
    well(record)


def test_the_same_of_a_database_that_goes_away(record, nodes, server):
    """Last, as the records of before are in another store."""
    cluster = record.cluster
    if cluster.release != "host":
        pytest.skip("gsubd is tried on PostgreSQL beside one release")
    site = cluster.paths.site.read_text()
    cluster.write_site(re.sub(r"sqlite:[^\"]*", server.database(), site))
    try:
        record.wait_for("the empty store", lambda: record.jobs() == () or None)
        stream = run(record, nodes, database_stopped(server))
        assert sorted(job.job_id for job in all_jobs(record)) == sorted(stream.ids.values())
    finally:
        cluster.write_site(site)


def run(record: Recorded, nodes: Nodes, fault: Fault) -> Stream:
    """Jobs before, in and after a fault; then what must hold."""
    stream = Stream(record, fault.name)
    watched = len(nodes.hook_runs())
    within = [f"within{number}" for number in range(fault.within)]
    stream.begin("across")
    with fault.does(nodes, stream):
        stream.release("across")
        stream.short(*within)
        stream.ended("across", *within)
        stream.begin("out")
    stream.release("out")
    stream.ended()
    check(record, nodes, stream, fault, watched)
    return stream


def check(record: Recorded, nodes: Nodes, stream: Stream, fault: Fault, watched: int) -> None:
    """What must hold after each fault."""
    jobs = {each.job: (each, word) for word, rows in stream.books().items() for each in rows}
    runs = nodes.hook_runs()[watched:]
    hooks = {(run.event, run.node, run.job) for run in runs}
    for job, (each, _) in jobs.items():
        assert {(event, node, job) for node in each.nodes for event in ("prolog", "epilog")} <= hooks
    assert [run for run in runs if run.status] == []
    assert slow(runs, LONGEST) == []
    well(record)
    assert {each.state for each, _ in jobs.values()} == {"COMPLETED"}
    # A node may wait as long again as the service was away, before it tries once more
    amiss: list[str] = []

    def complete() -> bool:
        amiss[:] = look(record, jobs, fault)
        return not amiss

    with suppress(AssertionError):  # what is amiss says more
        wait_until(complete, PATIENCE + OUTAGE)
    assert amiss == []


def look(record: Recorded, jobs: Mapping[int, tuple[Ran, str]], fault: Fault) -> list[str]:
    """What is amiss of these jobs now."""
    try:
        found = usages(record, [*jobs])
    except ConnectionError as error:
        return [str(error)]
    lacking = ((usage.job.job_id, lacks(record, *jobs[usage.job.job_id], usage, fault)) for usage in found)
    return [f"job {job} ({jobs[job][1]}): {why}" for job, why in lacking if why]


def well(record: Recorded) -> None:
    """No node is drained or down, and none has a reason to be."""
    said = record.cluster.run(["sinfo", "-h", "-N", "-o", "%N %t %E"]).stdout.split("\n")[:-1]
    assert {line.split(" ", 1)[1] for line in said if line.split()[1] not in ("comp", "mix")} <= {
        "idle none"
    }, said


def lacks(record: Recorded, ran: Ran, word: str, usage: Usage, fault: Fault) -> str:
    """What of a job is not in the store as it should be; "" if nothing is amiss."""
    job = usage.job
    if not (job.complete and job.started and job.ended):
        return "its start or its end is not there"
    if record.user and job.user != record.user:
        return f"it is {job.user!r}'s"
    by_node = {each.node: each for each in usage.nodes}
    if by_node.keys() != ran.nodes or len(usage.nodes) != len(ran.nodes):
        return f"nodes {[each.node for each in usage.nodes]}, and it ran on {sorted(ran.nodes)}"
    for name, node in by_node.items():
        less = fault.less.get(word, "") if name == NODE else ""
        if why := node_lacks(record, ran, node, less, fault.slack):
            return f"{name}: {why}"
    return ""


def node_lacks(record: Recorded, ran: Ran, node: NodeUse, less: str, slack: float) -> str:
    """The same of one of its nodes."""
    if node.ended_by != "epilog":
        return f"ended by {node.ended_by}"
    if less == "usage":
        return ""
    if not node.final:
        return "no last report"
    there = {each.uuid for each in record.devices(node.node)}
    found = [use.gpu.uuid for use in node.gpus]
    if less != "gpus" and (len(found) != 1 or found[0] not in there):
        return f"GPUs {found}"
    longest = ran.ended - ran.started + slack
    if any(use.seconds > longest for use in node.gpus):
        return f"more seconds than it ran for: {[use.seconds for use in node.gpus]} of {longest}"
    return ""
