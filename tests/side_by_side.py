"""All tests, as parts side by side: those that need no Slurm, and the others on each release.

    python -m tests.side_by_side [--parts nocluster,services] [--at-once N]

Six at a time share two cores well, the longest first. Each is a pytest of its own that writes to a file; told are a
line of progress now and then, the failures of each part under its name, a table and one closing line.

A test that fails is run once more when all parts have ended and the machine is quiet. One that passes then is named
as unsteady and counted as passed: a machine under load is not the code's fault. It stays visible, and more than
MOST_UNSTEADY of them fail the run, as does everything that is no single test's failure: a part that cannot be
collected, dies, hangs or finds no tests.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MOST_UNSTEADY = 15  # of 15,000, with six parts on two cores
LIMIT_S = 80 * 60.0
"""A part that takes longer hangs: the slowest takes 45 minutes with all at once on two cores, on slow ones an hour."""
ENDING_S = 120.0
"""A part whose tests have ended and that does not end in this time hangs: a test has left a thread that never ends."""
PROGRESS_S = 30.0
PACKAGES = "tests/packages"
ACTIONS = "tests/actions"
AT_ONCE = 3
"""Parts for each CPU: most of a cluster test is waiting. With five, deadlines are missed for want of a CPU."""
INSTALL = "tests/install"
SERVICES = tuple(
    f"tests/{each}" for each in ("act", "agent", "health", "keeper", "record", "report", "service", "store")
)
"""Half the time of what needs no cluster: daemons and databases, which are mostly waited for."""
SECTION_LINES = 500
"""Lines of one part's failures that are printed; the rest is in its file."""
UNSTEADY_LINES = 120
"""The same of a part whose failures all passed when run again: its file is gone with the run's end."""

_SECTION = re.compile(r"=+ (ERRORS|FAILURES) =+")
_WORST = ("failed", "error", "xpassed", "passed", "xfailed", "skipped")
_EXITS = {
    2: "stopped before its tests were through",
    3: "pytest broke",
    4: "wrong usage of pytest",
    5: "no tests",
}


@dataclass(frozen=True)
class Part:
    """Tests that one pytest runs: its name, and the arguments that choose them."""

    name: str
    args: tuple[str, ...]


def parts_here() -> tuple[Part, ...]:
    """The parts that this machine can run, the longest first: all releases for root who may make chroots, and wherever
    CI is set."""
    from site_configs.devcluster.spec import RELEASES
    from tests.conftest import _chroots

    releases: Iterable[str] = RELEASES if "CI" in os.environ or _chroots() else ("host",)
    # What follows failures waits for minutes for Slurm's own delays, in clusters of its own.
    actions = Part("actions", (ACTIONS, "-m", "cluster", "--slurm", ",".join(releases)))
    # Packages are built, installed and booted in hosts of their own, one after the other: a quarter of an hour.
    packages = Part("packages", (PACKAGES,))
    services = Part("services", (*SERVICES, "-m", "not cluster"))
    rest = Part("nocluster", ("-m", "not cluster", *(f"--ignore={each}" for each in (PACKAGES, *SERVICES))))
    elsewhere = tuple(f"--ignore={each}" for each in (ACTIONS, INSTALL, PACKAGES))
    cluster = [Part(each, ("-m", "cluster", "--slurm", each, *elsewhere)) for each in releases]
    # Installing takes clusters of its own, too, and a third of a release's time.
    install = [Part(f"{each}-install", (INSTALL, "-m", "cluster", "--slurm", each)) for each in releases]
    return (*cluster, rest, packages, actions, services, *install)


@dataclass
class Report:
    """What a part's report file says so far."""

    outcomes: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    collected: int = 0
    now: str = ""
    through: bool = False

    @classmethod
    def read(cls, path: Path) -> Report:
        """Read the lines written so far; a last one that is half written waits for the next look."""
        found = cls()
        try:
            lines = path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return found
        for line in lines:
            found._take(json.loads(line))
        return found

    def _take(self, said: Mapping[str, str]) -> None:
        if "test" in said:
            test, outcome = said["test"], said["outcome"]
            before = self.outcomes.get(test, outcome)
            self.outcomes[test] = min(before, outcome, key=_WORST.index)
            if said["why"]:
                self.why[test] = said["why"]
        elif "start" in said:
            self.now = said["start"]
        elif "broken" in said:
            self.broken[said["broken"]] = said["why"]
        elif "through" in said:
            self.through, self.now = True, "its end, after the last test: a thread goes on"
        else:
            self.collected = int(said["collected"])

    @property
    def failed(self) -> list[str]:
        """Node ids of the tests that failed, in the order in which they ran."""
        return [test for test, outcome in self.outcomes.items() if outcome in ("failed", "error")]


class Run:
    """One pytest that is on its way: a part, or a part's failures once more."""

    def __init__(
        self, part: Part, folder: Path, *, only: Sequence[str] = (), cwd: Path | None = None
    ) -> None:
        self.part = part
        name = f"{part.name}-again" if only else part.name
        self.output, self.report = folder / f"{name}.txt", folder / f"{name}.jsonl"
        argv = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-p", "tests.side_by_side_report"]
        argv += ["--report-to", str(self.report), "-p", "no:cacheprovider"]
        # pytest keeps three runs' folders, so the parts that end first would take away those of others, for minutes
        argv += ["-o", "faulthandler_timeout=600", "-o", "tmp_path_retention_count=20", *part.args]
        if only:
            ids = folder / f"{name}.ids"
            ids.write_text("".join(json.dumps(test) + "\n" for test in only))
            argv += ["--only", str(ids), *dict.fromkeys(test.split("::", 1)[0] for test in only)]
        # Without the bytecode kept, all parts compile all modules and tests anew, and so does each of their children.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with self.output.open("wb") as output:
            # A session of its own: ^C is ours to pass on, once.
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )
        self.started = time.monotonic()
        self.took_s = 0.0
        self.hung = False
        self._through_at: float | None = None

    def over(self, limit_s: float) -> bool:
        """Whether it has ended; one that is over its limit is ended, with the stacks of its threads in its output."""
        if self.process.poll() is None:
            now = time.monotonic()
            if now - self.started < limit_s and now - self._through(now) < ENDING_S:
                return False
            self.hung = True
            self.process.send_signal(signal.SIGABRT)
            self.end(10.0)
        self.took_s = self.took_s or time.monotonic() - self.started
        return True

    def _through(self, now: float) -> float:
        """When all its tests had ended, as far as is known: now, where they have not."""
        if self._through_at is None:
            if not _last_line(self.report).startswith(b'{"through"'):
                return now
            self._through_at = now
        return self._through_at

    def end(self, grace_s: float) -> None:
        """Wait for it to end, kill what is left of it, and take down the clusters that it can no longer."""
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.returncode < 0:
            _take_down_clusters_of(self.process.pid)

    def trouble(self) -> str:
        """What went wrong that is no single test's failure; empty when nothing did."""
        code = self.process.returncode
        if self.hung:
            return f"hung, ended after {self.took_s / 60:.0f} min in {Report.read(self.report).now or 'its collection'}"
        if code < 0:
            return (
                f"died of {signal.Signals(-code).name} in {Report.read(self.report).now or 'its collection'}"
            )
        if code in (0, 1):
            return ""
        broken = Report.read(self.report).broken
        return "; ".join(
            [_EXITS.get(code, f"exit code {code}"), *(f"{path}: {why}" for path, why in broken.items())]
        )


def _last_line(path: Path) -> bytes:
    """The last line of a report; asked five times a second, so the rest is not read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 1000))
            return file.read().rstrip(b"\n").rpartition(b"\n")[2]
    except FileNotFoundError:
        return b""


def _take_down_clusters_of(pid: int) -> None:
    from site_configs.devcluster import Cluster, DevClusterError

    for name in Cluster.names():
        if name.startswith(f"t{pid}-"):
            try:
                Cluster.down(name)
            except DevClusterError as error:
                _say(f"cluster {name} stays: {error}")


@dataclass
class Result:
    """How a part ended."""

    part: Part
    report: Report
    trouble: str
    took_s: float
    output: Path
    unsteady: dict[str, str] = field(default_factory=dict)
    again: Path | None = None
    """The output of the second try, where there was one and something failed in it."""

    @property
    def failed(self) -> list[str]:
        """The tests that failed, and did not pass when run again."""
        return [test for test in self.report.failed if test not in self.unsteady]

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against this part."""
        return not self.failed and not self.trouble

    def counts(self) -> Counter[str]:
        """Tests by outcome; trouble of the part as a whole is one error (or as many as files could not be read)."""
        found = Counter(self.report.outcomes.values())
        for test in self.unsteady:
            found[self.report.outcomes[test]] -= 1
            found["passed"] += 1
        if self.trouble:
            found["error"] += len(self.report.broken) or 1
        return +found


def run(
    parts: Sequence[Part],
    *,
    at_once: int | None = None,
    limit_s: float = LIMIT_S,
    progress_s: float = PROGRESS_S,
    cwd: Path | None = None,
) -> int:
    """Run the parts and tell how they went. Returns the exit code: 0, or 1 when something failed.

    ``at_once``: how many parts run at the same time (default: AT_ONCE a CPU), the first ones first.
    ``cwd``: where pytest is started.
    """
    folder = Path(tempfile.mkdtemp(prefix="gsub-tests-"))
    start = time.monotonic()
    runs: list[Run] = []
    try:
        results = _first(
            parts, runs, folder, at_once or AT_ONCE * (os.cpu_count() or 1), limit_s, progress_s, cwd
        )
        for result in results:
            _second(result, runs, folder, limit_s, cwd)
    finally:
        _end(runs)
    passed = _tell(results, time.monotonic() - start)
    if passed:
        shutil.rmtree(folder)
    else:
        _say(f"the whole output: {folder}")
    _say(_closing_line(results, passed, time.monotonic() - start))
    return 0 if passed else 1


def _first(
    parts: Sequence[Part],
    runs: list[Run],
    folder: Path,
    at_once: int,
    limit_s: float,
    progress_s: float,
    cwd: Path | None,
) -> list[Result]:
    """All parts, so many at a time."""
    waiting, told_at = list(parts), time.monotonic()
    going: list[Run] = []
    while waiting or going:
        while waiting and len(going) < at_once:
            going.append(Run(waiting.pop(0), folder, cwd=cwd))
            runs.append(going[-1])
        time.sleep(0.2)
        for each in [each for each in going if each.over(limit_s)]:
            going.remove(each)
            report = Report.read(each.report)
            _say(f"{each.part.name}: ended after {each.took_s / 60:.1f} min, {len(report.failed)} failed")
        if going and time.monotonic() - told_at >= progress_s:
            told_at = time.monotonic()
            _say("   ".join(_progress(each) for each in going))
    return [
        Result(each.part, Report.read(each.report), each.trouble(), each.took_s, each.output) for each in runs
    ]


def _second(result: Result, runs: list[Run], folder: Path, limit_s: float, cwd: Path | None) -> None:
    """The failures of a part once more. Not after trouble, nor of more than would fail the run even if all passed."""
    failed = result.report.failed
    if result.trouble or not failed or len(failed) > MOST_UNSTEADY:
        return
    _say(f"{result.part.name}: {len(failed)} failed, running again alone: {' '.join(failed)}")
    again = Run(result.part, folder, only=failed, cwd=cwd)
    runs.append(again)
    while not again.over(limit_s):
        time.sleep(0.2)
    report = Report.read(again.report)
    for test in failed:
        if report.outcomes.get(test) == "passed":
            result.unsteady[test] = result.report.why.get(test, "")
    result.trouble = again.trouble()
    if result.failed or result.trouble:
        result.again = again.output


def _end(runs: Iterable[Run]) -> None:
    """End what is still going, as ^C would, so that fixtures take their clusters down."""
    going = [each for each in runs if each.process.poll() is None]
    for each in going:
        each.process.send_signal(signal.SIGINT)
    for each in going:
        each.end(60.0)


def _progress(going: Run) -> str:
    report = Report.read(going.report)
    done = len(report.outcomes)
    failed = f", {len(report.failed)} failed" if report.failed else ""
    return f"{going.part.name} {done}/{report.collected or '?'}{failed}"


def _tell(results: Sequence[Result], took_s: float) -> bool:
    """Print the failures, what was unsteady, and the table. Returns whether all is well."""
    for result in results:
        if not result.ok:
            _say(f"\n##### {result.part.name}: {result.trouble or 'failed'}")
            for path in filter(None, (result.again or result.output,)):
                _say(_section(path.read_text(errors="replace"), path))
        elif result.unsteady:
            _say(f"\n##### {result.part.name}: failed at first, beside the others")
            _say(_section(result.output.read_text(errors="replace"), result.output, UNSTEADY_LINES))
    unsteady = [(result.part.name, *each) for result in results for each in result.unsteady.items()]
    if unsteady:
        _say("\nunsteady: passed when run again alone")
        for part, test, why in unsteady:
            _say(f"  {part}: {test}: {why}")
    _say(f"\n{'part':<12}{'passed':>8}{'failed':>8}{'skipped':>8}{'unsteady':>10}{'minutes':>9}")
    for result in results:
        counts = result.counts()
        _say(
            f"{result.part.name:<12}{counts['passed']:>8}{counts['failed'] + counts['error']:>8}"
            f"{counts['skipped']:>8}{len(result.unsteady):>10}{result.took_s / 60:>9.1f}"
            + (f"  {result.trouble}" if result.trouble else "")
        )
    if len(unsteady) > MOST_UNSTEADY:
        _say(f"{len(unsteady)} tests are unsteady, and more than {MOST_UNSTEADY} fail the run")
    return all(result.ok for result in results) and len(unsteady) <= MOST_UNSTEADY


def _section(text: str, path: Path, most: int = SECTION_LINES) -> str:
    """The failures of a pytest's output, from their headline on; its last lines where it has none."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if _SECTION.fullmatch(line)), max(0, len(lines) - 100))
    found = lines[start:]
    if len(found) > most:
        left_out = len(found) - most
        half = most // 2
        found = [*found[:half], f"[... {left_out} lines more in {path} ...]", *found[-half:]]
    return "\n".join(found)


def _closing_line(results: Iterable[Result], passed: bool, took_s: float) -> str:
    """All parts in one line of pytest's form: ``=== 7000 passed, 3 skipped in 800.00s ===``."""
    counts: Counter[str] = sum((result.counts() for result in results), Counter())
    if not passed and not counts["failed"] + counts["error"]:
        counts["error"] = 1  # too many were unsteady
    order = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")
    said = [f"{counts[each]} {each}" for each in order if counts[each]]
    if counts["error"] > 1:
        said[-1] += "s"
    return f" {', '.join(said) or 'no tests ran'} in {took_s:.2f}s ".center(100, "=")


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    """Run the parts that can run here."""
    parser = argparse.ArgumentParser(description="All tests, as parts side by side.")
    parser.add_argument(
        "--parts",
        help="only these, comma-separated: nocluster,services,packages,actions,host,host-install...",
    )
    parser.add_argument(
        "--at-once", type=int, help=f"parts that run at the same time (default: {AT_ONCE} a CPU)"
    )
    asked = parser.parse_args()
    parts = parts_here()
    if asked.parts:
        names = asked.parts.split(",")
        if unknown := set(names) - {part.name for part in parts}:
            parser.error(f"no part {', '.join(sorted(unknown))} here")
        parts = tuple(part for part in parts if part.name in names)
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # one way to be stopped
    _say(f"{len(parts)} parts side by side: {', '.join(part.name for part in parts)}")
    try:
        return run(parts, at_once=asked.at_once)
    except KeyboardInterrupt:
        _say("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
