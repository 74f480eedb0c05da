"""The last checkpoint that a log shows to have been saved: `gsub.train`'s own line, or a framework's.

>>> path_after(" /scratch/r/ckpt-13000. Training goes on")
'/scratch/r/ckpt-13000'
>>> path_after(" 'out/my run/last.pt' (epoch 3)"), path_after(" step 300")
('out/my run/last.pt', '')

Which lines tell of one is data: the signatures of tiers `saved` and `saving`, whose match ends where the path begins.
Most frameworks say that they are about to save. That counts once the log goes on: with work, or with the next
checkpoint. Who was killed amid a save has said no more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from profiler.logs import one_line
from prolog_epilog.failures.mask import mask
from prolog_epilog.failures.matcher import Hit
from prolog_epilog.failures.signs import Save, counter
from prolog_epilog.failures.text import LogText, decoded

__all__ = ["OURS", "last_saved", "path_after", "save_of"]

OURS: Final = "gsub-train-"
"""How the names of signatures of gsub.train's lines begin."""
_MOST: Final = 600
_REACH: Final = 4096  # bytes behind a match in which its path ends
_WITHIN: Final = 400
"""Lines behind an announced save in which work must go on for it to count."""
_TRIES: Final = 20
"""Announced saves of a log, from its last, of which that is looked at."""
_QUOTED: Final = re.compile(r"\s*([\"'`])(?P<path>[^\"'`]{1,4000})\1")
_BARE: Final = re.compile(r"\s*(?P<path>[^\s\"'`]{1,4000})")
_WENT_WRONG: Final = re.compile(
    r"(?i)\b(?:err(?:or)?|fail(?:ed|ure|ing)?|cannot|could ?n[o']t|unable|not|abort(?:ed|ing)?)\b"
)
_TRAILING: Final = ".,;:!)]}>…"
_LOOKS_LIKE_ONE: Final = re.compile(
    r"/|\.(?:pt|pth|pt2|ckpt|pkl|bin|safetensors|h5|hdf5|keras|npz|npy|msgpack|tar|model)$|"
    r"^(?:global_?step|checkpoint|ckpt|step|epoch|iter)[-_=]?\d+$"
)


def path_after(text: str) -> str:
    """The path at the beginning of a text, bare or in quotes; "" where there stands something else."""
    found = _QUOTED.match(text) or _BARE.match(text)
    if found is None:
        return ""
    path = found["path"].rstrip(_TRAILING)
    return path if _LOOKS_LIKE_ONE.search(path) else ""


def save_of(log: int, hit: Hit) -> Save | None:
    """What a line of tier `saved` or `saving` tells; None where it names no path, or one that is too long to keep."""
    data = hit.text.data
    end = data.find(b"\n", hit.end, hit.end + _REACH)
    behind = decoded(data[hit.end : hit.end + _REACH if end < 0 else end])
    ours = hit.signature.name.startswith(OURS)
    if ours:
        path = unquote(behind.partition(" ")[0])
        if not path.startswith("/") and "://" not in path:
            return None
    else:
        path = path_after(behind)
        start, stop = hit.text.bounds_at(hit.start)
        around = decoded(data[start:stop]).replace(path, "") if path else ""
        if _WENT_WRONG.search(around):
            return None
    path = mask(path)
    if not path or len(path) > _MOST:
        return None
    return Save(one_line(path, _MOST), hit.index, log, hit.signature.tier == "saved", ours, hit.line.time)


def last_saved(saves: Sequence[Save], logs: Sequence[LogText]) -> Save | None:
    """The last checkpoint whose saving had ended. One that gsub.train told of counts before those of frameworks;
    between logs their lines' times decide, else the order of the logs.
    """
    last: list[Save] = []
    for number, log in enumerate(logs):
        here = sorted((save for save in saves if save.log == number), key=lambda save: save.index)
        for own in (True, False):
            mine = [save for save in here if save.ours is own]
            if (found := _last_of(mine, log)) is not None:
                last.append(found)
                break
    if any(save.ours for save in last):
        last = [save for save in last if save.ours]
    if last and all(save.at is not None for save in last):
        return max(last, key=lambda save: (save.at or 0.0, -save.log))
    return last[0] if last else None


def _last_of(saves: Sequence[Save], log: LogText) -> Save | None:
    for place in range(len(saves) - 1, max(len(saves) - 1 - _TRIES, -1), -1):
        save = saves[place]
        if save.done or any(later.path != save.path for later in saves[place + 1 :]) or _went_on(save, log):
            return save
    return None


def _went_on(save: Save, log: LogText) -> bool:
    """Whether lines behind an announced save show work."""
    return any(counter(line.index, line.text) for line in log.lines(save.index + 1, save.index + 1 + _WITHIN))
