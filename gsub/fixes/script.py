"""A program of the user's that cannot be started: no executable bit, or the line ends of DOS."""

from __future__ import annotations

import re
import shlex
from typing import Final

from gsub.fixes.paths import absolute, named
from gsub.fixes.values import Case, Fix, Fixer

__all__ = ["FIXER"]

_DOS: Final = re.compile(r"\^M|\\r|\r")
_NOT_RUN: Final = re.compile(
    r"Permission denied|bad interpreter|cannot execute|command not found|No such file or directory"
)


def _fix(case: Case) -> Fix | None:
    return _dos(case) or _no_bit(case)


def _no_bit(case: Case) -> Fix | None:
    for line in case.evidence:
        if "Permission denied" not in line:
            continue
        for said in named([line]):
            path = absolute(said, case.folder)
            files = case.files
            starts = files.text(path)[:2] in ("#!", "\x7fE")
            if (
                files.kind(path) == "file"
                and starts
                and files.may(path, "own")
                and not files.may(path, "execute")
            ):
                return Fix(
                    f"Make {said} executable.",
                    f"{said} is a program without its executable bit.",
                    typed=(f"chmod u+x {shlex.quote(path)}",),
                )
    return None


def _dos(case: Case) -> Fix | None:
    """Only a file that the message names, and that has such line ends."""
    for line in case.evidence:
        if not (_DOS.search(line) and _NOT_RUN.search(line)):
            continue
        for said in _mentioned(line):
            path = absolute(said, case.folder)
            if case.files.kind(path) == "file" and "\r\n" in case.files.text(path):
                return Fix(
                    f"Give {said} the line ends of Unix.",
                    f"{said} has the line ends of DOS, and the shell takes them for part of its words.",
                    typed=(f"sed -i 's/\\r$//' {shlex.quote(path)}",),
                )
    return None


def _mentioned(line: str) -> list[str]:
    """Words of the message that look like files: `./run.sh: line 2: $'\\r': command not found`."""
    return [word for word in re.findall(r"[\w./+-]+", line) if "/" in word or "." in word]


FIXER: Final = Fixer(frozenset({"permission_error", "environment_error", "missing_input"}), _fix)
