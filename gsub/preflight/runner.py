"""Running the checks side by side under one deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from gsub.preflight.table import CHECKS, Check
from gsub.preflight.values import Finding, LeftOutError, Submission, Verdict

__all__ = ["DEADLINE", "preflight"]

DEADLINE: Final = 2.0
"""Seconds for all of it; what takes longer is dropped and delays nothing."""
_MOST_FINDINGS: Final = 20


def preflight(
    submission: Submission, *, alone: bool, deadline: float = DEADLINE, checks: Sequence[Check] = CHECKS
) -> Verdict:
    """All checks over a submission.

    Parameters
    ----------
    alone: sbatch is not asked right after this; its own refusals are looked for too.
    deadline: seconds for all of it.

    Never raises: a check that fails or is late says nothing, and one that was left out midway what it had found.
    """
    rows = [check for check in checks if alone or not check.sbatch_tells]
    answers: dict[str, tuple[Finding, ...]] = {}
    given_up: dict[str, str] = {}
    until = time.monotonic() + deadline

    def look(check: Check) -> None:
        found: list[Finding] = []
        try:
            found.extend(islice(check.look(submission), _MOST_FINDINGS))
        except LeftOutError as error:
            given_up[check.name] = str(error)
            answers[check.name] = tuple(found)
        except Exception as error:  # a check of ours that is wrong must not stand in the way of a job
            given_up[check.name] = f"{type(error).__name__}: {error}"
        else:
            answers[check.name] = tuple(found)

    threads = [threading.Thread(target=look, args=(check,), daemon=True) for check in rows]
    for thread in threads:
        thread.start()
    for check, thread in zip(rows, threads, strict=True):
        thread.join(max(0.0, min(until - time.monotonic(), check.deadline)))
        if thread.is_alive():
            given_up[check.name] = "not done in time"
    found = [replace(one, check=check.name) for check in rows for one in answers.get(check.name, ())]
    once = {(one.level, one.file, one.line, one.what): one for one in reversed(found)}
    ordered = sorted(once.values(), key=lambda one: (one.level != "error", found.index(one)))
    return Verdict(tuple(ordered), tuple(given_up.items()))
