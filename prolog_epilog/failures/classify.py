"""The logs of an attempt to one finding: what rules and structure say of them, chosen from, put into words.

>>> from prolog_epilog.failures.text import LogText
>>> log = LogText.of("train.log", b"Traceback (most recent call last):\\n"
...     b'  File "train.py", line 3, in <module>\\n    import einops\\n'
...     b"ModuleNotFoundError: No module named 'einops'\\n")
>>> found = classify([log])
>>> found.reason, found.evidence[0].line
('import_error', 4)
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import msgspec

from profiler.findings import Evidence, Finding, Tier
from prolog_epilog.failures import elastic, trace
from prolog_epilog.failures.advice import ADVICE
from prolog_epilog.failures.checkpoint import last_saved, save_of
from prolog_epilog.failures.choose import Choice, choose
from prolog_epilog.failures.exits import reason_of_exit
from prolog_epilog.failures.judge import SlurmWord, judge
from prolog_epilog.failures.mask import mask
from prolog_epilog.failures.matcher import Hit, Matcher
from prolog_epilog.failures.naming import Namer
from prolog_epilog.failures.signature import Rules, load
from prolog_epilog.failures.signs import Case, Counter, Mark, Save, Sign, counter
from prolog_epilog.failures.taxonomy import NO_SIGNATURE
from prolog_epilog.failures.text import Line, LogText, decoded

__all__ = ["Ended", "case_of", "classify", "fingerprint"]

_TEXT: Final = 600
_LEAD: Final = 200  # characters of a long line that are quoted before the words that decided, and of those
_BEFORE, _BEHIND, _MOST = 200, 400, 4000
"""Lines around a sign, and in all, in which counts are looked for."""
_SIGNS: Final = 1000
"""Signs, and marks, of all logs together that are weighed: every step sets them against one another."""
_LINES: Final = 1500
"""Lines that may be of a traceback, from the start of all logs together, and as many from their ends."""
_OTHERS: Final = 5
"""Further lines that a finding quotes."""
_CLOCK: Final = 60
"""Lines back to which a line without a time takes that of another."""
# NCCL and RCCL call their errors WARN.
_MILD: Final = re.compile(
    r"^.{0,80}?(?:(?<!CCL )\b(?:WARN|WARNING|INFO|DEBUG|NOTICE)\b|\[[WI] |: [WI] |\b[WI]\d{4} \d\d:|"
    r"^[Ww]arning:|\w+Warning:)"
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended, as far as the caller knows: Slurm's state, the exit code, the signal."""

    state: str | None = None
    exit_code: int | None = None
    signal: int | None = None


@functools.lru_cache(maxsize=4)
def _tools(rules: Rules) -> tuple[Matcher, Namer]:
    return Matcher(rules), Namer(rules)


def classify(logs: Sequence[LogText], ended: Ended = Ended(), rules: Rules | None = None) -> Finding:
    """The one reason that these logs of one attempt give: those of its ranks, in any order.

    `none` for a run that ended well, `no_signature` where nothing says why it did not.
    """
    unseen = tuple(said for log in logs for said in log.unseen)[:32]
    if not any(log.data.strip() for log in logs):
        silent = Finding(NO_SIGNATURE, unseen=unseen, remarks=("The log is empty.",) if logs else ())
        return _joined(silent, ended)
    case = case_of(logs, rules)
    finding = _finding(logs, case, choose(case), unseen)
    if (saved := last_saved(case.saves, logs)) is not None:
        finding = msgspec.structs.replace(finding, checkpoint=saved.path, resumes=saved.ours)
    return _joined(finding, ended)


def _joined(finding: Finding, ended: Ended) -> Finding:
    if ended == Ended():
        return finding
    return judge(finding, SlurmWord(ended.state or "", ended.exit_code, ended.signal), ())


def case_of(logs: Sequence[LogText], rules: Rules | None = None) -> Case:
    """All signs, marks, counts and checkpoints of these logs."""
    matcher, namer = _tools(rules if rules is not None else load())
    signs: list[Sign] = []
    marks: list[Mark] = []
    saves: list[Save] = []
    progress: list[tuple[Counter, ...]] = []
    for number, given in enumerate(logs):
        log = given
        said = elastic.error_file(log.data)
        if said is not None:
            log = LogText.of(log.name, (said.callstack or said.message).encode())
        found, kept, named = _read(number, log, matcher, namer, max(_LINES // len(logs), 60))
        if len(logs) > 1:
            found = [sign if sign.at is not None else replace(sign, at=_time(log, sign)) for sign in found]
        if said is not None and said.at is not None:
            found = [replace(sign, at=said.at) for sign in found]
        signs += _ends_of(found, _SIGNS // len(logs))
        marks += _ends_of(kept, _SIGNS // len(logs))
        progress.append(_progress(log, found))
        saves += named
    lengths = tuple(len(log) for log in logs)
    return Case(tuple(signs), tuple(marks), tuple(progress), lengths, saves=tuple(saves))


def _read(
    number: int, log: LogText, matcher: Matcher, namer: Namer, most: int
) -> tuple[list[Sign], list[Mark], list[Save]]:
    hits = matcher.hits(log)
    benign = {hit.index for hit in hits if hit.signature.tier == "benign"}
    chains = trace.traces(log, most)
    quoted = _quoted(log, chains)
    signs: list[Sign] = []
    marks: list[Mark] = []
    saves: list[Save] = []
    for hit in hits:
        rule = hit.signature
        if hit.index in benign:
            continue
        if rule.tier in ("saving", "saved"):
            if hit.index not in quoted and (save := save_of(number, hit)) is not None:
                saves.append(save)
        elif rule.tier in ("handled", "cleanup", "ended_well"):
            marks.append(Mark(rule.tier, hit.line, number, rule.weight, rule.name))
        elif rule.tier not in ("benign", "progress") and hit.index not in quoted:
            signs.append(_sign_of(number, hit))
    for serial, chain in enumerate(chains):
        signs += namer.signs(number, serial, chain, log)
    for row in elastic.failures(log):
        sign = _sign_of_row(number, row)
        if sign is not None:
            signs.append(sign)
    return signs, marks, saves


def _sign_of(number: int, hit: Hit) -> Sign:
    rule, line = hit.signature, hit.line
    return Sign(
        rule.name,
        rule.reason,
        rule.tier,  # type: ignore[arg-type]  # the others are marks
        rule.weight,
        line,
        number,
        rule.advice,
        rule.tool,
        line.index,
        mild=bool(_MILD.match(line.raw[:200])),
        at=line.time,
        rank=line.rank,
        node=line.node,
        words=_words(hit) if len(line.text) > _TEXT else "",
    )


def _words(hit: Hit) -> str:
    return decoded(hit.text.data[hit.start : min(hit.end, hit.start + _LEAD)])


def _sign_of_row(number: int, row: elastic.ChildFailure) -> Sign | None:
    """What torchrun's table says of a worker: its signal, or only that it failed."""
    if not row.root or row.exitcode is None:
        return None
    reason = reason_of_exit(row.exitcode, row.signal or None)
    if row.exitcode == 127 or not reason:
        reason = ""
    # Its rank died first. A watchdog's own abort says nothing; a segmentation fault is what the others waited for.
    first = reason == "invalid_memory_access"
    return Sign(
        "torchrun-root-cause",
        reason,
        "implicit" if first else "cascade" if reason else "failed_end",
        8 if first else 4,
        row.line,
        number,
        tool="torchrun",
        first=row.line.index,
        rank=row.rank,
        node=row.host,
    )


_Placed = TypeVar("_Placed", Sign, Mark)


def _ends_of(found: list[_Placed], most: int) -> list[_Placed]:
    """The first and the last of many: a log that is nothing but failures may not cost more than another."""
    half = max(most // 2, 20)
    if len(found) <= 2 * half:
        return found
    ordered = sorted(found, key=lambda one: one.index)
    return ordered[:half] + ordered[-half:]


def _time(log: LogText, sign: Sign) -> float | None:
    """The time of the line before a sign that has one."""
    for index in range(sign.first - 1, max(-1, sign.first - _CLOCK), -1):
        at = log.line(index).time
        if at is not None:
            return at
    return None


def _quoted(log: LogText, chains: Sequence[tuple[trace.Raised, ...]]) -> frozenset[int]:
    """The lines of stacks: they quote the program's source, which may hold the words of any error."""
    quoted: set[int] = set()
    for chain in chains:
        for raised in chain:
            for index in range(raised.first, min(raised.at.index, raised.first + 1200)):
                text = log.line(index).text
                if text[:1] in (" ", "\t", "|", "│") or text.startswith(("File ", "Traceback", "->", "--")):
                    quoted.add(index)
    return frozenset(quoted)


def _progress(log: LogText, signs: Sequence[Sign]) -> tuple[Counter, ...]:
    """The counts around signs."""
    wanted: set[int] = set()
    for sign in signs:
        wanted.update(range(max(0, sign.first - _BEFORE), sign.first))
        wanted.update(range(sign.index + 1, min(len(log), sign.index + _BEHIND)))
        if len(wanted) > _MOST:
            break
    wanted.update(range(min(len(log), _BEFORE)))
    return tuple(found for index in sorted(wanted) if (found := counter(index, log.line(index).text)))


def _finding(logs: Sequence[LogText], case: Case, choice: Choice, unseen: tuple[str, ...]) -> Finding:
    sign = choice.sign
    progressed = _progressed(case, sign)
    remarks = tuple(mask(said)[:_TEXT] for said in choice.remarks)[:16]
    if sign is None:
        marks = sorted(
            (mark for mark in case.marks if mark.kind == "ended_well"),
            key=lambda mark: (mark.log, mark.index),
        )
        said = (_evidence(logs[marks[-1].log], marks[-1].line),) if marks and not choice.weak else ()
        confidence = 0.9 if said else 0.5
        return Finding(
            choice.reason,
            confidence,
            "none",
            said,
            signature=marks[-1].name if said else "",
            unseen=unseen,
            remarks=remarks,
            progressed=progressed,
        )
    evidence = tuple(_quotes(logs, choice))
    tier: Tier = "none" if sign.tier == "failed_end" else sign.tier
    rank, node = _where(case, sign)
    return Finding(
        choice.reason,
        _confidence(logs, choice, sign),
        tier,
        evidence,
        advice=(sign.advice or ADVICE.get(choice.reason, ""))[:_TEXT],
        signature=sign.name[:128],
        fingerprint=fingerprint(choice.reason, sign.line.text),
        rank=rank,
        node=node[:128],
        unseen=unseen,
        remarks=remarks,
        progressed=progressed,
    )


def _quotes(logs: Sequence[LogText], choice: Choice) -> Iterator[Evidence]:
    """The deciding line, then a line each of the other reasons."""
    sign = choice.sign
    if sign is None:
        return
    yield _evidence(logs[sign.log], sign.line, sign)
    told = {sign.reason}
    for other in choice.others:
        if other.reason and other.reason not in told and len(told) <= _OTHERS:
            told.add(other.reason)
            yield _evidence(logs[other.log], other.line, other)


def _evidence(log: LogText, line: Line, sign: Sign | None = None) -> Evidence:
    rank = line.rank if sign is None else sign.rank
    node = line.node if sign is None else sign.node
    at = line.time if sign is None or sign.at is None else sign.at
    written = elastic.error_file(log.data) is not None  # JSON: its lines are those of the traceback in it
    return Evidence(
        _excerpt(mask(line.text.strip()), sign.words if sign is not None else ""),
        log.name[:4096],
        None if written else line.number,
        None if written or line.number is not None else line.from_end,
        rank if rank is None or 0 <= rank <= 1 << 24 else None,
        node[:128],
        at if at is not None and 0 <= at < 4e9 else None,
        "error file" if written else "log",
    )


def _excerpt(masked: str, words: str) -> str:
    """What of a line is quoted: its beginning, or of a long one the words that decided and a little before them.

    Masked before it is cut: what is left of a secret without its name is not known for one.
    """
    at = masked.find(words) if words and len(masked) > _TEXT else 0
    if at + min(len(words), _LEAD) <= _TEXT:
        return masked[:_TEXT]
    return f"…{masked[at - _LEAD : at - _LEAD + _TEXT - 1]}"


def _where(case: Case, sign: Sign) -> tuple[int | None, str]:
    """The rank and the node that failed first: of the deciding line, else as torchrun's table says."""
    rank, node = sign.rank, sign.node
    if sign.reason == "node_failure" and _TOLD_BY_THE_LIVING.search(sign.line.text):
        named = (
            _FAILED_NODE.search(other.line.text) for other in case.signs if other.reason == "node_failure"
        )
        return None, next((found[1] for found in named if found), "")
    if rank is None or not node:
        for other in case.signs:
            if other.name == "torchrun-root-cause" and (rank is None or other.rank == rank):
                return (other.rank if rank is None else rank), node or other.node
    return rank, node


def _progressed(case: Case, sign: Sign | None) -> bool | None:
    """Whether work was done before the sign."""
    log = sign.log if sign is not None else 0
    if not case.progress:
        return None
    index = sign.first if sign is not None else None
    return any(index is None or count.index < index for count in case.progress[log]) or None


_TOLD_BY_THE_LIVING: Final = re.compile(r"CANCELLED AT .*DUE TO NODE FAILURE")
"""slurmstepd's word on a node that lives: the one that failed is another, which `srun` names."""
_FAILED_NODE: Final = re.compile(r"Node failure on ([A-Za-z0-9][\w.-]{0,200})")
_BASE: Final = {"decisive": 0.95, "explicit": 0.75, "implicit": 0.55, "cascade": 0.4, "failed_end": 0.5}


def _confidence(logs: Sequence[LogText], choice: Choice, sign: Sign) -> float:
    """From the tier, and what speaks for and against: stated in docs/verdicts.md, no more precise than that."""
    value = _BASE[sign.tier]
    if sign.tier in ("explicit", "implicit"):
        if sign.weight >= 6:
            value += 0.1
        elif sign.weight <= 3:
            value -= 0.1
        if sign.fatal:
            value += 0.1
        if sign.mild:
            value -= 0.1
        value -= 0.1 * min(len(choice.rivals), 2)
    if choice.weak:
        value -= 0.3
    return round(min(max(value, 0.1), 0.95), 2)


_WASHED: Final = (
    (re.compile(r"https?://\S+"), "<url>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{13,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?"), "<time>"),
    (re.compile(r"(?:(?<=[\s'\"(=\[:])|^)(?:/[\w.@%+~-]+){2,}/?"), "<path>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<n>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\d+(?:\.\d+)?"), "<n>"),
)


def fingerprint(reason: str, text: str) -> str:
    """The same for the same evidence in another run: numbers, times, ids and paths are taken out.

    >>> a = fingerprint("missing_input", "No such file: '/data/a1/x.npz' (pid 77)")
    >>> a == fingerprint("missing_input", "No such file: '/data/b2/y.npz' (pid 9)")
    True
    """
    washed = mask(text)
    for pattern, stand_in in _WASHED:
        washed = pattern.sub(stand_in, washed)
    washed = " ".join(washed.split())
    return hashlib.sha256(f"{reason}\0{washed}".encode(errors="replace")).hexdigest()[:16]
