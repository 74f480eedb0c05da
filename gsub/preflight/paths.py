"""Files and folders that command lines name: scripts, programs, inputs, where their output goes."""

# ruff: noqa: PTH110, PTH112, PTH116, PTH118, PTH120, PTH208 - paths as scripts have them

from __future__ import annotations

import difflib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Final

from gsub.preflight.children import read_file
from gsub.preflight.command import Command
from gsub.preflight.commands import commands
from gsub.preflight.launch import Program, program
from gsub.preflight.places import level, shown
from gsub.preflight.values import MOST, Finding, Submission

__all__ = ["files", "helps", "no_writing", "short"]

_SHELL_READS: Final = frozenset({"source", "."})


# --- what command lines name ----------------------------------------------------------------------------------------


def files(submission: Submission) -> Iterator[Finding]:
    """Scripts that are run, files that are sourced or read from, folders that are entered."""
    if submission.elsewhere:
        return
    for command in commands(submission):
        yield from _redirected(submission, command)
        if not command.words or command.words[0] is None:
            continue
        if command.name in _SHELL_READS:
            yield from _script(
                submission, command, command.words[1] if len(command.words) > 1 else None, "sources"
            )
        elif command.name == "cd":
            yield from _entered(submission, command)
        else:
            found = program(command)
            if found is not None:
                yield from _run(submission, command, found)


def _run(submission: Submission, command: Command, found: Program) -> Iterator[Finding]:
    if found.file:
        yield from _script(submission, command, found.file, "runs")
    elif "/" in found.interpreter:
        yield from _program(submission, command, found.interpreter)


def _script(submission: Submission, command: Command, word: str | None, does: str) -> Iterator[Finding]:
    """A file that must be read for the command to do anything."""
    path = command.path(word) if word else None
    if path is None or word is None or (does == "sources" and "/" not in word):
        return  # a bare name is looked for along PATH
    trouble = _trouble(path)
    if trouble is None:
        return
    sure = level(submission, command, path)
    if sure is None:
        return
    if does == "sources" and not (command.decisive or _is_posix(submission)):
        sure = "warning"  # bash goes on
    yield submission.finding(
        sure, command.line, f"{trouble}: {short(word)}", helps(path, submission, trouble)
    )


def _is_posix(submission: Submission) -> bool:
    return submission.text.split("\n", 1)[0].strip().endswith("/sh")


def _program(submission: Submission, command: Command, word: str) -> Iterator[Finding]:
    path = command.path(word)
    sure = level(submission, command, path) if path is not None else None
    if path is None or sure is None:
        return
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            yield submission.finding(
                sure, command.line, f"there is no {short(word)}", helps(path, submission, "no")
            )
        return
    if stat.S_ISDIR(mode):
        yield submission.finding(sure, command.line, f"{short(word)} is a folder", "name a program")
    elif stat.S_ISREG(mode) and not mode & 0o111:
        yield submission.finding(
            sure, command.line, f"{short(word)} may not be run", f"chmod +x {short(word)}"
        )


def _entered(submission: Submission, command: Command) -> Iterator[Finding]:
    word = command.words[1] if len(command.words) == 2 else None
    path = command.path(word) if word and word != "-" else None
    if path is None or not word or os.path.isdir(path):
        return
    sure = level(submission, command, path)
    if sure is not None and os.path.lexists(path) is False:
        # Without `set -e` or `|| exit` the script goes on in the wrong folder: that is told, not stopped.
        yield submission.finding(
            sure if command.decisive else "warning", command.line, f"there is no folder {short(word)}",
            helps(path, submission, "no"),
        )  # fmt: skip


def _redirected(submission: Submission, command: Command) -> Iterator[Finding]:
    for word in command.inputs:
        path = command.path(word) if word else None
        if path is None or word is None or path.startswith("/dev/"):
            continue
        trouble = _trouble(path)
        sure = level(submission, command, path) if trouble else None
        if trouble and sure:
            yield submission.finding(
                sure, command.line, f"{trouble}: {short(word)}", helps(path, submission, trouble)
            )
    for word in command.outputs:
        path = command.path(word) if word else None
        if path is None or word is None or path.startswith("/dev/"):
            continue
        folder = os.path.dirname(path)
        if not os.path.lexists(folder):
            sure = level(submission, command, folder)
            if sure:
                what = f"its output goes to a folder that is not there: {short(folder)}"
                yield submission.finding(
                    sure, command.line, what, f"mkdir -p {short(shown(folder, submission))}"
                )
        elif os.path.isdir(folder) and no_writing(folder) and not os.path.lexists(path):
            sure = level(submission, command, path)
            if sure:
                what = f"you may not write into {short(folder)}"
                yield submission.finding(sure, command.line, what, "write to a folder of yours")


# --- looking --------------------------------------------------------------------------------------------------------


def _trouble(path: str) -> str | None:
    """Why a script cannot be read; None when it can, or when nobody knows."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return "there is no such file" if error.errno in (errno.ENOENT, errno.ENOTDIR) else None
    if stat.S_ISDIR(mode):
        return "this is a folder" if not os.path.exists(os.path.join(path, "__main__.py")) else None
    if not stat.S_ISREG(mode):
        return None
    try:
        read_file(path, 1)
    except PermissionError:
        return "you may not read this file"
    except OSError:
        return None
    return None


def no_writing(folder: str) -> bool:
    """Whether you may not make files in a folder."""
    return not os.access(folder, os.W_OK | os.X_OK, effective_ids=True)


def helps(path: str, submission: Submission, trouble: str) -> str:
    """What to do about a path that is not there, or not readable: a close match."""
    if "may not" in trouble:
        return f"chmod u+r {short(shown(path, submission))}, or ask its owner"
    folder, name = os.path.split(path)
    try:
        names = sorted(os.listdir(folder))[:1000]
    except OSError:
        return "check the path"
    close = difflib.get_close_matches(name, names, 1)
    return (
        f"did you mean {short(shown(os.path.join(folder, close[0]), submission))}?"
        if close
        else "check the path"
    )


def short(word: str) -> str:
    """A word of the user's, cut."""
    return word if len(word) <= MOST else f"{word[:MOST]}..."
