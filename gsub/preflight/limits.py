"""Limits that a request breaks and that sbatch takes all the same, or refuses without saying which.

A time limit or a number of nodes beyond the partition's is accepted by sbatch (seen on 22.05, 24.11 and 26.05: the job
waits for ever, PartitionTimeLimit); `--test-only` even names a start. And of nodes that are too small sbatch says
"Requested node configuration is not available", for GPUs, CPUs and memory alike: the site file tells which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gsub.errors import UserError
from gsub.notations import NotationError, mebibytes, nodes, seconds
from gsub.preflight.asked import Asked, asked, number
from gsub.preflight.children import Child, child
from gsub.preflight.unanswered import unanswered
from gsub.preflight.values import MOST, Finding, LeftOutError, Level, Submission
from gsub.site import read_site
from gsub.term import harmless
from profiler.counting import count

if TYPE_CHECKING:
    from site_configs.site_model import Partition, Site

__all__ = ["limits"]

_SECONDS: Final = 0.9
_PAIR: Final = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S*)")
_NAMES: Final = re.compile(r"[\w.-]+(?:,[\w.-]+)*")
_NO_ACCOUNTING: Final = "not running a supported accounting_storage plugin"
_LIFTED_BY: Final = ("PartitionTimeLimit", "PartitionMaxNodes", "PartitionMinNodes", "OverPartQOS")
"""Flags of a QOS whose jobs may go beyond their partition (sacctmgr(1))."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A limit of a partition: the option that is held against it, and what is wrong, or nothing."""

    option: str
    breaks: Callable[[Submission, Mapping[str, str]], str]
    helps: str


def limits(submission: Submission) -> Iterator[Finding]:
    """What the cluster's partitions and the site file say against the request.

    Raises LeftOutError where the cluster does not say.
    """
    if submission.elsewhere or len(submission.components) != 1:
        return
    stated = _value(submission, "partition")
    if stated and not _NAMES.fullmatch(stated):
        return
    yield from _of_site(submission, stated)
    if any(submission.option(row.option) for row in _ROWS):
        yield from _of_cluster(submission, stated)


def _value(submission: Submission, name: str) -> str:
    option = submission.option(name)
    return option.value or "" if option is not None else ""


def _line(submission: Submission, name: str) -> int:
    option = submission.option(name)
    source = option.source if option is not None else ""
    return int(source.rpartition(" ")[2]) if source.startswith("script line ") else 0


# --- the cluster's partitions ---------------------------------------------------------------------------------------


def _too_long(submission: Submission, partition: Mapping[str, str]) -> str:
    most, wanted = _seconds(partition.get("MaxTime", "")), _seconds(_value(submission, "time"))
    if not most or not wanted or wanted <= most or submission.option("time-min"):
        return ""
    return f"lets a job run for {harmless(partition['MaxTime'])} at most, and {_value(submission, 'time')} is asked for"


def _too_many(submission: Submission, partition: Mapping[str, str]) -> str:
    try:
        least, _ = nodes(_value(submission, "nodes"))
    except NotationError:
        return ""
    for key, noun in (("MaxNodes", "lets a job have {} nodes at most"), ("TotalNodes", "has {} nodes")):
        most = number(partition.get(key))
        if most and least > most:
            return f"{noun.format(most)}, and {least} are asked for"
    return ""


_ROWS: Final = (
    _Row("time", _too_long, "ask for less with --time, or for another partition: 'sinfo -s'"),
    _Row("nodes", _too_many, "ask for fewer nodes, or for another partition: 'sinfo -s'"),
)


def _of_cluster(submission: Submission, stated: str) -> Iterator[Finding]:
    partitions = _partitions(submission, stated)
    if not partitions:
        return
    for row in _ROWS:
        told = [(one["PartitionName"], row.breaks(submission, one)) for one in partitions]
        if not all(what for _, what in told):
            continue  # one partition of several is enough
        (name, what), *_ = told
        sure: Level = "error" if stated and not _may_be_lifted(submission) else "warning"
        yield submission.finding(
            sure,
            _line(submission, row.option),
            f"partition {name} {what}: it would wait for ever"[:MOST],
            row.helps,
        )
    down = [one for one in partitions if one.get("State", "UP") != "UP"]
    if stated and len(down) == len(partitions):
        what = f"partition {down[0]['PartitionName']} is {harmless(down[0]['State'])}: the job waits until it is up"
        yield submission.finding(
            "warning", _line(submission, "partition"), what[:MOST], "'sinfo -s' lists the others"
        )


def _seconds(text: str) -> int | None:
    try:
        return seconds(text)
    except NotationError:
        return None


def _ask(submission: Submission, *words: str) -> Child:
    folder = f"{submission.slurm_folder}/" if submission.slurm_folder else ""
    return child([folder + words[0], *words[1:]], environ=submission.environ, seconds=_SECONDS)


def _partitions(submission: Submission, stated: str) -> list[dict[str, str]]:
    """The partitions that are stated, else the default one; none where one is not there: sbatch tells that.

    Raises LeftOutError where Slurm does not answer.
    """
    words = (
        "scontrol",
        "--oneliner",
        "show",
        "partition",
        *([stated] if stated and "," not in stated else []),
    )
    said = _ask(submission, *words)
    if why := unanswered(said, words[0]):
        raise LeftOutError(why)
    if said.code != 0:
        return []
    rows = [dict(_PAIR.findall(line)) for line in said.out.splitlines() if "PartitionName=" in line]
    if not stated:
        return [row for row in rows if row.get("Default") == "YES"][:1]
    names = stated.split(",")
    found = [row for row in rows if row.get("PartitionName") in names]
    return found if len(found) == len(names) else []


def _may_be_lifted(submission: Submission) -> bool:
    """Whether a QOS, or something else, may let the job beyond its partition's limits."""
    if submission.option("reservation"):
        return True
    said = _ask(submission, "sacctmgr", "-nP", "show", "qos", "format=flags")
    if said.code != 0:
        return _NO_ACCOUNTING not in said.out + said.err
    return any(flag in said.out for flag in _LIFTED_BY)


# --- the site file --------------------------------------------------------------------------------------------------


def _of_site(submission: Submission, stated: str) -> Iterator[Finding]:
    """What no node of the partition has, as the site file has it: sbatch decides, and would not say what it was."""
    try:
        site = read_site(submission.environ)
    except UserError:
        return  # that is told by itself
    if site is None or "," in stated:
        return
    declared = _declared(site, stated)
    found = [tuple(_beyond(submission, asked(submission), one)) for one in declared]
    if not found or not all(found):
        return
    for option, what in found[0] if stated else found[-1][:1]:
        where = f"of partition {stated}" if stated else "of any partition"
        helps = "ask for less a node; 'sinfo -o \"%P %G %c %m\"' tells what there is"
        yield submission.finding(
            "warning", _line(submission, option), f"no node {where} has {what}"[:MOST], helps
        )


def _declared(site: Site, stated: str) -> tuple[Partition, ...]:
    if not stated:
        return tuple(sorted(site.partitions.values(), key=lambda one: one.gpus_per_node or 0))
    return (site.partitions[stated],) if stated in site.partitions else ()


def _beyond(submission: Submission, job: Asked, partition: Partition) -> Iterator[tuple[str, str]]:
    """The option, and how much of what; in the order in which a user should look."""
    gpus = partition.gpus_per_node
    if gpus is not None and job.gpus and job.gpus > gpus:
        name = next(
            (one for one in ("gpus-per-node", "gres", "gpus") if submission.option(one)), "gpus-per-task"
        )
        yield name, f"{count(job.gpus, 'GPU')} (a node has {gpus})"
    cpus, wanted = partition.cpus_per_node, _cpus(submission, job)
    if cpus is not None and wanted and wanted[1] > cpus:
        yield wanted[0], f"{count(wanted[1], 'CPU')} (a node has {cpus})"
    memory, needed = partition.memory_per_node, _memory(submission, job)
    if memory is not None and needed and needed[1] > memory:
        yield needed[0], f"{needed[1] >> 10} GiB of memory (a node has {memory >> 10})"


def _cpus(submission: Submission, job: Asked) -> tuple[str, int] | None:
    each = number(_value(submission, "cpus-per-task"))
    if each:
        return "cpus-per-task", each * (number(_value(submission, "ntasks-per-node")) or 1)
    each = number(_value(submission, "cpus-per-gpu"))
    return ("cpus-per-gpu", each * job.gpus) if each and job.gpus else None


def _memory(submission: Submission, job: Asked) -> tuple[str, int] | None:
    for name, times in (("mem", 1), ("mem-per-gpu", job.gpus)):
        try:
            if _value(submission, name) and times:
                return name, mebibytes(_value(submission, name)) * times
        except NotationError:
            continue
    return None
