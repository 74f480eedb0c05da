"""Steps in a second, read from what training loops print: progress bars and log lines. Pure.

Each format is a row of `FORMATS`. A line is taken for the first that fits; its count of steps, its label (what stands
before the count) and its total make it part of a stream, and the stream that counts on most often is the training:
bars of epochs count slower, bars of validation, downloads and the like are named so and left out. The rate comes from
the counts and the times at which the lines were written; where these say nothing, from what the lines state
themselves.

Lines are users' text: of each only a part is looked at, numbers have bounded lengths, and no pattern can backtrack
beyond these bounds. What is printed is taken at its word, as it decides about the user's own job alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Final

from profiler.probing import measure

__all__ = ["FORMATS", "Format", "Mark", "StepRate", "mark", "step_rate"]

_HEAD, _TAIL = 240, 560  # characters of a line that are looked at, from its beginning and from its end
_LEAST, _MOST = 1e-7, 1e7  # seconds of a step that may be meant
_MAX_MARKS: Final = 50_000
_MAX_STREAMS: Final = 64

_ESCAPE: Final = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_COUNT: Final = r"(?<![\d.])(?P<step>\d{1,12})/\s{0,12}(?P<total>\d{1,12})"
_NUMBER: Final = r"\d{1,9}(?:\.\d{1,9})?"
_CLOCK: Final = r"(?:\d{1,4}:){1,3}\d\d"
_OTHERS: Final = re.compile(
    r"valid|\bval\b|eval|\btest|sanity|predict|infer|download|upload|extract|loading|shards|tokeni|\bmap\b|filter|"
    r"generat|sampling|saving|resolv|preprocess|cach",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of line: a pattern with the groups `step` and, where the line has them, `total`, `elapsed` (a clock),
    `rate` (steps a second), `each` (time of a step) with `unit` (of that time). `of` is what a step is.
    """

    name: str
    pattern: re.Pattern[str]
    of: str = "step"


def _row(name: str, pattern: str, of: str = "step") -> Format:
    return Format(name, re.compile(pattern, re.IGNORECASE), of)


FORMATS: Final = (
    # 45%|####5     | 450/1000 [01:30<01:50,  5.00it/s, loss=0.3]; Lightning's and the HF Trainer's bars are such
    _row(
        "tqdm",
        _COUNT + rf" \[(?P<elapsed>{_CLOCK})<[\d:?]{{1,16}}(?:, {{1,12}}(?:(?P<rate>{_NUMBER})\w{{1,12}}/s|"
        rf"(?P<each>{_NUMBER})(?P<unit>s)/\w{{1,12}}))?",
    ),
    # 450it [01:30,  5.00it/s]
    _row(
        "tqdm",
        rf"(?<![\d./])(?P<step>\d{{1,12}})it \[(?P<elapsed>{_CLOCK}), {{1,12}}(?:(?P<rate>{_NUMBER})it/s|"
        rf"(?P<each>{_NUMBER})(?P<unit>s)/it)",
    ),
    # Epoch 0/9 ------ 30/250 0:00:10 . 0:01:15 2.93it/s
    _row("lightning", _COUNT + rf" (?P<elapsed>{_CLOCK}) \S {_CLOCK} (?P<rate>{_NUMBER})it/s"),
    # iteration      100/  500000 | consumed samples: ... | elapsed time per iteration (ms): 1234.5 |
    _row(
        "megatron",
        rf"\biteration\s{{1,12}}{_COUNT} \|(?:.{{0,400}}?elapsed time per iteration \((?P<unit>ms|s)\): "
        rf"(?P<each>{_NUMBER}))?",
    ),
    # 125/1875 [=>......] - ETA: 4s - loss: 0.5     1875/1875 [======] - 5s 3ms/step - loss: 0.2    and Keras 3
    _row(
        "keras",
        rf"^[\s\x08]{{0,9}}{_COUNT} \S{{1,80}}(?: -)? (?:ETA: )?[\d:hms]{{1,12}}"
        rf"(?: (?P<each>{_NUMBER})(?P<unit>us|ms|s)/(?:step|epoch))?",
    ),
    # Epoch: [0]  [  10/5004]  eta: 1:02:03  ... time: 0.35  data: 0.1 (torchvision);  Train: 0 [ 50/1251 (4%)] (timm)
    # Epoch: [0][  10/5005]<tab>Time  0.350 ( 0.600)<tab>Data ... (PyTorch's ImageNet example)
    _row(
        "imagenet",
        rf"\[\s{{0,12}}{_COUNT}(?: \(\s{{0,4}}\d{{1,3}}%\))?\]"
        rf"(?:.{{0,400}}?\btime:?\s{{1,4}}(?P<each>{_NUMBER})(?P<unit>))?",
    ),
    # iter 100: loss 2.1234, time 135.20ms, mfu 10.0%
    _row("nanogpt", rf"\biter (?P<step>\d{{1,12}}): loss .{{1,60}}?time (?P<each>{_NUMBER})(?P<unit>ms)"),
    # {'loss': 0.5, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.25}
    _row("trainer", rf"^\{{'loss': .{{1,300}}?'epoch': '?(?P<step>{_NUMBER})'?", of="epoch"),
    # step 100, Step: 100/1000, global_step=100, [iter 100]; what most own loops print
    _row(
        "plain",
        r"(?<![a-z])(?:global[_ ]?)?(?:step|iter|iteration|batch|update)s?\b[\s:=#\[]{1,4}(?P<step>\d{1,12})\b"
        r"(?![.:]\d)(?:\s?/\s?(?P<total>\d{1,12}))?",
    ),
)
"""The formats, the most telling first."""

_SECONDS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "": 1.0}


@dataclass(frozen=True, slots=True)
class Mark:
    """A count in a line: written `at` (seconds), `step` of `total`; `elapsed` is the bar's own clock in seconds,
    `each` the seconds of a step as the line states them."""

    at: float
    step: float
    total: int | None
    label: str
    format: str
    of: str = "step"
    elapsed: int | None = None
    each: float | None = None


@dataclass(frozen=True, slots=True)
class StepRate:
    """Steps a second and their standard error (None: not known).

    `times` are seconds of a step, one for each line that counted on, oldest first. `from_times` is False where only
    the lines' own figures could be used. `counts` are the lines themselves: (when it was written, steps).
    """

    rate: float
    error: float | None
    format: str
    of: str
    step: float
    total: int | None
    times: tuple[float, ...]
    from_times: bool
    counts: tuple[tuple[float, float], ...] = ()


def mark(at: float, line: str) -> Mark | None:
    """The count in a line, None for a line without one.

    >>> mark(0.0, " 45%|####5     | 450/1000 [01:30<01:50,  5.00it/s, loss=0.3]")
    Mark(at=0.0, step=450.0, total=1000, label='%||', format='tqdm', of='step', elapsed=90, each=0.2)
    """
    text = _shown(line)
    for form in FORMATS:
        if (found := form.pattern.search(text)) is not None:
            break
    else:
        return None
    groups = found.groupdict()
    label = _label(text[: found.start()])
    if _OTHERS.search(label):
        return None
    each = None
    if groups.get("rate") and float(groups["rate"]) > 0:
        each = 1 / float(groups["rate"])
    elif groups.get("each"):
        each = float(groups["each"]) * _SECONDS[(groups["unit"] or "").lower()]
    if each is not None and not _LEAST <= each <= _MOST:
        each = None
    total = groups.get("total")
    clock = groups.get("elapsed")
    return Mark(
        at,
        float(groups["step"]),
        int(total) if total else None,
        label,
        form.name,
        form.of,
        _clock(clock) if clock else None,
        each,
    )


def _shown(line: str) -> str:
    """What a terminal would show of a line, shortened: a bar draws itself anew after each carriage return."""
    if len(line) > 8 * (_HEAD + _TAIL):
        line = line[:_HEAD] + line[-4 * (_HEAD + _TAIL) :]
    text = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    text = _ESCAPE.sub("", text).rstrip()
    return text if len(text) <= _HEAD + _TAIL else text[:_HEAD] + text[-_TAIL:]


def _label(text: str) -> str:
    """What stays the same from line to line of what stands before a count."""
    return re.sub(r"[\d.,:#█▉▊▋▌▍▎▏━╸╺ \t]+", "", text[-80:])


def _clock(text: str) -> int:
    seconds = 0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds


def step_rate(lines: Iterable[tuple[float, str]]) -> StepRate | None:
    """The training's rate, from (time when it was written, line), oldest first; None where no line counts on.

    >>> lines = [(float(t), f"step {10 * t} loss 0.3") for t in range(100, 130)]
    >>> found = step_rate(lines)
    >>> round(found.rate, 6), found.format, found.step
    (10.0, 'plain', 1290.0)
    """
    streams: dict[tuple[str, str, int | None], list[Mark]] = {}
    count = 0
    for at, line in lines:
        if (found := mark(at, line)) is None:
            continue
        key = (found.format, found.label, found.total)
        if key not in streams and len(streams) >= _MAX_STREAMS:
            continue
        streams.setdefault(key, []).append(found)
        count += 1
        if count >= _MAX_MARKS:
            break
    best: StepRate | None = None
    advances = 0
    for marks in streams.values():
        steps = sum(after.step > before.step for before, after in pairwise(marks))
        if steps >= max(advances, 1) and (rate := _rate(marks)) is not None:
            best, advances = replace(rate, counts=tuple((one.at, one.step) for one in marks)), steps
    return best


def _rate(marks: Sequence[Mark]) -> StepRate | None:
    last = marks[-1]
    timed = _between([(one.at, one.step) for one in marks])
    if speed := measure(timed):
        return _made(last, speed.rate, speed.error, timed, from_times=True)
    clocked = _between([(float(one.elapsed), one.step) for one in marks if one.elapsed is not None])
    if len(timed) >= 2:
        return _made(last, 1 / median(timed), None, timed, from_times=True)
    if stated := tuple(one.each for one in marks if one.each is not None):
        # Bars smooth what they state: its scatter says nothing of how sure it is.
        return _made(last, 1 / median(stated), None, stated, from_times=False)
    if clocked:
        return _made(last, 1 / median(clocked), None, clocked, from_times=False)
    return None


def _made(
    last: Mark, rate: float, error: float | None, times: tuple[float, ...], *, from_times: bool
) -> StepRate:
    return StepRate(rate, error, last.format, last.of, last.step, last.total, times, from_times)


def _between(counts: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """Seconds of a step between lines; a count that starts anew, or a clock that stands or goes back, gives none.

    Lines that came in one go (a buffer was flushed) count as one.
    """
    times: list[float] = []
    at: float | None = None
    step = 0.0
    for time, count in counts:
        if at is None or count < step or time < at:
            at, step = time, count
        elif time > at and count > step:
            each = (time - at) / (count - step)
            if _LEAST <= each <= _MOST:
                times.append(each)
            at, step = time, count
    return tuple(times)
