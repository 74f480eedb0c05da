"""A submission with fixes in it: options set, a line put into the script, one text put in place of another.

The user's own file is not touched here: the script is text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gsub.fixes.paths import word_of
from gsub.fixes.values import Fix
from gsub.resubmission.change import Change
from gsub.resubmission.original import Original, with_script

__all__ = ["applied", "inserted", "options_of"]

_COMMENT: Final = re.compile(r"\s*(?:#|$)")


def applied(original: Original, fixes: Sequence[Fix]) -> Original:
    """The same submission with another script and other arguments, where the fixes say so."""
    args = original.given.args
    script = original.script
    for fix in fixes:
        for old, new in fix.replace:
            args = tuple(_replaced(word, old, new) for word in args)
            script = (
                _replaced(script, old, new) if script is not None and original.source != "wrap" else script
            )
        if fix.insert and script is not None and original.source != "wrap":
            script = inserted(script, fix.insert)
    changed = replace(original, given=replace(original.given, args=args))
    if script is None or script == original.script:
        return changed
    return with_script(changed, script)


def _replaced(text: str, old: str, new: str) -> str:
    # A function, so that a backslash in the new name is one
    return word_of(old).sub(lambda _: new, text)


def inserted(script: str, line: str) -> str:
    r"""A shell script with a line before its first command, behind all of its #SBATCH lines.

    >>> inserted("#!/bin/sh\n#SBATCH -N2\n\npython train.py\n", "mkdir -p out")
    '#!/bin/sh\n#SBATCH -N2\n\nmkdir -p out\npython train.py\n'
    """
    lines = script.split("\n")
    at = next((place for place, text in enumerate(lines) if not _COMMENT.match(text)), len(lines))
    return "\n".join([*lines[:at], line, *lines[at:]])


def options_of(original: Original, fixes: Sequence[Fix]) -> tuple[Change, ...]:
    """The options that the fixes set, each once; the command of --wrap among them where it changes."""
    found: dict[str, Change] = {}
    for fix in fixes:
        for change in fix.options:
            found.setdefault(change.name, change)
    before = original.given.value("wrap")
    if before is not None:
        wrap, why = before, ""
        for fix in fixes:
            for old, new in fix.replace:
                wrap = _replaced(wrap, old, new)
            wrap = f"{fix.insert}; {wrap}" if fix.insert else wrap
            why = why or (fix.why if wrap != before else "")
        if wrap != before:
            found["wrap"] = Change("wrap", wrap, before, why)
    return tuple(found.values())
