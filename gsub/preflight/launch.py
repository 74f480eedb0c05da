"""What a command line comes to behind its launchers: `srun -n 4 torchrun --nproc_per_node=8 train.py` runs train.py."""

# ruff: noqa: PTH118, PTH119, PTH120 - paths as scripts have them

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gsub.argv import read_options
from gsub.preflight.command import Command
from gsub.preflight.launchers import LAUNCHERS, MODULES, Launch, Launcher, launched
from gsub.sbatch_options import OPTIONS, SbatchOption, Table

__all__ = ["Program", "program"]

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
_PYTHON: Final = re.compile(r"python(?:\d(?:\.\d+)?)?")
_CONTAINERS: Final = ("container", "image", "volume", "module")
"""Options of srun with which the command runs in another world (container plugins)."""
_ENVIRONMENT: Final = re.compile(r"[A-Za-z_]\w*=")

_SRUN_OWN: Final = (
    ("accel-bind", "required", ""), ("bcast", "optional", ""), ("compress", "optional", ""),
    ("cpu-bind", "required", ""),
    ("disable-status", "none", "X"), ("epilog", "required", ""), ("exact", "none", ""), ("het-group", "required", ""),
    ("immediate", "optional", "I"), ("interactive", "none", ""), ("jobid", "required", ""),
    ("kill-on-bad-exit", "optional", "K"), ("label", "none", "l"), ("mpi", "required", ""),
    ("msg-timeout", "required", ""),
    ("multi-prog", "none", ""), ("overlap", "none", ""), ("preserve-env", "none", "E"), ("prolog", "required", ""),
    ("pty", "optional", ""), ("relative", "required", "r"), ("send-libs", "optional", ""),
    ("slurmd-debug", "required", ""),
    ("task-epilog", "required", ""), ("task-prolog", "required", ""), ("threads", "required", "T"),
    ("unbuffered", "none", "u"), ("wait", "required", "W"), ("whole", "none", ""), ("x11", "optional", ""),
)  # fmt: skip
_NAMES: Final = {name for name, _, _ in _SRUN_OWN}
_LETTERS: Final = {short for _, _, short in _SRUN_OWN if short}
SRUN: Final = Table(
    [SbatchOption(name, argument, short) for name, argument, short in _SRUN_OWN]  # type: ignore[arg-type]
    + [
        SbatchOption(one.name, one.argument, "" if one.short in _LETTERS else one.short)
        for one in OPTIONS
        if one.name not in _NAMES and one.name not in ("wrap", "test-only", "parsable", "array")
    ]
)
"""srun's options: sbatch's and its own."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program and how it was launched.

    Parameters
    ----------
    kind: "python", "shell", or "other".
    interpreter: the word that names the interpreter, or the program itself.
    file: the script that it runs; "" without.
    args: the words behind it.
    srun: srun's options by name, None where srun does not launch it.
    launch: the launcher of its processes on each node, None without.
    mpi: mpirun, None without.
    module: the module that is run (`python -m NAME`); "" without.
    """

    kind: str
    interpreter: str
    file: str
    args: tuple[str | None, ...]
    srun: Mapping[str, str | None] | None = None
    launch: Launch | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    mpi: Launch | None = None
    module: str = ""


def program(command: Command) -> Program | None:
    """What a command runs; None where that cannot be told."""
    words = list(command.words)
    srun: dict[str, str | None] | None = None
    variables: dict[str, str] = {}
    mpi: Launch | None = None
    for _ in range(8):
        if not words or words[0] is None:
            return None
        name = os.path.basename(words[0])
        if name == "srun":
            told = _srun(words)
            if told is None:
                return None
            srun, words = told
        elif name in LAUNCHERS and not LAUNCHERS[name].python:
            behind = launched(LAUNCHERS[name], words[1:])
            if behind is None:
                return None
            mpi, words = behind[0], list(behind[1])
        elif name in ("time", "nohup", "exec", "command"):
            words = words[1:]
            if words and (words[0] or "").startswith("-"):
                return None
        elif name == "stdbuf":
            words = words[1:]
            while words and (words[0] or "").startswith("-"):
                words = words[1:]
        elif name == "timeout":
            words = words[1:]
            while words and (words[0] or "").startswith("--"):
                words = words[1:]
            if not words or (words[0] or "-").startswith("-"):
                return None
            words = words[1:]
        elif name == "env":
            words = words[1:]
            while words and words[0] is not None and _ENVIRONMENT.match(words[0]):
                key, _, value = words.pop(0).partition("=")  # type: ignore[union-attr]
                variables[key] = value
            if words and (words[0] or "-").startswith("-"):
                return None
        else:
            break
    found = _named(words)
    return None if found is None else replace(found, srun=srun, variables=variables, mpi=mpi)


def _srun(words: list[str | None]) -> tuple[dict[str, str | None], list[str | None]] | None:
    known = [word if word is not None else "?" for word in words[1:]]
    options = read_options(known, SRUN)
    if options.unsure or len(options.components) > 1:
        return None
    found = {one.name: one.value for one in options.components[0]}
    if any(name.startswith(_CONTAINERS) for name in found) or "multi-prog" in found or "het-group" in found:
        return None
    head = words[1 : 1 + options.end]
    if any(word is None for word in head):  # a word that may be several, or none
        quoted = {name: None if value == "?" else value for name, value in found.items()}
        if "?" not in found.values():
            return None
        found = quoted
    return found, words[1 + options.end :]


def _named(words: Sequence[str | None]) -> Program | None:
    if not words or words[0] is None:
        return None
    first, rest = words[0], tuple(words[1:])
    name = os.path.basename(first)
    if _PYTHON.fullmatch(name):
        return _python(first, rest)
    if name in LAUNCHERS and (name != "accelerate" or rest[:1] == ("launch",)):
        python = "python" if first == name else os.path.join(os.path.dirname(first), "python")
        return _launched(LAUNCHERS[name], python, rest)
    if name in _SHELLS:
        if not rest or rest[0] is None or rest[0].startswith(("-", "+")):
            return None
        return Program("shell", first, rest[0], rest[1:])
    return Program("other", first, "", rest)


def _python(first: str, words: tuple[str | None, ...]) -> Program | None:
    while words:
        word = words[0]
        if word is None:
            return None
        if word == "-m":
            module = words[1] if len(words) > 1 else None
            if module in MODULES:
                return _launched(MODULES[module], first, words[2:])
            return Program("python", first, "", words[2:], module=module) if module else None
        if not word.startswith("-"):
            return Program("python", first, word, words[1:])
        if word in ("-X", "-W"):
            words = words[2:]
        elif re.fullmatch(r"-[uBOqbvd]+|-[XW].+", word):
            words = words[1:]
        else:
            return None  # -c, -, -I and others that change where modules are looked for
    return None


def _launched(launcher: Launcher, python: str, words: tuple[str | None, ...]) -> Program | None:
    found = launched(launcher, words)
    if found is None or found[1][0] is None:
        return None
    launch, (word, *rest), module = found
    file, module_name = ("", word or "") if module else (word or "", "")
    return Program("python", python, file, tuple(rest), launch=launch, module=module_name)
