"""Which checks this node runs, and how: the table, what the site file changes in it, and the site's own checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points

from prolog_epilog.health.child import GROUP
from prolog_epilog.health.finding import Limits, cleaned
from prolog_epilog.health.gpu_checks import GpuCheck
from prolog_epilog.health.table import CHECKS, SLURMD_SPOOL, SPOOL, OnFail, Row
from prolog_epilog.health.tasks import Task
from site_configs.site_model import Check, Site

__all__ = ["Plan", "Planned", "planned"]

_EVERY, _DEADLINE = 300, 10  # of a site's own check that does not say
_NO_CHANGE = Check("")


@dataclass(frozen=True, slots=True)
class Planned:
    """A check that is run here: over GPUs (`gpu`), or as a task for a child. `every` None: with each sample."""

    name: str
    every: int | None
    on_fail: OnFail
    limits: Limits
    gpu: GpuCheck | None = None
    task: Task | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The checks, and a sentence for each thing that is wrong with them."""

    checks: tuple[Planned, ...] = ()
    problems: tuple[str, ...] = ()


def planned(
    site: Site,
    node: str,
    *,
    spool: str,
    slurmd_spool: str,
    points: Iterable[EntryPoint] | None = None,
    untrusted: str = "",
) -> Plan:
    """The plan for a node. `untrusted`: why others than root could have written the site file, which then commands
    nothing.

    `points` are the entry points of the site's own checks in Python; None: those that are installed. None of their
    code is imported here. Names that are wrong are told and passed over.
    """
    if not site.health.enabled:
        return Plan()
    places = {SPOOL: spool, SLURMD_SPOOL: slurmd_spool}
    found: dict[str, Planned | None] = {}  # None: switched off
    problems: list[str] = []
    changes = site.health.checks
    for row in CHECKS.values():
        change = changes.get(row.name, _NO_CHANGE)
        if change.command:
            problems.append(
                f"[health.checks.{row.name}] has a command, but is one of gsub's: name yours otherwise"
            )
        found[row.name] = _of_row(row, change, node, places) if _runs(change, node) else None
    if points is None:
        try:
            points = tuple(entry_points(group=GROUP))
        except (
            Exception
        ) as error:  # another package's damaged metadata may raise anything, and costs only these
            problems.append(
                cleaned(f"the site's own checks cannot be listed: {type(error).__name__}: {error}")
            )
            points = ()
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        if point.name in found or changes.get(point.name, _NO_CHANGE).command:
            problems.append(
                cleaned(f"the check {point.name} ({point.value}) is left out: there is one of that name")
            )
            continue
        change = changes.get(point.name, _NO_CHANGE)
        task = Task(point.name, "plugin", value=point.value, node=node, alone=True)
        found[point.name] = _own(task, change) if _runs(change, node) else None
    for name, change in changes.items():
        if name in found:
            continue
        if change.command and untrusted:
            problems.append(
                cleaned(f"[health.checks.{name}] is left out, as it would run as root: {untrusted}")
            )
        elif change.command:
            task = Task(name, "command", command=change.command, node=node, alone=True)
            found[name] = _own(task, change) if _runs(change, node) else None
        else:
            near = get_close_matches(name, CHECKS, 1)
            hint = f'did you mean "{near[0]}"?' if near else "a check of your own needs a command."
            problems.append(f"[health.checks.{name}] is no check: {hint}")
    return Plan(tuple(check for check in found.values() if check), tuple(problems))


def _runs(change: Check, node: str) -> bool:
    return change.enabled and (not change.nodes or node in change.nodes)


def _of_row(row: Row, change: Check, node: str, places: dict[str, str]) -> Planned:
    limits = Limits(
        row.warn if change.warn is None else change.warn,
        row.fail if change.fail is None else change.fail,
        row.below,
    )
    every = row.every if change.every is None else change.every
    on_fail = change.on_fail or row.on_fail
    if row.gpu is not None:
        return Planned(row.name, every, on_fail, limits, gpu=row.gpu)
    deadline = change.deadline or row.deadline or _DEADLINE
    paths = change.paths or tuple(places.get(path, path) for path in row.paths)
    task = Task(row.name, "node", float(deadline), limits, paths, node=node, alone=row.alone)
    return Planned(row.name, every or _EVERY, on_fail, limits, task=task)


def _own(task: Task, change: Check) -> Planned:
    limits = Limits(change.warn, change.fail)
    task = Task(
        task.name, task.kind, float(change.deadline or _DEADLINE), limits, change.paths, task.command,
        task.value, task.node, task.alone,
    )  # fmt: skip
    return Planned(task.name, change.every or _EVERY, change.on_fail or "comment", limits, task=task)
