"""A node's batch is taken from where that node is: root on one node does not speak for the others."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from slurm_plugins.client.states import NodeState
from slurm_plugins.client.values import Node
from slurm_plugins.service.keeper.addresses import keep_learning, look_up
from slurm_plugins.service.keeper.whence import Checked, ElsewhereError, Place, Whence, plain_address
from slurm_plugins.service.site_watch import SiteFile
from tests.unit.profiler.store.records import started
from tests.unit.slurm_plugins.keeper.door import OPERATOR, PATIENCE, Door, batch
from tests.unit.slurm_plugins.keeper.test_ask import slurm
from tests.waiting import wait_until

NODES = {
    "n1": ("10.0.0.1", "2001:db8::1"),
    "n2": ("10.0.0.2",),
    # two slurmd on one host
    "s1": ("10.0.0.9", "127.0.1.1"),
    "s2": ("10.0.0.9", "127.0.1.1"),
    # the name server did not tell
    "x": (),
}


@pytest.mark.parametrize(
    ("peer", "node", "place"),
    [
        ("10.0.0.1", "n1", "own"),
        ("::ffff:10.0.0.1", "n1", "own"),
        ("2001:0db8:0::1", "n1", "own"),
        ("10.0.0.1", "n2", "other"),
        ("10.0.0.1", "x", "other"),
        ("10.0.0.1", "made-up", "other"),
        ("10.0.0.9", "s1", "own"),
        ("10.0.0.9", "s2", "own"),
        ("10.0.0.9", "n1", "other"),
        # a second network of the node's, a gateway, a proxy
        ("192.168.0.1", "n1", "unknown"),
        # anybody on the service's own host
        ("127.0.1.1", "n1", "unknown"),
        ("::1", "n1", "unknown"),
        ("", "n1", "unknown"),
        ("not an address", "n1", "unknown"),
    ],
)
def test_whose_address_it_is(peer: str, node: str, place: Place):
    whence = Whence("known")
    assert whence.judge(peer, node) == "unknown", "before anything is known nothing is concluded"
    whence.learn(NODES)
    assert whence.judge(peer, node) == place


@pytest.mark.parametrize(
    ("checked", "known", "peer", "status"),
    [
        ("off", True, "10.0.0.1", None),
        ("known", False, "10.0.0.1", None),
        ("known", True, "10.0.0.1", 403),
        ("known", True, "10.0.0.2", None),
        ("known", True, "10.9.9.9", None),
        ("strict", False, "10.0.0.2", 503),
        ("strict", True, "10.9.9.9", 403),
        ("strict", True, "10.0.0.2", None),
    ],
)
def test_what_the_site_wants_of_it(checked: Checked, known: bool, peer: str, status: int | None):
    whence = Whence(checked)
    if known:
        whence.learn(NODES)
    try:
        whence.check(peer, "n2")
    except ElsewhereError as error:
        assert error.status == status
    else:
        assert status is None


def test_an_address_that_speaks_for_many_is_told_of_once(caplog: pytest.LogCaptureFixture):
    whence = Whence("known")
    whence.learn(NODES)
    for _ in range(3):
        for node in ("n1", "n2", "x"):
            whence.check("10.9.9.9", node)
            whence.check("127.0.0.1", node)
    assert [one.message for one in caplog.records] == [
        "10.9.9.9 is no node's address by Slurm, and speaks for n1 and n2"
    ]


def test_root_on_one_node_cannot_speak_for_another(door: Door):
    door.whence.learn(NODES)

    async def bring(node: str, peer: str) -> int:
        return (
            await door.ask(0, "POST", "/v1/records", batch(started(1, node=node), node=node), peer=peer)
        ).status

    assert asyncio.run(bring("n2", "10.0.0.1")) == 403
    assert asyncio.run(door.ask(OPERATOR, "GET", "/v1/jobs/1")).status == 404, "nothing of it was taken"
    assert asyncio.run(bring("n2", "10.0.0.2")) == 200
    assert asyncio.run(bring("n1", "192.168.0.1")) == 200
    assert [door.counts.batches.value(place) for place in ("own", "other", "unknown")] == [1, 1, 1]


def test_names_that_are_not_found_in_time_are_left_out():
    over = threading.Event()

    def resolve(name: str) -> Iterable[str]:
        if name == "slow":
            over.wait(PATIENCE)
        return {"n1.ib": ("10.1.0.1",), "n1": ("10.0.0.1",)}.get(name, ())

    nodes = (
        Node(name="n1", state=NodeState.IDLE, address="n1.ib", hostname="n1"),
        Node(name="n2", state=NodeState.IDLE, address="slow"),
    )
    found = look_up(nodes, resolve, 0.5)
    over.set()
    assert found["n2"] == () and set(found["n1"]) <= {"10.0.0.1", "10.1.0.1"}
    assert look_up(nodes[:1], resolve, PATIENCE) == {"n1": ("10.0.0.1", "10.1.0.1")}


def test_slurm_is_asked_where_its_nodes_are(tmp_path: Path):
    line = "NodeName=n1 NodeAddr=10.0.0.1 NodeHostName=localhost State=IDLE CPUTot=1"
    slurm(tmp_path, scontrol=f"[ \"$1\" = --version ] && echo slurm 22.05.8 || echo '{line}'")
    site = tmp_path / "site.toml"
    site.write_text(f'cluster = "lab"\n[slurm]\nbin = "{tmp_path}"\n')
    whence = Whence("known")

    async def learn() -> None:
        learning = asyncio.ensure_future(
            keep_learning(whence, SiteFile(site).taken, str(site), {**os.environ, "PATH": "/usr/bin:/bin"})
        )
        await asyncio.to_thread(
            wait_until,
            lambda: whence.judge("10.0.0.1", "n1") == "own" or learning.done(),
            PATIENCE,
            "the node's address",
        )
        learning.cancel()

    asyncio.run(asyncio.wait_for(learn(), PATIENCE))
    assert whence.judge("10.0.0.1", "n2") == "other"


def test_an_address_in_its_shortest_form():
    assert plain_address("fe80:0:0::1%eth0") == "fe80::1" and plain_address("0.0.0.0") is None
