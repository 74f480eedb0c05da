"""Bad nodes from end to end, without Slurm: what failed is in the store, and a new job keeps off a node."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from profiler.answers import BadNodes
from profiler.bad_nodes import DAY
from profiler.store import Store
from profiler.store.node_votes import NodeDay, node_day
from site_configs.site_model import Policy, Site
from slurm_plugins.client.values import Node, Partition
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.knowledge import AvoidRecord
from slurm_plugins.decide.pipeline import decide
from slurm_plugins.decide.request import Job, Request
from slurm_plugins.service import learnt
from slurm_plugins.service.keeper.app import App
from slurm_plugins.service.keeper.bad_nodes import Assessing
from slurm_plugins.service.keeper.collect import Collector
from slurm_plugins.service.keeper.openapi import text
from slurm_plugins.service.keeper.routes import endpoints
from slurm_plugins.service.learnt import AVOID, PARTITIONS, STALE, Learnt, Partitions, read_partitions
from tests.unit.profiler.nodes.world import NODES, NOW, Run, told
from tests.unit.slurm_plugins.client.fake import FakeClient
from tests.unit.slurm_plugins.decide.cluster import inventory, nodes, partition
from tests.unit.slurm_plugins.keeper.door import ADA, CLUSTER, OPERATOR, Door, new_store
from tests.unit.slurm_plugins.service.serving import FakeLookout, serving

HOSTS = "n[1-20]"
BAD = [
    Run((node,), uid, xid=True, days_ago=ago)
    for node, uid, ago in (("n7", 1, 0), ("n7", 2, 0.3), ("n7", 1, 1.1))
]
"""What root saw on n7, in jobs of two users."""
CALM = [Run((node,), 1500 + i, days_ago=ago) for i, node in enumerate(NODES) for ago in (0, 1, 2)]


@dataclass
class Place:
    """A keeper's part and gsubd's, over one store and one folder."""

    store: Store
    state: Path
    door: Door
    assessing: Assessing
    clock: list[float]

    def weigh(self) -> BadNodes:
        return asyncio.run(self.assessing.once())

    def exc_nodes(self, uid: int = 4000, mode: Any = "enforce") -> object:
        """What a job that is submitted now is kept off."""
        known = Learnt(self.state).read(CLUSTER)
        hosts = inventory(nodes(HOSTS, {"a100": 8}), [partition("gpu", HOSTS, default=True)])
        context = Context(Site(cluster=CLUSTER, policy=Policy(mode)), hosts, knowledge=known)
        job = Job(min_nodes=1, max_nodes=1, tres_per_node="gres:gpu:8")
        return decide(Request(id=1, uid=uid, job=job), context, decision_id="d-0").edits.get("exc_nodes")

    def ask(self, uid: int, method: str, target: str, body: object = None) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        return asyncio.run(self.door.ask(uid, method, target, data))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    state = tmp_path / "state"
    state.mkdir()
    store = new_store(tmp_path)
    door, clock = Door(store), [NOW]
    assessing = Assessing(CLUSTER, door.storing, door.counts, state, now=lambda: clock[0])
    collector = Collector(CLUSTER, lambda records, at: None, lambda: None, door.whence)
    answered = endpoints(CLUSTER, door.storing, collector, door.counts, document=text, assessing=assessing)
    door.app = App(answered, door.gate, door.counts)
    Partitions(state).tell(inventory(nodes(HOSTS, {"a100": 8}), [partition("gpu", HOSTS, default=True)]))
    yield Place(store, state, door, assessing, clock)
    door.close()
    store.close()


def test_what_root_saw_keeps_others_off(place: Place) -> None:
    assert place.exc_nodes() is None
    told(place.store, [*CALM, *BAD])
    found = place.weigh()
    assert [(one.node, one.partition, one.reason, one.by, one.avoided) for one in found.nodes] == [
        ("n7", "gpu", "gpu_hardware", "root", True)
    ]
    assert place.exc_nodes() == "n7"


@pytest.mark.slow
def test_no_user_alone_keeps_others_off_but_three_do(place: Place) -> None:
    told(place.store, CALM)
    told(place.store, [Run(("n7",), 666, f"w-{'x' * (i % 9)}", log="gpu_hardware", named="n7", days_ago=i % 9 * 1.0)
                       for i in range(1000)])  # fmt: skip
    found = place.weigh()
    assert [(one.node, one.by, one.avoided) for one in found.nodes] == [("n7", "", False)]
    assert place.exc_nodes() is None and (place.state / AVOID).read_bytes() == b""
    told(
        place.store,
        [Run(("n9",), uid, log="cuda_init_failed", days_ago=ago) for uid in (1, 2, 3) for ago in (0, 1, 2)],
    )
    assert place.weigh().nodes[0].by == "user"
    assert place.exc_nodes() == "n9"


def test_evidence_is_forgotten_and_cleared(place: Place) -> None:
    told(place.store, [*CALM, *BAD])
    place.weigh()
    assert place.exc_nodes() == "n7"
    place.clock[0] = NOW + 60
    refused = place.ask(ADA, "POST", "/v1/nodes/n7/clear", {"why": "mine"})
    assert refused.status == 403 and place.exc_nodes() == "n7"
    cleared = place.ask(OPERATOR, "POST", "/v1/nodes/n7/clear", {"why": "GPU 3\nreplaced"})
    assert cleared.status == 200, cleared.why
    assert cleared.json["node"] == "n7" and cleared.json["why"] == "GPU 3 replaced"
    # at once, and for good
    assert place.exc_nodes() is None and place.weigh().nodes == ()
    assert [one.node for one in place.weigh().cleared] == ["n7"]
    # what comes after counts
    place.clock[0] = NOW + 2 * DAY
    told(place.store, [Run(("n7",), uid, xid=True, days_ago=-ago) for uid, ago in ((5, 1.4), (6, 1.5))])
    assert [one.node for one in place.weigh().nodes if one.avoided] == ["n7"]
    place.clock[0] = NOW + 12 * DAY
    assert [one.node for one in place.weigh().nodes if one.avoided] == []
    assert place.exc_nodes() is None


@pytest.mark.parametrize(
    ("target", "body", "status"),
    [
        ("/v1/nodes/n99/clear", {"why": "x"}, 404),
        ("/v1/nodes/n7/clear", {}, 400),
        ("/v1/nodes/n7/clear", {"why": " \n "}, 400),
        ("/v1/nodes/n7/clear", {"why": "x" * 501}, 400),
        ("/v1/nodes/n7/clear", [], 400),
        ("/v1/nodes/n7/clear?force=1", {"why": "x"}, 400),
        ("/v1/nodes/n7%20/clear", {"why": "x"}, 400),
    ],
)
def test_what_is_no_clearance(place: Place, target: str, body: object, status: int) -> None:
    assert place.ask(OPERATOR, "POST", "/v1/nodes/n7/clear", {"why": "x"}).status == 503  # not weighed yet
    told(place.store, BAD)
    place.weigh()
    assert place.ask(OPERATOR, "POST", target, body).status == status
    assert place.store.clearances(CLUSTER) == ()


def test_users_are_told_of_nodes_and_nothing_of_others(place: Place) -> None:
    assert place.ask(ADA, "GET", "/v1/bad-nodes").json == {}
    told(place.store, [*CALM, *BAD, Run(("n3",), 1, "secret", log="cuda_failure")])
    place.weigh()
    told_all = place.ask(OPERATOR, "GET", "/v1/bad-nodes").json
    assert {one["node"] for one in told_all["nodes"]} == {"n3", "n7"}
    evidence = told_all["nodes"][0]["root"]
    assert (evidence["votes"], evidence["users"]) == (3, 2) and evidence["probability"] > 0.95
    mine = place.ask(ADA, "GET", "/v1/bad-nodes").json
    assert mine["nodes"] == [{"node": "n7", "partition": "gpu", "reason": "gpu_hardware", "avoided": True}]
    assert place.ask(ADA, "GET", "/v1/bad-nodes?user=bob").status == 400
    line = json.loads((place.state / AVOID).read_text())
    assert line == {
        "kind": "avoid", "cluster": CLUSTER, "partition": "gpu", "node": "n7",
        "reason": "a GPU or its links are broken (gpu_hardware)",
    }  # fmt: skip


def test_without_gsubds_word_partitions_are_what_jobs_had(place: Place) -> None:
    (place.state / PARTITIONS).write_text("{")
    told(place.store, [*CALM, *BAD])
    assert read_partitions(place.state) is None
    assert [one.node for one in place.weigh().nodes if one.avoided] == ["n7"]
    (place.state / PARTITIONS).write_text('{"gpu": "n[1-9]"}')
    assert [one.avoided for one in place.weigh().nodes] == [False]
    (place.state / PARTITIONS).unlink()
    (place.state / PARTITIONS).mkdir()
    assert place.weigh().nodes[0].avoided


@pytest.mark.parametrize("data", [b"", b"{", b'{"kind": "avoid"}\n', b"\xff" * 100_000, b"[" * 70_000])
def test_a_broken_file_keeps_nobody_off(place: Place, data: bytes) -> None:
    told(place.store, BAD)
    place.weigh()
    good = (place.state / AVOID).read_bytes()
    (place.state / AVOID).write_bytes(data)
    assert place.exc_nodes() is None
    (place.state / AVOID).write_bytes(data + b"\n" + good)
    assert place.exc_nodes() == "n7"


def test_an_old_file_means_nothing(place: Place) -> None:
    told(place.store, BAD)
    place.weigh()
    known = Learnt(place.state)
    known.read(CLUSTER)
    assert not known.changed() and place.exc_nodes() == "n7"
    at = (place.state / AVOID).stat().st_mtime - STALE - 60
    os.utime(place.state / AVOID, (at, at))
    assert known.changed() and place.exc_nodes() is None
    assert known.read(CLUSTER).avoid("gpu") == {} and not known.changed()


def test_what_the_site_wrote_down_comes_first(place: Place) -> None:
    told(place.store, BAD)
    place.weigh()
    lines = [{"kind": "avoid", "cluster": CLUSTER, "partition": "gpu", "node": node, "reason": "ours"}
             for node in ("n2", "n7")]  # fmt: skip
    (place.state / "profiles.jsonl").write_text("\n".join(map(json.dumps, lines)))
    known = Learnt(place.state).read(CLUSTER)
    assert dict(known.avoid("gpu")) == {"n2": "ours", "n7": "ours"}
    assert list(known.avoid("gpu")) == ["n2", "n7"]


def test_a_disk_that_is_full_is_said_and_costs_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    told(place.store, BAD)
    monkeypatch.setattr("slurm_plugins.service.keeper.bad_nodes.write_avoided", full)
    assert place.weigh().nodes and place.weigh().nodes
    assert caplog.text.count("No space left") == 1


def test_only_new_days_are_read_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    module = "slurm_plugins.service.keeper.bad_nodes"

    def reading(store: Store, cluster: str, day: int, xids: frozenset[int]) -> NodeDay:
        read.append(day)
        return node_day(store, cluster, day, xids)

    monkeypatch.setattr(f"{module}.node_day", reading)
    place.weigh()
    assert len(read) == 21
    read.clear()
    for _ in range(19):
        place.weigh()
    # the two last ones each time, and each of the others in its turn, for what came late
    assert len(read) == 19 * 3 and len(set(read)) == 21
    place.clock[0] += DAY
    read.clear()
    place.weigh()
    assert max(read) == int((NOW + DAY) // DAY)


class Twenty(FakeClient):
    """A Slurm of twenty nodes."""

    def nodes(self, *_: object, **__: object) -> tuple[Node, ...]:
        return tuple(nodes(HOSTS, {"a100": 8}))

    def partitions(self, *_: object, **__: object) -> tuple[Partition, ...]:
        return (partition("gpu", HOSTS, default=True),)


@pytest.mark.slow
def test_gsubd_takes_it_while_it_runs(place: Place, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(f'cluster = "{CLUSTER}"\n[policy]\nmode = "enforce"\n')
    (place.state / PARTITIONS).unlink()
    with serving(tmp_path, lookout=FakeLookout(Twenty()), poll=0.2) as service:
        peer = service.peer()
        job = {"min_nodes": 1, "max_nodes": 1}

        def off() -> object:
            return peer.ask(job=job).get("edits", {}).get("exc_nodes")

        assert off() is None
        told(place.store, [*CALM, *BAD])
        place.weigh()
        service.wait(lambda: bool(service.daemon.desk.context.knowledge.avoid("gpu")))
        assert off() == "n7"
        place.clock[0] += 60
        assert place.ask(OPERATOR, "POST", "/v1/nodes/n7/clear", {"why": "repaired"}).status == 200
        service.wait(lambda: not service.daemon.desk.context.knowledge.avoid("gpu"))
        assert off() is None
        # a file that cannot be read ends nothing, in either of the two
        (place.state / AVOID).unlink()
        (place.state / AVOID).mkdir()
        service.do(service.daemon.reload())
        assert off() is None
        peer.close()


def test_gsubd_tells_the_keeper_of_partitions(tmp_path: Path) -> None:
    partitions = Partitions(tmp_path)
    first = inventory(nodes(HOSTS), [partition("gpu", HOSTS), partition("small", "n[1-3]")])
    assert partitions.is_new(first)
    partitions.tell(first)
    assert not partitions.is_new(first)
    assert read_partitions(tmp_path) == {"gpu": NODES, "small": ("n1", "n2", "n3")}
    inode = (tmp_path / PARTITIONS).stat().st_ino
    same = inventory(nodes(HOSTS), [partition("gpu", HOSTS), partition("small", "n[1-3]")])
    assert partitions.is_new(same)
    partitions.tell(same)
    assert (tmp_path / PARTITIONS).stat().st_ino == inode
    partitions.tell(inventory(nodes(HOSTS), [partition("gpu", "n[1-2]")]))
    assert read_partitions(tmp_path) == {"gpu": ("n1", "n2")}


def test_a_reader_never_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off before the new file stands in its place, the old one is whole."""
    record = AvoidRecord(CLUSTER, "gpu", "n1", "why")
    learnt.write_avoided(tmp_path, [record])
    before = (tmp_path / AVOID).read_bytes()

    def cut(*_: object) -> None:
        raise OSError(5, "cut off")

    monkeypatch.setattr(Path, "replace", cut)
    with pytest.raises(OSError, match="cut off"):
        learnt.write_avoided(tmp_path, [record] * 3)
    assert (tmp_path / AVOID).read_bytes() == before
    monkeypatch.undo()
    learnt.write_avoided(tmp_path, [])  # what was left behind is no hindrance
    assert (tmp_path / AVOID).read_bytes() == b""
