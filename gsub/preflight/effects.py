"""What a command changes of what is known: its folder, its variables, its Python, the files that may be there."""

# ruff: noqa: PTH120 - paths as scripts have them

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from gsub.preflight.command import QUIET, Command, Python
from gsub.preflight.known import ASSIGNMENT, Known
from gsub.preflight.simple import Simple

__all__ = ["take_in"]

_MADE_BY: Final = frozenset({"mkdir", "touch"})


def take_in(known: Known, simple: Simple, command: Command) -> None:
    """A command has run, perhaps: `known` is what is known behind it."""
    name, words, maybe = command.name, command.words, simple.nested
    for output in command.outputs:
        known.made.append(None if output is None else command.path(output))
    if name in ("export", "declare", "typeset", "readonly", "local"):
        _exported(known, words[1:], simple, sure=not maybe)
    elif name in ("unset", "read"):
        for word in words[1:]:
            if word:
                known.unknown.add(word)
                known.variables.pop(word, None)
                if word.startswith("SLURM_JOB"):
                    known.sure = False  # what srun starts from here on is a job of its own
            else:
                known.unknown.update(known.variables)
    elif name == "shift":
        known.arguments = None
    elif name == "printf" and words[1:2] == ("-v",):
        known.assign({words[2] or "": None} if len(words) > 2 else {}, sure=False)
    elif name == "cd" or name in ("pushd", "popd"):
        target = words[1] if len(words) == 2 else None
        if name == "cd" and len(words) == 1:
            target = known.submission.home
        there = target is not None and target != "-" and not maybe and simple.after != "|"
        known.folder = command.path(target) if there and target is not None else None
    elif name == "set":
        if _sets_arguments(words[1:]):
            known.arguments = None
        _options(known, words[1:], sure=not maybe)
    elif name in ("source", "."):
        _sourced(known, command, maybe=maybe)
    elif name in ("module", "ml", "spack", "eb"):
        if words[1:2] not in (("list",), ("avail",)):
            known.python = Python("unknown", paths=None)
    elif name in ("conda", "mamba", "micromamba"):
        _conda(known, command, maybe=maybe)
    elif name == "deactivate":
        known.python = Python("unknown", paths=known.python.paths)
    elif name == "eval" or (words and not name):
        known.lost()
    elif name in _MADE_BY:
        for word in words[1:]:
            if word is None:
                known.made.append(None)
            elif not word.startswith("-"):
                known.made.append(command.path(word))
    elif name not in QUIET or (name == "sleep" and maybe):  # a loop that waits, for others' files too
        known.made.append(None)


def _exported(known: Known, words: Iterable[str | None], simple: Simple, *, sure: bool) -> None:
    for number, word in enumerate(words, 1):
        if word is None:
            head = simple.words[number][0].text if number < len(simple.words) else ""
            match = ASSIGNMENT.match(head)
            if match:
                known.assign({match[1]: None}, sure=False)
            else:
                known.unknown.update(known.variables)
        elif ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            known.assign({name: value}, sure=sure)


def _sets_arguments(words: Iterable[str | None]) -> bool:
    """Whether `set` is given new arguments of the script: `set -- a b`."""
    named = False
    for word in words:
        if word is None or word == "--" or not (named or word.startswith(("-", "+"))):
            return True
        named = not named and re.fullmatch(r"[-+][a-zA-Z]*o", word) is not None
    return False


def _options(known: Known, words: Iterable[str | None], *, sure: bool) -> None:
    previous = ""
    for word in words:
        if word is None:
            known.stops = False
        elif previous in ("-o", "+o") and word == "errexit":
            known.stops = previous == "-o" and sure
        elif re.fullmatch(r"-[a-zA-Z]*e[a-zA-Z]*", word):
            known.stops = sure
        elif re.fullmatch(r"\+[a-zA-Z]*e[a-zA-Z]*", word):
            known.stops = False
        previous = "-o" if word and re.fullmatch(r"-[a-zA-Z]*o", word) else word or ""


def _sourced(known: Known, command: Command, *, maybe: bool) -> None:
    word = command.words[1] if len(command.words) > 1 else None
    path = command.path(word) if word else None
    if path is not None and path.endswith("/bin/activate") and not maybe:
        if len(command.words) == 2:
            known.python = Python("folder", os.path.dirname(path), command.line, known.python.paths)
        elif command.words[2]:  # conda's own: source BASE/bin/activate NAME
            known.python = Python("conda", command.words[2], command.line, known.python.paths)
        return
    if path is not None and path.endswith(("/etc/profile.d/conda.sh", "/etc/profile.d/mamba.sh")):
        base = path.rsplit("/etc/profile.d/", 1)[0]
        known.variables["CONDA_BASE"] = base
        return
    folder = known.folder
    known.lost()
    if word and word.endswith(
        ("/profile", "/.bashrc", "/modules.sh", "/bash.sh", "/bash", "lmod.sh", "/.bash_profile")
    ):
        # start-up files of the machine move nowhere and make nothing
        known.folder, known.sure = folder, True
        known.made.pop()


def _conda(known: Known, command: Command, *, maybe: bool) -> None:
    words = command.words
    if len(words) > 1 and words[1] == "activate" and not maybe:
        name = words[2] if len(words) == 3 else "base" if len(words) == 2 else None
        if name is not None and known.python.kind != "unknown":
            known.python = Python("conda", name, command.line, known.python.paths)
            return
    if len(words) > 1 and words[1] in ("info", "list", "env", "--version", "config"):
        return
    known.python = Python("unknown", paths=None)
    if len(words) > 1 and words[1] in ("run", "install", "create", None):
        known.made.append(None)
