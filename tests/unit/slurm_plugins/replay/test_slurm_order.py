"""Slurm's multifactor priority, by hand from the formula of its manual; its rules as slurm.conf has them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from slurm_plugins.replay.slurm_order import FairTree, Priorities, fair_tree
from slurm_plugins.replay.slurm_rules import Partition, Shares, SlurmRules
from slurm_plugins.replay.values import Job, Trace

THERE = {"node": 4.0, "cpu": 256.0, "mem": 1000.0, "gres/gpu": 32.0}
JOB = Job(
    1,
    0.0,
    60.0,
    gpus=4,
    nodes=2,
    cpus=64.0,
    memory=250.0,
    queue="debug",
    user="ann",
    account="lab",
    qos="high",
)
RULES = SlurmRules(
    partitions={"gpu": Partition(1.0), "debug": Partition(4.0, tier=2)},
    qos_priority={"normal": 5.0, "high": 10.0},
)


def priority(rules: SlurmRules, job: Job = JOB, at: float = 0.0, again: bool = True) -> float:
    """A job's priority, as of the recalculation then or of its submission."""
    found = Priorities(Trace.of([job]), rules, THERE)
    if again:
        found.recalculate(at, [0], [])
    else:
        found.submit(0, at)
    return float(found.value[0])


@pytest.mark.parametrize(
    ("weights", "at", "expected"),
    [
        ({"age": 1000.0, "max_age_s": 600.0}, 60.0, 100),
        ({"age": 1000.0, "max_age_s": 600.0}, 6000.0, 1000),
        ({"age": 1000.0, "max_age_s": 600.0}, 0.3, 1),  # never 0: that is for what is held
        ({"job_size": 1000.0}, 0.0, 375),  # (2 of 4 nodes + 64 of 256 CPUs) / 2
        ({"job_size": 1000.0, "favor_small": True}, 0.0, 625),
        ({"partition": 1000.0}, 0.0, 1000),
        ({"qos": 1000.0}, 0.0, 1000),
        ({"tres": {"gres/gpu": 800.0, "mem": 100.0}}, 0.0, 125),  # 800 * 4 / 32 + 100 * 250 / 1000
        ({"fairshare": 1000.0}, 0.0, 1000),  # nobody has used anything
        (
            {"age": 1000.0, "max_age_s": 600.0, "qos": 0.5, "partition": 0.4},
            60.0,
            100,
        ),  # cut off, once, at the end
    ],
)
def test_each_factor(weights, at, expected):
    assert priority(replace(RULES, **weights), at=at) == expected


def test_nice_and_what_a_site_adds():
    rules = replace(RULES, partition=1000.0)
    assert priority(rules, replace(JOB, weight=-200.0)) == 800
    assert priority(rules, replace(JOB, weight=-2000.0)) == 1
    assert priority(rules, replace(JOB, queue="gpu")) == 250


def test_cpus_that_come_with_gpus_count_once_backfill_has_found_a_place():
    job = replace(JOB, cpus_asked=2.0)
    found = Priorities(Trace.of([job]), replace(RULES, job_size=1024.0), THERE)
    found.submit(0, 0.0)
    assert found.value[0] == 260  # (2 / 4 + 2 / 256) / 2
    found.recalculate(60.0, [0], [])
    assert found.value[0] == 260
    found.tested.add(0)
    assert found.value[0] == 260
    found.recalculate(120.0, [0], [])
    assert found.value[0] == 384


def test_fair_tree_ranks_level_by_level():
    shares = {("a", ""): 1.0, ("b", ""): 1.0, ("a", "x"): 1.0, ("a", "y"): 1.0, ("b", "z"): 1.0}
    # b has used less than its part, so its user comes before all of a's; within a y before x
    found = fair_tree(shares, {("a", "x"): 60.0, ("a", "y"): 20.0, ("b", "z"): 10.0})
    assert found == {("b", "z"): 1.0, ("a", "y"): pytest.approx(2 / 3), ("a", "x"): pytest.approx(1 / 3)}
    # with four times b's shares it is a's turn
    found = fair_tree({**shares, ("a", ""): 16.0}, {("a", "x"): 60.0, ("a", "y"): 20.0, ("b", "z"): 10.0})
    assert found["b", "z"] == pytest.approx(1 / 3)


def test_equal_users_share_their_rank_and_equal_accounts_are_merged():
    shares = {("a", ""): 1.0, ("b", ""): 1.0, ("a", "x"): 1.0, ("a", "y"): 1.0, ("b", "z"): 1.0}
    assert set(fair_tree(shares, {}).values()) == {1.0}
    # a and b tie; their users are ranked together, by what each has used of its own account
    found = fair_tree(shares, {("a", "x"): 30.0, ("a", "y"): 0.0, ("b", "z"): 30.0})
    assert found == {("a", "y"): 1.0, ("b", "z"): pytest.approx(2 / 3), ("a", "x"): pytest.approx(1 / 3)}


def test_nobody_with_a_share_of_nothing_is_before_others():
    found = fair_tree({("a", ""): 1.0, ("a", "x"): 0.0, ("a", "y"): 1.0}, {("a", "y"): 9.0})
    assert found["a", "y"] > found["a", "x"]


def test_usage_halves_in_its_half_life():
    tree = FairTree([("lab", "ann")], Shares(), 1000.0, last=0.0)
    tree.add(("lab", "ann"), 0.0, 10.0, 64.0)
    used = tree.usage["lab", "ann"]
    assert used == pytest.approx(640 * (1 - 0.693 / 1000) ** 10)
    tree.recalculate(1000.0, [])
    assert tree.usage["lab", "ann"] == pytest.approx(used / 2, rel=1e-3)


def test_what_runs_counts_at_each_recalculation_once():
    tree = FairTree([("lab", "ann")], Shares(), math.inf, last=0.0)
    tree.recalculate(60.0, [(("lab", "ann"), 10.0, 2.0)])
    tree.recalculate(120.0, [(("lab", "ann"), 10.0, 2.0)])
    tree.add(("lab", "ann"), 10.0, 130.0, 2.0)
    assert tree.usage["lab", "ann"] == pytest.approx(2 * 120)


def test_nice_is_learnt_from_the_priority_that_was_recorded():
    rules = replace(RULES, age=1000.0, max_age_s=600.0, partition=500.0, fairshare=1000.0, calc_s=60.0)
    jobs = [
        replace(JOB, began=5.0, priority=1500.0),
        replace(JOB, job=2, arrival=10.0, began=20.0, priority=1300.0),
        replace(JOB, job=3, arrival=10.0, began=20.0),
        replace(JOB, job=4, arrival=12.0, began=20.0, priority=1500.0),
    ]
    found = Priorities(Trace.of(jobs), rules, THERE)
    before = found.fixed.copy()
    found.learn(Trace.of(jobs), [64.0] * 4)
    assert (found.fixed - before).tolist() == [0, -200, 0, 0]


def test_other_rules_than_the_records_are_not_undone_by_it():
    jobs = [
        replace(JOB, job=number, arrival=float(number), began=50.0, priority=900.0) for number in range(3)
    ]
    found = Priorities(Trace.of(jobs), replace(RULES, partition=500.0), THERE)
    before = found.fixed.copy()
    found.learn(Trace.of(jobs), [64.0] * 3)
    assert (found.fixed == before).all()


# --- slurm.conf -----------------------------------------------------------------------------------------------------

CONF = """
PriorityType=priority/multifactor
PriorityWeightAge=1000  # a comment
priorityweighttres=CPU=10,GRES/gpu=500
PriorityMaxAge=1-0
PriorityDecayHalfLife=14-0
PriorityCalcPeriod=1
PriorityFavorSmall=YES
SchedulerParameters=bf_interval=60,bf_window=2880,batch_sched_delay=20,unknown=1,\\
bf_max_job_user=5
PartitionName=DEFAULT PriorityTier=3 MaxTime=2-0
PartitionName=gpu Nodes=n[1-2] PriorityJobFactor=7 DefaultTime=30
PartitionName=long MaxTime=UNLIMITED PriorityTier=1
SelectTypeParameters=CR_Core_Memory,CR_LLN
TopologyPlugin=topology/tree
OverTimeLimit=5
"""


def test_rules_from_slurm_conf():
    rules = SlurmRules.parse(CONF, qos="Name|Priority|Flags\nnormal|0|\nhigh|10|\n")
    assert (rules.age, rules.tres, rules.max_age_s, rules.half_life_s, rules.calc_s) == (
        1000.0,
        {"cpu": 10.0, "gres/gpu": 500.0},
        86400.0,
        14 * 86400.0,
        60.0,
    )
    assert (rules.bf_interval_s, rules.bf_window_s, rules.batch_delay_s) == (60.0, 172800.0, 20.0)
    assert (rules.bf_max_job_user, rules.bf_max_job_test) == (5, 500)
    assert rules.of("gpu") == Partition(7.0, 3, 172800.0, 1800.0)
    assert rules.of("long") == Partition(1.0, 1, math.inf, math.inf)
    assert rules.favor_small and rules.least_loaded and rules.multifactor and rules.topology
    assert rules.over_limit_s == 300.0
    assert rules.qos_priority == {"normal": 0.0, "high": 10.0}


def test_slurms_defaults():
    rules = SlurmRules.parse("ClusterName=c\n")
    assert not rules.multifactor and rules.backfill
    assert (rules.bf_interval_s, rules.depth, rules.batch_delay_s) == (30.0, 100, 3.0)


def test_the_release_by_what_scontrol_shows():
    assert SlurmRules.parse("SLURM_VERSION           = 22.05.8\n").release == (22, 5)
    assert SlurmRules.parse("").release == (24, 11)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("PriorityWeightAge=many", "PriorityWeightAge=many"),
        ("PriorityWeightAge=-5", "less than nothing"),
        ("PriorityMaxAge=soon", "PriorityMaxAge=soon"),
        ("SchedulerParameters=bf_interval=0", "bf_interval"),
        ("SchedulerParameters=bf_resolution=x", "bf_resolution=x"),
        ("PartitionName=p PriorityTier=high", "PartitionName=p"),
        ("PriorityFlags=SMALL_RELATIVE_TO_TIME", "not modelled"),
        ("PriorityWeightTRES=cpu=x", "PriorityWeightTRES"),
    ],
)
def test_a_value_that_cannot_be_read_is_told(text, told):
    with pytest.raises(ValueError, match=told):
        SlurmRules.parse(text)


@pytest.mark.parametrize(
    "table",
    [
        "",
        "Account|User\nlab|ann",
        *(f"Account|User|RawShares|RawUsage\nlab|ann|{told}" for told in ("x|0", "nan|0", "-4|0", "1|inf")),
    ],
)
def test_a_table_that_is_none_of_sshare(table):
    with pytest.raises(ValueError, match=r"sshare|could not convert"):
        Shares.parse(table)


def test_a_table_that_is_none_of_qos():
    with pytest.raises(ValueError, match="qos"):
        SlurmRules.parse("", qos="QOS\nnormal")


def test_priority_basic_is_the_order_of_submission():
    trace = Trace.of([JOB, replace(JOB, job=2, arrival=5.0)])
    found = Priorities(trace, SlurmRules(multifactor=False), THERE)
    found.submit(0, 0.0)
    found.submit(1, 5.0)
    assert np.ptp(found.value) == 0
