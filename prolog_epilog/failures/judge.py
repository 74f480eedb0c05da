"""The verdict on an attempt: what its logs say, joined with what Slurm knows and what its nodes saw. Pure.

Rule 4 of the taxonomy: what the scheduler knows is evidence. OUT_OF_MEMORY, TIMEOUT, NODE_FAIL, PREEMPTED and CANCELLED
decide, unless the log names a plain cause; an exit code alone decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

from profiler.findings import Evidence, Finding
from prolog_epilog.failures.advice import ADVICE
from prolog_epilog.failures.exits import exit_words, reason_of_exit, signal_of
from prolog_epilog.failures.taxonomy import NO_SIGNATURE, NONE
from prolog_epilog.health.xids import XIDS

__all__ = ["HARDWARE_XIDS", "PLAIN", "PROGRAM_XIDS", "NodeKind", "NodeWord", "SlurmWord", "judge", "stands"]

NodeKind: TypeAlias = Literal["xid", "ecc", "oom", "health", "gpu_lost", "throttle", "stuck"]

PLAIN: Final = 0.8
"""Confidence from which an explicit cause of a log stands against the scheduler's word."""

_WORN: Final = frozenset({63, 92, 94, 156, 171, 172})
"""Xids of memory that wears out: no error of the node by themselves, but of a job that ended with one."""
HARDWARE_XIDS: Final = frozenset(row.code for row in XIDS.values() if row.state == "error") | _WORN
"""Xids that NVIDIA's catalogue lays to the hardware, its links or its firmware."""
PROGRAM_XIDS: Final = frozenset(row.code for row in XIDS.values() if row.state == "info")
"""Xids that a program can cause by itself: a fault of its kernel, a page fault, a channel that ended with it."""

_STATES: Final = {
    "OUT_OF_MEMORY": "cpu_oom",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "NODE_FAIL": "node_failure",
    "BOOT_FAIL": "node_failure",
    "LAUNCH_FAILED": "node_failure",
    "RECONFIG_FAIL": "node_failure",
    "PREEMPTED": "preempted",
    "REQUEUED": "requeued",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
}
"""What decides of Slurm's states (squeue(1), JOB STATE CODES)."""
_SLURMS_OWN: Final = frozenset({"time_limit", "preempted", "requeued", "node_failure", "cancelled"})
"""What Slurm knows better than a log that quotes it: an earlier attempt's words may stand there, or forged ones."""
_REASONS: Final = {
    "joblaunchfailure": "node_failure",
    "launch_failed_requeued_held": "node_failure",
    "prolog": "node_failure",
    "nodedown": "node_failure",
    "timelimit": "time_limit",
    "oom": "cpu_oom",
    "outofmemory": "cpu_oom",
}
"""What decides of Slurm's words for a job's reason, where the state does not."""
_IO_SETUP: Final = 4021 & 0x7F
_OWN_NUMBERS: Final = 32
"""Signals from here on are none of a program's: what Slurm shows of an error number of its own."""
_LOST_PEER: Final = frozenset(
    {"network_error", "rendezvous_failure", "nccl_error", "nccl_timeout", "mpi_error", "mpi_runtime_failure"}
)
"""What others report when a node or a process goes: no cause where the scheduler knows of a death."""
_OF_THE_GPU: Final = frozenset(
    {"cuda_failure", "cuda_init_failed", "nccl_error", "nccl_timeout", "mpi_runtime_failure", "core_dump",
     "invalid_memory_access", "traceback", "rendezvous_failure", NO_SIGNATURE, NONE}
)  # fmt: skip
"""What a broken GPU looks like to a program."""
_OF_MEMORY: Final = _LOST_PEER | {NO_SIGNATURE, NONE, "core_dump", "traceback"}
"""What a process that the kernel killed for memory looks like to the others."""
_XID: Final = re.compile(r"\bXid\D{0,40}?(?:\(PCI:[^)]*\):? ?)?(\d{1,3})\b|\bxid[ =:]*(\d{1,3})\b")
_CORRECTED: Final = re.compile(r"(?i)(?<!un)(?:corrected|correctable)")


@dataclass(frozen=True, slots=True)
class SlurmWord:
    """What Slurm says of an attempt: the words and numbers of sacct(1), as they are ("CANCELLED by 1000").

    `exit_code` and `signal` are the two halves of ExitCode, `derived_exit_code` the highest code of a step, `nodes` the
    attempt's, `failed_node` the one that Slurm names, `silent` those on which no epilog told of its end.
    """

    state: str = ""
    exit_code: int | None = None
    signal: int | None = None
    derived_exit_code: int | None = None
    reason: str = ""
    nodes: tuple[str, ...] = ()
    failed_node: str = ""
    silent: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeWord:
    """What a node of the attempt saw: by NVML, the kernel, the health checks. `at` is in seconds since 1970."""

    node: str
    kind: NodeKind
    text: str
    at: float | None = None


def judge(finding: Finding | None, slurm: SlurmWord, nodes: Sequence[NodeWord] = ()) -> Finding:
    """The verdict. Facts that are missing say nothing; asked again with the same facts it answers the same."""
    log = finding if finding is not None else Finding(NO_SIGNATURE)
    state = slurm.state.upper().split(" ")[0].rstrip("+")
    if state == "COMPLETED":
        verdict = _completed(log, slurm)
    else:
        verdict = _by_slurm(log, slurm, state)
        verdict = _by_nodes(verdict, slurm, nodes)
        verdict = _told(verdict, slurm, nodes)
    return _with(verdict, checkpoint=log.checkpoint, resumes=log.resumes)


def _completed(log: Finding, slurm: SlurmWord) -> Finding:
    """A job that Slurm calls completed has no reason; what failed within it is told."""
    remarks = list(log.remarks)
    if slurm.derived_exit_code:
        remarks.append(f"A step of it ended with {exit_words(slurm.derived_exit_code)}.")
    for step in slurm.steps:
        remarks.append(f"Step {step}."[:600])
    if log.reason not in (NONE, NO_SIGNATURE):
        said = f" ({log.evidence[0].text})" if log.evidence else ""
        remarks.append(f"The log shows {log.reason}{said}, and the job went on."[:600])
    evidence = (_slurm("COMPLETED", slurm),)
    return Finding(
        NONE, 0.95, "none", evidence, unseen=log.unseen, remarks=_few(remarks), progressed=log.progressed
    )


def _by_slurm(log: Finding, slurm: SlurmWord, state: str) -> Finding:
    decides = _STATES.get(state) or _by_reason(slurm)
    if decides:
        return _decisive(log, slurm, state, decides)
    failed = _failed(slurm, state)
    if failed is None:
        return log
    if not failed:
        # Exit code 0 of a job whose state is not known: no proof against what the log says, and none for it.
        return log if log.reason == NONE else _with(log, confidence=round(log.confidence * 0.8, 2))
    if log.reason not in (NONE, NO_SIGNATURE):
        return log
    if log.reason == NONE and log.evidence and log.remarks:
        return log  # training ended well, a wrapper's command failed behind it: that is told
    said = reason_of_exit(slurm.exit_code, slurm.signal)
    remarks = list(log.remarks)
    if log.reason == NONE and log.evidence:
        remarks.append("The log ends well; what failed after that left no word.")
    if said:
        return Finding(
            said,
            0.5,
            "implicit",
            (_exit(slurm), *log.evidence)[:16],
            ADVICE.get(said, ""),
            f"exit-{signal_of(slurm.exit_code, slurm.signal) or slurm.exit_code}",
            unseen=log.unseen,
            remarks=_few(remarks),
            progressed=log.progressed,
        )
    evidence = (*(log.evidence if log.reason == NO_SIGNATURE else ()), _exit(slurm))
    return Finding(
        NO_SIGNATURE,
        0.5,
        "none",
        evidence[:16],
        ADVICE[NO_SIGNATURE],
        unseen=log.unseen,
        remarks=_few(remarks),
        progressed=log.progressed,
    )


def _by_reason(slurm: SlurmWord) -> str:
    """What Slurm's word for a job's reason decides, if anything.

    JobLaunchFailure is also what slurmctld calls every batch script that a signal ended (job_mgr.c; 26.05 has
    RaisedSignal for it), be it by its own fault: then it says nothing. Where the launch did fail, the number is one of
    Slurm's own, of which slurmstepd's ESLURMD_IO_ERROR (4021, shown as 0:53) is an output that could not be opened.
    """
    word = slurm.reason.replace(" ", "").lower()
    reason = _REASONS.get(word, "")
    if slurm.signal and (word == "joblaunchfailure" or word.startswith("raisedsignal:")):
        if slurm.signal == _IO_SETUP:
            return "output_error"
        return "" if slurm.signal < _OWN_NUMBERS else reason
    return reason


def _failed(slurm: SlurmWord, state: str) -> bool | None:
    """Whether it failed by what Slurm says; None: Slurm does not say."""
    if state == "FAILED" or slurm.signal:
        return True
    if slurm.exit_code is None:
        return None
    return slurm.exit_code != 0


def _decisive(log: Finding, slurm: SlurmWord, state: str, reason: str) -> Finding:
    """The scheduler's word, unless the log has a plain cause that stands before it."""
    said = _slurm(state, slurm)
    if log.reason == reason:
        return _with(log, tier="decisive", confidence=0.95, evidence=_more(log, said))
    if log.tier == "decisive" and (log.reason not in _SLURMS_OWN or state == "CANCELLED"):
        return _with(log, evidence=_more(log, said))
    plain = log.tier == "explicit" and log.confidence >= PLAIN and log.reason not in _LOST_PEER
    if plain:
        remark = f"Slurm's state is {state}; the log names the cause before it."
        return _with(log, evidence=_more(log, said), remarks=_few([*log.remarks, remark]))
    remarks = list(log.remarks)
    if log.reason == NONE and log.evidence:
        remarks.append("The log ends well: it did not come to its end after that.")
    elif log.reason not in (NONE, NO_SIGNATURE) and log.evidence:
        remarks.append(f"The log also shows {log.reason}: {log.evidence[0].text}"[:600])
    return Finding(
        reason,
        0.95 if log.tier in ("none", "cascade", "implicit") else 0.85,
        "decisive",
        (said, *log.evidence)[:16],
        ADVICE.get(reason, ""),
        f"slurm-{state.lower()}" if state in _STATES else f"slurm-reason-{slurm.reason.lower()}"[:128],
        log.fingerprint,
        log.rank,
        slurm.failed_node or log.node,
        log.unseen,
        _few(remarks),
        log.progressed,
    )


def _by_nodes(verdict: Finding, slurm: SlurmWord, nodes: Sequence[NodeWord]) -> Finding:
    ordered = sorted(nodes, key=lambda word: (word.at is None, word.at or 0.0))
    killed = [word for word in ordered if word.kind == "oom"]
    broken = [word for word in ordered if _is_broken(word)]
    if broken and _gives_way(verdict, _OF_THE_GPU):
        return _rooted(verdict, "gpu_hardware", broken)
    if killed and _gives_way(verdict, _OF_MEMORY):
        return _rooted(verdict, "cpu_oom", killed)
    return verdict


def _gives_way(verdict: Finding, reasons: frozenset[str]) -> bool:
    """Whether what a root process saw explains more: no decisive word, no cause of another kind."""
    if verdict.tier == "decisive":
        return False
    if verdict.reason in reasons:
        # A good end that Slurm confirms is not taken back.
        return not (verdict.reason == NONE and verdict.confidence >= PLAIN)
    return verdict.tier in ("implicit", "cascade")


def stands(verdict: Finding) -> bool:
    """Whether a verdict on logs and Slurm's word stays, whatever the nodes will yet tell."""
    return not _gives_way(verdict, _OF_THE_GPU | _OF_MEMORY)


def _is_broken(word: NodeWord) -> bool:
    if word.kind == "gpu_lost":
        return True
    if word.kind == "ecc":
        return not _CORRECTED.search(word.text)
    return word.kind == "xid" and _xid(word.text) in HARDWARE_XIDS


def _xid(text: str) -> int | None:
    found = _XID.search(text)
    return int(found[1] or found[2]) if found else None


def _rooted(verdict: Finding, reason: str, words: Sequence[NodeWord]) -> Finding:
    if verdict.reason == reason:
        return verdict
    first = words[0]
    remarks = list(verdict.remarks)
    if verdict.reason not in (NONE, NO_SIGNATURE):
        remarks.append(f"The log shows what followed: {verdict.reason}.")
    return Finding(
        reason,
        0.9,
        "explicit",
        (*(_node(word) for word in words[:4]), *verdict.evidence)[:16],
        ADVICE.get(reason, ""),
        f"node-{first.kind}",
        verdict.fingerprint,
        verdict.rank,
        first.node[:128],
        verdict.unseen,
        _few(remarks),
        verdict.progressed,
    )


def _told(verdict: Finding, slurm: SlurmWord, nodes: Sequence[NodeWord]) -> Finding:
    """What else the nodes saw is told, and quoted where it bears the verdict out."""
    quoted = {(kept.node, kept.text) for kept in verdict.evidence}
    evidence = list(verdict.evidence)
    remarks = list(verdict.remarks)
    for word in nodes:
        said = _node(word)
        if (said.node, said.text) in quoted:
            continue
        if _bears_out(word, verdict.reason):
            evidence.append(said)
        else:
            remarks.append(_remark(word))
    if slurm.derived_exit_code and slurm.exit_code == 0 and not slurm.signal:
        remarks.append(f"A step of it ended with {exit_words(slurm.derived_exit_code)}.")
    node = verdict.node or slurm.failed_node
    if not node:
        left = slurm.nodes
        if verdict.reason == "node_failure" and len(left) > 1:
            # slurmstepd told it on nodes that live: where one alone is left, that is it
            told = {found[1] for kept in verdict.evidence if (found := _LIVES.search(kept.text))}
            left = tuple(name for name in left if name not in told)
            if len(left) != 1:
                left = slurm.silent
        node = left[0] if len(left) == 1 else ""
    return _with(verdict, evidence=tuple(evidence)[:16], remarks=_few(remarks), node=node[:128])


_LIVES: Final = re.compile(r" ON ([A-Za-z0-9][\w.-]{0,200}) CANCELLED AT .{0,60}DUE TO NODE FAILURE")
_BEARS_OUT: Final = {
    "xid": ("gpu_hardware",),
    "ecc": ("gpu_hardware",),
    "gpu_lost": ("gpu_hardware", "node_failure"),
    "oom": ("cpu_oom",),
    "health": ("gpu_hardware", "node_failure", "filesystem_error"),
    "throttle": (),
    "stuck": ("nccl_timeout",),
}


def _bears_out(word: NodeWord, reason: str) -> bool:
    if word.kind == "xid" and _xid(word.text) in PROGRAM_XIDS:
        return reason in ("invalid_memory_access", "device_assert", "cuda_failure")
    return reason in _BEARS_OUT[word.kind]


_REMARKS: Final = {
    "xid": "The kernel logged a fault of a GPU on {node}: {text}",
    "ecc": "A GPU on {node} counted memory errors: {text}",
    "gpu_lost": "A GPU on {node} was lost: {text}",
    "oom": "The kernel killed a process for memory on {node}: {text}",
    "health": "A health check failed on {node}: {text}",
    "throttle": "A GPU on {node} was slowed down: {text}",
    "stuck": "GPUs on {node} seemed to hang: {text}",
}


def _remark(word: NodeWord) -> str:
    said = _REMARKS[word.kind].format(node=word.node, text=word.text)
    if word.kind == "xid" and _xid(word.text) in PROGRAM_XIDS:
        said += " (mostly the program's own)"
    return said[:600]


def _slurm(state: str, slurm: SlurmWord) -> Evidence:
    said = f"Slurm: {state}" if state else "Slurm"
    if slurm.reason and slurm.reason.lower() not in ("none", "(null)"):
        said += f", reason {slurm.reason}"
    words = exit_words(slurm.exit_code, slurm.signal)
    if words and words != "exit code 0":
        said += f", {words}"
    return Evidence(said[:600], node=slurm.failed_node[:128], what="slurm", source="root")


def _exit(slurm: SlurmWord) -> Evidence:
    words = exit_words(slurm.exit_code, slurm.signal)
    return Evidence(f"It ended with {words}" if words else "Slurm: FAILED", what="exit", source="root")


def _node(word: NodeWord) -> Evidence:
    at = word.at if word.at is not None and 0 <= word.at < 4e9 else None
    return Evidence(word.text[:600], node=word.node[:128], at=at, what=word.kind, source="root")


def _more(log: Finding, said: Evidence) -> tuple[Evidence, ...]:
    if any(kept.what == said.what and kept.text == said.text for kept in log.evidence):
        return log.evidence
    return (*log.evidence[:15], said)


def _few(remarks: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(remark[:600] for remark in remarks))[:16]


def _with(finding: Finding, **changes: object) -> Finding:
    return msgspec.structs.replace(finding, **changes)
