"""torchrun's table of failed workers and the error files of its workers."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolog_epilog.failures.classify import classify
from prolog_epilog.failures.elastic import error_file, failures
from prolog_epilog.failures.text import LogText

TABLE = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:02
  host      : n17.cluster
  rank      : 5 (local_rank: 1)
  exitcode  : 1 (pid: 101)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:01
  host      : n18.cluster
  rank      : 8 (local_rank: 0)
  exitcode  : {code} (pid: 100)
  error_file: {file}
  traceback : {traceback}
============================================================
"""


def table(code: int = 1, file: str = "<N/A>", traceback: str = "To enable traceback see: x") -> LogText:
    return LogText.of("err.log", TABLE.format(code=code, file=file, traceback=traceback).encode())


def test_the_table_has_its_rows_and_its_root():
    first, root = failures(table(-11, traceback="Signal 11 (SIGSEGV) received by PID 100"))
    assert (first.rank, first.local_rank, first.host, first.exitcode, first.root) == (
        5,
        1,
        "n17.cluster",
        1,
        False,
    )
    assert (root.rank, root.host, root.signal, root.pid, root.root) == (8, "n18.cluster", 11, 100, True)


def test_progress_within_the_table_does_no_harm():
    lines = TABLE.format(code=2, file="/tmp/e/error.json", traceback="x").splitlines()
    mixed = "\n".join(part for line in lines for part in (line, "step 3518 | loss 3.39"))
    root = failures(LogText.of("x", mixed.encode()))[-1]
    assert (root.rank, root.exitcode, root.error_file, root.root) == (8, 2, "/tmp/e/error.json", True)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(-11, "invalid_memory_access"), (-6, "core_dump"), (-9, "no_signature"), (-15, "no_signature"),
     (1, "no_signature"), (127, "no_signature")],
)  # fmt: skip
def test_what_it_says_by_itself(code, reason):
    found = classify([table(code)])
    assert (found.reason, found.rank, found.node) == (reason, 8, "n18.cluster")


@pytest.mark.parametrize(("code", "reason"), [(-11, "invalid_memory_access"), (-6, "nccl_timeout")])
def test_the_rank_that_died_first_is_what_a_watchdog_waited_for(code, reason):
    watchdog = (
        b"[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: Work\n"
    )
    assert classify([LogText.of("x", watchdog + table(code).data)]).reason == reason


def test_it_tells_the_rank_of_a_cause_that_names_none():
    cause = b'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nZeroDivisionError: division\n'
    found = classify([LogText.of("x", cause + TABLE.format(code=1, file="<N/A>", traceback="x").encode())])
    assert (found.reason, found.rank, found.node) == ("semantic_error", 8, "n18.cluster")


def written(message: str, callstack: str, stamp: str | int = "1700000000") -> bytes:
    extra = {"py_callstack": callstack, "timestamp": stamp}
    return json.dumps({"message": {"message": message, "extraInfo": extra}}).encode()


CALLSTACK = dedent(
    """\
    Traceback (most recent call last):
      File "/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 346, in wrapper
        return f(*args, **kwargs)
      File "train.py", line 7, in main
        import einops
    ModuleNotFoundError: No module named 'einops'
    """
)


def test_an_error_file_is_read():
    said = error_file(written("ModuleNotFoundError: No module named 'einops'", CALLSTACK))
    assert said is not None
    assert (said.at, said.callstack) == (1.7e9, CALLSTACK)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"message": 3}',
        b'{"message": {"message": []}}',
        b"log line",
        b'{"message"' * 9,
        b"\xff" * 99,
    ],
)
def test_what_is_no_error_file_is_none(data):
    assert error_file(data) is None


def test_a_short_error_file_has_only_its_message():
    said = error_file(b'{"message": "ValueError: x"}')
    assert said is not None
    assert (said.message, said.callstack) == ("ValueError: x", "")


@pytest.mark.parametrize("stamp", ["soon", "nan", "-1", "1e99", 7])
def test_a_time_that_is_none_is_not_taken(stamp):
    said = error_file(written("x", "y", stamp))
    assert said is not None
    assert said.at in (None, 7.0)


def test_the_error_files_of_ranks_are_set_in_time_order():
    late = LogText.of("3/error.json", written("x", CALLSTACK, "1700000060"))
    early = LogText.of(
        "5/error.json",
        written(
            "x",
            CALLSTACK.replace("ModuleNotFoundError: No module named 'einops'", "ZeroDivisionError: x"),
            1700000000,
        ),
    )
    found = classify([late, early])
    assert (found.reason, found.evidence[0].file) == ("semantic_error", "5/error.json")
    assert (found.evidence[0].at, found.evidence[0].what, found.evidence[0].line) == (
        1.7e9,
        "error file",
        None,
    )


@given(st.binary(max_size=400))
def test_any_bytes_are_answered(data):
    error_file(data)
    error_file(b'{"message":' + data)
    failures(LogText.of("x", b"Root Cause (first observed failure):\n exitcode  : 1\n error_file: " + data))
