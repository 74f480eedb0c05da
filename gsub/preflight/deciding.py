"""Which commands decide over a job: what `&&`, `||` and what comes behind make of one that fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from gsub.preflight.command import QUIET, Command, is_quiet
from gsub.preflight.lexer import Part
from gsub.preflight.simple import Simple

__all__ = ["allowed", "decided", "otherwise", "perhaps"]

_FILTERS: Final = frozenset({"tee", "grep", "cat", "sed", "awk", "tail", "head", "ts", "sort", "wc"})
_PASSING: Final = frozenset(
    {"cd", "source", ".", "mkdir", "export", "module", "ml", "conda", "echo", "set", "date", ":", "true"}
)
"""Commands that nobody uses as a question: what stands behind them and `&&` is meant to be run."""
_LEAVING: Final = frozenset({"exit", "return", "die", "fail", "error", "abort"})


def otherwise(simple: Sequence[Simple], number: int) -> str:
    """What `||` behind the command's list does: "" without one, "leaves", or "goes on"."""
    at = number
    while at < len(simple) - 1 and simple[at].after in ("&&", "|", "|&"):
        at += 1
    if simple[at].after != "||":
        return ""
    for one in simple[at + 1 : at + 4]:  # `|| exit`, `|| { echo ...; exit 1; }`
        head = one.words[0] if one.words else ()
        if len(head) == 1 and head[0].text in _LEAVING:
            return "leaves"
        if not (head and head[0].text in QUIET) or (one.before != "||" and not one.nested):
            break
    return "goes on"


def perhaps(simple: Sequence[Simple], number: int) -> bool:
    """Whether a command is run only as another one ends: `[ -f x ] && python x`."""
    at = number
    while at > 0 and simple[at].before in ("&&", "||", "|", "|&"):
        if simple[at].before == "||":
            return True
        ahead = simple[at - 1].words
        head = _text(ahead[0]) if ahead else ""
        if simple[at].before == "&&" and head not in _PASSING:
            return True
        at -= 1
    return False


def allowed(simple: Sequence[Simple], number: int) -> bool:
    """Whether the script itself allows for its failing: `[ -f x ] && source x`, `python x || true`."""
    at = number
    while at > 0 and simple[at].before == "&&":
        at -= 1
        if simple[at].words and _text(simple[at].words[0]) in ("[", "test"):
            return True
    behind = simple[number + 1] if number + 1 < len(simple) and simple[number].after == "||" else None
    return behind is not None and len(behind.words) == 1 and _text(behind.words[0]) in ("true", ":")


def decided(found: Sequence[tuple[Simple, Command]]) -> Iterator[Command]:
    """The commands, each with whether the job fails when it does."""
    working = [n for n, (_, command) in enumerate(found) if not is_quiet(command)]
    last = working[-1] if working else -1
    for number, (simple, command) in enumerate(found):
        piped = simple.after in ("|", "|&")
        filters = False
        if piped:
            at = number + 1
            while at < len(found) and found[at][0].before in ("|", "|&"):
                if found[at][1].name not in _FILTERS:
                    break
                at += 1
            else:
                filters = True
            if at < len(found) and found[at][0].before not in ("|", "|&"):
                filters = True
        rest = [
            n for n in working if n > number and not (found[n][1].name in _FILTERS and found[n][0].before)
        ]
        is_last = not rest and number <= max(last, number)
        chained = simple.after == "&&"
        decisive = (command.decisive and not chained and not piped) or (is_last and (not piped or filters))
        yield replace(command, decisive=decisive)


def _text(parts: tuple[Part, ...]) -> str:
    return parts[0].text if len(parts) == 1 and parts[0].kind == "text" else ""
