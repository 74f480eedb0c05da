"""Signatures: what the tools of the field print when something fails, as data that a sysadmin can read and extend.

A file is TOML with three kinds of entries: `signature` (a pattern for one line of a log), `exception` (for the last
line of a Python traceback) and `purpose` (what a stack frame was doing). docs/signatures.md has every key. Ours are
the files of `signatures/`; a site names its own in its site file (`failures.signatures`).

>>> rules = load()
>>> rules.reason_of("torch-cuda-oom")
'gpu_oom'

Patterns are RE2's: their time is linear in the length of the line, whatever the pattern, and whatever the log.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import re2

from prolog_epilog.failures import signature_file
from prolog_epilog.failures.literals import MIN_LITERAL, Underivable, required_literals
from prolog_epilog.failures.taxonomy import REASONS
from site_configs.kinds import did_you_mean, quoted

__all__ = [
    "MEANINGS",
    "PACKAGED",
    "TIERS",
    "Entry",
    "ExceptionRule",
    "Meaning",
    "Purpose",
    "Rules",
    "Signature",
    "SignatureError",
    "SignatureTier",
    "check",
    "compiled",
    "entries_of",
    "exception_line",
    "load",
    "load_files",
]

SignatureTier: TypeAlias = Literal[
    "decisive",
    "explicit",
    "implicit",
    "cascade",
    "benign",
    "handled",
    "cleanup",
    "ended_well",
    "failed_end",
    "progress",
]
Meaning: TypeAlias = Literal[
    "read", "write", "checkpoint", "output", "download", "import", "init", "exec", "shm"
]

TIERS: Final[Mapping[str, str]] = {
    "decisive": "required",  # the scheduler's own word
    "explicit": "required",  # names a cause
    "implicit": "required",  # a consequence that may be all there is
    "cascade": "required",  # reports of a lost peer, launchers' summaries
    "failed_end": "optional",  # says that it ended badly, not why
    "benign": "absent",  # looks like trouble and is none
    "handled": "absent",  # what came just before was dealt with
    "cleanup": "absent",  # what follows is clean-up
    "ended_well": "absent",  # the run ended as it should
    "progress": "absent",  # work was done
}
"""Every tier, and whether its entries name a reason."""
MEANINGS: Final = ("read", "write", "checkpoint", "output", "download", "import", "init", "exec", "shm")
"""What a frame does; `exec` starts another program, `shm` makes memory that processes share."""

PACKAGED: Final = Path(__file__).parent / "signatures"
"""Our own files."""
_MAX_BYTES: Final = 1 << 20
_MAX_ENTRIES: Final = 5000
_MAX_PATTERN: Final = 2000
_MAX_TEXT: Final = 600
_MAX_NAME: Final = 100
_MAX_LINE: Final = 4096
_MAX_LIST: Final = 64
_WEIGHTS: Final = range(1, 10)


class SignatureError(Exception):
    """A file of signatures is wrong: `file`, `entry` (its name or number), `key`, what is `wrong`, what to do."""

    def __init__(self, file: str, entry: str, key: str, wrong: str, remedy: str) -> None:
        self.file, self.entry, self.key, self.wrong, self.remedy = file, entry, key, wrong, remedy
        place = ": ".join(part for part in (file, entry, key) if part)
        super().__init__(f"{place}: {wrong}\n{remedy}")


@functools.cache
def _options() -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes: a log's encoding is not to be relied on
    options.never_capture = True  # only where it matched is asked, which the DFA answers
    options.log_errors = False
    return options


_QUOTES: Final = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"'})
_COMPILED: Final[dict[str, re2._Regexp]] = {}


def compiled(pattern: str) -> re2._Regexp:
    """The pattern, compiled once for bytes. Typographic quotes are plain ones, as `text` makes them in logs.

    Raises `re2.error`.
    """
    known = _COMPILED.get(pattern)
    if known is None:
        known = _COMPILED[pattern] = re2.compile(pattern.translate(_QUOTES).encode(), _options())
    return known


def _found(pattern: str, text: str) -> bool:
    return compiled(pattern).search(text.translate(_QUOTES).encode()) is not None


@dataclass(frozen=True, slots=True)
class Signature:
    """A pattern that says something when a line of a log holds it.

    `literals`: every line that the pattern matches holds one of them (all lower case, and so compared, if the pattern
    begins with ``(?i)``). `weight` from 1 to 9 says how specific it is.
    """

    name: str
    tier: SignatureTier
    pattern: str
    reason: str = ""
    literals: tuple[str, ...] = ()
    advice: str = ""
    tool: str = ""
    source: str = ""
    weight: int = 5
    test: tuple[str, ...] = field(default=(), repr=False)
    never: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ignores_case(self) -> bool:
        """Whether the pattern matches letters of either case."""
        return self.pattern.startswith("(?i)")

    def found_in(self, line: str) -> bool:
        """Whether a line says it."""
        return _found(self.pattern, line)


@dataclass(frozen=True, slots=True)
class ExceptionRule:
    """What an exception means: by its class (`types`: last dotted components, "*" any), its message, what was done."""

    name: str
    types: tuple[str, ...]
    reason: str
    message: str = ""
    purpose: Meaning | None = None
    tier: SignatureTier = "explicit"
    advice: str = ""
    tool: str = ""
    source: str = ""
    weight: int = 5
    test: tuple[str, ...] = field(default=(), repr=False)
    never: tuple[str, ...] = field(default=(), repr=False)

    def says(self, kind: str, message: str) -> bool:
        """Whether it speaks of this exception: `kind` with or without its module, the purpose aside."""
        if "*" not in self.types and kind.rpartition(".")[2] not in self.types:
            return False
        return not self.message or _found(self.message, message)


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a stack frame ("file:function:source line") was doing."""

    name: str
    frame: str
    means: Meaning
    weight: int = 5
    tool: str = ""
    source: str = ""
    test: tuple[str, ...] = field(default=(), repr=False)
    never: tuple[str, ...] = field(default=(), repr=False)

    def found_in(self, frame: str) -> bool:
        """Whether this frame is of it."""
        return _found(self.frame, frame)


Entry: TypeAlias = "Signature | ExceptionRule | Purpose"


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: `load` makes each once
class Rules:
    """All that is known of failures' words, in the order of the files; a name is unique among all kinds."""

    signatures: tuple[Signature, ...] = ()
    exceptions: tuple[ExceptionRule, ...] = ()
    purposes: tuple[Purpose, ...] = ()

    def __len__(self) -> int:
        return len(self.signatures) + len(self.exceptions) + len(self.purposes)

    def reason_of(self, name: str) -> str:
        """The reason that the entry of this name gives ("" if none). Raises KeyError."""
        for rule in (*self.signatures, *self.exceptions):
            if rule.name == name:
                return rule.reason
        raise KeyError(name)


# The keys of each kind: their type, and whether they must be there.
_KEYS: Final[Mapping[str, Mapping[str, tuple[type, bool]]]] = {
    "signature": {
        "name": (str, True),
        "tier": (str, True),
        "pattern": (str, True),
        "reason": (str, False),
        "literal": (list, False),
        "advice": (str, False),
        "tool": (str, False),
        "source": (str, False),
        "weight": (int, False),
        "test": (list, False),
        "never": (list, False),
    },
    "exception": {
        "name": (str, True),
        "types": (list, True),
        "reason": (str, True),
        "message": (str, False),
        "purpose": (str, False),
        "tier": (str, False),
        "advice": (str, False),
        "tool": (str, False),
        "source": (str, False),
        "weight": (int, False),
        "test": (list, False),
        "never": (list, False),
    },
    "purpose": {
        "name": (str, True),
        "frame": (str, True),
        "means": (str, True),
        "weight": (int, False),
        "tool": (str, False),
        "source": (str, False),
        "test": (list, False),
        "never": (list, False),
    },
}
_LENGTHS: Final = {"name": _MAX_NAME, "pattern": _MAX_PATTERN, "message": _MAX_PATTERN, "frame": _MAX_PATTERN}
_LISTED_LENGTHS: Final = {"test": _MAX_LINE, "never": _MAX_LINE}
_TYPE_NAMES: Final = {str: "a text", int: "a whole number", list: "a list of texts"}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where something is wrong; `raise place.wrong(key, what, remedy)`."""

    file: str
    entry: str

    def wrong(self, key: str, what: str, remedy: str) -> SignatureError:
        return SignatureError(self.file, self.entry, key, what, remedy)


def _value(place: _Place, kind: str, key: str, value: object) -> object:
    """The value of a key, of the right type and length. Raises SignatureError."""
    known = _KEYS[kind]
    if key not in known:
        hint = did_you_mean(key, list(known))
        raise place.wrong(key, f"unknown key{hint}", f"A {kind} has: {', '.join(known)}.")
    wanted = known[key][0]
    if wanted is int:
        if type(value) is not int or value not in _WEIGHTS:
            raise place.wrong(key, f"{quoted(value)} is no weight", "Write a whole number from 1 to 9.")
        return value
    texts = [value] if wanted is str else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts) or not texts:
        raise place.wrong(
            key, f"{quoted(value)} is not {_TYPE_NAMES[wanted]}", "Write it in quotes, not empty."
        )
    longest = _LENGTHS.get(key, _MAX_TEXT) if wanted is str else _LISTED_LENGTHS.get(key, _MAX_TEXT)
    if len(texts) > _MAX_LIST or any(len(text) > longest for text in texts):
        raise place.wrong(key, "too long", f"At most {_MAX_LIST} texts of {longest} characters each.")
    return value if wanted is str else tuple(texts)


def _one_of(place: _Place, key: str, value: str, known: Iterable[str]) -> None:
    names = list(known)
    if value not in names:
        wrong = f"{quoted(value)} is not known{did_you_mean(value, names)}"
        raise place.wrong(key, wrong, f"One of: {', '.join(names)}.")


def _literals(pattern: str, given: tuple[str, ...] | None) -> tuple[str, ...]:
    """What to look for before the pattern is tried: as given, else found in it. Raises Underivable."""
    literals = required_literals(pattern) if given is None else given
    if pattern.startswith("(?i)"):
        literals = tuple(literal.lower() for literal in literals)
    return literals if all(map(str.isascii, literals)) else tuple(one.translate(_QUOTES) for one in literals)


def _signature(place: _Place, values: dict[str, object]) -> Signature:
    tier = str(values["tier"])
    _one_of(place, "tier", tier, TIERS)
    reason = str(values.get("reason", ""))
    if TIERS[tier] == "required" and not reason:
        raise place.wrong(
            "reason", f"missing, and tier {tier} names a cause", "Add a reason of the taxonomy."
        )
    if TIERS[tier] == "absent" and reason:
        raise place.wrong("reason", f"tier {tier} gives no reason", "Leave it out.")
    if reason:
        _one_of(place, "reason", reason, REASONS)
    pattern = str(values["pattern"])
    try:
        literals = _literals(pattern, cast("tuple[str, ...] | None", values.pop("literal", None)))
    except Underivable as error:
        raise place.wrong(
            "literal", f"cannot be found in the pattern: {error}", "Add literal = [...], one in every match."
        ) from None
    if any(len(literal) < MIN_LITERAL for literal in literals):
        raise place.wrong(
            "literal", f"shorter than {MIN_LITERAL} characters", "Name a longer piece of the line."
        )
    return Signature(**{**values, "literals": literals})  # type: ignore[arg-type]  # checked key by key


def _exception(place: _Place, values: dict[str, object]) -> ExceptionRule:
    _one_of(place, "reason", str(values["reason"]), REASONS)
    if "tier" in values:
        _one_of(place, "tier", str(values["tier"]), TIERS)
    if "purpose" in values:
        _one_of(place, "purpose", str(values["purpose"]), MEANINGS)
    types = cast("tuple[str, ...]", values["types"])
    dotted = next((kind for kind in types if "." in kind), None)
    if dotted:
        raise place.wrong(
            "types", f"{quoted(dotted)} has a module", f'Write the last part: "{dotted.rpartition(".")[2]}".'
        )
    return ExceptionRule(**values)  # type: ignore[arg-type]  # checked key by key


def _purpose(place: _Place, values: dict[str, object]) -> Purpose:
    _one_of(place, "means", str(values["means"]), MEANINGS)
    return Purpose(**values)  # type: ignore[arg-type]  # checked key by key


_KINDS: Final[Mapping[str, Callable[..., Entry]]] = {
    "signature": Signature,
    "exception": ExceptionRule,
    "purpose": Purpose,
}
_MAKERS: Final = {"signature": _signature, "exception": _exception, "purpose": _purpose}


def _entry(file: str, kind: str, number: int, table: object) -> Entry:
    name = table.get("name") if isinstance(table, dict) else None
    place = _Place(file, str(name) if isinstance(name, str) else f"{kind} {number}")
    if not isinstance(table, dict):
        raise place.wrong("", "not a table", f"Write [[{kind}]] and its keys below.")
    values = {key: _value(place, kind, key, value) for key, value in table.items()}
    for key, (_, needed) in _KEYS[kind].items():
        if needed and key not in values:
            raise place.wrong(key, "missing", f"Every {kind} has it.")
    return _MAKERS[kind](place, values)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SignatureError(
            str(path), "", "", f"cannot be read: {error.strerror}", "Check the path and its permissions."
        ) from None
    if len(data) > _MAX_BYTES:
        raise SignatureError(
            str(path), "", "", f"longer than {_MAX_BYTES} bytes", "Split it into several files."
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SignatureError(
            str(path), "", "", f"not UTF-8 at byte {error.start}", "Save it as UTF-8."
        ) from None


def _tables(path: Path) -> Mapping[str, object]:
    try:
        return signature_file.parse(_read(path))
    except signature_file.NotTomlError as error:
        raise SignatureError(
            str(path), "", "", f"not TOML: {error}", "Patterns are best written in '''three quotes'''."
        ) from None


def entries_of(path: Path) -> tuple[list[Entry], list[SignatureError]]:
    """The entries of a file, each checked by itself, and what is wrong with the others."""
    entries: list[Entry] = []
    errors: list[SignatureError] = []
    try:
        parsed = _tables(path)
    except SignatureError as error:
        return [], [error]
    for kind, tables in parsed.items():
        if kind not in _KEYS or not isinstance(tables, list):
            errors.append(
                SignatureError(
                    str(path), "", kind, "unknown", "A file has [[signature]], [[exception]], [[purpose]]."
                )
            )
            continue
        for number, table in enumerate(tables[:_MAX_ENTRIES], 1):
            try:
                entries.append(_entry(str(path), kind, number, table))
            except SignatureError as error:
                errors.append(error)
        if len(tables) > _MAX_ENTRIES:
            errors.append(SignatureError(str(path), "", kind, f"more than {_MAX_ENTRIES}", "Split the file."))
    return entries, errors


def exception_line(line: str) -> tuple[str, str]:
    """The class and the message of a traceback's last line.

    >>> exception_line("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried: 2")
    ('torch.cuda.OutOfMemoryError', 'CUDA out of memory. Tried: 2')
    """
    kind, _, message = line.partition(": ")
    return kind.strip().rstrip(":"), message.strip()


def _says(entry: Entry, line: str) -> bool:
    """Whether an entry speaks of one of its test lines."""
    if isinstance(entry, ExceptionRule):
        return entry.says(*exception_line(line))
    return entry.found_in(line)


def check(entry: Entry) -> list[tuple[str, str]]:
    """What is wrong with an entry by its own words: key and sentence. Compiles the pattern and tries the test lines."""
    patterns = {
        Signature: lambda e: ("pattern", e.pattern),
        ExceptionRule: lambda e: ("message", e.message),
        Purpose: lambda e: ("frame", e.frame),
    }
    key, pattern = patterns[type(entry)](entry)
    try:
        compiled(pattern)
    except re2.error as error:
        said = error.args[0] if error.args else error
        return [(key, f"not RE2: {said.decode() if isinstance(said, bytes) else said}")]
    wrong = [("test", f"is not matched: {quoted(line)}") for line in entry.test if not _says(entry, line)]
    wrong += [("never", f"is matched: {quoted(line)}") for line in entry.never if _says(entry, line)]
    if isinstance(entry, Signature):
        if not entry.test:
            wrong.append(("test", "missing: at least one real line"))
        for line in entry.test:
            seen = line.translate(_QUOTES)
            seen = seen.lower() if entry.ignores_case else seen
            if not any(literal in seen for literal in entry.literals):
                wrong.append(("literal", f"none of {', '.join(entry.literals)} is in {quoted(line)}"))
        if entry.pattern and compiled(entry.pattern).search(b"") is not None:
            wrong.append((key, "matches an empty line"))
    return wrong


def load_files(paths: Sequence[str | Path], *, checked: bool) -> Rules:
    """The rules of these files; `checked`: with every pattern compiled and tried on its test lines.

    Raises SignatureError.
    """
    kinds: dict[type, list[Entry]] = {Signature: [], ExceptionRule: [], Purpose: []}
    owners: dict[str, str] = {}
    for path in map(Path, paths):
        entries, errors = entries_of(path)
        for error in errors:
            raise error
        for entry in entries:
            place = _Place(str(path), entry.name)
            if entry.name in owners:
                raise place.wrong(
                    "name",
                    f"is taken by {owners[entry.name]}",
                    "Choose another: names are unique among all files.",
                )
            owners[entry.name] = str(path)
            if checked:
                for key, wrong in check(entry):
                    raise place.wrong(
                        key, wrong, "`python -m prolog_epilog.failures.signature FILE` shows all."
                    )
            kinds[type(entry)].append(entry)
    return Rules(
        cast("tuple[Signature, ...]", tuple(kinds[Signature])),
        cast("tuple[ExceptionRule, ...]", tuple(kinds[ExceptionRule])),
        cast("tuple[Purpose, ...]", tuple(kinds[Purpose])),
    )


def _trusted(path: Path) -> list[Entry]:
    """The entries of one of our own files, which tests have checked, without what only a check needs."""
    entries: list[Entry] = []
    tables = signature_file.parse_quickly(path.read_text("utf-8"), without=("test", "never"))
    for kind, maker in _KINDS.items():
        for table in tables.get(kind, ()):
            values = {key: tuple(value) if type(value) is list else value for key, value in table.items()}
            if maker is Signature:
                values["literals"] = _literals(values["pattern"], values.pop("literal", None))
            entries.append(maker(**values))
    return entries


def _ours() -> Rules:
    kinds: dict[Any, list[Entry]] = {maker: [] for maker in _KINDS.values()}
    for path in sorted(PACKAGED.glob("*.toml")):
        try:
            entries = _trusted(path)
        except (TypeError, KeyError, Underivable, signature_file.NotTomlError):
            return load_files(sorted(PACKAGED.glob("*.toml")), checked=False)  # which says what is wrong
        for entry in entries:
            kinds[type(entry)].append(entry)
    return Rules(*(cast("Any", tuple(entries)) for entries in kinds.values()))


@functools.lru_cache(maxsize=4)
def _load(paths: tuple[str, ...]) -> Rules:
    ours = _ours()
    if not paths:
        return ours
    theirs = load_files(paths, checked=True)
    taken = {entry.name for entry in (*ours.signatures, *ours.exceptions, *ours.purposes)}
    for entry in (*theirs.signatures, *theirs.exceptions, *theirs.purposes):
        if entry.name in taken:
            raise SignatureError(
                ", ".join(paths),
                entry.name,
                "name",
                "is taken by one of gsub's own",
                f"Choose another, say site-{entry.name}.",
            )
    return Rules(
        ours.signatures + theirs.signatures,
        ours.exceptions + theirs.exceptions,
        ours.purposes + theirs.purposes,
    )


def load(paths: Sequence[str | Path] = ()) -> Rules:
    """Our rules and those of a site's files; kept, so that a second call costs nothing.

    A site's entries are checked whole. Raises SignatureError.
    """
    return _load(tuple(map(str, paths)))


if __name__ == "__main__":
    from prolog_epilog.failures.signature_check import main

    raise SystemExit(main())
