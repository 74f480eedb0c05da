"""What an attempt says against a node: whose word it is, and that no log speaks against a node that it was not on."""

from __future__ import annotations

from typing import Any

import pytest

from profiler.bad_nodes import REASONS, Vote
from profiler.findings import Evidence, Finding
from profiler.node_votes import EVENTS, Failure, vote_of_event, votes_of, workload_of
from prolog_epilog.failures import taxonomy
from prolog_epilog.failures.judge import HARDWARE_XIDS, NodeWord, SlurmWord, judge
from slurm_plugins.service.keeper.judging import _EVENTS

XIDS = HARDWARE_XIDS


def root(what: str, text: str, node: str = "n1") -> Evidence:
    return Evidence(text, node=node, what=what, source="root")


def said(text: str = "it is broken") -> Evidence:
    return Evidence(text)


def votes(
    reason: str, *evidence: Evidence, node: str = "", nodes: tuple[str, ...] = ("n1", "n2"), **more: Any
) -> Any:
    values: dict[str, Any] = {"confidence": 0.9, "tier": "explicit"} | more
    finding = Finding(reason, evidence=evidence, node=node, **values)
    return [(v.node, v.source) for v in votes_of(Failure(finding, 1000, "run-7", 5.0, nodes), XIDS)]


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        # root saw it
        (votes("gpu_hardware", root("xid", "GPU 1: Xid 79 (GPU has fallen off the bus)"), node="n1"), [("n1", "root")]),
        (votes("gpu_hardware", root("ecc", "GPU 1: 2 uncorrected ECC errors", "n2"), said()), [("n2", "root")]),
        (votes("gpu_hardware", said("Xid 79"), root("xid", "GPU 1: Xid 79"), node="n2"), [("n1", "root")]),
        (
            votes("gpu_hardware", root("gpu_lost", "gpu_lost: error"), root("xid", "Xid 48", "n2")),
            [("n1", "root"), ("n2", "root")],
        ),
        (votes("gpu_hardware", root("health", "row_remap: failed")), [("n1", "root")]),
        (votes("filesystem_error", said(), root("health", "stale_mounts: /data")), [("n1", "root")]),
        (votes("node_failure", root("slurm", "Slurm: NODE_FAIL", "n2")), [("n2", "root")]),
        (votes("node_failure", root("slurm", "Slurm: NODE_FAIL", ""), nodes=("n1",)), [("n1", "root")]),
        # Slurm knows that a node failed, and only the log says which
        (votes("node_failure", root("slurm", "Slurm: NODE_FAIL", ""), node="n2"), [("n2", "user")]),
        (votes("node_failure", root("slurm", "Slurm: NODE_FAIL", "")), []),
        # the user's log
        (votes("cuda_init_failed", said(), node="n2"), [("n2", "user")]),
        (votes("nccl_timeout", said(), node="n2"), [("n2", "user")]),
        (votes("nccl_timeout", said()), []),
        (votes("gpu_hardware", said("Xid 79 on n1"), node="n1"), [("n1", "user")]),
        # a log may call it what it likes: an Xid of the user's own program is no proof of it
        (votes("gpu_hardware", said("ECC"), root("xid", "GPU 1: Xid 109 (context switch timed out)"), node="n1"),
         [("n1", "user")]),
        (votes("gpu_hardware", said("ECC"), root("xid", "GPU 1: Xid 13 (exception)"), node="n1"), [("n1", "user")]),
        (votes("filesystem_error", said(), root("health", "disk_space: /tmp 99 %"), node="n1"), [("n1", "user")]),
        (votes("nccl_timeout", said(), root("stuck", "GPU 1: stuck for 9 min", "n2"), node="n1"), [("n1", "user")]),
        (votes("cuda_failure", said(), root("xid", "GPU 1: Xid 31 (page fault)"), node="n1"), [("n1", "user")]),
        # evidence of a user that calls itself something else
        (votes("gpu_hardware", Evidence("Xid 79", node="n1", what="xid"), node="n1"), [("n1", "user")]),
        # a node that the job was not on
        (votes("cuda_init_failed", said(), node="n9"), []),
        (votes("gpu_hardware", root("xid", "Xid 79", "n9")), []),
        (votes("cuda_init_failed", said(), node="n1", nodes=()), []),
        # what says nothing of the node
        (votes("nccl_error", said(), node="n1", tier="cascade"), []),
        (votes("nccl_error", said(), node="n1", confidence=0.4), []),
        (votes("gpu_oom", said(), node="n1"), []),
        (votes("checkpoint_error", said(), node="n1"), []),
        (votes("cpu_oom", root("oom", "the kernel killed a process"), node="n1"), []),
    ],
)  # fmt: skip
def test_whose_word_against_which_node(told: Any, meant: Any) -> None:
    assert told == meant


def test_a_failure_of_nobodys_is_no_vote() -> None:
    finding = Finding("gpu_hardware", 0.9, "explicit", (root("xid", "Xid 79"),))
    assert votes_of(Failure(finding, None, "", 1.0, ("n1",)), XIDS) == ()


@pytest.mark.parametrize(
    "words", [(NodeWord("n2", "xid", "GPU 1: Xid 79 (GPU has fallen off the bus)", 3.0),), ()]
)
def test_through_the_judge_a_forged_log_stays_the_users(words: tuple[NodeWord, ...]) -> None:
    """The log names n1; what root saw names n2."""
    log = Finding("gpu_hardware", 0.95, "explicit", (said("Xid 79: GPU has fallen off the bus"),), node="n1")
    found = judge(log, SlurmWord("FAILED", 1, nodes=("n1", "n2")), words)
    told = [(v.node, v.source) for v in votes_of(Failure(found, 1, "x", 1.0, ("n1", "n2")), XIDS)]
    assert told == ([("n2", "root")] if words else [("n1", "user")])


def test_the_reasons_are_those_of_the_taxonomy() -> None:
    assert {taxonomy.REASONS[name].origin for name in REASONS} <= {"infra", "engine"}
    assert all(name in _EVENTS for name in EVENTS) and set(EVENTS.values()) <= REASONS


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("xid", "error", "gpu_hardware"),
        ("gpu_count", "error", "gpu_hardware"),
        ("stale_mounts", "error", "filesystem_error"),
        ("xid", "info", None),
        ("xid", "warning", None),
        ("gpu_lost", "ok", None),
        ("disk_space", "error", None),
        ("inodes", "error", None),
        ("spool_dropped", "error", None),
        ("a_check_of_tomorrow", "error", None),
    ],
)
def test_what_a_node_says_of_itself(name: str, state: str, reason: str | None) -> None:
    found = vote_of_event("n1", name, state, 9.0)
    assert found == (None if reason is None else Vote("n1", reason, "root", 9.0))


def test_runs_of_a_sweep_are_one_workload() -> None:
    assert workload_of(" seed-17 ") == workload_of("seed-4") == "seed-#"
    assert workload_of("") == "" and len(workload_of("x" * 1000)) == 128
