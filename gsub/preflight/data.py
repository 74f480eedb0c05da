"""Data that command lines name: can it be read where the script says that it is?

A sample is read, by a child that may be left behind: the first 4 KiB of a file, or of the first file of a folder.
"""

# ruff: noqa: PTH119 - paths as scripts have them

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gsub.preflight import sample
from gsub.preflight.children import child
from gsub.preflight.command import Command
from gsub.preflight.commands import commands
from gsub.preflight.launch import program
from gsub.preflight.paths import helps, short
from gsub.preflight.places import level, shown
from gsub.preflight.values import Finding, Level, Submission

__all__ = ["data"]

SECONDS: Final = 1.5
"""What reading all samples may take; a file system that is slower is told of."""
_MOST: Final = 12
_WHAT: Final = (
    "data|dataset|input|train|val|valid|validation|test|eval|config|cfg|conf|resume|load|ckpt|checkpoint|pretrained"
    "|tokenizer|vocab|deepspeed|corpus|images?|imagenet|shards?|manifest"
)
_KIND: Final = "files?|paths?|dirs?|folders?|root|config|data|csv|from|model|json|yaml|in|prefix|list"
_INPUT: Final = re.compile(rf"(?:{_WHAT})(?:[-_.](?:{_WHAT}|{_KIND})|(?:{_KIND}))*")
"""Names of options whose value a program reads, if there is such a path: --data, --train_file, data.root=..."""
_OUTPUT: Final = re.compile(
    r"(?:^|[-_.])(?:out|output|save|log|logs|logging|write|cache|dump|export|results?)(?:$|[-_.])"
)
_FILE: Final = re.compile(
    r".*\.(?:ya?ml|json|toml|ini|csv|tsv|txt|h5|hdf5|npz|npy|pt|pth|parquet|jsonl|bin|tar|zip|gz|py)"
)
_DENIED: Final = (errno.EACCES, errno.EPERM)
_BROKEN: Final = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNREFUSED, errno.EREMOTEIO, errno.ENOTCONN,
                  errno.EHOSTDOWN, errno.ELOOP)  # fmt: skip
_CONTAINERS: Final = frozenset(
    {"apptainer", "singularity", "docker", "podman", "enroot", "shifter", "ch-run", "udocker"}
)
"""What their words name may lie in the container."""
_LFS: Final = b"version https://git-lfs.github.com/spec/"
_PAGE: Final = re.compile(rb"\s*<(?:!doctype html|html)", re.IGNORECASE)
_PAGES: Final = (".html", ".htm", ".xhtml", ".xml", ".warc", ".txt", ".md", ".csv", ".tsv")


def data(submission: Submission) -> Iterator[Finding]:
    """Files and folders that options like `--data` name, and inputs: there, not empty, and readable."""
    if submission.elsewhere:
        return
    named: dict[str, tuple[Command, str, Level]] = {}
    for command in commands(submission):
        for option, value in _named(command):
            path = command.path(value)
            sure = level(submission, command, path) if path is not None else None
            if path is not None and sure is not None and path not in named and len(named) < _MOST:
                named[path] = (command, option, sure)
    if not named:
        return
    said = child(
        [sys.executable, "-I", "-S", "-B", sample.__file__],
        given=json.dumps(list(named)).encode(),
        environ={"LC_ALL": "C.UTF-8"},
        seconds=SECONDS,
    )
    told = dict(_answers(said.out))
    if said.code is None and not said.late:
        told = {path: sample.told(path) for path in named}  # no child to be had
    late = said.late and said.out.startswith("{}\n")
    for path, (command, option, sure) in named.items():
        if path in told:
            yield from (
                submission.finding(kind, command.line, f"{option}{what}", do)
                for kind, what, do in _judged(submission, sure, path, told[path])
            )
        elif late:
            late = False  # those behind it were not looked at
            what = f"{option}: {short(shown(path, submission))} did not answer within {SECONDS:g} s"
            yield submission.finding(
                "warning", command.line, what, "see whether its file system is up, or only slow"
            )


def _named(command: Command) -> Iterator[tuple[str, str]]:
    """Options and their values that name what is read: `--data PATH`, `--data=PATH`, `data.root=PATH`."""
    found = program(command)
    if found is None or os.path.basename(found.interpreter) in _CONTAINERS:
        return
    args = found.args
    for number, word in enumerate(args):
        if word is None:
            continue
        name, equals, value = word.partition("=")
        bare = name.lstrip("-+")
        if not _INPUT.fullmatch(bare.lower()) or _OUTPUT.search(bare.lower()):
            continue
        if equals and (name.startswith("-") or "/" in value):
            yield name, value
        elif word.startswith("-"):
            for after in args[number + 1 : number + 9]:  # --data A B C
                if not after or after.startswith("-"):
                    break
                yield name, after


def _answers(out: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for line in out.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            return  # cut off
        if isinstance(said, dict) and isinstance(said.get("path"), str):
            yield said["path"], said


def _judged(
    submission: Submission, sure: Level, path: str, said: Mapping[str, Any]
) -> Iterator[tuple[Level, str, str]]:
    """What is wrong with a path: how sure, in words behind the option's name, and what to do."""
    trouble, name = int(said["errno"]), short(shown(path, submission))
    file = str(said["file"])
    inner = f" ({short(os.path.relpath(file, path))} in it)" if file not in ("", path) else ""
    if trouble in (errno.ENOENT, errno.ENOTDIR):
        if inner:
            yield "warning", f": {name}{inner} leads nowhere", "mend the link, or remove it"
        elif _FILE.fullmatch(path):
            yield "warning", f" names a file that is not there: {name}", helps(path, submission, "no")
    elif trouble in _DENIED:
        # Of a folder one file was tried: a program may read others.
        do = "ask its owner for the right to read it, or name another"
        yield "warning" if inner else sure, f" names what you may not read: {name}{inner}", do
    elif trouble in _BROKEN:
        what = f": reading {name}{inner} fails: {os.strerror(trouble)}"
        yield "warning", what, "see whether its file system is well"
    elif not trouble:
        for what, do in _content(said, file):
            yield "warning", f": {name}{inner} {what}", do


def _content(said: Mapping[str, Any], file: str) -> Iterator[tuple[str, str]]:
    """What the first bytes tell."""
    head = bytes.fromhex(str(said["head"]))
    if not int(said["bytes"]):
        yield "is empty", "look whether it was written to its end"
    elif head.startswith(_LFS):
        yield "is a pointer of Git LFS, not the data", "git lfs pull"
    elif _PAGE.match(head) and not file.lower().endswith(_PAGES):
        yield "is a page of HTML, as a failed download leaves it", "fetch it again"
