r"""A piece of text that every match of a pattern must hold: what to look for before the pattern is tried.

>>> required_literals(r"CUDA (?:error|failure): out of \w+")
('CUDA error: out of ', 'CUDA failure: out of ')
>>> required_literals(r"(?i)Bus\s+error")
('error',)

Of the candidates in a sequence the one whose shortest literal is longest wins. What is not understood counts as
"anything", so a derived literal is never too strict.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MIN_LITERAL", "Underivable", "required_literals"]

MIN_LITERAL: Final = 3
"""Shorter ones would be found nearly everywhere."""
_MAX_PRODUCT: Final = 12
_MAX_ALTERNATIVES: Final = 40
_MAX_DEPTH: Final = 40
_ZERO_WIDTH: Final = "bBAzZ"
_PLAIN: Final = re.compile(r"(?:[^\\()\[\]{}|.*+?^$]|\\[^A-Za-z0-9])+(?![*+?{])")
"""Characters that stand for themselves, without the last if it is repeated."""
_TOKEN: Final = re.compile(
    r"((?:[^\\()\[\]{}|.*+?^$]|\\[^A-Za-z0-9])+(?![*+?{]))"
    r"|(\\[pP]\{[^}]*\}|\\x\{[^}]*\}|\\x[0-9A-Fa-f]{2}|\\[pP]?.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]])*\]|\{[0-9,]+\}"
    r"|\(\?(?:P?<\w+>|[a-zA-Z-]*:)|.)",
    re.DOTALL,
)
_LONG: Final = 12
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "f": "\f", "a": "\a", "v": "\v"}


class Underivable(Exception):  # noqa: N818 - no error: an answer
    """No literal of `MIN_LITERAL` characters is in every match."""


def required_literals(pattern: str) -> tuple[str, ...]:
    """Texts of which every match of the pattern holds at least one. Raises Underivable."""
    plain = _outside_groups(pattern)
    if plain:
        return (plain,)
    parser = _Parser(pattern)
    _, best = parser.alternatives(0)
    if not parser.done:
        raise Underivable("its parentheses do not close")
    if best is None:
        raise Underivable(f"no {MIN_LITERAL} characters in a row are in every match")
    ignores_case = pattern.startswith("(?i)")
    found = sorted({literal.lower() if ignores_case else literal for literal in best})
    # one that holds another adds nothing
    return tuple(one for one in found if not any(other != one and other in one for other in found))


def _outside_groups(pattern: str) -> str:
    """The longest plain text outside all groups, if it is long: most patterns have one, and it is quickly found."""
    body = pattern.removeprefix("(?i)")
    if "(?i" in body or "\\Q" in body:
        return ""
    depth, longest = 0, ""
    for plain, other in _TOKEN.findall(body):
        if plain:
            if depth == 0 and len(plain) > len(longest):
                longest = plain
        elif other.startswith("("):
            depth += 1
        elif other == ")":
            depth -= 1
        elif other == "|" and depth == 0:
            return ""
    longest = _ESCAPED.sub(r"\1", longest)
    if len(longest) < _LONG or depth:
        return ""
    return longest if body is pattern else longest.lower()


def _better(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """The set of alternatives that says more."""
    kept = [each for each in (one, other) if each and min(map(len, each)) >= MIN_LITERAL]
    return max(
        kept, key=lambda each: (min(_LONG, *map(len, each)), -len(each), min(map(len, each))), default=None
    )


class _Parser:
    """RE2's syntax as far as literals need it: groups, alternatives, classes, escapes, repeats.

    A node's answer is `exact`: the texts that it matches and no other (None: not so few), and `best`: a set of
    which every match holds one.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 4 if pattern.startswith("(?i)") else 0

    @property
    def done(self) -> bool:
        return self._at >= len(self._pattern)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        self._at += 1
        return char

    def alternatives(self, depth: int) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        """All branches up to a closing parenthesis or the end."""
        if depth > _MAX_DEPTH:
            raise Underivable("it is nested too deep")
        exacts: list[frozenset[str] | None] = []
        bests: list[frozenset[str] | None] = []
        while True:
            exact, best = self._sequence(depth)
            exacts.append(exact)
            bests.append(best)
            if self._peek() != "|":
                break
            self._take()
        exact = _union(exacts)
        return exact, _union(bests)

    def _sequence(self, depth: int) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        run: frozenset[str] = frozenset({""})  # what the latest items match, in a row
        whole = True  # whether `run` is all that there was
        best: frozenset[str] | None = None
        while self._peek() not in ("", "|", ")"):
            plain = _PLAIN.match(self._pattern, self._at)
            if plain is not None:
                self._at = plain.end()
                text = _ESCAPED.sub(r"\1", plain[0])
                run = frozenset([one + text for one in run])
                continue
            exact, inner = self._atom(depth)
            least, most = self._repeat()
            if exact is not None and least == most == 1:
                product = frozenset(a + b for a in run for b in exact)
                if len(product) <= _MAX_PRODUCT:
                    run = product
                    continue
            best = _better(best, run)
            whole = False
            if least == 0:
                run = frozenset({""})
                continue
            best = _better(best, inner)
            if exact is not None:
                if least == most:
                    run = frozenset(one * min(least, 8) for one in exact)
                else:  # the last of them is followed by what comes next
                    best = _better(
                        best, frozenset(a + b for a in run for b in exact) if len(run) < 8 else None
                    )
                    run = exact
                continue
            run = frozenset({""})
        return (run if whole else None), _better(best, run)

    def _atom(self, depth: int) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        char = self._take()
        if char == "(":
            return self._group(depth)
        if char == "[":
            self._skip_class()
            return None, None
        if char == "\\":
            return self._escape()
        if char in "^$":
            return frozenset({""}), None
        if char == ".":
            return None, None
        return frozenset({char}), frozenset({char})

    def _group(self, depth: int) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        known = True
        if self._peek() == "?":
            self._take()
            flags = ""
            while self._peek() not in ("", ":", ")"):
                flags += self._take()
                if flags in ("P<", "<"):
                    while self._peek() not in ("", ">"):
                        self._take()
                    self._take()
                    flags = ""
                    break
            else:
                if self._take() == ")":  # (?s) and the like, for what follows
                    if "i" in flags:
                        raise Underivable("(?i) is not at its beginning")
                    return frozenset({""}), None
            known = "i" not in flags
        exact, best = self.alternatives(depth + 1)
        if self._take() != ")":
            raise Underivable("its parentheses do not close")
        return (exact, best) if known else (None, None)

    def _skip_class(self) -> None:
        if self._peek() == "^":
            self._take()
        if self._peek() == "]":
            self._take()
        while self._peek() not in ("", "]"):
            char = self._take()
            if char == "\\":
                self._take()
            elif char == "[" and self._peek() == ":":
                end = self._pattern.find(":]", self._at)
                self._at = len(self._pattern) if end < 0 else end + 2
        self._take()

    def _escape(self) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        char = self._take()
        if char and char in _ZERO_WIDTH:
            return frozenset({""}), None
        if char == "Q":
            end = self._pattern.find("\\E", self._at)
            text = self._pattern[self._at :] if end < 0 else self._pattern[self._at : end]
            self._at = len(self._pattern) if end < 0 else end + 2
            return frozenset({text}), frozenset({text})
        if char in "pP":
            if self._take() == "{":
                while self._peek() not in ("", "}"):
                    self._take()
                self._take()
            return None, None
        if char == "x":
            return self._hex()
        if char in _CONTROLS:
            return frozenset({_CONTROLS[char]}), None
        if char.isalnum():
            return None, None
        return frozenset({char}), frozenset({char})

    def _hex(self) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        if self._peek() == "{":
            while self._peek() not in ("", "}"):
                self._take()
            self._take()
        else:
            self._at += 2
        return None, None

    def _repeat(self) -> tuple[int, int]:
        """How often the atom before must and may come (at most 2 is said for "often")."""
        char = self._peek()
        bounds = (1, 1)
        if char == "?":
            bounds = (0, 1)
        elif char == "*":
            bounds = (0, 2)
        elif char == "+":
            bounds = (1, 2)
        elif char == "{":
            end = self._pattern.find("}", self._at)
            parts = self._pattern[self._at + 1 : end].split(",") if end > 0 else []
            if not parts or not parts[0].isdigit() or not all(part.isdigit() or not part for part in parts):
                return 1, 1  # a brace as such
            least = int(parts[0])
            most = least if len(parts) == 1 else int(parts[1] or least + 1)
            self._at = end
            bounds = (min(least, 2), min(most, 3))
            if least == most:
                bounds = (least, least)
        else:
            return 1, 1
        self._take()
        if self._peek() == "?":  # lazy
            self._take()
        return bounds


def _union(sets: list[frozenset[str] | None]) -> frozenset[str] | None:
    """All of them, if each is known and they are few."""
    if any(each is None for each in sets):
        return None
    joined = frozenset(text for each in sets if each is not None for text in each)
    return joined if len(joined) <= _MAX_ALTERNATIVES else None
