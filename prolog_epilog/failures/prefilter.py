"""Finds many literals in one pass over a buffer, and stays bounded where a buffer is made of them.

>>> sorted(Prefilter([b"memory", b"out of memory"], ignores_case=False).places(b"CUDA out of memory"))
[(5, b'out of memory'), (12, b'memory')]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import re2

__all__ = ["FIRST", "LAST", "Prefilter"]

FIRST: Final = 96
"""Places of one literal that are told from a buffer's beginning..."""
LAST: Final = 160
"""...and, if there are more, from its end."""
_BUDGET: Final = 30_000
"""Places told from the beginning at most, and as many from the end, of all literals together."""
_WASTE: Final = 2048
"""Places passed over until the search goes on without the literals that were found often enough."""
_WINDOW: Final = 1 << 18
"""Bytes looked at from the end first; then twice as many before them, and so on."""


def _options(*, ignores_case: bool) -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.longest_match = True  # then every other literal at the same place begins the one that is found
    options.log_errors = False
    options.max_mem = 64 << 20  # the automaton of some thousand literals
    options.case_sensitive = not ignores_case
    return options


class Prefilter:
    """A search for literals (lower case if it ignores case). Making one for thousands takes some ten milliseconds."""

    def __init__(self, literals: Iterable[bytes], *, ignores_case: bool) -> None:
        self._ignores_case = ignores_case
        self._literals = frozenset(literals)
        self._longest = max(map(len, self._literals), default=0)
        # what a literal begins with is found where it is
        self._within = {
            literal: tuple(literal[:n] for n in range(1, len(literal) + 1) if literal[:n] in self._literals)
            for literal in self._literals
        }
        self._all = self._automaton(self._literals)

    def _automaton(self, literals: Iterable[bytes]) -> re2._Regexp | None:
        pattern = b"|".join(re2.escape(literal) for literal in sorted(literals))
        return re2.compile(pattern, _options(ignores_case=self._ignores_case)) if pattern else None

    def _next(
        self, search: re2._Regexp, data: bytes, at: int, end: int
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """The first place from `at` on, and the literals there."""
        match = search.search(data, at, end)
        if match is None:
            return None
        start = match.start()
        found = data[start : match.end()]
        # RE2 folds the letters of Latin-1, bytes.lower() those of ASCII: what only one of them sees is no literal
        return start, self._within.get(found.lower() if self._ignores_case else found, ())

    def places(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Where the literals are: positions and literals, in no order.

        Of a literal at more than `FIRST` places these, and up to `LAST` of the last; fewer in a buffer that is made
        of literals.
        """
        left = dict.fromkeys(self._literals, FIRST)
        stopped: dict[bytes, int] = {}  # what is no longer told, and from where on
        search, at, waste, budget = self._all, 0, 0, _BUDGET
        while search is not None:
            place = self._next(search, data, at, len(data))
            if place is None:
                break
            start, literals = place
            at = start + 1
            told = 0
            for literal in literals:
                if left[literal] > 0:
                    left[literal] -= 1
                    told += 1
                    yield start, literal
                else:
                    stopped.setdefault(literal, start)
            budget -= told
            waste += not told
            if budget <= 0:
                stopped.update({literal: at for literal in left if literal not in stopped})
                break
            if waste > _WASTE:
                waste = 0
                stopped.update({one: at for one, more in left.items() if not more and one not in stopped})
                search = self._automaton(one for one, more in left.items() if more)
        if stopped:
            yield from self._from_end(data, stopped)

    def _from_end(self, data: bytes, stopped: Mapping[bytes, int]) -> Iterator[tuple[int, bytes]]:
        """The last places of each of these literals behind the position that goes with it."""
        left = dict.fromkeys(stopped, LAST)
        search, budget = self._automaton(left), _BUDGET
        low, high, size = min(stopped.values()), len(data), _WINDOW
        while search is not None and high > low and budget > 0:
            at = max(low, high - size)
            kept: dict[bytes, deque[int]] = {}
            begin = at
            while at < high and (place := self._next(search, data, at, min(high + self._longest, len(data)))):
                start, literals = place
                if start >= high:
                    break
                at = start + 1
                for literal in literals:
                    if left.get(literal, 0) and start >= stopped[literal]:
                        kept.setdefault(literal, deque(maxlen=left[literal])).append(start)
            for literal, starts in kept.items():
                left[literal] -= len(starts)
                budget -= len(starts)
                yield from ((start, literal) for start in starts)
            if kept:
                search = self._automaton(literal for literal, more in left.items() if more)
            high, size = begin, size * 2
