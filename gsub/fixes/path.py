"""A file that is not there, and one beside it whose name is nearly the same: did you mean that one?"""

from __future__ import annotations

import difflib
import os
import re
from typing import Final

from gsub.fixes.paths import absolute, named, word_of
from gsub.fixes.values import Case, Files, Fix, Fixer

__all__ = ["FIXER", "near"]

_ALIKE: Final = 0.8
# It is put into a script as it is: a name that a shell would read as anything else is not, whoever gave it
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.+@%=,][A-Za-z0-9_.+@%=,-]*")
_CLEAR: Final = 0.06
"""By how much the nearest name must be nearer than the next."""


def near(path: str, files: Files) -> str | None:
    """The one existing path that differs from this absolute one in one name only, and there by little; else None."""
    parts = path.split("/")
    for place in range(1, len(parts)):
        parent = "/".join(parts[:place]) or "/"
        if files.kind(parent) != "folder":
            return None
        if files.kind("/".join(parts[: place + 1])):
            continue
        wrong = parts[place]
        scores = sorted(((_likeness(wrong, name), name) for name in files.names(parent)), reverse=True)
        if not scores or scores[0][0] < _ALIKE:
            return None
        if len(scores) > 1 and scores[0][0] - scores[1][0] < _CLEAR:
            return None  # two could be meant
        if not _PLAIN.fullmatch(scores[0][1]):
            return None
        meant = "/".join([*parts[:place], scores[0][1], *parts[place + 1 :]])
        return meant if files.kind(meant) == "file" else None
    return None


def _likeness(one: str, other: str) -> float:
    if one.lower() == other.lower():
        return 0.99
    if _digits(one) != _digits(other):
        return 0.0  # fold1.csv is not fold2.csv
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def _digits(text: str) -> list[str]:
    return re.findall(r"\d+", text)


def _fix(case: Case) -> Fix | None:
    for said in named(case.evidence):
        path = absolute(said, case.folder)
        if case.files.kind(path):
            continue
        meant = near(path, case.files)
        if meant is None:
            continue
        spelled = meant if os.path.isabs(said) else _as_spelled(said, path, meant)  # noqa: PTH117
        if spelled is None:
            continue
        why = f"{said} is not there, and {spelled} is."
        if _stands(said, case):
            return Fix(f"Did you mean {spelled}?", why, replace=((said, spelled),))
        return Fix(
            f"Did you mean {spelled}?", f"{why} The name stands neither in the script nor in its arguments."
        )
    return None


def _as_spelled(said: str, path: str, meant: str) -> str | None:
    """The path that was meant in the spelling of the one that was said: relative, with its ./ and ../"""
    wrong, right = path.split("/"), meant.split("/")
    at = next(place for place, (one, other) in enumerate(zip(wrong, right, strict=True)) if one != other)
    words = said.split("/")
    from_end = len(wrong) - at
    if from_end > len(words) or words[-from_end] != wrong[at]:
        return None
    words[-from_end] = right[at]
    return "/".join(words)


def _stands(said: str, case: Case) -> bool:
    """Whether the path stands as a word of its own in what is submitted."""
    return any(word_of(said).search(text) for text in (case.wrap or case.script, *case.words))


FIXER: Final = Fixer(frozenset({"missing_input", "environment_error"}), _fix)
