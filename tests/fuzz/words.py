"""Values at the edges of what a field may hold, and bytes that are no JSON: what both sides of the socket are given."""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any

NUMBERS = (
    *(-1, 0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 64, 100, 255, 256, 0xFFFD, 0xFFFE, 0xFFFF, 65_000, 65_001),
    *(
        10_000_000,
        10_000_001,
        2**31 - 1,
        2**31,
        2**32 - 2,
        2**32 - 1,
        2**40,
        2**40 + 1,
        2**53 - 1,
        2**53,
        2**53 + 1,
    ),
    *(2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1, -(2**53), -(2**63)),
)
TEXTS = (
    *(
        "",
        " ",
        "0",
        "-1",
        "gpu",
        "a100",
        "(null)",
        "None",
        "n[00001-00010]",
        "n00007",
        "n[1-",
        "[[[",
        "n[1-4,]",
        "n[3-1]",
    ),
    *(
        "n[0-99999999]",
        "n[1-9]m[1-9]k[1-9]",
        "a100&h200",
        "[a100|h200]",
        "a100*2",
        "(a100",
        "rack1|rack2&",
        "gpu,a100",
    ),
    *(
        "gres:gpu:4",
        "gres/gpu:a100:4",
        "gres/gpu=4",
        "gpu:a100:",
        "gpu:-1",
        "gpu:1e9",
        "gpu:99999999999",
        "gres:gpu",
    ),
    *(
        "gres/gpu:a100_1g.5gb:2",
        "gpu:a100:2,gpu:h200:1",
        "gres/shard:4",
        "gpu::::",
        "cpu:4,gres/gpu:2",
        "gpu:0",
    ),
    *(
        "gsub:off",
        "gsub:explain",
        "gsub:d-0123456789abcdef",
        "%s%n%d",
        "'; rm -rf ~",
        "$(id)",
        "`id`",
        "\\",
        '"',
        "\n",
    ),
    *(
        "a\tb",
        "\x00",
        "\x1b[31mred",
        "\x7f",
        "\x9b",
        "é",
        "\u202egnp",
        "\ud7ff",
        "\ufffd",
        "\U0001f600",
        "job-1",
        "job-7",
    ),
    *(
        "afterok:1",
        "1-12:00:00",
        "normal",
        "root",
        "../../etc/passwd",
        "n" * 300,
        "é" * 2048,
        "a" * 4096,
        "[" * 4096,
    ),
)
ODD: tuple[Any, ...] = (None, True, False, 1.5, 4.0, -0.0, 1e300, [], {}, [1], {"a": 1}, [[[[]]]], "NaN")
SCRAPS = (
    b"",
    b" ",
    b"\x00",
    b"\xff\xfe",
    b"\xc3",
    b"\xed\xa0\x80",
    b"{",
    b"}",
    b"[",
    b'"',
    b"\\",
    b"\\u",
    b"\\ud800",
    b"\\udc00\\ud800",
    b":",
    b",",
    b"null",
    b"NaN",
    b"Infinity",
    b"-",
    b"1e999",
    b"1e400000",
    b"0x10",
    b"1" * 400,
    b"[" * 2000,
    b'{"a":' * 2000,
    b"//",
    b"\r",
    b"\n",
    b"true",
    b"-0",
    b"1.0",
    b'"id":1',
    b"\xef\xbb\xbf",
)


def text(random: Random) -> str:
    """A text: an odd one, several in a row, or any characters."""
    kind = random.randrange(8)
    if kind < 4:
        return random.choice(TEXTS)
    if kind < 6:
        return ",".join(random.choice(TEXTS) for _ in range(random.randrange(1, 4)))
    limit = random.choice((0x7F, 0xFF, 0xD7FF, 0x10FFFF))
    codes = (random.randrange(limit + 1) for _ in range(random.randrange(60)))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


def number(random: Random) -> int:
    """A whole number: one at an edge, a small one, or any."""
    kind = random.randrange(4)
    if kind < 2:
        return random.choice(NUMBERS)
    return random.randrange(200) if kind == 2 else random.getrandbits(random.randrange(1, 70))


def anything(random: Random) -> Any:
    """A value of any kind that JSON knows."""
    kind = random.randrange(5)
    if kind == 0:
        return deepcopy(random.choice(ODD))  # whoever gets it may change it
    return text(random) if kind < 3 else number(random)


def encode(random: Random, value: Any) -> bytes:
    """JSON in one of the ways to write it."""
    ascii_ = random.random() < 0.7
    separators = random.choice(((",", ":"), (", ", ": "), (" ,\t", " :\r")))
    return json.dumps(value, ensure_ascii=ascii_, separators=separators).encode("utf-8", "surrogatepass")


def mangle(random: Random, line: bytes) -> bytes:
    """Cut, repeat, replace and insert, a few times."""
    for _ in range(random.randrange(1, 5)):
        at = random.randrange(len(line) + 1)
        to = min(len(line), at + random.choice((0, 1, 1, 2, 5, 40)))
        kind = random.randrange(5)
        if kind == 0:
            line = line[:at]
        elif kind == 1:
            line = line[:at] + line[to:]
        elif kind == 2:
            line = line[:to] + line[at:]
        elif kind == 3:
            line = line[:at] + random.choice(SCRAPS) + line[to:]
        else:
            line = line[:at] + bytes(random.getrandbits(8) for _ in range(to - at)) + line[to:]
    return line


def noise(random: Random) -> bytes:
    """Bytes that were never meant to be JSON."""
    if random.random() < 0.5:
        return b"".join(random.choice(SCRAPS) for _ in range(random.randrange(1, 20)))
    return bytes(random.getrandbits(8) for _ in range(random.randrange(200)))
