"""What would be submitted again, as its user reads it: the command line, what changes about it and why; and as JSON.

Words are shown as a shell takes them, with the values masked that look like secrets; of the environment only its size.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gsub.resubmission.original import Original
from gsub.resubmission.proposal import Proposal, Weighed, numbers
from gsub.sbatch import PROGRAM
from gsub.term import harmless, one_line
from gsub.why_log import sentence
from prolog_epilog.failures.mask import MASK, mask

__all__ = ["command_line", "diff", "facts", "lines", "masked"]

_MARGIN: Final = "  "
_OPTION: Final = re.compile(r"--?[A-Za-z][\w.-]{0,63}")
_PLAIN: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udcff]*")


def masked(words: Sequence[str]) -> list[str]:
    """The words without secrets: what looks like a token or a password is `****`, also behind an option's name.

    >>> masked(["train.sh", "--token=tr0ub4dor", "--password", "my word", "--epochs", "5"])
    ['train.sh', '--token=****', '--password', '****', '--epochs', '5']
    >>> masked(["--password=open sesame"])
    ['--password=****']
    """
    before = ["", *words]
    return [_masked(name, word) for name, word in zip(before, words, strict=False)]


def _masked(before: str, word: str) -> str:
    if _is_secret(before, word):
        return MASK
    name, equals, value = word.partition("=")
    # All of it: mask() takes a blank for the secret's end, and here it is a part of the word
    return f"{name}={MASK}" if equals and _is_secret(name, value) else mask(word)


def _is_secret(name: str, word: str) -> bool:
    """Whether the word before this one says that it is a secret, as in `--password hunter2`."""
    if not _OPTION.fullmatch(name) or _OPTION.fullmatch(word):
        return False
    return mask(f"{name} {word}").startswith(f"{name} {MASK}")


def command_line(words: Sequence[str]) -> str:
    r"""`sbatch` and its words as bash takes them, on one line and harmless on a terminal.

    >>> print(command_line(["-J", "a b", "x.sh", "two\nlines"]))
    sbatch -J 'a b' x.sh $'two\nlines'
    """
    return " ".join((PROGRAM, *(_quoted(word) for word in masked(words))))


def _quoted(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return shlex.quote(word)
    data = "".join(_escaped(letter) for letter in word)
    return f"$'{data}'"


def _escaped(letter: str) -> str:
    if letter in "\\'":
        return "\\" + letter
    if letter == "\n":
        return "\\n"
    if _PLAIN.fullmatch(letter):
        return letter
    number = ord(letter)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{number - 0xDC00:02x}"
    return f"\\x{number:02x}" if number < 0x80 else f"\\u{number:04x}"


def diff(before: str, after: str, old: str, new: str) -> list[str]:
    """A unified diff of two texts, harmless on a terminal; no lines where they are the same."""
    one, other = (text.removesuffix("\n").split("\n") for text in (before, after))
    found = difflib.unified_diff(one, other, old, new, lineterm="", n=2)
    return [harmless(mask(line)).replace("\r", "?") for line in found]


def lines(original: Original, weighed: Sequence[Weighed], proposal: Proposal) -> Iterator[str]:
    """All that is known of what would be submitted."""
    for one in weighed:
        yield from _part(one)
    # Not by _labelled: blanks within a word stay as many as they are
    yield f"{_MARGIN}{'command':<10} {command_line(proposal.reading.words)}"
    yield from _labelled("in", original.folder)
    yield from _labelled("script", _script(original))
    kept = original.kept.environment
    own = "those of this shell" if kept is None else f"the job's own {len(kept)}, as accounting keeps them"
    yield from _labelled("variables", f"{own}; none is shown")
    for change in proposal.changes:
        yield from _labelled(
            "change", f"{mask(change.option)} in place of {mask(change.before)}: {change.why}"
        )
    for doubt in proposal.reading.doubts:
        yield from _labelled("not sure", doubt)
    for note in (*original.notes, *proposal.notes):
        yield from _labelled("note", note)
    yield from diff(
        command_line(original.given.words),
        command_line(proposal.reading.words),
        "as it was",
        "as it would be",
    )


def _labelled(label: str, text: str) -> Iterator[str]:
    yield f"{_MARGIN}{label:<10} {one_line(text)}"


def _part(one: Weighed) -> Iterator[str]:
    of = (
        one.part.shown_id if len(one.tasks) < 2 else f"{one.part.array_job_id}_[{numbers(sorted(one.tasks))}]"
    )
    reason = sentence(one.finding) if one.finding is not None else "not known"
    yield from _labelled("failed", f"{of} ({one.part.state.value}): {reason}")
    yield from _labelled("again" if one.again else "not again", one.why)


def _script(original: Original) -> str:
    if original.source == "wrap":
        return "the command of --wrap"
    if original.source == "stdin":
        return f"the copy that {original.kept.by} keeps (it came from standard input)"
    name = original.given.script or ""
    if original.source == "copy":
        return f"the copy that {original.kept.by} keeps of {name}"
    ran = original.kept.script is not None and original.kept.script == original.script
    return name + (", as it ran" if ran else "")


def facts(
    original: Original, weighed: Sequence[Weighed], proposal: Proposal, *, submitted: int | None
) -> dict[str, Any]:
    """The same for `--json`; `submitted` is the new job, None where none was made."""
    kept = original.kept.environment
    return {
        "job": original.shown,
        "submitted": submitted,
        "command": [PROGRAM, *masked(proposal.reading.words)],
        "was": [PROGRAM, *masked(original.given.words)],
        "folder": original.folder,
        "script": original.source,
        "environment": "shell" if kept is None else "job",
        "changes": [
            {"option": one.name, "value": mask(one.value), "was": mask(one.was) or None, "why": one.why}
            for one in proposal.changes
        ],
        "failed": [
            {
                "id": one.part.shown_id,
                "state": one.part.state.value,
                "tasks": sorted(one.tasks),
                "reason": one.finding.reason if one.finding is not None else None,
                "action": one.row.action if one.row is not None else None,
                "again": one.again,
                "why": one.why,
            }
            for one in weighed
        ],
        "not_sure": list(proposal.reading.doubts),
        "notes": [*original.notes, *proposal.notes],
    }
