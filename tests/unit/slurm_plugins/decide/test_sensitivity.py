"""CPUs and memory for each GPU: the share, the knee, the caps, and what is left as it was stated."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.curves import TOLERANCE
from site_configs.site_model import Partition, Policy, Resources, Site
from slurm_plugins.client.values import Node
from slurm_plugins.decide.context import Context, Curve, Knowledge, SlurmFacts, Workload
from slurm_plugins.decide.pipeline import decide
from slurm_plugins.decide.request import Job, Request, with_edits
from slurm_plugins.decide.stages.sensitivity import HEADROOM, Sensitivity, knee
from tests.unit.slurm_plugins.decide import cluster
from tests.unit.slurm_plugins.decide.cluster import nodes, partition

GIB = 1024
TRACKED = SlurmFacts((22, 5), 300, "flat", memory_tracked=True)


class Known(Knowledge):
    """One workload, whoever asks."""

    def __init__(self, curve: Curve | None = None, memory_peak: int | None = None) -> None:
        self.known = Workload("k", runs=5, curve=curve, memory_peak=memory_peak)

    def workload(self, request: Request, gpu_type: str) -> Workload | None:
        return self.known

    def avoid(self, partition: str) -> dict[str, str]:
        return {}


NOTHING = Known()
LANGUAGE = Curve(((1, 1.0), (2, 1.0), (4, 1.0), (8, 1.0)))  # CPUs cost it nothing
VISION = Curve(((2, 0.4), (4, 0.7), (8, 1.0), (12, 1.3), (16, 1.4), (24, 1.401)))
NOISY = Curve(LANGUAGE.points, uncertainty=0.2)


def where(
    knowledge: Knowledge = NOTHING,
    *,
    site: Resources | None = None,
    retune: Any = "off",
    by: Any = "on",
    facts: SlurmFacts = TRACKED,
    hosts: list[Node] | None = None,
    **limits: int,
) -> Context:
    """8 nodes of 8 GPUs, 64 CPUs and 500 GiB: a GPU's share is 8 CPUs and 62.5 GiB."""
    declared = Partition("gpu", resources=site or Resources())
    of_site = Site(cluster="t", policy=Policy("enforce", retune=retune, sensitivity=by), partitions={"gpu": declared})
    found = cluster.inventory(
        hosts or nodes("n[1-8]", {"a100": 8}),
        [partition("gpu", "n[1-8]", default=True, **limits)],
        None,
        of_site,
    )
    return Context(of_site, found, facts, knowledge)


def decided(job: Job, context: Context, env: dict[str, str] | None = None, **more: Any) -> Any:
    request = Request(id=1, uid=1, job=job, env=env or {}, **more)
    decision = decide(request, context, decision_id="d-0", stages=[Sensitivity()], mode="advise")
    assert decision.failures == ()
    return decision


def edits(job: Job, context: Context, env: dict[str, str] | None = None, **more: Any) -> dict[str, object]:
    found = dict(decided(job, context, env, **more).edits)
    return {name: value for name, value in found.items() if name not in ("min_cpus", "pn_min_cpus")}


def one(gpus: int = 1, **more: Any) -> Job:
    return Job(**{"tres_per_node": f"gres:gpu:{gpus}", "min_nodes": 1, "max_nodes": 1, **more})


def of(cpus: int | None, memory_gib: float | None, gpus: int = 1) -> dict[str, object]:
    """The edits that give so many CPUs and so much memory for each GPU."""
    found: dict[str, object] = {}
    if cpus is not None:
        found["cpus_per_tres"] = f"gres:gpu:{cpus}"
    if memory_gib is not None:
        found["min_mem_per_node"] = int(memory_gib * GIB) * gpus
    return found


# --- the knee -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "uncertainty", "expected"),
    [
        (LANGUAGE.points, 0.0, 1),
        (VISION.points, 0.0, 16),
        (VISION.points, 0.05, 16),
        (((1, 0.5), (2, 0.96), (4, 1.0)), 0.05, 4),  # not sure of the best, yet sure that 2 are fewer
        (((1, 0.5), (2, 0.96), (4, 1.0)), 0.01, 4),
        (((4, 0.994), (5, 1.0)), 0.0, 5),  # six in a thousand are missed, four are not
        (((4, 0.996), (5, 1.0)), 0.0, 4),
        (((4, 1.0),), 0.0, 4),
        ((), 0.0, None),
        (LANGUAGE.points, 0.2, None),
        (((1, 0.9), (4, 1.0), (8, 0.8)), 0.0, 4),  # more can be worse: ranks that step on each other
    ],
)
def test_knee(points, uncertainty, expected):
    assert knee(points, uncertainty) == expected


points = st.lists(st.tuples(st.integers(1, 64), st.floats(0, 4)), min_size=1, unique_by=lambda p: p[0]).map(
    sorted
)


@given(points, st.floats(0, 0.05))
def test_no_fewer_than_the_knee_give_the_best_throughput(curve, uncertainty):
    found = knee(curve, uncertainty)
    best = max(t for _, t in curve)
    given_ = dict(curve)
    assert found is not None
    assert given_[found] >= best * (1 - TOLERANCE)
    assert all(t < best * (1 - TOLERANCE) for cpus, t in curve if cpus < found)


# --- what is open ---------------------------------------------------------------------------------------------------

OPEN = {
    # job, where -> CPUs and GiB of memory for each GPU (None: left alone)
    "nothing known: the share": (one(), where(), of(8, 62.5)),
    "four GPUs": (one(4), where(), of(8, 62.5, 4)),
    "CPUs that it has no use for go to others": (one(), where(Known(LANGUAGE)), of(1, 62.5)),
    "more, as others can spare": (one(), where(Known(VISION)), of(16, 62.5)),
    "seven GPUs leave little to spare": (one(7), where(Known(VISION)), of(9, 62.5, 7)),
    "eight leave nobody else": (one(8), where(Known(VISION)), of(8, 62.5, 8)),
    "the others keep what the site says": (
        one(4), where(Known(VISION), site=Resources(keep_cpus_per_gpu=6)), of(10, 62.5, 4)),
    "a cap above the share": (one(), where(Known(VISION), site=Resources(max_cpus_per_gpu=12)), of(12, 62.5)),
    "a cap below the share": (one(), where(site=Resources(max_cpus_per_gpu=6, max_memory_per_gpu=32 * GIB)), of(6, 32)),
    "a curve too uncertain to go by": (one(), where(Known(NOISY)), of(8, 62.5)),
    "the default gives the same": (one(), where(default_cpus_per_gpu=8, default_memory_per_gpu=64000 << 20), {}),
    "more by default, nothing against it": (one(), where(default_cpus_per_gpu=10, default_memory_per_gpu=70 << 30), {}),
    "more by default than it has use for": (
        one(), where(Known(LANGUAGE), default_cpus_per_gpu=8, default_memory_per_gpu=64000 << 20), of(1, None)),
    "less by default": (one(), where(default_cpus_per_gpu=2, default_memory_per_gpu=8 << 30), of(8, 62.5)),
    "memory by the CPU that adds up": (one(), where(default_cpus_per_gpu=8, default_memory_per_cpu=8000 << 20), {}),
    "memory by the CPU that adds up once CPUs are set": (one(), where(default_memory_per_cpu=8000 << 20), of(8, None)),
    "memory by the CPU that would be too little": (
        one(), where(Known(LANGUAGE), default_cpus_per_gpu=8, default_memory_per_cpu=8000 << 20), of(1, 62.5)),
    "memory by the CPU that would be too much": (one(), where(default_memory_per_cpu=16000 << 20), of(8, 62.5)),
    "measured to need more memory": (one(), where(Known(memory_peak=100 * GIB)), of(8, 120)),
    "more than all that others can spare": (
        one(), where(Known(memory_peak=450 * GIB), site=Resources(keep_memory_per_gpu=10 * GIB)), of(8, 430)),
    "a peak below the share is no reason for less": (one(), where(Known(memory_peak=GIB)), of(8, 62.5)),
    "less memory costs nothing, and the peak allows it": (
        one(), where(Known(Curve((), ((16 * GIB, 1.0), (64000, 1.0))), 10 * GIB)), of(8, 16)),
    "less memory costs nothing, the peak is nearer": (
        one(), where(Known(Curve((), ((16 * GIB, 1.0), (64000, 1.0))), 20 * GIB)), of(8, 24)),
    "less memory costs nothing, the peak is not known": (
        one(), where(Known(Curve((), ((16 * GIB, 1.0), (64000, 1.0))))), of(8, 62.5)),
    "less memory costs much": (one(), where(Known(Curve((), ((16 * GIB, 0.1), (64000, 1.0))), 10 * GIB)), of(8, 62.5)),
    "whole nodes have their CPUs": (one(8, shared=0), where(Known(LANGUAGE)), of(None, 500)),
    "a whole node for four of its GPUs": (one(4, shared=0), where(), of(None, 500)),
    "MaxMemPerCPU counts": (one(), where(max_memory_per_cpu=4000 << 20), {**of(8, None), "min_mem_per_node": 32000}),
    "MaxMemPerNode counts": (one(4), where(max_memory_per_node=100 << 30), of(8, 25, 4)),
    "MaxCPUsPerNode is for all jobs of a node": (one(4), where(max_cpus_per_node=16), of(2, 62.5, 4)),
    "MaxCPUsPerNode keeps what others' GPUs need": (one(), where(Known(VISION), max_cpus_per_node=24), of(16, 62.5)),
    "MaxCPUsPerNode below the GPUs": (one(), where(max_cpus_per_node=4), of(1, 62.5)),
    "Slurm does not count memory": (one(), where(facts=SlurmFacts(memory_tracked=False)), of(8, None)),
    "whether it does is not known": (one(), where(facts=SlurmFacts()), of(8, None)),
    "the cluster's default gives the same": (
        one(), where(facts=SlurmFacts(memory_tracked=True, default_memory_per_node=64000)), of(8, None)),
    "by the core where a core has threads": (
        one(), where(hosts=[*nodes("n[1-8]", {"a100": 8}, cpus=72)]), of(9, 62.5)),
    "the smallest node that it may get counts": (
        one(), where(hosts=[*nodes("n[1-4]", {"a100": 8}), *nodes("n[5-8]", {"a100": 4}, cpus=16, memory_gib=64)]),
        of(4, 16)),
    "a job without GPUs": (Job(min_nodes=1, max_nodes=1), where(), {}),
    "a type that is not there": (one(tres_per_node="gres:gpu:h100:1"), where(), {}),
    "CPUs are stated": (one(cpus_per_task=4), where(), of(None, 62.5)),
    "CPUs for each GPU are stated": (one(cpus_per_tres="gres:gpu:4"), where(), of(None, 62.5)),
    "memory is stated": (one(min_mem_per_node=1000), where(), of(8, None)),
    "all of the node's memory is stated": (one(min_mem_per_node=0), where(), of(8, None)),
    "memory by the CPU is stated": (one(min_mem_per_cpu=1000), where(), {}),
    "threads are stated": (one(threads_per_core=1), where(), of(None, 62.5)),
    "both are stated": (one(cpus_per_task=1, min_mem_per_node=1000), where(Known(VISION, 100 * GIB)), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_what_is_open(name):
    job, context, expected = OPEN[name]
    assert edits(job, context) == expected


def test_threads_of_a_core_are_given_out_together():
    """72 hyperthreads for 8 GPUs: 9 for each would be 5 cores, and the eighth GPU would find 1 core left."""
    hosts = [
        Node(**{**_fields(host), "threads_per_core": 2}) for host in nodes("n[1-8]", {"a100": 8}, cpus=72)
    ]
    assert edits(one(), where(hosts=hosts))["cpus_per_tres"] == "gres:gpu:8"


def test_memory_that_a_node_keeps_to_itself_is_no_jobs():
    hosts = [Node(**{**_fields(host), "memory_reserved": 20 << 30}) for host in nodes("n[1-8]", {"a100": 8})]
    assert edits(one(8, shared=0), where(hosts=hosts)) == {"min_mem_per_node": 480 * GIB}


def _fields(node: Node) -> dict[str, Any]:
    return {name: getattr(node, name) for name in node.__slots__}


@pytest.mark.parametrize(
    ("tasks", "gpus", "expected"),
    [(8, 8, 8), (4, 8, 16), (16, 8, 4), (2, 1, 4), (3, 8, 21), (8, 1, None), (64, 8, None)],
)
def test_stated_tasks_get_their_part_each(tasks, gpus, expected):
    job = one(gpus, num_tasks=tasks, min_mem_per_node=1000)
    found = edits(job, where(), {"SLURM_NTASKS": str(tasks)})
    assert found == ({} if expected is None else {"cpus_per_task": expected})


@pytest.mark.parametrize(
    ("job", "env", "field", "value"),
    [
        (one(4, num_tasks=8, ntasks_per_tres=2), {"SLURM_NTASKS": "8"}, "cpus_per_task", 4),
        (one(4, ntasks_per_tres=2), {}, "cpus_per_tres", "gres:gpu:8"),
    ],
)
def test_tasks_per_gpu_get_the_share_that_slurms_default_does_not_give_them(job, env, field, value):
    """DefCpuPerGPU does not count there: 12 tasks on 12 GPUs had 12 CPUs."""
    assert edits(job, where(default_cpus_per_gpu=8), env)[field] == value
    assert field not in edits(one(4), where(default_cpus_per_gpu=8))


@pytest.mark.parametrize(
    ("job", "memory"),
    [
        (one(cpus_per_task=60, pn_min_cpus=60), None),  # Slurm gives 60 x 8000M
        (one(cpus_per_task=2, pn_min_cpus=2), 64000),
        (one(pn_min_cpus=60), None),
        (one(threads_per_core=1), None),  # how many CPUs Slurm will count is open
        (Job(tres_per_job="gres:gpu:13", cpus_per_tres="gres:gpu:16"), None),
        (Job(tres_per_job="gres:gpu:13", num_tasks=8, cpus_per_task=16), None),
        (Job(tres_per_job="gres:gpu:13", cpus_per_tres="gres:gpu:2"), "gres:gpu:64000"),
    ],
)
def test_memory_by_the_cpu_that_stated_cpus_bring_is_not_taken_away(job, memory):
    made = edits(job, where(default_memory_per_cpu=8000 << 20))
    assert made.get("min_mem_per_node", made.get("mem_per_tres")) == memory


def test_tasks_that_nobody_stated_leave_the_script_its_choice():
    """It may say `srun -n 8`, which CPUs by the task would be too many for."""
    job = one(8, num_tasks=1, min_mem_per_node=1000)
    assert edits(job, where()) == {"cpus_per_tres": "gres:gpu:8"}


def test_several_nodes_are_counted_by_the_node():
    job = Job(tres_per_node="gres:gpu:4", min_nodes=2, max_nodes=2, num_tasks=8, ntasks_per_node=4)
    assert edits(job, where(), {"SLURM_NTASKS": "8"}) == {"cpus_per_task": 8, "min_mem_per_node": 256000}


def test_an_open_shape_is_counted_by_the_gpu_and_never_above_the_share():
    job = Job(tres_per_job="gres:gpu:13")
    assert edits(job, where(Known(VISION))) == {
        "cpus_per_tres": "gres:gpu:8",
        "mem_per_tres": "gres:gpu:64000",
    }
    assert edits(job, where(Known(LANGUAGE)))["cpus_per_tres"] == "gres:gpu:1"


def test_the_prefix_is_that_of_the_release():
    newer = SlurmFacts((24, 11), 300, "flat", memory_tracked=True)
    assert edits(one(tres_per_node="gres/gpu:1"), where(facts=newer))["cpus_per_tres"] == "gres/gpu:8"


def test_the_reason_says_share_or_knee():
    assert decided(one(), where()).say == (
        "gsub would set --cpus-per-gpu=8 (not stated before): a GPU's share of its node is 8",
        "gsub would set --mem=64000M (not stated before): a GPU's share of its node is 62.5G",
    )
    measured = decided(one(), where(Known(VISION))).say[0]
    assert measured.endswith(
        "its throughput is at its best from 16 CPUs for each GPU on (measured in 5 runs)"
    )


def test_what_was_tried_with_few_cpus_only_says_nothing_of_more():
    rising = Curve(((1, 0.25), (2, 0.5), (4, 1.0)))
    assert edits(one(), where(Known(rising))) == edits(one(), where())
    assert "never tried with more than 4" in decided(one(), where(Known(rising))).say[0]
    flat = Curve(((2, 0.999), (4, 1.0)))
    assert edits(one(), where(Known(flat)))["cpus_per_tres"] == "gres:gpu:2"


def test_explain_has_the_figures():
    cpus, memory = decided(one(), where(Known(VISION, 10 * GIB), site=Resources(max_cpus_per_gpu=12))).notes
    figures = {"share": 8, "knee": 16, "cap": 12, "cpus_per_gpu": 12}
    assert cpus.inputs == figures | {"gpu_type": "a100", "workload": "k"}
    assert memory.inputs["memory_peak"] == 10 * GIB and memory.inputs["memory_per_gpu"] == 64000


def test_a_peak_that_no_node_has_is_told():
    notes = decided(one(8), where(Known(memory_peak=100 * GIB))).notes
    assert any("measured peak of 100G" in note.text for note in notes)


# --- what is stated -------------------------------------------------------------------------------------------------

RETUNE = {
    # retune, job, what is known -> edits
    "off": ("off", one(cpus_per_tres="gres:gpu:16"), Known(LANGUAGE), {}),
    "less on evidence, to a quarter": ("lower", one(cpus_per_tres="gres:gpu:16"), Known(LANGUAGE), of(4, None)),
    "less on evidence, to the knee": (
        "lower", one(cpus_per_tres="gres:gpu:32"), Known(VISION), of(16, None)),
    "not less without": ("lower", one(cpus_per_tres="gres:gpu:16"), NOTHING, {}),
    "not less on weak evidence": ("lower", one(cpus_per_tres="gres:gpu:16"), Known(NOISY), {}),
    "lower does not raise": ("lower", one(cpus_per_tres="gres:gpu:2"), NOTHING, {}),
    "both raises to the share": ("both", one(cpus_per_tres="gres:gpu:2"), NOTHING, of(8, None)),
    "both raises to the knee": ("both", one(cpus_per_tres="gres:gpu:2"), Known(VISION), of(16, None)),
    "by the task": ("lower", one(8, cpus_per_task=8, num_tasks=8), Known(LANGUAGE), {"cpus_per_task": 2}),
    "by the task, more": ("both", one(4, cpus_per_task=2, num_tasks=4), NOTHING, {"cpus_per_task": 8}),
    "memory by the CPU keeps the CPUs": (
        "lower", one(8, cpus_per_task=8, num_tasks=8, min_mem_per_cpu=4000), Known(LANGUAGE), {}),
    "as stated": ("both", one(cpus_per_tres="gres:gpu:8"), NOTHING, {}),
    "memory, down to what was measured": (
        "lower", one(cpus_per_task=8, min_mem_per_node=200 * GIB), Known(memory_peak=100 * GIB),
        {"min_mem_per_node": 120 * GIB}),
    "memory, no less than the share": (
        "lower", one(cpus_per_task=8, min_mem_per_node=200 * GIB), Known(memory_peak=GIB), {"min_mem_per_node": 64000}),
    "memory, no less than a quarter": (
        "lower", one(cpus_per_task=8, min_mem_per_node=400 * GIB), Known(memory_peak=GIB),
        {"min_mem_per_node": 100 * GIB}),
    "memory, not without a measured peak": ("lower", one(cpus_per_task=8, min_mem_per_node=400 * GIB), NOTHING, {}),
    "memory, up": ("both", one(cpus_per_task=8, min_mem_per_node=GIB), NOTHING, {"min_mem_per_node": 64000}),
    "memory by the GPU": (
        "lower", one(cpus_per_task=8, mem_per_tres="gres:gpu:204800"), Known(memory_peak=100 * GIB),
        {"mem_per_tres": f"gres:gpu:{120 * GIB}"}),
    "all of the node's memory": ("lower", one(cpus_per_task=8, min_mem_per_node=0), Known(memory_peak=GIB), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", RETUNE)
def test_what_is_stated(name):
    retune, job, known, expected = RETUNE[name]
    if (
        not job.min_mem_per_node
        and not job.mem_per_tres
        and job.min_mem_per_node != 0
        and not job.min_mem_per_cpu
    ):
        known = Known(known.known.curve)
        found = edits(job, where(known, retune=retune, facts=SlurmFacts((22, 5))))
    else:
        found = edits(job, where(known, retune=retune))
    assert found == expected


@pytest.mark.parametrize(
    ("site", "env", "comment", "changes"),
    [
        ("off", {"GSUB_RETUNE": "lower"}, None, True),
        ("lower", {"GSUB_RETUNE": "off"}, None, False),
        ("off", {}, "gsub:retune=both", True),
        ("both", {}, "gsub:retune=no", False),
        ("lower", {"GSUB_RETUNE": "nonsense"}, None, True),
        ("off", {}, None, False),
    ],
)
def test_the_jobs_own_word_counts_before_the_sites(site, env, comment, changes):
    job = one(cpus_per_tres="gres:gpu:16", min_mem_per_node=1, comment=comment)
    assert bool(edits(job, where(Known(LANGUAGE), retune=site), env)) is changes


def test_a_change_of_what_was_stated_says_how_to_undo_it():
    (line,) = decided(
        one(cpus_per_tres="gres:gpu:16", min_mem_per_node=1), where(Known(LANGUAGE), retune="lower")
    ).say
    assert line.startswith("gsub would set --cpus-per-gpu=4 (was --cpus-per-gpu=16)")
    assert line.endswith("GSUB_RETUNE=off keeps what you state")


# --- switched off ---------------------------------------------------------------------------------------------------

MEASURED = Known(VISION, memory_peak=100 * GIB)
BY_CURVE, BY_SHARE, BY_NOTHING = of(16, 120), of(8, 62.5), of(None, None)


@pytest.mark.parametrize(
    ("site", "env", "comment", "expected", "said"),
    [
        ("on", {}, None, BY_CURVE, ""),
        ("on", {"GSUB_SENSITIVITY": "share"}, None, BY_SHARE, "this workload does not count: the job"),
        ("on", {"GSUB_SENSITIVITY": "OFF"}, None, BY_NOTHING, "CPUs and memory are left alone: the job"),
        ("on", {}, "a,gsub:sensitivity=no", BY_NOTHING, "CPUs and memory are left alone: the job"),
        ("share", {}, None, BY_SHARE, "does not count: the site says so (policy.sensitivity = share)"),
        ("off", {}, None, BY_NOTHING, "left alone: the site says so (policy.sensitivity = off)"),
        ("off", {"GSUB_SENSITIVITY": "on"}, None, BY_CURVE, ""),
        ("off", {}, "gsub:sensitivity", BY_CURVE, ""),
        ("on", {"GSUB_SENSITIVITY": "nonsense"}, None, BY_CURVE, ""),
        ("on", {"GSUB_RETUNE": "off"}, None, BY_CURVE, ""),  # which is about what is stated
    ],
)
def test_what_was_measured_or_all_of_it_can_be_switched_off(site, env, comment, expected, said):
    job, here = one(comment=comment), where(MEASURED, by=site)
    assert edits(job, here, env) == expected
    notes = " / ".join(note.text for note in decided(job, here, env).notes)
    assert said in notes and bool(said) == ("says so" in notes)


def test_switched_off_leaves_stated_values_alone_too():
    job = one(cpus_per_tres="gres:gpu:16", min_mem_per_node=400 * GIB)
    assert edits(job, where(Known(LANGUAGE), retune="both"))
    for by in ("share", "off"):
        assert edits(job, where(Known(LANGUAGE), retune="lower", by=by)) == {}


# --- whatever is asked ----------------------------------------------------------------------------------------------

small = st.none() | st.integers(0, 70)
texts = st.sampled_from(
    [None, "gres:gpu:8", "gres:gpu:1", "gres:gpu:a100:3", "gres:gpu:13", "gres/gpu:4", "gres:x:1"]
)
jobs = st.builds(
    Job,
    min_nodes=st.none() | st.integers(1, 9), max_nodes=st.none() | st.integers(1, 9),
    num_tasks=small, ntasks_per_node=small, cpus_per_task=small, threads_per_core=st.sampled_from([None, None, 1]),
    tres_per_node=texts, tres_per_job=texts, tres_per_task=texts, cpus_per_tres=texts, mem_per_tres=texts,
    min_mem_per_node=st.none() | st.integers(0, 600 * GIB), min_mem_per_cpu=st.none() | st.integers(0, 100 * GIB),
    shared=st.sampled_from([None, None, 0, 1]),
    comment=st.sampled_from([None, "gsub:retune=both", "gsub:retune=lower"]),
)  # fmt: skip
curves = st.none() | st.builds(
    lambda points, uncertainty: Curve(tuple(points), (), uncertainty), points, st.floats(0, 0.2)
)
peaks = st.none() | st.integers(1, 600 * GIB)
sites = st.builds(
    Resources,
    st.none() | st.integers(1, 70), st.none() | st.integers(1, 600 * GIB),
    st.integers(0, 70), st.integers(0, 600 * GIB),
)  # fmt: skip
envs = st.sampled_from([{}, {"SLURM_NTASKS": "8"}])


@given(jobs, curves, peaks, sites, st.sampled_from(["off", "lower", "both"]), envs)
def test_caps_hold_shares_are_kept_and_what_was_stated_stays(job, curve, peak, site, retune, env):
    context = where(Known(curve, peak), site=site, retune=retune)
    found = edits(job, context, env)
    cap, low = site.max_cpus_per_gpu, min(8, site.max_cpus_per_gpu or 8)
    stated = job.cpus_per_task or job.cpus_per_tres
    if "cpus_per_tres" in found:
        cpus = int(str(found["cpus_per_tres"]).rpartition(":")[2])
        assert cpus <= 64 and (stated or cap is None or cpus <= cap)
        if curve is None and not job.cpus_per_tres:
            assert cpus >= low
    may_change = retune != "off" or job.comment is not None
    for field in ("cpus_per_task", "cpus_per_tres", "min_mem_per_node", "mem_per_tres"):
        assert field not in found or may_change or getattr(job, field) in (None, 0)
    assert "min_mem_per_cpu" not in found
    if "min_mem_per_node" in found:
        assert 0 < int(str(found["min_mem_per_node"])) <= 500 * GIB or job.min_mem_per_node


@given(st.integers(1, 8), curves, peaks, sites)
def test_the_other_gpus_of_a_node_keep_their_minimum(gpus, curve, peak, site):
    """As far as the share allows it: that is what the others would have anyway."""
    found = edits(one(gpus), where(Known(curve, peak), site=site))
    cpus = int(str(found.get("cpus_per_tres", "gres:gpu:0")).rpartition(":")[2])
    memory = int(str(found.get("min_mem_per_node", 0)))
    others = 8 - gpus
    assert cpus * gpus <= max(64 - others * site.keep_cpus_per_gpu, 8 * gpus)
    assert memory <= max(500 * GIB - others * site.keep_memory_per_gpu, 64000 * gpus)


@given(st.integers(1, 8), curves, st.integers(1, 300 * GIB))
def test_memory_keeps_its_distance_from_the_peak_wherever_there_is_room(gpus, curve, peak):
    found = edits(one(gpus), where(Known(curve, peak), site=Resources(keep_memory_per_gpu=0)))
    room = 500 * GIB // gpus
    assert int(str(found["min_mem_per_node"])) >= gpus * min(int(peak * HEADROOM), room)


@given(jobs, curves, peaks, envs)
def test_a_second_look_changes_nothing(job, curve, peak, env):
    job = msgspec.structs.replace(job, comment=None)  # a quarter of a quarter is less
    context = where(Known(curve, peak))
    first = decide(Request(id=1, uid=1, job=job, env=env), context, decision_id="d-0", stages=[Sensitivity()])
    again = with_edits(Request(id=1, uid=1, job=job, env=env), first.edits, first.env)
    # The mark of a decision is no word of the user's: an environment that holds nothing else tells nothing of tasks.
    second = edits(
        again.job, context, {name: value for name, value in again.env.items() if name != "GSUB_DECISION"}
    )
    assert second == {}
