"""A replay as tables: policies side by side, delays by size and by cause. For a terminal, a page, or a program.

Each cell is text and number; what is not known is n/a.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from profiler.counting import count
from profiler.report.cells import cell
from profiler.report.layout import Cell, Column, Section
from profiler.wording import NOT_KNOWN, plain, span
from slurm_plugins.replay.figures import RECORDED, Figures, Sized
from slurm_plugins.replay.values import CAUSES, Cluster, Replayed, Trace

if TYPE_CHECKING:
    from slurm_plugins.replay.remedies import Bill

__all__ = ["Compared", "Shown", "as_data", "days", "head", "sections", "show", "zone"]

NAME: Final = 60
"""Most signs of a name."""
_WIDE: Final = 240
_CAUSES: Final = {
    "fair_share": "fair share",
    "fragmentation": "fragmentation",
    "resources": "too few free",
    "order": "order",
    "other": "other",
}


@dataclass(frozen=True)
class Shown:
    """One column: a run, or what was recorded."""

    name: str
    figures: Figures
    replayed: Replayed
    bill: Bill | None = None

    @property
    def really(self) -> bool:
        """Whether it is what was recorded, which nobody replayed."""
        return self.name == RECORDED


@dataclass(frozen=True)
class Compared:
    """What is told of: the trace, the cluster, the columns in their order, and what was supposed."""

    trace: Trace
    kind: str
    cluster: Cluster
    columns: Sequence[Shown]
    seed: int
    notes: Sequence[str] = ()


# --- in words -------------------------------------------------------------------------------------------------------


def head(it: Compared) -> Iterator[str]:
    """What was replayed where, what is left out, what was supposed. Plain text, harmless."""
    trace, cluster = it.trace, it.cluster
    hours = float((trace["gpus"] * trace["work"]).sum()) / 3600
    lasts = float(trace["arrival"].max() - trace["arrival"].min())
    when = f"over {span(lasts)}" if lasts else "all at once"
    if trace.zero:
        first, last = (trace.zero + float(one) for one in (trace["arrival"].min(), trace["arrival"].max()))
        when = f"{days(first, last)}, {when}"
    yield f"{plain(trace.name, NAME)} ({it.kind}): {len(trace):,} jobs, {hours:,.0f} GPU-hours, {when}"
    nodes = sum(group.count for group in cluster.nodes)
    leaves = len({group.leaf for group in cluster.nodes})
    switches = count(leaves, "leaf switch", "leaf switches")
    size = f"{count(nodes, 'node')}, {count(cluster.gpus, 'GPU')}, {switches}"
    yield f"on {plain(cluster.name, NAME)}: {size}; seed {it.seed}"
    if trace.left_out:
        listed = "; ".join(
            f"{number:,} {plain(why)}"
            for why, number in sorted(trace.left_out.items(), key=lambda one: -one[1])
        )
        yield f"left out, of the file's rows: {listed}"
    for note in it.notes:
        yield f"note: {plain(note, 300)}"


def days(first: float, last: float) -> str:
    """From when to when, in local days, as --since and --until take them: 2026-10-01 to 2026-10-31 (CEST to CET)."""
    begin, end = (datetime.fromtimestamp(at).strftime("%Y-%m-%d") for at in (first, last))
    return f"{begin} to {end} ({zone(first, last)})"


def zone(first: float, last: float) -> str:
    """What the local zone is called between two moments; two names where the clocks were changed between them."""
    names = (datetime.fromtimestamp(at).astimezone().strftime("%Z") for at in (first, last))
    return plain(" to ".join(dict.fromkeys(names)))


# --- tables ---------------------------------------------------------------------------------------------------------

_S, _PERCENT, _COUNT, _HOURS, _RATIO = "_s", "_percent", "", "_hours", "ratio"
_Pick = tuple[float, float]
"""A value, and on how many jobs it rests."""


def _share(part: float, whole: float) -> float:
    return 100 * part / whole if whole else float("nan")


_ROWS: Final[tuple[tuple[str, str, Callable[[Shown], _Pick]], ...]] = (
    ("jobs that finished", _COUNT, lambda c: (c.figures.finished, c.figures.jobs)),
    ("JCT mean", _S, lambda c: (c.figures.jct.mean, c.figures.jct.jobs)),
    ("JCT p50", _S, lambda c: (c.figures.jct.p50, c.figures.jct.jobs)),
    ("JCT p95", _S, lambda c: (c.figures.jct.p95, c.figures.jct.jobs)),
    ("JCT p99", _S, lambda c: (c.figures.jct.p99, c.figures.jct.jobs)),
    ("wait mean", _S, lambda c: (c.figures.wait.mean, c.figures.wait.jobs)),
    ("wait p50", _S, lambda c: (c.figures.wait.p50, c.figures.wait.jobs)),
    ("wait p95", _S, lambda c: (c.figures.wait.p95, c.figures.wait.jobs)),
    ("wait p99", _S, lambda c: (c.figures.wait.p99, c.figures.wait.jobs)),
    ("makespan", _S, lambda c: (c.figures.makespan, c.figures.finished)),
    ("GPUs in use", _PERCENT, lambda c: (100 * c.figures.use.gpus, c.figures.jobs)),
    ("CPUs in use", _PERCENT, lambda c: (100 * c.figures.use.cpus, c.figures.jobs)),
    ("memory in use", _PERCENT, lambda c: (100 * c.figures.use.memory, c.figures.jobs)),
    ("GPUs free while jobs wait", _PERCENT, lambda c: (100 * c.figures.use.idle_with_queue, c.figures.jobs)),
    ("fragmentation", _PERCENT, lambda c: (100 * c.figures.use.fragmentation, c.figures.jobs)),
    ("jobs in the queue", _RATIO, lambda c: (c.figures.use.waiting, c.figures.jobs)),
    ("on fewest nodes", _PERCENT, lambda c: (100 * c.figures.on_fewest_nodes, c.figures.gangs)),
    ("nodes over fewest", _RATIO, lambda c: (c.figures.nodes_over_fewest, c.figures.gangs)),
    ("under fewest leaves", _PERCENT, lambda c: (100 * c.figures.under_fewest_leaves, c.figures.gangs)),
    ("leaves over fewest", _RATIO, lambda c: (c.figures.leaves_over_fewest, c.figures.gangs)),
    (
        "deadlines met",
        _PERCENT,
        lambda c: (_share(c.figures.deadlines_met, c.figures.deadlines), c.figures.deadlines),
    ),
    ("started out of order", _COUNT, lambda c: (_nan_if(c.figures.out_of_order, c.really), c.figures.wait.jobs)),
    ("attempts", _COUNT, lambda c: (c.figures.attempts, c.figures.wait.jobs)),
    ("GPU-hours held", _HOURS, lambda c: (c.figures.gpu_hours, c.figures.wait.jobs)),
    ("GPU-hours lost", _HOURS, lambda c: (_nan_if(_lost(c), c.really), c.figures.wait.jobs)),
    ("jobs that failed at first", _COUNT, lambda c: _billed(c, lambda bill: float(bill.struck))),
    ("of them passed later", _COUNT, lambda c: _billed(c, lambda bill: float(bill.rescued))),
    ("with GPU-hours of work", _HOURS, lambda c: _billed(c, lambda bill: bill.rescued_work / 3600)),
    ("held by smoke runs", _COUNT, lambda c: _billed(c, lambda bill: float(bill.held))),
    ("start against record, p50", _S, lambda c: _error(c, c.figures.start_error.p50)),
    ("start against record, p95", _S, lambda c: _error(c, c.figures.start_error.p95)),
    ("jobs replayed a second", _COUNT, lambda c: (_nan_if(_pace(c.figures), c.really), c.figures.jobs)),
)  # fmt: skip
"""A figure, its unit, and where it comes from. A row of which no column knows anything is left out."""


def _nan_if(value: float, unknown: bool) -> float:
    return float("nan") if unknown else value


def _error(one: Shown, value: float) -> _Pick:
    return _nan_if(value, one.really), one.figures.start_error.jobs


def _pace(of: Figures) -> float:
    return of.jobs / of.took_s if of.took_s else float("nan")


def _lost(one: Shown) -> float:
    """GPU-hours held for nothing. A race's smoke runs are in its bill alone."""
    replayed = one.figures.lost_gpu_hours
    return replayed if one.bill is None else max(replayed, one.bill.lost / 3600)


def _billed(one: Shown, pick: Callable[[Bill], float]) -> _Pick:
    return (float("nan"), 0) if one.bill is None else (pick(one.bill), float(one.bill.struck))


def sections(it: Compared) -> list[Section]:
    """The tables, without plots."""
    made = [_summary(it), _waits(it)]
    if any(size.causes for one in it.columns for size in one.figures.by_size):
        made.append(_causes(it))
    if any(one.figures.why_never for one in it.columns):
        made.append(_never(it))
    return made


def _summary(it: Compared) -> Section:
    rows = []
    for name, unit, pick in _ROWS:
        found = [pick(one) for one in it.columns]
        if not any(isfinite(value) for value, _ in found):
            continue
        cells = [
            _of(unit, value, found[0][0] if place else float("nan")) for place, (value, _) in enumerate(found)
        ]
        rows.append([Cell(name, None, key=True), *cells, Cell(_basis([number for _, number in found]), None)])
        if name == "GPU-hours lost":
            rows += _saved(it.columns)
    columns = [
        Column("figure", number=False),
        *(Column(plain(one.name, NAME), number=True) for one in it.columns),
    ]
    return Section(
        "side_by_side",
        "Side by side",
        _finding(it.columns),
        "JCT: from arrival to end. Use is that of the time in which jobs arrive. Locality is that of jobs with several "
        "GPUs. In parentheses: so many times the first column's.",
        len(it.trace),
        0,
        None,
        [*columns, Column("rests on jobs", number=False)],
        rows,
        0,
        (),
    )


def _saved(columns: Sequence[Shown]) -> list[list[Cell]]:
    """What is lost less than under the first remedy; a row where there are several."""
    billed = [one for one in columns if one.bill is not None]
    if len(billed) < 2:
        return []
    cells = []
    for one in columns:
        saved = _lost(columns[0]) - _lost(one)
        known = one.bill is not None
        cells.append(Cell(f"{saved:,.1f}", f"{saved:.12g}") if known else Cell(NOT_KNOWN, ""))
    numbers = [one.figures.wait.jobs if one.bill is not None else 0 for one in columns]
    return [[Cell("GPU-hours saved", None, key=True), *cells, Cell(_basis(numbers), None)]]


def _basis(numbers: Sequence[float]) -> str:
    """How many jobs the figures of a row rest on; one number where they rest on as many."""
    told = [f"{number:,.0f}" for number in numbers]
    return told[0] if len(set(told)) == 1 else " / ".join(told)


def _finding(columns: Sequence[Shown]) -> str:
    """Who has the jobs done soonest, and what that costs in locality."""
    known = [one for one in columns if isfinite(one.figures.jct.mean) and not one.really]
    if any(one.bill is not None for one in columns):
        return (
            "Jobs were made to fail. One that fails for good is over early, so times under other remedies are of other "
            "work: compare GPU-hours."
        )
    if len(known) < 2:
        return ""
    best, worst = (pick(known, key=lambda one: one.figures.jct.mean) for pick in (min, max))
    if best is worst:
        return "All policies have the jobs done after the same time in the mean."
    said = f"Jobs are done soonest with {plain(best.name, NAME)}, after {span(best.figures.jct.mean)} in the mean; "
    return said + f"latest with {plain(worst.name, NAME)}, after {span(worst.figures.jct.mean)}."


def _by_size(it: Compared) -> Iterator[tuple[str, Shown, Sized]]:
    sizes = list(dict.fromkeys(size.size for one in it.columns for size in one.figures.by_size))
    for size in sizes:
        for one in it.columns:
            for sized in one.figures.by_size:
                if sized.size == size:
                    yield size, one, sized


def _waits(it: Compared) -> Section:
    rows = [
        [
            Cell(size, None, key=True),
            Cell(plain(one.name, NAME), None, key=True),
            *(_of(_S, value) for value in (sized.wait.mean, sized.wait.p50, sized.wait.p95, sized.wait.p99)),
            _of(_COUNT, sized.wait.jobs),
        ]
        for size, one, sized in _by_size(it)
    ]
    numbers = ("mean", "p50", "p95", "p99", "jobs")
    return Section(
        "waits",
        "Queueing delay by size",
        "",
        "From arrival to the first start, of jobs that started.",
        len(it.trace),
        0,
        None,
        [
            Column("GPUs", number=False),
            Column("policy", number=False),
            *(Column(one, number=True) for one in numbers),
        ],
        rows,
        0,
        (),
    )


def _causes(it: Compared) -> Section:
    """Only causes that anybody waited for have columns."""
    told = [(size, one, sized) for size, one, sized in _by_size(it) if sized.causes]
    seen = {cause.cause for _, _, sized in told for cause in sized.causes if cause.seconds > 0}
    rows = []
    for size, one, sized in told:
        whole = sum(cause.seconds for cause in sized.causes)
        cells = [Cell(size, None, key=True), Cell(plain(one.name, NAME), None, key=True)]
        for cause in sized.causes:
            if cause.cause in seen:
                cells += [_of(_PERCENT, _share(cause.seconds, whole)), _of(_COUNT, cause.jobs)]
        rows.append([*cells, _of(_HOURS, whole / 3600), _of(_COUNT, sized.wait.jobs)])
    heads = [
        Column(one, number=True) for name in CAUSES if name in seen for one in (_CAUSES[name], "delayed")
    ]
    return Section(
        "causes",
        "Queueing delay by cause",
        "" if seen else "Nobody waited.",
        "Shares of the time that jobs waited, and how many waited a second or more for it. Fair share: the queue's "
        "quota is used up. Fragmentation: as many GPUs are free as the job asks for, but not where it may have them. "
        "Order: it would fit, and others come first.",
        len(it.trace),
        0,
        None,
        [
            Column("GPUs", number=False),
            Column("policy", number=False),
            *heads,
            Column("waited h", number=True),
            Column("jobs", number=True),
        ],
        rows,
        0,
        (),
    )


def _never(it: Compared) -> Section:
    rows = [
        [Cell(plain(one.name, NAME), None, key=True), Cell(plain(why, 120), None), _of(_COUNT, number)]
        for one in it.columns
        for why, number in one.figures.why_never
    ]
    return Section(
        "never",
        "Jobs that never ran, or never passed",
        "",
        "They are in no figure of times.",
        len(it.trace),
        0,
        None,
        [Column("policy", number=False), Column("why", number=False), Column("jobs", number=True)],
        rows,
        0,
        (),
    )


def _of(unit: str, value: float, first: float = float("nan")) -> Cell:
    """A cell; of times also how many times the first column's it is."""
    if not isfinite(value):
        return Cell(NOT_KNOWN, "")
    text = f"{value:,.2f}" if unit == _RATIO else cell(unit, value)
    if unit == _S and isfinite(first) and first > 0:
        text += f" (x{value / first:.2f})"
    return Cell(text, f"{value:.12g}")


# --- out ------------------------------------------------------------------------------------------------------------


def show(it: Compared) -> None:
    """Print it, harmless on a terminal."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    from gsub.term import is_terminal

    wide = None if is_terminal(sys.stdout) else _WIDE
    screen = Console(file=sys.stdout, highlight=False, emoji=False, markup=False, width=wide)
    for line in head(it):
        screen.print(Text(line))
    for section in sections(it):
        screen.print()
        screen.print(Text(section.title, "bold"))
        if section.finding:
            screen.print(Text(f"  {section.finding}"))
        grid = Grid(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
        for column in section.columns:
            grid.add_column(Text(column.head), justify="right" if column.number else "left", overflow="fold")
        for row in section.rows:
            grid.add_row(*(Text(one.text) for one in row))
        screen.print(grid)
        screen.print(Text(f"  {section.note}", "dim"))


def as_data(it: Compared) -> dict[str, Any]:
    """All of it for a program; what is not known is null there."""
    return {
        "trace": {
            "name": plain(it.trace.name),
            "kind": it.kind,
            "jobs": len(it.trace),
            "begins": it.trace.zero or None,
            "left_out": dict(it.trace.left_out),
        },
        "cluster": {
            "name": plain(it.cluster.name),
            "nodes": sum(group.count for group in it.cluster.nodes),
            "gpus": it.cluster.gpus,
        },
        "seed": it.seed,
        "notes": list(it.notes),
        "runs": [
            {
                "name": one.name,
                "figures": asdict(one.figures),
                "bill": None if one.bill is None else asdict(one.bill),
            }
            for one in it.columns
        ],
    }
