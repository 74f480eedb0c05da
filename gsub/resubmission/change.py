"""A command line of sbatch with some of its options set anew or taken out, and all other words as they were typed.

>>> from gsub.resubmission.submit_line import read_words
>>> from gsub.sbatch_options import Table
>>> table = Table.of_all()
>>> given = read_words(("-N2", "--mem", "32G", "-HQ", "train.sh", "--mem"), table)
>>> changed(given, table, [Change("mem", "48G", "32G", "more")], leave_out=("hold",)).words
('-N2', '-Q', '--mem=48G', 'train.sh', '--mem')
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from gsub.argv import HETJOB_SEPARATOR, Setting
from gsub.resubmission.submit_line import Reading
from gsub.sbatch_options import ALIASES, Table

__all__ = ["Change", "changed"]

_EXCLUSIVE: Final = (frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),)
"""Options of which sbatch takes one only."""


@dataclass(frozen=True, slots=True)
class Change:
    """One option of the command line: its name without dashes, its new value, the one before ("" none), and why."""

    name: str
    value: str
    was: str
    why: str

    @property
    def option(self) -> str:
        """As it is typed: `--mem=48G`."""
        return f"--{self.name}={self.value}"

    @property
    def before(self) -> str:
        """What stood there: `--mem=32G`, or nothing."""
        return f"--{self.name}={self.was}" if self.was else "nothing"


def changed(
    given: Reading, table: Table, changes: Sequence[Change], *, leave_out: Collection[str] = ()
) -> Reading:
    """The command line with the changes at the end of its options, and without the options of `leave_out`."""
    gone = {*leave_out, *(change.name for change in changes)}
    for alike in _EXCLUSIVE:
        if gone & alike and any(change.name in alike for change in changes):
            gone |= alike
    kept = list(_without(given.options, table, gone))
    ended = kept[-1:] == ["--"]
    if ended:
        kept.pop()
    kept += [change.option for change in changes]
    if ended:
        kept.append("--")
    settings = tuple(setting for setting in given.settings if setting.name not in gone)
    settings += tuple(Setting(change.name, change.value) for change in changes)
    return replace(given, options=tuple(kept), settings=settings)


def _without(words: Sequence[str], table: Table, gone: AbstractSet[str]) -> Iterator[str]:
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word in ("--", HETJOB_SEPARATOR) or not word.startswith("-"):
            yield word
            continue
        names, takes_next = _options(word, table)
        value = [words[at]] if takes_next and at < len(words) else []
        at += len(value)
        if gone.isdisjoint(names):
            yield from (word, *value)
        elif not word.startswith("--"):
            yield from _cluster(word, value, table, gone)


def _options(word: str, table: Table) -> tuple[list[str], bool]:
    """The options in one word, and whether the value of the last one is the next word."""
    if word.startswith("--"):
        name, equals, _ = word[2:].partition("=")
        found = table.candidates(name)
        needs = {table.long[candidate] for candidate in found} == {"required"}
        full = found[0] if len(found) == 1 else name
        return [ALIASES.get(full, full)], needs and not equals
    names = []
    for place, letter in enumerate(word[1:], 2):
        option = table.short.get(letter)
        if option is None:
            continue
        names.append(option.name)
        if option.argument != "none":
            return names, option.argument == "required" and not word[place:]
    return names, False


def _cluster(word: str, value: Sequence[str], table: Table, gone: AbstractSet[str]) -> Iterator[str]:
    """A word of short options (`-HQ`, `-N2`) without some of them."""
    left = ""
    for place, letter in enumerate(word[1:], 2):
        option = table.short.get(letter)
        stays = option is None or option.name not in gone
        if option is not None and option.argument != "none":
            if stays:
                yield from (f"-{left}{letter}{word[place:]}", *value)
            elif left:
                yield f"-{left}"
            return
        left += letter if stays else ""
    if left:
        yield f"-{left}"
