"""The API's document says what the API does."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import openapi_spec_validator
import pytest

from profiler.answers import Jobs, Taken, Usage
from slurm_plugins.service.keeper import openapi
from slurm_plugins.service.keeper.questions import QUESTIONS
from tests.paths import REPOSITORY
from tests.unit.slurm_plugins.keeper.door import OPERATOR, Door

KEPT = REPOSITORY / "docs" / "openapi.json"


def test_the_kept_document_is_the_present_one():
    assert KEPT.read_text() == openapi.text(), (
        "write it anew: python -m slurm_plugins.service.keeper.openapi > docs/openapi.json"
    )


@pytest.mark.slow
def test_it_is_openapi():
    """By the schema that the OpenAPI initiative publishes."""
    openapi_spec_validator.validate(json.loads(openapi.text()))


def test_it_is_served(door: Door):
    got = asyncio.run(door.ask(None, "GET", "/v1/openapi.json"))
    assert got.status == 200 and got.json == json.loads(KEPT.read_text())


def test_every_reference_leads_somewhere():
    document = openapi.document()
    for reference in _references(document):
        place: Any = document
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]
        assert place


def test_paths_and_their_parameters_fit():
    for path, methods in openapi.document()["paths"].items():
        for method in methods.values():
            told = {one["name"] for one in method.get("parameters", ()) if one["in"] == "path"}
            assert told == set(re.findall(r"{(\w+)}", path)), path


def test_names_are_unique():
    names = [
        method["operationId"]
        for methods in openapi.document()["paths"].values()
        for method in methods.values()
        if "operationId" in method
    ]
    assert len(names) == len(set(names)) == len(QUESTIONS) + 4


def test_what_it_promises_is_what_is_sent():
    """The types of the schemas are those that readers decode with."""
    schemas = openapi.document()["components"]["schemas"]
    for one in (Taken, Jobs, Usage):
        assert set(schemas[one.__name__]["properties"]) == set(one.__struct_fields__)


def test_each_path_is_there(door: Door):
    for path, methods in openapi.document()["paths"].items():
        target = path.replace("{id}", "1").replace("{name}", "n1")
        for method in methods:
            got = asyncio.run(door.ask(OPERATOR, method.upper(), target))
            said = msgspec.json.decode(got.body) if got.headers["content-type"] == "application/json" else {}
            assert got.status != 405 and "nothing here" not in str(said), path


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "$ref":
                yield inner
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
