"""The child process around pyslurm: what comes of death, silence, chatter, odd values and other releases in it.

A stand-in `pyslurm` is put on the child's path; what the real one offers is held by test_pyslurm_sources.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from slurm_plugins.client.errors import (
    SlurmNotInstalled,
    SlurmRefused,
    SlurmTimeout,
    SlurmUnreachable,
)
from slurm_plugins.client.protocol import SlurmClient
from slurm_plugins.client.pyslurm_client import PyslurmClient
from slurm_plugins.client.pyslurm_sources import SOURCES
from slurm_plugins.client.states import NodeState
from slurm_plugins.client.tables import Unread
from tests.unit.slurm_plugins.client.slurm_rows import Answers, job
from tests.waiting import wait_until

STAND_IN = """
import os, sys, time
from types import SimpleNamespace as Thing

__version__ = "25.11.2"

class RPCError(Exception): pass

class Node: pass
for name in {node}: setattr(Node, name, None)

class Partition: pass
for name in {partition}: setattr(Partition, name, None)

class Odd(Node):
    "A node with an attribute that fails, as Job.memory did in issue 312."
    name, state = "n2", "DOWN"
    @property
    def comment(self): raise TypeError("unsupported operand")

def a_node(**values):
    node = Node()
    for name, value in values.items(): setattr(node, name, value)
    return node

NODE = dict(name="n1", state="IDLE+DRAIN", total_cpus=64, real_memory=512000, configured_gres={{"gpu:a100": 8}},
    allocated_tres={{"cpu": "4", "mem": "4G"}}, boot_time=1795236133, last_busy_time=0, partitions=["gpu"],
    available_features=["a100"], reason="fan | State=IDLE é")

class Nodes:
    @staticmethod
    def load():
        print("libslurm says hello on standard output")
        return Thing(values=lambda: [a_node(**NODE), Odd()])

class Partitions:
    @staticmethod
    def load():
{body}
"""

Make = Callable[..., PyslurmClient]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Make]:
    """A client whose pyslurm does ``body`` when the partitions are asked for, and ``head`` when it is imported."""
    made: list[PyslurmClient] = []

    def make(
        body: str = "raise RPCError('never')", *, head: str = "", lacks: str = "", **options: Any
    ) -> PyslurmClient:
        used = {
            what: [name for name, _ in SOURCES[what].attributes.values()] for what in ("nodes", "partitions")
        }
        used["nodes"] = [name for name in used["nodes"] if name != lacks]
        text = STAND_IN.format(
            node=used["nodes"], partition=used["partitions"], body=textwrap.indent(body, " " * 8)
        )
        (tmp_path / "pyslurm.py").write_text(head + text)
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "SLURM_CONF": str(tmp_path / "slurm.conf")}
        made.append(PyslurmClient(env, **{"timeout": 20.0, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def names(asked: PyslurmClient) -> list[str]:
    return [node.name for node in asked.nodes()]


def test_values_are_the_same_as_from_the_commands(client: Make) -> None:
    one, odd = client().nodes()
    assert (one.name, one.state, one.flags) == ("n1", NodeState.IDLE, frozenset({"DRAIN"}))
    assert (one.cpus, one.memory, one.gpus) == (64, 512000 << 20, 8)
    assert one.tres_allocated == {"cpu": 4, "mem": 4 << 30}
    assert one.booted == datetime.fromtimestamp(1795236133, timezone.utc)
    assert one.last_busy is None
    assert (one.partitions, one.features, one.reason) == (("gpu",), ("a100",), "fan | State=IDLE é")
    assert (odd.name, odd.state, odd.comment) == ("n2", NodeState.DOWN, None)


def test_it_is_a_slurm_client(client: Make) -> None:
    assert isinstance(client(), SlurmClient)


@pytest.mark.case("P7")
def test_what_pyslurm_loses_is_read_by_the_commands(client: Make) -> None:
    row = job(7, exit="137:0", array_job_id="7", array_task="2-9%2", state="FAILED", name="\udcff")
    (found,) = client(run=Answers(jobs=[{**row, "tres_per_node": "gres/gpu:3"}])).jobs()
    assert (found.exit.code, found.array_tasks, found.gpus, found.name) == (137, "2-9%2", 3, "\udcff")


@pytest.mark.case("A2")
def test_one_odd_node_does_not_lose_the_others(client: Make) -> None:
    unread = Unread()
    asked = client(unread=unread)
    path = Path(asked._child._env["PYTHONPATH"], "pyslurm.py")
    path.write_text(
        path.read_text().replace(
            "a_node(**NODE)", "a_node(**NODE), a_node(**{**NODE, 'configured_gres': {'?': 1}})"
        )
    )
    assert names(asked) == ["n1", "n2"]
    assert unread.kinds == {"node": 1}


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (
            "raise RPCError('Unable to contact slurm controller (connect failure)')",
            SlurmUnreachable,
            "slurmctld",
        ),
        ("raise RPCError('Access/permission denied')", SlurmRefused, "denied"),
        ("raise KeyError('x')", SlurmRefused, "KeyError"),
        ("os._exit(1)", SlurmUnreachable, "exit code 1"),
        ("os.kill(os.getpid(), 11)", SlurmUnreachable, "exit code -11"),
        ("time.sleep(60)", SlurmTimeout, "still waiting"),
    ],
)
def test_what_happens_in_the_child_comes_back_as_what_it_means(
    client: Make, body: str, error: type[Exception], words: str
) -> None:
    asked = client(body, timeout=20.0 if "sleep" not in body else 3.0)
    with pytest.raises(error, match=words) as caught:
        asked.partitions()
    assert type(caught.value) is error
    # and the next question finds a child that answers
    assert names(asked) == ["n1", "n2"]


@pytest.mark.case("P5")
@pytest.mark.parametrize(
    ("said", "daemon", "words"),
    [
        ("fatal: Could not establish a configuration source", "config", "no Slurm configuration"),
        (
            "error: _parse_next_key: Parsing error at unrecognized key: Foo\\n"
            "fatal: Unable to process configuration file",
            "slurm.conf",
            "unrecognized key: Foo",
        ),
        ("Segmentation fault", "slurmctld", "Segmentation fault"),
    ],
)
def test_the_last_words_of_libslurm_say_what_it_died_of(
    client: Make, said: str, daemon: str, words: str
) -> None:
    with pytest.raises(SlurmUnreachable, match=words) as caught:
        client(
            head=f"import os, sys; sys.stderr.write('{said}\\n'); sys.stderr.flush(); os._exit(1)\n"
        ).nodes()
    assert caught.value.daemon == daemon


@pytest.mark.case("P5", "P6")
@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("raise ModuleNotFoundError(\"No module named 'pyslurm'\", name='pyslurm')\n", "not installed"),
        ("raise ImportError('libslurm.so.42: cannot open shared object file')\n", "libslurm.so.42"),
        ("raise RuntimeError('version mismatch')\n", "version mismatch"),
    ],
)
def test_a_pyslurm_that_cannot_be_imported_is_said_to_be_so_each_time(
    client: Make, head: str, words: str
) -> None:
    asked = client(head=head)
    for _ in range(3):
        with pytest.raises(SlurmNotInstalled, match=words) as caught:
            asked.nodes()
        assert "on PATH" not in str(caught.value)
        assert len(str(caught.value).splitlines()) <= 3
        assert asked._child._process is None, "a child that imported half of it lives on"


@pytest.mark.case("P1")
def test_a_pyslurm_that_lacks_an_attribute_is_refused_by_name(client: Make) -> None:
    with pytest.raises(SlurmNotInstalled) as caught:
        client(lacks="configured_gres").nodes()
    assert "25.11.2 lacks Node.configured_gres" in str(caught.value)
    assert "or newer" in str(caught.value)


@pytest.mark.case("P1")
def test_a_pyslurm_without_a_class_is_refused_by_name(client: Make) -> None:
    asked = client()
    path = Path(asked._child._env["PYTHONPATH"], "pyslurm.py")
    path.write_text(path.read_text().replace("class Nodes:", "class Nothing:"))
    with pytest.raises(SlurmNotInstalled, match=r"lacks Nodes\.load"):
        asked.nodes()


def test_a_late_answer_is_never_taken_for_the_next_one(client: Make) -> None:
    asked = client("time.sleep(4); return Thing(values=lambda: [])", timeout=3.0)
    with pytest.raises(SlurmTimeout):
        asked.partitions()
    assert names(asked) == ["n1", "n2"]


@pytest.mark.case("P4")
def test_many_threads_ask_one_child(client: Make) -> None:
    asked = client()
    found: list[list[str]] = []

    def ask() -> None:
        found.extend(names(asked) for _ in range(10))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["n1", "n2"]] * 40


@pytest.mark.case("P3")
def test_a_child_is_replaced_when_the_configuration_changes(client: Make, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("SlurmctldHost=old\n")
    asked = client()

    def child() -> int:
        assert names(asked)
        assert asked._child._process is not None
        return asked._child._process.pid

    first = child()
    assert child() == first
    (tmp_path / "slurm.conf").write_text("SlurmctldHost=another\n")
    second = child()
    assert second != first
    (tmp_path / "gres.conf").write_text("")
    assert child() != second


def test_closing_leaves_no_process(client: Make) -> None:
    asked = client()
    asked.nodes()
    process = asked._child._process
    assert process is not None
    assert process.poll() is None
    asked.close()
    assert process.poll() is not None
    with asked:
        assert asked.nodes()
    assert asked._child._process is None


def test_our_modules_do_not_shadow_others_in_the_child(client: Make) -> None:
    # slurm_plugins/client has modules named parse, values, tables...
    asked = client(
        head="import sys; assert not any('slurm_plugins/client' in entry for entry in sys.path), sys.path\n"
    )
    assert asked.nodes()


def test_the_child_ends_with_its_parent(client: Make, tmp_path: Path) -> None:
    client()
    code = (
        "from slurm_plugins.client.pyslurm_client import PyslurmClient; import os\n"
        f"c = PyslurmClient({{**os.environ, 'PYTHONPATH': {str(tmp_path)!r}}}); c.nodes()\n"
        "print(c._child._process.pid, flush=True); os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    pid = int(done.stdout)

    def has_ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
        except OSError:
            return True

    wait_until(has_ended, 10, "the end of the child of a process that has ended")
