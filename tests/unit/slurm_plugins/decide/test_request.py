"""Reading a request from a socket, and what a user can say in it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugins.decide.request import MAX_BYTES, Job, Request, RequestError, parse_request, with_edits

LEAST = {"v": 1, "id": 7, "uid": 1000, "job": {}}


def line(**fields: Any) -> bytes:
    return json.dumps({**LEAST, **fields}).encode()


def test_a_whole_request() -> None:
    request = parse_request(
        line(
            submit_uid=0,
            slurm="24.11",
            job={"tres_per_job": "gres/gpu:16", "num_tasks": 16, "shared": 0, "cron_job": True},
            env={"SLURM_NTASKS": "16"},
            batch=True,
            script_head="#!/bin/sh\n",
            script_bytes=10,
            cut=["dependency"],
            shim={"late": 3},
        )
    )
    assert request.job == Job(tres_per_job="gres/gpu:16", num_tasks=16, shared=0, cron_job=True)
    assert (
        request.env == {"SLURM_NTASKS": "16"}
        and request.cut == ("dependency",)
        and request.shim == {"late": 3}
    )


def test_what_is_not_sent_is_open() -> None:
    request = parse_request(line())
    assert request.job == Job() and request.job.min_nodes is None
    assert (request.env, request.batch, request.script_head, request.cut) == ({}, True, "", ())


def test_a_field_of_a_newer_shim_is_left_aside() -> None:
    assert parse_request(line(job={"min_nodes": 2, "from_tomorrow": [1]}, later={})).job.min_nodes == 2


@pytest.mark.parametrize(
    "text",
    [
        b"", b"null", b"[]", b"{}", b'"x"', b"{", b"\xff\xfe", b'{"v":1,"id":7,"uid":1000}', b"[" * 100_000,
        line(v=2), line(v="1"), line(id=0), line(id=1 << 53), line(id=1.5), line(id="7"), line(uid=-1),
        line(uid=1 << 32), line(job=[]), line(job={"min_nodes": "2"}), line(job={"min_nodes": 1 << 60}),
        line(job={"min_nodes": 1.5}), line(job={"features": 5}), line(job={"features": "x" * 4097}),
        line(env={"A": 1}), line(env={"A" * 65: "x"}), line(env=["A"]), line(batch="yes"), line(slurm="x" * 17),
        line(script_head="x" * 70_000), line(script_head="x" * (MAX_BYTES + 1)), line(cut="all"), line(shim={"a": "b"}),
        line(script_head=float("nan")),
    ],
)  # fmt: skip
def test_anything_else_is_an_error_that_repeats_nothing(text: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(text)
    assert len(str(caught.value)) <= 200 and "xxxx" not in str(caught.value)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_else(text: bytes) -> None:
    with contextlib.suppress(RequestError):
        parse_request(text)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
)


@given(
    st.dictionaries(st.sampled_from(["v", "id", "uid", "job", "env", "cut", "shim", "slurm", "batch"]), _json)
)
def test_no_json_does_anything_else(fields: dict[str, Any]) -> None:
    with contextlib.suppress(RequestError):
        parse_request(line(**fields))


def _request(comment: str | None = None, **env: str) -> Request:
    return Request(id=1, uid=1000, job=Job(comment=comment), env=env)


@pytest.mark.parametrize(
    ("request_", "wish"),
    [
        (_request(), ""),
        (_request("repack"), ""),
        (_request("gsub:repack"), "yes"),
        (_request("a,gsub:repack;b"), "yes"),
        (_request("gsub:repack=NO"), "no"),
        (_request("gsub:repacking"), ""),
        (_request(GSUB_REPACK=" Yes "), "yes"),
        (_request("gsub:repack=yes", GSUB_REPACK="no"), "no"),
    ],
)
def test_a_users_wish(request_: Request, wish: str) -> None:
    assert request_.asks("repack") == wish


def test_opting_in_and_out() -> None:
    assert _request("gsub:off").opted_out and _request(GSUB="off").opted_out
    assert _request("gsub:explain").opted_in and _request(GSUB="explain").opted_in
    assert not _request("gsub:explain").opted_out and not _request().opted_in


def test_edits_show_in_the_request_that_the_next_stage_sees() -> None:
    asked = Request(
        id=1,
        uid=1,
        job=Job(min_mem_per_cpu=100, tres_per_node="gres:gpu:1"),
        env={"A": "1", "SLURM_NTASKS": "1"},
    )
    now = with_edits(
        asked, {"gres": "gpu:2", "min_mem_per_node": 4096, "min_nodes": 2}, {"SLURM_NTASKS": "2"}
    )
    assert now.job == Job(min_mem_per_node=4096, tres_per_node="gpu:2", min_nodes=2)
    assert now.env == {"A": "1", "SLURM_NTASKS": "2"}
    assert asked.job.min_mem_per_cpu == 100 and asked.env["SLURM_NTASKS"] == "1"
