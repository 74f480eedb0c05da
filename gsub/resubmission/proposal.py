"""What is changed about a submission before it is made again, from what is decided of each of its failed parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gsub.resubmission.change import Change, changed
from gsub.resubmission.original import Original, Part
from gsub.resubmission.submit_line import Reading
from profiler.resubmissions import Resubmission
from site_configs.hostlist import expand, fold
from site_configs.units import format_duration, format_size

if TYPE_CHECKING:
    from profiler.findings import Finding

__all__ = ["Proposal", "Weighed", "propose"]

_OF_THE_SCREEN: Final = ("wait", "parsable", "quiet", "verbose", "test-only")
"""Options that say what sbatch prints and when it returns, not what the job is."""
_MET: Final = {
    "dependency": ("", "it has been met once"),
    "begin": ("now", "that time has passed"),
    "hold": (None, "it has been released once"),
}
"""Options that held the first submission back: what takes them back where a script or a variable sets them, and why."""
_MEMORY: Final = ("mem", "mem-per-cpu", "mem-per-gpu")


@dataclass(frozen=True, slots=True)
class Weighed:
    """A part of the job that failed, why it did (None: not known), and what the table has for it.

    `like`: how many others ended as this one did and are treated as it is, without having been looked at; `tasks` their
    numbers and its own.
    """

    part: Part
    finding: Finding | None
    row: Resubmission | None
    tasks: tuple[int, ...] = ()

    @property
    def again(self) -> bool:
        """Whether another attempt may help: nothing is known that speaks against it."""
        return self.row is None or self.row.state == "planned"

    @property
    def why(self) -> str:
        """The sentence of the table, without its count of automatic attempts."""
        if self.row is None:
            return "Nothing is known that says why it failed."
        return self.row.why.replace(f" ({self.row.nth} of {self.row.budget}).", ".")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A command line to submit: what was asked for, with these changes. `notes` are for the user."""

    reading: Reading
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()


def propose(original: Original, weighed: Sequence[Weighed], more: Sequence[Change] = ()) -> Proposal:
    """The command line for those parts. `more` are changes besides (of `gsub fix`); they go before the table's."""
    rows = [one.row for one in weighed if one.row is not None and one.row.state == "planned"]
    notes: list[str] = []
    changes = [*more]
    taken = {change.name for change in more}
    for change in (*_array(original, weighed), *_memory(original, rows), *_exclude(original, rows, notes)):
        if change.name not in taken:
            changes.append(change)
    changes += [
        change for change in (*_begin(original, rows), *_met(original, notes)) if change.name not in taken
    ]
    leave_out = {*_OF_THE_SCREEN, *_MET} - ({"dependency"} if _is_singleton(original) else set())
    reading = changed(original.given, original.table, changes, leave_out=leave_out)
    if not original.kept.submit_dir and original.asks("chdir") is not None and original.job.work_dir:
        # Where sbatch ran is not known: a folder that was given as seen from there would be another one
        where = Change("chdir", original.job.work_dir, original.asks("chdir").value or "", "as Slurm has it")  # type: ignore[union-attr]
        reading = changed(reading, original.table, [where])
    return Proposal(reading, tuple(changes), tuple(notes))


def _array(original: Original, weighed: Sequence[Weighed]) -> Iterable[Change]:
    tasks = sorted({task for one in weighed for task in one.tasks})
    if not tasks:
        return
    asked = original.asks("array")
    was = (asked.value or "") if asked is not None else ""
    _, percent, throttle = was.partition("%")
    count = f"{len(tasks)} tasks" if len(tasks) > 1 else "1 task"
    yield Change("array", numbers(tasks) + percent + throttle, was, f"only what failed: {count}")


def numbers(tasks: Sequence[int]) -> str:
    """Tasks as sbatch takes them.

    >>> numbers([1, 2, 3, 7, 9, 10])
    '1-3,7,9-10'
    """
    runs: list[list[int]] = []
    for task in tasks:
        if runs and task == runs[-1][1] + 1:
            runs[-1][1] = task
        else:
            runs.append([task, task])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _memory(original: Original, rows: Sequence[Resubmission]) -> Iterable[Change]:
    wanting = [row for row in rows if row.memory_mib]
    if not wanting:
        return
    row = max(wanting, key=lambda row: row.memory_mib or 0)
    yield memory_change(original, row.memory_mib or 0, row.memory_per, _short(row))


def memory_change(original: Original, mib: int, per: str, why: str) -> Change:
    """More memory, asked for as it was asked for: sbatch takes one of the three options only."""
    asked = next((one for name in _MEMORY if (one := original.asks(name)) is not None), None)
    name = asked.name if asked is not None else "mem-per-cpu" if per == "cpu" else "mem"
    if name == "mem-per-gpu":
        part = original.job
        gpus = max(1, (part.gpus or 1) // (part.num_nodes or 1))
        mib = -(-mib // gpus)
    return Change(name, format_size(mib), (asked.value or "") if asked is not None else "", why)


def _short(row: Resubmission) -> str:
    was = f" instead of {format_size(row.memory_was_mib)}" if row.memory_was_mib else ""
    every = f" for each {'CPU' if row.memory_per == 'cpu' else 'node'}"
    return f"{row.reason}: {format_size(row.memory_mib or 0)}{was}{every}"


def _exclude(original: Original, rows: Sequence[Resubmission], notes: list[str]) -> Iterable[Change]:
    avoid = {node for row in rows for node in row.avoid}
    if not avoid:
        return
    reasons = sorted({row.reason for row in rows if row.avoid})
    yield from exclude_change(original, avoid, ", ".join(reasons), notes)


def exclude_change(original: Original, avoid: set[str], why: str, notes: list[str]) -> Iterable[Change]:
    """Keep off those nodes too, unless the job names them itself."""
    wanted = _nodes(original, "nodelist")
    if wanted is None or wanted & avoid:
        notes.append(f"it asks for {fold(avoid)} itself (--nodelist): that is left as it is")
        return
    before = _nodes(original, "exclude")
    known = set(getattr(original.job, "excluded_nodes", ())) or before
    if known is None:
        notes.append(f"the nodes to avoid are in a file (--exclude): add {fold(avoid)} to it")
        return
    asked = original.asks("exclude")
    was = (asked.value or "") if asked is not None else ""
    yield Change("exclude", fold(known | avoid), was, f"{why}: where it failed" if why else "where it failed")


def _nodes(original: Original, name: str) -> set[str] | None:
    """The nodes that an option names; None where that cannot be read (a file)."""
    asked = original.asks(name)
    if asked is None or not asked.value:
        return set()
    try:
        return None if "/" in asked.value else set(expand(asked.value))
    except ValueError:
        return None


def _begin(original: Original, rows: Sequence[Resubmission]) -> Iterable[Change]:
    delay = max((row.delay_s for row in rows), default=0.0)
    if delay >= 1:
        asked = original.asks("begin")
        was = (asked.value or "") if asked is not None else ""
        wait = round(delay)
        yield Change("begin", f"now+{wait}", was, f"in {format_duration(wait)}: it may pass by itself")


def _met(original: Original, notes: list[str]) -> Iterable[Change]:
    """What held the first submission back does not hold this one."""
    for name, (back, why) in _MET.items():
        asked = original.asks(name)
        if asked is None or (name == "dependency" and _is_singleton(original)):
            continue
        if asked.source == "command line":
            notes.append(f"left out: --{name}{'' if asked.value is None else '=' + asked.value} ({why})")
        elif back is not None:
            yield Change(name, back, asked.value or "", why)
        else:
            notes.append(
                f"--{name} stands in its script or environment: the job will be held; scontrol release JOB"
            )


def _is_singleton(original: Original) -> bool:
    """One job of that name at a time: that holds for this one, too."""
    asked = original.asks("dependency")
    return asked is not None and (asked.value or "").lower() == "singleton"
