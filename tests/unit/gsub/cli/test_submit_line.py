"""The command line of a job out of Slurm's SubmitLine, which has no quotes: read right, or doubted; never wrong."""

from __future__ import annotations

import os
import string
import subprocess
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gsub.resubmission.change import Change, changed
from gsub.resubmission.kept import Kept, environment_of, kept_of, script_of
from gsub.resubmission.submit_line import Told, UnreadableError, read_words, reading
from gsub.resubmission.view import command_line, diff, masked
from gsub.sbatch_options import Table
from gsub.script_text import WRAPPED, command_of
from slurm_plugins.client.errors import SlurmUnreachable
from slurm_plugins.client.runner import Completed
from tests.properties import examples

TABLE = Table.of_all()
SCRIPT = "#!/bin/bash\n:\n"
HERE = "/home/ada/run"


def told(**more: object) -> Told:
    known: dict[str, object] = {
        "submit_dir": HERE,
        "script": SCRIPT,
        "name": "train.sh",
        "command": f"{HERE}/train.sh",
    }
    return Told(**(known | more))  # type: ignore[arg-type]


# line, what Slurm says besides, the words
CERTAIN = [
    ("sbatch train.sh", {}, ["train.sh"]),
    ("sbatch -N2 --mem 4G train.sh one", {}, ["-N2", "--mem", "4G", "train.sh", "one"]),
    ("sbatch train.sh --watch", {}, ["train.sh", "--watch"]),
    ("/usr/bin/sbatch ./train.sh", {}, ["./train.sh"]),
    ("sbatch -- train.sh x", {}, ["--", "train.sh", "x"]),
    ("sbatch -J a b train.sh", {"name": "a b"}, ["-J", "a b", "train.sh"]),
    ("sbatch --job-name=a  b train.sh", {"name": "a  b"}, ["--job-name=a  b", "train.sh"]),
    ("sbatch -Ja b train.sh", {"name": "a b"}, ["-Ja b", "train.sh"]),
    ("sbatch --job n -N 2 train.sh", {"name": "n -N 2"}, ["--job", "n -N 2", "train.sh"]),
    ("sbatch -J a -J b c train.sh", {"name": "b c"}, ["-J", "a", "-J", "b c", "train.sh"]),
    ("sbatch --comment it's \"q\" train.sh", {"comment": "it's \"q\""}, ["--comment", "it's \"q\"", "train.sh"]),
    ("sbatch --comment two\nlines train.sh", {"comment": "two\nlines"}, ["--comment", "two\nlines", "train.sh"]),
    ("sbatch --comment  train.sh", {}, ["--comment", "", "train.sh"]),
    ("sbatch --wrap=echo a b -N 3", {"wrap": "echo a b", "command": ""}, ["--wrap=echo a b", "-N", "3"]),
    ("sbatch --wra echo -n -n 2", {"wrap": "echo -n", "command": "", "name": "wrap"}, ["--wra", "echo -n", "-n", "2"]),
    ("sbatch -n 2", {"command": "", "name": "sbatch"}, ["-n", "2"]),
    ("sbatch", {"command": "", "name": "sbatch"}, []),
    ("sbatch my train.sh x", {"name": "my train.sh", "command": f"{HERE}/my train.sh"}, ["my train.sh", "x"]),
    # 22.05 has the arguments behind the path
    ("sbatch train.sh x", {"command": f"{HERE}/train.sh x"}, ["train.sh", "x"]),
    ("sbatch my train.sh x", {"name": "my train.sh", "command": f"{HERE}/my train.sh x"}, ["my train.sh", "x"]),
    ("sbatch -J t train.sh x",
     {"name": "t", "command": f"{HERE}/train.sh x", "is_file": lambda path: path.endswith(".sh")},
     ["-J", "t", "train.sh", "x"]),
    # forgotten by slurmctld
    ("sbatch train.sh x", {"command": None}, ["train.sh", "x"]),
    ("sbatch -J t train.sh x", {"command": None, "name": "t", "is_script": lambda path: path == f"{HERE}/train.sh"},
     ["-J", "t", "train.sh", "x"]),
    ("sbatch -o out %j train.sh x", {"command": f"{HERE}/train.sh x"}, ["-o", "out %j", "train.sh", "x"]),
    ("sbatch --begin=now + 1 hour train.sh", {}, ["--begin=now + 1 hour", "train.sh"]),
    ("sbatch --export=ALL,A=1 -N 2 train.sh", {"environment": {"A": "1"}}, ["--export=ALL,A=1", "-N", "2", "train.sh"]),
    ("sbatch train.sh ", {}, ["train.sh", ""]),
]  # fmt: skip


@pytest.mark.parametrize(("line", "more", "words"), CERTAIN, ids=[case[0] for case in CERTAIN])
def test_what_slurm_says_besides_decides(line: str, more: dict[str, object], words: list[str]) -> None:
    found = reading(line, told(**more), TABLE)
    assert list(found.words) == words
    assert found.doubts == ()


DOUBTFUL = [
    ("sbatch -o a train.sh train.sh", {}, "which word is the script"),
    ("sbatch -o a -N 2 b train.sh", {}, "which word is the script"),
    ("sbatch train.sh one two", {}, "blanks may stand within the script's arguments"),
    ("sbatch train.sh one ", {}, "blanks may stand"),
    ("sbatch -o out put train.sh", {"command": None, "name": "t", "script": ""}, "which word is the script"),
    ("sbatch -J a b train.sh", {"name": "c"}, "--job-name"),
    ("sbatch --comment a -N 2 train.sh", {"comment": "changed since"}, "--comment"),
    ("sbatch --wrap=echo a b", {"wrap": None, "script": "", "command": None}, "--wrap is not known"),
    ("sbatch --export=ALL,A=x -N 2 train.sh", {}, "--export"),
    ("sbatch --export=ALL,A=x -N 2 train.sh", {"environment": {"A": "x -N 2"}}, "--export"),
    ("sbatch --of-a-plugin x train.sh", {}, "does not know"),
    ("sbatch -n 2 train.sh", {"command": ""}, "which word is the script"),
    ("sbatch my train.sh x", {"command": None, "name": "t", "script": ""}, "which word is the script"),
    ("sbatch -J t train.sh x", {"command": f"{HERE}/train.sh x", "name": "t"}, "which word is the script"),
]


@pytest.mark.parametrize(("line", "more", "doubt"), DOUBTFUL, ids=[case[0] for case in DOUBTFUL])
def test_what_nothing_can_say_is_doubted(line: str, more: dict[str, object], doubt: str) -> None:
    assert any(doubt in one for one in reading(line, told(**more), TABLE).doubts)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("salloc -N2", "submitted by salloc"),
        ("srun -N2 hostname", "submitted by srun"),
        ("", "nobody knows what"),
        ("sbatch -N1 : -N2 train.sh", "heterogeneous"),
    ],
)
def test_what_is_no_submission_of_one_script_is_refused(line: str, says: str) -> None:
    with pytest.raises(UnreadableError, match=says):
        reading(line, told(), TABLE)


_TEXT = st.text(alphabet="ab-N2 =x%,\n", min_size=0, max_size=9)
# A file name with an option in it (`a -N2`) is the one thing that is read wrong: nobody has such
_FILE = _TEXT.filter(lambda text: text != "" and " -" not in text)
_PLAIN = st.text(alphabet="abx0-._", min_size=1, max_size=6).filter(lambda text: not text.startswith("-"))


@dataclass(frozen=True)
class Typed:
    """A command line that sbatch takes, and what Slurm knows of its job."""

    words: tuple[str, ...]
    told: Told


@st.composite
def submissions(draw: st.DrawFn) -> Typed:
    name, comment, variable = draw(_TEXT), draw(_TEXT), draw(_TEXT)
    options = [
        *draw(st.sampled_from([[], ["-N2"], ["-n", "4"], ["--mem=5G", "-H"], ["-HQ"], ["-t", "5:00"]])),
        *draw(st.sampled_from([[], ["-J", name], [f"--job-name={name}"], ["-J" + (name or "x")]])),
        *draw(st.sampled_from([[], ["--comment", comment], [f"--comment={comment}"]])),
        *draw(st.sampled_from([[], [f"--export=ALL,A={variable}"], ["--export", f"A={variable}"]])),
        *draw(st.sampled_from([[], ["-o", draw(_PLAIN | _FILE)], ["--exclusive"]])),
    ]
    named = any(word.startswith(("-J", "--job")) for word in options)
    if draw(st.booleans()):
        wrap = draw(_TEXT.filter(lambda text: text != ""))
        place = 0 if draw(st.booleans()) else len(options)
        options[place:place] = draw(st.sampled_from([["--wrap", wrap], [f"--wrap={wrap}"]]))
        words, script, path, text = options, "wrap", "", WRAPPED + wrap + "\n"
    else:
        script = draw(_PLAIN | st.just("my job.sh") | st.just("a b -N2.sh"))
        args = draw(st.lists(_TEXT, max_size=3))
        words, path, text = [*options, script, *args], f"{HERE}/{script}", SCRIPT
        if draw(st.booleans()):
            path = " ".join([path, *args])  # as 22.05 has it
        elif draw(st.booleans()):
            path = None
    here = Told(
        name=(name or ("x" if "-Jx" in options else "")) if named else script,
        # squeue and sacct say nothing of an empty comment
        comment=(comment or None) if any(word.startswith("--comment") for word in options) else None,
        command=path,
        wrap=command_of(text),
        submit_dir=HERE,
        script=text,
        is_script=lambda there: there == f"{HERE}/{script}",
        is_file=lambda there: there == f"{HERE}/{script}",
        environment=draw(st.sampled_from([None, {"A": variable}])),
    )
    return Typed(tuple(words), here)


@settings(max_examples=examples(600), deadline=None)
@given(submissions())
def test_it_is_read_right_or_doubted(typed: Typed) -> None:
    """Whatever blanks stand in it."""
    found = reading(" ".join(["sbatch", *typed.words]), typed.told, TABLE)
    assert found.doubts or found.words == typed.words


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.text(alphabet=string.printable + "é\u202e\x1b", max_size=8), max_size=4))
def test_a_command_line_that_is_shown_is_what_bash_reads(words: list[str]) -> None:
    line = command_line(words)
    assert "\n" not in line and "\x1b" not in line and "\u202e" not in line
    # `sbatch` a function that prints its words
    done = subprocess.run(
        ["bash", "-c", f"sbatch() {{ printf '%s\\0' \"$@\"; }}; {line}"],
        capture_output=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        check=True,
    )
    assert done.stdout.decode().split("\0")[:-1] == (masked(words) if words else [""])


# --- changes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "changes", "leave_out", "expected"),
    [
        ("--mem 32G train.sh", {"mem": "48G"}, (), "--mem=48G train.sh"),
        ("--mem-per-cpu=1G train.sh", {"mem-per-cpu": "2G"}, (), "--mem-per-cpu=2G train.sh"),
        ("--mem-per-gpu=1G train.sh", {"mem": "2G"}, (), "--mem=2G train.sh"),
        ("-x n1 train.sh -x", {"exclude": "n[1-2]"}, (), "--exclude=n[1-2] train.sh -x"),
        ("-HQx n1 train.sh", {"exclude": "n2"}, ("hold",), "-Q --exclude=n2 train.sh"),
        ("-a 1-9 --arr=3 train.sh", {"array": "3"}, (), "--array=3 train.sh"),
        ("--tasks-per-node=2 train.sh", {}, ("ntasks-per-node",), "train.sh"),
        ("-W --parsable -- train.sh", {"begin": "now"}, ("wait", "parsable"), "--begin=now -- train.sh"),
        ("-d afterok:1 -N 2", {}, ("dependency",), "-N 2"),
        ("-WN 2 train.sh", {}, ("wait",), "-N 2 train.sh"),
        ("-N 2 train.sh", {"nodes": "3"}, (), "--nodes=3 train.sh"),
    ],
)
def test_options_are_changed_and_all_else_stays(
    words: str, changes: dict[str, str], leave_out: tuple[str, ...], expected: str
) -> None:
    given_ = read_words(tuple(words.split()), TABLE)
    found = changed(given_, TABLE, [Change(*item, "", "") for item in changes.items()], leave_out=leave_out)
    assert " ".join(found.words) == expected
    assert read_words(found.words, TABLE).settings == found.settings


# --- what Slurm keeps -------------------------------------------------------------------------------------------------

HEAD = "Batch Script for 7\n" + "-" * 80 + "\n"
VARIABLES = "Environment used for 7 (must be batch to display)\n" + "-" * 80 + "\n"


@pytest.mark.parametrize(
    ("said", "script"),
    [
        ("#!/bin/sh\n:\n", "#!/bin/sh\n:\n"),  # of scontrol
        (HEAD + "#!/bin/sh\n:\n\n", "#!/bin/sh\n:\n"),  # 22.05
        (HEAD + "#!/bin/sh\n:\n", "#!/bin/sh\n:\n"),  # 24.11
        (HEAD + "#!/bin/sh\n" + HEAD, "#!/bin/sh\n" + HEAD),  # a script that looks like sacct
        (HEAD + "NONE\n", None),
        ("", None),
        ("job script retrieval failed", None),
    ],
)
def test_the_script_that_is_kept(said: str, script: str | None) -> None:
    assert script_of(said) == script


def test_the_environment_that_is_kept() -> None:
    said = VARIABLES + "A=1=2\nB=\nF=one\nTWO=2\n  three\nBASH_FUNC_f%%=() {  echo a;\n y=2\n}\nZ=\u00e9\n\n"
    assert environment_of(said, {})["TWO"] == "2\n  three", "which nobody could know better"  # type: ignore[index]
    known = environment_of(said, {"F": "one\nTWO=2\n  three"})
    functions = "() {  echo a;\n y=2\n}"
    assert known == {"A": "1=2", "B": "", "F": "one\nTWO=2\n  three", "BASH_FUNC_f%%": functions, "Z": "é"}  # fmt: skip
    assert environment_of(VARIABLES + "NONE\n", {}) is None
    assert environment_of("", {}) is None


class Commands:
    """scontrol and sacct, which know what they are told to know."""

    def __init__(self, **said: str) -> None:
        self.said = said

    def read(self, argv: list[str], *, daemon: str = "slurmctld") -> Completed:
        word = "script" if "batch_script" in argv else "kept" if "--batch-script" in argv else "variables"
        if word not in self.said:
            raise SlurmUnreachable(daemon)
        return Completed(argv[0], 0, self.said[word], "")


def test_accounting_is_asked_where_slurm_has_forgotten() -> None:
    own = (
        VARIABLES
        + f"A=1\nSLURM_SUBMIT_DIR={HERE}\nSLURM_RLIMIT_CPU=1\nSLURM_CONF=/c\nSBATCH_QOS=q\nTOKEN=hf_secret\n"
    )
    both = kept_of("7", Commands(script=SCRIPT, kept=HEAD + "#!/bin/no\n", variables=own), {})
    assert (both.script, both.by, both.submit_dir) == (SCRIPT, "Slurm", HERE)
    assert both.environment == {"A": "1", "SLURM_CONF": "/c", "SBATCH_QOS": "q", "TOKEN": "hf_secret"}
    assert "hf_secret" not in repr(both), "a traceback shows it"
    gone = kept_of("7_3", Commands(script="", kept=HEAD + SCRIPT, variables=""), {})
    assert (gone.script, gone.by, gone.environment) == (SCRIPT, "accounting", None)
    assert kept_of("7", Commands(), {}) == Kept()


def test_secrets_and_what_steers_a_terminal_are_not_shown() -> None:
    words = [
        "--export=ALL,HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
        "--wrap=login --password hunter22 \x1b[31m",
    ]
    line = command_line(words)
    assert "hf_Ab" not in line and "hunter22" not in line and "\x1b" not in line
    shown = "\n".join(diff("a\nexport API_KEY=abcdef0123456789\n", "a\x1b[2J\nb\n", "old", "new"))
    assert "abcdef0123456789" not in shown and "\x1b" not in shown
