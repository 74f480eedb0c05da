"""What a file goes back to: what it was before, or, where somebody has changed it since, itself without our part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slurm_plugins.install.host import Host
from slurm_plugins.install.job_submit import unchained
from slurm_plugins.install.journal import Journal, State, state_of
from slurm_plugins.install.layout import Layout
from slurm_plugins.install.slurm_conf import unedit

__all__ = ["Back", "restored"]


@dataclass(frozen=True, slots=True)
class Back:
    """The content to put back; None: there is to be no file. `why`: what is to be told of it, empty for the usual."""

    content: bytes | None
    why: str = ""


def restored(host: Host, layout: Layout, journal: Journal, path: Path, original: State | None) -> Back:
    """What `path` goes back to; `original`: what it was before the first change, None: the journal does not know.

    Raises
    ------
    HostError: the file cannot be read.
    """
    now = host.read(path)
    ours = now is None or (journal.is_ours(path, state_of(host, path)) and journal.is_ours_alone(path))
    if original is not None and ours:
        if original.kind != "file":
            return Back(None)
        if (kept := journal.copy(original)) is not None:
            return Back(kept)
    if now is None:
        return Back(None)
    without = unchained(now) if path == layout.job_submit else unedit(now)
    if original is None:
        return Back(without)
    why = "changed since by somebody: those changes stay" if without is not None else ""
    return Back(without, why)
