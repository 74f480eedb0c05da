"""`gsub admin nodes`: what an operator and a user see of bad nodes, out of a real service, and clearing one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gsub.cli import main
from gsub.commands.admin.nodes import table
from profiler.answers import BadNode, BadNodes, Clearance, NodeEvidence
from profiler.store import open_store
from tests.unit.gsub.cli.service import Site, keeper
from tests.unit.profiler.nodes.world import NODES, Run, say
from tests.unit.profiler.store.records import CLUSTER
from tests.waiting import wait_until

PATIENCE = 60.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Twenty nodes, of which n7 lost a GPU in jobs of two users. The asker is an operator: the service's user."""
    runs = [Run((node,), 1500 + i, days_ago=ago) for i, node in enumerate(NODES) for ago in (1, 2)]
    runs += [Run(("n7",), uid, xid=True, days_ago=ago) for uid, ago in ((1, 0.01), (2, 0.02), (1, 1.1))]
    runs += [Run(("n3",), 1, log="cuda_failure", days_ago=0.1)]
    records, facts = say(runs, now=float(int(time.time())))
    with keeper(tmp_path_factory.mktemp("service"), facts, records) as site:
        yield site


@pytest.fixture
def admin(
    site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    monkeypatch.setenv("GSUB_SITE", str(site.file))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["admin", "nodes", *words])
        return (code, *capfd.readouterr())

    return run


@pytest.mark.slow
def test_seen_and_cleared(admin: Callable[..., Any], site: Site) -> None:

    def find_nodes() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(admin("--json")[1])["nodes"]
        if not found:
            # weighed once at the start, perhaps before the failures were judged; a clearance weighs anew
            admin("clear", "n20", "--why", "so that it looks again")
        return found

    nodes = wait_until(find_nodes, PATIENCE, "weighed nodes", pause=0.2)
    assert {(one["node"], one["reason"], one["avoided"], one["by"]) for one in nodes} >= {
        ("n7", "gpu_hardware", True, "root")
    }
    code, out, err = admin()
    assert (code, err) == (0, "")
    row = next(line.split() for line in out.splitlines() if line.startswith("n7"))
    assert row[:7] == ["n7", "gpu", "gpu_hardware", "yes,", "by", "root's", "word"] and "%" in out
    code, out, err = admin("clear", "n7", "--why", "GPU 3 \x1b[31mreplaced")
    assert (code, err) == (0, "") and out.startswith("n7: what was known until")
    store = open_store(site.store)
    assert [one.why for one in store.clearances(CLUSTER) if one.node == "n7"] == ["GPU 3 ?[31mreplaced"]
    store.close()
    code, out, _ = admin()
    assert not any(line.startswith("n7  ") for line in out.splitlines())
    assert "n7 was cleared on" in out and "GPU 3 ?[31mreplaced" in out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("clear", "n99", "--why", "x"), 1, "no node n99"),
        (("clear", "n7", "--why", " "), 1, "not said why"),
        (("clear", "n7", "--why", "x" * 600), 1, "500"),
        (("clear", "../n7", "--why", "x"), 1, ""),
        (("clear", "n7"), 2, "--why"),
        (("clean",), 2, "clean"),
    ],
)
def test_what_is_refused(admin: Callable[..., Any], words: tuple[str, ...], code: int, says: str) -> None:
    unready = "not weighed yet"
    wait_until(lambda: unready not in admin("clear", "n99", "--why", "x")[2], PATIENCE, "nodes are weighed")
    got, out, err = admin(*words)
    assert got == code and out == "" and says in err and len(err.splitlines()) <= 4


def test_the_table_has_every_kind_of_row_and_is_harmless() -> None:
    seen = NodeEvidence(3, 2, 2.5, 9.04, 0.9999, 1e9, 1.1e9)
    rows = (
        BadNode("n1\x1b[31m", "gpu", "gpu_hardware", True, "root", seen),
        BadNode("n2", "gpu", "cuda_init_failed", True, "user", None, seen),
        BadNode("n3", "gpu", "node_failure", False, "root", seen, seen),
        BadNode("n4", "gpu", "nccl_error", False, "", None, NodeEvidence(1, 1, 0.5, 20.0, 0.001, 1e9, 1e9)),
    )
    lines = list(table(BadNodes(rows, 1.2e9, (Clearance("n9", 1.1e9, "olga", "new\nGPU"),))))
    text = "\n".join(lines)
    assert "\x1b" not in text and len(lines) == 7
    for word in ("by root's word", "by users' logs", "no room: a tenth is", ">99 %", "<1 %", "3 of 2", "9.0"):
        assert word in text
    assert lines[-1].endswith("by olga: new GPU")


def test_a_user_sees_nodes_and_reasons() -> None:
    lines = list(table(BadNodes((BadNode("n7", "gpu", "gpu_hardware", True),), 1e9)))
    assert lines[1].split() == ["NODE", "PARTITION", "REASON", "AVOIDED"]
    assert lines[2].split() == ["n7", "gpu", "gpu_hardware", "yes"]
    assert list(table(BadNodes((), 1e9)))[1] == "no node is avoided"
    assert "not weighed" in next(table(BadNodes()))


def test_without_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site.toml").write_text('cluster = "lab"\n')
    monkeypatch.setenv("GSUB_SITE", str(tmp_path / "site.toml"))
    assert main(["admin", "nodes"]) == 2
    assert "no records" in capfd.readouterr().err
