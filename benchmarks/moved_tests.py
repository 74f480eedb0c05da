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
IN_USE = "counted what limited jobs have in use: gsub-act sets no memory any more where such a limit holds"
BY_COMMANDS = "read jobs or attempts over pyslurm, which the commands do now, since pyslurm loses parts of them"
DELETED: Mapping[str, str] = {
    "tests/test_side_by_side.py": RUNNER,
    "tests/act/test_allowed.py::test_what_others_use_is_counted": IN_USE,
    "tests/act/test_allowed.py::test_what_an_account_uses_is_counted_up_the_tree": IN_USE,
    "tests/act/test_allowed.py::test_jobs_that_wait_with_memory_that_we_set_count_as_if_they_ran": IN_USE,
    "tests/act/test_allowed.py::test_which_jobs_share_a_limit": IN_USE,
    "tests/act/test_desk.py::test_what_was_given_to_jobs_that_wait_is_not_given_twice": IN_USE,
    "tests/act/test_desk.py::test_what_a_requeue_is_to_be_followed_by_is_given_with_it": IN_USE,
    "tests/act/test_desk.py::test_a_job_that_runs_is_counted_by_slurm": IN_USE,
    "tests/act/test_desk.py::test_a_storm_of_raises_does_not_read_the_queue_for_each": IN_USE,
    "tests/act/test_desk.py::test_what_was_given_is_known_after_a_crash": IN_USE,
    "tests/act/test_desk.py::test_memory_for_each_cpu_counts_for_all_of_them": IN_USE,
    "tests/client/test_pyslurm_child.py::test_selection": BY_COMMANDS,
    "tests/client/test_pyslurm_child.py::test_accounting_sends_its_condition": BY_COMMANDS,
    "tests/client/test_pyslurm_child.py::test_accounting_that_fails": BY_COMMANDS,
    "tests/client/test_pyslurm_sources.py::test_the_filters_that_are_sent_are_the_ones_checked": BY_COMMANDS,
}
"""Reasons, by file or test of the earlier commit."""
RENAMED: Mapping[str, str] = {
    "test_without_traces_it_says_so": "test_without_traces_it_says_how_to_get_them",
    "test_published_traces": "test_excerpts_of_published_traces",
    "test_hostile_logs_take_bounded_time": "test_time_grows_with_the_length_of_hostile_logs",
    "test_a_log_of_all_test_lines_takes_bounded_time": "test_time_grows_with_the_length_of_a_log_of_all_test_lines",
    "test_nothing_is_let_over_a_limit": "test_each_limit_is_obeyed_and_named",
    "test_what_is_not_known_is_named_where_limits_are_enforced": "test_what_is_not_known_is_named",
    "test_a_limit_is_named_to_who_asks_and_in_the_journal": "test_memory_is_not_set_where_a_limit_holds",
    "test_nobody_is_lifted_over_the_limit_of_a_qos": "test_memory_is_not_set_where_accounting_limits_it",
    "test_nobody_is_lifted_over_the_limit_of_an_account": "test_memory_is_not_set_where_accounting_limits_it",
    "test_death_at_import_is_unreachable": "test_what_happens_in_the_child_comes_back_as_what_it_means",
    "test_no_pyslurm_is_said_to_be_so": "test_a_pyslurm_that_cannot_be_imported_is_said_to_be_so_each_time",
    "test_one_address_has_a_share_of_the_connections": "test_idle_connections_give_way_and_are_ended_soon",
    "test_the_document_shows_the_same_three_lines": "test_the_document_shows_the_same_four_lines",
    "test_jobs_are_asked_for_only_while_a_decision_waits_and_of_one_user_when_it_is_one": (
        "test_jobs_are_asked_for_only_while_a_decision_waits_and_of_its_users_alone"
    ),
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
            elif reason := DELETED.get(key, DELETED.get(path)):
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
