"""The simple commands of a script with what is known where each one runs: its folder, its Python, its certainty.

A narrow reader, not a shell. What is dynamic is None; what stands in a condition, loop, function or subshell may not
run, or run otherwise; what an earlier line may have changed is not sure any more. Every doubt makes a finding weaker,
never stronger.
"""

# ruff: noqa: PTH117, PTH118, PTH119, PTH120 - paths as scripts have them

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gsub.preflight.lexer import Part
from gsub.preflight.simple import FUNCTION, Simple, simple_commands
from gsub.preflight.values import Submission

__all__ = ["Command", "Python", "commands"]

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)\+?=")
_GLOB: Final = re.compile(r"[*?\[]|\{[^}]*[,.][^}]*\}")

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
_FILTERS: Final = frozenset({"tee", "grep", "cat", "sed", "awk", "tail", "head", "ts", "sort", "wc"})
_PASSING: Final = frozenset(
    {"cd", "source", ".", "mkdir", "export", "module", "ml", "conda", "echo", "set", "date", ":", "true"}
)
"""Commands that nobody uses as a question: what stands behind them and `&&` is meant to be run."""
_LEAVING: Final = frozenset({"exit", "return", "die", "fail", "error", "abort"})
_MADE_BY: Final = frozenset({"mkdir", "touch"})


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


def commands(submission: Submission) -> tuple[Command, ...]:
    """The simple commands of the script, in order, as far as it can be read."""
    return tuple(_Walk(submission, simple_commands(submission.text)).run())


class _Walk:
    """What is known, command by command."""

    def __init__(self, submission: Submission, simple: list[Simple]) -> None:
        self.submission = submission
        self.simple = simple
        known = submission.environ if submission.inherits else {}
        self.variables: dict[str, str] = {k: v for k, v in known.items() if not k.startswith("SLURM")}
        self.variables["HOME"] = submission.home
        self.variables["SLURM_SUBMIT_DIR"] = submission.cwd or submission.folder
        self.unknown: set[str] = set()
        self.folder: str | None = submission.folder
        shebang = submission.text.split("\n", 1)[0].split()
        login = any(word in ("-l", "--login", "-li", "-il") for word in shebang[1:])
        paths = known.get("PYTHONPATH", "")
        self.python = (
            Python("unknown", paths=None) if login or not submission.inherits else Python(paths=paths)
        )
        self.sure = True
        self.stops = any(word.startswith("-") and "e" in word for word in shebang[1:]) and not login
        self.made: list[str | None] = []
        self.functions: set[str] = set()

    def run(self) -> Iterable[Command]:
        found: list[tuple[Simple, Command]] = []
        for number, simple in enumerate(self.simple):
            if simple.function:
                continue
            simple.nested = simple.nested or self._perhaps(number)
            words = self._words(simple)
            if words[:1] == [FUNCTION]:
                self.functions.update(word for word in words[1:] if word)
                continue
            assigned: dict[str, str | None] = {}
            while (
                words
                and words[0] is not None
                and _ASSIGNMENT.match(words[0])
                and _assigns(simple, len(assigned))
            ):
                name, _, value = words.pop(0).partition("=")  # type: ignore[union-attr]
                assigned[name.rstrip("+")] = None if name.endswith("+") else value
            while words and words[0] is None and _assigns(simple, len(assigned)):
                head = simple.words[len(assigned)][0].text
                assigned[head.partition("=")[0].rstrip("+")] = None
                words.pop(0)
            if not words and not simple.redirects:
                self._assign(assigned, sure=not simple.nested)
                continue
            if words and words[0] in self.functions:
                words = [None]  # it does what it does
            inputs, outputs = self._redirects(simple)
            command = Command(
                simple.line,
                tuple(words),
                {k: v for k, v in {**self.variables, **assigned}.items() if v is not None},
                inputs,
                outputs,
                self.folder,
                self._python_with(assigned),
                self.sure and not simple.nested and not simple.background and not self._excused(number),
                self.stops or self._otherwise(number) == "leaves",
                tuple(self.made),
            )
            found.append((simple, command))
            self._after(simple, command)
            if simple.nested or simple.before in ("&&", "||"):
                continue
            leaves = command.name == "exit" or (command.name == "exec" and len(words) > 1)
            if leaves and self.sure and simple.after in ("\n", ";", ""):
                break  # what comes after is not run
        return self._decided(found)

    # --- words ------------------------------------------------------------------------------------------------------

    def _words(self, simple: Simple) -> list[str | None]:
        words: list[str | None] = []
        for parts in simple.words:
            if len([p for p in parts if p.text or p.kind != "quoted"]) == 1:
                only = next(p for p in parts if p.text or p.kind != "quoted")
                if only.kind == "arguments":
                    words += self.submission.args
                    continue
            value = self._value(parts)
            bare = not any(part.kind == "quoted" or part.quoted for part in parts)
            if value == "" and bare:
                continue  # an unquoted empty word is none
            words.append(value)
        return words

    def _value(self, parts: tuple[Part, ...]) -> str | None:
        found = ""
        for number, part in enumerate(parts):
            if part.kind == "quoted":
                found += part.text
            elif part.kind == "text":
                text = part.text
                if _GLOB.search(text):
                    return None
                if not number and text.startswith("~"):
                    if text[1:2] not in ("", "/"):
                        return None
                    text = self.submission.home + text[1:]
                elif "=~" in text or ":~" in text:
                    return None
                found += text
            elif part.kind == "variable":
                value = self._variable(part)
                if value is None or (not part.quoted and re.search(r"[\s*?\[]", value)):
                    return None
                found += value
            else:
                return None
        return found

    def _variable(self, part: Part) -> str | None:
        name = part.text
        if name.isdigit():
            args = self.submission.args
            if name == "0":
                return None
            value = args[int(name) - 1] if int(name) <= len(args) else ""
            return value or part.default or ""
        if name == "PWD":
            return self.folder
        if name in self.unknown or (name.startswith("SLURM") and name not in self.variables):
            return None
        if self.variables.get(name):
            return self.variables[name]
        if name in self.variables or (
            self.submission.inherits and self.sure and self.python.kind != "unknown"
        ):
            return part.default if part.default is not None else self.variables.get(name)
        return None

    def _redirects(self, simple: Simple) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
        inputs: list[str | None] = []
        outputs: list[str | None] = []
        for operator, parts in simple.redirects:
            plain = operator.lstrip("0123456789")
            value = self._value(parts)
            if plain == "<":
                inputs.append(value)
            elif plain in (">", ">>", ">|", "&>", "&>>") or (
                plain == ">&" and value and value.strip("-0123456789") != ""
            ):
                outputs.append(value)
        return tuple(inputs), tuple(outputs)

    # --- what a command changes -------------------------------------------------------------------------------------

    def _assign(self, assigned: Mapping[str, str | None], *, sure: bool) -> None:
        for name, value in assigned.items():
            if value is None or not sure:
                self.unknown.add(name)
                self.variables.pop(name, None)
            else:
                self.unknown.discard(name)
                self.variables[name] = value
            if name == "PATH":
                self.python = replace(self.python, kind="unknown")
            if name == "PYTHONPATH":
                self.python = replace(self.python, paths=value if sure else None)

    def _python_with(self, assigned: Mapping[str, str | None]) -> Python:
        python = self.python
        if "PATH" in assigned:
            python = replace(python, kind="unknown")
        if "PYTHONPATH" in assigned:
            python = replace(python, paths=assigned["PYTHONPATH"])
        return python

    def _lost(self) -> None:
        """Anything may have happened: folder, variables, files."""
        self.folder = None
        self.sure = False
        self.python = Python("unknown", paths=None)
        self.made.append(None)

    def _after(self, simple: Simple, command: Command) -> None:
        name, words, maybe = command.name, command.words, simple.nested
        for output in command.outputs:
            self.made.append(None if output is None else command.path(output))
        if name in ("export", "declare", "typeset", "readonly", "local"):
            self._exported(words[1:], simple, sure=not maybe)
        elif name in ("unset", "read"):
            for word in words[1:]:
                if word:
                    self.unknown.add(word)
                    self.variables.pop(word, None)
                else:
                    self.unknown.update(self.variables)
        elif name == "cd" or name in ("pushd", "popd"):
            target = words[1] if len(words) == 2 else None
            if name == "cd" and len(words) == 1:
                target = self.submission.home
            known = target is not None and target != "-" and not maybe and simple.after != "|"
            self.folder = command.path(target) if known and target is not None else None
        elif name == "set":
            self._options(words[1:], sure=not maybe)
        elif name in ("source", "."):
            self._sourced(command, maybe=maybe)
        elif name in ("module", "ml", "spack", "eb"):
            if words[1:2] not in (("list",), ("avail",)):
                self.python = Python("unknown", paths=None)
        elif name in ("conda", "mamba", "micromamba"):
            self._conda(command, maybe=maybe)
        elif name == "deactivate":
            self.python = Python("unknown", paths=self.python.paths)
        elif name == "eval" or (words and not name):
            self._lost()
        elif name in _MADE_BY:
            for word in words[1:]:
                if word is None:
                    self.made.append(None)
                elif not word.startswith("-"):
                    self.made.append(command.path(word))
        elif name not in QUIET:
            self.made.append(None)

    def _exported(self, words: Iterable[str | None], simple: Simple, *, sure: bool) -> None:
        for number, word in enumerate(words, 1):
            if word is None:
                head = simple.words[number][0].text if number < len(simple.words) else ""
                match = _ASSIGNMENT.match(head)
                if match:
                    self._assign({match[1]: None}, sure=False)
                else:
                    self.unknown.update(self.variables)
            elif _ASSIGNMENT.match(word):
                name, _, value = word.partition("=")
                self._assign({name: value}, sure=sure)

    def _options(self, words: Iterable[str | None], *, sure: bool) -> None:
        previous = ""
        for word in words:
            if word is None:
                self.stops = False
            elif previous in ("-o", "+o") and word == "errexit":
                self.stops = previous == "-o" and sure
            elif re.fullmatch(r"-[a-zA-Z]*e[a-zA-Z]*", word):
                self.stops = sure
            elif re.fullmatch(r"\+[a-zA-Z]*e[a-zA-Z]*", word):
                self.stops = False
            previous = "-o" if word and re.fullmatch(r"-[a-zA-Z]*o", word) else word or ""

    def _sourced(self, command: Command, *, maybe: bool) -> None:
        word = command.words[1] if len(command.words) > 1 else None
        path = command.path(word) if word else None
        if path is not None and path.endswith("/bin/activate") and not maybe:
            if len(command.words) == 2:
                self.python = Python("folder", os.path.dirname(path), command.line, self.python.paths)
            elif command.words[2]:  # conda's own: source BASE/bin/activate NAME
                self.python = Python("conda", command.words[2], command.line, self.python.paths)
            return
        if path is not None and path.endswith(("/etc/profile.d/conda.sh", "/etc/profile.d/mamba.sh")):
            base = path.rsplit("/etc/profile.d/", 1)[0]
            self.variables["CONDA_BASE"] = base
            return
        folder = self.folder
        self._lost()
        if word and word.endswith(
            ("/profile", "/.bashrc", "/modules.sh", "/bash.sh", "/bash", "lmod.sh", "/.bash_profile")
        ):
            # start-up files of the machine move nowhere and make nothing
            self.folder, self.sure = folder, True
            self.made.pop()

    def _conda(self, command: Command, *, maybe: bool) -> None:
        words = command.words
        if len(words) > 1 and words[1] == "activate" and not maybe:
            name = words[2] if len(words) == 3 else "base" if len(words) == 2 else None
            if name is not None and self.python.kind != "unknown":
                self.python = Python("conda", name, command.line, self.python.paths)
                return
        if len(words) > 1 and words[1] in ("info", "list", "env", "--version", "config"):
            return
        self.python = Python("unknown", paths=None)
        if len(words) > 1 and words[1] in ("run", "install", "create", None):
            self.made.append(None)

    # --- what decides -----------------------------------------------------------------------------------------------

    def _excused(self, number: int) -> bool:
        """Whether the list goes on when the command fails: `A || B`, where B does not leave."""
        return self._otherwise(number) == "goes on"

    def _otherwise(self, number: int) -> str:
        """What `||` behind the command's list does: "" without one, "leaves", or "goes on"."""
        at = number
        while at < len(self.simple) - 1 and self.simple[at].after in ("&&", "|", "|&"):
            at += 1
        if self.simple[at].after != "||":
            return ""
        for one in self.simple[at + 1 : at + 4]:  # `|| exit`, `|| { echo ...; exit 1; }`
            head = one.words[0] if one.words else ()
            if len(head) == 1 and head[0].text in _LEAVING:
                return "leaves"
            if not (head and head[0].text in QUIET) or (one.before != "||" and not one.nested):
                break
        return "goes on"

    def _perhaps(self, number: int) -> bool:
        """Whether a command is run only as another one ends: `[ -f x ] && python x`."""
        at = number
        while at > 0 and self.simple[at].before in ("&&", "||", "|", "|&"):
            if self.simple[at].before == "||":
                return True
            ahead = self.simple[at - 1].words
            head = _text(ahead[0]) if ahead else ""
            if self.simple[at].before == "&&" and head not in _PASSING:
                return True
            at -= 1
        return False

    def _decided(self, found: list[tuple[Simple, Command]]) -> Iterable[Command]:
        working = [n for n, (_, command) in enumerate(found) if not _is_quiet(command)]
        last = working[-1] if working else -1
        for number, (simple, command) in enumerate(found):
            piped = simple.after in ("|", "|&")
            filters = False
            if piped:
                at = number + 1
                while at < len(found) and found[at][0].before in ("|", "|&"):
                    if found[at][1].name not in _FILTERS:
                        break
                    at += 1
                else:
                    filters = True
                if at < len(found) and found[at][0].before not in ("|", "|&"):
                    filters = True
            rest = [
                n for n in working if n > number and not (found[n][1].name in _FILTERS and found[n][0].before)
            ]
            is_last = not rest and number <= max(last, number)
            chained = simple.after == "&&"
            decisive = (command.decisive and not chained and not piped) or (
                is_last and (not piped or filters)
            )
            yield replace(command, decisive=decisive)


def _assigns(simple: Simple, number: int) -> bool:
    """Whether a word begins with `NAME=` outside quotes."""
    if number >= len(simple.words) or not simple.words[number]:
        return False
    first = simple.words[number][0]
    return first.kind == "text" and _ASSIGNMENT.match(first.text) is not None


def _is_quiet(command: Command) -> bool:
    return (
        command.name in QUIET and not (command.name in ("env", "command") and len(command.words) > 1)
    ) or not command.words


def _text(parts: tuple[Part, ...]) -> str:
    return parts[0].text if len(parts) == 1 and parts[0].kind == "text" else ""
