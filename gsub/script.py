"""A batch script and its #SBATCH lines, read by sbatch's own rules; and the request they make with the rest.

sbatch reads lines that begin with `#SBATCH` up to the first line that holds a command. A word ends at white
space outside quotes, `\\` takes the next character as it is, `#` begins a comment. A line with the word
`hetjob` begins the next component of a heterogeneous job. Precedence: command line, environment, script
(sbatch(1)).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from gsub.argv import CommandLine, read_options
from gsub.sbatch_options import INPUT_VARIABLES, Table

MAGIC: Final = "#SBATCH"
_FOREIGN: Final = ("#PBS", "#BSUB")
_HETJOB: Final = ("hetjob", "packjob")  # the second is its name before 20.02, still obeyed
_SPACE: Final = " \t\n\v\f\r"


@dataclass(frozen=True, slots=True)
class Directive:
    """One `#SBATCH` line: its number (from 1), its words, and the component it belongs to (from 0)."""

    line: int
    words: tuple[str, ...]
    component: int


@dataclass(frozen=True, slots=True)
class Asked:
    """One option in effect: full name, value (None where it takes none) and who set it."""

    name: str
    value: str | None
    source: str

    @property
    def from_environment(self) -> bool:
        """A variable set it."""
        return self.source in INPUT_VARIABLES


@dataclass(frozen=True, slots=True)
class Request:
    """What a submission asks for: the script, and the options in effect of each component, as they were set."""

    script: str
    job_name: str
    components: tuple[tuple[Asked, ...], ...]


def directives(text: str) -> tuple[Directive, ...]:
    r"""The `#SBATCH` lines of a script.

    >>> directives("#!/bin/sh\n#SBATCH -N 2 --comment='a b' # two\necho\n#SBATCH -n 9\n")
    (Directive(line=2, words=('-N', '2', '--comment=a b'), component=0),)
    """
    found = []
    component = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith(MAGIC):
            if line.strip(_SPACE)[:1] in ("", "#"):
                continue
            break
        rest = line[len(MAGIC) :]
        for name in _HETJOB:
            at = rest.lower().find(name)
            if at >= 0:
                # Anywhere in the line, even inside a value: sbatch does the same.
                component += 1
                rest = rest[:at] + " " * len(name) + rest[at + len(name) :]
                break
        found.append(Directive(number, split_words(rest), component))
    return tuple(found)


def foreign(text: str) -> str:
    r"""The first line of PBS or LSF options, which sbatch obeys too (unless --ignore-pbs); "" without.

    >>> foreign("#!/bin/sh\n#SBATCH -N 2\n#PBS -l nodes=2\n"), foreign("#!/bin/sh\necho\n#BSUB -n 4\n")
    ('#PBS -l nodes=2', '')
    """
    for line in text.split("\n"):
        if line.startswith(_FOREIGN):
            return line
        if line.strip(_SPACE)[:1] not in ("", "#"):
            break
    return ""


def split_words(text: str) -> tuple[str, ...]:
    """Split one line into words as sbatch does (not as a shell does: `\\` counts inside quotes too)."""
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
            continue
        elif quote:
            if char == quote:
                quote = ""
                continue
        elif char in "\"'":
            quote = char
            continue
        elif char == "#":
            break
        elif char in _SPACE:
            if word is not None:
                words.append("".join(word))
            word = None
            continue
        word = [] if word is None else word
        word.append(char)
    if word is not None:
        words.append("".join(word))
    return tuple(words)


def request(line: CommandLine, text: str, environ: Mapping[str, str], table: Table) -> Request:
    """What sbatch would ask for, given a command line, the script's text and the environment.

    The environment counts for every component, the command line's n-th component for the script's n-th.
    """
    lines = directives(text)
    count = max(len(line.components), lines[-1].component + 1 if lines else 1)
    components = tuple(_component(i, line, lines, environ, table) for i in range(count))
    asked_names = [option.value for option in components[0] if option.name == "job-name"]
    return Request(
        script=line.script or ("--wrap" if line.wrap is not None else "standard input"),
        job_name=asked_names[0] if asked_names and asked_names[0] else _default_name(line),
        components=components,
    )


def _component(
    index: int, line: CommandLine, lines: tuple[Directive, ...], environ: Mapping[str, str], table: Table
) -> tuple[Asked, ...]:
    effective: dict[str, Asked] = {}

    def put(name: str, value: str | None, source: str) -> None:
        effective.pop(
            name, None
        )  # the later one also stands later: of options that exclude each other it counts
        effective[name] = Asked(name, value, source)

    for directive in lines:
        if directive.component == index:
            for setting in read_options(directive.words, table).components[0]:
                put(setting.name, setting.value, f"script line {directive.line}")
    for variable, name in INPUT_VARIABLES.items():
        if variable in environ and name in table.long:
            put(name, environ[variable] if table.long[name] != "none" else None, variable)
    if index < len(line.components):
        for setting in line.components[index]:
            put(setting.name, setting.value, "command line")
    return tuple(effective.values())


def _default_name(line: CommandLine) -> str:
    if line.wrap is not None:
        return "wrap"
    return PurePath(line.script).name if line.script else "sbatch"
