"""The notations of sbatch's values: times, sizes, counts, ranges of nodes; as sbatch itself reads them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["FOREVER", "NotationError", "count", "mebibytes", "minutes", "nodes", "seconds"]

FOREVER: Final = 0xFFFFFFFF
"""A time limit without end, as Slurm holds it (INFINITE)."""


class NotationError(ValueError):
    """A value that sbatch would not take, or one of a form that is not read here."""


_COUNT: Final = re.compile(r"0*([1-9]\d{0,8})")


def count(text: str) -> int:
    """A number of things, one at least.

    >>> count("8"), count("08")
    (8, 8)
    """
    found = _COUNT.fullmatch(text.strip())
    if not found:
        raise NotationError(f"{text!r} is not a whole number above 0")
    return int(found[1])


_NODES: Final = re.compile(r"(\d{1,9})([km]?)(?:-(\d{1,9})([km]?))?", re.IGNORECASE)
_THOUSANDS: Final = {"": 1, "k": 1024, "m": 1024**2}


def nodes(text: str) -> tuple[int, int]:
    """The least and the greatest number of nodes of `--nodes`.

    >>> nodes("2"), nodes("2-4"), nodes("1k")
    ((2, 2), (2, 4), (1024, 1024))
    """
    found = _NODES.fullmatch(text.strip())
    if not found:
        raise NotationError(f"{text!r} is not a number or range of nodes (lists like 2,4 are not read here)")
    least = int(found[1]) * _THOUSANDS[found[2].lower()]
    most = int(found[3]) * _THOUSANDS[found[4].lower()] if found[3] else least
    if most < least:
        raise NotationError(f"{text!r}: the greatest number of nodes is less than the least")
    return least, most


_SIZE: Final = re.compile(r"(\d{1,15})([kmgtp]?)b?", re.IGNORECASE)
_MEBIBYTES: Final = {"": 1, "m": 1, "g": 1024, "t": 1024**2, "p": 1024**3}


def mebibytes(text: str) -> int:
    """A size, rounded up.

    >>> mebibytes("5G"), mebibytes("1500K"), mebibytes("300")
    (5120, 2, 300)
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise NotationError(f"{text!r} is not a size: want a number with K, M, G or T")
    number, unit = int(found[1]), found[2].lower()
    return -(-number // 1024) if unit == "k" else number * _MEBIBYTES[unit]


_TIME: Final = re.compile(r"(?:(\d{1,6})-)?(\d{1,7})(?::(\d{1,7}))?(?::(\d{1,7}))?")
_ENDLESS: Final = ("-1", "infinite", "unlimited")


def seconds(text: str) -> int | None:
    """A span of time; None for one without end.

    >>> seconds("90"), seconds("30:30"), seconds("1:30:01"), seconds("2-12"), seconds("unlimited")
    (5400, 1830, 5401, 216000, None)
    """
    if text.strip().lower() in _ENDLESS:
        return None
    found = _TIME.fullmatch(text.strip())
    if not found:
        raise NotationError(f"{text!r} is not a time: want minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S")
    parts = [int(part) for part in found.groups()[1:] if part is not None]
    if found[1] is not None:
        return int(found[1]) * 86400 + sum(p * s for p, s in zip(parts, (3600, 60, 1), strict=False))
    if len(parts) == 1:
        return parts[0] * 60
    return sum(p * s for p, s in zip(reversed(parts), (1, 60, 3600), strict=False))


def minutes(text: str) -> int:
    """A span of time in minutes, begun ones counted whole; `FOREVER` for none and for one without end.

    >>> minutes("30:30"), minutes("2-12"), minutes("0")
    (31, 3600, 4294967295)
    """
    span = seconds(text)
    return FOREVER if not span else -(-span // 60)
