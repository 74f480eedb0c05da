"""The command line of a submission, read back from Slurm's SubmitLine: the words of sbatch joined by blanks.

Slurm keeps no quotes (22.05 to 26.05), so a word that holds a blank looks like two. What else Slurm knows of the job
says where such a word ends: its name, its comment, the command of --wrap, the path of the script. What nothing can say
is a doubt, and told as one: nobody's job is submitted again with words that were guessed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gsub.argv import HETJOB_SEPARATOR, Setting, read_options
from gsub.sbatch_options import ALIASES, Table
from gsub.script import directives

__all__ = ["Reading", "Told", "UnreadableError", "read_words", "reading"]

_PROGRAM: Final = "sbatch"
# More blanks than that are in no path that a person typed
_LONGEST: Final = 64
# Options whose values may have blanks, and of which Slurm says nothing that can be compared
_FREE: Final = frozenset(
    {"begin", "chdir", "constraint", "error", "export", "extra", "input", "output", "prefer"}
)
_WHICH: Final = "which word is the script is not certain"


class UnreadableError(Exception):
    """What was submitted is not known from its SubmitLine; the text says why, in a clause."""


@dataclass(frozen=True, slots=True)
class Told:
    """What else is known of a submission.

    `command` is Slurm's word for the script: its path as it was typed or found, on 22.05 with the arguments behind it;
    "" for none (standard input, --wrap); None where Slurm has forgotten. `wrap` is the command of --wrap (None: it was
    a script). `submit_dir` is where sbatch ran, `script` the script's text, both "" where not known. `is_script` tells
    whether the file at an absolute path is the script that was submitted, `is_file` whether there is one at all.
    `environment` is the job's (None: not known).
    """

    name: str = ""
    comment: str | None = None
    command: str | None = None
    wrap: str | None = None
    submit_dir: str = ""
    script: str = ""
    is_script: Callable[[str], bool] = field(default=lambda path: False)
    is_file: Callable[[str], bool] = field(default=lambda path: False)
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A command line of sbatch: the words ahead of the script, the script (None: standard input or --wrap), what
    follows it. `settings` are the options in those words. `doubts`: what could as well have been otherwise, in a clause
    each; none where there is one reading only.
    """

    options: tuple[str, ...]
    settings: tuple[Setting, ...]
    script: str | None = None
    args: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    def value(self, name: str) -> str | None:
        """The value of an option, the last one where it was given twice; None where it was not."""
        values = [setting.value for setting in self.settings if setting.name == name]
        return values[-1] if values else None

    def given(self, name: str) -> bool:
        """Whether an option was given on the command line."""
        return any(setting.name == name for setting in self.settings)

    @property
    def words(self) -> tuple[str, ...]:
        """All words behind `sbatch`."""
        return (*self.options, *(() if self.script is None else (self.script,)), *self.args)


def read_words(words: tuple[str, ...], table: Table) -> Reading:
    """A command line that is known word by word. Raises UnreadableError for a heterogeneous job.

    >>> found = read_words(("-N2", "train.sh", "a b"), Table.of_all())
    >>> found.options, found.script, found.args
    (('-N2',), 'train.sh', ('a b',))
    """
    options = read_options(words, table)
    if len(options.components) > 1:
        raise UnreadableError("it is a heterogeneous job")
    rest = words[options.end :]
    return Reading(words[: options.end], options.components[0], rest[0] if rest else None, rest[1:])


def reading(line: str, told: Told, table: Table) -> Reading:
    """What a SubmitLine says. Raises UnreadableError where it is of another command, or of a heterogeneous job.

    >>> told = Told(name="a b", command="/home/ada/train.sh", submit_dir="/home/ada")
    >>> found = reading("sbatch -J a b train.sh x", told, Table.of_all())
    >>> found.options, found.script, found.args, found.doubts
    (('-J', 'a b'), 'train.sh', ('x',), ())
    """
    program, _, text = line.partition(" ")
    if os.path.basename(program) != _PROGRAM:  # noqa: PTH119 - text as Slurm has it
        raise UnreadableError(f"it was submitted by {program or 'nobody knows what'}, not by sbatch")
    pieces = text.split(" ") if text else []
    joiner = _Joiner(pieces, told, table)
    options = _longer(tuple(joiner.options()), joiner, told)
    read = read_options(options, table)
    if len(read.components) > 1 or HETJOB_SEPARATOR in options:
        raise UnreadableError("it is a heterogeneous job")
    settings = read.components[0]
    doubts = joiner.doubts
    if read.unsure or read.end < len(options):
        doubts.append("it has an option that this sbatch does not know")
    doubts += _exports(options, settings, told.environment or {})
    rest = pieces[joiner.at :]
    script: str | None = None
    args: tuple[str, ...] = ()
    if any(setting.name == "wrap" for setting in settings) or told.wrap is not None or not rest:
        if rest or (told.command and told.wrap is None):
            doubts.append("words stand where no script was")
    else:
        script, args, more = _script(rest, told, _named(settings, told, table))
        doubts += more
    return Reading(options, settings, script, args, tuple(dict.fromkeys(doubts)))


class _Joiner:
    """Reads options out of the pieces, and joins those pieces that are one value by what Slurm says of it."""

    def __init__(self, pieces: list[str], told: Told, table: Table) -> None:
        self.pieces = pieces
        self.table = table
        self.at = 0
        self.doubts: list[str] = []
        self.valued = False  # the last word is, or ends with, a value that may have blanks
        self._known = {"job-name": told.name or None, "comment": told.comment, "wrap": told.wrap}
        self._wrong: set[str] = set()

    def options(self) -> Iterator[str]:
        """The words of the options; `at` is then where the script begins."""
        while self.at < len(self.pieces):
            piece = self.pieces[self.at]
            if piece == "--":
                self.at += 1
                self.valued = False
                yield piece
                break
            if piece != HETJOB_SEPARATOR and (not piece.startswith("-") or piece == "-"):
                break
            self.at += 1
            name, attached = _valued(piece, self.table)
            self.valued = name in _FREE
            if name is None:
                yield piece
                continue
            if attached is None:
                yield piece
                if self.at < len(self.pieces):
                    yield self._value(name, self.pieces[self.at], self.at + 1)
            else:
                yield piece.removesuffix(attached) + self._value(name, attached, self.at)
        self.doubts += [f"its --{name} is not the one that Slurm has now" for name in sorted(self._wrong)]

    def _value(self, name: str, first: str, following: int) -> str:
        """The value that begins with `first` and may go on in the pieces from `following` on."""
        self.at = following
        known = self._known.get(name)
        if name == "wrap" and known is None:
            self.doubts.append("the command of --wrap is not known")
        if known is None:
            return first
        rest = " ".join([first, *self.pieces[following:]])
        if rest == known or rest.startswith(known + " "):
            self.at = following + known.count(" ")
            self._wrong.discard(name)
            return known
        self._wrong.add(name)  # unless it is given once more, and right
        return first


def _valued(piece: str, table: Table) -> tuple[str | None, str | None]:
    """The option in a word whose value stands in it or in the next, and what of the value stands in it."""
    if piece.startswith("--"):
        name, equals, attached = piece[2:].partition("=")
        found = table.candidates(name)
        if len(found) == 1 and table.long[found[0]] == "required":
            return ALIASES.get(found[0], found[0]), attached if equals else None
        return None, None
    for place, letter in enumerate(piece[1:], 2):
        option = table.short.get(letter)
        if option is None or option.argument == "optional":
            return None, None
        if option.argument == "required":
            return option.name, piece[place:] or None
    return None, None


def _longer(options: tuple[str, ...], joiner: _Joiner, told: Told) -> tuple[str, ...]:
    """The options; where Slurm's word for the script fits further on only, the last value goes on up to there."""
    rest = joiner.pieces[joiner.at :]
    if not told.command or told.wrap is not None:
        return options
    begins = [begin for begin in range(min(len(rest), _LONGEST)) if _begins(told, rest[begin:])]
    if len(begins) > 1:
        joiner.doubts.append(_WHICH)
    if (
        not begins
        or begins[0] == 0
        or not joiner.valued
        or any(word[:1] == "-" for word in rest[: begins[0]])
    ):
        return options
    joiner.at += begins[0]
    return (*options[:-1], " ".join([*options[-1:], *rest[: begins[0]]]))


def _begins(told: Told, rest: list[str]) -> bool:
    """Whether the script stands at the beginning of the pieces."""
    return any(
        _is_command(told, " ".join(rest[:end]), rest[end:]) for end in range(1, min(len(rest), _LONGEST) + 1)
    )


def _exports(
    options: tuple[str, ...], settings: tuple[Setting, ...], environment: Mapping[str, str]
) -> list[str]:
    """--export may give a variable a value with blanks, and what follows a blank may look like an option."""
    last = options[-1] if options else ""
    for setting in settings:
        if setting.name != "export" or not setting.value or last.endswith(setting.value):
            continue
        pairs = [word.partition("=") for word in setting.value.split(",")]
        if any(equals and environment.get(name) != value for name, equals, value in pairs):
            return ["a variable of --export may have had blanks in it"]
    return []


def _named(settings: tuple[Setting, ...], told: Told, table: Table) -> bool:
    """Whether the job's name was given, and so is not that of the script."""
    words = [directive.words for directive in directives(told.script)]
    names = {setting.name for line in words for setting in read_options(line, table).components[0]}
    return not told.script or "job-name" in names or any(s.name == "job-name" for s in settings)


def _script(rest: list[str], told: Told, named: bool) -> tuple[str, tuple[str, ...], list[str]]:
    """The script, its arguments, and doubts about them."""
    ends = range(1, min(len(rest), _LONGEST) + 1)
    if told.command:
        fits = [end for end in ends if _is_command(told, " ".join(rest[:end]), rest[end:])]
    elif told.command == "":
        fits = []
    else:
        fits = list(ends)
    if len(fits) > 1 and not named:
        fits = [end for end in fits if os.path.basename(" ".join(rest[:end])) == told.name] or fits  # noqa: PTH119
    if len(fits) > 1 or (fits and told.command is None and named):
        paths = {end: _path(told, " ".join(rest[:end])) for end in fits}
        same = [end for end in fits if told.is_script(paths[end])]
        # It may have been changed since, but who has both `my` and `my script.sh` in a folder?
        same = same or [end for end in fits if told.is_file(paths[end])]
        fits = same or fits
        sure = len(same) == 1 or len(rest) == 1
    else:
        sure = len(fits) == 1
    doubts = [] if sure else [_WHICH]
    end = fits[0] if fits else 1
    args = tuple(rest[end:])
    if len(args) > 1:
        doubts.append("Slurm keeps no quotes: blanks may stand within the script's arguments")
    return " ".join(rest[:end]), args, doubts


def _path(told: Told, word: str) -> str:
    return os.path.normpath(os.path.join(told.submit_dir, word))  # noqa: PTH118 - text as Slurm has it


def _is_command(told: Told, word: str, args: list[str]) -> bool:
    """Whether Slurm's word for the script is this one, with the arguments behind it or without."""
    assert told.command is not None  # noqa: S101 - the caller has looked
    behind = " " + " ".join(args) if args else ""
    commands = {told.command, told.command.removesuffix(behind)} if behind else {told.command}
    for command in commands:
        if _path(told, command) == _path(told, word):
            return True
        if "/" not in word and os.path.basename(command) == word:  # noqa: PTH119 - found on PATH, or beside --chdir
            return True
    return False


def shown(words: tuple[str, ...]) -> str:
    """Words as one may type them: quoted for the shell.

    >>> shown(("sbatch", "-J", "a b", "it's"))
    'sbatch -J \\'a b\\' \\'it\\'"\\'"\\'s\\''
    """
    return shlex.join(words)
