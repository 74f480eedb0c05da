"""Small plots of a line each: a column of figures as blocks, or as ASCII where the terminal knows no better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import IO, Final

__all__ = ["ASCII", "BLOCKS", "ramp", "resample", "sparkline"]

BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII: Final = "_.:-=+*#"
"""From nothing to all, as BLOCKS."""
_UNKNOWN: Final = " "


def sparkline(values: Sequence[float | None], width: int, top: float, signs: str = BLOCKS) -> str:
    """The values from left to right in at most `width` signs, from 0 to `top`; a blank where nothing is known.

    >>> sparkline([0, 50, None, 100], 4, 100), sparkline([0, 50, None, 100], 2, 100, ASCII)
    ('▁▄ █', ':#')
    """
    line = []
    for value in resample(values, width):
        if value is None:
            line.append(_UNKNOWN)
        else:
            share = min(max(value / top, 0.0), 1.0) if top > 0 else 0.0
            # by halves down, so that only what is full looks full
            line.append(signs[min(int(share * (len(signs) - 1) + 0.499), len(signs) - 1)])
    return "".join(line)


def resample(values: Sequence[float | None], width: int) -> list[float | None]:
    """Means over `width` stretches of equal length; fewer values than that stay as they are.

    A value counts in each stretch by the part that lies there; None in one of which nothing is known.

    >>> resample([1, 2, 3, None], 2), resample([1, 2, 3], 2)
    ([1.5, 3.0], [1.3333333333333333, 2.6666666666666665])
    """
    count = len(values)
    if width <= 0 or count <= width:
        return list(values)[: max(width, 0)]
    made: list[float | None] = []
    for place in range(width):
        begin, end = place * count / width, (place + 1) * count / width
        parts = [
            (value, min(index + 1, end) - max(index, begin))
            for index in range(int(begin), min(count, int(end) + 1))
            if (value := values[index]) is not None
        ]
        weight = fsum(share for _, share in parts)
        made.append(fsum(value * share for value, share in parts) / weight if weight > 1e-9 else None)
    return made


def ramp(stream: IO[str], environ: Mapping[str, str]) -> str:
    """The signs that this stream can show: blocks in a UTF-8 locale, else ASCII. `environ` is the user's own."""
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or "C"
    if "UTF" not in locale.upper():
        return ASCII
    try:
        BLOCKS.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS
