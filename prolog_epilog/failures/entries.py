"""The entries of a file of signatures, each checked by itself: keys, types, lengths, names that must be known.

What is wrong is said with file, entry and key, and with what to do: these files are written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from prolog_epilog.failures import signature_file
from prolog_epilog.failures.literals import MIN_LITERAL, Underivable, required_literals
from prolog_epilog.failures.rules import (
    MEANINGS,
    TIERS,
    Entry,
    ExceptionRule,
    Purpose,
    Signature,
    plain_quotes,
)
from prolog_epilog.failures.taxonomy import REASONS
from site_configs.kinds import did_you_mean, quoted

__all__ = ["KINDS", "SignatureError", "entries_of", "literals_of"]

_MAX_BYTES: Final = 1 << 20
_MAX_ENTRIES: Final = 5000
_MAX_PATTERN: Final = 2000
_MAX_TEXT: Final = 600
_MAX_NAME: Final = 100
_MAX_LINE: Final = 4096
_MAX_LIST: Final = 64
_WEIGHTS: Final = range(1, 10)


class SignatureError(Exception):
    """A file of signatures is wrong: `file`, `entry` (its name or number), `key`, what is `wrong`, what to do."""

    def __init__(self, file: str, entry: str, key: str, wrong: str, remedy: str) -> None:
        self.file, self.entry, self.key, self.wrong, self.remedy = file, entry, key, wrong, remedy
        place = ": ".join(part for part in (file, entry, key) if part)
        super().__init__(f"{place}: {wrong}\n{remedy}")


# The keys of each kind: their type, and whether they must be there.
_KEYS: Final[Mapping[str, Mapping[str, tuple[type, bool]]]] = {
    "signature": {
        "name": (str, True),
        "tier": (str, True),
        "pattern": (str, True),
        "reason": (str, False),
        "literal": (list, False),
        "advice": (str, False),
        "tool": (str, False),
        "source": (str, False),
        "weight": (int, False),
        "test": (list, False),
        "never": (list, False),
    },
    "exception": {
        "name": (str, True),
        "types": (list, True),
        "reason": (str, True),
        "message": (str, False),
        "purpose": (str, False),
        "tier": (str, False),
        "advice": (str, False),
        "tool": (str, False),
        "source": (str, False),
        "weight": (int, False),
        "test": (list, False),
        "never": (list, False),
    },
    "purpose": {
        "name": (str, True),
        "frame": (str, True),
        "means": (str, True),
        "weight": (int, False),
        "tool": (str, False),
        "source": (str, False),
        "test": (list, False),
        "never": (list, False),
    },
}
_LENGTHS: Final = {"name": _MAX_NAME, "pattern": _MAX_PATTERN, "message": _MAX_PATTERN, "frame": _MAX_PATTERN}
_LISTED_LENGTHS: Final = {"test": _MAX_LINE, "never": _MAX_LINE}
_TYPE_NAMES: Final = {str: "a text", int: "a whole number", list: "a list of texts"}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where something is wrong; `raise place.wrong(key, what, remedy)`."""

    file: str
    entry: str

    def wrong(self, key: str, what: str, remedy: str) -> SignatureError:
        return SignatureError(self.file, self.entry, key, what, remedy)


def _value(place: _Place, kind: str, key: str, value: object) -> object:
    """The value of a key, of the right type and length. Raises SignatureError."""
    known = _KEYS[kind]
    if key not in known:
        hint = did_you_mean(key, list(known))
        raise place.wrong(key, f"unknown key{hint}", f"A {kind} has: {', '.join(known)}.")
    wanted = known[key][0]
    if wanted is int:
        if type(value) is not int or value not in _WEIGHTS:
            raise place.wrong(key, f"{quoted(value)} is no weight", "Write a whole number from 1 to 9.")
        return value
    texts = [value] if wanted is str else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts) or not texts:
        raise place.wrong(
            key, f"{quoted(value)} is not {_TYPE_NAMES[wanted]}", "Write it in quotes, not empty."
        )
    longest = _LENGTHS.get(key, _MAX_TEXT) if wanted is str else _LISTED_LENGTHS.get(key, _MAX_TEXT)
    if len(texts) > _MAX_LIST or any(len(text) > longest for text in texts):
        raise place.wrong(key, "too long", f"At most {_MAX_LIST} texts of {longest} characters each.")
    return value if wanted is str else tuple(texts)


def _one_of(place: _Place, key: str, value: str, known: Iterable[str]) -> None:
    names = list(known)
    if value not in names:
        wrong = f"{quoted(value)} is not known{did_you_mean(value, names)}"
        raise place.wrong(key, wrong, f"One of: {', '.join(names)}.")


def literals_of(pattern: str, given: tuple[str, ...] | None) -> tuple[str, ...]:
    """What to look for before the pattern is tried: as given, else found in it. Raises Underivable."""
    literals = required_literals(pattern) if given is None else given
    if pattern.startswith("(?i)"):
        literals = tuple(literal.lower() for literal in literals)
    return literals if all(map(str.isascii, literals)) else tuple(plain_quotes(one) for one in literals)


def _signature(place: _Place, values: dict[str, object]) -> Signature:
    tier = str(values["tier"])
    _one_of(place, "tier", tier, TIERS)
    reason = str(values.get("reason", ""))
    if TIERS[tier] == "required" and not reason:
        raise place.wrong(
            "reason", f"missing, and tier {tier} names a cause", "Add a reason of the taxonomy."
        )
    if TIERS[tier] == "absent" and reason:
        raise place.wrong("reason", f"tier {tier} gives no reason", "Leave it out.")
    if reason:
        _one_of(place, "reason", reason, REASONS)
    pattern = str(values["pattern"])
    try:
        literals = literals_of(pattern, cast("tuple[str, ...] | None", values.pop("literal", None)))
    except Underivable as error:
        raise place.wrong(
            "literal", f"cannot be found in the pattern: {error}", "Add literal = [...], one in every match."
        ) from None
    if any(len(literal) < MIN_LITERAL for literal in literals):
        raise place.wrong(
            "literal", f"shorter than {MIN_LITERAL} characters", "Name a longer piece of the line."
        )
    return Signature(**{**values, "literals": literals})  # type: ignore[arg-type]  # checked key by key


def _exception(place: _Place, values: dict[str, object]) -> ExceptionRule:
    _one_of(place, "reason", str(values["reason"]), REASONS)
    if "tier" in values:
        _one_of(place, "tier", str(values["tier"]), TIERS)
    if "purpose" in values:
        _one_of(place, "purpose", str(values["purpose"]), MEANINGS)
    types = cast("tuple[str, ...]", values["types"])
    dotted = next((kind for kind in types if "." in kind), None)
    if dotted:
        raise place.wrong(
            "types", f"{quoted(dotted)} has a module", f'Write the last part: "{dotted.rpartition(".")[2]}".'
        )
    return ExceptionRule(**values)  # type: ignore[arg-type]  # checked key by key


def _purpose(place: _Place, values: dict[str, object]) -> Purpose:
    _one_of(place, "means", str(values["means"]), MEANINGS)
    return Purpose(**values)  # type: ignore[arg-type]  # checked key by key


KINDS: Final[Mapping[str, Callable[..., Entry]]] = {
    "signature": Signature,
    "exception": ExceptionRule,
    "purpose": Purpose,
}
_Maker: TypeAlias = "Callable[[_Place, dict[str, Any]], Entry]"
_MAKERS: Final[Mapping[str, _Maker]] = {
    "signature": _signature,
    "exception": _exception,
    "purpose": _purpose,
}


def _entry(file: str, kind: str, number: int, table: object) -> Entry:
    name = table.get("name") if isinstance(table, dict) else None
    place = _Place(file, str(name) if isinstance(name, str) else f"{kind} {number}")
    if not isinstance(table, dict):
        raise place.wrong("", "not a table", f"Write [[{kind}]] and its keys below.")
    values = {key: _value(place, kind, key, value) for key, value in table.items()}
    for key, (_, needed) in _KEYS[kind].items():
        if needed and key not in values:
            raise place.wrong(key, "missing", f"Every {kind} has it.")
    maker = _MAKERS[kind]
    return maker(place, values)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SignatureError(
            str(path), "", "", f"cannot be read: {error.strerror}", "Check the path and its permissions."
        ) from None
    if len(data) > _MAX_BYTES:
        raise SignatureError(
            str(path), "", "", f"longer than {_MAX_BYTES} bytes", "Split it into several files."
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SignatureError(
            str(path), "", "", f"not UTF-8 at byte {error.start}", "Save it as UTF-8."
        ) from None


def _tables(path: Path) -> Mapping[str, object]:
    try:
        return signature_file.parse(_read(path))
    except signature_file.NotTomlError as error:
        raise SignatureError(
            str(path), "", "", f"not TOML: {error}", "Patterns are best written in '''three quotes'''."
        ) from None


def entries_of(path: Path) -> tuple[list[Entry], list[SignatureError]]:
    """The entries of a file, each checked by itself, and what is wrong with the others."""
    entries: list[Entry] = []
    errors: list[SignatureError] = []
    try:
        parsed = _tables(path)
    except SignatureError as error:
        return [], [error]
    for kind, tables in parsed.items():
        if kind not in _KEYS or not isinstance(tables, list):
            errors.append(
                SignatureError(
                    str(path), "", kind, "unknown", "A file has [[signature]], [[exception]], [[purpose]]."
                )
            )
            continue
        for number, table in enumerate(tables[:_MAX_ENTRIES], 1):
            try:
                entries.append(_entry(str(path), kind, number, table))
            except SignatureError as error:
                errors.append(error)
        if len(tables) > _MAX_ENTRIES:
            errors.append(SignatureError(str(path), "", kind, f"more than {_MAX_ENTRIES}", "Split the file."))
    return entries, errors
