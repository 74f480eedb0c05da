"""Kinds of values in a configuration file: each parses, says how to write it right, and shows defaults as TOML.

A dataclass field carries its kind and its documentation: ``wait: int = key(1800, DURATION, "Longest wait.")``; so one
line is the whole truth of a key, for the reader (`toml_table`) and for the reference (`site_reference`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import Field, field, fields
from typing import Any

from site_configs.hostlist import HostlistError, expand
from site_configs.units import format_duration, format_size, parse_duration, parse_size

__all__ = [
    "DURATION",
    "FLAG",
    "HOSTLIST",
    "PATH",
    "PERCENT",
    "SIZE",
    "BadValueError",
    "Kind",
    "about",
    "address",
    "choice",
    "count",
    "did_you_mean",
    "duration",
    "key",
    "keys",
    "listing",
    "misplaced",
    "named_tables",
    "pairs",
    "quoted",
    "ratio",
    "size",
    "table",
    "word",
]


class BadValueError(Exception):
    """A value that a kind does not take: `problem` and `remedy` are sentences."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(problem)


class Kind:
    """What a key takes.

    `label` names it in the reference; `parse` turns a TOML value into ours or raises BadValueError; `show`
    writes ours as TOML. `table` is the dataclass of a table, `named` says that the table holds such tables by
    name.
    """

    __slots__ = ("label", "named", "parse", "path", "show", "table")

    def __init__(
        self,
        label: str,
        parse: Callable[[Any], Any],
        show: Callable[[Any], str],
        *,
        table: type | None = None,
        named: bool = False,
        path: bool = False,
    ) -> None:
        self.label = label
        self.parse = parse
        self.show = show
        self.table = table
        self.named = named
        self.path = path


def about(kind: Kind, doc: str) -> dict[str, Any]:
    """Metadata of a field that is a key of the file. `doc` is its entry in the reference."""
    return {"kind": kind, "doc": doc}


def key(default: object, kind: Kind, doc: str) -> Any:  # noqa: ANN401 - stands where dataclasses.field does
    """A field that is a key of the file and may be left out."""
    return field(default=default, metadata=about(kind, doc))


def keys(cls: type) -> dict[str, Field[Any]]:
    """The fields of a class that are keys of the file."""
    return {item.name: item for item in fields(cls) if "kind" in item.metadata}


def quoted(value: object) -> str:
    """A TOML value as a reader would find it in the file, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = "".join(char if char.isprintable() else "?" for char in value)
        return f'"{text}"' if len(text) <= _WIDTH else f'"{text[:_WIDTH]}…"'
    if isinstance(value, dict):
        return "{...}" if value else "{}"
    if isinstance(value, list | tuple):
        text = f"[{', '.join(quoted(item) for item in value[:8])}{', …' if len(value) > 8 else ''}]"
        return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…"
    text = str(value)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…"


_WIDTH = 60

_TYPES = {
    bool: "true or false",
    int: "a bare number",
    float: "a bare number",
    str: "a text",
    list: "a list",
    dict: "a table",
}


def misplaced(label: str, value: object, remedy: str) -> BadValueError:
    """The error for a value of another type than `label` says."""
    # TOML has dates and times of its own: an unquoted 12:00:00 is one.
    found = _TYPES.get(type(value), "an unquoted date or time")
    return BadValueError(f"{found} where {label} belongs", remedy)


def _measure(label: str, parse: Callable[[str], int], show: Callable[[int], str], remedy: str) -> Kind:
    def read(value: object) -> int:
        if not isinstance(value, str):
            raise misplaced(label, value, remedy)
        try:
            return parse(value)
        except ValueError as error:
            raise BadValueError(str(error), remedy) from None

    return Kind(label, read, lambda value: quoted(show(value)))


DURATION = _measure(
    "a duration",
    parse_duration,
    format_duration,
    'Write a duration with its unit, like "30 min", "4d" or Slurm\'s "1-12:00:00".',
)
SIZE = _measure(
    "a size",
    parse_size,
    format_size,
    'Write a size with its unit, like "4G" or "512000M" (1G is 1024M, as in Slurm).',
)


def duration(low: int, high: int | None = None) -> Kind:
    """A duration within bounds, in seconds; without `high` only one that is too short is refused."""
    return _bounded(DURATION, low, high, format_duration, ("shorter", "longer"))


def size(low: int) -> Kind:
    """A size of so many MiB at least."""
    return _bounded(SIZE, low, None, format_size, ("smaller", "larger"))


def _bounded(
    kind: Kind, low: int, high: int | None, show: Callable[[int], str], words: tuple[str, str]
) -> Kind:
    bounds = f"at least {show(low)}" if high is None else f"{show(low)} to {show(high)}"
    remedy = f"Write {kind.label}: {bounds}."

    def read(value: object) -> int:
        parsed: int = kind.parse(value)
        if parsed < low:
            raise BadValueError(f"{words[0]} than {show(low)}", remedy)
        if high is not None and parsed > high:
            raise BadValueError(f"{words[1]} than {show(high)}", remedy)
        return parsed

    return Kind(f"{kind.label}, {bounds}", read, kind.show)


def count(low: int, high: int, what: str) -> Kind:
    """A whole number of something, within bounds."""
    remedy = f"Write a whole number of {what} from {low} to {high}."

    def read(value: object) -> int:
        if type(value) is not int:
            raise (
                misplaced(f"a number of {what}", value, remedy)
                if type(value) is not float
                else BadValueError("not a whole number", remedy)
            )
        if not low <= value <= high:
            raise BadValueError(f"not between {low} and {high}", remedy)
        return value

    return Kind(f"{what}, {low} to {high}", read, quoted)


PERCENT = count(0, 100, "percent")


def ratio(low: float, high: float) -> Kind:
    """A number within bounds."""
    remedy = f"Write a number from {low:g} to {high:g}, without a percent sign."

    def read(value: object) -> float:
        if type(value) not in (int, float):
            raise misplaced("a number", value, remedy)
        number = float(value)  # type: ignore[arg-type]
        if not low <= number <= high:  # also false for nan
            raise BadValueError(f"not between {low:g} and {high:g}", remedy)
        return number

    return Kind(f"a number, {low:g} to {high:g}", read, lambda value: f"{value:g}")


def choice(*words: str) -> Kind:
    """One of a few words."""
    allowed = ", ".join(f'"{item}"' for item in words)

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise misplaced("one of a few words", value, f"Write one of {allowed}.")
        if value not in words:
            raise BadValueError(
                "not an allowed value", f"Write one of {allowed}{did_you_mean(value, words)}."
            )
        return value

    return Kind(f"one of {allowed}", read, quoted)


def word(what: str, pattern: str, remedy: str) -> Kind:
    """A text of a given form."""
    form = re.compile(pattern)

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise misplaced(what, value, remedy)
        if not form.fullmatch(value):
            raise BadValueError(f"not {what}", remedy)
        return value

    return Kind(what, read, quoted)


_HIGHEST_PORT = 65535


def address(what: str, pattern: str, remedy: str) -> Kind:
    """A `word` with a host in it, whose TCP port is the pattern's group ``port`` if it has one."""
    form = re.compile(pattern)
    plain = word(what, pattern, remedy)

    def read(value: object) -> str:
        text: str = plain.parse(value)
        found = form.fullmatch(text)
        port = found["port"] if found else None
        if port and not (len(port) <= len(str(_HIGHEST_PORT)) and 0 < int(port) <= _HIGHEST_PORT):
            raise BadValueError(
                f"{quoted(port)[1:-1]} is no port", f"Ports go from 1 to {_HIGHEST_PORT}. {remedy}"
            )
        return text

    return Kind(what, read, quoted)


def listing(kind: Kind, what: str) -> Kind:
    """A list of values of one kind, each once."""

    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise misplaced(what, value, f"Write {what} in brackets, even for one: [{quoted(value)}].")
        items = tuple(kind.parse(item) for item in value)
        twice = next((item for at, item in enumerate(items) if item in items[:at]), None)
        if twice is not None:
            raise BadValueError(f"{quoted(twice)} stands twice", "Remove one of them.")
        return items

    return Kind(what, read, quoted, path=kind.path)


def pairs(names: Iterable[str], kind: Kind, what: str, where: str) -> Kind:
    """A table of values of one kind by name, read as pairs in the order of their names.

    `names` are those that there are; `where` says what they are and where a reader finds them.
    """
    known = tuple(names)

    def read(value: object) -> tuple[tuple[str, Any], ...]:
        if not isinstance(value, dict):
            raise misplaced(what, value, "Write it as a table of its own, with lines like name = value.")
        for name in value:
            if name not in known:
                hint = did_you_mean(name, known)
                remedy = f"Use {where}{hint}{'?' if hint else '.'}"
                raise BadValueError(f"there is no {quoted(name)}", remedy)
        return tuple(sorted((name, kind.parse(item)) for name, item in value.items()))

    return Kind(what, read, quoted)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise misplaced("true or false", value, "Write true or false, without quotes.")
    return value


FLAG = Kind("true or false", _flag, quoted)


def _path(value: object) -> str:
    remedy = "Write a path in quotes; a relative one starts at the site file's folder."
    if not isinstance(value, str):
        raise misplaced("a path", value, remedy)
    if not value or "\0" in value:
        raise BadValueError("not a path", remedy)
    return value


PATH = Kind("a path", _path, quoted, path=True)


def _hostlist(value: object) -> tuple[str, ...]:
    remedy = 'Write a hostlist as in slurm.conf, like "n[1-8,12]".'
    if not isinstance(value, str):
        raise misplaced("a hostlist", value, remedy)
    try:
        names = expand(value)
    except HostlistError as error:
        raise BadValueError(error.problem, remedy) from None
    if not names:
        raise BadValueError("no node in it", remedy)
    return names


HOSTLIST = Kind("a hostlist", _hostlist, quoted)


def _no_parse(value: object) -> object:
    raise TypeError("tables are read by a Reader")


def table(cls: type) -> Kind:
    """A table with the keys of a class."""
    return Kind("a table", _no_parse, quoted, table=cls)


def named_tables(cls: type) -> Kind:
    """Tables of one class by name; the name goes into the class's field `name`."""
    return Kind("tables by name", _no_parse, quoted, table=cls, named=True)


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """``; did you mean "gpu"?`` without the mark, or nothing."""
    import difflib  # only on the way to an error: it costs more than reading the file

    folded = {item.lower(): item for item in known}
    close = difflib.get_close_matches(text.lower(), list(folded), n=1, cutoff=0.6)
    return f'; did you mean "{folded[close[0]]}"' if close else ""
