"""`gsub why --log`: what log files say of a failure. Needs neither Slurm nor the service."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from gsub.errors import FAILED, USAGE, UserError
from gsub.term import is_terminal, one_line

if TYPE_CHECKING:
    from profiler.findings import Evidence, Finding
    from prolog_epilog.failures.classify import Ended
    from prolog_epilog.failures.text import LogText

__all__ = [
    "Looked",
    "ended_as",
    "facts",
    "first_to_fail",
    "look",
    "sentence",
    "sentences",
    "where",
    "why_logs",
]

_STATES: Final = frozenset(
    {
        *(
            "BOOT_FAIL",
            "CANCELLED",
            "COMPLETED",
            "COMPLETING",
            "CONFIGURING",
            "DEADLINE",
            "FAILED",
            "NODE_FAIL",
        ),
        *(
            "OUT_OF_MEMORY",
            "PENDING",
            "PREEMPTED",
            "REQUEUED",
            "RESIZING",
            "REVOKED",
            "RUNNING",
            "SPECIAL_EXIT",
        ),
        *("STOPPED", "SUSPENDED", "TIMEOUT"),
    }
)
"""Slurm's states and flags of ended jobs, as sacct and squeue write them (22.05 to 26.05)."""
_EXIT: Final = re.compile(r"(\d{1,3})(?::(\d{1,3}))?")
_SURE: Final = ((0.85, "surely"), (0.6, "probably"), (0.0, "perhaps"))


def ended_as(state: str | None, exit_code: str | None) -> Ended:
    """How a run ended, as the user says. Raises UserError for words that are none of Slurm's."""
    from prolog_epilog.failures.classify import Ended

    word = None
    if state is not None:
        # sacct: "CANCELLED by 1000", "CANCELLED+"
        word = state.strip().upper().partition(" ")[0].rstrip("+")
        if word not in _STATES:
            raise UserError(
                f"{state!r} is no state of a job",
                fix="give it as sacct does: FAILED, TIMEOUT, OUT_OF_MEMORY, CANCELLED, NODE_FAIL, PREEMPTED, COMPLETED",
                exit_code=USAGE,
            )
    code = signal = None
    if exit_code is not None:
        found = _EXIT.fullmatch(exit_code.strip())
        if not found or int(found[1]) > 255 or int(found[2] or 0) > 127:
            raise UserError(
                f"{exit_code!r} is no exit code",
                fix="give 0 to 255, or Slurm's pair like 0:9",
                exit_code=USAGE,
            )
        code = int(found[1])
        signal = int(found[2]) or None if found[2] else None
    return Ended(word, code, signal)


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found in `file` (several: the ranks of one job); `unread` says why it could not be read, else ""."""

    file: str
    finding: Finding
    unread: str = ""


def why_logs(files: Sequence[str], ended: Ended, *, together: bool, as_json: bool) -> int:
    """Classify and print; returns the exit code: 1 where a file could not be read."""
    code = 0
    terminal = is_terminal(sys.stdout)
    for place, looked in enumerate(look(files, ended, together=together)):
        if as_json:
            print(json.dumps(facts(looked)), flush=True)
        else:
            if place:
                print()
            print("\n".join(sentences(looked, heading=len(files) > 1 or terminal)), flush=True)
        if looked.unread:
            code = FAILED
            print(f"gsub: cannot read {one_line(looked.file)}: {one_line(looked.unread)}", file=sys.stderr)
    return code


def look(files: Sequence[str], ended: Ended, *, together: bool = False) -> Iterator[Looked]:
    """Each file's finding; with `together` one of them all."""
    from gsub.why_rules import site_rules
    from prolog_epilog.failures.classify import classify

    rules = site_rules()
    if not together:
        for file in files:
            log, unread = _read(file)
            yield Looked(file, classify([log] if log else [], ended, rules), unread)
        return
    read = [_read(file) for file in files]
    logs = [log for log, _ in read if log]
    unread = "; ".join(f"{file}: {why}" for file, (_, why) in zip(files, read, strict=True) if why)
    yield Looked(", ".join(files), classify(logs, ended, rules), unread)


def _read(file: str) -> tuple[LogText | None, str]:
    """A log's text, or why there is none."""
    from prolog_epilog.failures.reading import Unseen, read_log

    if file == "-":
        return (None, "standard input is closed") if sys.stdin is None else (_of_stream(sys.stdin.buffer), "")
    found = read_log(os.path.expanduser(file))  # noqa: PTH111 - a Path would change the name that is shown
    return (None, found.why) if isinstance(found, Unseen) else (found, "")


def _of_stream(stream: IO[bytes]) -> LogText:
    """What comes on a stream, of which only the two ends are kept, as of a file."""
    from prolog_epilog.failures.reading import HEAD, TAIL
    from prolog_epilog.failures.text import LogText

    first = stream.read(HEAD)
    rest: deque[bytes] = deque()
    held = left_out = 0
    while chunk := stream.read(1 << 20):
        rest.append(chunk)
        held += len(chunk)
        while held - len(rest[0]) >= TAIL:
            left_out += len(rest[0])
            held -= len(rest.popleft())
    if not left_out:
        return LogText.of("-", first + b"".join(rest))
    unseen = (f"standard input: {left_out} bytes amid it were not looked at",)
    return LogText.of("-", first, b"".join(rest), unseen=unseen)


def facts(looked: Looked) -> dict[str, object]:
    """The finding for `--json`: the keys that programs rely on first."""
    finding = looked.finding
    first = finding.evidence[0] if finding.evidence else None
    told: dict[str, object] = {
        "file": looked.file,
        "reason": finding.reason,
        "confidence": round(finding.confidence, 3),
        "evidence": first.text if first else None,
        "line": first.line if first else None,
        "tier": finding.tier,
        "advice": finding.advice or None,
        "signature": finding.signature or None,
        "rank": finding.rank,
        "node": finding.node or None,
        "more": [_more(one) for one in finding.evidence[1:]],
        "unseen": [*finding.unseen, *([looked.unread] if looked.unread else [])],
        "remarks": list(finding.remarks),
        "checkpoint": finding.checkpoint or None,
        "resumes": finding.resumes,
    }
    if first is not None and first.line is None and first.from_end is not None:
        told["from_end"] = first.from_end
    return told


def _more(one: Evidence) -> dict[str, object]:
    return {"file": one.file or None, "line": one.line, "text": one.text, "rank": one.rank, "what": one.what}


def sentences(looked: Looked, *, heading: bool = False) -> list[str]:
    """The finding as a person reads it."""
    finding = looked.finding
    lines = [one_line(looked.file)] if heading else []
    lines.append(f"  {sentence(finding)}")
    lines += [f"    {where(one)}{one_line(one.text)}" for one in finding.evidence[:4]]
    if first := first_to_fail(finding):
        lines.append(f"  first to fail: {first}")
    if kept := saved(finding):
        lines.append(f"  saved: {kept}")
    if finding.advice:
        lines.append(f"  try: {one_line(finding.advice)}")
    lines += [f"  note: {one_line(remark)}" for remark in finding.remarks]
    lines += [f"  not seen: {one_line(gap)}" for gap in finding.unseen]
    return lines


def sentence(finding: Finding) -> str:
    """The reason in a sentence; of one that this release does not know only its name."""
    from prolog_epilog.failures.taxonomy import NO_SIGNATURE, NONE, REASONS

    if finding.reason == NONE:
        return "it ended well: there is no failure to explain"
    if finding.reason == NO_SIGNATURE:
        return "nothing that is known says why it failed (no_signature)"
    about = f": {REASONS[finding.reason].about}" if finding.reason in REASONS else ""
    return f"{finding.reason}, {certainty(finding)}{about}"


def first_to_fail(finding: Finding) -> str:
    """The rank and the node that failed first: `rank 3 on n2`; "" where neither is known."""
    rank = f"rank {finding.rank}" if finding.rank is not None else ""
    return one_line(f"{rank} on {finding.node}" if finding.node else rank)


def saved(finding: Finding) -> str:
    """The last checkpoint of a run that failed, and what is known of going on from it; "" without one."""
    from prolog_epilog.failures.taxonomy import NONE

    if not finding.checkpoint or finding.reason == NONE:
        return ""
    goes_on = "its script goes on from there" if finding.resumes else "that its script loads it is not known"
    return one_line(f"{finding.checkpoint} ({goes_on})")


def certainty(finding: Finding) -> str:
    """A confidence in a word."""
    return next(word for least, word in _SURE if finding.confidence >= least)


def where(one: Evidence) -> str:
    """Where a line of evidence stands: `train.log:17: `, or by whom it was said."""
    if not one.file:
        return f"{one_line(one.what)}: "
    name = one_line(one.file.rpartition("/")[2])
    if one.line is not None:
        return f"{name}:{one.line}: "
    return f"{name}, line {one.from_end} from its end: " if one.from_end is not None else f"{name}: "
