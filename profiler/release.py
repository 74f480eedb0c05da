"""Which release of gsub this is, for floors that may not look up to `gsub`."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

__all__ = ["release"]


@cache
def release() -> str:
    """The release as it was installed, "" where it runs from sources that nobody installed."""
    try:
        return version("gsub")
    except PackageNotFoundError:
        return ""
