"""slurm.conf is read as Slurm reads it, and every change can be taken out to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from slurm_plugins.install.host import HostError
from slurm_plugins.install.slurm_conf import (
    Changes,
    SlurmConf,
    edit,
    edit_files,
    is_edited,
    unedit,
    unedit_files,
)
from tests.unit.slurm_plugins.install.fakes import FakeHost

CONF = Path("/etc/slurm/slurm.conf")

# --- generated files --------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(
    ["Prolog", "PROLOG", "prolog", "Epilog", "JobSubmitPlugins", "PrologFlags", "NodeName", "X"]
)
VALUES = st.sampled_from(
    ["a", "/etc/p", '"a b"', "lua,all_partitions", "a\\#b", "a\\\\", '""', '"a#b"', "n[1-2] CPUs=4"]
)
BLANKS = st.sampled_from(["", " ", "\t", "  "])
ENDS = st.sampled_from(["\n", "\n", "\r\n", " \\\n", "\\\r\n", " # why\n", "#\\\n", "\n\n", "\0\n", ""])
LINES = st.one_of(
    st.tuples(BLANKS, KEYS, BLANKS, st.sampled_from(["=", "+="]), BLANKS, VALUES, ENDS).map("".join),
    st.tuples(st.sampled_from(["#", "# Prolog=/x", "include x", "\\", "Prolog", "=", "ü"]), ENDS).map(
        "".join
    ),
).map(str.encode)
TEXTS = st.lists(st.one_of(LINES, LINES, st.binary(max_size=6)), max_size=8).map(b"".join)
NEW = st.sampled_from(
    ["lua", "/usr/libexec/gsub/prolog.d/*", "two words", "", "with#mark", "back\\slash", ("/a", "/b"), None]
)
CHANGES = st.dictionaries(st.sampled_from(["Prolog", "epilog", "JobSubmitPlugins", "New"]), NEW, max_size=3)


def expected(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value or ()


@given(TEXTS, CHANGES)
@example(b"Prolog=/a \\\r\n \\", {"Prolog": "lua"})
@example(b"X=1 \\", {"Prolog": "lua"})
def test_what_is_changed_comes_back_to_the_byte(text: bytes, changes: Changes) -> None:
    changed = edit(text, changes)
    assert unedit(changed) == text
    assert edit(changed, changes) == changed
    assert is_edited(changed) == (changed != text)
    before, after = SlurmConf.parse(text), SlurmConf.parse(changed)
    for key, value in changes.items():
        assert after.values(key) == expected(value)
    touched = {key.lower() for key in changes}

    def others(conf: SlurmConf) -> list[tuple[str, str]]:
        return [(s.key, s.value) for s in conf.settings if s.key.lower() not in touched]

    assert others(after) == others(before)


@given(TEXTS, CHANGES, CHANGES)
def test_a_second_change_keeps_the_first(text: bytes, first: Changes, second: Changes) -> None:
    changed = edit(edit(text, first), second)
    assert unedit(changed) == text
    lower = {key.lower(): value for key, value in {**first, **second}.items()}
    for key, value in lower.items():
        assert SlurmConf.parse(changed).values(key) == expected(value)


@given(st.binary(max_size=200), CHANGES)
def test_any_bytes_at_all(text: bytes, changes: Changes) -> None:
    assume(b"gsub" not in text)
    assert unedit(edit(text, changes)) == text


# --- how it reads -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b"Prolog=/a", ["/a"]),
        (b"  pROLOG\t= /a  # why\n", ["/a"]),
        (b'Prolog="/a b"\n', ["/a b"]),
        (b'Prolog="/a #b"\n', ['"/a']),  # between quotes, too, a comment begins
        (b"Prolog=/a\\#b\n", ["/a#b"]),
        (b"Prolog=/a\\\\b\n", ["/a\\b"]),
        (b"Prolog=/a,\\\n/b\n", ["/a,/b"]),
        (b"Prolog=\\  \r\n/a\r\n", ["/a"]),
        (b"Prolog=/a \\ # why\nEpilog=/b\n", ["/a"]),
        (b"# off \\\nProlog=/a\n", ["/a"]),
        (b"#Prolog=/a\nEpilog=/a\n", []),
        (b"Prolog=/a\nPROLOG=/b\n", ["/a", "/b"]),
        (b"Prolog=\n", []),
        (b"NodeName=n1 Prolog=/a\n", []),
        (b"NodeName=n1 \\\nProlog=/a\n", []),
    ],
)
def test_a_file_is_read_as_slurm_reads_it(text: bytes, values: list[str]) -> None:
    conf = SlurmConf.parse(text)
    assert list(conf.values("prolog")) == values
    assert conf.value("Prolog") == (values[-1] if values else None)


def test_the_change_is_the_one_of_the_document() -> None:
    text = b"ClusterName=lab\nJobSubmitPlugins=all_partitions\nProlog=/etc/slurm/prolog \\\n  # ours\nEpilog=/e\n"
    changed = edit(text, {"JobSubmitPlugins": "all_partitions,lua", "Prolog": "/usr/libexec/gsub/prolog.d/*"})
    assert changed.decode().splitlines() == [
        "ClusterName=lab",
        "#gsub:was# JobSubmitPlugins=all_partitions",
        "#gsub:was# Prolog=/etc/slurm/prolog \\",
        "#gsub:was#   # ours",
        "Epilog=/e",
        "# >>> gsub: `gsub admin rollback` takes these lines out, and puts back what they stand for",
        "JobSubmitPlugins=all_partitions,lua  #gsub#",
        "Prolog=/usr/libexec/gsub/prolog.d/*  #gsub#",
        "# <<< gsub",
    ]


def test_what_is_there_already_is_left_alone() -> None:
    text = b"PrologFlags=Alloc\n"
    assert edit(text, {"prologflags": "Alloc", "Gone": None}) == text


def test_others_changes_since_stay_when_ours_go() -> None:
    changed = edit(b"A=1\nProlog=/a\n", {"Prolog": "/b"})
    assert unedit(b"Z=0\n" + changed + b"B=2\n") == b"Z=0\nA=1\nProlog=/a\nB=2\n"
    assert unedit(edit(b"A=1", {"Prolog": "/b"}) + b"B=2\n") == b"A=1\nB=2\n"
    torn = b"".join(
        row for row in changed.splitlines(keepends=True) if b"gsub\n" not in row and b">>>" not in row
    )
    assert unedit(torn) == b"A=1\nProlog=/a\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [("Prolog", "/a\nEpilog=/b"), ("Pro log", "/a"), ("Prolog", 'a "b" c'), ("Prolog", "/a\0"), ("", "/a")],
)
def test_what_slurm_could_not_read_back_is_refused(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"slurm\.conf cannot hold"):
        edit(b"", {key: value})


# --- files ------------------------------------------------------------------------------------------------------------


def site(**files: str) -> FakeHost:
    host = FakeHost()
    for name, text in files.items():
        host.put(f"/etc/slurm/{name.replace('_', '.')}", text)
    return host


def test_included_files_are_read_where_they_stand() -> None:
    host = site(
        slurm_conf="ClusterName=Lab\nProlog=/a\ninclude sub/%c.conf\nEpilog=/z\n",
        **{"sub/lab_conf": "Prolog=/b\nInclude more.conf\n", "sub/more_conf": "Epilog=/y\n"},
    )
    conf = SlurmConf.read(host, CONF)
    assert (conf.values("Prolog"), conf.values("Epilog")) == (("/a", "/b"), ("/y", "/z"))
    assert [(str(s.path), s.line) for s in conf.where("prolog")] == [
        ("/etc/slurm/slurm.conf", 2),
        ("/etc/slurm/sub/lab.conf", 1),
    ]
    assert list(map(str, conf.files)) == [
        "/etc/slurm/slurm.conf",
        "/etc/slurm/sub/lab.conf",
        "/etc/slurm/sub/more.conf",
    ]
    assert conf.problems == ()


def test_what_cannot_be_included_is_a_problem_not_an_end() -> None:
    host = site(
        slurm_conf="Include a.conf\nInclude %c\nInclude gone\nInclude no\nProlog=/a\n",
        a_conf="Include a.conf\n",
    )
    host.put("/etc/slurm/no", "")
    host.unreadable[Path("/etc/slurm/no")] = "Permission denied"
    conf = SlurmConf.read(host, CONF)
    assert conf.value("Prolog") == "/a"
    assert [problem.partition(" line ")[2] for problem in conf.problems] == [
        "1: files that include each other, down to /etc/slurm/a.conf",
        "2: %c comes before ClusterName",
        "3: /etc/slurm/gone is not there",
        "4: /etc/slurm/no: Permission denied",
    ]
    with pytest.raises(HostError, match="no such file"):
        SlurmConf.read(host, Path("/etc/slurm/other.conf"))


def test_a_key_is_changed_in_the_file_where_it_stands() -> None:
    host = site(slurm_conf="Prolog=/a\nInclude hooks.conf\n", hooks_conf="Prolog=/b\nEpilog=/e\n")
    conf = SlurmConf.read(host, CONF)
    changed = edit_files(conf, {"Prolog": "/ours", "JobSubmitPlugins": "lua"})
    for path, text in changed.items():
        host.put(path, text)
    after = SlurmConf.read(host, CONF)
    assert (after.values("Prolog"), after.value("JobSubmitPlugins")) == (("/ours",), "lua")
    assert after.where("Prolog")[0].path.name == "hooks.conf"
    assert unedit_files(after) == conf.files
    assert edit_files(after, {"Prolog": "/ours", "JobSubmitPlugins": "lua"}) == {}


def test_a_linked_slurm_conf_includes_from_beside_the_link() -> None:
    host = FakeHost()
    host.put("/srv/conf/slurm.conf", "Include more.conf\n")
    host.put("/etc/slurm/more.conf", "Prolog=/a\n")
    host.put_link("/etc/slurm/slurm.conf", "/srv/conf/slurm.conf")
    conf = SlurmConf.read(host, CONF)
    assert conf.value("Prolog") == "/a"
    assert next(iter(conf.files)) == CONF


# --- Slurm's own word -------------------------------------------------------------------------------------------------


