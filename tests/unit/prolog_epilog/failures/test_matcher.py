"""What a matcher finds is what a loop over all patterns and lines would; and no log makes it work without bounds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolog_epilog.failures import prefilter
from prolog_epilog.failures.literals import Underivable, required_literals
from prolog_epilog.failures.matcher import Matcher
from prolog_epilog.failures.signature import Rules, Signature, load
from prolog_epilog.failures.text import LogText


def signature(pattern: str, name: str = "") -> Signature:
    return Signature(name or pattern, "explicit", pattern, "gpu_oom", required_literals(pattern))


def found(patterns: list[str], log: bytes) -> list[tuple[str, int | None]]:
    hits = Matcher(Rules(tuple(map(signature, patterns)))).hits(LogText.of("a.log", log))
    return [(hit.signature.name, hit.line.number) for hit in hits]


@pytest.mark.parametrize(
    ("patterns", "log", "hits"),
    [
        (["out of memory"], b"fine\nCUDA out of memory\n", [("out of memory", 2)]),
        (["(?i)out OF memory"], b"CUDA Out of Memory\n", [("(?i)out OF memory", 1)]),
        (["out of memory"], b"CUDA Out of Memory\n", []),
        # literals within literals, and side by side on one line
        (["memory", "out of m", "of mem"], b"out of memory\n", [("out of m", 1), ("of mem", 1), ("memory", 1)]),
        (["error: disk", "disk full"], b"error: disk full\n", [("error: disk", 1), ("disk full", 1)]),
        (["abc", "abcdef", "abcxyz"], b"abcdef\n", [("abc", 1), ("abcdef", 1)]),
        # a pattern does not reach over lines
        ([r"first.*second", r"first\s+second"], b"first\nsecond\n", []),
        (["^only$"], b"only\nonly x\nx only\n", [("^only$", 1)]),
        # nor does `^` mind what launchers put before a line
        (["^Killed"], b"3: Killed\n[1,4]<stderr>:Killed\nnot Killed\n", [("^Killed", 1), ("^Killed", 2)]),
        (["Killed"], b"3: [rank3]: Killed\n", [("Killed", 1)]),
        # colours, bars, other encodings
        (["bus error"], b"\x1b[31mbus\x1b[0m error\n10%\r20%\rbus error\n", [("bus error", 1), ("bus error", 2)]),
        (["größer"], "ist größer\n".encode(), [("größer", 1)]),
        ([r"'x' is not there"], "‘x’ is not there\n".encode(), [("'x' is not there", 1)]),
        (["out of memory"], "CUDA out of memory\n".encode("utf-16"), [("out of memory", 1)]),
        ([r"caf. au lait"], "café au lait\n".encode("latin-1"), [("caf. au lait", 1)]),
        # two ranks' writes on one line
        (["disk full"], b"disk fuldisk full\nstep 3[rank1]: disk full\n", [("disk full", 1), ("disk full", 2)]),
        # no final line feed
        (["bus error"], b"bus error", [("bus error", 1)]),
    ],
)  # fmt: skip
def test_what_is_found(patterns, log, hits):
    assert found(patterns, log) == hits


def test_a_signature_speaks_once_a_line():
    assert found(["bus error"], b"bus error bus error bus error\n") == [("bus error", 1)]


_WORDS = [
    "disk",
    "full",
    "disk full",
    "bus error",
    "error",
    "a{3}b",
    "(?:no|yes) way",
    "rank [0-9]+ died",
    "(?i)killed",
]


_BITS = [
    "disk",
    " full",
    "bus",
    " error",
    "aaab",
    "no way",
    "yes way",
    "rank 7 died",
    "KILLED",
    "\n",
    "\n",
    " ",
]


@given(st.lists(st.sampled_from(_BITS), max_size=60).map("".join))
def test_as_a_loop_over_all_would(log):
    naive = {
        (pattern, number)
        for number, line in enumerate(log.split("\n"), 1)
        for pattern in _WORDS
        if re.search(pattern, line)
    }
    assert set(found(_WORDS, log.encode())) == naive


@pytest.mark.slow
def test_our_own_signatures_find_their_test_lines():
    """Through the prefilter, in a log with all of them: what only the pattern itself would find counts as lost."""
    from prolog_epilog.failures.signature import PACKAGED, load_files

    rules = load_files(sorted(PACKAGED.glob("*.toml")), checked=False)
    wanted = [(entry.name, line) for entry in rules.signatures for line in entry.test]
    search = Matcher(rules)
    lost = []
    for at in range(0, len(wanted), 50):  # so few that no literal is there too often
        part = wanted[at : at + 50]
        log = "\n".join(line.replace("\n", " ") for _, line in part).encode()
        hits = {(hit.signature.name, hit.line.number) for hit in search.hits(LogText.of("a", log))}
        lost += [name for number, (name, _) in enumerate(part, 1) if (name, number) not in hits]
    assert lost == []
    assert len(wanted) > 230


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("plain", {"plain"}),
        (r"a\.b\(c\)", {"a.b(c)"}),
        (r"ab?cdef", {"cdef"}),
        (r"abc+def", {"cdef", "abc"}),
        (r"(?:one|two) way", {"one way", "two way"}),
        (r"(?:one|two)\d+", {"one", "two"}),
        (r"(?i)Bus Error", {"bus error"}),
        (r"x{3}yz", {"xxxyz"}),
        (r"\Qa.b+c\E", {"a.b+c"}),
        (r"[abc]def[xyz]", {"def"}),
        (r"(?:abc)?defg", {"defg"}),
        (r"^\s*Killed$", {"Killed"}),
        (r"(?P<n>hello) x", {"hello x"}),
        (r"\bword\b", {"word"}),
        (r"tab\there", {"tab\there"}),
    ],
)
def test_literals_are_found_in_patterns(pattern, literals):
    assert set(required_literals(pattern)) <= literals


@pytest.mark.parametrize(
    "pattern",
    ["", r"\d+", "ab", "abc|d", "(?:abc|)", "(?:abcd)*", "a(?i)bcd", "(?i:abcd)", "abc(", "[abc]{9}", "abc|"],
)
def test_patterns_without_a_literal_are_refused(pattern):
    with pytest.raises(Underivable):
        required_literals(pattern)


_REPEATS = st.sampled_from(["?", "*", "+", "{2}", "{0,1}", "{1,}", "+?"])
_NODES = st.recursive(
    st.sampled_from(["a", "bc", "def", r"\.", ".", r"\d", "[xy]", "[^a]", "^", r"\b", " ", "é"]),
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})")
        | st.tuples(inner, _REPEATS).map(lambda two: f"(?:{two[0]}){two[1]}")
        | inner.map(lambda one: f"({one})")
    ),
    max_leaves=14,
)  # fmt: skip


@given(
    _NODES,
    st.lists(st.sampled_from(["a", "bc", "def", ".", "1", "x", "y", " ", "é", "d"]), max_size=24).map(
        "".join
    ),
)
def test_every_match_holds_a_literal(pattern, text):
    """Derived literals are never too strict: the prefilter loses nothing."""
    try:
        literals = required_literals(pattern)
    except Underivable:
        return
    for match in re.finditer(pattern, text):
        assert any(literal in match[0] for literal in literals), (pattern, literals, match[0])


def seconds(rules: Rules, log: bytes) -> tuple[float, int]:
    search = Matcher(rules)
    text = LogText.of("a.log", log)
    began = time.process_time()
    hits = search.hits(text)
    for hit in hits:
        assert hit.line.text is not None
    return time.process_time() - began, len(hits)


MB = 1 << 20


def assert_linear(rules: Rules, log: Callable[[int], bytes], size: int = MB) -> int:
    """Check that four times as long a log takes about four times as long; what grows with the square takes sixteen.

    Args:
        log: makes a log of about so many bytes.
        size: bytes of the shorter log.

    Returns:
        How many hits the longer one has.
    """
    short = min(seconds(rules, log(size))[0] for _ in range(2))
    spent, hits = seconds(rules, log(4 * size))
    assert spent < 8 * short + 0.1, (spent, short)
    return hits


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(lambda size: b"x" * size, id="one line"),
        pytest.param(lambda size: b"\n" * size, id="empty lines"),
        pytest.param(lambda size: b"\r" * size, id="returns"),
        pytest.param(lambda size: b"\0" * size, id="NULs"),
        pytest.param(lambda size: b"\x1b[" * (size // 2), id="escapes"),
        pytest.param(lambda size: b"\x1b]0;" * (size // 4), id="titles"),
        pytest.param(lambda size: b"CUDA out of memory " * (size // 19), id="one line of hits"),
        pytest.param(
            lambda size: b"RuntimeError: CUDA out of memory. Tried to allocate 1 MiB\n" * (size // 58),
            id="hits",
        ),
        pytest.param(lambda size: b"error: " * (size // 7), id="half a hit"),
        pytest.param(lambda size: b"No such file or directory" + b"a" * size, id="a hit before a long end"),
        pytest.param(lambda size: b"(" * (size // 2) + b")" * (size // 2), id="brackets"),
        pytest.param(lambda size: "é".encode("latin-1") * size, id="no UTF-8"),
        pytest.param(lambda size: b"Traceback (most recent call last):\n" * (size // 35), id="tracebacks"),
    ],
)
def test_time_grows_with_the_length_of_hostile_logs(log):
    assert assert_linear(load(), log) < 20_000


@pytest.mark.slow
def test_time_grows_with_the_length_of_a_log_of_all_test_lines():
    """All signatures at once, over and over: the worst that a log can do to the prefilter."""
    from prolog_epilog.failures.signature import PACKAGED, load_files

    rules = load_files(sorted(PACKAGED.glob("*.toml")), checked=False)
    block = "\n".join(line for entry in rules.signatures for line in entry.test).encode() + b"\n"
    hits = assert_linear(rules, lambda size: block * (size // len(block)), size=len(block))
    assert hits > len(rules.signatures)


def test_patterns_that_blow_up_elsewhere_do_not():
    bad = signature(r"(?:a+)+b at the end|(?:x*)*y at the end")
    spent, _ = seconds(
        Rules((bad,)), b"a" * 4000 + b" at the end\n" + (b"a" * 2000 + b" at the end\n") * 2000
    )
    assert spent < 2


def test_the_first_and_the_last_are_kept_of_too_many():
    count = 5 * (prefilter.FIRST + prefilter.LAST)
    log = b"".join(b"disk full %d\n" % number for number in range(count)) + b"bus error\n"
    numbers = [number for _, number in found(["disk full", "bus error"], log)]
    assert numbers[0] == 1
    assert numbers[-2:] == [count, count + 1]
    assert len(numbers) == prefilter.FIRST + prefilter.LAST + 1


def test_a_rare_word_among_many_is_found():
    """What is on every line is soon looked for no more, what is rare always: in the middle, too."""
    noise = b"warning: disk full\n" * 200_000
    hits = found(["disk full", "bus error"], noise + b"bus error\n" + noise)
    assert ("bus error", 200_001) in hits
