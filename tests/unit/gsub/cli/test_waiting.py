"""Every code by which Slurm says why a job waits becomes a sentence; what is known besides is told with it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from gsub.waiting import REASONS, limit_sentence, meaning, waiting
from profiler.answers import QueuePosition
from slurm_plugins.client.parse import tres
from slurm_plugins.client.states import JobState, NodeState
from slurm_plugins.client.values import Job, Node
from slurm_plugins.decide.free import cause, sum_free_gpus

# All names of job_state_reason.c and of 22.05's slurm_protocol_defs.c that a limit's scheme makes
LIMITS = tuple(
    """
QOSGrpCpuLimit QOSGrpCPUMinutesLimit QOSGrpCPURunMinutesLimit QOSGrpJobsLimit QOSGrpMemLimit QOSGrpNodeLimit
QOSGrpSubmitJobsLimit QOSGrpWallLimit QOSMaxCpuPerJobLimit QOSMaxCpuMinutesPerJobLimit QOSMaxNodePerJobLimit
QOSMaxWallDurationPerJobLimit QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit QOSMaxNodePerUserLimit
QOSMaxSubmitJobPerUserLimit QOSMinCpuNotSatisfied AssocGrpCpuLimit AssocGrpCPUMinutesLimit
AssocGrpCPURunMinutesLimit AssocGrpJobsLimit AssocGrpMemLimit AssocGrpNodeLimit AssocGrpSubmitJobsLimit
AssocGrpWallLimit AssocMaxJobsLimit AssocMaxCpuPerJobLimit AssocMaxCpuMinutesPerJobLimit AssocMaxNodePerJobLimit
AssocMaxWallDurationPerJobLimit AssocMaxSubmitJobLimit AssocGrpUnknown AssocGrpUnknownMinutes
AssocGrpUnknownRunMinutes AssocMaxUnknownPerJob AssocMaxUnknownPerNode AssocMaxUnknownMinutesPerJob
AssocMaxCpuPerNode AssocGrpMemMinutes AssocGrpMemRunMinutes AssocMaxMemPerJob AssocMaxMemPerNode
AssocMaxMemMinutesPerJob AssocGrpNodeMinutes AssocGrpNodeRunMinutes AssocMaxNodeMinutesPerJob AssocGrpEnergy
AssocGrpEnergyMinutes AssocGrpEnergyRunMinutes AssocMaxEnergyPerJob AssocMaxEnergyPerNode
AssocMaxEnergyMinutesPerJob AssocGrpGRES AssocGrpGRESMinutes AssocGrpGRESRunMinutes AssocMaxGRESPerJob
AssocMaxGRESPerNode AssocMaxGRESMinutesPerJob AssocGrpLicense AssocGrpLicenseMinutes AssocGrpLicenseRunMinutes
AssocMaxLicensePerJob AssocMaxLicenseMinutesPerJob AssocGrpBB AssocGrpBBMinutes AssocGrpBBRunMinutes
AssocMaxBBPerJob AssocMaxBBPerNode AssocMaxBBMinutesPerJob QOSGrpUnknown QOSGrpUnknownMinutes
QOSGrpUnknownRunMinutes QOSMaxUnknownPerJob QOSMaxUnknownPerNode QOSMaxUnknownPerUser QOSMaxUnknownMinutesPerJob
QOSMinUnknown QOSMaxCpuPerNode QOSGrpMemoryMinutes QOSGrpMemoryRunMinutes QOSMaxMemoryPerJob QOSMaxMemoryPerNode
QOSMaxMemoryPerUser QOSMaxMemoryMinutesPerJob QOSMinMemory QOSGrpNodeMinutes QOSGrpNodeRunMinutes
QOSMaxNodeMinutesPerJob QOSMinNode QOSGrpEnergy QOSMaxEnergyPerUser QOSMinEnergy QOSGrpGRES QOSGrpGRESMinutes
QOSGrpGRESRunMinutes QOSMaxGRESPerJob QOSMaxGRESPerNode QOSMaxGRESPerUser QOSMaxGRESMinutesPerJob QOSMinGRES
QOSGrpLicense QOSMaxLicensePerUser QOSMinLicense QOSGrpBB QOSMaxBBPerUser QOSMinBB MaxBBPerAccount
MaxCpuPerAccount MaxEnergyPerAccount MaxGRESPerAccount MaxNodePerAccount MaxLicensePerAccount MaxMemoryPerAccount
MaxUnknownPerAccount MaxJobsPerAccount MaxSubmitJobsPerAccount AssocGrpBilling AssocGrpBillingMinutes
AssocGrpBillingRunMinutes AssocMaxBillingPerJob AssocMaxBillingPerNode AssocMaxBillingMinutesPerJob QOSGrpBilling
QOSGrpBillingMinutes QOSGrpBillingRunMinutes QOSMaxBillingPerJob QOSMaxBillingPerNode QOSMaxBillingPerUser
QOSMaxBillingMinutesPerJob MaxBillingPerAccount QOSMinBilling
""".split()  # noqa: SIM905 - a list of 140 strings is no better to read
)

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=timezone.utc)


def pending(**changes: object) -> Job:
    known: dict[str, object] = {
        "id": 7,
        "name": "train",
        "user": "ada",
        "state": JobState.PENDING,
        "partition": "gpu",
        "priority": 100,
        "reason": "Priority",
        "submitted": NOW - timedelta(minutes=10),
    }
    return Job(**(known | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("code", LIMITS)
def test_a_limit_says_whose_it_is_and_of_what(code: str) -> None:
    told = limit_sentence(code)
    assert told is not None, code
    sentence = told[0]
    assert ("QOS" in sentence) == (not code.startswith("Assoc")), sentence
    assert "not known" not in meaning(code)[0]
    assert cause(pending(reason=code)) == "limits"


def test_a_limit_in_words() -> None:
    assert meaning("QOSMaxGRESPerUser")[0].endswith("at most so many GPUs or other GRES of one user")
    assert "of all its jobs together" in meaning("AssocGrpGRES")[0]
    assert "x minutes of what runs of all its jobs" in meaning("AssocGrpCPURunMinutesLimit")[0]
    assert meaning("QOSMaxWallDurationPerJobLimit")[1] == "ask for less: run time"
    assert "at least so many" in meaning("QOSMinGRES")[0]


def test_no_code_of_a_scheme_stands_in_the_table() -> None:
    assert not [code for code in REASONS if limit_sentence(code)]


@pytest.mark.parametrize("code", ["Flummoxed", "AssocGrp", "QOSMaxBananasPerUser", "\x1b[31mEvil"])
def test_what_is_not_known_is_said_as_it_is(code: str) -> None:
    sentence, advice = meaning(code)
    assert "not known here" in sentence and advice == "ask the site" and "\x1b" not in sentence


FIRST_OUT = "the same priority and came before it: among equals it is first in, first out"


@pytest.mark.case("S7")
@pytest.mark.parametrize(
    ("position", "facts"),
    [
        (QueuePosition(2, 0), ["2 waiting jobs of its partition have a higher priority"]),
        (QueuePosition(0, 1), [f"1 waiting job of its partition has {FIRST_OUT}"]),
        (
            QueuePosition(1, 3),
            [
                "1 waiting job of its partition has a higher priority",
                f"3 waiting jobs of its partition have {FIRST_OUT}",
            ],
        ),
        (QueuePosition(), ["no waiting job of its partition that you can see comes before it"]),
        (
            QueuePosition(at=NOW.timestamp() - 20),
            ["no waiting job of its partition comes before it (seen 20 s ago)"],
        ),
        (None, []),
    ],
)
def test_what_comes_before_it_is_told(position: QueuePosition | None, facts: list[str]) -> None:
    wait = waiting(pending(), NOW, position)
    assert list(wait.facts) == [*facts, "it waits since 10 min"]
    assert "or submitted before it with the same one" in wait.sentence


def test_a_held_job_has_no_turn() -> None:
    assert waiting(pending(priority=0), NOW, QueuePosition(3, 3)).facts == ("it waits since 10 min",)


def test_what_is_free_is_told_where_slurm_tells_it() -> None:
    def node(name: str, used: int, **more: object) -> Node:
        known: dict[str, object] = {
            "name": name,
            "state": NodeState.MIXED,
            "gres": tres("gres/gpu=8"),
            "tres": tres("cpu=64,gres/gpu=8"),
            "tres_allocated": tres(f"gres/gpu={used}"),
            "cpus_allocated": 1,
            "partitions": ("gpu",),
        }
        return Node(**(known | more))  # type: ignore[arg-type]

    job = pending(reason="Resources", num_nodes=2, gpus=16)
    nodes = [node("n1", 3), node("n2", 8), node("n3", 0, flags=frozenset({"DRAIN"}))]
    facts = waiting(job, NOW, QueuePosition(free=sum_free_gpus(job, nodes))).facts
    assert (
        "it asks for 16 GPUs on 2 nodes; free now: 5 of 24 GPUs, at most 5 on one node; 1 node cannot be used"
        in facts
    )
    untold = [node("n1", 3, tres_allocated=tres("cpu=1"), tres=tres("cpu=64"))]
    facts = waiting(job, NOW, QueuePosition(free=sum_free_gpus(job, untold))).facts
    assert not [fact for fact in facts if "free now" in fact]


def test_the_wait_for_switches_is_counted_down() -> None:
    """Slurm counts it from its first try to start the job (wait4switch_start), which nobody is told."""
    job = pending(switches=1, switches_wait=1800, eligible=NOW - timedelta(minutes=10))
    wants = "it wants 1 switch at most, and waits up to 30 min for that, counted from Slurm's first try to start it"
    assert f"{wants}: over in 20 min at the earliest" in waiting(job, NOW).facts
    assert f"{wants}: that may be over" in waiting(job, NOW + timedelta(hours=1)).facts


def test_an_estimate_is_said_to_be_one() -> None:
    job = pending(reason="Resources", start=NOW + timedelta(hours=2))
    assert any(
        fact.startswith("Slurm's estimate: it starts ") and fact.endswith("in 2 h")
        for fact in waiting(job, NOW).facts
    )
    assert not any("estimate" in fact for fact in waiting(pending(start=NOW - timedelta(1)), NOW).facts)


def test_nodes_that_are_not_there_are_named() -> None:
    wait = waiting(pending(reason="ReqNodeNotAvail, UnavailableNodes:n[3-4]"), NOW)
    assert "UnavailableNodes:n[3-4]" in wait.facts and "down, drained" in wait.sentence


def test_a_dependency_that_cannot_be_met_names_the_command() -> None:
    wait = waiting(pending(reason="DependencyNeverSatisfied", dependency="afterok:5(failed)"), NOW)
    assert "dependency: afterok:5(failed)" in wait.facts and "gsub cancel 7" in wait.advice


@pytest.mark.case("F7")
@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("user env retrieval failed requeued held", "user env retrieval failed"),
        ("user_env_retrieval_failed_requeued_held", "user env retrieval failed"),
        ("launch failed requeued held", "launch failed"),
        ("launch_failed_requeued_held", "launch failed"),
    ],
)
def test_what_could_not_be_started_and_is_held(reason: str, cause: str) -> None:
    assert meaning(reason) == (
        f"it could not be started ({cause}), was requeued and is held",
        "scontrol release JOB",
    )
