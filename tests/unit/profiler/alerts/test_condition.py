"""The language of rules: what it says, what it refuses and where, and that nothing in it gets out of hand."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_configs.alerts_table import BUILT_IN, QUANTITIES
from site_configs.condition import DEEPEST, LONGEST, MOST, ConditionError, Type, parse

KNOWN: dict[str, Type] = {
    "idle_s": "duration", "gpus": "number", "util": "share", "user": "text", "ended": "flag", "account": "name",
}  # fmt: skip
VALUES: dict[str, Any] = {
    "idle_s": 7200.0, "gpus": 8.0, "util": 0.1, "user": "ada", "ended": False, "account": "physics",
}  # fmt: skip

TRUE = [
    "idle_s == 2h", "idle_s >= 120m", "idle_s > 1.5 h" .replace(" h", "h"), "idle_s < 1d", "idle_s != 7199s",
    "idle_s == 120min", "util == 10%", "gpus == 8", 'user == "ada"', "user == 'ada'", "not ended", "ended == false",
    'user in ("bob", "ada")', 'user not in ("bob")', "gpus in (1, 2, 4 , 8)", "gpus - 1 == 7", "gpus - 1 - 1 == 6",
    "gpus / 2 / 2 == 2", "2 + gpus * 2 == 18", "(2 + gpus) * 2 == 20", "-gpus < 0", "- - gpus == 8",
    "gpus * idle_s == 16h", "idle_s / 1h == 2", "idle_s + 30m > 2h", "util * gpus == 80%", "util * idle_s == 12m",
    "false or true and true", "not false and true", "not (true and false)", "true or gpus / 0 > 1",
    "gpus>1 and idle_s>1h", "(((gpus))) > 1", "idle_s - 1h == 1h",
    'account == "Physics"', '"PHYSICS" == account', 'account in ("Lab", "Physics")', 'account != "Physic"',
    'user != "Ada"', 'user not in ("Ada", "ADA")',
]  # fmt: skip
FALSE = [
    "gpus > 8", "not true",
    "true and false", "not not false", 'user != "ada"', "gpus / 0 > 1 and false", 'user in ("")',
    "not gpus == 8", "false and gpus / 0 > 1",
    'account != "Physics"', 'account not in ("Lab", "Physics")',
]  # fmt: skip
UNKNOWN = ["gpus / 0 > 1", "not gpus / 0 > 1", "gpus / (gpus - 8) == 1 or false", "true and gpus / 0 == 0"]

# condition, what is wrong, at which character
WRONG = [
    ("", "the end where", 1),
    ("   ", "the end where", 1),
    ("gpus", "a number where true or false belongs", 1),
    ("gpus >", "the end where", 7),
    ("gpus > 1 gpus", '"gpus" where and, or, or the end belongs', 10),
    ("gpus > 1 < 3", "two comparisons in a row", 10),
    ("idle_s > 30", "a duration and a number side by side", 8),
    ("util < 15", "a share and a number side by side", 6),
    ("idle_s > 50%", "a duration and a share side by side", 8),
    ("idle_s + gpus > 1h", "a duration and a number side by side", 8),
    ('user > "a"', '">" between a text and another', 6),
    ('user + "a" == "b"', '"+" with a text', 6),
    ("-user == 1", '"-" with a text', 1),
    ("user == ada", 'there is no quantity "ada"', 9),
    ("idl_s > 1h", 'there is no quantity "idl_s"', 1),
    ("gpus > 1h2m", '"h2m" is no unit', 8),
    ("gpus > 1 fortnight", '"fortnight" where', 10),
    ("gpus = 1", "this is no number, name, text or sign", 6),
    ("gpus > 1 && ended", "this is no number, name, text or sign", 10),
    ('user == "ada', "this is no number, name, text or sign", 9),
    ("(gpus > 1", 'the end where ")" belongs', 10),
    ("gpus in 1", '"1" where "(" belongs', 9),
    ("gpus in ()", '")" where a quantity', 10),
    ("gpus in (1,", "the end where", 12),
    ('gpus in (1, "a")', "a number and a text side by side", 13),
    ("gpus not 1", '"1" where in belongs', 10),
    ("ended and gpus", "a number where true or false belongs", 11),
    ("not gpus", "a number where true or false belongs", 5),
    ("ended < true", '"<" between true or false and another', 7),
    ("__import__('os')", 'there is no quantity "__import__"', 1),
    ("user.upper() == 'A'", "this is no number, name, text or sign", 5),
    ("gpus ** 99999 > 1", '"*" where a quantity', 7),
    ("gpüs > 1", "this is no number, name, text or sign", 3),
    ("(" * (DEEPEST + 1) + "ended" + ")" * (DEEPEST + 1), "nested too deeply", DEEPEST + 1),
    ("not " * (DEEPEST + 1) + "ended", "nested too deeply", 4 * DEEPEST + 1),
    ("1" + "+1" * MOST + " > 1", f"more than {MOST} names", MOST + 1),
    ("ended" + " " * LONGEST, f"longer than {LONGEST} characters", LONGEST + 1),
]  # fmt: skip


@pytest.mark.parametrize("text", TRUE)
def test_true(text: str) -> None:
    assert parse(text, KNOWN).holds(VALUES) is True


@pytest.mark.parametrize("text", FALSE)
def test_false(text: str) -> None:
    assert parse(text, KNOWN).holds(VALUES) is False


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_cannot_be_worked_out_is_not_known(text: str) -> None:
    assert parse(text, KNOWN).holds(VALUES) is None


@pytest.mark.parametrize(("text", "problem", "at"), WRONG)
def test_what_is_wrong_is_told_with_its_place_and_a_remedy(text: str, problem: str, at: int) -> None:
    with pytest.raises(ConditionError) as raised:
        parse(text, KNOWN)
    error = raised.value
    assert error.problem.startswith(problem) and f"at character {at}" in error.problem
    assert error.remedy.endswith((".", "?")) and error.at == at


THREE = (True, False, None)


def _and(a: Any, b: Any) -> Any:
    return False if a is False or b is False else None if None in (a, b) else True


@pytest.mark.parametrize(("a", "b"), list(product(THREE, THREE)))
def test_kleenes_tables(a: bool | None, b: bool | None) -> None:
    flags: dict[str, Type] = {"a": "flag", "b": "flag"}
    values = {"a": a, "b": b}

    def holds(text: str) -> bool | None:
        return parse(text, flags).holds(values)

    negated = {True: False, False: True, None: None}
    assert holds("a and b") is _and(a, b)
    assert holds("a or b") is negated[_and(negated[a], negated[b])]
    assert holds("not a") is negated[a]
    assert holds("a == b") is (None if None in (a, b) else a is b)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("odd", [None, "text", float("nan"), float("inf"), True, 3.0])
def test_a_value_of_another_kind_is_not_known(name: str, odd: Any) -> None:
    text = {"text": f'{name} == "ada"', "flag": f"{name}"}.get(KNOWN[name], f"{name} == {name}")
    fits = {"text": isinstance(odd, str), "name": isinstance(odd, str), "flag": isinstance(odd, bool)}.get(
        KNOWN[name], odd == 3.0 and odd is not True
    )
    assert (parse(text, KNOWN).holds({name: odd}) is not None) == fits


PIECES = st.sampled_from([
    *KNOWN, "and", "or", "not", "in", "true", "false", "(", ")", ",", "+", "-", "*", "/", "<", ">=", "==", "!=",
    "1", "999999999999", "0", "1h", "15%", '"ada"', "'", "§", "\n", "\0", "1.5", "zz", "3zz",
])  # fmt: skip


@given(st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=80).map(" ".join)))
def test_whatever_is_written_is_read_or_refused_by_our_error_alone(text: str) -> None:
    try:
        found = parse(text, KNOWN)
    except ConditionError as error:
        assert 1 <= error.at <= max(len(text), LONGEST) + 1
    else:
        assert found.holds(VALUES) in THREE and found.holds({}) in THREE and set(found.names) <= KNOWN.keys()


@given(st.data())
def test_what_fires_does_so_whatever_the_unknown_ones_are(data: st.DataObject) -> None:
    """Kleene's answer is never taken back when more becomes known."""
    leaf = st.sampled_from(["a", "b", "c", "not a", "gpus > 4", "gpus <= 4", "user == 'ada'", "true"])
    text = data.draw(st.recursive(leaf, lambda inner: st.tuples(
        inner, st.sampled_from([" and ", " or ", " and not "]), inner).map(lambda three: f"({''.join(three)})"),
        max_leaves=8))  # fmt: skip
    sorts: dict[str, Type] = {"a": "flag", "b": "flag", "c": "flag", "gpus": "number", "user": "text"}
    whole: dict[str, Any] = {
        "a": data.draw(st.booleans()), "b": data.draw(st.booleans()), "c": data.draw(st.booleans()),
        "gpus": data.draw(st.sampled_from([1.0, 8.0])), "user": data.draw(st.sampled_from(["ada", "bob"])),
    }  # fmt: skip
    hidden = data.draw(st.sets(st.sampled_from(sorted(sorts))))
    condition = parse(text, sorts)
    less = condition.holds({name: value for name, value in whole.items() if name not in hidden})
    assert less in (None, condition.holds(whole)) and condition.holds(whole) is not None


def test_the_longest_that_is_taken_is_worked_out() -> None:
    text = "(" * DEEPEST + "ended" + ")" * DEEPEST + " or " + "+".join(["1"] * 70) + " == 70"
    assert parse(text, KNOWN).holds(VALUES) is True
    for sign in ("*", "/"):
        assert (
            parse(f"gpus {sign} " + f" {sign} ".join(["999999999999"] * 60) + " > 0", KNOWN).holds(VALUES)
            in THREE
        )


@pytest.mark.parametrize("name", BUILT_IN)
def test_gsubs_rules_are_conditions_and_do_not_fire_on_nothing(name: str) -> None:
    condition = parse(BUILT_IN[name][0], {key: sort for key, (sort, _) in QUANTITIES.items()})
    assert condition.holds({}) is None and condition.names


def test_whose_a_job_is_counts_in_either_case() -> None:
    """Slurm has these in small letters, whatever an admin wrote."""
    either = {name for name, (sort, _) in QUANTITIES.items() if sort == "name"}
    assert either == {"user", "account", "qos"}
