"""Slurm's answers on disk: what each command printed, to be read again without Slurm.

A file holds the commands that one question took: vector, exit code, output. The separator of a call is random; in a
file it stands as ``{separator}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_plugins.client.runner import Completed
from tests.paths import REPOSITORY

DATA = REPOSITORY / "tests/data/slurm"
RELEASES = tuple(sorted(folder.name for folder in DATA.iterdir() if folder.is_dir()))

_SEPARATOR = re.compile("\x1f[0-9A-Za-z_-]{8}")
_TOKEN = "{separator}"
# Differs from one moment to the next, and is no part of a question.
_MOMENT = re.compile(r"uts\d+")

Run = Callable[..., Completed]


def _plain(argv: list[str]) -> list[str]:
    return [_MOMENT.sub("uts", _SEPARATOR.sub(_TOKEN, word)) for word in argv]


class Recorder:
    """Runs commands by ``run`` and keeps what they printed."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run = run
        self._folder = folder
        self._calls: list[dict[str, Any]] = []

    def __call__(self, argv: list[str], **options: Any) -> Completed:
        done = self._run(argv, **options)
        self._calls.append(
            {
                "argv": _plain(argv),
                "returncode": done.returncode,
                "stdout": _SEPARATOR.sub(_TOKEN, done.stdout),
                "stderr": done.stderr,
            }
        )
        return done

    @contextmanager
    def file(self, name: str) -> Iterator[None]:
        """Keep the calls of the block as one file."""
        self._calls.clear()
        yield
        self._folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self._calls, indent=1, ensure_ascii=False)
        (self._folder / f"{name}.json").write_text(text + "\n", encoding="utf-8", errors="surrogateescape")


def _columns(printed: str, recorded: str, asked: str) -> str:
    """Those columns of a table of ``squeue -O`` that are asked for, which must be among the recorded ones."""
    names, wanted = (layout.replace(f":{_TOKEN}", "").split(",") for layout in (recorded, asked))
    places = [names.index(name) for name in wanted]
    fields = printed.split(_TOKEN)[:-1]
    table = [fields[begin : begin + len(names)] for begin in range(0, len(fields), len(names))]
    return "".join(
        "".join(row[place].lstrip("\n" if not place else "") + _TOKEN for place in places) + "\n"
        for row in table
    )


class Replay:
    """Answers commands from the files of one release; a question that was not recorded is a failure of the test."""

    def __init__(self, release: str, *names: str) -> None:
        self._calls = [
            call
            for name in ("version", *names)
            for call in json.loads((DATA / release / f"{name}.json").read_text(encoding="utf-8"))
        ]

    def __call__(self, argv: list[str], **_: Any) -> Completed:
        asked = _plain(argv)
        separator = next((found[0] for word in argv if (found := _SEPARATOR.search(word))), _TOKEN)
        for call in self._calls:
            if call["argv"] == asked:
                printed = call["stdout"].replace(_TOKEN, separator)
                return Completed(argv[0], call["returncode"], printed, call["stderr"])
            if "-O" in asked and call["argv"][:-1] == asked[:-1]:
                printed = _columns(call["stdout"], call["argv"][-1], asked[-1]).replace(_TOKEN, separator)
                return Completed(argv[0], call["returncode"], printed, call["stderr"])
            if "-o" in asked and call["argv"][:-2] == asked[:-2] and call["returncode"]:
                # What fails, fails in each format
                return Completed(argv[0], call["returncode"], call["stdout"], call["stderr"])
        raise AssertionError(f"not recorded: {asked}\nrun python -m tests.slurm.client.record")
