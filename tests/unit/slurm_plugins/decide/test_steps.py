"""What goes with an edit: variables, fields, spelling, refusals. What Slurm does: tests/slurm/decide/test_steps.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_configs.site_model import Site
from slurm_plugins.decide.context import Context, SlurmFacts
from slurm_plugins.decide.edits import EDITS, Value, check_env
from slurm_plugins.decide.pipeline import decide
from slurm_plugins.decide.request import Job, Request, with_edits
from slurm_plugins.decide.stage import Change, Proposal, Stage
from slurm_plugins.decide.steps import ENV_NAMES, complete, mirrors
from tests.unit.slurm_plugins.decide.cluster import CLUSTERS

OLD, NEW = (22, 5), (24, 11)
RELEASES = [(0, 0), OLD, (23, 2), (23, 11), NEW, (26, 5)]


def ask(env: Mapping[str, str] | None = None, *, batch: bool = True, **job: Any) -> Request:
    return Request(id=1, uid=1000, job=Job(**job), env=dict(env or {}), batch=batch)


# --- variables ------------------------------------------------------------------------------------------------------

CPUS = {"SLURM_CPUS_PER_TASK": "6"}
# What sbatch wrote, edits, release -> what is written with them.
WRITTEN: list[tuple[dict[str, str], dict[str, Value], tuple[int, int], dict[str, str]]] = [
    # srun takes nodes, whole nodes and place from the allocation
    ({}, {"min_nodes": 2, "max_nodes": 2}, OLD, {}),
    ({}, {"shared": 0, "req_switch": 1, "wait4switch": 60, "exc_nodes": "n3", "features": "a"}, OLD, {}),
    ({"SLURM_NTASKS": "8", "SLURM_NPROCS": "8"}, {"num_tasks": 4}, OLD, {"SLURM_NTASKS": "4", "SLURM_NPROCS": "4"}),
    ({}, {"num_tasks": 4}, NEW, {"SLURM_NTASKS": "4", "SLURM_NPROCS": "4"}),
    ({"SLURM_NTASKS_PER_NODE": "1"}, {"ntasks_per_node": 2}, OLD, {"SLURM_NTASKS_PER_NODE": "2"}),
    # the user's tasks, only their places closed: no word of ours for a `srun -n 1` to stumble over
    ({"SLURM_NTASKS": "4"}, {"ntasks_per_node": 2}, OLD, {}),
    (
        {},
        {"ntasks_per_node": 2, "num_tasks": 4},
        OLD,
        {"SLURM_NTASKS_PER_NODE": "2", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4"},
    ),
    # --gpus and --gres leave nothing that counts GPUs by the node
    ({"SLURM_GPUS": "16"}, {"gres": "gpu:8"}, OLD, {}),
    ({"SLURM_GPUS_PER_NODE": "4"}, {"gres": "gpu:8"}, NEW, {"SLURM_GPUS_PER_NODE": "8"}),
    ({"SLURM_GPUS_PER_NODE": "k80:4"}, {"gres": "gres/gpu:k80:8,gres/shard:2"}, NEW, {"SLURM_GPUS_PER_NODE": "k80:8"}),
    ({"SLURM_GPUS_PER_NODE": "4"}, {"gres": "shard:2"}, NEW, {}),
    ({"SLURM_GRES": "gpu:4"}, {"gres": "gres:gpu:8,gres:shard:2"}, OLD, {"SLURM_GRES": "gpu:8,shard:2"}),
    (CPUS, {"cpus_per_task": 3}, OLD, {"SLURM_CPUS_PER_TASK": "3", "SRUN_CPUS_PER_TASK": "3"}),
    (CPUS, {"cpus_per_task": 3}, (0, 0), {"SLURM_CPUS_PER_TASK": "3", "SRUN_CPUS_PER_TASK": "3"}),
    (CPUS, {"cpus_per_task": 3}, NEW, {"SLURM_CPUS_PER_TASK": "3"}),
    ({}, {"cpus_per_task": 3}, NEW, {"SLURM_CPUS_PER_TASK": "3"}),
    ({"SRUN_CPUS_PER_TASK": "6"}, {"cpus_per_task": 3}, NEW, {"SLURM_CPUS_PER_TASK": "3", "SRUN_CPUS_PER_TASK": "3"}),
    (
        {**CPUS, "SLURM_TRES_PER_TASK": "cpu=6,gres/gpu=1"},
        {"cpus_per_task": 3},
        NEW,
        {"SLURM_CPUS_PER_TASK": "3", "SLURM_TRES_PER_TASK": "cpu=3,gres/gpu=1"},
    ),
    (
        {**CPUS, "SLURM_TRES_PER_TASK": "gres/gpu:1,cpu:6"},
        {"cpus_per_task": 3},
        NEW,
        {"SLURM_CPUS_PER_TASK": "3", "SLURM_TRES_PER_TASK": "gres/gpu:1,cpu:3"},
    ),
    ({"SLURM_TRES_PER_TASK": "gres/gpu=1"}, {"cpus_per_task": 3}, NEW, {"SLURM_CPUS_PER_TASK": "3"}),
    ({"SLURM_CPUS_PER_GPU": "6"}, {"cpus_per_tres": "gres:gpu:4"}, OLD, {"SLURM_CPUS_PER_GPU": "4"}),
    ({}, {"cpus_per_tres": "gres:gpu:4"}, OLD, {}),
    ({"SLURM_MEM_PER_GPU": "1024"}, {"mem_per_tres": "gres/gpu:3000"}, NEW, {"SLURM_MEM_PER_GPU": "3000"}),
    ({}, {"mem_per_tres": "gres/gpu:3000"}, NEW, {}),
    ({}, {"min_mem_per_node": 3000}, OLD, {}),
    # it says so already
    ({"SLURM_NTASKS": "4", "SLURM_NPROCS": "4"}, {"num_tasks": 4}, OLD, {}),
]  # fmt: skip


@pytest.mark.parametrize(("env", "edits", "release", "written"), WRITTEN)
def test_variables_go_with_their_fields(env, edits, release, written):
    found = mirrors(ask(env), edits, release)
    assert dict(found.env) == written
    assert not found.refused


def test_an_exclusive_jobs_step_is_told_its_gpus_by_the_node():
    # it has more than it asked for: --gpus=12 on 2 x 8 would be a step of 8 + 4
    found = mirrors(ask({"SLURM_GPUS": "12"}, tres_per_job="gres:gpu:12", shared=0), {"gres": "gpu:6"}, OLD)
    assert dict(found.env) == {"SLURM_GPUS_PER_NODE": "6"}


def test_per_gpu_and_per_task_go_together_where_sbatch_made_both():
    # --cpus-per-gpu=3 --gpus-per-task=1: sbatch mirrors the first only
    job = ask({"SLURM_CPUS_PER_GPU": "3"}, cpus_per_tres="gres:gpu:3", cpus_per_task=3)
    found = mirrors(job, {"cpus_per_tres": "gres:gpu:5", "cpus_per_task": 5}, OLD)
    assert (dict(found.env), dict(found.refused)) == ({"SLURM_CPUS_PER_GPU": "5"}, {})


# --- refusals -------------------------------------------------------------------------------------------------------

# What the job states, variables that are there, and the edit that would leave it with a script that fails.
REFUSED: list[tuple[dict[str, Any], dict[str, str], dict[str, Value], str]] = [
    ({"mem_per_tres": "gres:gpu:1024"}, {"SLURM_MEM_PER_GPU": "1024"}, {"min_mem_per_node": 9000}, "min_mem_per_node"),
    ({"mem_per_tres": "gres:gpu:1024"}, {}, {"min_mem_per_cpu": 900}, "min_mem_per_cpu"),
    ({"min_mem_per_node": 4096}, {}, {"mem_per_tres": "gres:gpu:1024"}, "mem_per_tres"),
    ({"min_mem_per_cpu": 4096}, {}, {"mem_per_tres": "gres:gpu:1024"}, "mem_per_tres"),
    # submitted from a shell inside a job, which leaves that job's variables
    ({}, {"SLURM_MEM_PER_CPU": "100"}, {"min_mem_per_node": 9000}, "min_mem_per_node"),
    ({}, {"SLURM_MEM_PER_NODE": "100"}, {"min_mem_per_cpu": 900}, "min_mem_per_cpu"),
    ({}, {"SLURM_MEM_PER_CPU": "100"}, {"mem_per_tres": "gres:gpu:1024"}, "mem_per_tres"),
    ({}, {"SLURM_CPUS_PER_TASK": "8"}, {"cpus_per_tres": "gres:gpu:4"}, "cpus_per_tres"),
    ({}, {"SLURM_CPUS_PER_GPU": "8"}, {"cpus_per_task": 4}, "cpus_per_task"),
    ({"cpus_per_task": 4}, CPUS, {"cpus_per_tres": "gres:gpu:4"}, "cpus_per_tres"),
    ({"cpus_per_tres": "gres:gpu:4"}, {}, {"cpus_per_task": 4}, "cpus_per_task"),
    ({"ntasks_per_tres": 2}, {"SLURM_NTASKS_PER_GPU": "2"}, {"ntasks_per_node": 4}, "ntasks_per_node"),
    ({"ntasks_per_tres": 2}, {"SLURM_NTASKS_PER_GPU": "2"}, {"num_tasks": 4}, "num_tasks"),
    ({"tres_per_socket": "gres:gpu:1"}, {"SLURM_GPUS_PER_SOCKET": "1"}, {"gres": "gpu:2"}, "gres"),
    ({"tres_per_job": "gres:gpu:16"}, {}, {"gres": "gpu:6", "min_nodes": 2, "max_nodes": 2}, "gres"),
    ({"tres_per_job": "gres/gpu:a100:4", "min_nodes": 2, "max_nodes": 2}, {}, {"gres": "gpu:a100:3"}, "gres"),
]  # fmt: skip


@pytest.mark.parametrize(("job", "env", "edits", "field"), REFUSED)
def test_what_a_stale_variable_contradicts_is_refused(job, env, edits, field):
    assert list(mirrors(ask(env, **job), edits, OLD).refused) == [field]


def test_the_same_total_in_another_shape_is_not_refused():
    job = ask(tres_per_job="gres:gpu:a100:12,gres:gpu:v100:4")
    assert not mirrors(job, {"gres": "gpu:8", "min_nodes": 2, "max_nodes": 2}, OLD).refused
    assert not mirrors(ask(tres_per_job="gres:gpu:16"), {"gres": "gpu:8"}, OLD).refused, (
        "how many nodes is open"
    )
    assert not mirrors(ask(tres_per_job="?!"), {"gres": "gpu:8", "min_nodes": 2, "max_nodes": 2}, OLD).refused


# salloc and srun: what the job states, the edits, what of them is refused.
TYPED: list[tuple[dict[str, Any], dict[str, Value], set[str]]] = [
    ({"tres_per_job": "gres:gpu:4"}, {"min_nodes": 2, "max_nodes": 2, "gres": "gpu:2"}, set()),
    ({"num_tasks": 4}, {"ntasks_per_node": 2}, set()),
    ({"ntasks_per_node": 1}, {"ntasks_per_node": 2}, {"ntasks_per_node"}),
    ({"tres_per_node": "gres:gpu:1"}, {"gres": "gpu:2"}, {"gres"}),
    ({}, {"num_tasks": 4}, {"num_tasks"}),
    ({}, {"cpus_per_task": 4}, {"cpus_per_task"}),
    ({}, {"cpus_per_tres": "gpu:4", "mem_per_tres": "gpu:1000"}, set()),
    ({"cpus_per_tres": "gpu:6"}, {"cpus_per_tres": "gpu:4"}, {"cpus_per_tres"}),
    ({"mem_per_tres": "gpu:6"}, {"mem_per_tres": "gpu:4"}, {"mem_per_tres"}),
    ({"min_mem_per_node": 100}, {"min_mem_per_node": 200, "shared": 0, "req_switch": 1}, set()),
]  # fmt: skip


@pytest.mark.parametrize(("job", "edits", "refused"), TYPED)
def test_a_job_without_an_environment_is_left_what_was_typed(job, edits, refused):
    found = mirrors(ask(batch=False, **job), edits, NEW)
    assert set(found.refused) == refused
    assert not found.env


# --- fields ---------------------------------------------------------------------------------------------------------

# What the job states, the edits, and what they become.
COMPLETED: list[tuple[dict[str, Any], dict[str, Value], dict[str, Value]]] = [
    ({"num_tasks": 2, "cpus_per_task": 3, "pn_min_cpus": 3, "min_cpus": 6}, {"cpus_per_task": 5},
     {"cpus_per_task": 5, "min_cpus": 10, "pn_min_cpus": 5}),
    # --mincpus is the user's own
    ({"num_tasks": 2, "cpus_per_task": 3, "pn_min_cpus": 8, "min_cpus": 6}, {"cpus_per_task": 5},
     {"cpus_per_task": 5, "min_cpus": 10}),
    ({"num_tasks": 2, "min_cpus": 2}, {"cpus_per_task": 5}, {"cpus_per_task": 5, "min_cpus": 10}),
    ({}, {"cpus_per_task": 5}, {"cpus_per_task": 5, "min_cpus": 5}),
    ({"min_nodes": 2, "ntasks_per_node": 3}, {"cpus_per_task": 5}, {"cpus_per_task": 5, "min_cpus": 30}),
    ({}, {"cpus_per_task": 5, "min_nodes": 2, "ntasks_per_node": 4},
     {"cpus_per_task": 5, "min_nodes": 2, "ntasks_per_node": 4, "min_cpus": 40}),
    ({"num_tasks": 2}, {"cpus_per_task": 5, "num_tasks": 4}, {"cpus_per_task": 5, "num_tasks": 4, "min_cpus": 20}),
    ({"num_tasks": 8, "cpus_per_task": 2, "min_cpus": 16}, {"num_tasks": 4}, {"num_tasks": 4, "min_cpus": 8}),
    ({"num_tasks": 2}, {"cpus_per_task": 5, "min_cpus": 11}, {"cpus_per_task": 5, "min_cpus": 11}),
    ({"cpus_per_tres": "gres:gpu:6", "min_cpus": 24, "tres_per_node": "gres:gpu:2"}, {"cpus_per_tres": "gpu:4"},
     {"cpus_per_tres": "gres:gpu:4", "min_cpus": 16}),
    ({"min_cpus": 1, "tres_per_job": "gres:gpu:2"}, {"cpus_per_tres": "gpu:4"}, {"cpus_per_tres": "gres:gpu:4"}),
    ({"num_tasks": 2, "cpus_per_task": 6, "cpus_per_tres": "gres/gpu:3", "min_cpus": 12, "tres_per_task": "gres/gpu=2"},
     {"cpus_per_tres": "gpu:5"}, {"cpus_per_tres": "gres/gpu:5", "cpus_per_task": 10, "min_cpus": 20}),
    ({"min_nodes": 4, "min_cpus": 4}, {"min_nodes": 2, "max_nodes": 2}, {"min_nodes": 2, "max_nodes": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("job", "edits", "full"), COMPLETED)
def test_fields_that_slurm_counts_with_follow(job, edits, full):
    assert complete(ask(**job), edits, OLD) == full


ONE: dict[str, Value] = {"min_nodes": 1, "max_nodes": 1}


@pytest.mark.parametrize(
    ("job", "edits", "release", "gres"),
    [
        ({"tres_per_job": "gres/gpu:4"}, ONE, (26, 5), "gpu:4"),
        ({"tres_per_job": "gres/gpu:a100:4"}, ONE, (0, 0), "gpu:a100:4"),
        ({"tres_per_job": "gres/gpu:4", "min_nodes": 1}, {"max_nodes": 1}, (26, 5), "gpu:4"),
        ({"tres_per_job": "gres:gpu:4"}, ONE, (24, 11), None),
        ({"tres_per_job": "gres/gpu:4"}, {"min_nodes": 2, "max_nodes": 2}, (26, 5), None),
        ({"tres_per_job": "gres/gpu:4"}, {"shared": 0}, (26, 5), None),
        ({"tres_per_job": "gres/gpu:4", "tres_per_node": "gres/nvme:1"}, ONE, (26, 5), None),
        ({"tres_per_job": "gres/gpu:4", "tres_per_socket": "gres/gpu:2"}, ONE, (26, 5), None),
        ({"tres_per_job": "gres/nvme:4"}, ONE, (26, 5), None),
        ({"tres_per_task": "gres/gpu=4"}, ONE, (26, 5), None),
    ],
)
def test_a_total_on_one_node_is_said_by_the_node_too(job, edits, release, gres):
    assert complete(ask(**job), edits, release) == {**edits, **({"gres": gres} if gres else {})}


@pytest.mark.parametrize(
    ("job", "release", "spelled"),
    [
        ({}, (0, 0), "gres:gpu:4"),
        ({}, (23, 2), "gres:gpu:4"),
        ({}, (23, 11), "gres/gpu:4"),
        ({"tres_per_job": "gres/gpu:2"}, (0, 0), "gres/gpu:4"),
        ({"tres_per_node": "gres:gpu:2"}, (26, 5), "gres:gpu:4"),  # what the job itself says counts
        ({"tres_per_task": "cpu=2,gres/gpu=2"}, (0, 0), "gres/gpu:4"),
    ],
)
@pytest.mark.parametrize("text", ["gpu:4", "gres:gpu:4", "gres/gpu:4"])
def test_resources_are_spelled_as_the_release_has_them(job, release, spelled, text):
    for name in ("cpus_per_tres", "mem_per_tres"):
        assert complete(ask(**job), {name: text}, release) == {name: spelled}
    assert complete(ask(**job), {"gres": text}, release) == {"gres": "gpu:4"}, "Lua puts the prefix there"


# --- in the pipeline ------------------------------------------------------------------------------------------------


class _Wants(Stage):
    name = "wants"

    def __init__(self, **edits: Value) -> None:
        self.edits = edits

    def decide(self, request: Request, context: Context) -> Proposal:
        return Proposal(tuple(Change(name, None, value, "so") for name, value in self.edits.items()))


def _decide(request: Request, **edits: Value) -> Any:
    cluster = CLUSTERS["two-leaves"]()
    return decide(request, cluster, decision_id="d-0123456789abcdef", stages=[_Wants(**edits)])


def test_the_pipeline_completes_and_mirrors_a_stages_edits():
    job = ask(CPUS, num_tasks=2, cpus_per_task=6, pn_min_cpus=6, min_cpus=12, tres_per_node="gres:gpu:2")
    decision = _decide(job, cpus_per_task=3)
    assert {name: decision.edits[name] for name in ("cpus_per_task", "min_cpus", "pn_min_cpus")} == {
        "cpus_per_task": 3,
        "min_cpus": 6,
        "pn_min_cpus": 3,
    }
    assert decision.env["SLURM_CPUS_PER_TASK"] == "3"
    assert len([line for line in decision.say if "CPU" in line or "cpus" in line]) == 1, (
        "one line for the user"
    )
    # the unstated companions have their former value on record
    assert {c.field: c.before for c in decision.changes}["min_cpus"] == 12


def test_a_refused_edit_takes_its_stage_along():
    job = ask({"SLURM_MEM_PER_GPU": "1024"}, mem_per_tres="gres:gpu:1024", tres_per_job="gres:gpu:2")
    decision = _decide(job, min_mem_per_node=9000, min_nodes=1)
    assert set(decision.edits) <= {"admin_comment"}
    assert set(decision.env) == {"GSUB_DECISION"}
    assert any("--mem" in note.text and "GPU" in note.text for note in decision.notes)


def test_facts_without_a_release_serve_too():
    assert mirrors(
        ask(CPUS), {"cpus_per_task": 2}, Context(Site(cluster="c"), slurm=SlurmFacts()).slurm.release
    ).env


# --- whatever comes -------------------------------------------------------------------------------------------------

_TRES_FIELDS = ("tres_per_job", "tres_per_node", "cpus_per_tres", "mem_per_tres")
_COUNT_FIELDS = ("num_tasks", "cpus_per_task", "min_cpus", "pn_min_cpus", "min_nodes", "max_nodes")
_GOOD_TRES = st.sampled_from(["gpu:4", "gres:gpu:a100:2", "gres/gpu:1,gres/shard:2", "gpu"])
_VALUES = {
    name: st.integers(edit.low, min(edit.high, 65_000)) if edit.kind == "int" else _GOOD_TRES
    for name, edit in EDITS.items()
}
_TEXT = st.text(max_size=40)
_TRES = (
    st.sampled_from([None, "gres:gpu:2", "gres/gpu:a100:2", "cpu=3,gres/gpu=1", "?", ""]) | _GOOD_TRES | _TEXT
)
_JOBS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(_TRES_FIELDS, _TRES),
        **dict.fromkeys(_COUNT_FIELDS, st.none() | st.integers(-1, 70_000)),
    },
)
_ENV = st.dictionaries(st.sampled_from(sorted(ENV_NAMES)), st.sampled_from(["4", "cpu=3", "a100:2"]) | _TEXT)


@given(_JOBS, _ENV, st.fixed_dictionaries({}, optional=_VALUES), st.sampled_from(RELEASES), st.booleans())
def test_nothing_escapes_the_tables(job, env, edits, release, batch):
    request = ask(env, batch=batch, **job)
    full = complete(request, edits, release)
    assert set(edits) <= set(full) <= set(EDITS)
    found = mirrors(request, full, release)
    assert set(found.env) <= ENV_NAMES
    assert set(found.refused) <= set(full)
    assert batch or not found.env
    # Once made, the same edits have nothing more to write (but for a job that they made exclusive).
    again = mirrors(with_edits(request, full, found.env), full, release)
    assert "shared" in full or not again.env
    for name, text in found.env.items():
        check_env(name, text)


def test_a_variable_that_holds_more_than_gsub_writes_is_refused():
    found = mirrors(ask({"SLURM_TRES_PER_TASK": "cpu=6,\x1b[2J"}), {"cpus_per_task": 3}, NEW)
    assert set(found.refused) == {"cpus_per_task"}
    assert "\x1b" not in found.refused["cpus_per_task"]
