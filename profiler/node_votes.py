"""What a failed attempt, or an event of a node, says against a node: votes for `profiler.bad_nodes`. Pure.

A node is spoken against by name only, and only if the attempt ran there: a log may name any node. What root saw there
is root's evidence; all else is the user's, whoever's word the verdict is: Slurm may know that a node failed while only
the log says which.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from profiler.bad_nodes import REASONS, Vote
from profiler.findings import Evidence, Finding, Source

__all__ = ["EVENTS", "Failure", "vote_of_event", "votes_of", "workload_of"]

_SURE: Final = 0.5
"""Confidence of a verdict from which on it speaks against a node."""
_ROOTS: Final[Mapping[str, frozenset[str]]] = {
    "gpu_hardware": frozenset({"xid", "ecc", "gpu_lost", "health"}),
    "node_failure": frozenset({"slurm", "gpu_lost", "health"}),
    "filesystem_error": frozenset({"health"}),
}
"""What root must have seen for a reason, by `Evidence.what`."""
_HEALTH: Final[Mapping[str, frozenset[str]]] = {
    "gpu_hardware": frozenset({"row_remap", "retired_pages", "nvlink", "clocks_stuck", "gpu_lost"}),
    "node_failure": frozenset({"memory_errors", "read_only", "gpu_lost"}),
    "filesystem_error": frozenset({"read_only", "stale_mounts"}),
}
"""The checks of which that holds; not those of full disks, which any user can bring about."""
EVENTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("xid", "gpu_lost", "gpu_count", "row_remap", "ecc_uncorrected", "nvlink"), "gpu_hardware"
    ),
    **dict.fromkeys(("read_only", "stale_mounts"), "filesystem_error"),
}
"""Events of a node (docs/health.md) that speak against it when their state is "error", and for which reason."""
_XID: Final = re.compile(r"\bXid (\d{1,3})\b")
_DIGITS: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt: the verdict on it, whose it was, the job's name, when it ended, the nodes that it ran on."""

    finding: Finding
    uid: int | None
    name: str
    at: float
    nodes: tuple[str, ...]


def votes_of(failure: Failure, hardware_xids: Collection[int]) -> tuple[Vote, ...]:
    """What an attempt says against its nodes. `hardware_xids` are the Xids that no program causes by itself."""
    found = failure.finding
    if found.reason not in REASONS or found.confidence < _SURE or failure.uid is None:
        return ()
    seen = [_node_of(one, failure) for one in found.evidence if _is_roots(one, found.reason, hardware_xids)]
    nodes = tuple(dict.fromkeys(node for node in seen if node in failure.nodes))
    if nodes:
        return tuple(_vote(failure, node, root=True) for node in nodes)
    # What others report of a peer that went says nothing of the node that reports
    if found.tier == "cascade" or found.node not in failure.nodes:
        return ()
    return (_vote(failure, found.node, root=False),)


def vote_of_event(node: str, name: str, state: str, at: float) -> Vote | None:
    """What an event of a node says against it; None: nothing."""
    reason = EVENTS.get(name)
    return None if reason is None or state != "error" else Vote(node, reason, "root", at)


def workload_of(name: str) -> str:
    """The workload that a job's name stands for: runs of a sweep are one.

    >>> workload_of("lr-0.1-seed-7") == workload_of("lr-0.2-seed-12")
    True
    """
    return _DIGITS.sub("#", name.strip())[:128]


def _is_roots(one: Evidence, reason: str, hardware_xids: Collection[int]) -> bool:
    """Whether that is root's evidence of what a node did to a job."""
    if one.source != "root" or one.what not in _ROOTS.get(reason, ()):
        return False
    if one.what == "xid":
        # A program of the user's can bring about some of them, and its log can call it whatever it likes
        return any(int(code) in hardware_xids for code in _XID.findall(one.text))
    if one.what == "health":
        return one.text.partition(":")[0] in _HEALTH[reason]
    return True


def _node_of(one: Evidence, failure: Failure) -> str:
    """The node that a piece of evidence is about; what Slurm says of an attempt on one node is about that."""
    if one.what == "slurm" and not one.node and len(failure.nodes) == 1:
        return failure.nodes[0]
    return one.node


def _vote(failure: Failure, node: str, *, root: bool) -> Vote:
    source: Source = "root" if root else "user"
    return Vote(node, failure.finding.reason, source, failure.at, failure.uid, workload_of(failure.name))
