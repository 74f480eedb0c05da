"""A command line `gsub [our options] [sbatch options] SCRIPT [ARGS]`, split as sbatch itself would read it.

getopt_long(3) decides where an option ends and where SCRIPT begins: unique prefixes, an exact match wins,
short options in clusters, optional arguments only attached, `--`, and the first other word ends the options.
In heterogeneous jobs a word `:` stands between components; sbatch drops it wherever it looks for the script.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from gsub.sbatch_options import ALIASES, Argument, Table

OURS: Final = {
    "--watch": "follow the job after submission",
    "--dry-run": "submit nothing; show what would be asked for and sbatch's own estimate",
    "--json": "answer with one JSON object",
    "--no-preflight": "submit without looking first for what would break the job",
    "--smoke": "try the job on one GPU first; =race, =gate or =only say how",
    "--no-smoke": "no smoke run for this job",
    "--learn": "let the smoke run find out how many CPUs the job can use",
    "--workload": "=NAME: the workload that this is, for what was learnt of it; else gsub finds out",
    "--debug": "show the traceback of an unexpected error",
}
"""Our options. None is abbreviated, takes the next word, or begins or equals an option of any sbatch."""
VALUED: Final = frozenset({"--smoke", "--workload"})
"""Those that may have a value, attached by `=`."""

HETJOB_SEPARATOR: Final = ":"


@dataclass(frozen=True, slots=True)
class Setting:
    """An option that was given: its full name and its value, None where it has none."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Options:
    """The options at the head of a list of words.

    `components` has one tuple a component of a heterogeneous job, else one. `end` is the index of the first
    word that is no option, `ours` those of our words, `unsure` those of words that the table does not
    know: options of site plugins, abbreviations that releases read differently. `quiet` are the places of
    `--quiet`: index of the word, and of the letter in it (0 for the long form).
    """

    components: tuple[tuple[Setting, ...], ...]
    end: int
    ours: tuple[int, ...]
    unsure: tuple[int, ...]
    quiet: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line of gsub, split.

    Parameters
    ----------
    ours: our options, as they were typed. own: the same in their order: their names, and the values that they have.
    sbatch: the words for sbatch, the user's own without ours.
    audible: the same without `--quiet`, for when we need to hear the job's id.
    components: sbatch's options, a tuple a component of a heterogeneous job.
    script: None when the script comes from standard input or from `--wrap`.
    args: the words after SCRIPT.
    unsure: an option of sbatch that the table does not know stands ahead of SCRIPT.
    """

    ours: frozenset[str]
    sbatch: tuple[str, ...]
    audible: tuple[str, ...]
    components: tuple[tuple[Setting, ...], ...]
    script: str | None
    args: tuple[str, ...]
    unsure: bool
    own: tuple[Setting, ...] = ()

    def given(self, name: str) -> bool:
        """Whether an option of sbatch was given, in any component."""
        return any(setting.name == name for component in self.components for setting in component)

    @property
    def wrap(self) -> str | None:
        """The command of `--wrap`."""
        values = [s.value for component in self.components for s in component if s.name == "wrap"]
        return values[-1] if values else None


def split(words: Sequence[str], table: Table) -> CommandLine:
    """Split the words after `gsub`.

    >>> line = split(["-N", "2", "--watch", "train.sh", "--json"], Table.of_all())
    >>> line.sbatch, line.script, line.args, sorted(line.ours)
    (('-N', '2', 'train.sh', '--json'), 'train.sh', ('--json',), ['--watch'])
    """
    options = read_options(words, table, ours=frozenset(OURS))
    verbatim = {i: word for i, word in enumerate(words) if i not in options.ours}
    rest = tuple(words[options.end :])
    return CommandLine(
        ours=frozenset(words[i] for i in options.ours),
        sbatch=tuple(verbatim.values()),
        audible=tuple(_without_quiet(verbatim, options.quiet).values()),
        components=options.components,
        script=rest[0] if rest else None,
        args=rest[1:],
        unsure=bool(options.unsure),
        own=tuple(_setting(words[i]) for i in options.ours),
    )


def is_ours(word: str, ours: Collection[str] = frozenset(OURS)) -> bool:
    """Whether a word is an option of ours, with or without a value.

    >>> is_ours("--smoke=gate"), is_ours("--smoke"), is_ours("--watch=1"), is_ours("--smo")
    (True, True, False, False)
    """
    name, equals, _ = word.partition("=")
    return name in ours and (not equals or name in VALUED)


def _setting(word: str) -> Setting:
    name, equals, value = word.partition("=")
    return Setting(name, value if equals else None)


def read_options(words: Sequence[str], table: Table, *, ours: frozenset[str] = frozenset()) -> Options:
    """Read the options at the head of `words` as getopt_long does; never fails, since sbatch is the judge."""
    reader = _Reader(words, table)
    our_words: list[int] = []
    while (word := reader.word()) is not None:
        if word == HETJOB_SEPARATOR:
            reader.components.append([])
        elif is_ours(word, ours):
            our_words.append(reader.at)
        elif word == "--":
            reader.at += 1
            break
        elif word.startswith("--"):
            reader.long(word[2:])
        elif word.startswith("-") and word != "-":
            reader.cluster(word[1:])
        else:
            break
        reader.at += 1
    return Options(
        components=tuple(tuple(component) for component in reader.components),
        end=reader.at,
        ours=tuple(our_words),
        unsure=tuple(reader.unsure),
        quiet=tuple(reader.quiet),
    )


def _without_quiet(words: dict[int, str], quiet: tuple[tuple[int, int], ...]) -> dict[int, str]:
    kept = dict(words)
    for index, letter in reversed(quiet):  # from the right: the letters to the left keep their places
        shorter = kept[index][:letter] + kept[index][letter + 1 :] if letter else ""
        if shorter in ("", "-"):
            del kept[index]
        else:
            kept[index] = shorter
    return kept


class _Reader:
    """The place in the words, and what has been read."""

    def __init__(self, words: Sequence[str], table: Table) -> None:
        self.words = words
        self.table = table
        self.at = 0
        self.components: list[list[Setting]] = [[]]
        self.unsure: list[int] = []
        self.quiet: list[tuple[int, int]] = []

    def word(self) -> str | None:
        return self.words[self.at] if self.at < len(self.words) else None

    def long(self, text: str) -> None:
        name, equals, attached = text.partition("=")
        candidates = self.table.candidates(name)
        arities = {self.table.long[candidate] for candidate in candidates}
        if len(candidates) != 1:
            self.unsure.append(self.at)
            # Of one mind about the next word: the place of SCRIPT is sure even so.
            if arities != {"required"}:
                return
        full = candidates[0] if len(candidates) == 1 else name
        if full == "quiet":
            self.quiet.append((self.at, 0))
        self._set(full, "required" if arities == {"required"} else "none", attached if equals else None)

    def cluster(self, letters: str) -> None:
        for i, letter in enumerate(letters):
            option = self.table.short.get(letter)
            if option is None:
                self.unsure.append(self.at)
                continue
            rest = letters[i + 1 :]
            if option.name == "quiet":
                self.quiet.append((self.at, i + 1))
            if option.argument == "none":
                self._set(option.name, "none", None)
                continue
            self._set(option.name, option.argument, rest or None)
            return

    def _set(self, name: str, argument: Argument, value: str | None) -> None:
        if argument == "required" and value is None:
            self.at += 1
            while self.word() == HETJOB_SEPARATOR:
                self.at += 1
            value = self.word()
        self.components[-1].append(Setting(ALIASES.get(name, name), value))
