"""TOML tables into frozen dataclasses whose fields say their kinds (`kinds.key`), with all that is wrong gathered.

A table that is missing is read as an empty one. A class that was read before lends its values: the ``[locality]`` of
the site is the default for ``[partitions.gpu.locality]``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass
from typing import Any

from site_configs.kinds import BadValueError, Kind, did_you_mean, keys, misplaced, quoted

__all__ = ["Problem", "Reader"]


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
            refused = misplaced("a table", raw, f"Write it as a table of its own: [{path}]")
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
                    Problem(where, "", "this key is missing", f"Add it: {name} = ... {item.metadata['doc']}")
                )
        if self.problems:
            return None
        read = cls(**values)
        if not given:  # what has a name of its own lends nothing: one partition is no pattern for the next
            self._lent.setdefault(cls, read)
        return read

    def _tables(self, kind: Kind, raw: object, where: str) -> object:
        assert kind.table is not None  # noqa: S101 - the caller looked
        if not kind.named:
            return self.read(kind.table, raw, where)
        if not isinstance(raw, dict):
            self._refuse(
                where, raw, misplaced("tables by name", raw, f"Write one table each: [{where}.NAME]")
            )
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
