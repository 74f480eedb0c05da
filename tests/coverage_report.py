"""Coverage of the tests by package, children included, and a context for each test.

    python -m tests.coverage_report test|rest [arguments of `python -m tests`]

keeps .coverage.test or .coverage.rest, and writes the table of docs/testing.md from what there is of the two. Fails
where a module of PACKAGES_HELD is under LEAST_PERCENT in `make test`. Not measured are children that start with ``-S``
or an environment without COVERAGE_PROCESS_START, those in a chroot, and those that a signal ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coverage import Coverage

from tests.contexts import SECONDS
from tests.paths import REPOSITORY

TIERS: Final = ("test", "rest")
PACKAGES: Final = ("gsub", "slurm_plugins", "prolog_epilog", "profiler", "site_configs")
PACKAGES_HELD: Final = ("slurm_plugins/act", "slurm_plugins/decide", "prolog_epilog/failures")
LEAST_PERCENT: Final = 90
CONFIG: Final = REPOSITORY / "pyproject.toml"
PAGE: Final = REPOSITORY / "docs/testing.md"
BEGIN, END = "<!-- coverage: written by make coverage -->\n", "<!-- end of coverage -->\n"


@dataclass(frozen=True)
class Module:
    """Lines of one module that tests run.

    Args:
        path: file, relative to the repository.
        statements: number of its statements.
        covered: how many of them ran.
    """

    path: str
    statements: int
    covered: int

    @property
    def package(self) -> str:
        """The module's folder."""
        return self.path.rpartition("/")[0]

    @property
    def percent(self) -> float:
        """Part of the statements that ran, in percent."""
        return percent(self.covered, self.statements)


def percent(part: int, whole: int) -> float:
    """Return a part in percent; all of nothing is all."""
    return 100 * part / whole if whole else 100.0


def data_file(tier: str) -> Path:
    """Return the data of a tier."""
    return REPOSITORY / f".coverage.{tier}"


def measure(tier: str, arguments: Sequence[str]) -> int:
    """Run tests under coverage.py, and keep the tier's data. Returns the exit code of the tests."""
    with tempfile.TemporaryDirectory(prefix="gsub-coverage-") as name:
        folder = Path(name)
        folder.chmod(0o1777)  # for children of other users
        seconds = folder / "seconds"
        variables = {
            "COVERAGE_PROCESS_START": os.fspath(CONFIG),
            "COVERAGE_ROOT": os.fspath(REPOSITORY),
            "COVERAGE_FILE": os.fspath(folder / ".coverage"),
            SECONDS: os.fspath(seconds),
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests", "-p", "tests.contexts", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **variables},
        )
        os.environ["COVERAGE_ROOT"] = os.fspath(REPOSITORY)
        combined = Coverage(data_file=data_file(tier), config_file=CONFIG)
        combined.combine([os.fspath(file) for file in folder.glob(".coverage.*")], strict=True)
        combined.save()
        if seconds.exists():
            data_file(tier).with_name(f".coverage.{tier}.seconds").write_text(seconds.read_text())
    return done.returncode


def read_modules(files: Iterable[Path]) -> list[Module]:
    """Read how much of each module the tests of some data files run; 0 of those that none imported."""
    os.environ["COVERAGE_ROOT"] = os.fspath(REPOSITORY)
    with tempfile.TemporaryDirectory() as folder:
        measured = Coverage(data_file=Path(folder) / "data", config_file=CONFIG)
        measured.combine([*map(os.fspath, files)], strict=True, keep=True)
        measured.get_data().touch_files([os.fspath(file) for file in find_modules()])
        report = Path(folder) / "report.json"
        measured.json_report(outfile=os.fspath(report), show_contexts=False)
        found = json.loads(report.read_text())["files"]
    return [
        Module(
            Path(path).resolve().relative_to(REPOSITORY).as_posix(),
            each["summary"]["num_statements"],
            each["summary"]["covered_lines"],
        )
        for path, each in sorted(found.items())
    ]


def find_modules() -> list[Path]:
    """Find all modules of the product."""
    return [file for package in PACKAGES for file in sorted((REPOSITORY / package).rglob("*.py"))]


def format_table(columns: Mapping[str, Sequence[Module]]) -> str:
    """Format the coverage of each package as Markdown, a column for each set of modules."""
    sums: dict[str, dict[str, list[int]]] = defaultdict(lambda: {title: [0, 0] for title in columns})
    for title, modules in columns.items():
        for module in modules:
            for name in (module.package, "all"):
                sums[name][title][0] += module.covered
                sums[name][title][1] += module.statements
    lines = [
        f"| package | statements | {' | '.join(columns)} |",
        f"|---|---:|{'---:|' * len(columns)}",
    ]
    for name in [*sorted(set(sums) - {"all"}), "all"]:
        cells = [f"{percent(*found):.1f} %" for found in sums[name].values()]
        statements = next(iter(sums[name].values()))[1]
        lines.append(f"| {name} | {statements} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def replace_section(page: str, section: str) -> str:
    """Put a section between its markers; at the end of a page that has none."""
    before, begin, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    if not begin:
        before += "\n## Coverage\n\n"
    return f"{before}{BEGIN}{section}{END}{after}"


def report() -> list[Module]:
    """Write the table of what was measured. Returns the modules under LEAST_PERCENT."""
    files = {tier: data_file(tier) for tier in TIERS if data_file(tier).exists()}
    columns = {}
    if "test" in files:
        columns["`make test`"] = read_modules([files["test"]])
    if "rest" in files:
        columns["all"] = read_modules(files.values())
    table = format_table(columns)
    print(table)
    page = PAGE.read_text() if PAGE.exists() else "# Tests\n"
    PAGE.write_text(replace_section(page, table))
    return [
        module
        for module in columns.get("`make test`", ())
        if module.path.startswith(PACKAGES_HELD) and module.percent < LEAST_PERCENT
    ]


def main() -> int:
    """Measure a tier and report."""
    tier, *arguments = sys.argv[1:] or [""]
    if tier not in TIERS:
        print(f"usage: python -m tests.coverage_report {'|'.join(TIERS)} [arguments of python -m tests]")
        return 2
    code = measure(tier, arguments)
    low = report()
    for module in low:
        print(f"{module.path}: {module.percent:.1f} %, under {LEAST_PERCENT} %")
    return code or int(bool(low))


if __name__ == "__main__":
    sys.exit(main())
