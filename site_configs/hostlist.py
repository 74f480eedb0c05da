"""Slurm's hostlists, in bounded time: ``n[01-08,12]``, ``rack[1-4]n[1-16]``.

Expansion follows Slurm's own parser (src/common/hostlist.c), which reads more than ClusterShell does:
``n[1-2][1-3]``, ``n[001-1000]`` (width of the lower bound) and repeated names are all fine there. It counts
before it builds, so that ``n[1-999999999]`` costs nothing. Folding is ClusterShell's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from math import prod

__all__ = ["MAX_NODES", "HostlistError", "expand", "fold", "natural"]

MAX_NODES = 65536
"""Names in one hostlist; Slurm refuses longer ranges too (MAX_RANGE in hostlist.c)."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([A-Za-z0-9._-]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_DIGITS = re.compile(r"(\d+)")


class HostlistError(ValueError):
    """A hostlist that cannot be read: `text` is the faulty piece, the message says what is wrong with it."""

    def __init__(self, text: str, problem: str) -> None:
        self.text = text
        self.problem = problem
        super().__init__(f"{text!r}: {problem}")


def expand(text: str, limit: int = MAX_NODES) -> tuple[str, ...]:
    """Names in the order of the text, each once.

    >>> expand("n[1-2,7],login")
    ('n1', 'n2', 'n7', 'login')

    Raises HostlistError for bad syntax or more than `limit` names.
    """
    names: dict[str, None] = {}
    left = limit  # repeated names count: they cost as much
    for word in _words(text):
        pieces = _pieces(word)
        left -= prod(
            sum(high - low + 1 for low, high, _ in piece) for piece in pieces if not isinstance(piece, str)
        )
        if left < 0:
            raise HostlistError(_short(word), f"more than {limit} names in one hostlist")
        names.update(dict.fromkeys(_joined(pieces)))
    return tuple(names)


def _words(text: str) -> Iterable[str]:
    """Split at the commas and blanks that stand outside brackets."""
    start = depth = 0
    for at, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif depth == 0 and (char == "," or char.isspace()):
            if at > start:
                yield text[start:at]
            start = at + 1
        if depth not in (0, 1):
            break
    if depth:
        raise HostlistError(_short(text[start:]), "brackets that do not match")
    if start < len(text):
        yield text[start:]


_Range = tuple[int, int, int]
"""(lowest, highest, width in digits)."""


def _pieces(word: str) -> list[str | list[_Range]]:
    """A word as texts and bracketed lists of ranges, in turn."""
    if _NAME.fullmatch(word):
        return [word]
    pieces: list[str | list[_Range]] = []
    at = 0
    while at < len(word):
        piece = _PIECE.match(word, at)
        if piece is None:
            raise HostlistError(_short(word), f"{word[at]!r} cannot stand in a node name")
        pieces.append(piece[2] or [_bounds(word, part) for part in piece[1].split(",")])
        at = piece.end()
    if not isinstance(pieces[0], str):
        raise HostlistError(_short(word), "a node name cannot start with a range")
    return pieces


def _joined(pieces: list[str | list[_Range]]) -> Iterable[str]:
    texts = (
        (piece,)
        if isinstance(piece, str)
        else [f"{i:0{width}}" for low, high, width in piece for i in range(low, high + 1)]
        for piece in pieces
    )
    return map("".join, product(*texts))


def _bounds(word: str, part: str) -> _Range:
    """One range; its width is the lower bound's, as in Slurm."""
    match = _RANGE.fullmatch(part.strip())
    if match is None:
        raise HostlistError(_short(word), f"{_short(part)!r} is not a range of numbers")
    low, high = int(match[1]), int(match[2] or match[1])
    if high < low:
        raise HostlistError(_short(word), f"the range {part} runs backwards")
    return low, high, len(match[1])


def fold(names: Iterable[str]) -> str:
    """Names as one hostlist, shortest first: ``fold(["n1", "n2", "n7"]) == "n[1-2,7]"``."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return str(NodeSet.fromlist(sorted(names), resolver=RESOLVER_NOGROUP))


def natural(name: str) -> tuple[list[str | int], str]:
    """Sort key under which n2 comes before n10."""
    parts: list[str | int] = [int(part) if part.isdecimal() else part for part in _DIGITS.split(name)]
    return parts, name


def _short(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
