"""Mutation check: change product lines that tests run, one at a time, and see whether these tests fail.

    make coverage
    python -m benchmarks.mutation [--seed HEX] [--count 40] [--contexts .coverage.test] [--also .coverage.rest] [-j 2]

The draw is uniform over the comparisons, numbers, truth values, returned values, boolean operators and arithmetic of
all lines that a test runs; its seed is the commit. Texts, the development cluster and the packaging are left out. The
tests of a line are those whose context coverage.py recorded for it; of a line that runs when its module is imported,
those of the module. Tests run in a clone of the commit with a virtual environment of its own, so that children see the
change too. The data must be of the same commit. A mutant may do anything: use a machine that can be thrown away.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from coverage import CoverageData

from tests.paths import REPOSITORY

PACKAGES: Final = ("gsub", "slurm_plugins", "prolog_epilog", "profiler", "site_configs")
LEFT_OUT: Final = ("site_configs/devcluster/", "site_configs/packaging/")
LEAST_PERCENT: Final = {"test": 80, "rest": 92}
FIRST_TESTS, MOST_TESTS = 30, 400
"""Tests of a mutant that run first, and at most; the nearest and fastest."""
TIMEOUT_S: Final = 600
TIMED_OUT: Final = 124
FAILED: Final = "MUTATION_FAILED"
"""Variable that names the file for the tests that fail."""
SLURM_S: Final = 1e6
"""Tests on a real Slurm come last."""

_COMPARISONS: Final[Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
_ARITHMETIC: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}  # fmt: skip
_SPEAKERS: Final = frozenset(
    {"print", "echo", "secho", "say", "debug", "info", "warning", "error", "exception", "log"}
)


# --------------------------------------------------------------------------------------------------------- mutations


@dataclass(frozen=True, order=True)
class Mutation:
    """One change of one expression.

    Args:
        path: file, relative to the repository.
        line: line of the expression, from 1.
        column: offset in the line, in bytes.
        end_line: last line.
        end_column: end in the last line, in bytes.
        alternatives: what may stand in its place.
        statement: first line of the statement that holds it.
        function: whether it is inside a function.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    alternatives: tuple[str, ...]
    statement: int
    function: bool

    def apply(self, source: bytes, text: str) -> bytes:
        """Return the source with `text` in the expression's place; lines keep their numbers."""
        lines = source.splitlines(keepends=True)
        start = sum(map(len, lines[: self.line - 1])) + self.column
        end = sum(map(len, lines[: self.end_line - 1])) + self.end_column
        filled = f"({text}{chr(10) * (self.end_line - self.line)})".encode()
        return source[:start] + filled + source[end:]

    def original(self, source: bytes) -> str:
        """Return the expression as it is written."""
        lines = source.splitlines()[self.line - 1 : self.end_line]
        lines[-1] = lines[-1][: self.end_column]
        lines[0] = lines[0][self.column :]
        return " ".join(line.decode().strip() for line in lines)


class Finder(ast.NodeVisitor):
    """A visitor that collects the mutations of one file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: list[Mutation] = []
        self._statement = 0
        self._depth = 0
        self._returns_bool = False

    def visit(self, node: ast.AST) -> None:
        """Visit a node, but for texts and types."""
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Call) and _name_of(node.func) in _SPEAKERS:
            return
        if isinstance(node, ast.stmt):
            self._statement = node.lineno
        if isinstance(node, ast.expr):
            self._add(node, *(ast.unparse(each) for each in mutate(node)))
        super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before = self._returns_bool
        self._returns_bool = node.returns is not None and ast.unparse(node.returns) == "bool"
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        self._depth += 1
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1
        self._returns_bool = before

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        value = node.value
        if value and not isinstance(value, ast.Constant):
            self._add(value, f"not {ast.unparse(_grouped(value))}" if self._returns_bool else "None")
        if value:
            self.visit(value)

    def visit_Slice(self, node: ast.Slice) -> None:
        for part in (node.lower, node.upper, node.step):
            if part:
                self.visit(part)

    def _add(self, node: ast.expr, *alternatives: str) -> None:
        if alternatives and node.end_lineno and node.end_col_offset is not None:
            self.found.append(
                Mutation(self.path, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, alternatives,
                         self._statement, self._depth > 0)
            )  # fmt: skip


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _grouped(node: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), node)) if isinstance(node, ast.Lambda) else node


def mutate(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what may stand in the place of an expression.

    >>> [ast.unparse(each) for each in mutate(ast.parse("a < 3", mode="eval").body)]
    ['a <= 3', 'a >= 3']
    >>> [ast.unparse(each) for each in mutate(ast.parse("'text'", mode="eval").body)]
    []
    """
    match node:
        case ast.Compare(left=left, ops=[first, *more], comparators=others):
            for other in _COMPARISONS[type(first)]:
                yield ast.Compare(left, [other(), *more], others)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.BoolOp(op=operator, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
            if not any(_is_text(each) for each in (left, right)):
                yield ast.BinOp(left, _ARITHMETIC[type(operator)](), right)


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return text or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def find_mutations(root: Path) -> list[Mutation]:
    """Find all mutations of the product, in the order of files and lines."""
    found = []
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            if not path.startswith(LEFT_OUT):
                finder = Finder(path)
                finder.visit(ast.parse(file.read_bytes()))
                found += finder.found
    return sorted(found)


# ------------------------------------------------------------------------------------------------------------- tests


@dataclass
class Contexts:
    """Which tests run which line, and how long they take."""

    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    executed: dict[str, set[int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, files: Iterable[Path], root: Path) -> Contexts:
        """Read data files of coverage.py, and the seconds that tests/contexts.py left beside them."""
        found = cls()
        for file in files:
            if not file.exists():
                raise SystemExit(f"{file} not found: run make coverage first")
            data = CoverageData(basename=os.fspath(file))
            data.read()
            for measured in data.measured_files():
                path = Path(measured)
                if not path.is_relative_to(root):
                    continue
                name = path.relative_to(root).as_posix()
                by_line = found.lines.setdefault(name, defaultdict(set))
                found.executed.setdefault(name, set()).update(data.lines(measured) or ())
                for line, contexts in data.contexts_by_lineno(measured).items():
                    by_line[line].update(context for context in contexts if context)
            seconds = file.with_name(f"{file.name}.seconds")
            for row in seconds.read_text().splitlines() if seconds.exists() else ():
                test, _, taken = row.rpartition("\t")
                found.seconds[test] = float(taken)
        return found

    def is_executed(self, mutation: Mutation) -> bool:
        """Check whether tests run the line, and which of them is known."""
        lines = self.executed.get(mutation.path, ())
        return (mutation.line in lines or mutation.statement in lines) and bool(self.covering(mutation))

    def covering(self, mutation: Mutation) -> set[str]:
        """Return the tests that run the line; of a line outside functions, those that run the module's functions."""
        by_line = self.lines.get(mutation.path, {})
        if not mutation.function:
            return set().union(*by_line.values())
        return by_line.get(mutation.line, set()) | by_line.get(mutation.statement, set())

    def order(self, mutation: Mutation) -> list[str]:
        """Order the tests of a mutation: one of each function, those of the mirrored folder first, by their seconds."""
        folder, _, name = mutation.path.removesuffix(".py").rpartition("/")
        by_function: dict[str, list[str]] = defaultdict(list)
        for test in sorted(self.covering(mutation), key=lambda each: (self.seconds.get(each, 1.0), each)):
            by_function[test.partition("[")[0]].append(test)

        def rank(test: str) -> tuple[bool, bool, float]:
            near = test.startswith((f"tests/unit/{folder}/", mutation.path))
            seconds = self.seconds.get(test, 1.0) + (SLURM_S if needs_slurm(test) else 0)
            return seconds >= SLURM_S, not near, seconds - (1e3 if f"test_{name}" in test and near else 0)

        ordered = []
        for tests in by_function.values():
            ordered += [(*rank(test)[:1], index, *rank(test)[1:], test) for index, test in enumerate(tests)]
        return [row[-1] for row in sorted(ordered)]


def needs_slurm(test: str) -> bool:
    """Check whether a test starts a cluster or builds packages."""
    return test.startswith(("tests/slurm/", "tests/packages/"))


# ------------------------------------------------------------------------------------------------------------ running


class Checkout:
    """A clone of the commit, with a virtual environment in which it wins over the checkout that tests came from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run(["git", "clone", "-q", "--shared", REPOSITORY, folder], check=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
        self.python = folder / ".venv/bin/python"
        packages = "lib/python{}.{}/site-packages".format(*sys.version_info)
        # A path only: the .pth files there, which name the other checkout, are not read.
        (folder / ".venv" / packages / "clone.pth").write_text(f"{folder}\n{Path(sys.prefix) / packages}\n")
        for script in Path(sys.prefix, "bin").iterdir():
            target = folder / ".venv/bin" / script.name
            if not target.exists() and script.is_file() and script.read_bytes().startswith(b"#!"):
                target.write_bytes(
                    script.read_bytes().replace(os.fsencode(sys.prefix), os.fsencode(folder / ".venv"), 1)
                )
                target.chmod(0o755)
        self._verify()

    def _verify(self) -> None:
        """Check that a change in the clone is seen by children, whatever their options and directory."""
        file = self.folder / "gsub/__init__.py"
        before = file.read_bytes()
        self.write("gsub/__init__.py", before + b"\nMUTANT = 1\n")
        for options in ([], ["-I"]):
            subprocess.run([self.python, *options, "-c", "from gsub import MUTANT"], cwd="/", check=True)
        self.write("gsub/__init__.py", before)

    def write(self, path: str, source: bytes) -> None:
        """Replace a file, and forget its bytecode: that is told by the second and the size."""
        file = self.folder / path
        file.write_bytes(source)
        for stale in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            stale.unlink()

    def test(self, tests: Sequence[str], *options: str, timeout: float = TIMEOUT_S) -> tuple[int, list[str]]:
        """Run tests.

        Returns:
            The exit code of pytest, 124 at the timeout; the tests that failed.
        """
        with tempfile.TemporaryDirectory() as folder:
            only, failed = Path(folder, "only.json"), Path(folder, "failed")
            only.write_text(json.dumps([*tests]))
            failed.touch()
            # tests/paths.py holds no tests, and brings tests/conftest.py in where there are only doctests
            files = dict.fromkeys(["tests/paths.py", *(test.partition("::")[0] for test in tests)])
            command = [os.fspath(self.python), "-m", "pytest", "-q"]
            command += ["-p", "no:cacheprovider", "-p", "benchmarks.mutation"]
            process = subprocess.Popen(
                [*command, f"--only={only}", *options, *files],
                cwd=self.folder,
                env={**os.environ, FAILED: os.fspath(failed)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout=timeout)
            except subprocess.TimeoutExpired:
                code = TIMED_OUT
            finally:
                kill_group(process)
            return code, [*dict.fromkeys(failed.read_text().splitlines())]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down a failed test: this module is a plugin of the runs that it starts."""
    if report.failed and FAILED in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ[FAILED]).open("a") as file:
            file.write(f"{report.nodeid}\n")


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a test run with the children that it left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Args:
        mutation: where.
        before: the expression.
        after: what stood in its place.
        killer: the test that failed, or what else ended the run; empty: it survived.
        tier: the tests that killed it, ``test`` or ``rest``.
        tests: number of tests that could run.
    """

    mutation: Mutation
    before: str
    after: str
    killer: str
    tier: str
    tests: int


class Hunter:
    """Workers that try one mutant each.

    Args:
        checkouts: one clone a worker.
        tiers: contexts of `make test`, then of `make test-rest`.
        broken: tests that fail without any mutation here.
    """

    def __init__(
        self, checkouts: Sequence[Checkout], tiers: Mapping[str, Contexts], broken: set[str]
    ) -> None:
        self._free: queue.SimpleQueue[Checkout] = queue.SimpleQueue()
        for checkout in checkouts:
            self._free.put(checkout)
        self._tiers = tiers
        self._broken = broken

    def try_mutation(self, mutation: Mutation, text: str) -> Outcome:
        """Apply one mutation and run its tests."""
        checkout = self._free.get()
        source = (checkout.folder / mutation.path).read_bytes()
        mutant = mutation.apply(source, text)
        compile(mutant, mutation.path, "exec")
        asked, killer, killed = 0, "", ""
        try:
            for tier, contexts in self._tiers.items():
                tests = [test for test in contexts.order(mutation)[:MOST_TESTS] if test not in self._broken]
                asked += len(tests)
                if killer := self._kill(checkout, mutation.path, source, mutant, tests):
                    killed = tier
                    break
        finally:
            checkout.write(mutation.path, source)
            self._free.put(checkout)
        return Outcome(mutation, mutation.original(source), text, killer, killed, asked)

    def _kill(self, checkout: Checkout, path: str, source: bytes, mutant: bytes, tests: list[str]) -> str:
        quick = [test for test in tests if not needs_slurm(test)]
        stages = [quick[:FIRST_TESTS], quick[FIRST_TESTS:], [test for test in tests if needs_slurm(test)]]
        for stage in filter(None, stages):
            checkout.write(path, mutant)
            code, failed = checkout.test(stage, "-x", "-n0")
            if code == 0:
                continue
            if code in (pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.USAGE_ERROR):
                raise RuntimeError(f"{path}: {stage[:3]} not found: is the coverage of this commit?")
            # What fails without the mutant too, now and then, has killed nothing.
            checkout.write(path, source)
            again, _ = checkout.test(failed or stage, "-n0")
            if again == 0:
                return (
                    failed[0] if failed else "timeout" if code == TIMED_OUT else f"tests do not start: {code}"
                )
        return ""


def find_broken(checkout: Checkout, tests: Sequence[str], workers: int) -> set[str]:
    """Run tests without any mutation, and return those that fail."""
    started = time.monotonic()
    code, failed = checkout.test(tests, f"-n{workers}", "--dist=loadgroup", timeout=3600)
    print(
        f"{len(tests)} tests without a mutation: {time.monotonic() - started:.0f} s, {len(failed)} fail",
        flush=True,
    )
    if code not in (0, 1):
        raise SystemExit(f"tests do not run in the clone: pytest ended with {code}")
    return {test.rpartition("@")[0] or test for test in failed}


# ------------------------------------------------------------------------------------------------------------- report


def format_report(seed: str, candidates: int, outcomes: Sequence[Outcome], tiers: Iterable[str]) -> str:
    """Format the result as Markdown."""
    lines = [f"Seed {seed}: {len(outcomes)} of {candidates} mutations.", ""]
    killed = 0
    for tier in tiers:
        killed += sum(outcome.tier == tier for outcome in outcomes)
        lines.append(f"- Killed up to `make test{'-rest' * (tier == 'rest')}`: {killed} of {len(outcomes)}")
    lines += ["", "| line | mutation | tests | killed by |", "|---|---|---:|---|"]
    for outcome in outcomes:
        change = f"`{outcome.before}` → `{outcome.after}`".replace("|", "\\|")
        killer = f"`{outcome.killer}`".replace("|", "\\|") if outcome.killer else "**survived**"
        lines.append(
            f"| {outcome.mutation.path}:{outcome.mutation.line} | {change} | {outcome.tests} | {killer} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Draw mutations, try them, and report. Returns 1 where too many survive."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", help="hexadecimal; the first 8 digits of the commit where not given")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument(
        "--contexts", type=Path, default=REPOSITORY / ".coverage.test", help="coverage of make test"
    )
    parser.add_argument("--also", type=Path, help="coverage of make test-rest")
    parser.add_argument("--output", type=Path, help="file for the report")
    parser.add_argument("-j", type=int, default=2, help="mutants at the same time")
    arguments = parser.parse_args()
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    seed = arguments.seed or head[:8]
    tiers = {"test": Contexts.read([arguments.contexts], REPOSITORY)}
    if arguments.also:
        tiers["rest"] = Contexts.read([arguments.also], REPOSITORY)
    with tempfile.TemporaryDirectory(prefix="gsub-mutation-") as folder:
        Path(folder).chmod(0o755)
        checkouts = [Checkout(Path(folder) / str(number)) for number in range(arguments.j)]
        candidates = [
            each
            for each in find_mutations(checkouts[0].folder)
            if any(t.is_executed(each) for t in tiers.values())
        ]
        draw = random.Random(int(seed, 16))
        drawn = [(each, draw.choice(each.alternatives)) for each in draw.sample(candidates, arguments.count)]
        asked = {test for each, _ in drawn for t in tiers.values() for test in t.order(each)[:MOST_TESTS]}
        hunter = Hunter(checkouts, tiers, find_broken(checkouts[0], sorted(asked), arguments.j))
        outcomes = []
        with ThreadPoolExecutor(arguments.j) as pool:
            for outcome in pool.map(lambda pair: hunter.try_mutation(*pair), drawn):
                outcomes.append(outcome)
                print(
                    f"{outcome.mutation.path}:{outcome.mutation.line}",
                    outcome.killer or "SURVIVED",
                    flush=True,
                )
    report = format_report(seed, len(candidates), outcomes, tiers)
    print("\n" + report)
    if arguments.output:
        arguments.output.write_text(report)
    killed = {
        tier: sum(each.tier in [*tiers][: at + 1] for each in outcomes) for at, tier in enumerate(tiers)
    }
    return int(any(100 * killed[tier] < LEAST_PERCENT[tier] * len(outcomes) for tier in tiers))


if __name__ == "__main__":
    sys.exit(main())
