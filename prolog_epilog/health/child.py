"""The process in which checks run that may block: ``python -m prolog_epilog.health.child``, started by `children`.

It reads one line, a JSON list of tasks, writes an empty line when it has started, runs them in order, writes a line
for each, and ends with all that it started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from prolog_epilog.health.finding import Finding, HealthCheck, cleaned
from prolog_epilog.health.tasks import Answer, Task

__all__ = ["GROUP", "answer", "main"]

GROUP: Final = "gsub.health"
"""The entry point group of a site's own checks."""

_PR_SET_PDEATHSIG: Final = 1
_MOST_FINDINGS: Final = 256


def answer(task: Task) -> Answer:
    """Run a task here and now; what it raises makes its state unknown."""
    try:
        found = _run(task)
        findings = tuple(_bounded(one) for one in islice(found, _MOST_FINDINGS))
    # A site's code may raise anything, and may say sys.exit(); one of ours may meet an odd /sys.
    except (Exception, SystemExit) as error:
        findings = (Finding("unknown", cleaned(f"failed: {type(error).__name__}: {error}")),)
    return Answer(task.name, findings)


def _run(task: Task) -> Iterable[Finding]:
    if task.kind == "command":
        from prolog_epilog.health.command import run

        return (run(task),)
    if task.kind == "plugin":
        return _of_plugin(task)
    from prolog_epilog.health.node_checks import NODE_CHECKS

    return NODE_CHECKS[task.name](task)


def _of_plugin(task: Task) -> Iterable[Finding]:
    from importlib.metadata import EntryPoint

    named = EntryPoint(task.name, task.value, GROUP).load()
    if not (isinstance(named, type) and issubclass(named, HealthCheck)):
        raise TypeError("want a class derived from prolog_epilog.health.finding.HealthCheck")
    found = named().check()  # an abstract one raises TypeError here
    return (found,) if isinstance(found, Finding) else found


def _bounded(finding: Finding) -> Finding:
    if not isinstance(finding, Finding) or finding.state not in ("ok", "warning", "error", "unknown"):
        raise TypeError(f"want findings, not {type(finding).__name__} {finding!r}")
    return Finding(
        finding.state,
        cleaned(str(finding.detail), 500),
        cleaned(str(finding.subject), 300),
        cleaned(str(finding.gpu), 128),
        bool(finding.certain),
    )


def main() -> None:
    """Serve one list of tasks on standard input and output, out of which others' chatter is kept."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Not to outlive the agent. What is in uninterruptible sleep outlives anything.
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tasks = msgspec.json.decode(sys.stdin.buffer.readline(), type=list[Task])
    answers.write(b"\n")  # from here on the time is the checks' own
    answers.flush()
    for task in tasks:
        answers.write(msgspec.json.encode(answer(task)) + b"\n")
        answers.flush()
    answers.close()
    # With it goes what a program or a thread left behind. (A thread in a dead mount's call keeps this process there.)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
