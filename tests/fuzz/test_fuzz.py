"""A few thousand of `python -m tests.fuzz`'s cases with every test run, and JSON as hypothesis makes it."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_plugins.decide.edits import EDITS
from tests.fuzz import answers, api, collector, questions, rows, service, shim
from tests.properties import examples
from tests.requirements import require

SEED = 20_210_806
STEADY = settings(
    max_examples=examples(400),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["gres/gpu:8", "gpu", "n[1-2]"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELD = st.sampled_from(questions.FIELDS)
NUMBER = st.integers(-1, 2**53)


@pytest.fixture(scope="module")
def served() -> service.Service:
    return service.Service()


def test_the_service_answers_whatever_it_is_asked():
    found = service.run(5000, SEED)
    assert found.answered > 2000, "hardly a question could be read: the generator tries nothing"
    assert found.refused > 500, "hardly a question was malformed: the generator tries nothing"


@STEADY
@given(line=st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_line_gets_one_answer(served: service.Service, line: bytes):
    for context in served.contexts[:2]:
        served.ask(line.replace(b"\n", b""), context)


@STEADY
@given(
    job=st.dictionaries(FIELD, st.one_of(NUMBER, NUMBER, st.text(), JSON), max_size=8),
    env=st.dictionaries(st.sampled_from(questions.NAMES), st.text(), max_size=3),
    gpus=st.integers(0, 10_000),
    number=st.integers(0, 10_000),
)
def test_any_job_gets_an_answer_within_the_table(
    served: service.Service, job: dict[str, Any], env: dict[str, str], gpus: int, number: int
):
    question = {"v": 1, "id": 7, "uid": 1000, "job": {"tres_per_job": f"gres/gpu:{gpus}"} | job, "env": env}
    served.ask(json.dumps(question).encode(), served.contexts[number % len(served.contexts)])


@pytest.fixture(scope="module")
def luas() -> tuple[str, ...]:
    require("lua")
    return tuple(shim.interpreters())


@pytest.mark.slow
def test_the_shim_takes_nothing_from_an_answer_that_the_table_forbids(luas: tuple[str, ...]):
    for number, lua in enumerate(luas):
        found = shim.run(lua, 1000, SEED, first=10_000 * number)
        assert min(found.values()) > 20, f"{found}: the generator tries too little"


@pytest.mark.case("A2", "S1")
def test_no_row_of_slurm_loses_the_others():
    found = rows.run(3000, SEED)
    assert 500 < found.unread < found.rows / 1.2, f"{found}: the generator tries too little"


def test_the_collector_takes_or_refuses_whatever_it_is_sent():
    found = collector.run(3000, SEED)
    assert found.accepted > 200 and found.batches_refused > 200, f"{found}: the generator tries too little"
    assert found.refused > 500 and len(found.reasons) > 4, f"{found}: the generator tries too little"


@pytest.mark.slow
def test_the_api_answers_whatever_it_is_asked():
    found = api.run(2000, SEED)
    assert found.over_socket == 100
    assert min(found.statuses[status] for status in (200, 400, 401, 403, 404, 405)) > 10, f"{found}"


def test_the_oracle_knows_a_forbidden_answer():
    """The fuzz of the shim is as good as its idea of what must not be applied."""
    good = {"v": 1, "mode": "enforce", "edits": {"min_nodes": 2}, "env": {"SLURM_NTASKS": "8"}, "say": []}
    assert not answers.forbidden(good, batch=True)
    assert answers.forbidden(good, batch=False)
    for wrong in (
        {"edits": {"min_nodes": 0}},
        {"edits": {"user_id": 0}},
        {"edits": {"features": "a\nb"}},
        {"edits": {"min_nodes": True}},
        {"edits": {"min_mem_per_node": 1, "min_mem_per_cpu": 1}},
        {"env": {"LD_PRELOAD": "x"}},
        {"env": {"SLURM_NTASKS": "8\n"}},
        {"mode": "advise"},
        {"reject": "no"},
    ):
        assert answers.forbidden(good | wrong, batch=True), wrong
    made = [answers.right(Random(number), 1, batch=True) for number in range(300)]
    assert {name for fields in made for name in fields["edits"]} == set(EDITS), "a field that is never tried"
