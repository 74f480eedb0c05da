"""The receipt of an ended job: six lines that say what it was, what it used of what it held, and what to ask for next.

Pure: out of a `Usage`, nothing else. A figure that nobody measured is "n/a". Advice is given only where one run is
evidence enough: it completed, was watched on all its nodes to the end, and ran for some minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from math import ceil
from typing import Final

from profiler.answers import JobSummary, NodeUse, RuleTold, Usage
from profiler.counting import count
from profiler.records import GpuUse
from profiler.wording import NOT_KNOWN, amount, percent, plain, shown_id, size, span, time_option

__all__ = ["ENDED", "LINES", "gpus_of", "headline", "ran", "receipt", "rule_told", "was_used"]

LINES: Final = 6
"""What a receipt comes to."""

ENDED: Final = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
"""Slurm's states of jobs that are over."""

_EVIDENCE_SECONDS: Final = 300.0
_UNSEEN: Final = 0.05  # of a job's time: more leaves room for a peak that nobody saw
_NOTABLE_SECONDS: Final = 60.0
_NOTABLE: Final = 0.05
_QUEUED: Final = ("update", "release")
"""Steps that a decision can stop at whose job is queued again all the same, only not changed."""
_SPARE: Final = 1.2  # over what was measured
_GIB: Final = 1 << 30
_MARGIN: Final = "  "


def receipt(usage: Usage) -> tuple[str, ...]:
    """Six lines, without anything that steers a terminal."""
    job = usage.job
    rows = (
        ("GPUs", _gpus(usage)),
        ("GPU memory", _gpu_memory(job)),
        ("host", _host(usage)),
        ("not known", "; ".join(_unknown(usage)) or "nothing: all was watched from start to end"),
        ("next time", _again(usage) or _next(usage)),
    )
    return (f"job {headline(job)}", *(f"{_MARGIN}{label:<11} {text}" for label, text in rows))


def headline(job: JobSummary) -> str:
    """Which job it was, and how it ended: `12 "train" on n[1-2]: FAILED after 2 min, exit code 1`."""
    name = f' "{plain(job.name, 60)}"' if job.name else ""
    again = f" (restart {job.restarts})" if job.restarts else ""
    where = f" on {plain(job.nodes, 80)}" if job.nodes else ""
    # its nodes tell before Slurm is asked
    told = (
        "ended" if job.ended is not None else "runs" if job.started is not None else "its state is not known"
    )
    parts = [plain(job.state) if job.state else told]
    if (seconds := ran(job)) is not None:
        parts[0] += f" after {span(seconds)}"
    elif job.state == "CANCELLED" and job.started is None and not (job.nodes or job.restarts):
        parts[0] += " before it started"
    if job.signal:
        parts.append(f"signal {job.signal}")
    elif job.exit_code is not None:
        parts.append(f"exit code {job.exit_code}")
    if job.reason and job.reason not in ("None", "NonZeroExitCode"):
        parts.append(plain(job.reason))
    if job.state is None and job.ended is not None:
        parts.append("Slurm has not said yet how")
    return f"{shown_id(job)}{name}{again}{where}: {', '.join(parts)}"


def ran(job: JobSummary) -> float | None:
    """Seconds from its start to its end; None while one of them is not known."""
    if job.started is None or job.ended is None:
        return None
    return max(0.0, job.ended - job.started)


def gpus_of(usage: Usage) -> tuple[GpuUse, ...]:
    """Its GPUs, all nodes'."""
    return tuple(gpu for node in usage.nodes for gpu in node.gpus)


def was_used(gpu: GpuUse) -> bool | None:
    """Whether a GPU ever computed for the job; None: not known.

    A MIG instance has no utilisation: there a process counts.
    """
    if gpu.utilisation_mean is not None:
        return gpu.utilisation_mean > 0
    return None if gpu.busy_seconds is None else gpu.busy_seconds > 0


# --- what it did ----------------------------------------------------------------------------------------------------


def rule_told(one: RuleTold) -> str:
    """A rule on use that the job's user was told of, and what followed, in a sentence."""
    when = datetime.fromtimestamp(one.at).astimezone()
    text = f"rule {plain(one.rule, 60)}, told by mail on {when:%Y-%m-%d %H:%M}: {plain(one.about, 200)}"
    rests = f" ({plain(one.evidence, 200)})" if one.evidence else ""
    return text.rstrip(".") + rests + ("; it was cancelled for that" if one.cancelled is not None else "")


def _gpus(usage: Usage) -> str:
    job, gpus = usage.job, gpus_of(usage)
    held = job.gpus if job.gpus is not None else len(gpus) or None
    if held == 0:
        return "none"
    seconds = ran(job)
    parts = [NOT_KNOWN if held is None else str(held)]
    if held and seconds is not None:
        parts[0] += f" for {span(seconds)} ({_hours(held * seconds)} GPU-hours)"
    idle = [was_used(gpu) for gpu in gpus].count(False)
    if idle:
        parts.append("none was ever used" if idle == len(gpus) == held else f"{idle} never used")
    if gpus:
        parts.append(f"utilisation {percent(job.utilisation_mean)}")
    parts += _idleness([gpu for gpu in gpus if was_used(gpu)])
    return ", ".join(parts)


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.1f}" if hours >= 1 or not hours else f"{hours:.2f}" if hours >= 0.01 else "<0.01"


_IDLENESS: Final[tuple[tuple[str, Callable[[GpuUse], float | None]], ...]] = (
    ("idle for {} at the start", lambda gpu: gpu.idle_at_start_seconds),
    ("idle for {} amid the work", lambda gpu: gpu.idle_after_seconds),
    ("idle for {} at the end", lambda gpu: gpu.idle_at_end_seconds),
    ("stuck for {} (full utilisation at low power)", lambda gpu: gpu.stuck_seconds),
)


def _idleness(used: Sequence[GpuUse]) -> Iterator[str]:
    """What the GPU that waited longest waited, of the GPUs that were used at all; short waits are none."""
    for text, seconds_of in _IDLENESS:
        worst = max(((seconds_of(gpu) or 0.0, gpu.seconds) for gpu in used), default=(0.0, 0.0))
        if worst[0] >= _NOTABLE_SECONDS and worst[0] >= _NOTABLE * worst[1]:
            yield text.format(span(worst[0]))


def _gpu_memory(job: JobSummary) -> str:
    peak, total = job.gpu_memory_peak_bytes, job.gpu_memory_total_bytes
    if job.gpus == 0:
        return "none"
    if peak is None:
        return NOT_KNOWN
    share = f" ({percent(100 * peak / total)})" if total else ""
    return f"at most {size(peak)} of {size(total)} on one GPU{share}"


def _host(usage: Usage) -> str:
    job = usage.job
    cpus = _busy_cpus(usage)
    peak, asked = job.memory_peak_bytes, _memory_asked(usage)
    held = f" of {count(job.cpus, 'CPU')}" if job.cpus is not None else " CPUs"
    where = " on one node" if len(usage.nodes) > 1 else ""
    share = f" of {size(asked)} asked for ({percent(100 * peak / asked)})" if peak and asked else ""
    return f"{amount(cpus)}{held} busy; memory at most {size(peak)}{where}{share}"


def _busy_cpus(usage: Usage) -> float | None:
    """CPUs that computed, in the mean over its time; all nodes' sum. None when one of them did not tell."""
    busy = 0.0
    for node in usage.nodes:
        seconds = ran(usage.job)
        if node.since is not None and node.until is not None:
            seconds = node.until - node.since
        if node.host is None or node.host.cpu_seconds is None or not seconds or seconds < 0:
            return None
        busy += node.host.cpu_seconds / seconds
    return busy if usage.nodes else None


def _memory_asked(usage: Usage) -> float | None:
    """Of one node, which is how --mem counts."""
    asked = usage.job.memory_asked_bytes
    return asked / len(usage.nodes) if asked and usage.nodes else None


# --- what nobody knows ----------------------------------------------------------------------------------------------


def _unknown(usage: Usage) -> Iterator[str]:
    """What is missing, and why where a node says so."""
    job, gpus = usage.job, gpus_of(usage)
    if not usage.nodes:
        yield "all: no node has told of it"
        return
    if job.ended is None and job.state not in ENDED:
        yield "how it ends: so far it runs"
    elif not job.complete:
        late = [node.node for node in usage.nodes if not node.final]
        yield f"its end on {_some(late)}" if late else "whether all its nodes have told"
    if job.gpus is not None and len(gpus) < job.gpus:
        yield f"{job.gpus - len(gpus)} of its GPUs"
    blind = sum(gpu.utilisation_mean is None for gpu in gpus)
    if blind:
        yield f"utilisation of {blind} of {count(len(gpus), 'GPU')}"
    if _busy_cpus(usage) is None:
        yield "how busy its CPUs were"
    if job.memory_peak_bytes is None or any(node.host is None for node in usage.nodes):
        yield "its memory" if len(usage.nodes) == 1 else "its memory on all nodes"
    unseen = max((node.unseen_seconds or 0.0 for node in usage.nodes), default=0.0)
    if unseen >= 1:
        yield f"{span(unseen)} in which nobody looked"
    yield from dict.fromkeys(plain(node.note.rstrip(" .")) for node in usage.nodes if node.note)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(plain(name, 64) for name in names[:3])
    return f"{shown} and {len(names) - 3} more nodes" if len(names) > 3 else shown


# --- what to ask for next -------------------------------------------------------------------------------------------


def _again(usage: Usage) -> str:
    """That it is tried again, and as which attempt; "" where it is not."""
    decided = usage.resubmission
    if decided is None or (decided.state == "stopped" and decided.step not in _QUEUED):
        return ""
    if decided.state == "planned" and decided.withheld:
        return ""  # nobody is there to do it
    when = "to be tried" if decided.state == "planned" else "tried"
    return f"{when} again as attempt {decided.restarts + 2} (gsub why {shown_id(usage.job)})"


def _next(usage: Usage) -> str:
    minded = [f"mind {rule_told(one)}" for one in usage.told]
    return "; ".join([*minded, _fitting(usage)])


def _fitting(usage: Usage) -> str:
    against = _evidence_against(usage)
    if against is None:
        advice = [text for rule in _RULES for text in rule(usage)]
        return "; ".join(advice) or "the same: what it held fitted"
    cured = [text for rule in _CURES for text in rule(usage)]
    return "; ".join(cured) or f"no advice: {against}"


def _evidence_against(usage: Usage) -> str | None:
    """Why this run does not tell what the next one needs; None when it does."""
    job, seconds = usage.job, ran(usage.job)
    if seconds is None:
        return "its end is not known" if job.state in ENDED else "it has not ended"
    if job.state is None:
        return "how it ended is not known yet"
    if job.state != "COMPLETED":
        return "it did not complete"
    if seconds < _EVIDENCE_SECONDS:
        return f"it ran for less than {span(_EVIDENCE_SECONDS)}"
    if not job.complete or not usage.nodes or not all(node.final for node in usage.nodes):
        return "not all of its nodes have told"
    if any(node.unseen_seconds is None or node.unseen_seconds > _UNSEEN * seconds for node in usage.nodes):
        return "it was not watched for long enough"
    return None


def _fewer_gpus(usage: Usage) -> Iterator[str]:
    gpus = gpus_of(usage)
    used = [was_used(gpu) for gpu in gpus]
    idle = used.count(False)
    if not idle or None in used or len(gpus) != usage.job.gpus:
        return
    if idle == len(gpus):
        yield "no GPU, or find out why none was used"
        return
    working = [node for node in usage.nodes if any(was_used(gpu) for gpu in node.gpus)]
    counts = {sum(was_used(gpu) is True for gpu in node.gpus) for node in working}
    nodes = f"--nodes={len(working)}" if len(working) < len(usage.nodes) else ""
    whole = all(was_used(gpu) for node in working for gpu in node.gpus)
    if len(usage.nodes) == 1:
        each = f"--gpus={len(gpus) - idle}"
    elif len(counts) == 1:
        each = "" if whole else f"--gpus-per-node={counts.pop()}"
    else:
        nodes, each = "", f"--gpus={len(gpus) - idle}"
    yield f"{' '.join(part for part in (nodes, each) if part)} ({idle} of {count(len(gpus), 'GPU')} never used)"


def _memory(usage: Usage) -> Iterator[str]:
    """The least that holds the peak and a fifth more; only where that is less, or what was asked is nearly full."""
    asked, peak = _memory_asked(usage), _memory_peak(usage.nodes)
    if asked is None or peak is None:
        return
    fit = ceil(_SPARE * peak / _GIB)
    if fit * _GIB <= 0.75 * asked or peak > 0.95 * asked:
        yield f"--mem={fit}G (peak {size(peak)} + 20 %)"


def _memory_peak(nodes: Iterable[NodeUse]) -> int | None:
    """The highest of a node, without what the kernel could have taken back; None when a node did not tell."""
    peaks = []
    for node in nodes:
        host = node.host
        peak = None if host is None else host.memory_working_bytes or host.memory_peak_bytes
        if peak is None:
            return None
        peaks.append(peak)
    return max(peaks, default=None)


def _cpus(usage: Usage) -> Iterator[str]:
    """By how much, not how many: how its tasks share them is not known here. Twice the mean leaves room for bursts."""
    busy, held = _busy_cpus(usage), usage.job.cpus
    if busy is None or not held:
        return
    for part, word in ((4, "a quarter"), (2, "half")):
        if held >= 2 * part and 2 * busy <= held / part:
            yield f"{word} of --cpus-per-task ({amount(busy)} of {count(held, 'CPU')} busy in the mean)"
            return
    mean = usage.job.utilisation_mean
    if busy > 0.9 * held and mean is not None and mean < 50:
        yield f"more --cpus-per-task (all CPUs were busy, the GPUs {percent(mean)} of the time)"


def _time(usage: Usage) -> Iterator[str]:
    """A limit that is near the truth lets Slurm start a job in a gap."""
    limit, seconds = usage.job.time_limit, ran(usage.job)
    if limit is not None and seconds is not None and seconds < 0.5 * limit and limit - seconds > 600:
        yield f"--time={time_option(_SPARE * seconds)} (took {span(seconds)} of {span(limit)})"


def _out_of_memory(usage: Usage) -> Iterator[str]:
    killed = any(node.host is not None and node.host.oom_kills for node in usage.nodes)
    if usage.job.state != "OUT_OF_MEMORY" and not (killed and usage.job.state == "FAILED"):
        return
    peak = _memory_peak(usage.nodes) or _memory_asked(usage)
    least = f": --mem={ceil(_SPARE * peak / _GIB)}G or more" if peak else ""
    yield f"more memory, or a smaller batch{least} (the kernel ended it for want of memory)"


def _out_of_time(usage: Usage) -> Iterator[str]:
    limit = usage.job.time_limit
    if usage.job.state == "TIMEOUT":
        more = f" than {span(limit)}" if limit is not None else ""
        yield f"a longer --time{more}, or a checkpoint to go on from (its time ran out)"


_RULES: Final = (_fewer_gpus, _memory, _cpus, _time)
_CURES: Final = (_out_of_memory, _out_of_time)
