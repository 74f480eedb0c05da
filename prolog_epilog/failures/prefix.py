"""Who wrote a line and when, by what launchers and loggers put before it.

Launchers wrap one another (`srun -l` around torchrun around c10's logger), so prefixes are taken off one by one:

>>> origin("3: [default1]:[rank7]:[E ProcessGroupNCCL.cpp:616] [Rank 7] Watchdog caught")
Origin(text='[E ProcessGroupNCCL.cpp:616] [Rank 7] Watchdog caught', rank=7, node='')
>>> origin("[1,3]<stderr>:KeyError: 'loss'")
Origin(text="KeyError: 'loss'", rank=3, node='')
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

__all__ = ["Origin", "origin", "time_of"]

_MAX_RANK: Final = 1 << 24
_DEPTH: Final = 5
_HOST: Final = r"[A-Za-z0-9](?:[\w-]{0,62}[A-Za-z0-9])?(?:\.[A-Za-z0-9][\w-]{0,62}){0,6}"

_RAISED: Final = (
    r"(?=Traceback \(|  |During handling of|The above exception|(?:[A-Za-z_]\w{0,80}\.){0,9}"
    r"[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Failure|Exit|Fault)(?:\(\w+\))?(?::|$)|$"
    r"|\[[A-Za-z]+ ?\d{1,7}\]:|\d{1,7}: |\(\w[\w.]{0,80} pid=)"
)
"""What goes on behind a time: a traceback, or a launcher's label."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The line without its prefixes, and who wrote it: None and "" where it does not say."""

    text: str
    rank: int | None = None
    node: str = ""


# What stands before a line: taken off. `rank` is the rank of all, `local` one that counts on a node only (it serves
# where nothing better is known), `node` a host.
_PREFIXES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[[Rr]ank[ :=]?\s?(?P<rank>\d{1,7})\]:[ ]?",  # torch >= 2.3 (excepthook, c10 logger); Lightning
        r"\[(?!rank)[a-z][a-z_]{0,30}(?P<local>\d{1,4})\]:(?: (?=\S))?",  # torchrun --tee: [{role}{local rank}]:
        r"\[\d{1,9},(?P<rank>\d{1,7})\]<(?:stdout|stderr|stddiag)>:(?: (?=\S))?",  # mpirun --tag-output, horovodrun
        r"\[[^\]<>\s]{1,40},(?P<rank>\d{1,7})\]\[[^\]]{1,40}\]\s?",  # mpirun --tag-output-detailed, prrte
        r"[ ]{0,6}(?P<rank>\d{1,7}): ?(?=\S|$| )(?!\d\d:)",  # srun --label
        r"\[(?P<rank>\d{1,7})\]: ?",  # mpiexec -prepend-rank, aprun
        r"\[cli_(?P<rank>\d{1,7})\]: ?",  # MPICH
        r"\[(?P<node>" + _HOST + r"):mpi_rank_(?P<rank>\d{1,7})\](?:\[\w{1,60}\])? ?",  # MVAPICH2
        r"(?:\x1b\[\d+m)?\([A-Za-z_][\w.:<> -]{0,80} pid=\d{1,10}(?:, ip=(?P<node>[\w.:-]{1,60}))?\)\s?",  # Ray
        r"\[rank=(?P<rank>\d{1,7})\]\s?",  # Ray Train
        r"(?:\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[^\]]{0,12}\] )?(?P<node>" + _HOST + r"):\d{1,10}:\d{1,10} "
        r"\[(?P<local>\d{1,4})\] (?=\S{1,80} |NCCL |RCCL )",  # NCCL, RCCL
        r"\[(?P<node>" + _HOST + r"):\d{1,10}(?::\d{1,10}){0,3}\]\s{1,2}(?=\S)",  # Open MPI, PMIx, UCX
        r"\[(?:\w{1,40}@)(?P<node>" + _HOST + r")\] (?=\S)",  # HYDRA, PRRTE
        r"(?P<node>(?!slurm)[a-z][a-z-]{0,30}\d[\d-]{0,20}(?:\.[a-z][\w.-]{0,100})?): (?=\S| {2,8}\S)",  # pdsh, clush
        # a time before each line (kubectl, docker -t, ts, journald; vLLM's logger): only where a traceback goes on,
        # since to signatures a time is a part of the line as any other
        r"\[?20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?\]? " + _RAISED,
        r"(?:ERROR|CRITICAL|WARNING) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]{1,80}:\d{1,6}\] ?" + _RAISED,
    )
)
# How each of them begins: most lines of most logs do not.
_MAY: Final = re.compile(r"[\[(\x1b]|[ ]{0,6}\d{1,7}:|[A-Za-z0-9][\w.-]{0,100}:[ \d]|[A-Z]{5,8} \d\d-")
# What names the writer within the line: left in it.
_SAID: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[[EWIF]\d{0,4} ?[^\]]{0,120}\] \[(?:PG [^\]]{0,80} )?Rank (?P<rank>\d{1,7})\]",  # c10d
        r"^.{0,90}?\[(?:rank|Rank|RANK)[ :=]{0,2}(?P<rank>\d{1,7})\]",
        r"^(?:.{0,60}?[\s(\[])?(?:global_?rank|GLOBAL_RANK)[ :=]{1,2}(?P<rank>\d{1,7})\b",
        r"^(?:.{0,60}?[\s(])?(?:rank|Rank|RANK)[ :=#]{1,2}(?P<rank>\d{1,7})(?=[\s:,)\]]|$)",
        r"^srun: error: Node failure on (?P<node>" + _HOST + r")(?=[\s,]|$)",
        r"^srun: error: (?P<node>" + _HOST + r"): tasks? (?P<rank>\d{1,7})(?=[:,\-\]])",
        r"^srun: error: (?P<node>" + _HOST + r"): tasks? \[?(?P<rank>\d{1,7})",
        r"STEP [\d.+_a-z]{1,40} ON (?P<node>" + _HOST + r") CANCELLED",
        r"JOB \d{1,12} ON (?P<node>" + _HOST + r") CANCELLED",
        r"\bmpirun (?:noticed|detected).{0,60}process rank (?P<rank>\d{1,7})(?: with PID \d+)? on node (?P<node>"
        + _HOST
        + r")",
        r"^slurmstepd-(?P<node>" + _HOST + r"): ",
    )
)
# Only lines with one of these are worth the search within.
_HINT: Final = re.compile(r"[Rr]ank|RANK|^srun: |^slurmstepd|noticed")


def _number(found: re.Match[str], group: str) -> int | None:
    text = found.groupdict().get(group)
    value = int(text) if text else None
    return value if value is None or value < _MAX_RANK else None


def origin(line: str) -> Origin:
    """A line without the prefixes that launchers put before it, and what they say."""
    text, rank, local, node = line, None, None, ""
    for _ in range(_DEPTH):
        if not _MAY.match(text):
            break
        found = next((match for prefix in _PREFIXES if (match := prefix.match(text))), None)
        if found is None:
            break
        named = found.groupdict().get("node") or ""
        if named and ".so" in named:
            break
        here = _number(found, "rank")
        # the innermost label of a rank is the one that the rank itself wrote
        rank = here if here is not None else rank
        local = local if _number(found, "local") is None else _number(found, "local")
        node = named or node
        text = text[found.end() :]
    if _HINT.search(text[:200]):
        for said in _SAID:
            inside = said.search(text[:300])
            if inside is not None:
                here = _number(inside, "rank")
                rank = rank if here is None else here
                node = inside.groupdict().get("node") or node
                break
    return Origin(text, local if rank is None else rank, node)


_Clock: TypeAlias = "Callable[[re.Match[str], time.struct_time], float | None]"
_MONTHS: Final = {name: number for number, name in enumerate(calendar.month_abbr) if name}
_HMS: Final = r"(?P<h>[01]\d|2[0-3]):(?P<mi>[0-5]\d):(?P<s>[0-5]\d|60)(?:[.,](?P<f>\d{1,9}))?"
_MONTH: Final = "(?P<mon>" + "|".join(_MONTHS) + ")"
_ZONE: Final = r"(?:\s?(?P<z>Z|[+-]\d\d:?\d\d)\b)?"
_TIMES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<!\d)(?P<y>20\d\d)[-/](?P<mo>0[1-9]|1[0-2])[-/](?P<d>0[1-9]|[12]\d|3[01])[T _:]"
        + _HMS
        + _ZONE,  # ISO
        r"\b[IWEF](?P<y>20\d\d)?(?P<mo>0?[1-9]|1[0-2])(?P<d>0[1-9]|[12]\d|3[01]) "
        + _HMS,  # glog, absl, c10, klog
        r"(?<!\d)(?P<mo>0[1-9]|1[0-2])/(?P<d>0[1-9]|[12]\d|3[01])/(?P<y>20\d\d)[ ,T]{1,2}"
        + _HMS,  # transformers
        r"(?<!\d)(?P<y>\d\d)/(?P<mo>0[1-9]|1[0-2])/(?P<d>0[1-9]|[12]\d|3[01]) " + _HMS,  # Spark, Hadoop
        r"(?<!\d)(?P<d>0[1-9]|[12]\d|3[01])/(?P<mo>0[1-9]|1[0-2])/(?P<y>20\d\d)[ ,T]{1,2}" + _HMS,
        r"\b"
        + _MONTH
        + r"\s{1,2}(?P<d>\d{1,2}),? "
        + _HMS
        + r"(?: (?:[A-Z]{3,5} )?(?P<y>20\d\d))?",  # syslog, ctime
        r"\b(?P<d>\d{1,2})[ /-]" + _MONTH + r"[ /-](?P<y>20\d\d)[ :T]" + _HMS,
        r"(?<![\d/-])(?P<mo>0[1-9]|1[0-2])[-/](?P<d>0[1-9]|[12]\d|3[01]) " + _HMS,  # megatron, mmcv
        r"(?<![\w.])(?P<e>1[5-9]\d{8}|2\d{9})(?:\.(?P<f>\d{1,9}))?(?![\w.])(?=[\s:\]\),]|$)",  # seconds since 1970
        r"^[\[(]?" + _HMS + r"(?=[\s\]):|,]|$)",  # of a day that the log does not name
    )
)
_NEAR: Final = 110
_CHEAP: Final = re.compile(r"\d\d:\d\d:\d\d|\b\d{10}\b")


def time_of(raw: str, text: str, base: float) -> float | None:
    """Seconds since 1970 of the first time near a line's beginning; None without one.

    A clock without a zone counts as UTC: lines of one log, and of ranks on one cluster, compare all the same. `base`
    (seconds since 1970 of the log's last change) gives the year, and the day, that a format leaves out.

    >>> time_of("", "E0102 00:00:01.5 file.cc:3] x", 0.0)
    86401.5
    """
    for part in (text[:_NEAR], raw[:_NEAR]) if raw != text else (text[:_NEAR],):
        if not _CHEAP.search(part):
            continue
        for pattern in _TIMES:
            found = pattern.search(part)
            if found is not None:
                return _seconds(found.groupdict(), base)
    return None


def _seconds(said: dict[str, str | None], base: float) -> float | None:
    fraction = float(f"0.{said['f']}") if said.get("f") else 0.0
    epoch = said.get("e")
    if epoch:
        return int(epoch) + fraction
    now = time.gmtime(base)
    named = said.get("mon")
    month = _MONTHS[named] if named else int(said.get("mo") or now.tm_mon)
    day = int(said.get("d") or now.tm_mday)
    year = int(said.get("y") or now.tm_year)
    year += 2000 if year < 100 else 0
    clock = (int(said["h"] or 0), int(said["mi"] or 0), int(said["s"] or 0))
    seconds = calendar.timegm((year, month, day, *clock)) + fraction
    if not said.get("y") and base and seconds > base + 86400 * 2 and said.get("d"):
        seconds = calendar.timegm((year - 1, month, day, *clock)) + fraction  # December, read in January
    zone = said.get("z")
    if zone and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        seconds -= sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return seconds if seconds >= 0 else None
