"""What stands in a request's path and query: each parameter with its kind, its bounds, and the sentence that helps.

One table serves the reading, the refusals and the OpenAPI document. What is not in it is refused, never passed over:
a misspelt filter would answer with everybody's jobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from profiler.logs import one_line
from slurm_plugins.service.keeper.refusal import RefusedError

__all__ = ["Parameter", "moment", "read_json", "read_path", "read_query", "whole", "word"]

_T = TypeVar("_T")
_QUERY_BYTES: Final = 4096
_FIELDS: Final = 32


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `read` turns its text into a value, or raises ValueError; `wants` ends "it must be ..."."""

    name: str
    about: str
    wants: str
    schema: Mapping[str, Any]
    read: Callable[[str], object]


def whole(name: str, about: str, low: int, high: int) -> Parameter:
    """A whole number from `low` to `high`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", text) or not low <= int(text) <= high:
            raise ValueError
        return int(text)

    schema = {"type": "integer", "minimum": low, "maximum": high}
    return Parameter(name, about, f"a whole number from {low} to {high}", schema, read)


def moment(name: str, about: str) -> Parameter:
    """A time in seconds since the epoch."""

    def read(text: str) -> float:
        if not re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,9})?", text) or float(text) > 4e9:
            raise ValueError
        return float(text)

    schema = {"type": "number", "minimum": 0, "maximum": 4_000_000_000}
    return Parameter(name, about, "seconds since 1970, as from `date +%s`", schema, read)


def word(name: str, about: str, pattern: str, wants: str) -> Parameter:
    """A text that `pattern` matches as a whole."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError
        return text

    return Parameter(name, about, wants, {"type": "string", "pattern": f"^{pattern}$"}, read)


def read_query(query: bytes, known: Sequence[Parameter]) -> dict[str, Any]:
    """The values of a query, by name; those not given are absent. Raises RefusedError (400)."""
    if not query:
        return {}
    try:
        if len(query) > _QUERY_BYTES:
            raise ValueError
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=_FIELDS,
        )
    except ValueError:  # UnicodeDecodeError too
        raise RefusedError(
            400, "the query cannot be read", f"Write NAME=VALUE&NAME=VALUE in UTF-8; {_there_are(known)}."
        ) from None
    by_name = {one.name: one for one in known}
    values: dict[str, Any] = {}
    for name, text in pairs:
        if name not in by_name:
            raise RefusedError(
                400, f"there is no parameter {one_line(name, 64)!r} here", f"{_there_are(known)}."
            )
        if name in values:
            raise RefusedError(400, f"{name} is given twice", "Give it once.")
        values[name] = _value(by_name[name], text)
    return values


def read_json(decoder: msgspec.json.Decoder[_T], body: bytes, remedy: str) -> _T:
    """A body as JSON. Raises RefusedError (400).

    Bytes that are no UTF-8, and brackets without end, are no errors of msgspec's own.
    """
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(400, one_line(str(error), 200), remedy) from None


def read_path(given: Mapping[str, str], known: Sequence[Parameter]) -> dict[str, Any]:
    """The values in a path, by name. Raises RefusedError (400)."""
    return {one.name: _value(one, given[one.name]) for one in known}


def _value(one: Parameter, text: str) -> object:
    try:
        return one.read(text)
    except ValueError:
        raise RefusedError(
            400, f"{one.name}={one_line(text, 64)!r} is none", f"It must be {one.wants}."
        ) from None


def _there_are(known: Sequence[Parameter]) -> str:
    names = [one.name for one in known]
    return f"it takes {', '.join(names)}" if names else "it takes no parameters"
