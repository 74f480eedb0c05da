"""Putting shipped hooks where they work: the lines that say where their folders are.

Used by what installs gsub on a site and by the development cluster, which is one.
"""

from __future__ import annotations

import re

__all__ = ["PlacingError", "hook"]


class PlacingError(ValueError):
    """A script has no line, or more than one, for what is to be put in; the message names it."""


def hook(text: str, *, spool: str, run: str) -> str:
    """A hook with these folders for those of an ordinary installation. One that names none is left as it is.

    >>> hook("SPOOL=/var/spool/gsub RUN=/run/gsub-noded EVENT=epilog", spool="/s", run="/r")
    'SPOOL=/s RUN=/r EVENT=epilog'
    """
    if not re.search(r"^(?:\w+=\S* )*(?:SPOOL|RUN)=", text, flags=re.MULTILINE):
        return text
    for place, folder in {"SPOOL": spool, "RUN": run}.items():
        text = _once(rf"^((?:\w+=\S* )*{place}=)\S*", folder, text, f"{place}=...")
    return text


def _once(pattern: str, value: str, text: str, line: str) -> str:
    # By a function: a backslash in a folder's name is no reference to a group.
    changed, times = re.subn(pattern, lambda found: found[1] + value, text, flags=re.MULTILINE)
    if times != 1:
        raise PlacingError(f"want one line with {line} to put {value} in, found {times}")
    return changed
