"""The sentences of a decision, for its user: what is done and why, or why nothing is, and the command to type.

Names of nodes and jobs are Slurm's, reasons the taxonomy's: nothing of a log gets into them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from profiler.resubmissions import Action
from prolog_epilog.failures.advice import ADVICE
from prolog_epilog.failures.taxonomy import NONE, REASONS
from site_configs.hostlist import fold
from site_configs.units import format_duration, format_size
from slurm_plugins.resubmit.actions import Asked

__all__ = ["about", "command", "how", "nodes", "remedy", "sentence"]

_ID: Final = re.compile(r"[0-9]{1,10}([_+][0-9]{1,10})?")
_LONGEST: Final = 600
_SHOWN: Final = 120


def command(verb: str, shown: str, job_id: int) -> str:
    """What the user may type: ``gsub resubmit 12_3``."""
    return f"gsub {verb} {shown if _ID.fullmatch(shown) else job_id}"


def about(asked: Asked) -> str:
    """Why it failed, as the start of a sentence."""
    if asked.reason == NONE:
        return "Nothing of it failed"
    if not asked.sure:
        return "What is known does not surely say why it failed"
    text = REASONS[asked.reason].about
    return text[0].upper() + text[1:]


def remedy(reason: str) -> str:
    """What its user can do, as sentences; "" where there is nothing to do."""
    return ADVICE.get(reason, "")


def nodes(names: Sequence[str]) -> str:
    """A short hostlist."""
    text = fold(names)
    return text if len(text) <= _SHOWN else f"{len(names)} nodes"


def how(
    action: Action,
    *,
    avoid: Sequence[str],
    memory: tuple[int, int, str] | None,
    delay_s: float,
    note: str = "",
) -> str:
    """How the next attempt differs, to follow "it is tried again": " away from n3, where it failed"."""
    if memory is not None:
        more, was, per = memory
        every = "node" if per == "node" else "CPU"
        return f" with {format_size(more)} instead of {format_size(was)} for each {every}"
    if action == "once":
        place = f", away from {nodes(avoid)}" if avoid else ""
        return f" once{place}, as this may have been by chance"
    if avoid:
        return f" away from {nodes(avoid)}, where it failed"
    wait = f" in {format_duration(max(1, round(delay_s)))}" if delay_s else ""
    if action == "backoff":
        return f"{wait}, as this may pass by itself"
    if action == "from_checkpoint":
        return " from its checkpoint, with the same time"
    return f"{wait} where Slurm puts it: {note}" if note else ""


def sentence(*parts: str) -> str:
    """Parts as one text of sentences, within what a row holds."""
    return " ".join(part for part in parts if part)[:_LONGEST]
