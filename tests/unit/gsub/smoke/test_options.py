"""Whether a job is smoked: words and site against each other, without a submission."""

from __future__ import annotations

import pytest

from gsub.argv import split
from gsub.errors import UserError
from gsub.sbatch_options import Table
from gsub.smoke.options import may_be_wanted, unasked, wish
from site_configs.site_model import Smoke

ASK, GATE, BIG, OFF = Smoke(), Smoke(way="gate"), Smoke(above_gpus=8), Smoke(above_gpus=0, enabled=False)


def line(words: str):
    return split(words.split(), Table.of_all())


@pytest.mark.parametrize(
    ("words", "site", "way", "learn"),
    [
        ("--smoke t", ASK, "race", False),
        ("--smoke t", GATE, "gate", False),
        ("--smoke=race t", GATE, "race", False),
        ("--smoke=gate --smoke=only t", ASK, "only", False),
        ("--no-smoke --smoke t", ASK, "race", False),
        ("--learn t", GATE, "gate", True),
        ("--smoke --learn t", OFF, "race", True),  # told later that this site has none
        ("--smoke --no-smoke t", ASK, None, False),
        ("t --smoke", BIG, None, False),
    ],
)
def test_the_later_word_counts_and_the_site_says_the_rest(words, site, way, learn):
    found = wish(line(words), site)
    assert (found and found.way, found.learn if found else False) == (way, learn)


@pytest.mark.parametrize("words", ["--smoke=x t", "--smoke= t", "--no-smoke --learn t"])
def test_words_that_clash(words):
    with pytest.raises(UserError):
        wish(line(words), ASK)


def test_nothing_can_be_tried_alone_where_the_site_has_none():
    with pytest.raises(UserError, match="no smoke runs"):
        wish(line("--smoke=only t"), OFF)


@pytest.mark.parametrize(
    ("site", "gpus", "opted_out", "way"),
    [
        (BIG, 8, False, None),
        (BIG, 9, False, "race"),
        (BIG, 9, True, None),
        (Smoke(above_gpus=0, way="gate"), 1, False, "gate"),
        (ASK, 900, False, None),
        (OFF, 900, False, None),
    ],
)
def test_unasked(site, gpus, opted_out, way):
    found = unasked(site, gpus, opted_out=opted_out)
    assert (found and found.way) == way and not (found and found.asked)


@pytest.mark.parametrize(
    ("words", "site", "environ", "worth"),
    [
        ("t", ASK, {}, False),
        ("t", None, {}, False),
        ("--smoke t", None, {}, True),
        ("t", BIG, {}, True),
        ("--no-smoke t", BIG, {}, False),
        ("t", OFF, {}, False),
        ("--smoke t", BIG, {"GSUB_SMOKE": "1"}, False),
        ("--smoke --test-only t", BIG, {}, False),
        ("--smoke --help", BIG, {}, False),
    ],
)
def test_it_is_not_looked_at_for_nothing(words, site, environ, worth):
    assert may_be_wanted(line(words), site, environ) == worth
