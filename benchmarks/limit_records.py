"""What became of a job by ``scontrol show job``, and what is worse about it with gsub than without. Pure.

>>> before, after = Part("RUNNING", "None", 8), Part("PENDING", "AssocMaxCpuPerJobLimit", 8)
>>> list(find_harm({"": before}, {"": after}))
['waits (AssocMaxCpuPerJobLimit), and starts without gsub']
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.limit_sets import Fate

__all__ = ["Part", "Parts", "find_fate", "find_harm", "is_dearer", "is_limit", "parse_jobs"]

_STARTED: Final = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "COMPLETED"})
_ASKED: Final = (
    "CPUs/Task", "MinCPUsNode", "MinMemoryNode", "MinMemoryCPU", "CpusPerTres", "MemPerTres", "TresPerJob",
    "TresPerNode", "TresPerTask", "NtasksPerN:B:S:C", "OverSubscribe", "Switches", "Features", "ExcNodeList",
)  # fmt: skip
"""Fields of a job that gsub may set."""
_GOT: Final = ("NumNodes", "NumCPUs", "NumTasks", "cpu", "mem", "node", "gres/gpu")
"""What they come to; Slurm shows it in another way once a job has started."""
_FIELD: Final = re.compile(r"(?:^| )([\w/:]+)=(\S*)")
_LIMIT: Final = re.compile(r"Assoc|QOS|Max|Partition.*Limit|InvalidQOS|InvalidAccount|BadConstraints|Held")


@dataclass(frozen=True, slots=True)
class Part:
    """A job, a task of an array, or a component: its state, why it waits, its billing (None: not shown).

    Parameters
    ----------
    asked, got: fields that gsub may set, and what they come to.
    is_decided: it has the mark of a decision in enforce.
    """

    state: str
    reason: str
    billing: float | None = None
    asked: Mapping[str, str] = field(default_factory=dict, hash=False)
    got: Mapping[str, str] = field(default_factory=dict, hash=False)
    is_decided: bool = False

    @property
    def has_started(self) -> bool:
        """It runs, or did."""
        return self.state in _STARTED

    def differs(self, other: Part) -> bool:
        """Whether it is another job than the other, by what it asks for and by what that comes to."""
        if self.asked != other.asked:
            return True
        return self.has_started == other.has_started and self.got != other.got


Parts = Mapping[str, Part]
"""Tasks of an array and components by their number, a job of one part by an empty name; none of one refused."""


def parse_jobs(text: str) -> dict[int, dict[str, Part]]:
    """Read ``scontrol --oneliner show job``: number as sbatch gave it -> its parts."""
    found: dict[int, dict[str, Part]] = {}
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if "JobState" not in fields:
            continue
        tres = _tres(fields)
        billing = tres.get("billing")
        part = Part(
            fields["JobState"],
            fields["Reason"],
            float(billing) if billing else None,
            {name: fields[name] for name in _ASKED if name in fields},
            {name: value for name in _GOT if (value := fields.get(name) or tres.get(name))},
            fields.get("AdminComment", "").startswith("gsub:d-"),
        )
        for number, name in _names(fields):
            found.setdefault(number, {})[name] = part
    return found


def _names(fields: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    if "HetJobOffset" in fields:
        yield int(fields["HetJobId"]), f"+{fields['HetJobOffset']}"
    elif "ArrayTaskId" in fields:
        for number in _numbers(fields["ArrayTaskId"]):
            yield int(fields["ArrayJobId"]), str(number)
    else:
        yield int(fields["JobId"]), ""


def _numbers(text: str) -> Iterator[int]:
    """``1-3,7%2`` -> 1, 2, 3, 7."""
    for item in text.partition("%")[0].split(","):
        first, _, last = item.partition("-")
        last, _, step = last.partition(":")
        yield from range(int(first), int(last or first) + 1, int(step or 1))


def _tres(fields: Mapping[str, str]) -> dict[str, str]:
    """The job's TRES: what it has, else what it asks for; 22.05 shows one of them."""
    for name in ("AllocTRES", "TRES", "ReqTRES"):
        text = fields.get(name, "")
        if "=" in text:
            return dict(item.split("=", 1) for item in text.split(","))
    return {}


def is_limit(reason: str) -> bool:
    """Whether a job that waits for this reason waits on a limit.

    >>> [is_limit(reason) for reason in ("QOSMaxCpuPerUserLimit", "PartitionTimeLimit", "Resources", "Dependency")]
    [True, True, False, False]
    """
    return bool(_LIMIT.match(reason))


def is_dearer(before: Part, after: Part) -> bool:
    """Whether the billing is higher, of what both have or of what both ask for."""
    if before.billing is None or after.billing is None:
        return False
    return before.has_started == after.has_started and after.billing > before.billing


def find_fate(parts: Parts) -> Fate:
    """How a job fares."""
    if not parts:
        return "refused"
    return "runs" if all(part.has_started for part in parts.values()) else "waits"


def find_harm(before: Parts, after: Parts, *, charged: bool = True) -> Iterator[str]:
    """What is worse about a job with gsub (`after`) than without (`before`), part by part; `charged`: the billing
    counts."""
    if before and not after:
        yield "is refused, and is not without gsub"
        return
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        of = f"part {name} " if name else ""
        if not now.has_started and now.state != "PENDING" and now.state != was.state:
            yield f"{of}is {now.state} ({now.reason}), and {was.state} without gsub"
        elif was.has_started and not now.has_started:
            yield f"{of}waits ({now.reason}), and starts without gsub"
        elif now.state == "PENDING" and is_limit(now.reason) and now.reason != was.reason:
            yield f"{of}waits on a limit ({now.reason}), and without gsub on {was.reason}"
        if charged and is_dearer(was, now):
            yield f"{of}is billed {now.billing:g}, and {was.billing:g} without gsub"
    for name in sorted(before.keys() - after.keys()):
        yield f"part {name} is not there"
