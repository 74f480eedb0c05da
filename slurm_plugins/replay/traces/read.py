"""What a file is, by its first line; and its jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from slurm_plugins.replay.traces.files import Kind, Reading, TraceError, lines
from slurm_plugins.replay.traces.itp import ITP
from slurm_plugins.replay.traces.openb import OPENB
from slurm_plugins.replay.traces.philly import PHILLY
from slurm_plugins.replay.traces.sacct import EXPORT, SACCT
from slurm_plugins.replay.traces.synergy import SYNERGY

__all__ = ["KINDS", "read"]

KINDS: Final[tuple[Kind, ...]] = (SACCT, PHILLY, ITP, OPENB, SYNERGY)


def read(path: Path) -> Reading:
    """The jobs of a file, whichever kind it is, packed by gzip or not.

    Raises TraceError for one that cannot be read, is of no kind, or has no job that can be replayed.
    """
    with lines(path) as found:
        head = next(found, None)
    if head is None:
        raise TraceError(f"{path} is empty", f"export with: {EXPORT}")
    for kind in KINDS:
        if kind.knows(head):
            return kind.read(path)
    if head[:1].isdigit() and head.count("|") > 3:
        raise TraceError(f"{path}: its first line has no names of fields", "export without --noheader")
    told = ", ".join(kind.told for kind in KINDS)
    raise TraceError(f"{path} is no trace of a known kind: {told}", f"export with: {EXPORT}")
