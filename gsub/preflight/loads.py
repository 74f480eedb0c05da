"""`module load` lines: does the site's own module command find what they load?

A child runs these lines and nothing else of the script, with the command that a shell here has: the function that is
exported to it (Lmod, Environment Modules), BASH_ENV's, or that of /etc/profile.d. Without one nothing is said.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gsub.preflight.children import child
from gsub.preflight.command import Command
from gsub.preflight.commands import commands
from gsub.preflight.paths import short
from gsub.preflight.values import MOST, Finding, Level, Submission

__all__ = ["loads"]

_SECONDS: Final = 1.8
_RUN: Final = frozenset(
    {"load", "add", "try-load", "unload", "rm", "del", "purge", "use", "unuse", "swap", "switch"}
)
"""Subcommands that are run: those that decide over what can be loaded."""
_PASSED: Final = frozenset(
    {"list", "avail", "av", "spider", "show", "display", "help", "whatis", "keyword", "search"}
)
"""Subcommands that change nothing."""
_LOADS: Final = ("load", "add")
_FLAGS: Final = frozenset({"-q", "--quiet", "-s", "--silent", "--force", "-f", "-t", "--terse"})
_PROFILES: Final = ("lmod.sh", "z00_lmod.sh", "modules.sh")
_ENVIRONMENT: Final = re.compile(
    r"(?:BASH_FUNC_(?:module|_module_raw|ml)(?:%%|\(\))|LMOD_\w+|MODULE\w*|_ModuleTable\w*|__MODULES\w*|_LMFILES_\w*|LOADEDMODULES"
    r"|PATH|HOME|USER|LOGNAME|LANG|LUA_C?PATH|LD_LIBRARY_PATH|TCLLIBPATH|CLUSTER|RSNT_\w+|ARCH)"
)
_UNKNOWN: Final = re.compile(
    r"module\(s\)[^\n]{0,60} (?:are unknown|exist but cannot be loaded as requested)|Unable to locate a modulefile"
)
"""What Lmod 6 to 8 and Environment Modules 3 to 5 say of a module that there is not."""
_NAME: Final = re.compile(r"[A-Za-z0-9][\w+./@:=-]*")
_TAGS: Final = re.compile(r"(?:\s*<[^<>]*>|\s*\([^()]*\))+$")
_MARK: Final = "\x1egsub "
_CHILD: Final = f"""
type module >/dev/null 2>&1 || for file; do
    [ "$file" = -- ] && break
    [ -r "$file" ] && . "$file" >/dev/null 2>&1
    type module >/dev/null 2>&1 && break
done
type module >/dev/null 2>&1 || exit 97
while [ "$1" != -- ]; do shift; done
shift
missed=
while [ $# -gt 0 ]; do
    number=$1
    shift
    module "${{@:1:number}}" 2>&1 </dev/null
    code=$?
    printf '\\n{_MARK}%s\\n' "$code"
    [ "$code" = 0 ] || missed=1
    shift "$number"
done
[ -z "$missed" ] || module -t avail 2>&1 </dev/null
printf '\\n{_MARK}end\\n'
"""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a module line said, its exit code, and whether it would say the same in the job."""

    text: str
    code: int
    certain: bool


def loads(submission: Submission) -> Iterator[Finding]:
    """Literal `module` lines, up to the first that is not: a module that is not there, with close matches."""
    if submission.elsewhere or not submission.inherits:
        return
    wanted = list(_lines(submission))
    if not any(words[0] in _LOADS for _, words in wanted):
        return
    environ = {k: v for k, v in submission.environ.items() if _ENVIRONMENT.fullmatch(k)}
    said = child(
        [
            "bash",
            "--noprofile",
            "--norc",
            "-c",
            _CHILD,
            "module",
            *_starts(submission),
            "--",
            *_packed(wanted),
        ],
        environ={"PATH": os.defpath, **environ, "LMOD_PAGER": "none"},
        folder=submission.folder if os.path.isdir(submission.folder) else "/",  # noqa: PTH112 - text
        seconds=_SECONDS,
    )
    pieces = said.out.split(f"\n{_MARK}")  # text, "code\ntext", ..., "code\nmodules that there are", "end"
    if len(pieces) <= 1:
        return  # no module command, or none that answers in time
    texts = [pieces[0], *(piece.partition("\n")[2] for piece in pieces[1:])]
    codes = [piece.partition("\n")[0] for piece in pieces[1:]]
    there = _available(texts[-2]) if codes[-1] == "end" else ()
    # Otherwise the job's shell gets the command, and with it the folders of modules, in its own way.
    certain = any(key.startswith("BASH_FUNC_module") for key in environ) and not _is_login(submission)
    for (command, words), text, code in zip(wanted, texts, codes, strict=False):
        if words[0] in _LOADS:
            answer = _Answer(text, int(code) if code.isdigit() else 0, certain)
            yield from _judged(submission, command, words[1:], answer, there)
        elif code != "0":
            certain = False  # a `module use` that fails here may not fail there


def _is_login(submission: Submission) -> bool:
    return any(
        word in ("-l", "--login", "-li", "-il") for word in submission.text.split("\n", 1)[0].split()[1:]
    )


def _lines(submission: Submission) -> Iterator[tuple[Command, tuple[str, ...]]]:
    """The lines that run for certain and whose words are known, as words of `module`."""
    for command in commands(submission):
        if not command.words or command.name not in ("module", "ml"):
            if command.words and command.words[0] is None:
                return  # it may do anything
            continue
        known = [word for word in command.words[1:] if word is not None and word not in _FLAGS]
        if known[:1] and known[0] in _PASSED:
            continue
        if not command.sure or None in command.words or not known:
            return
        if command.name == "ml" and known[0] not in _RUN:
            known = ["load", *known]
        if known[0] not in _RUN or any(word.startswith("-") for word in known):
            return
        if command.folder != submission.folder and any(word.startswith(".") for word in known):
            return
        yield command, tuple(known)


def _starts(submission: Submission) -> Iterator[str]:
    """Files that bring the module command, if no function does: none that are your own."""
    environ = submission.environ
    yield from _foreign(environ.get("BASH_ENV", ""))
    for key in ("LMOD_PKG", "MODULESHOME"):
        if environ.get(key):
            yield from _foreign(f"{environ[key]}/init/bash")
    for name in _PROFILES:
        yield from _foreign(f"/etc/profile.d/{name}")


def _foreign(path: str) -> Iterator[str]:
    try:
        owner = os.stat(path).st_uid  # noqa: PTH116 - text
    except OSError:
        return
    if path.startswith("/") and (owner == 0 or owner != os.getuid()):
        yield path


def _packed(wanted: Sequence[tuple[Command, tuple[str, ...]]]) -> Iterator[str]:
    for _, words in wanted:
        yield str(len(words))
        yield from words


def _available(text: str) -> tuple[str, ...]:
    """Names of modules in what `module -t avail` prints."""
    found = (_TAGS.sub("", line.strip()).rstrip("/") for line in text.splitlines())
    return tuple(dict.fromkeys(name for name in found if _NAME.fullmatch(name)))[:20_000]


def _judged(
    submission: Submission, command: Command, names: Sequence[str], answer: _Answer, there: Sequence[str]
) -> Iterator[Finding]:
    unknown = _UNKNOWN.search(answer.text) is not None  # version 3 tells it and ends with 0
    if not answer.code and not unknown:
        return
    missing = [name for name in names if unknown and any(f"{q}{name}{q}" in answer.text for q in "\"'")]
    if not missing:
        reason = next((line.strip() for line in answer.text.splitlines() if len(line.split()) > 3), "")
        what = f"'module load {short(' '.join(names))}' fails here: {reason}"
        yield submission.finding("warning", command.line, what[:MOST], "try it in a shell")
        return
    tolerant = bool(command.outputs) or submission.later
    sure: Level = "error" if answer.certain and not tolerant else "warning"
    for name in missing[:3]:
        close = _close(name, there)
        do = f"did you mean {', '.join(close)}?" if close else "'module avail' lists what there is"
        if "cannot be loaded as requested" in answer.text:
            do = f"'module spider {short(name)}' tells what to load first"
        yield submission.finding(sure, command.line, f"module load finds no {short(name)}", do)


def _close(name: str, there: Sequence[str]) -> list[str]:
    """Other versions first, then names that look alike."""
    base = name.partition("/")[0]
    same = [one for one in there if one.partition("/")[0] == base and one != name and "/" in one]
    if same:
        return difflib.get_close_matches(name, same, 3, 0.0)
    bases = difflib.get_close_matches(base, dict.fromkeys(one.partition("/")[0] for one in there), 2, 0.7)
    return [
        next((one for one in reversed(there) if one.partition("/")[0] == found), found) for found in bases
    ]
