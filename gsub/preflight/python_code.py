"""The Python files that a script runs: they compile, and what they import is there in the Python that runs them."""

# ruff: noqa: PTH113, PTH118, PTH119 - paths as scripts have them

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gsub.preflight.children import child, read_file
from gsub.preflight.command import Command
from gsub.preflight.commands import commands
from gsub.preflight.environments import conda_prefix
from gsub.preflight.launch import Program, program
from gsub.preflight.modules import module_path
from gsub.preflight.places import certain, level, shown
from gsub.preflight.shell import interpreter
from gsub.preflight.values import MOST, Finding, Level, Submission

__all__ = ["IN_ANY_VERSION", "python"]

IN_ANY_VERSION: Final = re.compile(
    r"was never closed|unterminated (?:triple-quoted )?string|unexpected indent|expected an indented block"
    r"|unindent does not match|closing parenthesis '.' does not match|unmatched '.'|unexpected EOF"
)
"""Errors of syntax that no version of Python 3 takes for correct."""
_MOST_FILES: Final = 60
_MOST_PROGRAMS: Final = 4
_INSIDE: Final = Path(__file__).with_name("inside.py")


def python(submission: Submission) -> Iterator[Finding]:
    """Each Python file that a command line runs, and the modules beside it that it imports."""
    if submission.elsewhere:
        return
    seen: set[tuple[str, str]] = set()
    if os.path.basename((interpreter(submission.text) or ("",))[0]).startswith("python"):
        yield from _batch_script(submission)
        return
    for command in commands(submission):
        found = program(command)
        if command.python.kind in ("conda", "folder") and found is not None and found.kind == "python":
            yield from _environment(submission, command)
        if found is None or found.kind != "python":
            continue
        path = command.path(found.file) if found.file else module_path(command.folder, found.module)
        if command.folder is None or len(seen) >= _MOST_PROGRAMS or not (path or "x.py").endswith(".py"):
            continue
        path = path or os.path.join(command.folder, found.module)
        where = _interpreter(submission, command, found)
        if (path, where or "") not in seen and (where or os.path.isfile(path)):
            seen.add((path, where or ""))
            yield from _file(submission, command, found, path, where)


def _environment(submission: Submission, command: Command) -> Iterator[Finding]:
    """The environment that was activated before this command is there."""
    one = command.python
    if one.kind == "conda":
        prefix = conda_prefix(one.where, command.variables, submission)
        if prefix != "":
            return
        sure: Level = "error" if command.sure and command.decisive and not submission.later else "warning"
        what = f"there is no conda environment {one.where[:MOST]}"
        yield submission.finding(sure, one.line, what, "'conda env list' lists them")


def _interpreter(submission: Submission, command: Command, found: Program) -> str | None:
    """The Python that runs it, as a path; None where nobody knows."""
    word, one = found.interpreter, command.python
    if "PATH" in found.variables or "PYTHONPATH" in found.variables or "PYTHONHOME" in command.variables:
        return None
    if "/" in word:
        path = command.path(word)
        return path if path is not None and _is_program(path) else None
    if one.kind == "folder":
        path = os.path.join(one.where, word)
        return path if _is_program(path) else None
    if one.kind == "conda":
        prefix = conda_prefix(one.where, command.variables, submission)
        path = os.path.join(prefix or "", "bin", word)
        return path if prefix and _is_program(path) else None
    if one.kind == "path":
        return shutil.which(word, path=submission.environ.get("PATH", os.defpath))
    return None


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _ask(
    where: str, what: Mapping[str, str], paths: str | None, submission: Submission, folder: str
) -> Mapping[str, Any] | None:
    """What a Python says of a program, asked in the folder that it is started in."""
    asked = {
        **what,
        "paths": [one for one in (paths or "").split(":") if one],
        "home": submission.home,
        "most": _MOST_FILES,
    }
    environ = {k: v for k, v in submission.environ.items() if k in ("PATH", "HOME", "LD_LIBRARY_PATH")} | {
        "LC_ALL": "C",
        "PYENV_VERSION": submission.environ.get("PYENV_VERSION", ""),
    }
    environ = {k: v for k, v in environ.items() if v}
    said = child(
        [where, "-I", "-S", "-B", str(_INSIDE)],
        given=json.dumps(asked).encode(),
        environ=environ,
        folder=folder,
    )
    try:
        answer = json.loads(said.out) if said.code == 0 else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _file(
    submission: Submission, command: Command, found: Program, path: str, where: str | None
) -> Iterator[Finding]:
    if not found.module:
        try:
            read_file(path, 1)
        except OSError:
            return  # `paths` tells of it
    folder = command.folder or "/"
    asked = {"file": "" if found.module else path, "module": found.module}
    answer = _ask(where, asked, command.python.paths, submission, folder) if where else None
    own = answer is not None
    if answer is None:
        if found.module and not os.path.isfile(path):
            return
        answer = _ask(sys.executable, asked, None, submission, folder)
        if answer is None:
            return
    sure = level(submission, command, path)
    if sure is None and not command.makes(path) and not submission.later:
        sure = "warning"
    if sure is None:
        return
    broken = False
    for file, line, what in _rows(answer, "syntax"):
        broken = True
        stable = own or (IN_ANY_VERSION.search(what) is not None and "f-string" not in what)
        how = f"Python cannot compile it: {what}"
        yield submission.finding(
            sure if stable else "warning",
            line,
            how,
            "mend this line or the one before it",
            shown(file, submission),
        )
    for file, line, what in _rows(answer, "relative"):
        how = f"the import of {what} leads out of its package"
        if file == path and not found.module:
            how = f"the import of {what} is relative, and the file is run by itself, as no part of a package"
        yield submission.finding(
            sure, line, how, "run it with python -m PACKAGE.MODULE", shown(file, submission)
        )
    if broken or not own:
        return
    loose = answer.get("loose") or command.python.paths is None or found.variables.get("PYTHONPATH")
    if not loose:
        yield from _imports(submission, command, answer, sure, where)


def _imports(
    submission: Submission,
    command: Command,
    answer: Mapping[str, Any],
    sure: Level,
    where: str | None,
) -> Iterator[Finding]:
    """What cannot be imported: modules that are not there, names that modules of the user's own do not have."""
    shared = certain(str(answer.get("prefix", "")), submission)
    for file, line, name in _rows(answer, "missing"):
        what = f"no module {name} in the Python that runs it ({_told(where, submission)})"
        ahead = command.line - submission.shift
        helps = f"install it there, or activate the environment that has it ahead of line {ahead}"
        if not file:  # the one that `python -m` names
            yield submission.finding(sure if shared else "warning", command.line, what, helps)
            continue
        yield submission.finding(sure if shared else "warning", line, what, helps, shown(file, submission))
    for file, line, what in _rows(answer, "names"):
        how = f"cannot import {what}, which does not have it"
        yield submission.finding(
            sure, line, how, "check the name and where it is defined", shown(file, submission)
        )


def _told(where: str | None, submission: Submission) -> str:
    return shown(where or "python", submission)[:MOST]


def _rows(answer: Mapping[str, Any], name: str) -> Iterator[tuple[str, int, str]]:
    """Rows of the child's answer, which is not trusted: it was made of a user's files."""
    rows = answer.get(name)
    for row in (rows if isinstance(rows, list) else [])[:20]:
        if (
            isinstance(row, list)
            and len(row) == 3
            and isinstance(row[0], str)
            and isinstance(row[1], int)
            and isinstance(row[2], str)
        ):
            yield row[0], row[1], row[2][:MOST]


def _batch_script(submission: Submission) -> Iterator[Finding]:
    """A batch script in Python: it is submitted as it is now, so that an error stays one."""
    try:
        compile(submission.text, submission.name, "exec", dont_inherit=True)
    except SyntaxError as error:
        what = f"{type(error).__name__}: {error.msg}"
        stable = IN_ANY_VERSION.search(what) is not None and "f-string" not in what
        yield submission.finding(
            "error" if stable else "warning", error.lineno or 0, f"Python cannot compile it: {what[:MOST]}",
            "mend this line or the one before it",
        )  # fmt: skip
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return
