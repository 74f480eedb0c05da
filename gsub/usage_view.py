"""A job's use of its GPUs and nodes as a person reads it: a table, small plots over time, and what is not known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import fsum
from typing import Final

from gsub.printed import Line
from gsub.render import count
from gsub.sparkline import sparkline
from profiler.answers import JobSummary, NodeSeries, NodeUse, Series, Usage
from profiler.receipt import ENDED, headline, rule_told, was_used
from profiler.records import GpuSeries, GpuUse
from profiler.wording import NOT_KNOWN, amount, gpu_label, percent, plain, size, span

__all__ = ["PLOTTED", "Look", "lines"]

PLOTTED: Final = 16
"""GPUs that are plotted one by one; of more, each node's mean is. And nodes that are plotted at all."""

ROWS: Final = 256
"""GPUs of the table: of more, those that did least. And nodes whose CPUs and memory are shown."""
NOTES: Final = 20

HEADS: Final = ("NODE", "GPU", "UTIL", "P50", "P95", "MEMORY", "POWER", "BUSY", "IDLE")
_RIGHT: Final = frozenset({"UTIL", "P50", "P95", "MEMORY", "POWER", "BUSY"})
_MARGIN: Final = "  "
_PLOT: Final = 100
"""Signs of a plot at most: more would not be compared at a glance."""


@dataclass(frozen=True, slots=True)
class Look:
    """How it is shown: signs from nothing to all, and the width of the screen; `now` in seconds since the epoch."""

    signs: str
    width: int
    now: float


def lines(usage: Usage, series: Series | None, look: Look, node: str | None = None) -> Iterator[Line]:
    """The whole view, harmless on a terminal. `node`: only of this one; the figures of the job stay the whole job's."""
    nodes = [one for one in usage.nodes if node is None or one.node == node]
    yield Line(f"job {_headline(usage.job, look.now)}", "head")
    yield from (Line(f"{_MARGIN}{text}") for text in _about(usage.job))
    yield from _table(nodes)
    yield from _hosts(nodes)
    if series is not None:
        yield from _plots([one for one in series.nodes if node is None or one.node == node], look)
    notes = [*map(rule_told, usage.told), *_notes(usage.job, nodes, look.now)]
    if notes:
        yield Line("")
    yield from (Line(f"{_MARGIN}note  {text}") for text in notes[:NOTES])
    if len(notes) > NOTES:
        yield Line(f"{_MARGIN}... and {len(notes) - NOTES} more notes: --node NAME shows a node's")


def _headline(job: JobSummary, now: float) -> str:
    if job.ended is None and job.started is not None and job.state not in ENDED:
        running = f" for {span(max(0.0, now - job.started))}" if job.state in (None, "RUNNING") else ""
        return headline(job) + running + ", so far"
    return headline(job)


def _about(job: JobSummary) -> Iterator[str]:
    pairs = [("user", job.user), ("account", job.account), ("partition", job.partition)]
    facts = [f"{name} {plain(text, 60)}" for name, text in pairs if text]
    if job.started is not None:
        facts.append(f"started {datetime.fromtimestamp(job.started).astimezone():%Y-%m-%d %H:%M:%S}")
    if facts:
        yield ", ".join(facts)
    if job.gpus:
        idle = f", {job.gpus_idle} never used" if job.gpus_idle else ""
        yield (
            f"{count(job.gpus, 'GPU')}{idle}: utilisation {percent(job.utilisation_mean)}, "
            f"memory at most {size(job.gpu_memory_peak_bytes)} of {size(job.gpu_memory_total_bytes)}, "
            f"power {_watts(job.power_mean_w)} each"
        )


# --- the table ------------------------------------------------------------------------------------------------------


def _table(nodes: Sequence[NodeUse]) -> Iterator[Line]:
    gpus = [(node, gpu) for node in nodes for gpu in node.gpus]
    left_out = max(0, len(gpus) - ROWS)
    if left_out:
        least = sorted(range(len(gpus)), key=lambda place: _busyness(gpus[place][1]))
        gpus = [gpus[place] for place in sorted(least[:ROWS])]
    rows = [(_row(node, gpu), was_used(gpu) is False) for node, gpu in gpus]
    if not rows:
        return
    cells = [HEADS, *(row for row, _ in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADS))]
    yield Line("")
    yield Line(_aligned(HEADS, widths), "head")
    for row, idle in rows:
        yield Line(_aligned(row, widths), "idle" if idle else "")
    if left_out:
        yield Line(
            f"{_MARGIN}... and {count(left_out, 'more GPU')}, which did more: --node NAME shows a node's, --json all"
        )


def _busyness(gpu: GpuUse) -> tuple[bool, float]:
    """Who did least comes first; who is not known, last."""
    used = was_used(gpu)
    mean = gpu.utilisation_mean
    return used is None, 0.0 if used is False else 100.0 if mean is None else mean


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (
        cell.rjust(width) if head in _RIGHT else cell.ljust(width)
        for head, cell, width in zip(HEADS, row, widths, strict=True)
    )
    return (_MARGIN + "  ".join(cells)).rstrip()


def _row(node: NodeUse, gpu: GpuUse) -> tuple[str, ...]:
    return (
        plain(node.node, 40),
        gpu_label(gpu.gpu),
        percent(gpu.utilisation_mean),
        percent(gpu.utilisation_p50),
        percent(gpu.utilisation_p95),
        _of(size(gpu.memory_peak_bytes), size(gpu.memory_total_bytes)),
        _of(_watts(gpu.power_mean_w), _watts(gpu.power_limit_w)),
        span(gpu.busy_seconds),
        _idle(gpu),
    )


def _of(value: str, total: str) -> str:
    """`34 of 80 GiB`: the unit once where it is the same."""
    if NOT_KNOWN in (value, total):
        return value
    unit = total.rpartition(" ")[2]
    return f"{value.removesuffix(' ' + unit)} of {total}"


def _watts(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.0f} W"


def _idle(gpu: GpuUse) -> str:
    if was_used(gpu) is False:
        return "never used"
    stretches = (
        (gpu.idle_at_start_seconds, "at the start"),
        (gpu.idle_after_seconds, "amid"),
        (gpu.idle_at_end_seconds, "at the end"),
        (gpu.stuck_seconds, "stuck"),
    )
    if all(seconds is None for seconds, _ in stretches):
        return NOT_KNOWN
    return (
        ", ".join(f"{span(seconds)} {where}" for seconds, where in stretches if seconds and seconds >= 1)
        or "-"
    )


def _hosts(nodes: Sequence[NodeUse]) -> Iterator[Line]:
    told = [node for node in nodes if node.host is not None]
    if not told:
        return
    yield Line("")
    width = max(len(plain(node.node, 40)) for node in told)
    for node in told[:ROWS]:
        yield Line(f"{_MARGIN}{plain(node.node, 40):<{width}}  {_host(node)}")
    if len(told) > ROWS:
        yield Line(f"{_MARGIN}... and {count(len(told) - ROWS, 'more node')}: --node NAME shows one of them")


def _host(node: NodeUse) -> str:
    host = node.host
    if host is None:
        return NOT_KNOWN
    parts = []
    if host.cpu_seconds is not None and node.since is not None and node.until is not None:
        seconds = max(node.until - node.since, 1.0)
        held = f" of {count(round(host.cpus), 'CPU')}" if host.cpus is not None else " CPUs"
        parts.append(f"{amount(host.cpu_seconds / seconds)}{held} busy in the mean")
    limit = f" of {size(host.memory_limit_bytes)}" if host.memory_limit_bytes else ""
    working = ""
    if host.memory_working_bytes is not None and host.memory_working_bytes != host.memory_peak_bytes:
        working = f" ({size(host.memory_working_bytes)} without page cache)"
    parts.append(f"memory at most {size(host.memory_peak_bytes)}{limit}{working}")
    if host.oom_kills:
        parts.append(f"{count(host.oom_kills, 'process', 'processes')} killed for want of memory")
    return ", ".join(parts)


# --- over time ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Course:
    """A line of a plot: its label, its values, and what its top is worth."""

    label: str
    values: Sequence[float | None]
    top: float
    last: str


def _plots(nodes: Sequence[NodeSeries], look: Look) -> Iterator[Line]:
    single = sum(len(node.gpus) for node in nodes) <= PLOTTED
    left_out, nodes = max(0, len(nodes) - PLOTTED), nodes[:PLOTTED]
    groups = (
        ("utilisation", [one for node in nodes for one in _utilisation(node, single)]),
        ("CPUs busy", [_course(plain(node.node, 24), node.cpus, None, amount) for node in nodes]),
        ("memory", [_course(plain(node.node, 24), node.memory_bytes, None, size) for node in nodes]),
    )
    courses = [(title, [one for one in group if _known(one.values)]) for title, group in groups]
    labels = [len(one.label) for _, group in courses for one in group]
    if not labels:
        return
    tails = max(len(one.last) for _, group in courses for one in group)
    width = max(10, min(_PLOT, look.width - len(_MARGIN) - max(labels) - tails - 4))
    step = _step(nodes, width)
    key = f": a sign is {span(step)}, {look.signs[-1]} what stands at the end, blank where nobody looked"
    for title, group in courses:
        if not group:
            continue
        yield Line("")
        yield Line(f"{_MARGIN}{title} over time{key}", "head")
        key = ""
        for one in group:
            drawn = sparkline(one.values, width, one.top, look.signs)
            yield Line(f"{_MARGIN}{one.label:<{max(labels)}}  {drawn}  {one.last}")
    if left_out:
        yield Line(f"{_MARGIN}... and {count(left_out, 'more node')}: --node NAME shows one of them")


def _utilisation(node: NodeSeries, single: bool) -> Iterator[_Course]:
    name = plain(node.node, 24)
    if single:
        for gpu in node.gpus:
            yield _Course(f"{name}:{gpu_label(gpu.gpu)}", gpu.utilisation, 100.0, "100 %")
    else:
        yield _Course(name, _mean(node.gpus), 100.0, f"100 % of {count(len(node.gpus), 'GPU')}")


def _course(label: str, values: Sequence[float | None], top: float | None, said: object) -> _Course:
    highest = max((value for value in values if value is not None), default=0.0) if top is None else top
    return _Course(label, values, highest, said(highest) if callable(said) else "")


def _mean(gpus: Sequence[GpuSeries]) -> list[float | None]:
    """Over the GPUs, step by step."""
    made: list[float | None] = []
    for step in range(max((len(gpu.utilisation) for gpu in gpus), default=0)):
        known = [
            value
            for gpu in gpus
            if step < len(gpu.utilisation) and (value := gpu.utilisation[step]) is not None
        ]
        made.append(fsum(known) / len(known) if known else None)
    return made


def _known(values: Iterable[float | None]) -> bool:
    return any(value is not None for value in values)


def _step(nodes: Sequence[NodeSeries], width: int) -> float:
    """What a sign stands for: a step, or more where steps were put together."""
    steps = (
        (
            node.step,
            max([len(node.cpus), len(node.memory_bytes), *(len(gpu.utilisation) for gpu in node.gpus)]),
        )
        for node in nodes
    )
    return max(step * max(1.0, count / width) for step, count in steps)


# --- what else there is to say --------------------------------------------------------------------------------------


def _notes(job: JobSummary, nodes: Sequence[NodeUse], now: float) -> Iterator[str]:
    if not nodes:
        yield "no node has told of it yet"
    if nodes and job.state in ENDED and not job.complete:
        late = [plain(node.node, 40) for node in nodes if not node.final]
        yield f"the last word of {', '.join(late[:5]) or 'a node'} has not come yet"
    for node in nodes:
        name = plain(node.node, 40)
        if not node.final and node.until is not None and now - node.until >= 120:
            yield f"{name}: nothing for {span(now - node.until)}"
        if node.unseen_seconds and node.unseen_seconds >= 1:
            yield f"{name}: nobody looked for {span(node.unseen_seconds)}"
        if node.note:
            yield f"{name}: {plain(node.note)}"
        if node.ended_by == "reboot":
            yield f"{name}: the node began anew, which ended the job there"
        for gpu in node.gpus:
            yield from (f"{name}:{gpu_label(gpu.gpu)}: {text}" for text in _troubles(gpu))


def _troubles(gpu: GpuUse) -> Iterator[str]:
    """What a GPU had besides being busy or idle."""
    if gpu.xids:
        yield f"Xid {', '.join(map(str, dict.fromkeys(gpu.xids)))} (an error that the driver told of)"
    if gpu.ecc_uncorrected:
        yield f"{gpu.ecc_uncorrected} ECC errors that could not be corrected"
    slowed = {
        name: seconds
        for name, seconds in (gpu.throttled or {}).items()
        if name != "gpu_idle" and seconds >= max(1.0, 0.01 * gpu.seconds)
    }
    if slowed:
        causes = sorted(slowed.items(), key=lambda pair: -pair[1])[:3]
        yield "slowed for " + ", ".join(f"{span(seconds)} ({plain(name, 40)})" for name, seconds in causes)
    if gpu.faults:
        yield f"not read at times: {', '.join(plain(fault, 40) for fault in gpu.faults[:3])}"
