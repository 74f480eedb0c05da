"""The limits oracle: what it reads of Slurm, what it calls a violation, and that its sets cover the limits."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.limit_records import Part, find_fate, find_harm, parse_jobs
from benchmarks.limit_sets import CHARGED, SETS, Job, LimitSet
from benchmarks.oracle_limits import (
    MODES,
    NODES_OF_A_SET,
    WAVE,
    Names,
    Outcome,
    Result,
    accounting_lines,
    line_of,
    numbered,
    partition_lines,
    surprises,
    violations,
)

RUNS, WAITS = Part("RUNNING", "None", 8), Part("PENDING", "AssocMaxCpuPerJobLimit", 8)
FOR_ROOM = Part("PENDING", "Resources", 8)

HARM = [
    ("the same", {"": RUNS}, {"": RUNS}, ""),
    ("no longer", {"": WAITS}, {"": RUNS}, ""),
    ("the same limit", {"": WAITS}, {"": WAITS}, ""),
    ("cheaper", {"": RUNS}, {"": Part("RUNNING", "None", 4)}, ""),
    ("never there", {}, {}, ""),
    ("accepted", {}, {"": RUNS}, ""),
    ("refused", {"": WAITS}, {}, "is refused, and is not without gsub"),
    ("waits", {"": RUNS}, {"": FOR_ROOM}, "waits (Resources), and starts without gsub"),
    ("on a limit", {"": FOR_ROOM}, {"": WAITS}, f"waits on a limit ({WAITS.reason}), and without gsub on Resources"),
    ("for room", {"": WAITS}, {"": FOR_ROOM}, ""),
    ("dearer", {"": RUNS}, {"": Part("RUNNING", "None", 9)}, "is billed 9, and 8 without gsub"),
    ("cancelled", {"": RUNS}, {"": Part("CANCELLED", "None")}, "is CANCELLED (None), and RUNNING without gsub"),
    ("a task", {"1": RUNS, "2": RUNS}, {"1": RUNS, "2": FOR_ROOM}, "part 2 waits (Resources), and starts without gsub"),
    ("a component", {"+0": RUNS, "+1": RUNS}, {"+0": RUNS}, "part +1 is not there"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "what"), [row[1:] for row in HARM], ids=[row[0] for row in HARM])
def test_harm_is_a_later_start_a_higher_charge_or_an_end(
    before: dict[str, Part], after: dict[str, Part], what: str
) -> None:
    assert list(find_harm(before, after)) == ([what] if what else [])


JOBS = """\
JobId=7 JobName=plain.sh UserId=user1(1001) JobState=RUNNING Reason=None NumNodes=1 NumCPUs=8 NumTasks=1 CPUs/Task=1 \
TRES=cpu=8,mem=64000M,node=1,billing=8,gres/gpu=1 MinMemoryNode=64000M AdminComment=gsub:d-07 Comment=JobState=X
JobId=8 ArrayJobId=8 ArrayTaskId=2-3,6%1 JobState=PENDING Reason=AssocGrpCpuLimit ReqTRES=billing=1 AllocTRES=(null)
JobId=9 ArrayJobId=8 ArrayTaskId=1 JobState=RUNNING Reason=None ReqTRES=cpu=1,billing=1 AllocTRES=cpu=2,billing=2
JobId=10 HetJobId=10 HetJobOffset=0 JobState=PENDING Reason=None TRES=cpu=1
JobId=11 HetJobId=10 HetJobOffset=1 JobState=PENDING Reason=None TRES=cpu=1
"""


def test_jobs_are_read_with_tasks_and_components() -> None:
    found = parse_jobs(JOBS)
    assert {number: sorted(parts) for number, parts in found.items()} == {
        7: [""], 8: ["1", "2", "3", "6"], 10: ["+0", "+1"],
    }  # fmt: skip
    assert found[7][""].billing == 8 and found[7][""].asked["MinMemoryNode"] == "64000M"
    assert found[7][""].is_decided and not found[8]["1"].is_decided
    assert found[8]["1"].billing == 2 and found[8]["6"].billing == 1
    assert found[10]["+1"].billing is None
    assert [find_fate(found[number]) for number in (7, 8, 10)] == ["runs", "waits", "waits"]
    assert find_fate({}) == "refused"


def result(mode: str, *parts: Part, fate: str = "runs", index: int = 0) -> Result:
    return Result("a set", mode, index, Job(fate, "-G1"), "no", dict.fromkeys([""], *parts) if parts else {})  # type: ignore[arg-type]


def test_an_outcome_counts_violations_shapes_and_surprises() -> None:
    raised = Part("RUNNING", "None", 8, {"MinMemoryNode": "2G"})
    plain = [result("off", RUNS), result("observe", RUNS), result("enforce", raised)]
    outcome = Outcome.of("22.05.8", 1.0, plain)
    assert (outcome.violations, outcome.surprises, outcome.shaped, outcome.unshaped) == ([], [], 1, [])
    assert list(outcome.lines())[-1] == "Slurm 22.05.8: 1 sets, 1 jobs, 0 violations, shaped: 1 jobs of 1, 1 s"
    assert outcome.undecided == 1
    (found,) = violations([result("off", RUNS), result("observe", RUNS), result("enforce", WAITS)])
    assert str(found) == (
        "enforce: a set, job 1 (-G1) waits (AssocMaxCpuPerJobLimit), and starts without gsub"
    )
    dearer = Part("RUNNING", "None", 9)
    three = [("off", RUNS), ("observe", RUNS), ("enforce", dearer)]
    free = Outcome.of("22.05.8", 1.0, [replace(result(*one), charged=False) for one in three])
    assert (free.violations, free.more_cpus) == ([], 1)
    assert len(violations([result(*one) for one in three])) == 1
    # in observe a job is what it is without gsub
    (found,) = violations([result("off", RUNS), result("observe", raised), result("enforce", RUNS)])
    assert found.mode == "observe" and found.what == "is not what it is without gsub"
    (found,) = violations([result("off", RUNS), result("observe", RUNS), result("enforce")])
    assert found.what == "is refused, and is not without gsub: no"
    unshaped = Outcome.of("22.05.8", 1.0, [result(mode, RUNS) for mode in MODES])
    assert (unshaped.shaped, unshaped.unshaped) == (0, ["a set"])
    assert [one.what for one in surprises([result("off", WAITS)])] == ["waits, not runs: AssocMaxCpuPerJobLimit"]


# --- the sets -------------------------------------------------------------------------------------------------------

COVERED = (
    "MaxJobs=", "MaxSubmitJobs=", "MaxTRES=", "MaxTRESPerNode=", "MaxTRESMins=", "GrpTRES=", "GrpTRESMins=",
    "GrpTRESRunMins=", "GrpJobs=", "GrpSubmit=", "GrpWall=", "MaxWall=", "MaxTRESPU=", "MaxTRESPA=", "MaxJobsPU=",
    "MaxJobsPA=", "MaxSubmitJobsPU=", "MaxTRESRunMinsPU=", "MaxTRESRunMinsPA=", "MinTRES=", "DenyOnLimit",
    "OverPartQOS", "NoDecay", "LimitFactor=", "UsageFactor=", "MaxTime=", "MaxNodes=", "MaxCPUsPerNode=",
    "MaxMemPerCPU=", "MaxMemPerNode=", "DefMemPerGPU=", "DefCpuPerGPU=", "TRESBillingWeights=", "billing=", "mem=",
    "gres/gpu=", "node=",
)  # fmt: skip


def words_of(one: LimitSet) -> str:
    limits = (one.parent, one.account, one.user, one.qos, one.partition_qos, one.partition, one.second)
    return " ".join(limits)


@pytest.mark.parametrize("limit", COVERED)
def test_each_limit_is_in_a_set(limit: str) -> None:
    assert any(limit in words_of(one) for one in SETS)


def test_the_sets_are_what_their_description_says() -> None:
    assert len(SETS) >= 60 and len({one.name for one in SETS}) == len(SETS)
    for one in SETS:
        assert 2 <= len(one.jobs) <= 6, one.name
        assert any("gpu" in job.words.lower() or "-G" in job.words for job in one.jobs), one.name
    words = " ".join(job.words for one in SETS for job in one.jobs)
    for kind in ("-a1-", " : ", "-dafter", "{p},{s}", "--exclusive", "--mem=0", "-N2"):
        assert kind in words, kind
    # most sets try a limit that binds
    assert sum(any(job.fate != "runs" for job in one.jobs) for one in SETS) > 0.8 * len(SETS)


def test_sets_with_charges_are_apart() -> None:
    for one in SETS:
        assert ("TRESBillingWeights" in words_of(one)) == (one.config in CHARGED), one.name


def test_sets_that_run_at_once_share_no_node_and_no_name() -> None:
    sets = numbered(SETS[:WAVE])
    lines = list(partition_lines(sets))
    nodes = re.findall(r"PartitionName=p\S+ Nodes=n\[(\d+)-(\d+)\]", "\n".join(lines))
    taken = [node for first, last in nodes for node in range(int(first), int(last) + 1)]
    assert sorted(taken) == list(range(1, 1 + WAVE * len(MODES) * NODES_OF_A_SET))
    names = [name for line in partition_lines(numbered(SETS)) for name in re.findall(r"PartitionName=(\S+)", line)]
    assert len(names) == len(set(names)) <= len(MODES) * 2 * len(SETS)


def test_commands_are_made_of_a_set() -> None:
    one = LimitSet("one", (Job("runs", "-G1 : -c2"),), parent="MaxTRES=cpu=4", qos="MaxTRESPU=cpu=2")
    assert line_of(one.jobs[0], one, Names(7, "enforce")) == (
        "sbatch --parsable -o/dev/null -Aa07e -qq07e -t60 -pp07e -G1 : -Aa07e -qq07e -t60 -pp07e -c2 plain.sh"
    )
    several = Job("runs", "-p{p},{s} -t5 -G1", env="GSUB_RETUNE=both")
    assert line_of(several, LimitSet("two", (several,)), Names(7, "off")) == (
        "GSUB_RETUNE=both sbatch --parsable -o/dev/null -Aa07x -pp07x,s07x -t5 -G1 plain.sh"
    )
    alike = LimitSet("alike", (Job("runs", "-G1"), Job("waits", "-G1", user=2)), account="MaxTRES=cpu=4")
    shared = LimitSet("shared", (Job("runs", "-G1"), Job("runs", "-G2")), qos="MaxTRESPU=cpu=2")
    assert list(accounting_lines([(7, one), (8, alike), (9, shared)], "dev", ("user1", "user2"))) == [
        "add qos q07x,q07b,q07e,q09x,q09b,q09e MaxTRESPU=cpu=2",
        "modify account where account=root cluster=dev set qos=normal,q07x,q07b,q07e,q09x,q09b,q09e",
        "add account g07x,g07b,g07e Cluster=dev MaxTRES=cpu=4",
        "add account ax,ab,ae Cluster=dev",
        *(f"add account a07{mode} Cluster=dev Parent=g07{mode}" for mode in "xbe"),
        "add account a08x,a08b,a08e Cluster=dev MaxTRES=cpu=4",
        "add user user1,user2 Account=ax,ab,ae,a08x,a08b,a08e Cluster=dev",
        "add user user1 Account=a07x,a07b,a07e Cluster=dev",
    ]
