"""Reads a file of signatures: TOML."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["TomlError", "parse"]

TomlError = tomllib.TOMLDecodeError


def parse(text: str) -> dict[str, Any]:
    """The tables of a file. Raises TomlError."""
    return tomllib.loads(text)
