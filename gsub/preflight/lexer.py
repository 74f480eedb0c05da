"""The words and operators of a shell script, as far as they can be told without running it.

Only what POSIX shells and bash agree on is read. What is not understood ends the reading: nothing is said about what
comes after it. Nothing is ever expanded here but quotes; what expansions would give is left to
`gsub.preflight.commands`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Part", "Token", "UnreadableError", "tokens"]

_OPERATORS: Final = (
    ";;&", "<<<", "<<-", "&>>", ";;", ";&", "&&", "||", "|&", "&>", "<<", "<&", "<>", ">>", ">&", ">|",
    "\n", "|", "&", ";", "(", ")", "<", ">",
)  # fmt: skip
_META: Final = frozenset(" \t\n|&;()<>")
_NAME: Final = re.compile(r"[A-Za-z_]\w*|\d")
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*|\d+")
_DEFAULT: Final = re.compile(r"([A-Za-z_]\w*|\d+):?-([^$`'\"\\{}]*)")
_TEST_END: Final = re.compile(r"[ \t\n]\]\](?=[\s;&|)]|$)")
_MOST_TOKENS: Final = 100_000


class UnreadableError(Exception):
    """The script cannot be told apart further."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word.

    `kind`: "text" (unquoted), "quoted", "variable" (its name in `text`), "arguments" (`$@`), or "dynamic" (nobody
    knows). `default` is that of `${NAME:-default}`; `quoted` tells whether a variable stands in quotes.
    """

    kind: str
    text: str = ""
    default: str | None = None
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """A word (its parts) or an operator (its text), and its line (from 1)."""

    line: int
    operator: str = ""
    parts: tuple[Part, ...] = ()


def tokens(text: str) -> Iterator[Token]:
    r"""The tokens of a script, one after the other; here-documents are left out.

    Raises UnreadableError where it is not understood.

    >>> [t.operator or t.parts[0].text for t in tokens("cd 'a b' && ls # all\n")]
    ['cd', 'a b', '&&', 'ls', '\n']
    """
    reader = _Reader(text)
    for _ in range(_MOST_TOKENS):
        token = reader.token()
        if token is None:
            return
        yield token
    raise UnreadableError("too long")


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.counted = 0
        self.documents: list[tuple[str, bool]] = []
        self.delimiter_next: str = ""

    def _line(self) -> int:
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = self.at
        return self.line

    def token(self) -> Token | None:
        text = self.text
        while self.at < len(text):
            if text[self.at] in " \t\r":
                self.at += 1
            elif text.startswith("\\\n", self.at):
                self.at += 2
            elif text[self.at] == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            else:
                break
        if self.at >= len(text):
            return None
        line = self._line()
        operator = next((one for one in _OPERATORS if text.startswith(one, self.at)), "")
        if operator in ("<", ">") and text.startswith("(", self.at + 1):
            self.at += 2
            self._skip_parens()
            return Token(line, parts=(Part("dynamic"),))
        if operator:
            self.at += len(operator)
            if operator == "\n":
                self._skip_documents()
            elif operator in ("<<", "<<-"):
                self.delimiter_next = operator
            elif operator == "(" and text.startswith("(", self.at):
                # an arithmetic command; of a subshell in a subshell nothing is told either
                self.at += 1
                self._skip_parens()
                self._skip_parens()
                return Token(line, parts=(Part("dynamic"),))
            return Token(line, operator)
        parts = self._word()
        if self.delimiter_next:
            self._expect(parts)
        elif len(parts) == 1 and parts[0].kind == "text":
            only = parts[0].text
            if only == "[[":
                closing = _TEST_END.search(text, self.at)
                if closing is None:
                    raise UnreadableError("[[ without ]]")
                self.at = closing.end()
                return Token(line, parts=(Part("text", "["),))
            if only.isdigit() and text[self.at : self.at + 1] in ("<", ">"):
                redirect = self.token()
                return None if redirect is None else Token(line, f"{only}{redirect.operator}")
        return Token(line, parts=tuple(parts))

    def _expect(self, parts: list[Part]) -> None:
        if any(part.kind not in ("text", "quoted") for part in parts):
            raise UnreadableError("a here-document's end")
        self.documents.append(("".join(part.text for part in parts), self.delimiter_next == "<<-"))
        self.delimiter_next = ""

    def _skip_documents(self) -> None:
        for word, tabs in self.documents:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if (line.lstrip("\t") if tabs else line) == word:
                    break
        self.documents = []

    def _word(self) -> list[Part]:
        parts: list[Part] = []
        text = self.text
        plain = ""
        while self.at < len(text):
            char = text[self.at]
            if char == "(" and plain.endswith("="):  # an array
                self.at += 1
                self._skip_parens()
                parts += [Part("text", plain), Part("dynamic")]
                plain = ""
                continue
            if char in _META or char == "\r":
                break
            if char == "\\":
                if not text.startswith("\\\n", self.at):
                    parts += [Part("text", plain), Part("quoted", text[self.at + 1 : self.at + 2])]
                    plain = ""
                self.at += 2
            elif char in "'\"$`":
                if plain:
                    parts.append(Part("text", plain))
                    plain = ""
                self.at += 1
                if char == "'":
                    parts.append(Part("quoted", self._until("'")))
                elif char == '"':
                    self._double(parts)
                elif char == "`":
                    self._skip_backticks()
                    parts.append(Part("dynamic"))
                else:
                    parts.append(self._dollar(quoted=False))
            else:
                plain += char
                self.at += 1
        if plain:
            parts.append(Part("text", plain))
        return [part for part in parts if part.text or part.kind != "text"]

    def _until(self, quote: str) -> str:
        end = self.text.find(quote, self.at)
        if end < 0:
            raise UnreadableError("a quotation without end")
        found = self.text[self.at : end]
        self.at = end + 1
        return found

    def _double(self, parts: list[Part]) -> None:
        parts.append(Part("quoted", ""))
        plain = ""
        while True:
            if self.at >= len(self.text):
                raise UnreadableError("a quotation without end")
            char = self.text[self.at]
            self.at += 1
            if char == '"':
                break
            if char == "\\":
                escaped = self.text[self.at : self.at + 1]
                plain += "" if escaped == "\n" else escaped if escaped in '$`"\\' else char + escaped
                self.at += 1
            elif char in "$`":
                parts.append(Part("quoted", plain))
                plain = ""
                if char == "`":
                    self._skip_backticks()
                    parts.append(Part("dynamic", quoted=True))
                else:
                    parts.append(self._dollar(quoted=True))
            else:
                plain += char
        parts.append(Part("quoted", plain))

    def _dollar(self, *, quoted: bool) -> Part:
        text = self.text
        after = text[self.at : self.at + 1]
        if after == "(":
            self.at += 1
            self._skip_parens()
            return Part("dynamic", quoted=quoted)
        if after == "{":
            self.at += 1
            return self._braces(quoted=quoted)
        if after in ("'", '"') and not quoted:
            if after == "'":
                self.at += 1
                found = self._until("'")
                return Part("dynamic") if "\\" in found else Part("quoted", found)
            return Part("quoted", "")  # $"...": the quotation follows
        if after == "@":
            self.at += 1
            return Part("arguments", quoted=quoted)
        name = _NAME.match(text, self.at)
        if name:
            self.at = name.end()
            return Part("variable", name[0], quoted=quoted)
        if after in ("*", "#", "?", "$", "!", "-"):
            self.at += 1
            return Part("dynamic", quoted=quoted)
        return Part("quoted", "$")

    def _braces(self, *, quoted: bool) -> Part:
        begin, depth = self.at, 1
        while depth:
            if self.at >= len(self.text):
                raise UnreadableError("${ without }")
            char = self.text[self.at]
            self.at += 1
            if char == "\\":
                self.at += 1
            elif char == "{":
                depth += 1
            elif char == "}":
                depth -= 1
            elif char in "'\"`(" and not _DEFAULT.match(self.text, begin):
                raise UnreadableError("an expansion with quotes")
        inner = self.text[begin : self.at - 1]
        if inner == "@":
            return Part("arguments", quoted=quoted)
        if _PLAIN.fullmatch(inner):
            return Part("variable", inner, quoted=quoted)
        default = _DEFAULT.fullmatch(inner)
        if default:
            return Part("variable", default[1], default[2], quoted=quoted)
        return Part("dynamic", quoted=quoted)

    def _skip_backticks(self) -> None:
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 2 if char == "\\" else 1
            if char == "`":
                return
        raise UnreadableError("a backtick without its pair")

    def _skip_parens(self) -> None:
        """To the parenthesis that closes the one just read; comments and here-documents in it are beyond us."""
        depth = 1
        while depth:
            if self.at >= len(self.text):
                raise UnreadableError("a parenthesis without its pair")
            char = self.text[self.at]
            self.at += 1
            if char == "\\":
                self.at += 1
            elif char == "'":
                self._until("'")
            elif char == '"':
                self._double([])
            elif char == "`":
                self._skip_backticks()
            elif char == "(":
                depth += 1
            elif char == ")":
                depth -= 1
            elif char == "#" and self.text[self.at - 2] in " \t\n;":
                raise UnreadableError("a comment within parentheses")
            elif char == "<" and self.text.startswith("<", self.at):
                raise UnreadableError("a here-document within parentheses")
