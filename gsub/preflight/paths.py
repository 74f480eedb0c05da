"""Files and folders: those that command lines name, and those that the job's output goes to."""

# ruff: noqa: PTH110, PTH112, PTH116, PTH118, PTH120, PTH208 - paths as scripts have them

from __future__ import annotations

import difflib
import errno
import os
import re
import stat
from collections.abc import Iterator
from typing import Final

from gsub.preflight.children import child, read_file
from gsub.preflight.command import Command
from gsub.preflight.commands import commands
from gsub.preflight.launch import Program, program
from gsub.preflight.places import certain, level, shown
from gsub.preflight.values import MOST, Finding, Level, Submission

__all__ = ["files", "output", "space"]

_INPUT: Final = re.compile(
    r"--?(?:data|dataset|input|train|val|valid|validation|test|eval|config|cfg|conf|resume|load|ckpt|checkpoint|pretrained"
    r"|tokenizer|vocab|deepspeed)(?:[-_](?:file|path|dir|folder|root|config|data|csv|from|model|json|yaml|in))*"
)
"""Options whose value a program reads, when it is a path that exists."""
_FILE: Final = re.compile(
    r".*\.(?:ya?ml|json|toml|ini|csv|tsv|txt|h5|hdf5|npz|npy|pt|pth|parquet|jsonl|bin|tar|zip|gz|py)"
)
_MAKES_NONE: Final = (22, 5)
"""The last release seen that makes no folders for output files."""
_MAKES: Final = (24, 11)
"""The first one seen that does."""
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
    for option, value in _options(found.args):
        path = command.path(value)
        if path is not None and _INPUT.fullmatch(option):
            yield from _input(submission, command, option, path)


def _options(args: tuple[str | None, ...]) -> Iterator[tuple[str, str]]:
    for number, word in enumerate(args):
        if word is None or not word.startswith("-"):
            continue
        name, equals, value = word.partition("=")
        if equals:
            yield name, value
        elif number + 1 < len(args) and (after := args[number + 1]) and not after.startswith("-"):
            yield name, after


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
        sure, command.line, f"{trouble}: {_short(word)}", _helps(path, submission, trouble)
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
                sure, command.line, f"there is no {_short(word)}", _helps(path, submission, "no")
            )
        return
    if stat.S_ISDIR(mode):
        yield submission.finding(sure, command.line, f"{_short(word)} is a folder", "name a program")
    elif stat.S_ISREG(mode) and not mode & 0o111:
        yield submission.finding(
            sure, command.line, f"{_short(word)} may not be run", f"chmod +x {_short(word)}"
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
            sure if command.decisive else "warning", command.line, f"there is no folder {_short(word)}",
            _helps(path, submission, "no"),
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
                sure, command.line, f"{trouble}: {_short(word)}", _helps(path, submission, trouble)
            )
    for word in command.outputs:
        path = command.path(word) if word else None
        if path is None or word is None or path.startswith("/dev/"):
            continue
        folder = os.path.dirname(path)
        if not os.path.lexists(folder):
            sure = level(submission, command, folder)
            if sure:
                what = f"its output goes to a folder that is not there: {_short(folder)}"
                yield submission.finding(
                    sure, command.line, what, f"mkdir -p {_short(shown(folder, submission))}"
                )
        elif os.path.isdir(folder) and _no_writing(folder) and not os.path.lexists(path):
            sure = level(submission, command, path)
            if sure:
                what = f"you may not write into {_short(folder)}"
                yield submission.finding(sure, command.line, what, "write to a folder of yours")


def _input(submission: Submission, command: Command, option: str, path: str) -> Iterator[Finding]:
    """A file or folder named as input: one that is there must be readable; one that is not may yet be made."""
    sure = level(submission, command, path)
    if sure is None:
        return
    if not os.path.lexists(path):
        if _FILE.fullmatch(path):
            what = f"{option} names a file that is not there: {_short(shown(path, submission))}"
            yield submission.finding("warning", command.line, what, _helps(path, submission, "no"))
        return
    trouble = _unreadable(path)
    if trouble:
        what = f"{option} names what you may not read: {_short(shown(path, submission))}"
        yield submission.finding(sure, command.line, what, trouble)
    elif _is_empty(path):
        what = f"{option} names an empty file: {_short(shown(path, submission))}"
        yield submission.finding("warning", command.line, what, "look whether it was written to its end")


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


def _unreadable(path: str) -> str:
    """What keeps a file or folder from being read; "" where nothing does, or it is neither."""
    try:
        if os.path.isdir(path):
            with os.scandir(path) as entries:
                next(entries, None)
        else:
            read_file(path, 4096)
    except PermissionError:
        return "ask its owner for the right to read it, or name another"
    except OSError:
        return ""
    return ""


def _is_empty(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and not found.st_size


def _no_writing(folder: str) -> bool:
    return not os.access(folder, os.W_OK | os.X_OK, effective_ids=True)


def _helps(path: str, submission: Submission, trouble: str) -> str:
    if "may not" in trouble:
        return f"chmod u+r {_short(shown(path, submission))}, or ask its owner"
    folder, name = os.path.split(path)
    try:
        names = sorted(os.listdir(folder))[:1000]
    except OSError:
        return "check the path"
    close = difflib.get_close_matches(name, names, 1)
    return (
        f"did you mean {_short(shown(os.path.join(folder, close[0]), submission))}?"
        if close
        else "check the path"
    )


def _short(word: str) -> str:
    return word if len(word) <= MOST else f"{word[:MOST]}..."


# --- where output goes ----------------------------------------------------------------------------------------------


def _targets(submission: Submission) -> Iterator[tuple[str, int, str, str]]:
    """Option, line (0: command line), the value and the folder of the job's output files, where it is certain."""
    for name in ("output", "error"):
        option = submission.option(name)
        if option is None or not option.value:
            continue
        folder = os.path.dirname(os.path.join(submission.folder, option.value))
        if "%" in folder or "\\" in folder:
            continue
        line = int(option.source.rpartition(" ")[2]) if option.source.startswith("script line ") else 0
        yield name, line, option.value, os.path.normpath(folder)


def output(submission: Submission) -> Iterator[Finding]:
    """Slurm ends a job at once, without a word, when it cannot open its output file; newer ones make the folder."""
    if submission.elsewhere or submission.later:
        return
    for name, line, value, folder in _targets(submission):
        sure: Level = "error" if certain(folder, submission) else "warning"
        helps = f"mkdir -p {_short(shown(folder, submission))}"
        if not os.path.lexists(folder):
            makes = _makes_folders(submission) if certain(folder, submission) else True
            if makes is not True:
                what = f"--{name}={_short(value)}: its folder is not there, and Slurm does not make it"
                yield submission.finding(sure if makes is False else "warning", line, what, helps)
        elif not os.path.isdir(folder):
            yield submission.finding(
                sure, line, f"--{name}={_short(value)}: {_short(folder)} is no folder", "name another"
            )
        elif _no_writing(folder):
            file = os.path.join(submission.folder, value)
            if "%" in value or not os.path.lexists(file):
                what = f"--{name}={_short(value)}: you may not write into {_short(shown(folder, submission))}"
                yield submission.finding(sure, line, what, "write to a folder of yours")


def _makes_folders(submission: Submission) -> bool | None:
    """Whether this Slurm makes the folders of output files itself; None where that was not seen."""
    folder = f"{submission.slurm_folder}/" if submission.slurm_folder else ""
    said = child([f"{folder}sbatch", "--version"], environ=submission.environ)
    found = re.search(r"(\d\d)\.(\d\d)", said.out)
    if said.code != 0 or found is None:
        return None
    release = (int(found[1]), int(found[2]))
    return False if release <= _MAKES_NONE else True if release >= _MAKES else None


def space(submission: Submission) -> Iterator[Finding]:
    """What file systems say of space and inodes; those with quotas for folders tell of the quota so."""
    if submission.elsewhere:
        return
    folders = {submission.folder: 0, **{folder: line for _, line, _, folder in _targets(submission)}}
    for folder, line in folders.items():
        try:
            found = os.statvfs(folder)
        except OSError:
            continue
        if found.f_blocks and not found.f_bavail:
            what = f"there is no space left in {_short(folder)}"
        elif found.f_files and not found.f_favail:
            what = f"no more files can be made in {_short(folder)}: its inodes are used up"
        else:
            continue
        yield submission.finding("warning", line, what, "remove what is not needed, or write elsewhere")
