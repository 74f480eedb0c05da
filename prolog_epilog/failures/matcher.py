"""Finds what signatures say in a log: one search for all their literals, then each pattern on the lines that have one.

>>> from prolog_epilog.failures.signature import Rules, Signature
>>> oom = Signature("oom", "explicit", r"CUDA out of memory", "gpu_oom", ("CUDA out of memory",))
>>> [hit.line.number for hit in Matcher(Rules((oom,))).hits(LogText.of("a", b"fine\\nCUDA out of memory.\\n"))]
[2]

Everything is bounded by the size of the log, whatever is in it: RE2's time is linear; a literal that is on too many
lines is looked at on the first and the last of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import re2

from prolog_epilog.failures.prefix import origin
from prolog_epilog.failures.signature import Rules, Signature, compiled
from prolog_epilog.failures.text import Line, LogText, decoded

__all__ = ["Hit", "Matcher", "matcher_of"]

REACH: Final = 4096
"""Bytes to each side of a literal in which its pattern is searched; all of most lines."""
_FIRST: Final = 96
"""Places of one literal that are looked at from a log's beginning..."""
_LAST: Final = 160
"""...and, if there are more, from its end."""
_WASTE: Final = 2048
"""Places passed over until the search goes on without the literals that were found often enough."""
_BUDGET: Final = 60_000
"""Places looked at from the beginning at most, of all literals together."""


_PREFIXED: Final = 512
"""Bytes of a line in which launchers' prefixes are looked for."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A signature, and the line that says it: by its index, and where in `text.data` the match is."""

    signature: Signature
    text: LogText = field(repr=False)
    index: int
    start: int
    end: int

    @property
    def line(self) -> Line:
        """The line, made when it is asked for."""
        return self.text.line_at(self.start)


def _search_options(*, ignores_case: bool) -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.longest_match = True  # then each other literal at the same place begins this one
    options.log_errors = False
    options.max_mem = 64 << 20  # the automaton of some thousand literals
    options.case_sensitive = not ignores_case
    return options


class _Prefilter:
    """One search for many literals, of which those that were found often enough can be left out."""

    def __init__(self, owners: Mapping[bytes, Sequence[Signature]], *, ignores_case: bool) -> None:
        self._owners = owners
        self._ignores_case = ignores_case
        # the literals with which a literal begins: where it is found, they are too
        self._within = {
            literal: tuple(literal[:n] for n in range(1, len(literal) + 1) if literal[:n] in owners)
            for literal in owners
        }
        self._all = self._automaton(owners)

    def _automaton(self, literals: Iterable[bytes]) -> re2._Regexp | None:
        pattern = b"|".join(re2.escape(literal) for literal in sorted(literals))
        if not pattern:
            return None
        return re2.compile(pattern, _search_options(ignores_case=self._ignores_case))

    def places(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Where literals are: the position and the literal, in no order, each literal bounded in number."""
        left = dict.fromkeys(self._owners, _FIRST)
        stopped: dict[bytes, int] = {}  # literals no longer looked for, and up to where they were
        search, at, waste, budget = self._all, 0, 0, _BUDGET
        while search is not None and budget > 0:
            match = search.search(data, at)
            if match is None:
                break
            start = match.start()
            found = data[start : match.end()]
            at = start + 1
            fresh = False
            for literal in self._within[found.lower() if self._ignores_case else found]:
                if left[literal] > 0:
                    left[literal] -= 1
                    budget -= 1
                    fresh = True
                    yield start, literal
                else:
                    stopped.setdefault(literal, start)
            waste += not fresh
            if waste > _WASTE:
                waste = 0
                search = self._automaton(literal for literal, more in left.items() if more > 0)
        if budget <= 0:
            stopped.update({literal: at for literal in left if literal not in stopped})
        if stopped:
            yield from self._from_end(data, stopped)

    def _from_end(self, data: bytes, stopped: Mapping[bytes, int]) -> Iterator[tuple[int, bytes]]:
        folded = data.lower() if self._ignores_case else data
        for literal, low in stopped.items():
            high = len(folded)
            for _ in range(_LAST):
                high = folded.rfind(literal, low, high)
                if high < 0:
                    break
                yield high, literal
                high += len(literal) - 1  # the next may overlap with it, but begins before


class Matcher:
    """All signatures of some rules, ready to search logs. Making one takes a few milliseconds; keep it."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        exact: dict[bytes, list[Signature]] = {}
        folded: dict[bytes, list[Signature]] = {}
        for signature in rules.signatures:
            owners = folded if signature.ignores_case else exact
            for literal in signature.literals:
                owners.setdefault(literal.encode(), []).append(signature)
        self._owners = (
            (exact, _Prefilter(exact, ignores_case=False)),
            (folded, _Prefilter(folded, ignores_case=True)),
        )

    def hits(self, text: LogText) -> list[Hit]:
        """What the signatures say of this log, in the order of its lines; each signature at most once a line.

        A line of tier benign is not yet put aside, nor is anything else: that is `choose`'s.
        """
        found: list[Hit] = []
        for owners, prefilter in self._owners:
            tried: set[tuple[str, int]] = set()
            for position, literal in prefilter.places(text.data):
                start, end = text.bounds_at(position, REACH)
                for signature in owners[literal]:
                    if (signature.name, start) in tried:
                        continue
                    tried.add((signature.name, start))
                    span = _matched(signature, text.data, start, end)
                    if span is not None:
                        found.append(Hit(signature, text, text.index_at(span[0]), *span))
        found.sort(key=lambda hit: (hit.start, hit.end, hit.signature.name))
        once: dict[tuple[str, int], Hit] = {}
        for hit in found:
            once.setdefault((hit.signature.name, hit.index), hit)
        return list(once.values())


def _matched(signature: Signature, data: bytes, start: int, end: int) -> tuple[int, int] | None:
    """Where in the buffer the pattern matches within one line, which is cut out: `^` and `$` are its ends.

    `^` is also where launchers' prefixes end.
    """
    line = data[start:end]
    pattern = compiled(signature.pattern)
    match = pattern.search(line)
    if match is None and "^" in signature.pattern:
        head = decoded(line[:_PREFIXED])
        prefix = len(head.encode()) - len(origin(head).text.encode())
        if prefix:
            start += prefix
            match = pattern.search(line[prefix:])
    return None if match is None else (start + match.start(), start + match.end())


@functools.lru_cache(maxsize=4)
def matcher_of(rules: Rules) -> Matcher:
    """The matcher of these rules, kept."""
    return Matcher(rules)
