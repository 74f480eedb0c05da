"""The host's memory was not enough: ask for the measured peak and a fifth, or half as much again, whichever is more."""

from __future__ import annotations

from typing import Final

from gsub.fixes.values import Case, Fix, Fixer
from site_configs.units import format_size

__all__ = ["FIXER"]


def _fix(case: Case) -> Fix | None:
    row = case.row
    if row is None or row.state != "planned" or not row.memory_mib:
        return None  # the node gives no more, or what it asked for is not known
    peak = f"its peak was {format_size(case.peak_mib)}" if case.peak_mib else "its peak was not measured"
    was = f", it had {format_size(row.memory_was_mib)}" if row.memory_was_mib else ""
    change = case.more_memory(row.memory_mib, row.memory_per, peak)
    every = "CPU" if row.memory_per == "cpu" else "node"
    what = f"Ask for {format_size(row.memory_mib)} for each {every}"
    return Fix(f"{what}.", f"The host's memory was not enough: {peak}{was}.", options=(change,))


FIXER: Final = Fixer(frozenset({"cpu_oom"}), _fix)
