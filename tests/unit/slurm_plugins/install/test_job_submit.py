"""Our lines at the top of a job_submit.lua: what they leave as it was, and that they come out to the byte."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from slurm_plugins.install.job_submit import (
    NotChainableError,
    chained,
    elsewhere,
    is_chained,
    unchained,
)
from slurm_plugins.install.layout import Layout
from tests.paths import REPOSITORY

LAYOUT = Layout(slurm_conf=Path("/etc/slurm/slurm.conf"))
SITE = b"function slurm_job_submit() return 0 end\nfunction slurm_job_modify() return 0 end\nreturn 0\n"


@given(
    st.one_of(
        st.binary(max_size=120),
        st.lists(
            st.sampled_from(
                [b"#!/usr/bin/lua\n", b"\xef\xbb\xbf", b"-- x\r\n", b"return 0", b"\n", b"#", b"-- gsub\n"]
            )
        ).map(b"".join),
    )
)
@example(b"")
@example(b"#")
def test_they_come_out_to_the_byte(text: bytes) -> None:
    assume(not text.startswith((b"\x1bLua", b"\xef\xbb\xbf\x1bLua")))
    assume(b">>> gsub" not in text and b"<<< gsub" not in text)
    with_ours = chained(text, LAYOUT)
    assert is_chained(with_ours)
    assert not is_chained(text)
    assert unchained(with_ours) == text == unchained(text)
    assert chained(with_ours, LAYOUT) == with_ours


def test_they_are_three_lines_at_the_top() -> None:
    added = chained(SITE, LAYOUT).removesuffix(SITE).decode().splitlines()
    assert len(added) == 3
    assert added[0].startswith("-- >>> gsub")
    assert added[2].startswith("-- <<< gsub")
    assert 'dofile("/usr/libexec/gsub/chain.lua")' in added[1]
    assert 'socket = "/run/gsub/decision.sock"' in added[1]


def test_the_document_shows_them() -> None:
    document = REPOSITORY / "docs/shim.md"
    assert chained(b"", LAYOUT) in document.read_bytes()


def test_a_first_line_that_lua_skips_stays_first() -> None:
    assert chained(b"#!/usr/bin/lua\nreturn 0\n", LAYOUT).startswith(b"#!/usr/bin/lua\n-- >>> gsub")
    assert chained(b"\xef\xbb\xbfreturn 0\n", LAYOUT).startswith(b"\xef\xbb\xbf-- >>> gsub")


def test_a_site_without_one_gets_one_that_goes_again() -> None:
    made = chained(None, LAYOUT)
    assert unchained(made) is None
    assert chained(made, LAYOUT) == made
    # and once the site has put rules of its own in, those stay
    edited = made.replace(b"  return slurm.SUCCESS", b"  return my_rules(job_desc)", 1)
    rest = unchained(edited)
    assert rest is not None
    assert b"my_rules" in rest
    assert b"pcall" not in rest


def test_settings_of_the_site_stay_when_the_line_is_made_anew() -> None:
    text = chained(SITE, LAYOUT).replace(b'decision.sock" }', b'decision.sock",\n  deadline = 0.1 }')
    moved = chained(text, dataclasses.replace(LAYOUT, libexec=Path("/opt/x")))
    assert b'dofile("/opt/x/chain.lua")' in moved
    assert b"deadline = 0.1" in moved
    assert unchained(moved) == SITE


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_lines_of_ours_that_are_left_of_a_torn_block_go_too(gone: int) -> None:
    rows = chained(SITE, LAYOUT).splitlines(keepends=True)
    del rows[gone]
    assert unchained(b"".join(rows)) == SITE


def test_a_line_of_ours_that_is_not_whole_stays() -> None:
    """To take half of it out would leave what Lua cannot read."""
    text = chained(SITE, LAYOUT).replace(b"})", b"\n})").partition(b"\n")[2]
    left = unchained(text)
    assert left is not None
    assert b"chain.lua" in left
    assert left.count(b" end) if not fine") == 1


def test_a_path_is_quoted_for_lua() -> None:
    odd = dataclasses.replace(LAYOUT, libexec=Path('/a"b\\c\nd/é'))
    assert rb'dofile("/a\034b\092c\010d/\195\169/chain.lua")' in chained(SITE, odd)


def test_a_rehearsal_loads_the_shim_from_elsewhere() -> None:
    text = elsewhere(chained(SITE, LAYOUT), Path("/tmp/r/libexec"), Path("/tmp/r/no.sock"))
    assert b'dofile("/tmp/r/libexec/chain.lua")' in text
    assert b'socket = "/tmp/r/no.sock"' in text
    assert b"/usr/libexec" not in text
    assert unchained(text) == SITE
    assert elsewhere(SITE, Path("/x"), Path("/y")) == SITE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"\x1bLuaQ\0", "compiled"),
        (b"#!lua\n\x1bLuaQ\0", "compiled"),
        (b"local a = 1\n  return gsub_ok and gsub_shim.submit(job_desc, part_list, submit_uid)\n", "by hand"),
    ],
)
def test_what_cannot_be_chained_says_why(text: bytes, why: str) -> None:
    with pytest.raises(NotChainableError, match=why):
        chained(text, LAYOUT)


WRITER = """\
import sys
from pathlib import Path
from slurm_plugins.install.host import LocalHost
path, a, b = map(Path, sys.argv[1:])
contents = a.read_bytes(), b.read_bytes()
print("writing", flush=True)
while True:
    for content in contents:
        LocalHost().write(path, content, mode=0o644)
"""


def test_it_is_always_whole_on_disk(tmp_path: Path) -> None:
    """kill -9 in the middle of writing, many times: slurmctld finds the one or the other."""
    path = tmp_path / "job_submit.lua"
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(SITE * 400)
    b.write_bytes(chained(SITE * 400, LAYOUT))
    path.write_bytes(a.read_bytes())
    whole = {a.read_bytes(), b.read_bytes()}
    seen = set()
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(a), str(b)], stdout=subprocess.PIPE
        )
        assert writer.stdout
        assert writer.stdout.readline() == b"writing\n"
        for _ in range(300):
            found = path.read_bytes()
            assert found in whole
            seen.add(found)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        assert path.read_bytes() in whole
    assert seen == whole
