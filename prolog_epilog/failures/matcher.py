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
import re
from dataclasses import dataclass, field
from typing import Final

from prolog_epilog.failures.prefilter import Prefilter
from prolog_epilog.failures.prefix import origin
from prolog_epilog.failures.signature import Rules, Signature, compiled
from prolog_epilog.failures.text import Line, LogText, decoded

__all__ = ["Hit", "Matcher", "matcher_of"]

REACH: Final = 4096
"""Bytes to each side of a literal in which its pattern is searched; all of most lines."""
_ANCHORED: Final = re.compile(r"(?:\A(?:\(\?i\))?|[|(:])\^")
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
            (exact, Prefilter(exact, ignores_case=False)),
            (folded, Prefilter(folded, ignores_case=True)),
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
    if match is None and _ANCHORED.search(signature.pattern):
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
