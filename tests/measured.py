"""Code run in a child that may give up its rights, measured for coverage all the same."""

from __future__ import annotations

import json
import os
import signal
import sqlite3.dump  # noqa: F401 - loaded while Python's own files can still be read
import subprocess
import sys
import traceback
from typing import Any, Final

from coverage import Coverage, CoverageData

from tests.contexts import CONTEXT
from tests.paths import REPOSITORY

_START: Final = "COVERAGE_PROCESS_START"
_MEASURE: Final = "COVERAGE_MEASURED"


class ChildError(Exception):
    """The code raised; the message is its traceback."""


def run_measured(code: str) -> Any:
    """Run code in a child that keeps standard input, output and error.

    The child may end up without the right to write files: what it ran comes back through its output.

    Args:
        code: what is run; it leaves a JSON value as `found`.

    Raises:
        ChildError: the code raised.
    """
    measuring = Coverage.current()
    env = dict(os.environ)
    if measuring:
        env[_MEASURE] = env.pop(_START)
    done = subprocess.run(
        [sys.executable, "-m", "tests.measured"],
        input=code.encode(),
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env=env,
    )
    head, _, lines = done.stdout.partition(b"\n")
    if measuring and lines:
        data = CoverageData(no_disk=True)
        data.loads(lines)
        measuring.get_data().update(data)
    raised, found = json.loads(head)
    if raised:
        raise ChildError(raised)
    return found


def main() -> None:
    """Run the code on standard input, and answer on standard output."""
    code = sys.stdin.read()
    measuring = None
    if _MEASURE in os.environ:
        measuring = Coverage(data_file=None, config_file=os.environ[_MEASURE], context=os.environ[CONTEXT])
        measuring.start()
    names: dict[str, Any] = {}
    try:
        exec(code, names)
        answer = json.dumps([None, names["found"]])
    except BaseException:
        answer = json.dumps([traceback.format_exc(), None])
    lines = b""
    if measuring:
        measuring.stop()
        lines = measuring.get_data().dumps()
    with os.fdopen(1, "wb") as pipe:
        pipe.write(answer.encode() + b"\n" + lines)
    os.kill(os.getpid(), signal.SIGKILL)  # what runs at an exit may need what was given up


if __name__ == "__main__":
    main()
