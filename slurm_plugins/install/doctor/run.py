"""A run of doctor: every check in a thread of its own, so that what hangs costs its own answer and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from profiler.logs import one_line
from slurm_plugins.install.doctor.check import Check, Said, UnseenError
from slurm_plugins.install.doctor.net import Net
from slurm_plugins.install.doctor.sight import Question, Sight
from slurm_plugins.install.doctor.table import CHECKS
from slurm_plugins.install.finding import Finding
from slurm_plugins.install.host import Host, HostError
from slurm_plugins.install.layout import Layout

__all__ = ["SECONDS", "diagnose", "examine"]

SECONDS: Final = 25.0
"""A whole run; what has not answered by then is unknown."""
_WIDTH: Final = 400
_ROLES_SECONDS: Final = 12.0


def diagnose(
    host: Host,
    layout: Layout,
    question: Question | None = None,
    *,
    net: Net | None = None,
    only: Collection[str] = (),
    seconds: float = SECONDS,
) -> tuple[Finding, ...]:
    """What is found on a host, in the order of the table. Only reads; never raises.

    Parameters
    ----------
    only: names of checks; empty: all that belong to the host's roles. One that is named is made in any case.
    seconds: after which it returns, whatever hangs.
    """
    return examine(Sight(host, layout, question, net), only=only, seconds=seconds)


def examine(sight: Sight, *, only: Collection[str] = (), seconds: float = SECONDS) -> tuple[Finding, ...]:
    """As `diagnose`, for what is looked at already or will be looked at further."""
    until = time.monotonic() + seconds
    if only:
        checks: Sequence[Check] = [check for check in CHECKS if check.name in only]
    else:
        roles = set(_roles(sight, seconds))
        checks = [check for check in CHECKS if check.on & roles]
    answers: SimpleQueue[tuple[str, list[Finding]]] = SimpleQueue()
    for check in checks:
        # Not waited for at the end: what hangs in a file system may do so for ever.
        threading.Thread(
            target=lambda check=check: answers.put((check.name, _made(check, sight))), daemon=True
        ).start()
    found: dict[str, list[Finding]] = {}
    while len(found) < len(checks):
        try:
            name, findings = answers.get(timeout=max(until - time.monotonic(), 0.0))
        except Empty:
            break
        found[name] = findings
    late = [Finding("", "unknown", f"no answer in {seconds:g} s: something that it looks at hangs")]
    return tuple(
        Finding(check.name, one.level, one.seen, one.remedy)
        for check in checks
        for one in found.get(check.name, late)
    )


def _roles(sight: Sight, seconds: float) -> Sequence[str]:
    """The host's roles; all of them where it cannot be found out in time."""
    answer: SimpleQueue[Sequence[str]] = SimpleQueue()
    threading.Thread(target=lambda: answer.put(sight.roles), daemon=True).start()
    try:
        return answer.get(timeout=min(_ROLES_SECONDS, seconds / 2))
    except Empty:
        return ("controller", "node")


def _made(check: Check, sight: Sight) -> list[Finding]:
    said: list[Said] = []
    try:
        for one in check.look(sight):
            said.append(one)
    except (UnseenError, HostError) as error:
        said.append(Said("unknown", str(error)))
    except Exception as error:  # one check that fails must not hide what the others found
        said.append(Said("unknown", f"this check failed: {type(error).__name__}: {error}; please report it"))
    return [_finding(check, one) for one in said]


def _finding(check: Check, said: Said) -> Finding:
    bad = said.level in ("warning", "error")
    remedy = said.remedy or (check.remedy if bad else "")
    return Finding(check.name, said.level, one_line(said.seen, _WIDTH), one_line(remedy, _WIDTH))
