"""Conditions of rules: a small language over named quantities, with three truth values and nothing that can be called.

    idle_s >= 2h and gpus > 1 and not (user in ("ada", "grace") or util_mean > 50%)

A quantity that is not known makes what is said of it unknown; `and`, `or` and `not` go on from there as in Kleene's
logic, so a rule that fires does so whatever the unknown ones are. Text in, closures out: no `eval`, no attribute, no
call, bounded in length and depth, typed when it is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from site_configs.kinds import did_you_mean

__all__ = ["DEEPEST", "LONGEST", "Condition", "ConditionError", "Type", "Value", "parse"]

Type = Literal["number", "duration", "share", "text", "name", "flag"]
"""`duration`: seconds; `share`: 1 is 100 %. Neither goes with a number that has no unit: 30 could be minutes too.

`name`: a text whose case does not count.
"""
Value: TypeAlias = "float | str | bool | None"
"""None: not known."""

LONGEST: Final = 1000
"""Characters of a condition."""
MOST: Final = 200
"""Names, numbers, texts and signs of a condition: what is worked out in a row costs a frame each."""
DEEPEST: Final = 20
"""Parentheses, and signs before one another, inside each other."""

_Values = Mapping[str, Value]
_UNITS: Final[Mapping[str, tuple[Type, float]]] = {
    "s": ("duration", 1.0),
    "m": ("duration", 60.0),
    "min": ("duration", 60.0),
    "h": ("duration", 3600.0),
    "d": ("duration", 86400.0),
    "%": ("share", 0.01),
}
_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<number>[0-9]{1,12}(?:\.[0-9]{1,6})?)(?P<unit>%|[A-Za-z_]\w*)?
      | (?P<name>[A-Za-z_]\w*)
      | (?P<text>"[^"\x00-\x1f]*"|'[^'\x00-\x1f]*')
      | (?P<sign><=|>=|==|!=|[<>()+\-*/,])
    )""",
    re.VERBOSE | re.ASCII,
)
_WORDS: Final = frozenset({"and", "or", "not", "in", "true", "false"})
_NUMERIC: Final = frozenset({"number", "duration", "share"})
_SAY: Final[Mapping[str, str]] = {
    "number": "a number",
    "duration": "a duration",
    "share": "a share",
    "text": "a text",
    "name": "a text",
    "flag": "true or false",
}


class ConditionError(ValueError):
    """What is wrong with a condition, at which character (from 1), and what to do; the first two are the message."""

    def __init__(self, problem: str, at: int, remedy: str) -> None:
        self.problem = f"{problem}, at character {at}"
        self.at = at
        self.remedy = remedy
        super().__init__(self.problem)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that was read. `names` are the quantities in it, each once, as they come."""

    text: str
    names: tuple[str, ...] = field(compare=False)
    _holds: Callable[[_Values], Value] = field(compare=False, repr=False)

    def holds(self, values: _Values) -> bool | None:
        """Whether it is so; None: not known. A quantity that is missing in `values` is not known.

        >>> rule = parse("idle_s > 1h and gpus > 1", {"idle_s": "duration", "gpus": "number"})
        >>> rule.holds({"idle_s": 7200, "gpus": 8}), rule.holds({"idle_s": 7200}), rule.holds({"idle_s": 60})
        (True, None, False)
        """
        found = self._holds(values)
        return found if isinstance(found, bool) else None


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int
    unit: str = ""


@dataclass(frozen=True, slots=True)
class _Part:
    type: Type
    value: Callable[[_Values], Value]
    at: int


def parse(text: str, quantities: Mapping[str, Type]) -> Condition:
    """Read a condition over these quantities. Raises ConditionError."""
    if len(text) > LONGEST:
        raise ConditionError(
            f"longer than {LONGEST} characters", LONGEST + 1, "Make two rules of it, or say it more briefly."
        )
    return _Parser(text, quantities).condition()


class _Parser:
    def __init__(self, text: str, quantities: Mapping[str, Type]) -> None:
        self._text = text
        self._quantities = quantities
        self._tokens = _tokens(text)
        self._place = 0
        self._depth = 0
        self._names: dict[str, None] = {}

    def condition(self) -> Condition:
        part = self._either()
        if self._now.kind != "end":
            raise self._unexpected("and, or, or the end")
        self._wants(part, "flag", "A condition compares something: idle_s >= 1h.")
        return Condition(self._text, tuple(self._names), part.value)

    # --- tokens -------------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> _Token:
        return self._tokens[self._place]

    def _take(self) -> _Token:
        token = self._now
        self._place += token.kind != "end"
        return token

    def _takes(self, *texts: str) -> _Token | None:
        """The next token where it is one of these words or signs."""
        token = self._now
        return self._take() if token.kind in ("word", "sign") and token.text in texts else None

    def _unexpected(self, wanted: str) -> ConditionError:
        token = self._now
        found = "the end" if token.kind == "end" else f'"{token.text}{token.unit}"'
        return ConditionError(f"{found} where {wanted} belongs", token.at, "Correct it there.")

    # --- what there is to say, the loosest first ----------------------------------------------------------------------

    def _either(self) -> _Part:
        return self._joined("or", self._both, _or)

    def _both(self) -> _Part:
        return self._joined("and", self._negated, _and)

    def _joined(self, word: str, inner: Callable[[], _Part], join: Callable[[list[Value]], Value]) -> _Part:
        first = inner()
        parts = [first]
        while self._takes(word):
            parts.append(inner())
        if len(parts) == 1:
            return first
        for part in parts:
            self._wants(part, "flag", f"Compare it with something before and after {word}.")
        values = [part.value for part in parts]
        return _Part("flag", lambda known: join([value(known) for value in values]), first.at)

    def _negated(self) -> _Part:
        token = self._takes("not")
        if token is None:
            return self._compared()
        part = self._inside(token, self._negated)
        self._wants(part, "flag", "not goes before a comparison: not (gpus > 1).")
        return _Part("flag", lambda known: _not(part.value(known)), token.at)

    def _compared(self) -> _Part:
        left = self._sum()
        turned = self._takes("not")
        if turned or self._now.text == "in":
            found = self._listed(left)
            return _Part("flag", lambda known: _not(found.value(known)), left.at) if turned else found
        token = self._takes("<", "<=", ">", ">=", "==", "!=")
        if token is None:
            return left
        right = self._sum()
        if self._now.text in ("<", "<=", ">", ">=", "==", "!=") and self._now.kind == "sign":
            raise ConditionError(
                "two comparisons in a row", self._now.at, "Join them: gpus > 1 and gpus < 8."
            )
        self._alike(left, right, token.at)
        if token.text not in ("==", "!=") and left.type not in _NUMERIC:
            raise ConditionError(
                f'"{token.text}" between {_SAY[left.type]} and another', token.at, "Use == or != there."
            )
        compare = _COMPARE[token.text]
        return _Part("flag", _known2(compare, *_in_one_case(left, right)), left.at)

    def _listed(self, left: _Part) -> _Part:
        if not self._takes("in"):
            raise self._unexpected("in")
        if not self._takes("("):
            raise self._unexpected('"("')
        choices = []
        while True:
            choice = self._signed()
            self._alike(left, choice, choice.at)
            choices.append(_known2(_COMPARE["=="], *_in_one_case(left, choice)))
            if self._takes(")"):
                break
            if not self._takes(","):
                raise self._unexpected('"," or ")"')
        return _Part("flag", lambda known: _or([choice(known) for choice in choices]), left.at)

    def _sum(self) -> _Part:
        part = self._product()
        while token := self._takes("+", "-"):
            right = self._product()
            self._numeric(part, token)
            self._numeric(right, token)
            self._alike(part, right, token.at)
            part = _Part(part.type, _known2(_ARITHMETIC[token.text], part, right), part.at)
        return part

    def _product(self) -> _Part:
        part = self._signed()
        while token := self._takes("*", "/"):
            right = self._signed()
            self._numeric(part, token)
            self._numeric(right, token)
            sort = _scaled(part, right, token.text)
            part = _Part(sort, _known2(_ARITHMETIC[token.text], part, right), part.at)
        return part

    def _signed(self) -> _Part:
        token = self._takes("-")
        if token is None:
            return self._atom()
        part = self._inside(token, self._signed)
        self._numeric(part, token)
        zero = _constant(part.type, 0.0, token.at)
        return _Part(part.type, _known2(_ARITHMETIC["-"], zero, part), token.at)

    def _atom(self) -> _Part:
        token = self._take()
        if token.kind == "number":
            return _number(token)
        if token.kind == "text":
            return _constant("text", token.text, token.at)
        if token.kind == "word" and token.text in ("true", "false"):
            return _constant("flag", token.text == "true", token.at)
        if token.kind == "name":
            return self._quantity(token)
        if token.text == "(" and token.kind == "sign":
            part = self._inside(token, self._either)
            if not self._takes(")"):
                raise self._unexpected('")"')
            return part
        self._place -= token.kind != "end"
        raise self._unexpected("a quantity, a number or a text")

    def _quantity(self, token: _Token) -> _Part:
        name = token.text
        if name not in self._quantities:
            hint = did_you_mean(name, self._quantities)
            raise ConditionError(
                f'there is no quantity "{name[:40]}"',
                token.at,
                f"Use one of docs/alerts.md{hint}{'?' if hint else '; texts need quotes.'}",
            )
        self._names[name] = None
        sort = self._quantities[name]
        return _Part(sort, lambda known: _clean(known.get(name), sort), token.at)

    def _inside(self, token: _Token, inner: Callable[[], _Part]) -> _Part:
        if self._depth >= DEEPEST:
            raise ConditionError("nested too deeply", token.at, f"Nest {DEEPEST} deep at most.")
        self._depth += 1
        part = inner()
        self._depth -= 1
        return part

    # --- types --------------------------------------------------------------------------------------------------------

    def _wants(self, part: _Part, sort: Type, remedy: str) -> None:
        if part.type != sort:
            raise ConditionError(f"{_SAY[part.type]} where {_SAY[sort]} belongs", part.at, remedy)

    def _numeric(self, part: _Part, token: _Token) -> None:
        if part.type not in _NUMERIC:
            raise ConditionError(
                f'"{token.text}" with {_SAY[part.type]}', token.at, "Reckon with numbers alone."
            )

    def _alike(self, left: _Part, right: _Part, at: int) -> None:
        if left.type == right.type or {left.type, right.type} == {"text", "name"}:
            return
        raise ConditionError(
            f"{_SAY[left.type]} and {_SAY[right.type]} side by side",
            at,
            "Give both the same kind: 30m, 2h or 1d for durations, 15% for shares, quotes for texts.",
        )


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    place = 0
    end = len(text.rstrip())
    while place < end:
        found = _TOKEN.match(text, place)
        at = place + 1 + len(text[place:]) - len(text[place:].lstrip())
        if found is None:
            raise ConditionError(
                "this is no number, name, text or sign",
                at,
                'Write it like idle_s >= 1h and partition == "a".',
            )
        kind = str(found.lastgroup)
        if found["number"] is not None:
            tokens.append(_Token("number", found["number"], at, found["unit"] or ""))
        elif kind == "text":
            tokens.append(_Token("text", found["text"][1:-1], at))
        elif kind == "name":
            tokens.append(_Token("word" if found["name"] in _WORDS else "name", found["name"], at))
        else:
            tokens.append(_Token("sign", found["sign"], at))
        if len(tokens) > MOST:
            raise ConditionError(
                f"more than {MOST} names, numbers, texts and signs", at, "Make two rules of it."
            )
        place = found.end()
    return [*tokens, _Token("end", "", end + 1)]


def _number(token: _Token) -> _Part:
    if not token.unit:
        return _constant("number", float(token.text), token.at)
    if token.unit not in _UNITS:
        raise ConditionError(
            f'"{token.unit[:20]}" is no unit', token.at, f"Use one of {', '.join(_UNITS)}, or none."
        )
    sort, factor = _UNITS[token.unit]
    return _constant(sort, float(token.text) * factor, token.at)


def _constant(sort: Type, value: Value, at: int) -> _Part:
    return _Part(sort, lambda known: value, at)


def _scaled(left: _Part, right: _Part, sign: str) -> Type:
    """The type of a product or a quotient: 2 * 1h is a duration, 1h / 1h and 1h * 1h are numbers."""
    if right.type == "number" or (right.type == "share" and left.type == "duration"):
        return left.type
    return right.type if left.type in ("number", "share") and sign == "*" else "number"


# --- three truth values -----------------------------------------------------------------------------------------------


def _and(values: list[Value]) -> Value:
    return False if False in values else None if None in values else True


def _or(values: list[Value]) -> Value:
    return True if True in values else None if None in values else False


def _not(value: Value) -> Value:
    return None if value is None else not value


def _clean(value: Value, sort: Type) -> Value:
    """A quantity as it was declared; what is something else is not known."""
    if sort in ("text", "name"):
        return value if isinstance(value, str) else None
    if sort == "flag":
        return value if isinstance(value, bool) else None
    if isinstance(value, str | bool) or value is None:
        return None
    return float(value) if math.isfinite(value) else None


def _in_one_case(*parts: _Part) -> tuple[_Part, ...]:
    """The parts as they are compared: in one case, where one of them is a name."""
    if all(part.type != "name" for part in parts):
        return parts
    return tuple(_Part(part.type, _folded(part.value), part.at) for part in parts)


def _folded(value: Callable[[_Values], Value]) -> Callable[[_Values], Value]:
    def folded(known: _Values) -> Value:
        found = value(known)
        return found.casefold() if isinstance(found, str) else found

    return folded


def _known2(
    compute: Callable[[Value, Value], Value], left: _Part, right: _Part
) -> Callable[[_Values], Value]:
    """Of two known values; a quotient by nothing, or what is past all numbers, is not known."""

    def computed(known: _Values) -> Value:
        one, other = left.value(known), right.value(known)
        if one is None or other is None:
            return None
        try:
            found = compute(one, other)
        except (ZeroDivisionError, OverflowError):
            return None
        return None if isinstance(found, float) and not math.isfinite(found) else found

    return computed


_COMPARE: Final[Mapping[str, Callable[..., Value]]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
_ARITHMETIC: Final[Mapping[str, Callable[..., Value]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}
