"""What a smoke run came to: a value, the file in which it is kept, and the lines that a person reads."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from profiler.whole_file import put

__all__ = [
    "CHANGED",
    "VERSION",
    "Line",
    "Outcome",
    "Result",
    "forget",
    "lines",
    "read",
    "result_file",
    "write",
]

VERSION: Final = 1
CHANGED: Final = 50
"""The most files that are told as changed."""
_MOST: Final = 1 << 20  # bytes of a result file that are read
Outcome = Literal["passed", "failed", "inconclusive", "left"]
Kept = Literal["overlay", "none"]


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of evidence: the file (`output`: what the script said), its number from 1 (None: not known), the text."""

    file: str
    line: int | None
    text: str


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a smoke run ended.

    Parameters
    ----------
    smoke: the smoke job's id. real: the real job's; 0: none, or not known. dependants: the jobs that wait for this one.
    outcome: `passed`; `failed`: surely, and for a reason that has nothing to do with the number of GPUs;
        `inconclusive`: all else; `left`: the real job started first, or is gone.
    reason: of the taxonomy (prolog_epilog.failures.taxonomy); empty unless the script failed.
    sentence: why, for a person. advice: what to do, empty where nothing is known.
    evidence: the deciding line first.
    seconds: that the script ran. gpu_seconds: that GPUs were held for it. peak_memory: in bytes; 0: not known.
    steps_per_second: 0: not known. exit_code: of the script, None where it was ended by us.
    changed: files of the user's that it changed, 50 at most. changed_more: how many more.
    changed_note: what could not be looked at, a sentence, or empty.
    kept: `overlay`: what it wrote below its folder went beside, and is gone; `none`: it wrote where it always writes.
    kept_why: why there was no overlay; empty with one.
    held: the real job was held. key: of the memory of passes. points: (CPUs, steps a second) that were measured.
    said: what was found by measuring, in sentences. at: when it ended, in seconds since the epoch.
    """

    v: int = VERSION
    smoke: int
    real: int = 0
    dependants: tuple[int, ...] = ()
    mode: str = "race"
    outcome: Outcome
    reason: str = ""
    sentence: str = ""
    advice: str = ""
    evidence: tuple[Line, ...] = ()
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    gpu_seconds: Annotated[float, Meta(ge=0)] = 0.0
    peak_memory: Annotated[int, Meta(ge=0)] = 0
    steps_per_second: float = 0.0
    exit_code: int | None = None
    changed: tuple[str, ...] = ()
    changed_more: int = 0
    changed_note: str = ""
    kept: Kept = "none"
    kept_why: str = ""
    held: bool = False
    key: str = ""
    points: tuple[tuple[float, float], ...] = ()
    said: tuple[str, ...] = ()
    at: float = 0.0


def result_file(state: str | Path, smoke: int) -> Path:
    """Where the result of a smoke job is kept: STATE/smoke/SMOKEJOB/result.json."""
    return Path(state, "smoke", str(smoke), "result.json")


def write(result: Result, state: str | Path) -> Path:
    """Keep a result, whole or not at all, readable by its user only. Raises OSError."""
    target = result_file(state, result.smoke)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    told = msgspec.structs.replace(_writable(result), at=result.at or time.time())
    put(target, msgspec.json.encode(told) + b"\n", sync=True)
    return target


def read(state: str | Path, smoke: int) -> Result | None:
    """The result of a smoke job; None while there is none, or where what lies there is none."""
    try:
        with result_file(state, smoke).open("rb") as file:
            found = msgspec.json.decode(file.read(_MOST), type=Result)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    return found if found.v == VERSION else None


def forget(state: str | Path, smoke: int) -> None:
    """Take away what a job of this number left here, of another cluster or of long ago. Never raises."""
    with suppress(OSError):
        result_file(state, smoke).unlink()


def _writable(result: Result) -> Result:
    """Names of files need not be text: what is no UTF-8 of them is told with question marks."""
    return msgspec.structs.replace(
        result,
        sentence=_text(result.sentence),
        evidence=tuple(Line(_text(one.file), one.line, _text(one.text)) for one in result.evidence),
        changed=tuple(map(_text, result.changed)),
    )


def _text(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def lines(result: Result) -> list[str]:
    """The result as its user reads it, the first line with all that matters."""
    from gsub.render import duration
    from gsub.term import one_line

    told = [f"smoke {result.outcome}: {one_line(result.sentence)}"]
    for one in result.evidence[:4]:
        place = f"{one_line(one.file)}:{one.line}" if one.line else one_line(one.file)
        told.append(f"  {place}: {one_line(one.text)}")
    if result.advice:
        told.append(f"  try: {one_line(result.advice)}")
    if result.held:
        ids = " ".join(map(str, result.dependants or (result.real,)))
        told.append(f"  held: {ids}; let it run all the same: scontrol release {ids}")
    if result.outcome != "left" and result.seconds:
        spent = f"  it ran {duration(result.seconds)}, {result.gpu_seconds / 60:.1f} GPU-minutes"
        if result.peak_memory:
            spent += f", {result.peak_memory / (1 << 30):.2f} GiB at most"
        if result.steps_per_second:
            spent += f", {result.steps_per_second:.3g} steps/s"
        told.append(spent)
    told += [f"  {one_line(sentence)}" for sentence in result.said]
    return told + _files(result)


def _files(result: Result) -> list[str]:
    from gsub.render import count
    from gsub.term import one_line

    told = []
    total = len(result.changed) + result.changed_more
    if result.kept == "overlay" and total:
        told.append(
            f"  {count(total, 'file')} written beside, and gone again; nothing of yours was changed by:"
        )
    elif total:
        told.append(f"  {count(total, 'file')} of yours changed while it ran:")
    told += [f"    {one_line(path)}" for path in result.changed]
    if result.changed_more:
        told.append(f"    and {result.changed_more} more")
    if result.changed_note:
        told.append(f"  {one_line(result.changed_note)}")
    if result.kept == "none" and result.kept_why:
        told.append(f"  files were not kept apart: {one_line(result.kept_why)}")
    return told
