"""The child process around pyslurm: what comes of death, silence, chatter and odd values in it.

A stand-in `pyslurm` is put on the child's path; what the real one offers is held by test_pyslurm_sources.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from slurm_plugins.client.errors import (
    NoSuchJob,
    SlurmFormatError,
    SlurmNotInstalled,
    SlurmRefused,
    SlurmTimeout,
    SlurmUnreachable,
)
from slurm_plugins.client.protocol import SlurmClient
from slurm_plugins.client.pyslurm_client import PyslurmClient
from slurm_plugins.client.states import ExitStatus, JobState
from tests.waiting import wait_until

STAND_IN = '''
import json, os, sys, time
from types import SimpleNamespace as Thing

class RPCError(Exception): pass

class Count:
    def __init__(self, count): self.count = count

class TRES:
    """As pyslurm.db.TrackableResources: parts that have a count, and some that are None."""
    def __init__(self, **parts): self.parts = parts
    def to_dict(self, recursive=False, flatten_limits=False):
        assert flatten_limits
        parts = {name.replace("__", "/"): Count(count) for name, count in self.parts.items()}
        return {**parts, "energy": None, "_id_map": {}}

class Odd:
    """A job with an attribute that fails, as Job.memory did in issue 312."""
    id, name, user_name, state, partition = 9, "odd", "u", "RUNNING", "gpu"
    @property
    def dependencies(self): raise TypeError("unsupported operand")

JOB = dict(id=7, name="train", user_name="user1", state="PENDING", state_reason="None", partition="gpu", time_limit=60,
    submit_time=1795236133, start_time=None, end_time=0, array_id=5, array_task_id=None, heterogeneous_id=None,
    exit_code=3, exit_code_signal=0, memory_per_gpu=2048, constraints=["a100", "leaf1"], resource_sharing="NO",
    requested_tres=TRES(cpu=4, mem=4096, gres__gpu=2), tres_per_node=TRES(gres__gpu=2), num_nodes=1,
    dependencies={"after": [], "afterok": ["1(unfulfilled)", 2], "singleton": True, "satisfy": "all"},
    comment="a | b\\nJobId=5 é", excluded_nodes="n[1-3]", required_switches=0, max_wait_time_switches=300)

class Jobs:
    @staticmethod
    def load():
        print("libslurm says hello on standard output")
        return Thing(values=lambda: [Thing(**JOB), Odd()])

class Job:
    @staticmethod
    def load(number):
        {body}

class Accounted:
    @staticmethod
    def load(condition):
        if condition.get("users") == ["dbd-is-down"]:
            raise RPCError("Failed to get Jobs from slurmdbd")
        if condition.get("users") == ["no-such-user"]:
            raise KeyError("no-such-user")
        return {1: Thing(**{**JOB, "comment": json.dumps(condition), "allocated_tres": TRES(gres__gpu=2)})}

db = Thing(Jobs=Accounted, JobFilter=lambda **condition: condition)
'''


@pytest.fixture
def client(tmp_path, request):
    """A client whose pyslurm does ``request.param`` when a job is asked for."""

    def make(body: str, *, timeout: float = 20.0, head: str = "") -> PyslurmClient:
        (tmp_path / "pyslurm.py").write_text(
            head + STAND_IN.replace("{body}", textwrap.indent(body, " " * 8).strip())
        )
        return PyslurmClient({**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=timeout)

    made = []

    def keep(body: str = "raise RPCError('never')", **options) -> PyslurmClient:
        made.append(make(body, **options))
        return made[-1]

    yield keep
    for one in made:
        one.close()


def test_values_are_the_same_as_from_the_commands(client):
    train, odd = client().jobs()
    assert (train.id, train.shown_id, train.name, train.user) == (7, "5_0", "train", "user1")
    assert train.state is JobState.PENDING
    assert train.time_limit == 3600
    assert train.submitted == datetime.fromtimestamp(1795236133, timezone.utc)
    assert train.end is None
    assert train.exit == ExitStatus(3)
    assert train.tres == {"cpu": 4, "mem": 4 << 30, "gres/gpu": 2}
    assert train.gpus == 2
    assert train.memory_per_gpu == 2 << 30
    assert train.features == "a100,leaf1"
    assert train.dependency == "afterok:1(unfulfilled):2,singleton"
    assert train.comment == "a | b\nJobId=5 é"
    assert list(train.excluded_nodes) == ["n1", "n2", "n3"]
    assert train.exclusive == "NODE"
    assert (train.switches, train.switches_wait) == (None, None)
    assert (odd.id, odd.dependency, odd.shown_id) == (9, None, "9")


def test_it_is_a_slurm_client(client):
    assert isinstance(client(), SlurmClient)


def test_selection(client):
    asked = client()
    assert [job.id for job in asked.jobs(ids=[9])] == [9]
    assert [job.id for job in asked.jobs(ids=[5])] == [7]
    assert [job.id for job in asked.jobs(user="user1")] == [7]
    assert asked.jobs(ids=[99]) == ()
    assert asked.jobs(ids=[]) == ()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise RPCError('Invalid job id specified')", NoSuchJob),
        ("raise RPCError('Unable to contact slurm controller (connect failure)')", SlurmUnreachable),
        ("raise RPCError('Access/permission denied')", SlurmRefused),
        ("os._exit(1)", SlurmUnreachable),
        ("os.kill(os.getpid(), 11)", SlurmUnreachable),
        ("time.sleep(60)", SlurmTimeout),
        ("return Thing.nothing_of_this_name", SlurmFormatError),
    ],
)
def test_what_happens_in_the_child_comes_back_as_what_it_means(client, body, error):
    asked = client(body, timeout=1.5)
    begin = time.monotonic()
    with pytest.raises(error) as caught:
        asked.job(7)
    assert type(caught.value) is error
    assert time.monotonic() - begin < 5
    # and the next question finds a child that answers
    assert [job.id for job in asked.jobs()] == [7, 9]


def test_a_late_answer_is_never_taken_for_the_next_one(client):
    asked = client("time.sleep(2); return Thing(**{**JOB, 'id': number})", timeout=1.0)
    with pytest.raises(SlurmTimeout):
        asked.job(7)
    assert [job.id for job in asked.jobs()] == [7, 9]


def test_death_at_import_is_unreachable(client):
    with pytest.raises(SlurmUnreachable) as caught:
        client(head="import os; os._exit(1)\n").jobs()
    assert "exit code 1" in str(caught.value)


def test_no_pyslurm_is_said_to_be_so(client):
    with pytest.raises(SlurmNotInstalled) as caught:
        client(head="raise ImportError('no libslurm')\n").jobs()
    assert "no libslurm" in str(caught.value)


def test_accounting_sends_its_condition(client):
    since = datetime.fromtimestamp(1795236000, timezone.utc)
    (record,) = client().accounting(ids=["5_0", 7], user="user1", since=since, until=since, duplicates=False)
    assert (record.id, record.shown_id, record.gpus, record.state) == (7, "5_0", 2, JobState.PENDING)
    assert json.loads(record.comment) == {
        "ids": [5, 7],
        "users": ["user1"],
        "start_time": 1795236000,
        "end_time": 1795236000,
    }


@pytest.mark.parametrize(
    ("user", "error"), [("dbd-is-down", SlurmUnreachable), ("no-such-user", SlurmRefused)]
)
def test_accounting_that_fails(client, user, error):
    with pytest.raises(error) as caught:
        client().accounting(user=user, duplicates=False)
    assert getattr(caught.value, "daemon", "slurmdbd") == "slurmdbd"


def test_closing_leaves_no_process(client):
    asked = client()
    asked.jobs()
    process = asked._child._process
    assert process is not None
    assert process.poll() is None
    asked.close()
    assert process.poll() is not None
    with asked:
        assert asked.jobs()
    assert asked._child._process is None


def test_our_modules_do_not_shadow_others_in_the_child(client):
    # slurm_plugins/client has modules named parse, values, tables...
    asked = client(
        head="import sys; assert not any('slurm_plugins/client' in entry for entry in sys.path), sys.path\n"
    )
    assert asked.jobs()


def test_the_child_ends_with_its_parent(tmp_path):
    import subprocess

    (tmp_path / "pyslurm.py").write_text(STAND_IN.replace("{body}", "pass"))
    code = (
        "from slurm_plugins.client.pyslurm_client import PyslurmClient; import os\n"
        f"c = PyslurmClient({{**os.environ, 'PYTHONPATH': {str(tmp_path)!r}}}); c.jobs()\n"
        "print(c._child._process.pid, flush=True); os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    pid = int(done.stdout)

    def has_ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
        except OSError:
            return True

    wait_until(has_ended, 10, "the end of the child of a process that has ended")
