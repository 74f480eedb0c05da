"""Branches of the shim's Lua: a copy of the shim that writes down which of them run.

    python -m tests.unit.slurm_plugins.lua.branches

lists each branch and a test that takes it in docs/shim-branches.md.

A branch is one way on from a line: an ``if``, ``elseif`` or ``while`` that holds or does not, a ``for`` that enters its
body or is left, the right operand of an ``and`` or ``or``. Lua's hooks would do for lines, but chain.lua has a hook of
its own, and Lua holds one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.paths import REPOSITORY
from tests.unit.slurm_plugins.lua.lua import COPY, SOURCE, literal

TABLE: Final = REPOSITORY / "docs/shim-branches.md"
TESTS: Final = ("tests/unit/slurm_plugins/lua", "tests/unit/slurm_plugins/install/test_chain.py")
RELEASES: Final = "not 5.2 and not 5.3 and not test_branches"
"""Where releases of Lua differ to the shim, 5.1 differs from all newer ones."""

_TOKEN = re.compile(r"""--[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[A-Za-z_]\w*|\n|[^\n]""", re.DOTALL)
# Takes the place of a file's first line, a comment: functions that note a branch once, with the test that runs.
_RECORDER = """\
local gsub_if, gsub_and, gsub_or, gsub_at = (function() local open, seen = io.open, {} \
local environ = open("/proc/self/environ") \
local test = environ and string.match(environ:read("*a"), "PYTEST_CURRENT_TEST=([^%%z]*)") or "" \
if environ then environ:close() end \
local waiting = "" local function note(id) if not seen[id] then seen[id] = true \
waiting = waiting .. id .. "\\t" .. test .. "\\n" local file = open(%s, "a") \
if file then file:write(waiting) file:close() waiting = "" end end end \
return function(id, value) note(id .. (value and ":holds" or ":does not")) return value end, \
function(id) note(id .. ":right") return true end, function(id) note(id .. ":right") return false end, note end)()"""


@dataclass(frozen=True, order=True)
class Branch:
    """One way on from a line.

    Args:
        file: name of the Lua file.
        line: number of the line, from 1.
        word: the keyword; numbered where the line has it more than once.
        way: ``holds``, ``does not``, ``body``, ``left`` or ``right``.
    """

    file: str
    line: int
    word: str
    way: str

    @classmethod
    def parse(cls, text: str) -> Branch:
        """Read what a copy of the shim wrote."""
        file, line, word, way = text.split(":")
        return cls(file, int(line), word, way)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.word}: {self.way}"


class Instrumenter:
    """Rewrite of one Lua file, line by line the same.

    Args:
        file: its name.
        text: its text, whose first line is a comment.
        record: file to which the rewritten Lua appends the branches that it takes.
    """

    def __init__(self, file: str, text: str, record: Path) -> None:
        if not text.startswith("--"):
            raise ValueError(f"{file} does not begin with a comment")
        self.branches: list[Branch] = []
        self._file, self._line = file, 1
        self._words: Counter[tuple[int, str]] = Counter()
        self._blocks: list[tuple[str, str]] = []  # what an `end` or a `then` closes, and the branch's id
        head, _, rest = text.partition("\n")
        del head
        recorder = _RECORDER % literal(os.fspath(record))
        self.text = recorder + "".join(self._rewrite(_TOKEN.findall("\n" + rest)))

    def _add(self, word: str, *ways: str) -> str:
        self._words[self._line, word] += 1
        number = self._words[self._line, word]
        name = word if number == 1 else f"{word} {number}"
        self.branches += [Branch(self._file, self._line, name, way) for way in ways]
        return f"{self._file}:{self._line}:{name}"

    def _rewrite(self, tokens: list[str]) -> Iterator[str]:
        for at, token in enumerate(tokens):
            if token == "\n":
                self._line += 1
            yield self._rewrite_token(token, following="".join(tokens[at + 1 : at + 4]).strip())

    def _rewrite_token(self, token: str, following: str) -> str:
        blocks = self._blocks
        match token:
            case "if" | "elseif" | "while":
                endless = token == "while" and following.startswith("true")
                name = self._add(token, "holds", *([] if endless else ["does not"]))
                if token != "elseif":
                    blocks.append((token, name))
                return f'{token} gsub_if("{name}",'
            case "then":
                return ") then"
            case "for":
                blocks.append(("for", self._add("for", "body", "left")))
            case "do" if blocks[-1][0] == "while":
                blocks[-1] = ("body", "")
                return ") do"
            case "do" if blocks[-1][0] == "for":
                name = blocks[-1][1]
                blocks[-1] = ("body", name)
                return f'do gsub_at("{name}:body")'
            case "do" | "function":
                blocks.append((token, ""))
            case "end":
                kind, name = blocks.pop()
                return f'end gsub_at("{name}:left")' if kind == "body" and name else "end"
            case "and" | "or":
                return f'{token} gsub_{token}("{self._add(token, "right")}") {token}'
            case "repeat" | "goto":
                raise ValueError(f"{self._file}:{self._line}: {token} is not known here")
        return token


def copy_shim(folder: Path, record: Path) -> list[Branch]:
    """Copy the shim to a new folder so that it notes its branches. Returns all that there are."""
    folder.mkdir()
    branches = []
    for source in sorted(SOURCE.glob("*.lua")):
        made = Instrumenter(source.name, source.read_text(), record)
        (folder / source.name).write_text(made.text)
        branches += made.branches
    return branches


def read_record(record: Path) -> dict[Branch, str]:
    """Read which branches were taken, and by which test first."""
    found: dict[Branch, str] = {}
    for line in record.read_text(errors="replace").splitlines():
        name, _, test = line.partition("\t")
        found.setdefault(Branch.parse(name), test.rpartition(" (")[0])
    return found


def run_tests(folder: Path) -> tuple[list[Branch], dict[Branch, str]]:
    """Run the shim's tests on a copy in this folder.

    Returns:
        All branches, and those that were taken, each with a test that took it.

    Raises:
        RuntimeError: a test fails on the copy.
    """
    record = folder / "record"
    branches = copy_shim(folder / "shim", record)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-n0",
            "-k",
            RELEASES,
            *TESTS,
        ],
        cwd=REPOSITORY,
        env={**os.environ, COPY: str(folder / "shim")},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stdout[-4000:] + done.stderr[-2000:])
    return branches, read_record(record)


def format_table(branches: list[Branch], taken: Mapping[Branch, str]) -> str:
    """Format all branches as Markdown."""
    lines = [
        "# Branches of the Lua shim",
        "",
        "Each way on from each line of `slurm_plugins/lua`, and a test that takes it.",
        "`python -m tests.unit.slurm_plugins.lua.branches` writes this file.",
        "A test fails where a branch is missed.",
        "",
        "| file | line | statement | way | test |",
        "|---|---|---|---|---|",
    ]
    for branch in branches:
        test = taken.get(branch, "").replace("tests/unit/slurm_plugins/", "").partition("[")[0]
        lines.append(
            f"| {branch.file} | {branch.line} | {branch.word} | {branch.way} | {f'`{test}`' if test else 'none'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the shim's tests and write the table."""
    with tempfile.TemporaryDirectory() as folder:
        branches, taken = run_tests(Path(folder))
    TABLE.write_text(format_table(branches, taken))
    missed = [branch for branch in branches if branch not in taken]
    print(f"{len(branches)} branches, {len(missed)} missed", *missed, sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
