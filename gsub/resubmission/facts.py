"""What `slurm_plugins.resubmit.plan` is told of a job by its user, who looks at it himself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gsub.notations import NotationError, mebibytes
from gsub.resubmission.original import Original, Part
from site_configs.hostlist import expand
from slurm_plugins.resubmit.values import Attempt, Failure, Memory

if TYPE_CHECKING:
    from gsub.why_view import Known
    from slurm_plugins.client.values import Node

__all__ = ["attempt_of", "failure_of", "memory_of"]

_MIB: Final = 1 << 20


def attempt_of(part: Part, known: Known, original: Original, nodes: Sequence[Node]) -> Attempt:
    """The attempt that failed, as far as its user sees it. `nodes` are the cluster's.

    Nobody's job is requeued here: whether Slurm may, and who depends on it, does not matter.
    """
    job = known.job
    names = set(part.partition.split(","))
    usable = [node for node in nodes if names.intersection(node.partitions)]
    excluded = tuple(getattr(part, "excluded_nodes", ())) or _listed(original, "exclude")
    wishes = {"checkpoint"} if "gsub:checkpoint" in (part.comment or "") else set()
    return Attempt(
        cluster=job.cluster or part.cluster or "",
        job_id=part.id,
        restarts=job.restarts,
        id=part.shown_id,
        uid=job.uid or 0,
        state=job.state or part.state.value,
        nodes=tuple(part.nodes),
        excluded=excluded,
        partition_nodes=tuple(node.name for node in usable if node.available),
        runtime_s=None if job.started is None or job.ended is None else max(0.0, job.ended - job.started),
        ended=job.ended,
        gpus=job.gpus,
        batch=True,
        requeue=True,
        wishes=frozenset(wishes),
        signal_before_end=original.asks("signal") is not None,
        memory=memory_of(part, known, original, usable),
    )


def memory_of(part: Part, known: Known, original: Original, usable: Sequence[Node]) -> Memory:
    """What it asked for, as it asked for it; what it had where it did not ask. All in MiB."""
    peak = known.job.memory_peak_bytes
    count = part.num_nodes or len(part.nodes) or 1
    had = getattr(part, "tres_requested", part.tres).memory or part.tres.memory
    asked = None if not had else had // _MIB // count
    per = "node"
    cpus = part.num_cpus // count if part.num_cpus else None
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        option = original.asks(name)
        value = _mib(option.value) if option is not None else None
        if option is None or (value is None and option.value):
            continue
        if name == "mem":
            asked, per = value, "node"
        elif name == "mem-per-cpu":
            asked, per = value, "cpu"
        elif value is not None and part.gpus:
            asked, per = value * max(1, part.gpus // count), "node"
        else:
            asked = None
    sizes = [node.memory - (node.memory_reserved or 0) for node in usable if node.memory]
    return Memory(
        asked_mib=asked,
        per=per,
        peak_mib=None if peak is None else -(-peak // _MIB),
        most_mib=max(sizes) // _MIB if sizes else None,
        cpus_per_node=cpus,
    )


def _listed(original: Original, name: str) -> tuple[str, ...]:
    """The nodes that an option names; none where it names a file of them."""
    option = original.asks(name)
    if option is None or not option.value or "/" in option.value:
        return ()
    try:
        return expand(option.value)
    except ValueError:
        return ()


def _mib(value: str | None) -> int | None:
    try:
        return None if value is None else mebibytes(value)
    except NotationError:
        return None


def failure_of(known: Known) -> Failure | None:
    """The verdict: the service's, or the one made here of the job's logs; None: there is none."""
    finding = known.finding
    if finding is None:
        return None
    kept = known.verdict
    if kept is not None and finding is kept.finding:
        source = kept.source
    else:
        source = finding.evidence[0].source if finding.evidence else "user"
    return Failure.of(finding, source)
