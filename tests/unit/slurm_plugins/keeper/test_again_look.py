"""A look at Slurm for many failed jobs: few commands, nothing that one user's text could tell of another's job."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import SlurmTimeout, SlurmUnreachable
from slurm_plugins.client.resources import Hosts
from slurm_plugins.client.runner import Completed, Runner
from slurm_plugins.client.states import NodeState
from slurm_plugins.client.values import Node, Partition
from slurm_plugins.service.keeper.again_look import (
    NO_DELAY,
    Asked,
    Looking,
    Room,
    delay_of,
    record_of,
    release_of,
    waited_for,
)
from tests.unit.slurm_plugins.client.fake import FakeClient
from tests.unit.slurm_plugins.client.slurm_rows import Answers, Row
from tests.unit.slurm_plugins.client.slurm_rows import job as row

SHOWN = """\
JobId={number} JobName={name}
   UserId=user1(1001) GroupId=user1(1001) MCS_label=N/A
   JobState=OUT_OF_MEMORY Reason=OutOfMemory Dependency=(null)
   NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   TRES=cpu=1,mem=100M,node=1,billing=1
   MinCPUsNode=1 {memory} MinTmpDiskNode=0
   Comment={comment}
"""


class Commands:
    """Slurm's commands as a test has them answer; `said` are their lines, `limits` the seconds for each squeue."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.limits: list[float] = []
        self.waiting: Sequence[Row] = ()
        self.late = False
        self.memory: dict[int, str] = {}
        self.name = "train"
        self.config = "SchedulerParameters     = bf_interval=2,requeue_delay=7\nSLURM_VERSION = 26.05.5\n"
        self.down = False

    def run(self, argv: list[str], *, timeout: float, **_: Any) -> Completed:
        if argv[-1] == "--version":
            return Answers()(argv)
        self.said.append(" ".join(argv))
        if self.down:
            return Completed(argv[0], 1, "", "Unable to contact slurm controller (connect failure)")
        if argv[:3] == ["scontrol", "show", "config"]:
            return Completed("scontrol", 0, self.config, "")
        if argv[0] == "squeue":
            self.limits.append(timeout)
            if self.late:
                raise SlurmTimeout("squeue", timeout)
            return Answers(jobs=self.waiting)(argv)
        number = int(argv[-1])
        if number not in self.memory:
            return Completed("scontrol", 1, "", "slurm_load_jobs error: Invalid job id specified")
        text = SHOWN.format(number=number, name=self.name, memory=self.memory[number], comment="")
        return Completed("scontrol", 0, text, "")


class Client(FakeClient):
    """With two partitions."""

    def nodes(self) -> tuple[Node, ...]:
        nodes = super().nodes()
        down = replace(nodes[0], state=NodeState.DOWN, partitions=("gpu", "big"))
        small = replace(nodes[1], memory=1000 << 20, memory_reserved=100 << 20, partitions=("big",))
        return (down, small, *nodes[2:])

    def partitions(self) -> tuple[Partition, ...]:
        big = Partition(name="big", state="UP", nodes=Hosts("n[1-2]"), max_memory_per_node=800 << 20)
        return (*super().partitions(), big)


@pytest.fixture
def commands() -> Commands:
    return Commands()


def looking(commands: Commands, clock: Callable[[], float] = lambda: 0.0) -> Looking:
    def queue(seconds: float) -> CommandClient:
        return CommandClient({}, timeout=seconds, run=commands.run)

    return Looking(Client(), Runner({}, run=commands.run), queue, clock=clock)


def pending(number: int, dependency: str, **more: str) -> Row:
    return row(number, **{"state": "PENDING", "account": "lab", "dependency": dependency, **more})


def test_one_look_tells_of_jobs_dependencies_partitions_and_delay(commands: Commands) -> None:
    slurm = looking(commands)
    client = slurm._client
    assert isinstance(client, Client)
    number = client.submit(["script"]).job_id
    assert number is not None
    client.finish(number, 3)
    commands.waiting = [
        pending(9, "afterok:1(unfulfilled),after:2+5(unfulfilled)", uid="1002", account="bio"),
        pending(10, "afterany:1_*(unfulfilled)", array_job_id="10", array_task="1-3"),
        pending(12, "afterany:1_*(unfulfilled)", array_job_id="10", array_task="0", uid=""),
        pending(11, "(null)"),
    ]
    look = slurm.look([number, 77], ())
    assert look.owners == {"9": (1002, "bio"), "10": (1001, "lab")}
    assert list(look.jobs) == [number] and look.delay_s == 7.0
    assert look.waiting == {"1": ("9",), "2": ("9",), "1_*": ("10", "10_0")}
    # n1 is down, and no node of it is lost to the size of the biggest
    assert look.rooms["gpu"] == Room(tuple(f"n{i}" for i in range(3, 9)), 512000)
    assert look.rooms["big"] == Room(("n2",), 800)


def test_what_seldom_changes_is_asked_for_seldom(commands: Commands) -> None:
    now = [0.0]
    slurm = looking(commands, lambda: now[0])
    for now[0] in (0.0, 1.0, 2.0):
        slurm.look([1], ())
    assert len(commands.said) == 2
    now[0] = 10.0
    slurm.look([1], ())
    assert [line.split()[0] for line in commands.said] == ["scontrol", "squeue", "squeue"]
    now[0] = 1000.0
    slurm.look([1], ())
    assert len(commands.said) == 5


def test_a_long_queue_is_given_more_time(commands: Commands) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 6.0
        return now[0]

    slurm = looking(commands, clock)
    commands.late = True
    for _ in range(2):
        with pytest.raises(SlurmTimeout):
            slurm.look([1], ())
    commands.late = False
    for _ in range(2):
        slurm.look([1], ())
    assert commands.limits == [20.0, 40.0, 80.0, 30.0]
    assert "--states=PENDING" in commands.said[-1].split()


@pytest.mark.parametrize(
    ("shown", "asked"),
    [
        ("MinMemoryNode=100M", Asked("node", 100)),
        ("MinMemoryCPU=8000M", Asked("cpu", 8000)),
        ("MinMemoryNode=1.50G", Asked("node", 1536)),
        ("MinMemoryNode=2T", Asked("node", 2 << 20)),
        ("MinMemoryNode=0", Asked("node", 0)),
    ],
)
def test_memory_asked_for(commands: Commands, shown: str, asked: Asked) -> None:
    slurm = looking(commands)
    client = slurm._client
    assert isinstance(client, Client)
    number = client.submit(["script"]).job_id
    assert number is not None
    commands.memory[number] = shown
    assert slurm.look([number], [number]).memory == {number: asked}
    del commands.memory[number]
    assert slurm.look([number], [number]).memory == {}, "purged in between"


def test_a_name_tells_nothing_of_another_job(commands: Commands) -> None:
    """Names may hold newlines, and scontrol prints them [seen on 22.05.8]."""
    slurm = looking(commands)
    client = slurm._client
    assert isinstance(client, Client)
    mine, other = (client.submit(["script"]).job_id for _ in range(2))
    assert mine is not None and other is not None
    commands.name = f"a\nJobId={other} JobName=x\n   MinCPUsNode=1 MinMemoryNode=900G MinTmpDiskNode=0"
    commands.memory[mine] = "MinMemoryNode=100M"
    memory = slurm.look([mine, other], [mine, other]).memory
    assert other not in memory
    assert all("show job" not in line or line.split()[-1].isdigit() for line in commands.said)


def test_a_silent_slurm_is_an_error_and_no_fact(commands: Commands) -> None:
    commands.down = True
    with pytest.raises(SlurmUnreachable):
        looking(commands).look([1], ())


def test_one_job(commands: Commands) -> None:
    slurm = looking(commands)
    client = slurm._client
    assert isinstance(client, Client)
    number = client.submit(["script"]).job_id
    found = slurm.job(str(number))
    assert found is not None and found.id == number
    assert slurm.job("4711") is None


BOTH = "SchedulerParameters     = bf_interval=2,requeue_delay=7\nAuthInfo                = cred_expire=30\n"


@pytest.mark.parametrize(
    ("config", "delay"),
    [
        (BOTH + "SLURM_VERSION = 26.05.5", 7.0),
        (BOTH.replace("=7", "=70") + "SLURM_VERSION = 26.05.5", 70.0),
        (BOTH + "SLURM_VERSION = 24.11.5", 30.0),
        (BOTH + "SLURM_VERSION = 22.05.8", 30.0),
        (BOTH + "SLURM_VERSION = 25.05.1", 7.0),
        (BOTH.replace("=7", "=70") + "SLURM_VERSION = 25.05.1", 30.0),
        (
            "SchedulerParameters     = (null)\nAuthInfo                = socket=/run/munge,cred_expire=30",
            30.0,
        ),
        ("SchedulerParameters     = not_requeue_delay=5\nSLURM_VERSION = 26.05.5", NO_DELAY),
        ("", NO_DELAY),
    ],
)
def test_slurms_own_delay(config: str, delay: float) -> None:
    assert delay_of(config) == delay


@pytest.mark.parametrize(
    ("config", "seconds"), [("MinJobAge     = 45 sec", 45.0), ("MinJobAge = 0 sec", math.inf), ("", 300.0)]
)
def test_how_long_slurm_remembers(config: str, seconds: float) -> None:
    assert record_of(config) == seconds


def test_slurms_release() -> None:
    assert release_of("SLURM_CONF  = /etc/slurm.conf\nSLURM_VERSION           = 22.05.8\n") == (22, 5)
    assert release_of("") == (0, 0)


def test_a_dependency_names_jobs_and_not_their_minutes() -> None:
    waiting = [(5, "after:12+5(unfulfilled)?afterok:13(failed)"), (6, ""), (7, "singleton(unfulfilled)")]
    assert waited_for(waiting) == {"12": (5,), "13": (5,)}
