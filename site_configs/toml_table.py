"""TOML tables into frozen dataclasses, with errors that a sysadmin can act on.

A field of such a class carries its kind and its documentation: ``wait: int = key(1800, DURATION, "...")``.
The kind parses the value, says how to write it, and shows defaults in the reference; so one line is the whole
truth of a key.

A table that is missing is read as an empty one. A class that was read before lends its values: the
``[locality]`` of the site is the default for ``[partitions.gpu.locality]``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
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
    "Problem",
    "Reader",
    "choice",
    "count",
    "key",
    "keys",
    "listing",
    "named_tables",
    "ratio",
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


def _wanted(label: str, value: object, remedy: str) -> BadValueError:
    # TOML has dates and times of its own: an unquoted 12:00:00 is one.
    found = _TYPES.get(type(value), "an unquoted date or time")
    return BadValueError(f"{found} where {label} belongs", remedy)


def _measure(label: str, parse: Callable[[str], int], show: Callable[[int], str], remedy: str) -> Kind:
    def read(value: object) -> int:
        if not isinstance(value, str):
            raise _wanted(label, value, remedy)
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


def count(low: int, high: int, what: str) -> Kind:
    """A whole number of something, within bounds."""
    remedy = f"Write a whole number of {what} from {low} to {high}."

    def read(value: object) -> int:
        if type(value) is not int:
            raise (
                _wanted(f"a number of {what}", value, remedy)
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
            raise _wanted("a number", value, remedy)
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
            raise _wanted("one of a few words", value, f"Write one of {allowed}.")
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
            raise _wanted(what, value, remedy)
        if not form.fullmatch(value):
            raise BadValueError(f"not {what}", remedy)
        return value

    return Kind(what, read, quoted)


def listing(kind: Kind, what: str) -> Kind:
    """A list of values of one kind, each once."""

    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wanted(what, value, f"Write {what} in brackets, even for one: [{quoted(value)}].")
        items = tuple(kind.parse(item) for item in value)
        twice = next((item for at, item in enumerate(items) if item in items[:at]), None)
        if twice is not None:
            raise BadValueError(f"{quoted(twice)} stands twice", "Remove one of them.")
        return items

    return Kind(what, read, quoted, path=kind.path)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _wanted("true or false", value, "Write true or false, without quotes.")
    return value


FLAG = Kind("true or false", _flag, quoted)


def _path(value: object) -> str:
    remedy = "Write a path in quotes; a relative one starts at the site file's folder."
    if not isinstance(value, str):
        raise _wanted("a path", value, remedy)
    if not value or "\0" in value:
        raise BadValueError("not a path", remedy)
    return value


PATH = Kind("a path", _path, quoted, path=True)


def _hostlist(value: object) -> tuple[str, ...]:
    remedy = 'Write a hostlist as in slurm.conf, like "n[1-8,12]".'
    if not isinstance(value, str):
        raise _wanted("a hostlist", value, remedy)
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


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a file. `value` is as it stands there, empty when the key is missing."""

    key: str
    value: str
    problem: str
    remedy: str


class Reader:
    """Reads one file's tables and gathers what is wrong with them."""

    def __init__(self, folder: str, root: type) -> None:
        self.folder = folder
        self.problems: list[Problem] = []
        self._lent: dict[type, Any] = {}
        self._root = root

    def read(self, cls: type, raw: object, path: str = "", **given: object) -> Any:  # noqa: ANN401 - an instance of cls
        """An instance of `cls`, or None after an error (see `problems`)."""
        if not isinstance(raw, dict):
            refused = _wanted("a table", raw, f"Write it as a table of its own: [{path}]")
            self._refuse(path, raw, refused)
            return None
        known = keys(cls)
        lender = self._lent.get(cls)
        for name, value in raw.items():
            if name not in known:
                self._refuse(_dotted(path, name), value, self._unknown(name, path, known))
        values: dict[str, Any] = dict(given)
        for name, item in known.items():
            kind: Kind = item.metadata["kind"]
            where = _dotted(path, name)
            if kind.table is not None:
                values[name] = self._tables(kind, raw.get(name, {}), where)
            elif name in raw:
                values[name] = self._value(kind, raw[name], where)
            elif lender is not None:
                values[name] = getattr(lender, name)
            elif item.default is MISSING and item.default_factory is MISSING:
                self.problems.append(
                    Problem(
                        where, "", "this key is missing", f"Add it: {name} = ... ({item.metadata['doc']})"
                    )
                )
        if self.problems:
            return None
        read = cls(**values)
        self._lent.setdefault(cls, read)
        return read

    def _tables(self, kind: Kind, raw: object, where: str) -> object:
        assert kind.table is not None  # noqa: S101 - the caller looked
        if not kind.named:
            return self.read(kind.table, raw, where)
        if not isinstance(raw, dict):
            self._refuse(where, raw, _wanted("tables by name", raw, f"Write one table each: [{where}.NAME]"))
            return {}
        return {
            name: self.read(kind.table, value, _dotted(where, name), name=name) for name, value in raw.items()
        }

    def _value(self, kind: Kind, value: object, where: str) -> object:
        try:
            parsed = kind.parse(value)
        except BadValueError as refused:
            self._refuse(where, value, refused)
            return None
        if not kind.path:
            return parsed
        if isinstance(parsed, tuple):
            return tuple(os.path.join(self.folder, item) for item in parsed)  # noqa: PTH118 - importing pathlib costs 4 ms
        return os.path.join(self.folder, parsed)  # noqa: PTH118

    def _refuse(self, where: str, value: object, refused: BadValueError) -> None:
        self.problems.append(Problem(where, quoted(value), refused.problem, refused.remedy))

    def _unknown(self, name: str, path: str, known: Mapping[str, Field[Any]]) -> BadValueError:
        homes = [home for home in _homes(self._root, name) if home != path]
        here = f"[{path}]" if path else "the top of the file"
        if homes:
            return BadValueError(
                f"no key of {here}", f"It belongs in [{homes[0]}]." if homes[0] else "It belongs at the top."
            )
        hint = did_you_mean(name, known)
        remedy = f"Correct it{hint}?" if hint else f"Remove it, or use one of: {', '.join(known)}."
        return BadValueError(f"no key of {here}", remedy)


def _homes(cls: type, name: str, path: str = "") -> Iterable[str]:
    """The tables that have a key of this name."""
    for item in keys(cls).values():
        kind: Kind = item.metadata["kind"]
        if item.name == name:
            yield path
        if kind.table is not None:
            inner = _dotted(path, item.name)
            yield from _homes(kind.table, name, f"{inner}.NAME" if kind.named else inner)


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def _dotted(path: str, name: str) -> str:
    part = name if _BARE.fullmatch(name) else quoted(name)
    return f"{path}.{part}" if path else part
