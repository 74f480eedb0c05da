"""Each field that gsub-act writes, and each that a job's user may change, before the write and after it.

A job of which an operator set what limits count is held to them no longer, so its user changes no such field any more;
all else stays the user's, and a write that limits do not count takes nothing from the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from slurm_plugins.act.mark import MARK, needs_mark
from slurm_plugins.act.verbs import FIELDS
from tests.slurm.act.conftest import Acting

pytestmark = [pytest.mark.root, pytest.mark.all_releases, pytest.mark.case("A1")]


@dataclass(frozen=True)
class Write:
    """A value that gsub-act gives a field, of a job submitted with `words`."""

    value: str
    words: tuple[str, ...]


WRITES = {
    "ExcNodeList": Write("n2", ("--mem=1000M",)),
    "MinMemoryNode": Write("3000", ("--mem=1000M",)),
    "MinMemoryCPU": Write("3000", ("--mem-per-cpu=1000M",)),
    "StartTime": Write("now", ("--mem=1000M",)),
}

GUARDED = (
    "Account=other", "QOS=wide", "Partition=debug", "ReservationName=held", "ReqNodeList=n1", "NodeList=n1",
    "NumNodes=2", "NumNodes=1-2", "NumTasks=4", "NumCPUs=4-4", "NumCPUs=4", "ReqProcs=4", "MinCPUsNode=2",
    "CPUsPerTask=2", "TasksPerNode=2", "Gres=gpu:1", "OverSubscribe=no", "Shared=no", "ReqSockets=2", "ReqCores=2",
    "ReqThreads=1", "MinMemoryNode=5000", "MinMemoryCPU=5000", "Comment=mine",
)  # fmt: skip
"""Changes of how much a job gets or of the limits that hold for it, and of the mark."""
FREE = (
    "JobName=mine", f"Comment=project_7 {MARK}", "TimeLimit=30", "TimeMin=5", "Nice=10", "Requeue=1", "Features=a100",
    "Contiguous=no", "Dependency=singleton", "ExcNodeList=n1", "StartTime=now+2hours", "Deadline=now+1day",
    "Switches=1@60", "MinTmpDiskNode=0", "MailUser=user1", "WorkDir=/tmp", "StdOut=/dev/null", "Prefer=a100", "Extra=x",
)  # fmt: skip
"""All else that a user may change, where the release knows it."""
OPERATORS = ("AdminComment=mine", "SiteFactor=5", "Priority=99999999", "UserID=0")
"""What Slurm lets no user change."""
GETS = (
    "Account", "QOS", "Partition", "Reservation", "ReqNodeList", "NumNodes", "NumTasks", "NumCPUs", "CPUs/Task",
    "MinCPUsNode", "NtasksPerN:B:S:C", "ReqB:S:C:T", "TresPerNode", "OverSubscribe", "MinMemoryNode", "MinMemoryCPU",
)  # fmt: skip
"""What the guarded changes are about, as Slurm shows it."""


@pytest.fixture(scope="module")
def standing(cluster) -> Iterator[Acting]:
    """A second account, a second QOS, and a reservation for the user."""
    acting = Acting(cluster)
    words = (
        f"add account other Cluster={cluster.spec.name}",
        f"add user {acting.user} Account=other Cluster={cluster.spec.name}",
        "add qos wide",
        "add qos narrow MaxTRESPerJob=cpu=2",
        f"modify user {acting.user} where account=lab set qos+=wide,narrow",
    )
    for line in words:
        cluster.run(["sacctmgr", "-i", *line.split()], check=True)
    made = f"ReservationName=held Users={acting.user} Nodes=n2 StartTime=now Duration=60 Flags=IGNORE_JOBS"
    cluster.run(["scontrol", "create", *made.split()], check=True)
    yield acting
    cluster.run(["scontrol", "delete", "ReservationName=held"], check=True)


@pytest.fixture
def closed(standing: Acting) -> Iterator[Acting]:
    """Requeued jobs stay where they are: partitions start nothing."""
    yield standing
    for name in ("gpu", "debug"):
        standing.cluster.run(["scontrol", "update", f"PartitionName={name}", "State=UP"], check=True)
    standing.cluster.run(["scancel", "--quiet", f"--user={standing.user}"])


def requeued(acting: Acting, *words: str) -> str:
    """A job that was requeued and waits."""
    job = acting.failed("--nodes=1", *words)
    for name in ("gpu", "debug"):
        acting.cluster.run(["scontrol", "update", f"PartitionName={name}", "State=DOWN"], check=True)
    answer = acting.ask("requeue", job)
    assert answer["result"] == "done", answer
    return job


def opened(acting: Acting) -> None:
    """Partitions start jobs again."""
    for name in ("gpu", "debug"):
        acting.cluster.run(["scontrol", "update", f"PartitionName={name}", "State=UP"], check=True)


def changed(acting: Acting, job: str, changes: tuple[str, ...]) -> dict[str, str]:
    """Change -> what Slurm said to the user's update; empty: it was made."""
    lines = []
    for change in changes:
        field, _, value = change.partition("=")
        lines.append(f"o=$(scontrol update JobId={job} {field}='{value}' 2>&1) && o=; echo \"@{change}@$o@\"")
    done = acting.cluster.run(["sh", "-s"], user=acting.user, input="\n".join(lines), check=True)
    found = dict(re.findall(r"@([^@]+=[^\n]*?)@([^@]*)@\n", done.stdout.replace("1@60", "1 at 60")))
    return {name.replace("1 at 60", "1@60"): said.strip() for name, said in found.items()}


def got(acting: Acting, job: str) -> dict[str, str]:
    """What Slurm shows of how much a job gets."""
    shown = acting.shown(job)
    return {name: shown.get(name, "") for name in GETS}


def test_each_field_of_gsub_act_is_tried() -> None:
    assert WRITES.keys() == FIELDS.keys()


@pytest.mark.parametrize("field", WRITES)
def test_after_a_write_the_user_changes_what_gives_the_job_no_more(closed: Acting, field: str) -> None:
    write = WRITES[field]
    job = requeued(closed, *write.words)
    opened(closed)
    control = requeued(closed, *write.words)
    # before: all that Slurm lets a user change is changed
    before = changed(closed, control, (*FREE, *OPERATORS, *GUARDED))
    assert not [change for change in ("NumNodes=2", "NumCPUs=4-4", "QOS=wide", "JobName=mine") if before[change]]
    answer = closed.ask("update", job, fields={field: write.value})
    assert answer["result"] == "done", answer
    marked = needs_mark({field: write.value})
    assert (MARK in closed.shown(job).get("Comment", "")) == marked
    whole = got(closed, job)
    after = changed(closed, job, GUARDED)
    if marked:
        for change, said in after.items():
            assert said, f"{change} was made"
            if not before[change]:
                assert "Access/permission denied" in said, (change, said)
                # 22.05 shows its user nothing that a plugin says of a change
                if not closed.cluster.version.startswith("22.05"):
                    assert "gsub: " in said and "submit the job anew" in said, (change, said)
        assert got(closed, job) == whole
    else:
        assert {name: bool(said) for name, said in after.items()} == {
            name: bool(before[name]) for name in GUARDED
        }
    rest = changed(closed, job, (*FREE, *OPERATORS))
    assert {name: bool(said) for name, said in rest.items()} == {name: bool(before[name]) for name in rest}
    assert all(rest[change] for change in OPERATORS)
    if marked:
        assert got(closed, job) == whole and MARK in closed.shown(job)["Comment"]


@pytest.mark.parametrize("field", [name for name in WRITES if not needs_mark({name: WRITES[name].value})])
def test_a_write_that_limits_do_not_count_leaves_the_job_held_to_them(closed: Acting, field: str) -> None:
    job = requeued(closed, "--qos=narrow", "-n1", "-c2", *WRITES[field].words)
    answer = closed.ask("update", job, fields={field: WRITES[field].value})
    assert answer["result"] == "done", answer
    said = changed(closed, job, ("NumCPUs=4-4", "NumTasks=4"))
    opened(closed)
    closed.cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], user=closed.user)
    shown = closed.shown(job)
    if all(said.values()):
        assert int(shown["NumCPUs"].partition("-")[0]) <= 2
    else:
        closed.wait(lambda: "MaxCpuPerJob" in closed.shown(job)["Reason"])
        assert closed.shown(job)["JobState"] == "PENDING"
