"""Our options against sbatch's, and the tables as such; the binaries are asked in test_sbatch_options.py."""

from __future__ import annotations

import pytest

from gsub.argv import OURS
from gsub.sbatch_options import OPTIONS, RELEASES, Table

ALL = Table.of_all()


@pytest.mark.parametrize("release", [*RELEASES, "all"])
@pytest.mark.parametrize("ours", OURS)
def test_no_option_of_ours_equals_or_shadows_one_of_sbatch(ours, release):
    table = ALL if release == "all" else Table.of_release(release)
    name = ours.removeprefix("--")
    # neither the option itself, nor an abbreviation of one, nor a name that one abbreviates
    assert not table.candidates(name)
    assert not [option for option in table.long if name.startswith(option)]


@pytest.mark.parametrize("release", RELEASES)
def test_options_of_a_release(release):
    table = Table.of_release(release)
    assert len(table.long) >= 100
    assert ("power" in table.long) == (release == "22.05")
    assert ("segment" in table.long) == (release != "22.05")
    assert ("external" in table.long) == (release == "26.05")


def test_a_release_in_between_has_the_older_table():
    assert Table.of_release("25.05").long == Table.of_release("24.11").long
    assert Table.of_release("21.08").long == Table.of_release("22.05").long
    assert Table.of_release("27.11").long == Table.of_release("26.05").long


def test_no_option_changed_in_whether_it_takes_the_next_word():
    by_name: dict[str, set[bool]] = {}
    for option in OPTIONS:
        by_name.setdefault(option.name, set()).add(option.argument == "required")
    assert [name for name, kinds in by_name.items() if len(kinds) > 1] == []
