"""``python -m prolog_epilog.failures.signature [FILE...]``: what is wrong in files of signatures; all of it at once.

Without a FILE all of ours. Exit code 1 if anything is wrong; what may be right on purpose is only told.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from profiler.logs import one_line
from prolog_epilog.failures.signature import (
    PACKAGED,
    Entry,
    Purpose,
    Signature,
    check,
    entries_of,
)

__all__ = ["main", "problems", "remarks"]

_WEAK: Final = 5
_EVERYWHERE: Final = frozenset(
    {
        "error",
        "error:",
        "warning",
        "failed",
        "exception",
        "epoch",
        "step",
        "loss",
        "file",
        "line",
        "traceback",
    }
)
"""Literals that most lines of many logs hold: the pattern is then tried on all of them."""


def problems(path: Path, taken: dict[str, str]) -> Iterator[str]:
    """A line for each thing that is wrong in a file; `taken` collects whose each name is."""
    entries, errors = entries_of(path)
    yield from (str(error).replace("\n", "\n    ") for error in errors)
    for entry in entries:
        if entry.name in taken:
            yield f"{path}: {entry.name}: name: is taken by {taken[entry.name]}"
        taken.setdefault(entry.name, str(path))
        yield from (f"{path}: {entry.name}: {key}: {wrong}" for key, wrong in check(entry))


def _others_that_match(entry: Entry, signatures: Sequence[Signature]) -> Iterator[str]:
    """Signatures of another reason and at least the same weight that match one of its test lines."""
    if not isinstance(entry, Signature) or entry.tier not in ("decisive", "explicit"):
        return
    for line in entry.test:
        for other in signatures:
            clash = other.tier in ("decisive", "explicit") and other.reason != entry.reason
            if clash and other.weight >= entry.weight and other.found_in(line):
                yield f"{entry.name}: {other.name} ({other.reason}) speaks of its test line too: {line[:100]}"


def remarks(entries: Sequence[Entry]) -> Iterator[str]:
    """A line for each thing that may be right on purpose: weak literals, missing sources, overlaps."""
    signatures = [entry for entry in entries if isinstance(entry, Signature)]
    for entry in entries:
        if isinstance(entry, Signature):
            weak = [
                each for each in entry.literals if len(each) < _WEAK or each.strip().lower() in _EVERYWHERE
            ]
            if weak:
                yield f"{entry.name}: literal found nearly everywhere: {', '.join(weak)}"
        if not entry.source and not isinstance(entry, Purpose):
            yield f"{entry.name}: no source: where does the tool print it?"
        yield from _others_that_match(entry, signatures)


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m prolog_epilog.failures.signature", description="Check files of signatures."
    )
    parser.add_argument("files", nargs="*", type=Path, help="default: all of gsub's own")
    parser.add_argument("--quiet", action="store_true", help="errors only, no remarks")
    options = parser.parse_args(argv)
    ours = sorted(PACKAGED.glob("*.toml"))
    files = options.files or ours
    taken: dict[str, str] = {}
    given = {path.resolve() for path in files}
    for path in ours:
        if path.resolve() not in given:
            taken.update((entry.name, str(path)) for entry in entries_of(path)[0])
    wrong = [line for path in files for line in problems(path, taken)]
    for line in wrong:
        print(*(one_line(part) for part in line.split("\n")), sep="\n  ", file=sys.stderr)
    entries = [entry for path in files for entry in entries_of(path)[0]]
    if not options.quiet:
        for line in remarks(entries):
            print(f"remark: {one_line(line)}")
    counts = Counter(type(entry).__name__ for entry in entries)
    print(
        f"{len(files)} files: {', '.join(f'{n} {kind}' for kind, n in counts.items()) or 'nothing'}", end=""
    )
    print(f"; {len(wrong)} wrong" if wrong else "; all right")
    return 1 if wrong else 0
