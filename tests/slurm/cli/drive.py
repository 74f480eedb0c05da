"""Many command lines in one go inside the cluster: runs as a program there, is called from the tests here.

Standard library only: inside the cluster it is run by whatever Python is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from site_configs.devcluster import Cluster


@dataclass(frozen=True)
class Case:
    """One command line: the words after `sbatch`, variables added, standard input, the working directory."""

    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    stdin: str = ""


@dataclass(frozen=True)
class Done:
    """What became of it."""

    code: int
    out: str
    err: str


def drive(
    cluster: Cluster,
    program: list[str],
    cases: list[Case],
    *,
    cwd: Path,
    user: str | None,
    timeout: float = 420,
) -> list[Done]:
    """Run `program` with the words of each case, one after the other."""
    asked = [{"argv": [*program, *case.words], "env": dict(case.env), "stdin": case.stdin} for case in cases]
    done = cluster.run(
        ["python3", "-c", Path(__file__).read_text()],
        user=user,
        cwd=cwd,
        input=json.dumps(asked),
        timeout=timeout,
        check=True,
    )
    return [Done(*answer) for answer in json.loads(done.stdout)]


def main() -> None:
    import os

    answers = []
    for case in json.load(sys.stdin):
        done = subprocess.run(
            case["argv"],
            env={**os.environ, **case["env"]},
            input=case["stdin"],
            capture_output=True,
            text=True,
        )
        answers.append([done.returncode, done.stdout, done.stderr])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
