"""Setting a key in a TOML text that people wrote: everything else stays as it is, to the byte.

>>> print(set_key('[policy]   # ours\\nmode = "observe"  # for now\\n', ("policy",), "mode", "advise"), end="")
[policy]   # ours
mode = "advise"  # for now

tomllib reads the text before and after; when anything but the one key has changed by it, the edit is refused. What
finds the place is therefore allowed to be simple.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["EditError", "set_key"]

Path = tuple[str, ...]


class EditError(Exception):
    """The key cannot be set without changing something else; the message is a sentence."""


def set_key(text: str, table: Path, key: str, value: str | int) -> str:
    """The text with `key` of `table` set. Raises EditError."""
    try:
        before = tomllib.loads(text)
        after = _edited(text, table, key, _toml(value))
        found = tomllib.loads(after)
    except (tomllib.TOMLDecodeError, RecursionError, _LostError) as error:
        raise EditError(_by_hand(table, key, value)) from error
    wanted = deepcopy(before)
    inner: Any = wanted
    for name in table:
        inner = inner.setdefault(name, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise EditError(_by_hand(table, key, value))
    inner[key] = value
    if found != wanted:
        raise EditError(_by_hand(table, key, value))
    return after


def _by_hand(table: Path, key: str, value: str | int) -> str:
    return f"it cannot be changed in one place: write {key} = {_toml(value)} in [{_dotted(table)}] by hand"


def _toml(value: str | int) -> str:
    return str(value) if isinstance(value, int) else f'"{value}"'  # our own words: nothing to escape


_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def _dotted(path: Path) -> str:
    return ".".join(name if _BARE.fullmatch(name) else f'"{name}"' for name in path)


# --- where it goes ----------------------------------------------------------------------------------------------------


def _edited(text: str, table: Path, key: str, value: str) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    found = list(_scan(text))
    for spot in found:
        if isinstance(spot, _Key) and spot.path == (*table, key):
            return text[: spot.value] + value + text[spot.end :]
    line = f"{key} = {value}{newline}"
    for spot in found:
        if isinstance(spot, _Header) and spot.path == table and not spot.array:
            cut = text.find("\n", spot.end) + 1
            return text[:cut] + line + text[cut:] if cut else text + newline + line
    for spot in found:
        if isinstance(spot, _Key) and not spot.inline and spot.path[:-1] == table:
            # a sibling, written as policy.repack = true: ours goes before it, with the same beginning
            return text[: spot.start] + text[spot.start : spot.last] + line + text[spot.start :]
    for spot in found:
        if isinstance(spot, _Key) and spot.path == table and text[spot.value] == "{":
            empty = not text[spot.value + 1 : spot.end - 1].strip()
            more = "" if empty else ","
            return f"{text[: spot.value + 1]} {key} = {value}{more}{' ' if empty else ''}{text[spot.value + 1 :]}"
    end = "" if not text or text.endswith("\n") else newline
    return f"{text}{end}{newline}[{_dotted(table)}]{newline}{line}"


# --- the places of a text that tomllib has read -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Key:
    """A key with its value: where it starts, where the last part of its name does, where its value starts and ends."""

    path: Path
    start: int
    last: int
    value: int
    end: int
    inline: bool


@dataclass(frozen=True, slots=True)
class _Header:
    path: Path
    end: int
    array: bool


class _LostError(Exception):
    """Not where we thought."""


_SPACE: Final = re.compile(r"[ \t]*")
_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BASIC: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL: Final = re.compile(r"'[^'\n]*'")
_LONG: Final = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}(?!")|' + r"'''.*?'{3,5}(?!')", re.DOTALL)
_SCALAR: Final = re.compile(r"[^,\]}#\n]+")


def _scan(text: str) -> Iterator[_Key | _Header]:
    """The keys and headers, in order, those of inline tables before the key that they belong to."""
    at = 0
    table: Path = ()
    while True:
        at = _match(_BLANK, text, at)
        if at >= len(text):
            return
        if text[at] == "[":
            array = text.startswith("[[", at)
            name, _, at = _name(text, at + (2 if array else 1))
            at += 2 if array else 1
            table = name
            yield _Header(name, at, array)
        else:
            found: list[_Key] = []
            at = _statement(text, at, table, found, inline=False)
            yield from found


def _statement(text: str, at: int, table: Path, found: list[_Key], *, inline: bool) -> int:
    start = at
    name, last, at = _name(text, at)
    if text[at : at + 1] != "=":
        raise _LostError
    value = _match(_SPACE, text, at + 1)
    end = _value(text, value, (*table, *name), found)
    found.append(_Key((*table, *name), start, last, value, end, inline))
    return end


def _name(text: str, at: int) -> tuple[Path, int, int]:
    """A dotted name, where its last part starts, and where what follows it does."""
    parts: list[str] = []
    while True:
        at = last = _match(_SPACE, text, at)
        for form in (_BARE, _BASIC, _LITERAL):
            if word := form.match(text, at):
                parts.append(word[0] if form is _BARE else tomllib.loads(f"x = {word[0]}")["x"])
                at = _match(_SPACE, text, word.end())
                break
        else:
            raise _LostError
        if text[at : at + 1] != ".":
            return tuple(parts), last, at
        at += 1


def _value(text: str, at: int, path: Path, found: list[_Key]) -> int:
    """Where the value ends that starts here."""
    first = text[at : at + 1]
    if first in ("[", "{"):
        closing = "]" if first == "[" else "}"
        at = _match(_BLANK, text, at + 1)
        while text[at : at + 1] != closing:
            if at >= len(text):
                raise _LostError
            if first == "[":
                at = _value(text, at, (*path, "[]"), found)  # no key of ours lies in a list
            else:
                at = _statement(text, at, path, found, inline=True)
            at = _match(_BLANK, text, at)
            if text[at : at + 1] == ",":
                at = _match(_BLANK, text, at + 1)
        return at + 1
    for form in (_LONG, _BASIC, _LITERAL):
        if word := form.match(text, at):
            return word.end()
    word = _SCALAR.match(text, at)
    if word is None:
        raise _LostError
    return at + len(word[0].rstrip())


def _match(form: re.Pattern[str], text: str, at: int) -> int:
    found = form.match(text, at)
    return found.end() if found else at
