"""What ends in the store of jobs that ran side by side: whose they were, where, on which GPUs, how they used them.

Each GPU has a load of its own by its device number, so that a figure on the wrong GPU is a wrong figure. Which GPUs a
job had is taken from slurmctld, not from what the hooks were told.
"""

from __future__ import annotations

import pwd
from dataclasses import dataclass

import pytest
from ClusterShell.NodeSet import NodeSet

from profiler.answers import NodeUse, Usage
from profiler.records import GpuUse
from tests.slurm.record.load import memory_mib, power_w, utilisation
from tests.slurm.record.recorded import Device, Given, Recorded, near

pytestmark = pytest.mark.all_releases

MIB = 1 << 20
SECONDS = 40.0


@dataclass(frozen=True)
class Asked:
    """A job to run: options of sbatch, and options of its load."""

    options: tuple[str, ...]
    load: tuple[str, ...] = ()
    step: str = ""
    gpus: int = 0


# All fit on the cluster at the same time. Two jobs of each node share it.
JOBS = {
    "two nodes": Asked(("-w", "n[1-2]", "-N2", "--gpus-per-node=2"), ("--exit=3",), "srun -N2 -n2", 4),
    "beside it": Asked(("-w", "n1", "--gpus=1"), ("--factor=2",), gpus=1),
    "beside both": Asked(("-w", "n1", "--gpus=1"), ("--factor=3",), gpus=1),
    "reversed": Asked(("-w", "n3", "--gpus=3"), ("--factor=2",), gpus=3),
    "reversed, one": Asked(("-w", "n3", "--gpus=1"), gpus=1),
    "gaps": Asked(("-w", "n4", "--gpus=3"), gpus=3),
    "gaps, one": Asked(("-w", "n4", "--gpus=1"), ("--factor=2",), gpus=1),
    "large instance": Asked(("-w", "n5", "--gpus=3g.40gb:1"), gpus=1),
    "small instance": Asked(("-w", "n5", "--gpus=1g.10gb:1"), ("--factor=2",), gpus=1),
    "beside instances": Asked(("-w", "n5", "--gpus=a100:2"), gpus=2),
}


@dataclass(frozen=True)
class Ran:
    """A job of the table after its end."""

    job: int
    asked: Asked
    given: Given
    usage: Usage

    @property
    def factor(self) -> int:
        """What its loads were multiplied by."""
        return next(
            (int(each.partition("=")[2]) for each in self.asked.load if each.startswith("--factor")), 1
        )


@pytest.fixture(scope="package")
def ran(record: Recorded) -> dict[str, Ran]:
    """All jobs of the table, run at the same time."""
    submitted = {
        name: record.submit(
            *asked.options,
            "--cpus-per-gpu=1",
            script=f"{asked.step} {record.load(SECONDS, *asked.load)}",
        )
        for name, asked in JOBS.items()
    }
    given = {name: record.given(job) for name, job in submitted.items()}
    return {name: Ran(job, JOBS[name], given[name], record.complete(job)) for name, job in submitted.items()}


@pytest.fixture(params=JOBS)
def one(request: pytest.FixtureRequest, ran: dict[str, Ran]) -> Ran:
    """Each of them."""
    return ran[request.param]


def devices(record: Recorded, ran: Ran, node: str) -> dict[str, Device]:
    """The GPUs that slurmctld gave to it on a node, by UUID."""
    there = record.devices(node)
    return {there[place].uuid: there[place] for place in ran.given.places[node]}


def uses(record: Recorded, ran: Ran) -> list[tuple[NodeUse, Device, GpuUse]]:
    """Each GPU's use, with the device that it is."""
    return [
        (node, devices(record, ran, node.node)[str(use.gpu.uuid)], use)
        for node in ran.usage.nodes
        for use in node.gpus
    ]


def test_whose_it_was_and_how_it_ended(record, one):
    job = one.usage.job
    assert job.job_id == one.job
    if record.user:
        assert (job.user, job.uid) == (record.user, pwd.getpwnam(record.user).pw_uid)
    code = 3 if "--exit=3" in one.asked.load else 0
    assert (job.state, job.exit_code) == ("FAILED" if code else "COMPLETED", code)
    assert job.partition == "gpu"
    assert job.account == "lab"
    assert job.started is not None
    assert job.ended is not None
    assert SECONDS <= job.ended - job.started < SECONDS + 30


def test_its_nodes_and_gpus_are_those_that_slurm_gave(record, one):
    job = one.usage.job
    assert {*NodeSet(job.nodes)} == one.given.places.keys()
    assert job.gpus == one.asked.gpus
    assert [each.node for each in one.usage.nodes] == sorted(one.given.places)
    for node in one.usage.nodes:
        there = devices(record, one, node.node)
        assert {use.gpu.uuid for use in node.gpus} == there.keys(), node.node
        assert {use.gpu.minor for use in node.gpus} == {each.number for each in there.values()}
        assert (node.final, node.ended_by) == (True, "epilog")


def test_memory_is_that_of_the_load(record, one):
    for _, device, use in uses(record, one):
        assert near(use.memory_peak_bytes, memory_mib(device.number, one.factor) * MIB)
        assert use.memory_total_bytes
    assert one.usage.job.gpu_memory_peak_bytes == max(
        use.memory_peak_bytes or 0 for *_, use in uses(record, one)
    )


def test_utilisation_is_that_of_the_load(record, one):
    for node, device, use in uses(record, one):
        if device.instance is not None:  # NVML tells none of an instance
            assert use.utilisation_mean is None
            continue
        wanted = utilisation(device.number, one.factor)
        did = record.did(one.job, node.node)
        assert near(use.utilisation_mean, wanted * (did["ended"] - did["began"]) / use.seconds)
        assert near(use.utilisation_p50, wanted)
        assert near(use.utilisation_p95, wanted)
        # The moments in which the load comes and goes are part of this one, and are the longer the later an agent looks
        busy_s = use.busy_seconds or 0.0
        assert near((use.utilisation_busy_mean or 0) * busy_s, wanted * (did["ended"] - did["began"]))
        assert near(use.utilisation_busy_mean, wanted, 0.15)


def test_power_and_energy_are_those_of_the_load(record, one):
    for node, device, use in uses(record, one):
        if device.instance is not None:
            assert use.energy_j is None
            continue
        state = record.gpus.state(node.node, device.number)
        idle = int(state["power_idle_mw"]) / 1000
        loaded = power_w(device.number, one.factor)
        did = record.did(one.job, node.node)
        assert near(use.power_peak_w, idle + loaded)
        wanted = idle * use.seconds + loaded * (did["ended"] - did["began"])
        assert near(use.energy_j, wanted)
        assert near(use.power_mean_w, wanted / use.seconds)


def test_time_is_looked_at_from_start_to_end(record, one):
    job = one.usage.job
    for node, _, use in uses(record, one):
        assert use.seconds >= job.ended - job.started - 2 * record.interval - 2
        assert (node.unseen_seconds or 0) < 3


def test_jobs_that_shared_a_node_have_no_gpu_in_common(ran):
    for pair in (("two nodes", "beside it"), ("beside it", "beside both"), ("gaps", "gaps, one")):
        one, other = ({use.gpu.uuid for node in ran[name].usage.nodes for use in node.gpus} for name in pair)
        assert one
        assert not one & other


def test_an_instance_is_not_its_gpu(record, ran):
    large, small = (ran[name].usage.nodes[0].gpus[0].gpu for name in ("large instance", "small instance"))
    assert large.parent_uuid == small.parent_uuid == record.gpus.state("n5", 0)["uuid"]
    assert large.uuid != small.uuid


def test_the_course_of_a_job_shows_its_load(record, ran):
    one = ran["two nodes"]
    series = record.series(one.job)
    assert [each.node for each in series.nodes] == ["n1", "n2"]
    for node in series.nodes:
        there = devices(record, one, node.node)
        assert {each.gpu.uuid for each in node.gpus} == there.keys()
        for each in node.gpus:
            seen = [value for value in each.utilisation if value is not None]
            assert near(max(seen), utilisation(there[str(each.gpu.uuid)].number))
