"""Where each test function of an earlier commit is now: a Markdown table, generated.

    python -m benchmarks.moved_tests [--since 096684f] [--summary]

A test is found by its file's new path and its name, else by its name anywhere in the tests. One that is nowhere must
stand in DELETED with a reason; exit 1 where it does not. The end counts decorators that leave tests out, then and now.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.paths import REPOSITORY

SINCE = "096684f"
RUNNER = "tested the parallel runner of our own, which pytest-xdist replaces"
DELETED: Mapping[str, str] = {"tests/test_side_by_side.py": RUNNER}
"""Reasons, by file of the earlier commit."""
RENAMED: Mapping[str, str] = {
    "test_without_traces_it_says_so": "test_without_traces_it_says_how_to_get_them",
    "test_published_traces": "test_excerpts_of_published_traces",
    "test_hostile_logs_take_bounded_time": "test_time_grows_with_the_length_of_hostile_logs",
    "test_a_log_of_all_test_lines_takes_bounded_time": "test_time_grows_with_the_length_of_a_log_of_all_test_lines",
}
"""Names that follow a change: benchmarks fail without a trace; whole traces are counted by benchmarks.replay_traces;
a log's time is compared with that of a longer one, since seconds depend on the machine."""
LEAVING_OUT = re.compile(r"pytest\.(?:mark\.)?(?:skip|skipif|xfail|importorskip)\b|pragma: no cover")


def git(*arguments: str) -> str:
    """Return what a git command prints."""
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout


def list_tests(text: str) -> Iterator[str]:
    """Yield the test functions of a module, those of classes as Class::function."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name.startswith("test_"):
                    yield f"{node.name}::{inner.name}"


def read_tests(commit: str) -> dict[str, list[str]]:
    """Read the test functions of a commit, by file."""
    paths = git("ls-tree", "-r", "--name-only", commit, "tests").splitlines()
    return {
        path: found
        for path in paths
        if path.endswith(".py") and (found := [*list_tests(git("show", f"{commit}:{path}"))])
    }


def count_left_out(commit: str) -> int:
    """Count the places in tests and product that leave out tests or lines."""
    total = 0
    for path in git("ls-tree", "-r", "--name-only", commit).splitlines():
        if path.endswith(".py") and path != "benchmarks/moved_tests.py":
            total += len(LEAVING_OUT.findall(git("show", f"{commit}:{path}")))
    return total


def read_renames(since: str) -> dict[str, str]:
    """Read which file of the earlier commit became which."""
    rows = git("diff", "--name-status", "--find-renames=40%", "-l0", since, "HEAD").splitlines()
    return {fields[1]: fields[2] for row in rows if (fields := row.split("\t"))[0].startswith("R")}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Where each test function of an earlier commit is now.")
    parser.add_argument("--since", default=SINCE)
    parser.add_argument("--summary", action="store_true", help="only the counts, and what is missing")
    asked = parser.parse_args()
    before, now, renames = read_tests(asked.since), read_tests("HEAD"), read_renames(asked.since)
    places = defaultdict(list)
    for path, names in now.items():
        for name in names:
            places[name.rpartition("::")[2]].append((path, name))
    rows, missing, kept = [], [], 0
    for path, names in before.items():
        for name in names:
            key = f"{path}::{name}"
            target = renames.get(path, path)
            name = RENAMED.get(name, name)
            if name in now.get(target, ()):
                rows.append((key, f"{target}::{name}"))
                kept += 1
            elif reason := DELETED.get(path):
                rows.append((key, f"deleted: {reason}"))
            elif found := sorted(
                places[name.rpartition("::")[2]], key=lambda place: Path(place[0]).name != Path(path).name
            ):
                rows.append((key, "::".join(found[0])))
                kept += 1
            else:
                missing.append(key)
    if not asked.summary:
        print("| then | now |\n|---|---|")
        print(
            *(f"| `{then}` | {here if here.startswith('deleted') else f'`{here}`'} |" for then, here in rows),
            sep="\n",
        )
    total = sum(map(len, before.values()))
    deleted = total - kept - len(missing)
    print(
        f"\n{total} test functions at {asked.since}: {kept} are kept, {deleted} deleted with a reason, "
        f"{len(missing)} missing; {sum(map(len, now.values()))} now"
    )
    print(
        f"places that leave out tests or lines: {count_left_out(asked.since)} then, {count_left_out('HEAD')} now"
    )
    print(*missing, sep="\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
