"""When results become a state: not for one odd result, at once for a certain one, and never to and fro."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolog_epilog.health.damping import RULES, Condition, after
from prolog_epilog.health.finding import Finding

_STATES = {".": "ok", "w": "warning", "e": "error", "?": "unknown"}


def run(results: str, *, step: float = 10.0, condition: Condition | None = None) -> list[Condition]:
    """The conditions after each result; "E" is a certain error."""
    condition = condition or Condition()
    found = []
    for number, letter in enumerate(results):
        finding = Finding(_STATES[letter.lower()], letter, certain=letter == "E")  # type: ignore[arg-type]
        condition = after(condition, finding, 1000 + number * step)
        found.append(condition)
    return found


@pytest.mark.parametrize(
    ("results", "shown"),
    [
        ("....", "...."),
        ("e.e.e.", "......"),  # every second one is no state
        ("ee", ".e"),
        ("we", ".w"),  # both reach a warning
        ("wee", ".we"),
        ("ee...", ".eee."),
        ("ee..e...", ".eeeeee."),
        ("eewww", ".eeew"),
        ("E", "e"),
        (".E...", ".eee."),
        ("?", "."),  # one late answer
        ("??", ".?"),
        ("??.", ".?."),
        ("ee??e", ".ee?e"),  # it comes back as it was
        ("ee??...", ".ee?ee."),
        ("ee?...", ".eeee."),
    ],
)
def test_states(results, shown):
    letters = {state: letter for letter, state in _STATES.items()}
    assert "".join(letters[condition.shown] for condition in run(results)) == shown


def test_a_check_that_changes_its_mind_too_often_is_held_at_a_warning_until_it_is_calm():
    once = "ee..."  # two changes
    conditions = run(once * 4)
    held = next(condition for condition in conditions if condition.flapping)
    assert len(held.changes) == RULES.flips + 1
    assert held.shown == "warning"
    assert held.said.startswith("flapping: 7 changes within 60 min; now error: e")
    assert {condition.shown for condition in conditions[conditions.index(held) :]} == {"warning"}
    calm = run("." * 8, step=RULES.window / 6, condition=conditions[-1])
    assert calm[-1].shown == "ok" and not calm[-1].flapping


def test_the_same_changes_over_a_day_are_no_flapping():
    assert not any(condition.flapping for condition in run("ee..." * 20, step=RULES.window / 10))


def test_a_certain_error_is_not_hidden_by_flapping():
    flapping = run("ee..." * 4)[-1]
    assert flapping.flapping
    assert run("E", condition=flapping)[-1].shown == "error"


@given(st.text("..we?"), st.sampled_from("we?"))
def test_one_odd_result_among_well_ones_changes_nothing(before, odd):
    well = run(before + "..." + "." * 9, step=2 * RULES.window)[-1]
    assert well.shown == "ok"
    assert {condition.shown for condition in run(odd + "...", condition=well)} == {"ok"}


@given(st.text(".we?E", max_size=60))
def test_an_error_is_shown_only_after_two_of_them_or_a_certain_one(results):
    for number, condition in enumerate(run(results)):
        if condition.shown == "error":
            seen = [letter for letter in results[: number + 1] if letter != "?"]
            assert "E" in seen or any(pair == ("e", "e") for pair in itertools.pairwise(seen))


@given(st.text(".we?E", max_size=200))
def test_a_condition_is_bounded_and_survives_a_restart(results):
    condition = (run(results) or [Condition()])[-1]
    text = msgspec.json.encode(condition)
    assert msgspec.json.decode(text, type=Condition) == condition
    assert len(text) < 4096


def test_a_clock_that_began_anew_frees_no_flapping_check_from_its_counting():
    condition = after(Condition(changes=(9e9,) * 7), Finding("ok"), 1000.0)
    assert condition.changes == () and not condition.flapping
