"""Durations and sizes as people write them, parsed once: elsewhere they are whole seconds and whole MiB.

>>> parse_duration("30 min"), parse_duration("1-12:00:00"), format_duration(129600)
(1800, 129600, '1 d 12 h')
>>> parse_size("4G"), format_size(512000)
(4096, '500G')

A bare number is refused on purpose: Slurm reads it as minutes in ``--time``, as seconds in
``SchedulerParameters`` and as megabytes in ``--mem``, so a reader cannot know what was meant.
"""

from __future__ import annotations

import re

__all__ = ["format_duration", "format_size", "parse_duration", "parse_size"]

_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPELLINGS = {
    "s": "s sec secs second seconds",
    "min": "m min mins minute minutes",
    "h": "h hr hrs hour hours",
    "d": "d day days",
    "w": "w week weeks",
}
_UNIT = {spelling: _SECONDS[unit] for unit, words in _SPELLINGS.items() for spelling in words.split()}

# Slurm's D-HH, D-HH:MM, D-HH:MM:SS, HH:MM:SS and MM:SS (sbatch(1), --time).
_SLURM = re.compile(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{2}))?(?::(\d{2}))?")
_TERM = re.compile(r"\s*(\d{1,9})(?:\.(\d{1,6}))?\s*([a-z]+)", re.IGNORECASE)

_MIB = {"K": -10, "M": 0, "G": 10, "T": 20, "P": 30}  # powers of two, counted from one MiB
_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))?\s*([KMGTP])(?:i?B)?", re.IGNORECASE)

_LONGEST = 64  # characters: nothing legitimate is longer, and integers stay small
_TEN_YEARS = 10 * 366 * 86400
_EXBIBYTE = 1 << 40  # MiB


def parse_duration(text: str) -> int:
    """Seconds in ``30 min``, ``1h 30m``, ``1.5 h`` or Slurm's ``D-HH[:MM[:SS]]``, ``HH:MM:SS``, ``MM:SS``.

    Raises ValueError with a sentence that says what is wrong.
    """
    text = text.strip()
    if not text or len(text) > _LONGEST:
        raise ValueError("not a duration")
    seconds = _slurm_duration(text) if _SLURM.fullmatch(text) else _spelled_duration(text)
    if seconds > _TEN_YEARS:
        raise ValueError("longer than ten years")
    return seconds


def _slurm_duration(text: str) -> int:
    match = _SLURM.fullmatch(text)
    assert match is not None  # noqa: S101 - the caller looked
    days, first, second, third = match.groups()
    if days is None and second is None:
        raise ValueError("a number without a unit")
    if days is not None:
        parts = [int(days), int(first), int(second or 0), int(third or 0)]
    elif third is not None:
        parts = [0, int(first), int(second), int(third)]
    else:
        parts = [0, 0, int(first), int(second)]
    # Only the leading part may pass its bound (Slurm reads 90:00 as 90 minutes); elsewhere it is a slip.
    if parts[3] > 59 or (parts[2] > 59 and (days is not None or third is not None)):
        raise ValueError("minutes and seconds go up to 59")
    if days is not None and parts[1] > 23:
        raise ValueError("hours after days go up to 23")
    return parts[0] * 86400 + parts[1] * 3600 + parts[2] * 60 + parts[3]


def _spelled_duration(text: str) -> int:
    seconds, at = 0, 0
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None:
            raise ValueError("not a duration")
        whole, fraction, unit = term[1], term[2] or "", term[3].lower()
        if unit not in _UNIT:
            raise ValueError(f'"{term[3]}" is not a unit of time')
        scaled, rest = divmod(int(whole + fraction) * _UNIT[unit], 10 ** len(fraction))
        if rest:
            raise ValueError("not a whole number of seconds")
        seconds += scaled
        at = term.end()
    return seconds


def format_duration(seconds: int) -> str:
    """The shortest exact spelling in days, hours, minutes and seconds; `parse_duration` reads it back."""
    if seconds < 0:
        raise ValueError(f"a duration cannot be negative: {seconds}")
    words = []
    for unit in ("d", "h", "min", "s"):
        count, seconds = divmod(seconds, _SECONDS[unit])
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words) or "0 s"


def parse_size(text: str) -> int:
    """MiB in ``4G``, ``4 GiB``, ``62.5G``, ``512000M``: powers of 1024, as in Slurm, whatever the spelling.

    Raises ValueError with a sentence that says what is wrong.
    """
    match = _SIZE.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError("a number without a unit" if text.strip().isdecimal() else "not a size")
    whole, fraction, unit = match[1], match[2] or "", match[3].upper()
    shift = _MIB[unit]
    scale: int = 10 ** len(fraction)  # mypy takes int ** int for Any: it may be a float
    scaled, rest = divmod(int(whole + fraction) << max(shift, 0), scale << max(-shift, 0))
    if rest:
        raise ValueError("not a whole number of MiB")
    if scaled > _EXBIBYTE:
        raise ValueError("more than 1024P")
    return scaled


def format_size(mib: int) -> str:
    """The shortest exact spelling of MiB with one unit, as Slurm takes it; `parse_size` reads it back."""
    if mib < 0:
        raise ValueError(f"a size cannot be negative: {mib}")
    for unit in "PTG":
        if mib and mib % (1 << _MIB[unit]) == 0:
            return f"{mib >> _MIB[unit]}{unit}"
    return f"{mib}M"
