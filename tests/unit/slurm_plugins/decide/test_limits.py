"""What can never run is refused with a sentence that helps; what is not certain is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugins.client.values import Hosts
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.inventory import Inventory
from slurm_plugins.decide.pipeline import decide
from slurm_plugins.decide.request import Job, Request
from slurm_plugins.decide.stages.limits import Limits
from tests.unit.slurm_plugins.decide import cluster
from tests.unit.slurm_plugins.decide.cluster import CLUSTERS, nodes, partition

GIB = 1024


def decided(job: Job, context: Context, mode: Any = "advise") -> Any:
    decision = decide(Request(id=1, uid=1, job=job), context, decision_id="d-0", stages=[Limits()], mode=mode)
    assert decision.failures == ()
    return decision


def refusal(job: Job, context: Context, *, tracked: bool | None = True) -> str | None:
    context = replace(context, slurm=replace(context.slurm, memory_tracked=tracked))
    text = decided(job, context).reject
    return None if text is None else " ".join(str(text).split())


def on(count: int, gpus: int = 8, kind: str = "", **more: Any) -> Job:
    gres = f"gres:gpu:{kind}:{gpus}" if kind else f"gres:gpu:{gpus}"
    return Job(**{"partition": "gpu", "min_nodes": count, "max_nodes": count, "tres_per_node": gres, **more})


NEVER = {
    "more GPUs than a node has": (
        on(1, 16), "two-leaves",
        "gsub: no node of partition gpu has 16 GPUs: the most is 8. "
        "The same 16 GPUs on 2 nodes: --nodes=2 --gpus-per-node=8"),
    "more, and no even way": (
        on(1, 13), "two-leaves", "gsub: no node of partition gpu has 13 GPUs: the most is 8. Ask for at most 8."),
    "more, evenly on nodes that are not filled": (
        on(1, 9), "two-leaves", "gsub: no node of partition gpu has 9 GPUs: the most is 8. "
        "The same 9 GPUs on 3 nodes: --nodes=3 --gpus-per-node=3"),
    "more for each task": (
        Job(partition="gpu", num_tasks=2, tres_per_task="gres:gpu:9"), "two-leaves",
        "gsub: no node of partition gpu has 9 GPUs: the most is 8. Ask for at most 8."),
    "a type that is elsewhere": (
        on(1, 8, "v100", partition="a100"), "mixed",
        "gsub: partition a100 has no GPUs of type v100: it has a100. Partitions that have them: gpu, v100."),
    "a type that is nowhere": (
        on(1, 8, "h100"), "two-leaves",
        "gsub: partition gpu has no GPUs of type h100: it has a100. No partition has them. Ask for gpu:a100, or "
        "leave the type out."),
    "more of a type than its nodes have": (
        on(1, 8, "v100"), "mixed", "gsub: no node of partition gpu has 8 v100 GPUs: the most is 4. "
        "The same 8 GPUs on 2 nodes: --nodes=2 --gpus-per-node=4"),
    "a partition without GPUs": (
        on(1, 2, partition="cpu"), "two-leaves",
        "gsub: no node of partition cpu has GPUs. Partitions that have nodes with 2: gpu, debug."),
    "more nodes than there are": (
        on(9), "two-leaves",
        "gsub: partition gpu has 8 nodes with 8 GPUs, and the job asks for 9. Ask for at most 8."),
    "more nodes of a size than there are": (
        on(5), "mixed", "gsub: partition gpu has 4 nodes with 8 GPUs, and the job asks for 5. Ask for at most 4."),
    "more GPUs than there are": (
        Job(partition="gpu", tres_per_job="gres:gpu:65"), "two-leaves",
        "gsub: partition gpu has 64 GPUs in all, and the job asks for 65. Ask for at most 64."),
    "more memory than a node has": (
        on(1, 1, min_mem_per_node=600 * GIB), "two-leaves",
        "gsub: no node of partition gpu with its GPUs has 600G of memory for jobs: the most is 500G. "
        "Ask for at most --mem=500G."),
    "more memory than nodes of its size have": (
        on(1, 1, "v100", min_mem_per_node=600 * GIB), "mixed",
        "gsub: no node of partition gpu with its GPUs has 600G of memory for jobs: the most is 180G. "
        "Ask for at most --mem=180G."),
    "memory for each GPU": (
        on(1, 8, mem_per_tres="gres:gpu:65536"), "two-leaves",
        "gsub: no node of partition gpu with its GPUs has 512G of memory for jobs: the most is 500G. "
        "Ask for at most --mem=500G."),
    "more CPUs than a node has": (
        on(1, 1, cpus_per_task=65, min_cpus=65), "two-leaves",
        "gsub: no node of partition gpu with its GPUs has 65 CPUs: the most is 64. Ask for at most 64."),
    "more --mincpus": (
        on(1, 1, pn_min_cpus=65), "two-leaves",
        "gsub: no node of partition gpu with its GPUs has 65 CPUs: the most is 64. Ask for at most 64."),
    "CPUs for each GPU": (
        on(1, 8, cpus_per_tres="gres:gpu:9"), "two-leaves",
        "gsub: no node of partition gpu with its GPUs has 72 CPUs: the most is 64. Ask for at most 64."),
    "in none of its partitions": (
        on(1, 16, partition="debug,gpu"), "two-leaves",
        "gsub: no node of partition debug has 16 GPUs: the most is 8. "
        "The same 16 GPUs on 2 nodes: --nodes=2 --gpus-per-node=8"),
    "in no partition at all": (
        on(1, 16, partition=None), "two-leaves",
        "gsub: no node of partition gpu has 16 GPUs: the most is 8. "
        "The same 16 GPUs on 2 nodes: --nodes=2 --gpus-per-node=8"),
    "on nodes that are down it could run": (
        on(5, 8), "untyped", "gsub: partition gpu has 4 nodes with 8 GPUs, and the job asks for 5. Ask for at most 4."),
}  # fmt: skip


@pytest.mark.parametrize("name", NEVER)
def test_what_can_never_run(name):
    job, where, expected = NEVER[name]
    assert refusal(job, CLUSTERS[where]()) == expected


MAYBE = {
    "what fits": (on(8), "two-leaves"),
    "half of it is down": (on(4, 8), "untyped"),
    "an untyped GPU may be of that type": (on(1, 8, "a100"), "untyped"),
    "a reservation may have what the partition has not": (on(9, reservation="course"), "two-leaves"),
    "another partition has it": (on(1, 8, partition="v100,a100"), "mixed"),
    "no partition named, and another has it": (on(1, 1, "a100", partition=None), "mig"),
    "a partition that Slurm does not have": (on(9, partition="nowhere"), "two-leaves"),
    "tasks that share CPUs": (on(1, 1, cpus_per_task=65, min_cpus=1), "two-leaves"),
    "several types": (on(1, tres_per_node="gres:gpu:a100:9,gres:gpu:h100:1"), "two-leaves"),
    "a job without GPUs": (Job(partition="gpu", min_nodes=99, max_nodes=99), "two-leaves"),
    "a range that fits": (on(8, max_nodes=12), "two-leaves"),
    "all of a node's memory": (on(1, 1, min_mem_per_node=0), "two-leaves"),
}


@pytest.mark.parametrize("name", MAYBE)
def test_what_may_run(name):
    job, where = MAYBE[name]
    assert refusal(job, CLUSTERS[where]()) is None


def test_nodes_that_slurm_hides_may_have_it():
    """Powered-down nodes of a cloud partition are listed by the partition only."""
    part = partition("gpu", "n[1-8]", default=True)
    assert refusal(on(9), cluster.context(cluster.inventory(nodes("n[1-8]", {"a100": 8}), [part])))
    cloud = replace(part, nodes=Hosts("n[1-8],cloud[1-100]"))
    assert not refusal(on(9), cluster.context(cluster.inventory(nodes("n[1-8]", {"a100": 8}), [cloud])))
    unlisted = replace(part, nodes=Hosts(""))
    assert not refusal(on(9), cluster.context(cluster.inventory(nodes("n[1-8]", {"a100": 8}), [unlisted])))


@pytest.mark.parametrize("tracked", [False, None])
def test_memory_that_slurm_does_not_count_is_its_own_affair(tracked):
    """A job may then have what MemSpecLimit keeps from others."""
    job = on(1, 1, min_mem_per_node=600 * GIB)
    assert refusal(job, CLUSTERS["two-leaves"]()) and not refusal(
        job, CLUSTERS["two-leaves"](), tracked=tracked
    )


def test_cores_that_a_job_may_have_by_core_spec_are_no_reason_to_refuse_it():
    part = partition("gpu", "n[1-2]", default=True)
    spared = [replace(node, cpus_effective=60) for node in nodes("n[1-2]", {"a100": 8})]
    where = cluster.context(cluster.inventory(spared, [part]))
    assert not refusal(on(1, 1, cpus_per_task=64, min_cpus=64), where)
    assert "has 65 CPUs: the most is 64" in (refusal(on(1, 1, cpus_per_task=65, min_cpus=65), where) or "")


def test_nothing_known_refuses_nothing():
    assert refusal(on(9), cluster.context(Inventory())) is None


def test_limits_that_a_qos_may_lift_are_told_and_not_enforced():
    where = CLUSTERS["two-leaves"]()
    long = decided(on(1, partition="debug", time_limit=120), where)
    assert long.reject is None
    assert long.say == (
        "gsub: 2 h is more than the 1 h that partition debug allows: unless its QOS allows more, the job would wait "
        "without end",
    )
    wide = decided(on(2, partition="debug"), where)
    assert wide.reject is None
    assert "2 nodes are more than the 1 that partition debug allows" in wide.say[0]
    assert decided(on(2, partition="debug,gpu", time_limit=120), where).say == ()
    assert decided(on(1, partition="debug", time_limit=120, time_min=30), where).say == ()
    assert decided(on(1, time_limit=(1 << 32) - 1), where).say == ()


def test_a_refusal_is_told_in_advise_enforced_in_enforce_and_neither_in_observe():
    where = CLUSTERS["two-leaves"]()
    assert decided(on(9), where, "advise").say[0].startswith("gsub: partition gpu has 8 nodes")
    assert b'"reject":"gsub: ' in decided(on(9), where, "enforce").answer(1)
    observed = decided(on(9), where, "observe")
    assert observed.say == () and observed.reject
    assert b'"reject":null' in observed.answer(1)
    assert b'"errno"' not in observed.answer(1) and b'"errno":2014' in decided(on(9), where, "enforce").answer(1)


numbers = st.none() | st.integers(0, 100)
texts = st.sampled_from(
    [None, "gres:gpu:8", "gres:gpu:17", "gres:gpu:a100:4", "gres/gpu:x:1", "gres:gpu:v100:9"]
)
jobs = st.builds(
    Job,
    min_nodes=numbers, max_nodes=numbers, num_tasks=numbers, cpus_per_task=numbers, pn_min_cpus=numbers,
    tres_per_node=texts, tres_per_job=texts, tres_per_task=texts, cpus_per_tres=texts, mem_per_tres=texts,
    min_mem_per_node=st.none() | st.integers(0, 1 << 30), min_mem_per_cpu=st.none() | st.integers(0, 1 << 30),
    partition=st.sampled_from([None, "gpu", "gpu,debug", "v100,a100", "x", "cpu"]),
    time_limit=st.none() | st.integers(0, 1 << 32), features=st.sampled_from([None, "leaf1", "[x*2]"]),
)  # fmt: skip


@given(jobs, st.sampled_from(sorted(CLUSTERS)))
def test_any_refusal_is_short_and_names_the_partition(job, name):
    text = decided(job, CLUSTERS[name]()).reject
    if text is not None:
        lines = text.splitlines()
        assert len(lines) <= 3
        assert lines[0].startswith("gsub: ") and "partition" in lines[0]
        assert all(line and line.isprintable() and len(line) < 400 for line in lines)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 64), st.integers(1, 500 * GIB))
def test_what_the_nodes_hold_is_never_refused(count, gpus, cpus, memory):
    job = on(count, gpus, num_tasks=count, cpus_per_task=cpus, min_cpus=cpus * count, min_mem_per_node=memory)
    assert refusal(job, CLUSTERS["two-leaves"]()) is None
