"""The notations of sbatch's values: times, sizes, counts, ranges of nodes; as sbatch itself reads them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["FOREVER", "NotationError", "count", "mebibytes", "minutes", "nodes"]

FOREVER: Final = 0xFFFFFFFF
"""A time limit without end, as Slurm holds it (INFINITE)."""


class NotationError(ValueError):
    """A value that sbatch would not take, or one of a form that is not read here."""


_MULTIPLIERS: Final = {"": 1, "k": 1024, "m": 1024**2}
_COUNT: Final = re.compile(r"(\d{1,10})([km]?)", re.IGNORECASE)


def count(text: str) -> int:
    """A number of things.

    >>> count("8"), count("1k")
    (8, 1024)
    """
    found = _COUNT.fullmatch(text.strip())
    if not found:
        raise NotationError(f"{text!r} is not a whole number")
    return int(found[1]) * _MULTIPLIERS[found[2].lower()]


def nodes(text: str) -> tuple[int, int]:
    """The least and the greatest number of nodes of `--nodes`.

    >>> nodes("2"), nodes("2-4")
    ((2, 2), (2, 4))
    """
    low, dash, high = text.partition("-")
    if dash and not high:
        raise NotationError(f"{text!r} is not a range of nodes")
    least = count(low)
    most = count(high) if dash else least
    if most < least:
        raise NotationError(f"{text!r}: the greatest number of nodes is less than the least")
    return least, most


_SIZES: Final = {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024**2, "p": 1024**3}
_SIZE: Final = re.compile(r"(\d{1,15})([kmgtp]?)b?", re.IGNORECASE)


def mebibytes(text: str) -> int:
    """A size, rounded up.

    >>> mebibytes("5G"), mebibytes("1500K"), mebibytes("300")
    (5120, 2, 300)
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise NotationError(f"{text!r} is not a size: want a number with K, M, G or T")
    number, unit = int(found[1]), found[2].lower()
    return -(-number // 1024) if unit == "k" else number * int(_SIZES[unit])


_TIME: Final = re.compile(r"(?:(\d{1,6})-)?(\d{1,7})(?::(\d{1,7}))?(?::(\d{1,7}))?")


def minutes(text: str) -> int:
    """A span of time in minutes, begun ones counted whole; `FOREVER` for none.

    >>> minutes("90"), minutes("30:30"), minutes("1:30:01"), minutes("2-12"), minutes("0")
    (90, 31, 91, 3600, 4294967295)
    """
    if text.strip().lower() in ("-1", "infinite", "unlimited"):
        return FOREVER
    found = _TIME.fullmatch(text.strip())
    if not found:
        raise NotationError(f"{text!r} is not a time: want minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S")
    days, *rest = found.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:
        seconds = int(days) * 86400 + sum(p * s for p, s in zip(parts, (3600, 60, 1), strict=False))
    elif len(parts) == 1:
        seconds = parts[0] * 60
    else:
        seconds = sum(p * s for p, s in zip(reversed(parts), (1, 60, 3600), strict=False))
    return -(-seconds // 60) or FOREVER
