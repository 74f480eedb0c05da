"""Signatures: what the tools of the field print when something fails, as data that a sysadmin can read and extend.

A file is TOML with three kinds of entries: `signature` (a pattern for one line of a log), `exception` (for the last
line of a Python traceback) and `purpose` (what a stack frame was doing). docs/signatures.md has every key. Ours are
the files of `signatures/`; a site names its own in its site file (`failures.signatures`).

>>> rules = load()
>>> len(rules) > 230
True

Patterns are RE2's: their time is linear in the length of the line, whatever the pattern, and whatever the log.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import re2

from prolog_epilog.failures import signature_file
from prolog_epilog.failures.entries import KINDS, SignatureError, entries_of, literals_of
from prolog_epilog.failures.literals import Underivable
from prolog_epilog.failures.rules import (
    MEANINGS,
    TIERS,
    Entry,
    ExceptionRule,
    Meaning,
    Purpose,
    Rules,
    Signature,
    SignatureTier,
    compiled,
    plain_quotes,
)
from site_configs.kinds import quoted

__all__ = [
    "MEANINGS",
    "PACKAGED",
    "TIERS",
    "Entry",
    "ExceptionRule",
    "Meaning",
    "Purpose",
    "Rules",
    "Signature",
    "SignatureError",
    "SignatureTier",
    "check",
    "compiled",
    "entries_of",
    "exception_line",
    "load",
    "load_files",
]

PACKAGED: Final = Path(__file__).parent / "signatures"
"""Our own files."""


def exception_line(line: str) -> tuple[str, str]:
    """The class and the message of a traceback's last line.

    >>> exception_line("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried: 2")
    ('torch.cuda.OutOfMemoryError', 'CUDA out of memory. Tried: 2')
    """
    kind, _, message = line.partition(": ")
    return kind.strip().rstrip(":"), message.strip()


def _says(entry: Entry, line: str) -> bool:
    """Whether an entry speaks of one of its test lines."""
    if isinstance(entry, ExceptionRule):
        return entry.says(*exception_line(line))
    return entry.found_in(line)


def _searched(entry: Entry) -> tuple[str, str]:
    """The key that holds the pattern, and the pattern."""
    if isinstance(entry, Signature):
        return "pattern", entry.pattern
    return ("message", entry.message) if isinstance(entry, ExceptionRule) else ("frame", entry.frame)


def check(entry: Entry) -> list[tuple[str, str]]:
    """What is wrong with an entry by its own words: key and sentence. Compiles the pattern and tries the test lines."""
    key, pattern = _searched(entry)
    try:
        compiled(pattern)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        return [(key, f"not RE2: {said.decode() if isinstance(said, bytes) else said}")]
    wrong = [("test", f"is not matched: {quoted(line)}") for line in entry.test if not _says(entry, line)]
    wrong += [("never", f"is matched: {quoted(line)}") for line in entry.never if _says(entry, line)]
    if isinstance(entry, Signature):
        if not entry.test:
            wrong.append(("test", "missing: at least one real line"))
        for line in entry.test:
            seen = plain_quotes(line)
            seen = seen.lower() if entry.ignores_case else seen
            if not any(literal in seen for literal in entry.literals):
                wrong.append(("literal", f"none of {', '.join(entry.literals)} is in {quoted(line)}"))
        if entry.pattern and compiled(entry.pattern).search(b"") is not None:
            wrong.append((key, "matches an empty line"))
    return wrong


def _rules(entries: Iterable[Entry]) -> Rules:
    each = tuple(entries)
    return Rules(
        tuple(entry for entry in each if isinstance(entry, Signature)),
        tuple(entry for entry in each if isinstance(entry, ExceptionRule)),
        tuple(entry for entry in each if isinstance(entry, Purpose)),
    )


def load_files(
    paths: Sequence[str | Path], *, checked: bool, taken: Mapping[str, str] | None = None
) -> Rules:
    """The rules of these files; `checked`: with every pattern compiled and tried on its test lines.

    `taken` says whose names cannot be used. Raises SignatureError.
    """
    found: list[Entry] = []
    owners = dict(taken or {})
    for path in map(Path, paths):
        entries, errors = entries_of(path)
        for error in errors:
            raise error
        for entry in entries:
            if entry.name in owners:
                wrong = f"is taken by {owners[entry.name]}"
                raise SignatureError(
                    str(path), entry.name, "name", wrong, "Choose another: each name is there once."
                )
            owners[entry.name] = str(path)
            for key, wrong in check(entry) if checked else ():
                remedy = "`python -m prolog_epilog.failures.signature FILE` tells all that is wrong."
                raise SignatureError(str(path), entry.name, key, wrong, remedy)
        found += entries
    return _rules(found)


def _trusted(path: Path) -> Iterator[Entry]:
    """The entries of one of our own files, which tests have checked, without what only a check needs."""
    tables = signature_file.parse_quickly(path.read_text("utf-8"), without=("test", "never"))
    for kind, maker in KINDS.items():
        for table in tables.get(kind, ()):
            values: dict[str, Any] = {
                key: tuple(value) if type(value) is list else value for key, value in table.items()
            }
            if kind == "signature":
                values["literals"] = literals_of(values["pattern"], values.pop("literal", None))
            yield maker(**values)


def _ours() -> Rules:
    files = sorted(PACKAGED.glob("*.toml"))
    try:
        return _rules(entry for path in files for entry in _trusted(path))
    except (TypeError, KeyError, Underivable, signature_file.NotTomlError):
        return load_files(files, checked=False)  # which says what is wrong


@functools.lru_cache(maxsize=4)
def _load(paths: tuple[str, ...]) -> Rules:
    ours = _ours()
    if not paths:
        return ours
    taken = dict.fromkeys((entry.name for entry in ours.entries), "one of gsub's own")
    return _rules((*ours.entries, *load_files(paths, checked=True, taken=taken).entries))


def load(paths: Sequence[str | Path] = ()) -> Rules:
    """Our rules and those of a site's files; kept, so that a second call costs nothing.

    A site's entries are checked whole. Raises SignatureError.
    """
    return _load(tuple(map(str, paths)))


if __name__ == "__main__":
    from prolog_epilog.failures.signature_check import main

    raise SystemExit(main())
