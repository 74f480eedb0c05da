"""What is known while a script is read: variables, the folder, the Python; and what words come to with that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gsub.preflight.command import Python
from gsub.preflight.lexer import Part
from gsub.preflight.simple import Simple
from gsub.preflight.values import Submission

__all__ = ["ASSIGNMENT", "Known"]

ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)\+?=")
_GLOB: Final = re.compile(r"[*?\[]|\{[^}]*[,.][^}]*\}")


class Known:
    """What is known at one point of a script; a command changes it (`gsub.preflight.effects`)."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        known = submission.environ if submission.inherits else {}
        self.variables: dict[str, str] = {k: v for k, v in known.items() if not k.startswith("SLURM")}
        self.variables["HOME"] = submission.home
        self.variables["SLURM_SUBMIT_DIR"] = submission.cwd or submission.folder
        self.unknown: set[str] = set()
        self.arguments: tuple[str, ...] | None = submission.args
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

    def words(self, simple: Simple) -> list[str | None]:
        """A command's words; None for one that is not known, or may be several or none."""
        words: list[str | None] = []
        for parts in simple.words:
            if len([p for p in parts if p.text or p.kind != "quoted"]) == 1:
                only = next(p for p in parts if p.text or p.kind != "quoted")
                if only.kind == "arguments":
                    words += [None] if self.arguments is None else self.arguments
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
                if _GLOB.search(text) and text not in ("[", "]"):
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
            args = self.arguments
            if name == "0" or args is None:
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

    def redirects(self, simple: Simple) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
        """The files that a command reads from and those that it writes to."""
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

    def assign(self, assigned: Mapping[str, str | None], *, sure: bool) -> None:
        """Variables are set; one that is None, or perhaps not set at all, is not known any more."""
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

    def python_with(self, assigned: Mapping[str, str | None]) -> Python:
        """The Python of a command with variables of its own."""
        python = self.python
        if "PATH" in assigned:
            python = replace(python, kind="unknown")
        if "PYTHONPATH" in assigned:
            python = replace(python, paths=assigned["PYTHONPATH"])
        return python

    def lost(self) -> None:
        """Anything may have happened: folder, variables, files."""
        self.folder = None
        self.sure = False
        self.python = Python("unknown", paths=None)
        self.made.append(None)
