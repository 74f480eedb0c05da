"""What is known of failures' words: a signature, a rule for exceptions, the purpose of a stack frame, all of them.

Values without behaviour but the one that each is for: whether it speaks of a line, an exception, a frame. They are
read from files by `signature`; docs/signatures.md says what each key means.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import re2

__all__ = [
    "MEANINGS",
    "TIERS",
    "Entry",
    "ExceptionRule",
    "Meaning",
    "Purpose",
    "Rules",
    "Signature",
    "SignatureTier",
    "compiled",
    "plain_quotes",
]

SignatureTier: TypeAlias = Literal[
    "decisive",
    "explicit",
    "implicit",
    "cascade",
    "benign",
    "handled",
    "cleanup",
    "ended_well",
    "failed_end",
    "progress",
    "saving",
    "saved",
]
Meaning: TypeAlias = Literal[
    "read", "write", "checkpoint", "output", "download", "import", "init", "exec", "shm", "arguments"
]

TIERS: Final[Mapping[str, str]] = {
    "decisive": "required",  # the scheduler's own word
    "explicit": "required",  # names a cause
    "implicit": "required",  # a consequence that may be all there is
    "cascade": "required",  # reports of a lost peer, launchers' summaries
    "failed_end": "optional",  # says that it ended badly, not why
    "benign": "absent",  # looks like trouble and is none
    "handled": "absent",  # what came just before was dealt with
    "cleanup": "absent",  # what follows is clean-up
    "ended_well": "absent",  # the run ended as it should
    "progress": "absent",  # work was done
    "saving": "absent",  # a checkpoint is being saved: its path follows
    "saved": "absent",  # a checkpoint was saved: its path follows
}
"""Every tier, and whether its entries name a reason."""
MEANINGS: Final = (
    "read",
    "write",
    "checkpoint",
    "output",
    "download",
    "import",
    "init",
    "exec",
    "shm",
    "arguments",
)
"""What a frame does; `exec` starts another program, `shm` makes memory that processes share,
`arguments` checks options and settings."""


@functools.cache
def _options() -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes: a log's encoding is not to be relied on
    options.never_capture = True  # only where it matched is asked, which the DFA answers
    options.log_errors = False
    return options


_QUOTES: Final = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"'})


def plain_quotes(text: str) -> str:
    """Typographic quotes made plain, as `text` makes them in logs."""
    return text.translate(_QUOTES)


_COMPILED: Final[dict[str, re2._Regexp]] = {}


def compiled(pattern: str) -> re2._Regexp:
    """The pattern, compiled once for bytes. Typographic quotes are plain ones, as `text` makes them in logs.

    Raises `re2.error`.
    """
    known = _COMPILED.get(pattern)
    if known is None:
        known = _COMPILED[pattern] = re2.compile(plain_quotes(pattern).encode(), _options())
    return known


def _found(pattern: str, text: str) -> bool:
    return compiled(pattern).search(plain_quotes(text).encode()) is not None


@dataclass(frozen=True, slots=True)
class Signature:
    """A pattern that says something when a line of a log holds it.

    `literals`: every line that the pattern matches holds one of them (all lower case, and so compared, if the pattern
    begins with ``(?i)``). `weight` from 1 to 9 says how specific it is.
    """

    name: str
    tier: SignatureTier
    pattern: str
    reason: str = ""
    literals: tuple[str, ...] = ()
    advice: str = ""
    tool: str = ""
    source: str = ""
    weight: int = 5
    test: tuple[str, ...] = field(default=(), repr=False)
    never: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ignores_case(self) -> bool:
        """Whether the pattern matches letters of either case."""
        return self.pattern.startswith("(?i)")

    def found_in(self, line: str) -> bool:
        """Whether a line says it."""
        return _found(self.pattern, line)


@dataclass(frozen=True, slots=True)
class ExceptionRule:
    """What an exception means: by its class (`types`: last dotted components, "*" any), its message, what was done."""

    name: str
    types: tuple[str, ...]
    reason: str
    message: str = ""
    purpose: Meaning | None = None
    tier: SignatureTier = "explicit"
    advice: str = ""
    tool: str = ""
    source: str = ""
    weight: int = 5
    test: tuple[str, ...] = field(default=(), repr=False)
    never: tuple[str, ...] = field(default=(), repr=False)

    def says(self, kind: str, message: str) -> bool:
        """Whether it speaks of this exception: `kind` with or without its module, the purpose aside."""
        if "*" not in self.types and kind.rpartition(".")[2] not in self.types:
            return False
        return not self.message or _found(self.message, message)


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a stack frame ("file:function:source line") was doing."""

    name: str
    frame: str
    means: Meaning
    weight: int = 5
    tool: str = ""
    source: str = ""
    test: tuple[str, ...] = field(default=(), repr=False)
    never: tuple[str, ...] = field(default=(), repr=False)

    def found_in(self, frame: str) -> bool:
        """Whether this frame is of it."""
        return _found(self.frame, frame)


Entry: TypeAlias = "Signature | ExceptionRule | Purpose"


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: `load` makes each once
class Rules:
    """All that is known of failures' words, in the order of the files; a name is unique among all kinds."""

    signatures: tuple[Signature, ...] = ()
    exceptions: tuple[ExceptionRule, ...] = ()
    purposes: tuple[Purpose, ...] = ()

    def __len__(self) -> int:
        return len(self.signatures) + len(self.exceptions) + len(self.purposes)

    def reason_of(self, name: str) -> str:
        """The reason that the entry of this name gives ("" if none). Raises KeyError."""
        for signature in self.signatures:
            if signature.name == name:
                return signature.reason
        for rule in self.exceptions:
            if rule.name == name:
                return rule.reason
        raise KeyError(name)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All of them."""
        return (*self.signatures, *self.exceptions, *self.purposes)
