"""A disk that is full: which one, and what it has free by now. What may go is its user's to say."""

from __future__ import annotations

import os
import shlex
from typing import Final

from gsub.fixes.paths import absolute, named
from gsub.fixes.values import Case, Fix, Fixer
from site_configs.units import format_size

__all__ = ["FIXER"]

_SCANT: Final = 0.02
"""A file system with less than this share free is full for a job."""
_FILES: Final = 100


def _fix(case: Case) -> Fix | None:
    for said in named(case.evidence):
        where = absolute(said, case.folder)
        while where != "/" and case.files.kind(where) != "folder":
            where = os.path.dirname(where)  # noqa: PTH120
        found = case.files.free(where)
        if found is None or where == "/":
            continue
        free, total, files = found
        typed = (f"df -h {shlex.quote(where)}", f"du -xsh {shlex.quote(where)}/* | sort -h | tail")
        if total and free < total * _SCANT:
            return Fix(
                f"Free space in {where}.", f"Its disk has {_size(free)} left of {_size(total)}.", typed=typed
            )
        if 0 <= files < _FILES:
            return Fix(
                f"Remove files in {where}.",
                f"Its disk takes {files} more files, whatever their size.",
                typed=typed,
            )
        if "quota" in " ".join(case.evidence).lower():
            return Fix(
                f"Free space in {where}.", "Your quota there was used up.", typed=("quota -s", *typed[1:])
            )
        return None  # it has space by now, or it was the node's own disk, which is not seen from here
    return None


def _size(count: int) -> str:
    return format_size(max(1, count >> 20))


FIXER: Final = Fixer(frozenset({"no_space"}), _fix)
