"""A job is kept off the node that it failed on only where it can run elsewhere: by what Slurm says of job and nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugins.client.resources import Hosts, Tres
from slurm_plugins.client.states import NodeState
from slurm_plugins.client.values import Node
from slurm_plugins.service.keeper.again_look import Asked
from tests.unit.slurm_plugins.keeper.again import NODES, Again, a_failed_job


@pytest.fixture
def again(tmp_path: Path) -> Iterator[Again]:
    one = Again(tmp_path, a_failed_job())
    yield one
    one.close()


def failed_on_n1(again: Again) -> tuple[str, ...]:
    again.fail(8, "cuda_init_failed", nodes="n1", finding={"node": "n1"})
    again.settle()
    row = again.row()
    assert row.state == "done", "it is tried again all the same"
    return row.avoid


def of_kinds(
    again: Again, monkeypatch: pytest.MonkeyPatch, big: set[str], memory: Mapping[str, int] | None = None
) -> None:
    """A cluster of small nodes, and of some with GPUs; `memory` is what some have, in GiB, others have 32."""
    nodes = {
        name: Node(
            name=name,
            state=NodeState.IDLE,
            memory=(memory or {}).get(name, 32) << 30,
            gres=Tres((("gres/gpu", 8),)) if name in big else Tres(),
            features=("ib",),
        )
        for name in NODES
    }
    look = again.seen.look
    monkeypatch.setattr(again.seen, "look", lambda ids, memory_of: replace(look(ids, memory_of), nodes=nodes))


def test_elsewhere_as_a_rule(again):
    assert failed_on_n1(again) == ("n1",)


def test_not_off_a_node_that_it_asks_for(again):
    again.change("8", required_nodes=Hosts("n1"))
    assert failed_on_n1(again) == ()
    assert "--nodelist" in again.row().why


def test_not_within_a_reservation_whose_nodes_nobody_knows(again):
    again.change("8", reservation="course")
    assert failed_on_n1(again) == ()


def test_not_off_the_only_node_of_its_kind(again, monkeypatch):
    of_kinds(again, monkeypatch, {"n1"})
    assert failed_on_n1(again) == ()


def test_off_one_of_many_of_its_kind(again, monkeypatch):
    of_kinds(again, monkeypatch, {"n1", "n2", "n3", "n4"})
    assert failed_on_n1(again) == ("n1",)


def test_no_more_memory_than_a_node_of_its_kind_has(again, monkeypatch):
    of_kinds(again, monkeypatch, {"n1", "n2"}, {"n1": 40, "n2": 48, "n3": 512})
    again.seen.memory[8] = Asked("node", 36 << 10)
    again.fail(8, "cpu_oom", state="OUT_OF_MEMORY", nodes="n1")
    again.settle()
    assert again.row().memory_mib == 48 << 10, "not 54G, which only a node without GPUs has"


def test_no_more_memory_than_the_node_has_that_it_asks_for(again, monkeypatch):
    of_kinds(again, monkeypatch, {"n1", "n2"}, {"n1": 40, "n2": 48})
    again.change("8", required_nodes=Hosts("n1"))
    again.seen.memory[8] = Asked("node", 36 << 10)
    again.fail(8, "cpu_oom", state="OUT_OF_MEMORY", nodes="n1")
    again.settle()
    assert again.row().memory_mib == 40 << 10


def test_what_is_asked_for_each_gpu_is_left_to_the_user(again):
    again.change("8", memory_per_gpu=1 << 30)
    again.seen.memory[8] = Asked("cpu", 8000)  # the partition's default, which Slurm shows in its place
    again.fail(8, "cpu_oom", state="OUT_OF_MEMORY", nodes="n1")
    again.settle()
    assert (again.row().stop, again.row().command) == ("unknown", "gsub fix 8")
