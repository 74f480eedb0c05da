"""The simple commands among a script's tokens, and what stands around each: compounds, functions, `&&` and `||`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gsub.preflight.lexer import Part, Token, UnreadableError, tokens

__all__ = ["FUNCTION", "Simple", "simple_commands"]

FUNCTION: Final = "function"
"""The first word of what stands for a function's definition; its name is the second."""
_OPENING: Final = {"if": "fi", "while": "done", "until": "done", "for": "done", "select": "done", "case": "esac",
                   "{": "}"}  # fmt: skip
_CLOSING: Final = frozenset({*_OPENING.values(), ")"})
_BETWEEN: Final = frozenset({"then", "else", "elif", "do", "time"})
_REDIRECTIONS: Final = frozenset({"<", ">", ">>", ">|", "<>", "<&", ">&", "&>", "&>>", "<<<", "<<", "<<-"})
_MOST: Final = 2000
"""Commands of a script that are looked at; of a longer one nothing is said beyond."""
_GOES_ON: Final = frozenset({"&&", "||", "|", "|&"})


@dataclass(slots=True)
class Simple:
    """A command as the tokens have it, before anything is known.

    Parameters
    ----------
    nested: it stands in a compound: a condition, a loop, a group, a subshell.
    function: it stands in a function, and is run only where that is called.
    before, after: the operators between it and its neighbours in the list.
    """

    line: int
    words: list[tuple[Part, ...]] = field(default_factory=list)
    redirects: list[tuple[str, tuple[Part, ...]]] = field(default_factory=list)
    nested: bool = False
    function: bool = False
    before: str = ""
    after: str = ""

    @property
    def background(self) -> bool:
        """Nobody waits for it at once."""
        return self.after == "&"


def simple_commands(text: str) -> list[Simple]:
    """The commands in order; where the script cannot be read any further, one of which nothing is known ends them."""
    reader = _Reader()
    try:
        for token in tokens(text):
            reader.take(token)
            if len(reader.found) > _MOST:
                raise UnreadableError("too long")
        reader.end("")
        if reader.stack:
            raise UnreadableError(reader.stack[-1])
    except UnreadableError:
        reader.found.append(Simple(0, [(Part("dynamic"),)]))  # whatever comes after may do anything
    return reader.found


class _Reader:
    def __init__(self) -> None:
        self.found: list[Simple] = []
        self.stack: list[str] = []
        self.current: Simple | None = None
        self.operator = ""
        self.redirect = ""
        self.header = ""
        """Between `for` or `case` and its end of line."""
        self.naming = ""
        """ "name" after `function`, "(" after `NAME (`, "body" until the body begins."""
        self.body = 0
        """The depth at which a function's body stands, 0 outside."""

    def take(self, token: Token) -> None:
        if token.operator:
            self._operator(token)
        elif self.redirect:
            current = self.current or self._begin(token.line)
            current.redirects.append((self.redirect, token.parts))
            self.redirect = ""
        elif self.header:
            if self.header == "case" and _bare(token) == "in":
                self.header = ""
        elif (self.current is not None and self.current.words) or not self._reserved(token):
            current = self.current or self._begin(token.line)
            current.words.append(token.parts)

    def end(self, after: str) -> None:
        """The command ends, by an operator or the end of the script."""
        if self.current is None and after == "\n" and self.operator in _GOES_ON:
            return  # the list goes on in the next line
        if self.current is not None:
            self.current.after = after
            if self.current.words or self.current.redirects:
                self.found.append(self.current)
        self.current = None
        self.operator = after

    def _begin(self, line: int, *, nested: bool = False) -> Simple:
        self.current = Simple(
            line, nested=nested or bool(self.stack), function=bool(self.body), before=self.operator
        )
        return self.current

    def _operator(self, token: Token) -> None:
        plain = token.operator.lstrip("0123456789")
        if plain in _REDIRECTIONS:
            self.redirect = token.operator
        elif plain == "(":
            self._opened(token)
        elif plain == ")":
            self._closed()
        else:
            if plain in ("\n", ";"):
                self.header = ""
            self.end(plain)

    def _opened(self, token: Token) -> None:
        current = self.current
        if self.naming == "body":
            self.naming = "body("
        elif current is not None and len(current.words) == 1 and not self.header:
            self._defined(token.line, current.words[0])
            self.current = None
            self.naming = "("
        else:
            self.end("")
            self.stack.append(")")

    def _closed(self) -> None:
        if self.naming in ("(", "body("):
            self.naming = "body"
            return
        self.end("")
        if self.stack and self.stack[-1] == ")":
            self._pop()
        elif not self.stack or self.stack[-1] != "esac":  # the end of a pattern of `case`
            raise UnreadableError(")")

    def _pop(self) -> None:
        self.stack.pop()
        if len(self.stack) < self.body:
            self.body = 0

    def _defined(self, line: int, name: tuple[Part, ...]) -> None:
        """A function is defined: its name is no program's any more."""
        self.found.append(Simple(line, [(Part("text", FUNCTION),), name], nested=True))

    def _reserved(self, token: Token) -> bool:
        """Whether the first word of a command is the shell's own; compounds are opened and closed."""
        word = _bare(token)
        if word in _OPENING:
            self.stack.append(_OPENING[word])
            if self.naming == "body":
                self.naming, self.body = "", self.body or len(self.stack)
            self.header = word if word in ("for", "select", "case") else ""
            if word in ("for", "select"):
                variable: list[tuple[Part, ...]] = [(Part("text", "read"),), (Part("dynamic"),)]
                self.found.append(Simple(token.line, variable, nested=True, function=bool(self.body)))
            self.current = None
        elif word in _CLOSING:
            if not self.stack or self.stack[-1] != word:
                raise UnreadableError(word)
            inside = bool(self.body)
            self._pop()
            self._begin(token.line, nested=True).function = inside  # for its redirections
        elif self.naming == "name":
            self._defined(token.line, token.parts)
            self.naming = "body"
        elif self.naming:
            raise UnreadableError("a function")
        elif word == FUNCTION:
            self.naming = "name"
        elif word == "!":
            self._begin(token.line, nested=True)
        else:
            return word in _BETWEEN
        return True


def _bare(token: Token) -> str:
    """A word without quotes or expansions; "" for any other."""
    return token.parts[0].text if len(token.parts) == 1 and token.parts[0].kind == "text" else ""
