"""Where `python -m NAME` finds its file, among the folders of the user's own; nothing is imported."""

# ruff: noqa: PTH113, PTH118 - paths as scripts have them

from __future__ import annotations

import os
import re
from typing import Final

__all__ = ["module_path"]

_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def module_path(folder: str | None, name: str) -> str | None:
    """The file that `python -m NAME` runs where it lies below the folder that it is called in; None where not."""
    if folder is None or not _NAME.fullmatch(name):
        return None
    base = os.path.join(folder, *name.split("."))
    for path in (os.path.join(base, "__main__.py"), f"{base}.py"):
        if os.path.isfile(path):
            return path
    return None
