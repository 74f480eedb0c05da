"""What preflight costs: broken and good scripts of tests/unit/gsub/preflight, beside `sbatch --test-only` of the same.

    python -m benchmarks.preflight [--cluster NAME] [--rounds N] [--json]

Told are the median and the highest of the checks over all scripts, the same of `gsub check` as a command, and of
plain `sbatch --test-only` on a development cluster that is up (--cluster; without it that column is left out). Exit 1
when the median of the checks misses its aim, 1 second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gsub.argv import split
from gsub.preflight.look import submission
from gsub.preflight.runner import preflight
from gsub.preflight.table import CHECKS
from gsub.sbatch_options import Table
from site_configs.devcluster import Cluster
from tests.unit.gsub.preflight.real_life import REAL_LIFE
from tests.unit.gsub.preflight.scripts import BROKEN, GOOD, Case

AIM_S = 1.0
ALL = (*BROKEN, *GOOD, *REAL_LIFE)


def laid(case: Case, home: Path, number: int) -> Path:
    """The case's files in a folder of their own."""
    folder = home / f"job-{number}"
    for name, said in {**case.files, "job.sh": case.script}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(said.replace("VENV", str(home / "env")).replace("HOME/", f"{home}/"))
    return folder


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def checks(case: Case, folder: Path, home: Path) -> Callable[[], object]:
    """The checks alone, in this process, without Slurm's."""
    os.chdir(folder)
    text = Path("job.sh").read_text()
    line = split([*case.words, "job.sh", *case.args], Table.of_all())
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "USER": "ada"}
    found = replace(submission(line, text, environ), home=str(home))
    rows = [check for check in CHECKS if check.name != "test-only"]
    return lambda: preflight(found, alone=True, checks=rows)


def command(case: Case, folder: Path) -> Callable[[], object]:
    """`gsub check` as a process."""
    main = "import sys; from gsub.cli import main; sys.exit(main())"
    argv = [sys.executable, "-c", main, "check", *case.words, "job.sh", *case.args]
    environ = {**os.environ, "GSUB_SITE": "", "PYTHONPATH": str(Path(__file__).parents[1])}
    return lambda: subprocess.run(
        argv, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True
    )


def sbatch(case: Case, cluster: Cluster) -> Callable[[], object]:
    """Plain `sbatch --test-only` of the script, through standard input."""
    argv = ["sbatch", "--test-only", *case.words]
    return lambda: cluster.run(argv, input=case.script)


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description="What preflight costs.")
    parser.add_argument("--cluster", help="a development cluster that is up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    cluster = Cluster.find(asked.cluster) if asked.cluster else None
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
        home = Path(folder).resolve()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home / "env")], check=True)
        for number, case in enumerate(ALL):
            where = laid(case, home, number)
            works = {"checks": checks(case, where, home), "gsub check": command(case, where)}
            if cluster is not None:
                works["sbatch --test-only"] = sbatch(case, cluster)
            for name, work in works.items():
                taken.setdefault(name, []).append(statistics.median(timed(work) for _ in range(asked.rounds)))
        os.chdir("/")
    figures = {
        name: {"median_s": statistics.median(found), "most_s": max(found)} for name, found in taken.items()
    }
    if asked.json:
        print(json.dumps({"scripts": len(ALL), "rounds": asked.rounds, "figures": figures}))
    else:
        for name, found in figures.items():
            print(
                f"{name:<20} median {found['median_s'] * 1000:6.0f} ms   most {found['most_s'] * 1000:6.0f} ms"
            )
    return 0 if figures["checks"]["median_s"] < AIM_S else 1


if __name__ == "__main__":
    sys.exit(main())
