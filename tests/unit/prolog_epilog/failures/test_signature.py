"""Signatures are data that is checked: ours here and now, a site's whenever it is loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolog_epilog.failures import signature_file
from prolog_epilog.failures.signature import (
    PACKAGED,
    TIERS,
    ExceptionRule,
    Purpose,
    Signature,
    SignatureError,
    check,
    entries_of,
    load,
    load_files,
)
from prolog_epilog.failures.signature_check import main
from prolog_epilog.failures.taxonomy import REASONS
from site_configs.site import load_site
from tests.paths import REPOSITORY

OURS = sorted(PACKAGED.glob("*.toml"))


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_our_own_are_right(path):
    entries, errors = entries_of(path)
    assert errors == []
    assert entries
    wrong = [f"{entry.name}: {key}: {said}" for entry in entries for key, said in check(entry)]
    assert wrong == []
    for entry in entries:
        if isinstance(entry, Signature):
            assert entry.test, entry.name
            assert entry.source, f"{entry.name}: where does the tool print it?"
        if not isinstance(entry, Purpose) and getattr(entry, "tier", "") == "explicit":
            assert entry.advice, f"{entry.name}: what can the user do?"


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_ours_are_read_quickly_and_as_toml_has_them(path, monkeypatch):
    text = path.read_text()
    whole = signature_file.parse(text)
    monkeypatch.setattr(signature_file, "parse", None)  # the quick way alone must do
    assert signature_file.parse_quickly(text) == whole


def test_all_of_ours_together():
    """Unique names, and the quick way gives the very entries of the careful one."""
    careful = load_files(OURS, checked=True)
    quick = load()
    assert len(quick) == len(careful) >= 230

    def plain(entry: Signature | ExceptionRule | Purpose) -> tuple[object, ...]:
        slots = type(entry).__slots__
        return tuple(getattr(entry, slot) for slot in slots if slot not in ("test", "never"))

    for kind in ("signatures", "exceptions", "purposes"):
        assert [plain(one) for one in getattr(quick, kind)] == [plain(one) for one in getattr(careful, kind)]
    assert load() is quick


def test_every_reason_and_tier_has_signatures():
    rules = load()
    reasons = {rule.reason for rule in rules.signatures} | {rule.reason for rule in rules.exceptions}
    # `traceback` and `no_signature` are what is left when none speaks; a requeue is Slurm's word alone
    assert set(REASONS) - reasons <= {"traceback", "no_signature", "requeued"}
    assert set(TIERS) - {signature.tier for signature in rules.signatures} <= {"progress"}


GOOD = """
[[signature]]
name = "site-license"
reason = "environment_error"
tier = "explicit"
pattern = '''no license for (?:foo|bar) left'''
advice = "Ask for one."
source = "licd"
test = ["licd: no license for foo left"]
never = ["licd: no license for baz left"]

[[exception]]
name = "site-license-error"
types = ["LicenseError"]
message = "expired"
reason = "environment_error"
test = ["licd.LicenseError: it has expired"]

[[purpose]]
name = "site-writer"
frame = "ourwriter\\\\.py:write"
means = "checkpoint"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "site.toml"
    path.write_text(text)
    return path


def test_a_site_adds_its_own(tmp_path):
    rules = load([written(tmp_path, GOOD)])
    assert len(rules) == len(load()) + 3
    assert rules.reason_of("site-license") == "environment_error"
    assert rules.signatures[-1].found_in("licd: no license for bar left")
    assert rules.exceptions[-1].says("licd.LicenseError", "it has expired")
    assert not rules.exceptions[-1].says("licd.LicenseError", "it is odd")
    assert rules.purposes[-1].found_in("/opt/ourwriter.py:write:f.write(x)")


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


WRONG = [  # the file, what the error says: the entry, the key, the words of it
    (changed('reason = "environment_error"', 'reason = "enviroment_error"'), "site-license", "reason", "did you mean"),
    (changed('reason = "environment_error"', ""), "site-license", "reason", "missing"),
    (changed('tier = "explicit"', 'tier = "sure"'), "site-license", "tier", "is not known"),
    (changed('tier = "explicit"', 'tier = "benign"'), "site-license", "reason", "gives no reason"),
    (changed('tier = "explicit"', ""), "site-license", "tier", "missing"),
    (changed("(?:foo|bar)", "(?:foo|bar"), "site-license", "literal", "parentheses"),
    (changed("(?:foo|bar) left'''", "(?=foo)'''\nliteral = ['license']"), "site-license", "pattern", "not RE2"),
    (changed("no license for (?:foo|bar) left", r"\\d+"), "site-license", "literal", "cannot be found"),
    (changed("left'''", "left'''\nliteral = ['li']"), "site-license", "literal", "shorter"),
    (changed("left'''", "left'''\nliteral = ['licence']"), "site-license", "literal", "none of licence"),
    (changed("for foo left\"]\nnever", "for fool left\"]\nnever"), "site-license", "test", "is not matched"),
    (changed("for baz left", "for bar left"), "site-license", "never", "is matched"),
    (changed('test = ["licd: no license for foo left"]\n', ""), "site-license", "test", "missing"),
    (changed('advice = "Ask for one."', 'advise = "Ask for one."'), "site-license", "advise", "did you mean"),
    (changed('advice = "Ask for one."', "advice = 7"), "site-license", "advice", "is not a text"),
    (changed('advice = "Ask for one."', 'advice = ""'), "site-license", "advice", "is not a text"),
    (changed('advice = "Ask for one."', "weight = 10"), "site-license", "weight", "is no weight"),
    (changed('advice = "Ask for one."', "weight = true"), "site-license", "weight", "is no weight"),
    (changed('advice = "Ask for one."', f'advice = "{"x" * 601}"'), "site-license", "advice", "too long"),
    (changed('name = "site-license"', ""), "signature 1", "name", "missing"),
    (changed('"site-license-error"', '"site-license"'), "site-license", "name", "is taken"),
    (changed('["LicenseError"]', '["licd.LicenseError"]'), "site-license-error", "types", "has a module"),
    (changed('types = ["LicenseError"]', 'types = "LicenseError"'), "site-license-error", "types", "a list"),
    (changed('message = "expired"', 'purpose = "reading"'), "site-license-error", "purpose", "did you mean"),
    (changed('means = "checkpoint"', 'means = "save"'), "site-writer", "means", "is not known"),
    (changed("[[purpose]]", "[[purposes]]"), "", "purposes", "unknown"),
    (changed("[[purpose]]", "[purpose]"), "", "purpose", "unknown"),
    ("[[signature]\n", "", "", "not TOML"),
    ('x = "' + "y" * (1 << 20) + '"', "", "", "longer than"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "entry", "key", "says"), WRONG, ids=[f"{e}-{k}-{s}" for _, e, k, s in WRONG]
)
def test_what_is_wrong_in_a_sites_file_is_told(tmp_path, text, entry, key, says):
    path = written(tmp_path, text)
    with pytest.raises(SignatureError) as caught:
        load([path])
    error = caught.value
    assert (error.file, error.entry, error.key) == (str(path), entry, key)
    assert says in error.wrong
    assert error.remedy
    assert str(path) in str(error)
    assert str(error).count("\n") == 1


def test_a_site_cannot_take_our_names(tmp_path):
    ours = load().signatures[0].name
    with pytest.raises(SignatureError, match="taken by one of gsub's own"):
        load([written(tmp_path, changed('"site-license"', f'"{ours}"'))])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "cannot be read"),
        (lambda path: path.mkdir(), "cannot be read"),
        (lambda path: path.write_bytes(b"\xff"), "not UTF-8"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, make, says):
    path = tmp_path / "site.toml"
    make(path)
    with pytest.raises(SignatureError, match=says):
        load([path])


def test_typographic_quotes_are_plain_ones(tmp_path):
    text = changed("no license for (?:foo|bar) left", "no license for ‘foo’ left").replace(
        "for foo left", "for 'foo' left"
    )
    (entry,) = (one for one in load([written(tmp_path, text)]).signatures if one.name == "site-license")
    assert entry.literals == ("no license for 'foo' left",)
    assert entry.found_in("no license for ‘foo’ left")


def test_the_check_tells_all_at_once(tmp_path, capsys):
    bad = changed('for foo left"]\nnever', 'for fool left"]\nnever').replace(
        'means = "checkpoint"', 'means = "save"'
    )
    path = written(tmp_path, bad)
    assert main([str(path)]) == 1
    said = capsys.readouterr()
    assert "site-license: test: is not matched" in said.err
    assert "site-writer: means" in said.err
    assert "2 wrong" in said.out
    assert main([str(written(tmp_path, GOOD))]) == 0
    assert "all right" in capsys.readouterr().out


@pytest.mark.slow
def test_the_check_as_it_is_called():
    done = subprocess.run(
        [sys.executable, "-m", "prolog_epilog.failures.signature", "--quiet"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "all right" in done.stdout


_KEYS = st.sampled_from(["name", "pattern", "weight", "test", "never", "source"])
_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20)
_VALUES = st.one_of(
    _TEXTS.filter(lambda text: "'" not in text).map("'{}'".format),
    _TEXTS.filter(lambda text: "'''" not in text and not text.endswith("'")).map("'''{}'''".format),
    _TEXTS.map(lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'),
    st.integers(-5, 200).map(str),
    st.sampled_from(
        [
            "true",
            "1.5",
            '"\\u00e4"',
            '"""x"""',
            "[]",
            "[1]",
            "'''\nx'''",
            "[\"a\", 'b',]",
            '[\n # why\n "a",\n]',
        ]
    ),
    st.lists(_TEXTS.filter(lambda text: "'" not in text).map("'{}'".format)).map(
        lambda each: f"[{', '.join(each)}]"
    ),
)
_FILES = st.lists(
    st.one_of(
        st.sampled_from(["[[signature]]", "[[exception]] # why", "", "# a comment", "[signature]", "  [[purpose]]"]),
        st.tuples(_KEYS, _VALUES, st.sampled_from(["", " # why", "  "])).map(lambda x: f"{x[0]} = {x[1]}{x[2]}"),
    ),
    max_size=14,
).map("\n".join)  # fmt: skip


@given(_FILES)
def test_the_quick_way_sees_what_toml_has(text):
    try:
        whole = signature_file.parse(text)
    except signature_file.NotTomlError:
        with pytest.raises(signature_file.NotTomlError):
            signature_file.parse_quickly(text)
        return
    assert signature_file.parse_quickly(text) == whole
    lists = all(
        isinstance(tables, list) and all(isinstance(t, dict) for t in tables) for tables in whole.values()
    )
    less = signature_file.parse_quickly(text, without=("name",))
    assert not lists or less == {
        kind: [{key: value for key, value in table.items() if key != "name"} for table in tables]
        for kind, tables in whole.items()
    }


def test_the_examples_of_the_documentation_are_right(tmp_path, capsys):
    page = (REPOSITORY / "docs/signatures.md").read_text()
    blocks = [block for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if block.startswith("[[")]
    path = written(tmp_path, blocks[0])
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] in page  # as the page shows it
    rules = load([written(tmp_path, "\n".join(blocks))])
    assert len(rules) == len(load()) + 3
    (line,) = re.findall(r"^\$ printf 'step 10\\n(.*)\\n'", page, re.MULTILINE)
    assert rules.signatures[-1].found_in(line)
    assert rules.exceptions[-1].purpose == rules.purposes[-1].means
    for tier in TIERS:
        assert f"`{tier}`" in page or tier == "progress"


def test_the_example_site_has_the_file_that_it_names():
    site = load_site(REPOSITORY / "site_configs/examples/university.toml")
    assert site.failures.signatures
    assert len(load(site.failures.signatures)) > len(load())
