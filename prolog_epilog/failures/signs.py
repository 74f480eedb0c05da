"""What a log was found to say, before one reason is chosen: signs of failures, marks of endings, work going on."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from prolog_epilog.failures.text import Line

__all__ = [
    "TIERS",
    "Case",
    "Counter",
    "Mark",
    "MarkKind",
    "Save",
    "Sign",
    "SignTier",
    "before_in_time",
    "counter",
    "went_on",
]

SignTier: TypeAlias = Literal["decisive", "explicit", "implicit", "cascade", "failed_end"]
TIERS: Final = {"decisive": 4, "explicit": 3, "implicit": 2, "cascade": 1, "failed_end": 0}
"""How much a sign of each says: the highest that is left counts."""
MarkKind: TypeAlias = Literal["handled", "cleanup", "ended_well"]


@dataclass(frozen=True, slots=True)
class Sign:
    """A line that says what went wrong: by the rule `name`, or by the structure of a traceback.

    `log` is the number of its log, `first` the index of the first line of what it ends (a traceback's head), `fatal`
    whether it ended its process (an exception that nothing caught), `chain` its traceback's number (-1: none), `mild`
    whether its line was logged as a warning or less, `tidying` whether its stack is of clean-up. `at` is the time in
    seconds, of this line or of one before it. `words` is what of a long line the rule matched, "" of one that is not.
    """

    name: str
    reason: str
    tier: SignTier
    weight: int
    line: Line
    log: int = 0
    advice: str = ""
    tool: str = ""
    first: int = 0
    fatal: bool = False
    chain: int = -1
    mild: bool = False
    tidying: bool = False
    at: float | None = None
    rank: int | None = None
    node: str = ""
    words: str = ""

    @property
    def index(self) -> int:
        """The index of its line in its log."""
        return self.line.index


def before_in_time(one: Sign, other: Sign) -> bool:
    """Whether one sign is earlier: by their lines in one log, else by their times, else by the order of the logs."""
    if one.log == other.log:
        return one.index < other.index
    if one.at is not None and other.at is not None and one.at != other.at:
        return one.at < other.at
    return (one.log, one.index) < (other.log, other.index)


@dataclass(frozen=True, slots=True)
class Mark:
    """A line that says how things went on: dealt with, cleaning up, ended well. `weight` as a signature's."""

    kind: MarkKind
    line: Line
    log: int = 0
    weight: int = 5
    name: str = ""

    @property
    def index(self) -> int:
        """The index of its line in its log."""
        return self.line.index


@dataclass(frozen=True, slots=True)
class Save:
    """A line that names a checkpoint: where it is, whether its saving had ended (`done`) or was yet to come.

    `ours`: the line is of `gsub.train`, whose scripts go on from their checkpoints.
    """

    path: str
    index: int
    log: int = 0
    done: bool = True
    ours: bool = False
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Counter:
    """A line that shows work going on: what is counted, how far it is, of how many (0: not said)."""

    index: int
    kind: str
    done: int
    total: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """All that the logs of an attempt say. `set_aside` is what a step took out, with its sentence."""

    signs: tuple[Sign, ...]
    marks: tuple[Mark, ...] = ()
    progress: tuple[tuple[Counter, ...], ...] = ()
    lengths: tuple[int, ...] = ()
    set_aside: tuple[tuple[Sign, str], ...] = ()
    ended_well: bool = False
    remarks: tuple[str, ...] = field(default=())
    saves: tuple[Save, ...] = ()

    def without(self, taken: Iterable[Sign], why: str) -> Case:
        """This case without some of its signs."""
        gone = {id(sign) for sign in taken}
        if not gone:
            return self
        kept = tuple(sign for sign in self.signs if id(sign) not in gone)
        aside = tuple((sign, why) for sign in self.signs if id(sign) in gone)
        return Case(
            kept,
            self.marks,
            self.progress,
            self.lengths,
            self.set_aside + aside,
            self.ended_well,
            self.remarks,
            self.saves,
        )

    def work_after(self, sign: Sign, until: int | None = None) -> bool:
        """Whether the same count goes on behind a sign (up to a line): the process that it speaks of survived."""
        if not 0 <= sign.log < len(self.progress):
            return False
        return went_on(self.progress[sign.log], sign.first or sign.index, sign.index, until)

    def counts_after(self, sign: Sign) -> int:
        """How many lines behind a sign show work, whosever it is."""
        if not 0 <= sign.log < len(self.progress):
            return 0
        return sum(count.index > sign.index for count in self.progress[sign.log])


_BAR: Final = re.compile(
    r"(?P<kind>[A-Za-z][\w ]{0,20}?)?:?\s*\d{1,3}%\|.{0,120}?\|\s*(?P<done>\d+)/(?P<total>\d+)"
)
_STEP: Final = re.compile(
    r"\b(?P<kind>(?i:global[_ ]?step|steps?|iter(?:ation)?s?|epochs?|batch(?:es)?|episode|update)s?)\b"
    r"[\]\s:=#\[(]{1,12}(?P<done>\d{1,12})(?:\s*(?:/|of)\s*(?P<total>\d{1,12}))?"
)


def counter(index: int, text: str) -> Counter | None:
    """The count that a line shows, if it shows one.

    >>> counter(3, "Epoch 7:  33%|###   | 106/598 [40:10<50:24, 2.81it/s]")
    Counter(index=3, kind='bar Epoch 7', done=106, total=598)
    >>> counter(4, "step 8835 | loss 7.4850")
    Counter(index=4, kind='step', done=8835, total=0)
    """
    if "%|" in text:
        bar = _BAR.search(text)
        if bar:
            return Counter(
                index, f"bar {(bar['kind'] or '').strip()}".strip(), int(bar["done"]), int(bar["total"])
            )
    step = _STEP.search(text)
    if step is None:
        return None
    return Counter(index, step["kind"].lower(), int(step["done"]), int(step["total"] or 0))


def went_on(progress: Sequence[Counter], first: int, last: int, until: int | None = None) -> bool:
    """Whether work goes on behind line `last` (up to line `until`), as one loop shows it.

    One number after another is no proof: several loops may print, and lines of different ranks mix. Asked for are four
    counts of one kind and total that all rise, and go on from where the last one before line `first` stood; or five of
    a loop that began behind.
    """
    before: dict[tuple[str, int], int] = {}
    after: dict[tuple[str, int], list[int]] = {}
    for count in progress:
        key = (count.kind, count.total)
        if count.index < first:
            before[key] = count.done
        elif count.index > last and (until is None or count.index < until):
            after.setdefault(key, []).append(count.done)
    for key, done in after.items():
        start = before.get(key)
        series = done if start is None else [start, *done]
        if len(series) >= 5 and all(a < b for a, b in itertools.pairwise(series)):
            return True
    return False
