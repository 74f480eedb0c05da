"""The folder that a command is called in, which may be gone."""

from __future__ import annotations

import os

from gsub.errors import USAGE, UserError

__all__ = ["here"]


def here() -> str:
    """The folder, as sbatch sends it. Raises UserError where it is gone: sbatch submits nothing from there either."""
    try:
        return os.getcwd()  # noqa: PTH109 - a text, as sbatch has it
    except FileNotFoundError:
        raise UserError("the folder you are in is gone", fix="cd to another", exit_code=USAGE) from None
