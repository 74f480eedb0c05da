"""Where our options end up, and where SCRIPT is, as getopt_long sees it."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsub.argv import OURS, Setting, read_options, split
from gsub.sbatch_options import OPTIONS, RELEASES, Table

ALL = Table.of_all()

# command line | what sbatch gets | SCRIPT | ours
SPLITS = [
    ("train.sh", "train.sh", "train.sh", ""),
    ("./train.sh a b", "./train.sh a b", "./train.sh", ""),
    ("--watch train.sh", "train.sh", "train.sh", "--watch"),
    (
        "--watch --json --dry-run --no-smoke --debug t",
        "t",
        "t",
        "--watch --json --dry-run --no-smoke --debug",
    ),
    ("--watch --watch t", "t", "t", "--watch"),
    # after SCRIPT nothing is ours
    ("train.sh --watch", "train.sh --watch", "train.sh", ""),
    ("train.sh -N 2 --json --watch", "train.sh -N 2 --json --watch", "train.sh", ""),
    ("--json train.sh --json", "train.sh --json", "train.sh", "--json"),
    ("- --watch", "- --watch", "-", ""),
    # short options
    ("-N2 t", "-N2 t", "t", ""),
    ("-N 2 t", "-N 2 t", "t", ""),
    ("-N 2 --watch -n 4 t", "-N 2 -n 4 t", "t", "--watch"),
    ("-HQ t", "-HQ t", "t", ""),
    ("-HN2 t", "-HN2 t", "t", ""),
    ("-HN 2 t", "-HN 2 t", "t", ""),
    ("-HN --watch t", "-HN --watch t", "t", ""),
    ("-QN 2 --watch t x", "-QN 2 t x", "t", "--watch"),
    ("-J --watch t", "-J --watch t", "t", ""),
    ("-J name --watch t", "-J name t", "t", "--watch"),
    ("-Jname --watch t", "-Jname t", "t", "--watch"),
    ("-t 10 -p gpu --json t", "-t 10 -p gpu t", "t", "--json"),
    ("-k --watch t", "-k t", "t", "--watch"),
    ("-koff --watch t", "-koff t", "t", "--watch"),
    ("-k off --watch t", "-k off --watch t", "off", ""),
    ("-s --watch t", "-s t", "t", "--watch"),
    ("-W --json t", "-W t", "t", "--json"),
    ("-vvv --watch t", "-vvv t", "t", "--watch"),
    ("-a 1-3%2 --watch t", "-a 1-3%2 t", "t", "--watch"),
    # long options
    ("--nodes=2 --watch t", "--nodes=2 t", "t", "--watch"),
    ("--nodes 2 --watch t", "--nodes 2 t", "t", "--watch"),
    ("--job-name --watch t", "--job-name --watch t", "t", ""),
    ("--job-name=--watch t", "--job-name=--watch t", "t", ""),
    ("--hold --watch t", "--hold t", "t", "--watch"),
    ("--nice --watch t", "--nice t", "t", "--watch"),
    ("--nice=5 --watch t", "--nice=5 t", "t", "--watch"),
    ("--nice 5 --watch t", "--nice 5 --watch t", "5", ""),
    ("--exclusive --watch t", "--exclusive t", "t", "--watch"),
    ("--exclusive=user --watch t", "--exclusive=user t", "t", "--watch"),
    ("--propagate --watch t", "--propagate t", "t", "--watch"),
    ("--requeue --watch t", "--requeue t", "t", "--watch"),
    ("--get-user-env --watch t", "--get-user-env t", "t", "--watch"),
    ("--export=ALL,A=--watch --watch t", "--export=ALL,A=--watch t", "t", "--watch"),
    ("--comment '--watch t' --watch t", "--comment '--watch t' t", "t", "--watch"),
    ("--comment= --watch t", "--comment= t", "t", "--watch"),
    ("--comment '' --watch t", "--comment '' t", "t", "--watch"),
    ("--wait --watch t", "--wait t", "t", "--watch"),
    ("--wait-all-nodes 1 --watch t", "--wait-all-nodes 1 t", "t", "--watch"),
    ("--parsable --test-only --json t", "--parsable --test-only t", "t", "--json"),
    # unique prefixes; an exact match wins over longer names
    ("--job n --watch t", "--job n t", "t", "--watch"),
    ("--dep singleton --watch t", "--dep singleton t", "t", "--watch"),
    ("--part gpu --watch t", "--part gpu t", "t", "--watch"),
    ("--ho --watch t", "--ho t", "t", "--watch"),
    ("--mem 5G --watch t", "--mem 5G t", "t", "--watch"),
    ("--gpus 2 --watch t", "--gpus 2 t", "t", "--watch"),
    ("--export NONE --watch t", "--export NONE t", "t", "--watch"),
    ("--tasks 2 --watch t", "--tasks 2 t", "t", "--watch"),
    ("--deadl now --watch t", "--deadl now t", "t", "--watch"),
    ("--nic --watch t", "--nic t", "t", "--watch"),
    # ambiguous ones that all take a value: sbatch will refuse, and SCRIPT is sure even so
    ("--ntasks-per 2 --watch t", "--ntasks-per 2 t", "t", "--watch"),
    ("--ti 5 --watch t", "--ti 5 t", "t", "--watch"),
    # ours are never abbreviated, and take no value
    ("--wat t", "--wat t", "t", ""),
    ("--json=x t", "--json=x t", "t", ""),
    ("--dry t", "--dry t", "t", ""),
    # end of options
    ("-- --watch", "-- --watch", "--watch", ""),
    ("--watch -- t --watch", "-- t --watch", "t", "--watch"),
    ("-N 2 -- t", "-N 2 -- t", "t", ""),
    ("-J -- --watch t", "-J -- t", "t", "--watch"),
    # ours with a value
    ("--smoke=gate -N2 t --smoke", "-N2 t --smoke", "t", "--smoke=gate"),
    ("--smoke t", "t", "t", "--smoke"),
    ("-J --smoke=only t", "-J --smoke=only t", "t", ""),
    ("--watch=1 t", "--watch=1 t", "t", ""),
    # no SCRIPT
    ("", "", None, ""),
    ("--watch", "", None, "--watch"),
    ("-N 2", "-N 2", None, ""),
    ("--wrap 'sleep 1' --watch", "--wrap 'sleep 1'", None, "--watch"),
    ("--wrap=hostname --json -N1", "--wrap=hostname -N1", None, "--json"),
    ("-N", "-N", None, ""),
    # heterogeneous jobs
    ("-N1 : -N2 t", "-N1 : -N2 t", "t", ""),
    ("-N1 --watch : -N2 --json t --watch", "-N1 : -N2 t --watch", "t", "--watch --json"),
    ("--watch -N1 : -N2 : -n 3 t :", "-N1 : -N2 : -n 3 t :", "t", "--watch"),
    ("-N1 : -J --watch t", "-N1 : -J --watch t", "t", ""),
    # arguments that look like anything
    ("t 'a b' '' $HOME \"q'q\" -- : --watch", "t 'a b' '' $HOME \"q'q\" -- : --watch", "t", ""),
]


@pytest.mark.parametrize(("words", "sbatch", "script", "ours"), SPLITS, ids=[row[0] for row in SPLITS])
def test_split(words, sbatch, script, ours):
    line = split(shlex.split(words), ALL)
    assert list(line.sbatch) == shlex.split(sbatch)
    assert line.script == script
    assert line.ours == frozenset(ours.split())


def test_the_table_is_long_enough():
    assert len(SPLITS) >= 60


def test_a_release_is_asked_where_releases_disagree():
    # In 22.05 --ext can only be --extra-node-info, which takes a value; 26.05 also has --external, which does not.
    words = ["--ext", "2", "--watch", "t"]
    assert split(words, ALL).unsure
    old = split(words, Table.of_release("22.05"))
    assert (old.script, old.ours, old.unsure) == ("t", frozenset({"--watch"}), False)


def test_a_plugin_option_is_learnt_from_help():
    text = "Options provided by plugins:\n      --gpu-profile=MODE  x\n      --lossless  y\n  -Z, --maybe[=V]  z\n"
    words = ["--gpu-profile", "auto", "--lossless", "--maybe", "--watch", "t"]
    assert split(words, ALL).script == "auto"
    line = split(words, ALL.with_help(text))
    assert (line.script, line.ours, line.unsure) == ("t", frozenset({"--watch"}), False)


@pytest.mark.parametrize(
    ("words", "audible"),
    [
        ("-Q t -Q", "t -Q"),
        ("--quiet t", "t"),
        ("--qui -HQ t", "-H t"),
        ("-QHQN2 t", "-HN2 t"),
        ("-JQ t", "-JQ t"),
        ("-J -Q t", "-J -Q t"),
        ("-QJQ t", "-JQ t"),
        ("-N2 t", "-N2 t"),
        ("-QQ t", "t"),
    ],
)
def test_quiet_is_lifted_where_we_must_hear_the_id(words, audible):
    assert list(split(shlex.split(words), ALL).audible) == shlex.split(audible)


def test_settings_have_full_names_and_values():
    options = read_options(shlex.split("-N2 --part 5 --cluster=x -HQ --nice : --tasks-per-node 3 t"), ALL)
    assert options.components == (
        (
            Setting("nodes", "2"),
            Setting("partition", "5"),
            Setting("clusters", "x"),
            Setting("hold", None),
            Setting("quiet", None),
            Setting("nice", None),
        ),
        (Setting("ntasks-per-node", "3"),),
    )


OPTION_WORDS = [*(f"--{o.name}" for o in OPTIONS), *(f"-{o.short}" for o in OPTIONS if o.short)]
OTHER_WORDS = ["-N2", "--", ":", "t.sh", "", "-", "a b", "--nice=3", "--no", "-HQ", "--ext"]
WORDS = st.sampled_from([*OURS, *OPTION_WORDS, *OTHER_WORDS]) | st.text(max_size=4)


@given(st.lists(WORDS, max_size=8), st.sampled_from([ALL, *map(Table.of_release, RELEASES)]))
def test_sbatch_gets_the_users_words_in_their_order(words, table):
    line = split(words, table)
    left = list(line.sbatch)
    for word in words:
        if left and left[0] == word:
            left.pop(0)
        else:
            assert word in OURS
            assert word in line.ours
    assert not left


@given(st.lists(WORDS, max_size=6))
def test_splitting_again_finds_nothing_of_ours(words):
    line = split(words, ALL)
    again = split(line.sbatch, ALL)
    assert not again.ours
    assert (again.sbatch, again.script, again.args) == (line.sbatch, line.script, line.args)


@given(st.lists(WORDS, max_size=6), st.lists(st.text(max_size=5), max_size=4))
def test_what_follows_the_script_is_untouched(options, args):
    head = split(options, ALL)
    if head.script is None and "--" not in options:
        whole = split([*options, "script.sh", *args], ALL)
        # the last option may still have wanted a value
        assert whole.sbatch[-len(args) :] == tuple(args) or not args or whole.script in (args[0], None)
