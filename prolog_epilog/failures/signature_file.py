"""Reads a file of signatures: TOML, ours some ten times faster than a whole TOML parser would.

Hundreds of entries are read whenever a job is judged, so what our files are made of (tables in double brackets, texts
on one line, small numbers, lists of texts) is read by one regular expression. A file with anything else in it goes to
the whole parser, as a site's always does; a test holds that both see the same in ours.

>>> parse("[[signature]]\\nname = 'a'  # why\\nweight = 6\\n")
{'signature': [{'name': 'a', 'weight': 6}]}
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from typing import Any, Final

__all__ = ["NotTomlError", "parse", "parse_quickly"]


class NotTomlError(Exception):
    """The text is not TOML; says where."""


_SAFE: Final = r"[^\x00-\x08\x0a-\x1f\x7f"  # a class begun: what TOML lets stand in a text
_BASIC: Final = r'"(?!"")(?:' + _SAFE + r'"\\]|\\["\\tn])*"'
_TEXT: Final = (
    r"'''" + _SAFE + r"']*(?:'{1,2}" + _SAFE + r"']+)*'{0,2}'''(?!')|'(?!'')" + _SAFE + r"']*'|" + _BASIC
)
_SPACE: Final = r"(?:[ \t\n]|#" + _SAFE + r"]*\n)*"
_END: Final = r"[ \t]*(?:#" + _SAFE + r"]*)?(?:\n|\Z)"
_LIST: Final = r"\[" + _SPACE + r"(?:(?:" + _TEXT + r")" + _SPACE + r"(?:," + _SPACE + r"|(?=\])))*\]"
_ITEM: Final = re.compile(
    r"[ \t]*(?:"
    r"(?P<key>[a-z_]+)[ \t]*=[ \t]*(?:(?P<text>"
    + _TEXT
    + r")|(?P<number>[1-9]\d?|0)|(?P<list>"
    + _LIST
    + r"))"
    r"|\[\[(?P<table>[a-z_]+)\]\]"
    r")?" + _END
)
_ONE: Final = re.compile(r"#" + _SAFE + r"]*\n|(" + _TEXT + ")")
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"t": "\t", "n": "\n", '"': '"', "\\": "\\"}


def parse(text: str) -> dict[str, Any]:
    """The tables of a file. Raises NotTomlError."""
    if sys.version_info >= (3, 11):  # imported here: it takes longer than our own files
        import tomllib
    else:
        import tomli as tomllib
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotTomlError(str(error)) from None
    return found


def _text(quoted: str) -> str:
    if quoted.startswith("'''"):
        return quoted[3:-3]
    inner = quoted[1:-1]
    if quoted[0] == "'" or "\\" not in inner:
        return inner
    return _ESCAPE.sub(lambda match: _ESCAPES[match[1]], inner)


def parse_quickly(text: str, *, without: Collection[str] = ()) -> dict[str, Any]:
    """The same, where it is simple; keys of `without` are left out. Raises NotTomlError."""
    found: dict[str, Any] = {}
    table: dict[str, Any] | None = None
    at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None:
            break
        at = item.end()
        kind = item.lastgroup
        if kind == "table":
            table = {}
            found.setdefault(item["table"], []).append(table)
        elif kind is not None:
            key = item["key"]
            if table is None or key in table:
                break
            if key in without:
                continue
            if kind == "text":
                table[key] = _text(item["text"])
            elif kind == "number":
                table[key] = int(item["number"])
            else:
                table[key] = [_text(one) for one in _ONE.findall(item["list"]) if one]
    else:
        return found
    return {kind: _without(tables, without) for kind, tables in parse(text).items()}


def _without(tables: object, keys: Collection[str]) -> object:
    """The same tables without these keys; what is no list of tables as it is."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        return tables
    return [{key: value for key, value in table.items() if key not in keys} for table in tables]
