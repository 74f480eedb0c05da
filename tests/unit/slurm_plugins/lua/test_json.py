"""The shim's JSON: any bytes out as ASCII; in, what Python reads too, and nothing that it does not."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.unit.slurm_plugins.lua.lua import Shim

TEXTS = [
    b"",
    b"plain",
    b'"quoted" and \\ back',
    b"line\nline\r\n\ttab",
    bytes(range(1, 256)),
    "grüße 日本 \U0001f600 \u0080\u07ff\u0800\uffff\U00010000\U0010ffff".encode(),
    b"\xc0\x80 overlong, \xed\xa0\x80 surrogate, \xf4\x90\x80\x80 too high, \xe2\x82 cut, \x80 alone, \xff",
    b"\xe2\x82\xac\xe2\x82",
    b"%s %d %q %%",
    b'#!/bin/sh\nsrun python x.py --name "a b" \\\n  --more\n',
    b'tab\tand "quote"\n',
    b"\x7f",
]


@pytest.mark.parametrize("text", TEXTS)
def test_any_bytes_become_ascii_json(shim: Shim, text: bytes) -> None:
    found = shim.order("quote", text=text)["text"]
    assert found.isascii()
    assert found.isprintable()
    assert json.loads(found) == _replaced(text)


def _replaced(text: bytes) -> str:
    """As the wire has it: one U+FFFD for each byte that is not part of a character."""
    out = []
    at = 0
    while at < len(text):
        for length in (1, 2, 3, 4):
            try:
                out.append(text[at : at + length].decode())
                at += length
                break
            except UnicodeDecodeError:
                continue
        else:
            out.append("\ufffd")
            at += 1
    return "".join(out)


def test_random_bytes_become_ascii_json(shim: Shim) -> None:
    draw = random.Random(3)
    pools = [bytes(range(256)), b'ab"\\\n\t ', "aé€😀".encode()]
    for _ in range(200):
        text = bytes(draw.choices(draw.choice(pools), k=draw.randrange(60)))
        found = shim.order("quote", text=text)["text"]
        assert json.loads(found) == _replaced(text)


@pytest.mark.parametrize(
    ("text", "limit", "kept"),
    [
        (b"short", 5, b"short"),
        (b"longer", 5, b"longe"),
        ("aaaa€".encode(), 5, b"aaaa"),
        ("aaaa€".encode(), 6, b"aaaa"),
        ("aaaa€".encode(), 7, "aaaa€".encode()),
        ("€€".encode(), 3, "€".encode()),
        ("😀😀".encode(), 7, "😀".encode()),
        (b"\x80" * 10, 5, b"\x80" * 5),
    ],
)
def test_a_head_ends_between_characters(shim: Shim, text: bytes, limit: int, kept: bytes) -> None:
    assert shim.order("head", text=text, limit=limit)["text"].encode("latin-1") == kept


GOOD = [
    '{"v":1,"id":9007199254740991,"say":["a","b"],"edits":{"min_nodes":2},"reject":null}',
    ' { "a" : [ 1 , -2.5 , 1e3 , true , false , [ ] , { } ] } ',
    r'"\u00e9\ud83d\ude00\n\"\\\/\b\f\r\t"',
    r'"\u00df\u20ac"',
    "[]",
    "{}",
    "0",
    "-1",
    '"é"',
]
BAD = [
    "",
    " ",
    "{",
    "[1,]",
    "[,1]",
    '{"a"}',
    '{"a":}',
    "{a:1}",
    "{'a':1}",
    '{"a":1,}',
    '"open',
    '"bad \\x escape"',
    '"\\u12"',
    '"\\ud800"',
    '"\\udc00"',
    '"\\ud800\\u0041"',
    '"new\nline"',
    "tru",
    "nul",
    "NaN",
    "Infinity",
    "-",
    "+1",
    ".5",
    "0x10",
    "1 2",
    "[1] x",
    "[[[[[[[[[[1]]]]]]]]]]",
]


@pytest.mark.parametrize("text", GOOD)
def test_json_is_read_as_python_reads_it(shim: Shim, text: str) -> None:
    reply = shim.order("decode", text=text)
    assert "why" not in reply
    # Lua has no null in a table
    assert _without_null(_bytes(reply.get("value"))) == _without_null(json.loads(text))


def _bytes(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("latin-1").decode()
    if isinstance(value, list):
        return [_bytes(item) for item in value]
    if isinstance(value, dict):
        return {key: _bytes(item) for key, item in value.items()}
    return value


def _without_null(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return value


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_json_is_refused(shim: Shim, text: str) -> None:
    reply = shim.order("decode", text=text)
    assert reply["why"]
    assert "value" not in reply
