"""The batch script by itself: does its own shell understand it, does Slurm read its `#SBATCH` lines?"""

# ruff: noqa: PTH110, PTH112, PTH117, PTH119, PTH120 - paths as scripts have them

from __future__ import annotations

import difflib
import os
import re
import shutil
from collections.abc import Iterator
from typing import Final

from gsub.argv import read_options
from gsub.preflight.children import child, shell_environment
from gsub.preflight.places import certain
from gsub.preflight.values import MOST, Finding, Submission
from gsub.sbatch_options import Table
from gsub.script import MAGIC, directives

__all__ = ["first_line", "interpreter", "line_ends", "option_lines", "options", "syntax"]

_SHELLS: Final = frozenset({"bash", "sh", "dash", "ksh", "zsh"})
_KNOWN: Final = _SHELLS | {"python", "python2", "python3", "tcsh", "csh", "perl", "Rscript", "env"}
_SAID: Final = re.compile(r"(?:^|: )(?:line )?(\d+): (.+)")
_LEAVES: Final = re.compile(r"^(?:exit|exec)\b", re.MULTILINE)
_NEARLY: Final = re.compile(r"#\s*(\S+?)(?:[\s:=]|(?=--)|$)")
_ALIAS: Final = re.compile(r"^\s*alias\s|expand_aliases", re.MULTILINE)


def interpreter(text: str) -> tuple[str, ...]:
    """The words of the first line behind `#!`; `env` is looked through.

    >>> interpreter("#!/usr/bin/env -S bash -e\\n"), interpreter("#! /bin/sh\\n"), interpreter("echo\\n")
    (('bash', '-e'), ('/bin/sh',), ())
    """
    first = text.split("\n", 1)[0].rstrip("\r")
    if not first.startswith("#!"):
        return ()
    words = first[2:].split()
    if words and os.path.basename(words[0]) == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    return tuple(words)


def syntax(submission: Submission) -> Iterator[Finding]:
    """`bash -n` and its like: the shell reads the whole script and runs nothing."""
    words = interpreter(submission.text)
    name = os.path.basename(words[0]) if words else ""
    if name not in _SHELLS:
        return
    program = words[0] if os.path.isabs(words[0]) else shutil.which(name, path=submission.environ.get("PATH"))
    if program is None or "\r\n" in submission.text or "\0" in submission.text:
        return
    extended = ["-O", "extglob"] if name == "bash" and "extglob" in submission.text else []
    given = submission.text.encode("utf-8", "surrogateescape")
    said = child([program, *extended, "-n"], given=given, environ=shell_environment(submission.environ))
    if said.code is None or said.code < 0 or said.code > 3:
        return
    last = submission.text.rstrip("\n").count("\n") + 1
    for found, what in _complaints(said.err):
        number = min(found, last)  # what is missing at the end is told of the line after it
        if said.code == 0 or submission.elsewhere:
            yield submission.finding("warning", number, f"{name} says: {what}", "see whether this is meant")
            continue
        # What stands behind an unconditional exit is never read; and aliases may change what words mean.
        unread = any(
            submission.text.count("\n", 0, m.start()) + 1 < number for m in _LEAVES.finditer(submission.text)
        )
        unsure = unread or _ALIAS.search(submission.text) is not None
        yield submission.finding(
            "warning" if unsure else "error",
            number,
            f"{name} does not understand the script: {what}",
            _help(what),
        )
        return


def _complaints(said: str) -> Iterator[tuple[int, str]]:
    for line in said.splitlines():
        found = _SAID.search(line)
        if found and found[2][:1] != "`":
            yield int(found[1]), found[2].removeprefix("syntax error: ")[:MOST]


def _help(what: str) -> str:
    if "EOF" in what or "end of file" in what or "Unterminated" in what:
        return "something is opened and not closed: a quotation, a parenthesis, an if without fi, a loop without done"
    return "mend this line or the one before it"


def first_line(submission: Submission) -> Iterator[Finding]:
    """The line `#!`: is it there, and is the program that it names?"""
    words = interpreter(submission.text)
    if not words:
        return
    path = words[0]
    if not os.path.isabs(path) or os.path.exists(path) or submission.elsewhere:
        return
    name = os.path.basename(path)
    system = os.path.dirname(path) in ("/bin", "/usr/bin")
    close = difflib.get_close_matches(
        name, ("bash", "sh", "zsh", "python3", "dash", "ksh", "tcsh", "env"), 1, 0.7
    )
    known = name in _KNOWN
    sure = (system and close and not known and os.path.isdir("/bin")) or certain(path, submission)
    helps = (
        f"did you mean #!/bin/{close[0]}?"
        if system and close and not known
        else "name a program that the nodes have"
    )
    yield submission.finding(
        "error" if sure and not submission.later else "warning", 1, f"there is no {path} here", helps
    )


def line_ends(submission: Submission) -> Iterator[Finding]:
    """What sbatch takes for no script: line ends of DOS, bytes that are no text, no `#!`."""
    if not submission.text.startswith("#!"):
        yield submission.finding(
            "error", 1, "the script does not begin with #!", "make '#!/bin/bash' the first line"
        )
    if "\r\n" in submission.text:
        line = submission.text.count("\n", 0, submission.text.index("\r\n")) + 1
        yield submission.finding(
            "error", line, "the script has the line ends of DOS", "sed -i 's/\\r$//' SCRIPT"
        )
    if "\0" in submission.text:
        line = submission.text.count("\n", 0, submission.text.index("\0")) + 1
        yield submission.finding(
            "error", line, "the script is not text", "submit a shell script that starts the program"
        )


def option_lines(submission: Submission) -> Iterator[Finding]:
    """Lines that look like `#SBATCH` and are not read as such."""
    begun = False
    for number, line in enumerate(submission.text.split("\n"), 1):
        if line.startswith(MAGIC):
            if begun and line[len(MAGIC) :].lstrip().startswith("-"):
                yield submission.finding(
                    "warning", number, "this #SBATCH line stands behind the first command, and sbatch does not read it",
                    "put it ahead of the first command, or take it out",
                )  # fmt: skip
            continue
        bare = line.strip()
        if bare and not bare.startswith("#"):
            begun = True
            continue
        near = _NEARLY.match(bare)
        if near is None or begun or bare.startswith("##") or "-" not in bare:
            continue
        word = near[1].upper().rstrip(":")
        rest = bare[near.end(1) :].lstrip(" :=\t")
        alike = word == "SBATCH" or (
            bare[1:2].isalpha()
            and 5 <= len(word) <= 8
            and difflib.SequenceMatcher(None, word, "SBATCH").ratio() >= 0.8
        )
        if alike and rest.startswith("-"):
            yield submission.finding(
                "warning", number, f"sbatch reads only lines that begin with #SBATCH, and this one begins with"
                f" {line[:12].split(' -')[0].strip()}", "write #SBATCH at the very start of the line",
            )  # fmt: skip


def options(submission: Submission) -> Iterator[Finding]:
    """Words of `#SBATCH` lines that no sbatch of this site reads as an option."""
    table = Table.of_all()
    doubted = [
        (one, place) for one in directives(submission.text) for place in read_options(one.words, table).unsure
    ]
    if not doubted:
        return
    from gsub.commands.submit import installed_table

    table = installed_table(submission.environ, submission.slurm_folder)
    if "nodes" not in table.long:
        return
    for one in directives(submission.text):
        for place in read_options(one.words, table).unsure:
            word = one.words[place].partition("=")[0]
            close = difflib.get_close_matches(word.lstrip("-"), table.long, 1)
            several = word.startswith("--") and len(table.candidates(word[2:])) > 1
            what = (
                f"{word} is an abbreviation of several options" if several else f"sbatch has no option {word}"
            )
            helps = (
                "write it in full"
                if several
                else f"did you mean --{close[0]}?"
                if close
                else "'sbatch --help' lists them"
            )
            yield submission.finding("error", one.line, what[:MOST], helps)
