"""A simple command of a script, and what is known where it runs: its folder, its Python, its certainty."""

# ruff: noqa: PTH117, PTH118, PTH119 - paths as scripts have them

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["QUIET", "Command", "Python", "is_quiet"]

QUIET: Final = frozenset({
    "echo", "printf", ":", "true", "set", "export", "unset", "ulimit", "umask", "date", "hostname", "pwd", "ls", "cat",
    "env", "printenv", "nvidia-smi", "module", "ml", "conda", "mamba", "micromamba", "source", ".", "cd", "sleep",
    "wait",
    "exit", "return", "trap", "deactivate", "which", "type", "command", "squeue", "scontrol", "sacct", "sinfo", "free",
    "df", "du", "lscpu", "uname", "id", "whoami", "test", "[", "mkdir", "rm", "head", "tail", "grep", "wc", "sort",
    "cut",
    "basename", "dirname", "read", "local", "declare", "typeset", "readonly", "shift", "let", "nproc", "shopt", "hash",
    "alias", "ps", "top", "stat", "file", "readlink", "realpath", "seq", "rmdir", "false", "lsof", "sync",
})  # fmt: skip
"""Commands that make no files (what they are redirected to is looked at apart) and no work that a job is about."""


@dataclass(frozen=True, slots=True)
class Python:
    """Where `python` comes from: "path" (PATH as it is), "folder" (a bin folder), "conda" (a name), "unknown".

    `paths` is PYTHONPATH as the script knows it, None where nobody knows it.
    """

    kind: str = "path"
    where: str = ""
    line: int = 0
    paths: str | None = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command.

    Parameters
    ----------
    words: None for a word that is not known.
    folder: where it runs; None where that is not known.
    sure: it does run, in the order of the file, and no line before it may have changed what files there are.
    decisive: when it fails, the job fails: it is the last one that does work, or `set -e` is in effect.
    made: paths that lines before it make; None among them: some of which nobody knows.
    allowed: the script allows for its failing; of what is missing for it nothing is said.
    """

    line: int
    words: tuple[str | None, ...]
    variables: Mapping[str, str]
    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    folder: str | None
    python: Python
    sure: bool
    decisive: bool
    made: tuple[str | None, ...]
    allowed: bool = False

    @property
    def name(self) -> str:
        """The program, without its folder; "" where it is not known."""
        return os.path.basename(self.words[0]) if self.words and self.words[0] else ""

    def path(self, word: str) -> str | None:
        """A word as a path, absolute; None where its folder is not known."""
        if os.path.isabs(word):
            return os.path.normpath(word)
        return None if self.folder is None else os.path.normpath(os.path.join(self.folder, word))

    def makes(self, path: str) -> bool:
        """Whether a line before it may have made the path."""
        return any(one is None or path == one or path.startswith(one + "/") for one in self.made)


def is_quiet(command: Command) -> bool:
    """Whether it does no work that a job is about."""
    return (
        command.name in QUIET and not (command.name in ("env", "command") and len(command.words) > 1)
    ) or not command.words
