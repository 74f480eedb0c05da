"""What preflight looks at and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from gsub.script import Asked

__all__ = ["MOST", "Finding", "LeftOutError", "Level", "Submission", "Verdict"]

Level = Literal["error", "warning"]
MOST: Final = 200
"""The longest text of a finding that comes out of a user's files, in characters."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: where (line 0: nowhere in particular), what, and what to do about it."""

    level: Level
    file: str
    line: int
    what: str
    do: str
    check: str = ""

    @property
    def where(self) -> str:
        """`train.sh:12`, or the file alone."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def facts(self) -> dict[str, object]:
        """For `--json`."""
        from gsub.term import one_line

        return {
            "level": self.level,
            "check": self.check,
            "file": one_line(self.file),
            "line": self.line or None,
            "what": one_line(self.what),
            "do": one_line(self.do),
        }


class LeftOutError(Exception):
    """A check cannot be made, or not to its end; the text says why. What it found before counts."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that was found, errors first; and the names of the checks that were given up, each with why."""

    findings: tuple[Finding, ...] = ()
    given_up: tuple[tuple[str, str], ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What stops the submission."""
        return tuple(one for one in self.findings if one.level == "error")


@dataclass(frozen=True, slots=True)
class Submission:
    """A submission as it stands, before sbatch has seen it.

    Parameters
    ----------
    name: how the script is called in findings: its path as typed, `--wrap`, or `standard input`.
    text: the script; of `--wrap` the one that sbatch makes.
    args: the words after SCRIPT.
    folder: where the job will begin, absolute.
    environ: the variables of the login node.
    inherits: the job gets these variables (no `--export=NONE` or the like).
    components: the options in effect, a tuple a component of a heterogeneous job.
    later: other work may come between now and the job's start (dependencies, a begin, a hold): files may yet appear.
    elsewhere: it runs in other surroundings than these (another cluster, a container, another user).
    words: what sbatch is given.
    slurm_folder: where sbatch lies; empty for PATH.
    """

    name: str
    text: str
    args: tuple[str, ...] = ()
    folder: str = "/"
    environ: Mapping[str, str] = field(default_factory=dict)
    inherits: bool = True
    components: tuple[tuple[Asked, ...], ...] = ((),)
    later: bool = False
    elsewhere: bool = False
    words: tuple[str, ...] = ()
    slurm_folder: str = ""
    home: str = ""
    cwd: str = ""
    """Where gsub was called, $SLURM_SUBMIT_DIR of the job."""

    @property
    def shift(self) -> int:
        """Lines ahead of the user's own text: sbatch puts three before the command of `--wrap`."""
        return 3 if self.name == "--wrap" else 0

    def option(self, name: str) -> Asked | None:
        """The option in effect, of the first component."""
        found = [option for option in self.components[0] if option.name == name]
        return found[-1] if found else None

    def finding(self, level: Level, line: int, what: str, do: str, file: str = "") -> Finding:
        """A finding about the script, or about another file."""
        own = not file or file == self.name
        return Finding(level, file or self.name, max(line - self.shift, 0) if own else line, what, do)
