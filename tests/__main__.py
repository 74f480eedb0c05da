"""Run tests on several workers, then the failures once more, one after the other.

    python -m tests [arguments of pytest]

A test that passes when it runs again alone was hindered by the load of the others: it is named as rerun and counted.
More than MOST_RERUNS such tests fail the run, as does everything that is no single test's failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

MOST_RERUNS = 10


class Failures:
    """A plugin that keeps the ids of the tests that failed, and why."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.reasons.setdefault(report.nodeid, describe_failure(report))


def describe_failure(report: pytest.TestReport) -> str:
    """Return what went wrong in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else report.longreprtext.strip().rpartition("\n")[2]).splitlines()
    return lines[0][:300] if lines else ""


def run(arguments: list[str]) -> int:
    """Run pytest, then its failures alone. Returns the exit code."""
    failures = Failures()
    code = int(pytest.main(arguments, plugins=[failures]))
    failed = failures.reasons
    if code != pytest.ExitCode.TESTS_FAILED or not failed:
        return code
    if len(failed) > MOST_RERUNS:
        print(f"{len(failed)} tests failed; more than {MOST_RERUNS} are not run again", flush=True)
        return code
    print(f"\n{len(failed)} failed, running again alone:", *failed, sep="\n  ", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as ids:
        json.dump([*failed], ids)
        ids.flush()
        # tests/paths.py holds no tests, and brings tests/conftest.py in where only doctests failed
        files = dict.fromkeys(["tests/paths.py", *(name.split("::", 1)[0] for name in failed)])
        options = [each for each in arguments if each.startswith(("--slurm", "--hypothesis-profile"))]
        again = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:xdist", f"--only={ids.name}", *options, *files]
        ).returncode
    print(f"\nrerun alone because they failed at first ({len(failed)}):", flush=True)
    for name, why in failed.items():
        print(f"  {name}: {why}", flush=True)
    return again


def main() -> int:
    """Run the tests that the command line selects."""
    sys.path.insert(0, str(Path.cwd()))
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
