"""Whether a permission that a script lacked in an overlay is one that its user lacks without it, too."""

# ruff: noqa: PTH110, PTH112, PTH118, PTH120 - paths as scripts have them

from __future__ import annotations

import os
import re
from typing import Final

__all__ = ["denied"]

_QUOTED: Final = re.compile(r"'([^'\n]{1,1000})'|\"([^\"\n]{1,1000})\"|[‘`]([^’'\n]{1,1000})[’']")


def denied(text: str, cwd: str) -> bool:
    """Whether a message about permissions names a path that this process, outside of any overlay, may not use either.

    A path that is not there counts as the nearest folder above it that is: there it would have to be made. Relative
    ones count from `cwd`, so one of a script that has gone elsewhere leads to no answer, which is False.
    """
    for found in _QUOTED.finditer(text):
        path = os.path.normpath(os.path.join(cwd, next(one for one in found.groups() if one)))
        if "\0" in path:
            continue
        while not os.path.exists(path) and path != "/":
            path = os.path.dirname(path)
        wanted = os.R_OK | os.W_OK | (os.X_OK if os.path.isdir(path) else 0)
        if not os.access(path, wanted, effective_ids=True):
            return True
    return False
