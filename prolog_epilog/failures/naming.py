"""What an exception means: the rule of its class and message, and what its stack was doing (reading, writing...)."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from prolog_epilog.failures.signature import ExceptionRule, Purpose, Rules
from prolog_epilog.failures.signs import Sign
from prolog_epilog.failures.taxonomy import NO_SIGNATURE
from prolog_epilog.failures.text import LogText
from prolog_epilog.failures.trace import Frame, Raised

__all__ = ["Namer"]

_INNERMOST: Final = 40
"""Frames from the innermost out that are asked for their purpose."""
_AROUND: Final = 6
"""Lines around an exception without a stack that are asked for what was going on."""
_WEAK: Final = 3
"""Weight up to which a frame (say that of `os.makedirs`) gives way to what the log says around it."""
_CLEANING: Final = re.compile(
    r"^(?:__del__|_run_exitfuncs|_exit_function|_python_exit|atexit_\w+|_atexit\w*|destroy_process_group|_teardown)$"
)
_MILD: Final = re.compile(
    r"^.{0,60}?(?:\bWARN(?:ING)?\b|\[W\b|\bW\d{4} ).{0,200}"
    r"(?i:fail|error|exception|could ?n[o']t|unable|skip|retr|ignor|caught)"
)
"""A warning that says what went wrong: Python's `logging` prints the traceback on the next lines (`exc_info`)."""
_BARE_MILD: Final = re.compile(r"^.{0,60}?(?:\b(?:WARN|WARNING|INFO|DEBUG)\b|^[Ww]arning:)")


class Namer:
    """Finds the rules for exceptions, by their class."""

    def __init__(self, rules: Rules) -> None:
        self._by_type: dict[str, list[ExceptionRule]] = defaultdict(list)
        for rule in rules.exceptions:
            for kind in rule.types:
                self._by_type[kind].append(rule)
        self._purposes = rules.purposes
        # Exceptions stand close together, and share the lines around them: a log of a thousand has each asked once
        self._meant = functools.lru_cache(maxsize=4096)(self._meanings)

    def signs(self, log: int, serial: int, chain: Sequence[Raised], text: LogText) -> list[Sign]:
        """What a chain of exceptions says, a sign for each that counts."""
        plain = [raised for raised in chain if not raised.wrapper] or list(chain)
        if any(not raised.launcher and raised.type for raised in plain):
            plain = [raised for raised in plain if not raised.launcher and raised.type]
        # What wraps another process' exception comes first in print, and is of it.
        inner = [raised for raised in plain if raised.link == "inner" and raised.type]
        if inner and plain[0] not in inner:
            plain = inner + [raised for raised in plain if raised not in inner]
        return [sign for raised in plain if (sign := self._sign(log, serial, raised, text)) is not None]

    def _sign(self, log: int, serial: int, raised: Raised, text: LogText) -> Sign | None:
        head = text.line(max(raised.first - 1, 0)).raw[:300]
        shape = {
            "line": raised.at,
            "log": log,
            "first": raised.first,
            "chain": serial,
            "rank": raised.at.rank,
            "node": raised.at.node,
            "at": raised.at.time,
            "tidying": _cleaning(raised.frames),
        }
        if not raised.type:
            return Sign("python-cut-off", "traceback", "implicit", 0, **shape)  # type: ignore[arg-type]
        if raised.launcher:
            return Sign("python-launcher", NO_SIGNATURE, "failed_end", 2, **shape)  # type: ignore[arg-type]
        rule = self.rule(raised, text)
        mild = bool(_BARE_MILD.match(raised.at.raw[:200]) if raised.bare else _MILD.match(head))
        fatal = not raised.bare and not mild
        if rule is None:
            if raised.bare:
                return None
            return Sign(
                "python-uncaught",
                "traceback",
                "implicit",
                2,
                fatal=fatal,
                mild=mild,
                **shape,  # type: ignore[arg-type]
            )
        return Sign(
            rule.name,
            rule.reason,
            rule.tier,  # type: ignore[arg-type]  # an exception names a reason
            rule.weight,
            advice=rule.advice,
            tool=rule.tool or "python",
            fatal=fatal,
            mild=mild,
            **shape,  # type: ignore[arg-type]
        )

    def rule(self, raised: Raised, text: LogText) -> ExceptionRule | None:
        """The most precise rule for an exception: by weight, then by what it asks for."""
        names = (raised.name, "*") if raised.name != "*" else ("*",)
        rules = [rule for name in names for rule in self._by_type.get(name, ())]
        if not rules:
            return None
        message = raised.message[:4000]
        fitting = [rule for rule in rules if rule.says(raised.name, message)]
        if any(rule.purpose for rule in fitting):
            meant = self.purpose(raised, text)
            fitting = [rule for rule in fitting if rule.purpose is None or rule.purpose == meant]
        return max(
            fitting,
            key=lambda rule: (
                rule.weight,
                bool(rule.message),
                rule.purpose is not None,
                "*" not in rule.types,
            ),
            default=None,
        )

    def purpose(self, raised: Raised, text: LogText) -> str | None:
        """What its stack was doing: by the weightiest rule, then the innermost frame; else by the lines near it."""
        best: tuple[int, int, str] | None = None
        for depth, frame in enumerate(reversed(raised.frames[-_INNERMOST:])):
            for rule in self._meant(str(frame)):
                if best is None or (rule.weight, -depth) > best[:2]:
                    best = (rule.weight, -depth, rule.means)
        if best is not None and best[0] > _WEAK:
            return best[2]
        index = raised.first if raised.frames else raised.at.index
        for near in text.lines(max(0, index - _AROUND), index + _AROUND + 1):
            if near.index == index:
                continue
            for rule in self._meant(near.text[:1000]):
                if best is None or rule.weight > best[0]:
                    return rule.means
        return best[2] if best else None

    def _meanings(self, text: str) -> tuple[Purpose, ...]:
        """The rules that a frame or a line fits, in their order."""
        return tuple(rule for rule in self._purposes if rule.found_in(text))


def _cleaning(frames: Sequence[Frame]) -> bool:
    """Whether a stack is of clean-up: of what Python runs at its exit, or of taking a process group down."""
    return any(_CLEANING.match(frame.function.rsplit(".", 1)[-1]) for frame in frames)
