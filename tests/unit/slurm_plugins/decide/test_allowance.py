"""No change makes a job exceed a limit, take from what it shares, or cost more: it is clipped or left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugins.decide.allowance import Allowance, compute_demand
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.decision import Change, Decision, Proposal
from slurm_plugins.decide.ground import ground
from slurm_plugins.decide.pipeline import decide
from slurm_plugins.decide.request import Job, Request, with_edits
from slurm_plugins.decide.stage import Stage
from slurm_plugins.limits.billing import How, parse_weights
from slurm_plugins.limits.records import Association, Associations, Limits, Qos
from tests.unit.slurm_plugins.decide.cluster import two_leaves

UID = 1000
ONE_GPU: dict[str, Any] = {"tres_per_job": "gres:gpu:1", "num_tasks": 1, "cpus_per_task": 2, "min_cpus": 2}
"""``-n1 -c2 --gpus=1``."""


def told(user: Limits | None = None, *, account: Limits | None = None, **qos: Limits) -> Associations:
    """User 1000 in account lab, below root; QOS normal is the default one."""
    return Associations.of(
        [
            Association("root", None, "", ""),
            Association("lab", None, "", "root", limits=account or Limits()),
            Association("lab", UID, "", "", "user1", user or Limits(), is_default=True),
        ],
        [Qos(name, limits, whole=True) for name, limits in {"normal": Limits(), **qos}.items()],
    )


def site(
    limits: Associations | None = None,
    *,
    weights: str = "",
    billed: How = "sum",
    qos: str = "",
    per_cpu: int = 8000,
) -> Context:
    """The cluster of the tests: a GPU's share of a node is 8 CPUs and 62.5G; 8000M for a CPU unasked."""
    before = two_leaves()
    pools = {
        name: replace(
            pool,
            default_memory_per_cpu=per_cpu or None,
            billing=parse_weights(weights) if name == "gpu" else (),
            qos=qos if name == "gpu" else "",
        )
        for name, pool in before.inventory.pools.items()
    }
    facts = replace(before.slurm, limits_enforced=limits is not None, billed=billed, memory_tracked=True)
    return replace(before, inventory=replace(before.inventory, pools=pools), slurm=facts, associations=limits)


def asked(**job: Any) -> Request:
    return Request(id=1, uid=UID, job=Job(**{"default_account": "lab", **ONE_GPU, **job}))


def decided(request: Request, context: Context) -> Decision:
    return decide(request, context, decision_id="d-0000000000000000")


def texts(decision: Decision) -> str:
    return "\n".join(note.text for note in decision.notes)


@pytest.mark.case("F1")
def test_memory_is_clipped_to_the_users_limit() -> None:
    """Else the job waits for ever: AssocMaxMemPerJob."""
    assert decided(asked(), site()).edits["min_mem_per_node"] == 64000
    decision = decided(asked(), site(told(Limits(per_job={"mem": 40960}))))
    assert decision.edits["min_mem_per_node"] == 40960
    words = "the limit MaxTRESPerJob of the user in account lab is 40G of memory"
    assert f"--mem=40G instead of --mem=62.5G: {words}" in texts(decision).replace("64000M", "62.5G")
    assert any(words in line for line in decision.say)


SMALL = Limits(per_job={"mem": 1})
LIMITED = [
    ("the user's, of a node", told(Limits(per_node={"mem": 40960})), 40960),
    ("the account's", told(account=Limits(per_job={"mem": 40960})), 40960),
    ("the QOS's", told(normal=Limits(per_job={"mem": 40960})), 40960),
    ("a QOS takes the account's place", told(account=SMALL, normal=Limits(per_job={"mem": 10**6})), 64000),
    ("wide enough", told(Limits(per_job={"mem": 64000})), 64000),
    ("no more than it has", told(Limits(per_job={"mem": 16000})), None),
    ("less than it has", told(Limits(per_job={"mem": 8000})), None),
    ("of another resource", told(Limits(per_job={"cpu": 2})), 64000),
    ("shared by the account's jobs", told(account=Limits(shared={"GrpTRES": {"mem": 131072}})), None),
    ("shared by the user's", told(normal=Limits(shared={"MaxTRESPerUser": {"mem": 10**9}})), None),
    ("over time", told(normal=Limits(shared={"GrpTRESMins": {"mem": 10**12}})), None),
    ("of a charge", told(normal=Limits(shared={"GrpTRESMins": {"billing": 10**6}})), 64000),
]  # fmt: skip


@pytest.mark.case("F1")
@pytest.mark.parametrize(("limits", "memory"), [row[1:] for row in LIMITED], ids=[row[0] for row in LIMITED])
def test_memory_stays_within_each_limit(limits: Associations, memory: int | None) -> None:
    decision = decided(asked(), site(limits))
    assert decision.edits.get("min_mem_per_node") == memory, texts(decision)
    if memory is None:
        assert "is left out: the limit" in texts(decision)


@pytest.mark.case("F1")
def test_cpus_are_clipped_too() -> None:
    """``--gpus=1`` gets a GPU's share of 8 CPUs where no limit is in the way."""
    open_cpus = asked(cpus_per_task=None, num_tasks=None, min_cpus=None)
    assert decided(open_cpus, site(told())).edits["cpus_per_tres"] == "gres:gpu:8"
    decision = decided(open_cpus, site(told(Limits(per_job={"cpu": 5}))))
    assert decision.edits["cpus_per_tres"] == "gres:gpu:5", texts(decision)
    assert (
        "cpus_per_tres" not in decided(open_cpus, site(told(Limits(shared={"GrpTRES": {"cpu": 99}})))).edits
    )


@pytest.mark.case("F1")
@pytest.mark.case("scripts 2")
@pytest.mark.parametrize(
    ("weights", "billed", "memory", "cpus"),
    [
        ("", "sum", True, True),
        ("CPU=1,Mem=0.25G,GRES/gpu=2", "sum", False, False),
        ("GRES/gpu=2", "sum", True, True),
        ("CPU=0.1,GRES/gpu=2", "sum", True, False),
        ("Mem=0.001G,CPU=0.01,GRES/gpu=2", "max", True, True),
        ("Mem=0.25G,CPU=1,GRES/gpu=8", "max", False, False),
        ("Mem=0.25G,CPU=1,GRES/gpu=8", "max_gres", False, False),
    ],
)
def test_nothing_costs_more(weights: str, billed: How, memory: bool, cpus: bool) -> None:
    context = site(weights=weights, billed=billed)
    open_cpus = asked(cpus_per_task=None, num_tasks=None, min_cpus=None)
    decision = decided(open_cpus, context)
    assert (decision.edits.get("cpus_per_tres") == "gres:gpu:8") is cpus, texts(decision)
    assert ("it would be charged" in texts(decision)) is not cpus
    decision = decided(asked(), context)
    assert (decision.edits.get("min_mem_per_node") == 64000) is memory, texts(decision)
    assert ("it would be charged" in texts(decision)) is not memory


@pytest.mark.case("scripts 2")
@pytest.mark.parametrize(
    ("context", "exclusive"),
    [
        (site(told()), True),
        (site(weights="GRES/gpu=1"), True),
        (site(weights="CPU=1"), False),
        (site(told(Limits(per_job={"cpu": 100}))), False),
        (site(told(account=Limits(shared={"GrpTRES": {"cpu": 10000}}))), False),
        (site(told(Limits(per_node={"gres/gpu": 8}))), True),
    ],
)
def test_whole_nodes_only_where_they_cost_no_more(context: Context, exclusive: bool) -> None:
    """``-N2 --gpus-per-node=8``: all GPUs of two nodes, and CPUs that it did not ask for."""
    decision = decided(
        asked(tres_per_job=None, tres_per_node="gres:gpu:8", min_nodes=2, max_nodes=2, num_tasks=None,
              cpus_per_task=None, min_cpus=None), context
    )  # fmt: skip
    assert (decision.edits.get("shared") == 0) is exclusive, texts(decision)
    assert exclusive or "--exclusive is left out" in texts(decision)


@pytest.mark.case("scripts 1")
@pytest.mark.case("scripts 2")
def test_gpus_that_are_asked_for_twice_count_once() -> None:
    """``-N2 --gres=gpu:4 --gpus-per-node=4``: 8 GPUs, half of each node, which is not taken whole."""
    both = "gres:gpu:4,gres:gpu:4"
    job = asked(
        tres_per_job=None, tres_per_node=both, min_nodes=2, max_nodes=2, num_tasks=None, cpus_per_task=None
    )
    decision = decided(job, site())
    assert (decision.facts["gpus"], decision.reject) == (8, None)
    assert "shared" not in decision.edits
    one_node = asked(
        tres_per_job=None, tres_per_node="gres:gpu:8,gres:gpu:8", num_tasks=None, cpus_per_task=None
    )
    assert decided(one_node, site()).reject is None


class Greedy(Stage):
    """A site's own stage, which takes all that there is."""

    name = "greedy"

    def decide(self, request: Request, context: Context) -> Proposal:
        return Proposal((Change("min_nodes", None, 4, "four"), Change("max_nodes", None, 4)))


def test_a_sites_own_stage_is_held_to_it() -> None:
    context = site(told(Limits(per_job={"node": 2})))
    decision = decide(asked(), context, decision_id="d-0000000000000000", stages=(Greedy(),))
    assert decision.edits.keys() <= {"admin_comment"}
    assert "MaxTRESPerJob of the user in account lab is 2 nodes" in texts(decision)


UNKNOWN = [
    (None, "not known yet"),
    (Associations(), "what account lab allows"),
    (told(other=Limits()), ""),
    (replace(told(), qos={}), "what QOS normal allows"),
    (replace(told(), qos={"normal": Qos("normal")}), "each user and account"),
    (replace(told(), users={}), "what account lab allows its user"),
]


@pytest.mark.parametrize(("limits", "words"), UNKNOWN, ids=[row[1] or "known" for row in UNKNOWN])
def test_what_is_not_known_is_not_raised(limits: Associations | None, words: str) -> None:
    context = replace(site(told()), associations=limits)
    decision = decided(asked(), context)
    assert ("min_mem_per_node" in decision.edits) is not bool(words)
    assert words in texts(decision)


def test_the_default_account_and_qos_are_slurms() -> None:
    limits = told(Limits(), tight=Limits(per_job={"mem": 20000}))
    users = {key: replace(one, default_qos="tight") for key, one in limits.users.items()}
    context = site(replace(limits, users=users))
    for job in (asked(default_account=None), asked(qos="TIGHT"), asked()):
        assert decided(job, context).edits["min_mem_per_node"] == 20000
    assert decided(asked(qos="normal"), context).edits["min_mem_per_node"] == 64000


def test_a_partitions_qos_counts_too() -> None:
    context = site(told(part=Limits(per_job={"mem": 30000})), qos="part")
    assert decided(asked(), context).edits["min_mem_per_node"] == 30000


def test_a_job_that_would_get_whole_nodes_gets_what_is_allowed() -> None:
    """Without a default Slurm gives all of a node's memory, which the limit would not let start."""
    context = site(told(Limits(per_job={"mem": 40960})), per_cpu=0)
    assert decided(asked(), context).edits["min_mem_per_node"] == 40960


@given(
    gpus=st.integers(1, 16),
    tasks=st.one_of(st.none(), st.integers(1, 16)),
    cpus=st.one_of(st.none(), st.integers(1, 16)),
    limit=st.sampled_from(["job", "node", "shared", "billing"]),
    tres=st.sampled_from(["cpu", "mem", "node", "gres/gpu"]),
    most=st.integers(1, 200_000),
)
def test_no_decision_is_beyond(
    gpus: int, tasks: int | None, cpus: int | None, limit: str, tres: str, most: int
) -> None:
    """Whatever is asked for and limited, what it gets is within the limit or no more than without us."""
    limits = {
        "job": Limits(per_job={tres: most}),
        "node": Limits(per_node={tres: most}),
        "shared": Limits(shared={"GrpTRES": {tres: most}}),
        "billing": Limits(),
    }[limit]
    context = site(told(limits), weights="CPU=1,Mem=0.1G,GRES/gpu=3" if limit == "billing" else "")
    request = asked(tres_per_job=f"gres:gpu:{gpus}", num_tasks=tasks, cpus_per_task=cpus,
                    min_cpus=(tasks or 1) * (cpus or 1))  # fmt: skip
    decision = decided(request, context)
    edits = {name: value for name, value in decision.edits.items() if name != "admin_comment"}
    after = with_edits(request, edits)
    found = ground(request, context)
    for place, kinds in found or ():
        for kind in kinds:
            was, gets = (compute_demand(one, context, place.pool, kind) for one in (request, after))
            if was is None or gets is None:
                assert not edits
                continue
            if limit == "billing":
                assert gets.has["billing"] <= was.has["billing"] * 1.000001
            elif limit == "node" and tres != "node":
                assert gets.on_node[tres] <= max(most, was.on_node[tres])
            elif limit == "job":
                assert gets.has[tres] <= max(most, was.has[tres])
            elif limit == "shared":
                assert gets.has[tres] <= was.has[tres]


def test_nothing_is_worked_out_where_nothing_limits() -> None:
    assert Allowance.of(asked(), site()) is None
    assert Allowance.of(asked(), site(told())) is None
