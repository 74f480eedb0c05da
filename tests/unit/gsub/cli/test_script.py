"""#SBATCH lines by sbatch's rules, and the request that they make with options and environment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsub.argv import split
from gsub.sbatch_options import Table
from gsub.script import Asked, Request, directives, request, split_words

ALL = Table.of_all()

WORDS = [
    ("", ()),
    (" -N 2", ("-N", "2")),
    ("-N2", ("-N2",)),
    ("\t--nodes=2\t-n\t4 ", ("--nodes=2", "-n", "4")),
    (" --comment='a b'", ("--comment=a b",)),
    (' --comment="a b" -N 1', ("--comment=a b", "-N", "1")),
    (' --comment="it\'s"', ("--comment=it's",)),
    (' --comment="say \\"hi\\""', ('--comment=say "hi"',)),
    (" --comment=a\\ b", ("--comment=a b",)),
    (" --comment='a\\'b'", ("--comment=a'b",)),  # a shell would not let \ count here
    (" -N 2 # two nodes", ("-N", "2")),
    (" -N 2# two nodes", ("-N", "2")),
    (" --comment='a # b'", ("--comment=a # b",)),
    (" --comment=a\\#b", ("--comment=a#b",)),
    (" -N 2\r", ("-N", "2")),
]


@pytest.mark.parametrize(("text", "words"), WORDS, ids=[repr(row[0]) for row in WORDS])
def test_split_words(text, words):
    assert split_words(text) == words


LINES = [
    ("#!/bin/sh\n#SBATCH -N 2\n", [(2, 0, "-N 2")]),
    ("#!/bin/sh\n\n  # comment\n#\n   \n#SBATCH -N 2\n", [(6, 0, "-N 2")]),
    ("#!/bin/sh\n#SBATCH -N 2\necho\n#SBATCH -n 3\n", [(2, 0, "-N 2")]),
    ("#!/bin/sh\n #SBATCH -N 2\n##SBATCH -N 3\n# SBATCH -N 4\n#sbatch -N 5\n", []),
    ("#SBATCH -N 2", [(1, 0, "-N 2")]),
    ("#!/bin/sh\n#SBATCH-N2\n", [(2, 0, "-N2")]),
    ("#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\n", [(2, 0, "-N1"), (3, 1, ""), (4, 1, "-N2")]),
    ("#!/bin/sh\n#SBATCH -N1\n#SBATCH packjob -N2\n", [(2, 0, "-N1"), (3, 1, "-N2")]),
    ("#!/bin/sh\n#SBATCH -N1\n#SBATCH HetJob\n", [(2, 0, "-N1"), (3, 1, "")]),
    ("", []),
    ("set -e\n#SBATCH -N 2\n", []),
]


@pytest.mark.parametrize(("text", "found"), LINES)
def test_directives(text, found):
    assert [(d.line, d.component, " ".join(d.words)) for d in directives(text)] == found


@given(st.text())
def test_any_text_can_be_read(text):
    for directive in directives(text):
        assert text.split("\n")[directive.line - 1].startswith("#SBATCH")


def ask(words: list[str], text: str = "#!/bin/sh\n", **environ: str) -> Request:
    return request(split(words, ALL), text, environ, ALL)


def test_command_line_over_environment_over_script():
    text = "#!/bin/sh\n#SBATCH -N1 -p a\n#SBATCH -t 5 --hold\n"
    asked = ask(["-N", "3", "t.sh"], text, SBATCH_PARTITION="b", SBATCH_EXCLUSIVE="user", SBATCH_NODES="9")
    assert asked.components == (
        (
            # in the order in which they were set, which matters for those that exclude each other
            Asked("time", "5", "script line 3"),
            Asked("hold", None, "script line 3"),
            Asked("exclusive", "user", "SBATCH_EXCLUSIVE"),
            Asked("partition", "b", "SBATCH_PARTITION"),
            Asked("nodes", "3", "command line"),
        ),
    )


def test_components_of_a_hetjob_are_joined_by_place():
    text = "#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\n"
    asked = ask(["-n1", ":", "-n2", ":", "-n3", "t.sh"], text)
    assert [[(o.name, o.value) for o in component] for component in asked.components] == [
        [("nodes", "1"), ("ntasks", "1")],
        [("nodes", "2"), ("ntasks", "2")],
        [("ntasks", "3")],
    ]


@pytest.mark.parametrize(
    ("words", "environ", "name"),
    [
        (["dir/train.sh"], {}, "train.sh"),
        (["-J", "a", "train.sh"], {}, "a"),
        (["train.sh"], {"SBATCH_JOB_NAME": "b"}, "b"),
        (["-J", "a", "train.sh"], {"SBATCH_JOB_NAME": "b"}, "a"),
        (["--wrap", "hostname"], {}, "wrap"),
        (["--wrap", "hostname", "-Jx"], {}, "x"),
        ([], {}, "sbatch"),
    ],
)
def test_job_name(words, environ, name):
    assert ask(words, **environ).job_name == name


def test_job_name_in_the_script():
    assert ask(["t.sh"], "#!/bin/sh\n#SBATCH --job-name digits\n").job_name == "digits"
