"""The real job's own dependency: kept, taken over by its smoke job, and joined by a gate. Pure.

A smoke run ahead of what the job waits for would miss what that makes, so the smoke job waits for it too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["can_be_gated", "for_smoke", "gated", "waits_for_its_name"]

_SINGLETON: Final = "singleton"


def can_be_gated(own: str) -> bool:
    """Whether `afterany` can be joined to it: after `?` any one of its parts opens the job.

    >>> can_be_gated("afterok:1,afterany:2"), can_be_gated("afterok:1?afterok:2"), can_be_gated("")
    (True, False, True)
    """
    return "?" not in own


def gated(own: str, smoke: int) -> str:
    """The dependency of the real job behind a gate.

    >>> gated("afterok:1", 9), gated("", 9)
    ('afterok:1,afterany:9', 'afterany:9')
    """
    return f"{own},afterany:{smoke}" if own else f"afterany:{smoke}"


def waits_for_its_name(own: str) -> bool:
    """Whether it waits for the user's other jobs of its name."""
    return any(part.strip().lower() == _SINGLETON for part in re.split(r"[,?]", own))


def for_smoke(own: str, task: str = "", namesakes: Sequence[int] = ()) -> str | None:
    """The dependency of the smoke job; None for one that it cannot have.

    Its own name is another, so `singleton` becomes: after the namesakes that there are now. It stands for the first
    task of an array: `aftercorr` becomes `afterok` of the task with that number.

    >>> for_smoke("afterok:1,singleton", namesakes=[4, 5])
    'afterok:1,afterany:4:5'
    >>> for_smoke("aftercorr:7", "3"), for_smoke("singleton"), for_smoke("expand:3")
    ('afterok:7_3', '', None)
    """
    mark = "?" if "?" in own else ","
    parts = []
    for part in own.split(mark) if own else []:
        kind, colon, ids = part.strip().partition(":")
        if kind.lower() == _SINGLETON:
            if namesakes:
                parts.append("afterany:" + ":".join(map(str, namesakes)))
            elif mark == "?":
                return ""  # one of its parts is fulfilled
        elif kind.lower() == "aftercorr" and task:
            numbers = [one if "_" in one else f"{one}_{task}" for one in ids.split(":")]
            parts.append("afterok:" + ":".join(numbers))
        elif kind.lower() == "expand" or not colon:
            return None
        else:
            parts.append(part.strip())
    return mark.join(parts)
