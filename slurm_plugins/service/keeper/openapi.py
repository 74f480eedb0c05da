"""The API told as OpenAPI 3.1, made from the tables and types that serve it: it cannot say something else.

``python -m slurm_plugins.service.keeper.openapi`` writes docs/openapi.json's text.
"""

from __future__ import annotations

import json
from inspect import cleandoc
from typing import Any, Final

import msgspec

from profiler.answers import Clearance, ClearNode, ForgetWorkload, Forgotten, PointsTaken, Problem, Taken
from profiler.points import MAX_POINTS, Measured
from profiler.records import Record
from slurm_plugins.service.keeper.clearing import CLEAR
from slurm_plugins.service.keeper.collect import MAX_RECORDS, Batch
from slurm_plugins.service.keeper.forgetting import FORGET
from slurm_plugins.service.keeper.parameters import Parameter
from slurm_plugins.service.keeper.points import POINTS
from slurm_plugins.service.keeper.questions import NODE, QUESTIONS, Question
from slurm_plugins.service.keeper.routes import RECORDS

__all__ = ["document", "text"]

_VERSION: Final = "1"
_PREFIX: Final = "#/components/schemas/"
_PROBLEMS: Final = {
    "400": "The request is none: a parameter that is not known or out of range, a body that cannot be read.",
    "401": "No credential, or one that is not believed: of another cluster, too old, used before.",
    "403": "The credential is good, and this is not for its uid.",
    "404": "Nothing here, or nothing of yours.",
    "415": "The body is no JSON by its Content-Type.",
    "413": "The body is too large.",
    "429": "Too often: come again in a minute.",
    "503": "The store, munged or the service cannot answer now; Retry-After says when to come again.",
}


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    types = [
        *dict.fromkeys(one.answers for one in QUESTIONS),
        Taken,
        Problem,
        Batch,
        Record,
        ClearNode,
        Clearance,
        Measured,
        PointsTaken,
        ForgetWorkload,
        Forgotten,
    ]
    schemas, components = msgspec.json.schema_components(types, ref_template=_PREFIX + "{name}")
    by_type = dict(zip(types, schemas, strict=True))
    batch = components["Batch"]
    batch["properties"]["records"]["items"] = by_type[Record]
    paths: dict[str, Any] = {
        RECORDS: {"post": _records(by_type[Batch], by_type[Taken])},
        CLEAR: {"post": _clear(by_type[ClearNode], by_type[Clearance])},
        POINTS: {"post": _points(by_type[Measured], by_type[PointsTaken])},
        FORGET: {"post": _forget(by_type[ForgetWorkload], by_type[Forgotten])},
        **{one.route: {"get": _get(one, by_type[one.answers])} for one in QUESTIONS},
        "/v1/openapi.json": {"get": _open("This document.", "application/json")},
        "/healthz": {"get": _open("200 while records can be taken, 503 while not.", "application/json")},
        "/metrics": {"get": _open("Prometheus metrics.", "text/plain")},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gsub",
            "version": _VERSION,
            "description": (
                "What became of jobs and nodes. Times are seconds since 1970, spans seconds, sizes bytes, utilisation "
                "per cent. A member that is absent has its default; null is not known."
            ),
        },
        "paths": paths,
        "components": {
            "schemas": _steady(dict(sorted(components.items()))),
            "securitySchemes": {
                "munge": {
                    "type": "http",
                    "scheme": "MUNGE",
                    "description": (
                        "A MUNGE credential over the digest of method, target and body; the answer's header Gsub-Seal "
                        "is one over the digest of that credential, status and body. See docs/api.md."
                    ),
                }
            },
        },
        "security": [{"munge": []}],
    }


def text() -> str:
    """The document as it is served and kept in docs/openapi.json."""
    return json.dumps(document(), indent=1) + "\n"


def _steady(value: Any) -> Any:  # noqa: ANN401 - JSON
    """The same whichever release of msgspec and Python made it: they differ in order and in indentation."""
    if isinstance(value, list):
        return [_steady(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    steady = {name: _steady(inner) for name, inner in value.items()}
    if "anyOf" in steady:
        steady["anyOf"].sort(key=json.dumps)
    if isinstance(steady.get("description"), str):
        paragraphs = cleandoc(steady["description"]).split("\n\n")
        steady["description"] = "\n\n".join(" ".join(one.split()) for one in paragraphs)
    return steady


def _get(one: Question, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": one.about,
        "operationId": one.answer.__name__,
        "parameters": [
            *(_parameter(each, "path") for each in one.path),
            *(_parameter(each, "query") for each in one.query),
        ],
        "responses": _responses(schema, ("400", "401", *(("403",) if one.operators else ()), "404", "503")),
    }


def _records(batch: dict[str, Any], taken: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": f"Deliver what a node tells, at most {MAX_RECORDS} records at once. Root only.",
        "operationId": "records",
        "requestBody": {"required": True, "content": {"application/json": {"schema": batch}}},
        "responses": _responses(taken, ("400", "401", "403", "413", "415", "503")),
    }


def _clear(said: dict[str, Any], cleared: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": "Let nothing that is known so far count against a node: it was looked after. Operators only.",
        "operationId": "clear_node",
        "parameters": [_parameter(NODE, "path")],
        "requestBody": {"required": True, "content": {"application/json": {"schema": said}}},
        "responses": _responses(cleared, ("400", "401", "403", "404", "413", "415", "503")),
    }


def _points(measured: dict[str, Any], taken: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": f"Deliver what a run of one's own measured of its workload, at most {MAX_POINTS} points at once.",
        "operationId": "points",
        "requestBody": {"required": True, "content": {"application/json": {"schema": measured}}},
        "responses": _responses(taken, ("400", "401", "413", "415", "429", "503")),
    }


def _forget(asked: dict[str, Any], forgotten: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": "Remove what was measured of a workload of one's own; an operator may name another user.",
        "operationId": "forget_workload",
        "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
        "responses": _responses(forgotten, ("400", "401", "403", "404", "413", "415", "429", "503")),
    }


def _open(about: str, content: str) -> dict[str, Any]:
    return {
        "summary": about,
        "security": [],
        "responses": {"200": {"description": "The answer.", "content": {content: {}}}},
    }


def _parameter(one: Parameter, place: str) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": place,
        "required": place == "path",
        "description": one.about,
        "schema": dict(one.schema),
    }


def _responses(schema: dict[str, Any], problems: tuple[str, ...]) -> dict[str, Any]:
    answered = {"200": {"description": "The answer.", "content": {"application/json": {"schema": schema}}}}
    problem = {"application/json": {"schema": {"$ref": f"{_PREFIX}Problem"}}}
    return answered | {status: {"description": _PROBLEMS[status], "content": problem} for status in problems}


if __name__ == "__main__":
    print(text(), end="")
