"""More memory: how much a job asks for next, from its measured peak and what it asked for, bounded by the node.

Limits of user, account and QOS are gsub-act's to read and obey: Slurm does not check them for an operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from site_configs.units import format_size
from slurm_plugins.resubmit.values import Memory

__all__ = ["HEADROOM", "More", "more_memory", "rounded"]

HEADROOM: Final = 1.2
"""Times the measured peak: what was reached when it was killed, and a fifth."""
_WORTH: Final = 1.05
"""Less than this many times what it had is no other attempt."""
_MOST: Final = 999_999_999  # MiB: what Slurm and a row take
_Per = Literal["", "node", "cpu"]


@dataclass(frozen=True, slots=True)
class More:
    """What it asks for, MiB for each `per`; without it `stop` and a sentence why."""

    mib: int | None = None
    per: _Per = ""
    stop: Literal["", "limit", "unknown"] = ""
    why: str = ""


def rounded(mib: float) -> int:
    """Rounded up: to whole GiB from 8 GiB on, else to 64 MiB.

    >>> rounded(768), rounded(769), rounded(48 * 1024 + 1)
    (768, 832, 50176)
    """
    step = 1024 if mib > 8192 else 64
    return -int(-mib // step) * step


def more_memory(memory: Memory, factor: float) -> More:
    """What to ask for after a lack of memory: `factor` times as much, or the peak and a fifth, whichever is more.

    >>> more_memory(Memory(32768, "node", most_mib=512000), 1.5)
    More(mib=49152, per='node', stop='', why='')
    >>> more_memory(Memory(32768, "node", most_mib=32768), 1.5).stop
    'limit'
    """
    per = memory.per
    if per == "gpu":
        return More(
            stop="unknown", why="what it asked for each GPU (--mem-per-gpu) cannot be changed in place"
        )
    if memory.asked_mib is None or per not in ("node", "cpu"):
        return More(stop="unknown", why="how much memory it asked for is not known")
    if memory.asked_mib == 0:
        return More(stop="limit", why="it has all the memory of its nodes already (--mem=0)")
    if memory.most_mib is None:
        return More(stop="unknown", why="how much memory a node of its partition has is not known")
    peak, most = memory.peak_mib, memory.most_mib
    if per == "cpu":
        if not memory.cpus_per_node:
            return More(stop="unknown", why="how many CPUs it has on a node is not known")
        peak = None if peak is None else -(-peak // memory.cpus_per_node)
        most //= memory.cpus_per_node
    wanted = rounded(max(memory.asked_mib * factor, (peak or 0) * HEADROOM))
    given = min(wanted, most, _MOST)
    if given < memory.asked_mib * _WORTH:
        every = "node" if per == "node" else "CPU"
        return More(
            stop="limit",
            why=f"it asks for {format_size(memory.asked_mib)} for each {every}, and its partition gives "
            f"{format_size(max(most, 0))} at most",
        )
    return More(given, "node" if per == "node" else "cpu")
