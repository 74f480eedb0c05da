"""The option tables against the binaries: getopt_long itself is asked what it knows."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

import pytest

from gsub.sbatch_options import INPUT_VARIABLES, OPTIONS, Table
from site_configs.devcluster import Cluster

pytestmark = pytest.mark.all_releases

# Asks sbatch about many words in one go; the first line of each answer tells all.
ASK = 'for word; do printf "== %s\\n" "$word"; sbatch "$word" 2>&1 </dev/null | head -n 1; done'


def ask(cluster: Cluster, words: Iterable[str]) -> dict[str, str]:
    words = list(words)
    if not words:
        return {}
    said = cluster.run(["sh", "-c", ASK, "sh", *words], timeout=120).stdout
    answers = {}
    for block in said.split("== ")[1:]:
        word, _, answer = block.partition("\n")
        answers[word] = answer
    assert list(answers) == words
    return answers


def long_names(cluster: Cluster) -> set[str]:
    """All long options: an ambiguous prefix makes glibc name all that begin so; then one letter more."""
    names: set[str] = set()
    prefixes = list(string.ascii_lowercase)
    while prefixes:
        longer: set[str] = set()
        for word, answer in ask(cluster, [f"--{prefix}" for prefix in prefixes]).items():
            prefix = word.removeprefix("--")
            if "is ambiguous; possibilities:" in answer:
                found = re.findall(r"'--([a-z0-9-]+)'", answer.split("possibilities:")[1])
                names.update(found)
                longer.update(prefix + name[len(prefix)] for name in found if len(name) > len(prefix))
            elif match := re.match(r"sbatch: option '--([a-z0-9-]+)' requires", answer):
                names.add(match[1])
        prefixes = sorted(longer)
    return names


@pytest.fixture(scope="module")
def table(cluster):
    return Table.of_release(cluster.version[:5])


def test_the_table_has_exactly_the_long_options_of_this_sbatch(cluster, table):
    assert sorted(long_names(cluster)) == sorted(table.long)


def test_arity_of_every_long_option(cluster, table):
    bare = ask(cluster, [f"--{name}" for name in table.long])
    valued = ask(cluster, [f"--{name}=@" for name in table.long])
    for name, argument in table.long.items():
        requires = f"option '--{name}' requires an argument" in bare[f"--{name}"]
        refuses = f"option '--{name}' doesn't allow an argument" in valued[f"--{name}=@"]
        assert argument == ("required" if requires else "none" if refuses else "optional"), name


def test_short_options(cluster, table):
    letters = string.ascii_letters + string.digits
    bare = ask(cluster, [f"-{letter}" for letter in letters])
    valued = ask(cluster, [f"-{letter}@" for letter in letters])
    for letter in letters:
        known = f"invalid option -- '{letter}'" not in bare[f"-{letter}"]
        assert known == (letter in table.short), letter
        if known and letter not in "hV":  # these two end sbatch before it looks at the rest
            requires = "option requires an argument" in bare[f"-{letter}"]
            refuses = "invalid option -- '@'" in valued[f"-{letter}@"]
            argument = "required" if requires else "none" if refuses else "optional"
            assert table.short[letter].argument == argument, letter


def test_help_lists_none_that_the_table_lacks(cluster, table):
    text = cluster.run(["sbatch", "--help"]).stdout
    listed = re.findall(r"^ +(?:-(\w)[, ] *)?--([a-z][a-z0-9-]*)", text, re.MULTILINE)
    assert len(listed) > 70
    # The help of 24.11 and newer still lists --power, which the program itself no longer knows.
    lacking = [f"--{name}" for _, name in listed if name not in table.long]
    assert all("unrecognized option" in answer for answer in ask(cluster, lacking).values())
    for short, name in listed:
        assert not short or table.short[short].name == name


def test_variables_that_sbatch_reads(cluster):
    """Every SBATCH_ name in the binary is in our table, or is known to stand for no single option."""
    found = cluster.run(
        ["sh", "-c", "cat $(command -v sbatch) | tr -c 'A-Z0-9_' '\\n' | grep -E '^SBATCH_.'"]
    )
    names = {name for name in found.stdout.split() if not name.endswith("_")}
    assert len(names) > 50
    # written for the job or read beside --switches; the rest is for options
    no_option = {"SBATCH_WAIT4SWITCH", "SBATCH_CPU_BIND", "SBATCH_CPU_BIND_LIST"}
    unknown = {name for name in names - no_option if name not in INPUT_VARIABLES}
    assert not unknown
    assert set(INPUT_VARIABLES.values()) <= {option.name for option in OPTIONS}
