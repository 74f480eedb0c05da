"""Whether a smoke run failed for a reason that would fail the real job as surely: a table of what does not count. Pure.

The script ran with one GPU, and asked for more: whatever it says of counts, sizes of worlds, meshes and shards may be
about that. A run is called failed only where the classifier is sure of a cause that is the user's and has nothing to
do with that; all doubt is inconclusive.

>>> from prolog_epilog.failures.text import LogText
>>> log = LogText.of("output", b"Traceback (most recent call last):\\n"
...     b'  File "train.py", line 3, in <module>\\n    import einops\\n'
...     b"ModuleNotFoundError: No module named 'einops'\\n")
>>> verdict(log, 1).outcome
'failed'
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Literal

from gsub.smoke.shape import ANYWHERE, BESIDE, NEAR, OURS

if TYPE_CHECKING:
    from profiler.findings import Finding
    from prolog_epilog.failures.signature import Rules
    from prolog_epilog.failures.text import LogText

__all__ = ["FAILS", "SURE", "Judged", "Setting", "judged", "spoken", "verdict"]

FAILS: Final = frozenset(
    {
        "syntax_error",
        "import_error",
        "environment_error",
        "bad_arguments",
        "missing_input",
        "corrupt_input",
        "permission_error",
        "semantic_error",
    }
)
"""Reasons of the taxonomy for which a smoke run can fail."""
SURE: Final = 0.8
"""The confidence that it takes: from here on a log's cause stands against Slurm's word, too (failures.judge)."""
_LAST_SURE: Final = 0.75
_LAST: Final = 12
"""A little less will do within so many of the last lines: nothing else came that the script could have ended by."""
_COPY: Final = re.compile(r"\S*/gsub-smoke-\w+/spool/slurm_script(?=:)")
"""The script's own path in a smoke run, which a shell puts ahead of what it says."""
_REFUSED: Final = "Value too large for defined data type"
"""What only an overlay says where a file cannot be written."""
_TIERS: Final = frozenset({"decisive", "explicit"})
_TAIL: Final = 400  # lines behind and before the deciding one that are looked through for ANYWHERE
_STACK: Final = 60  # lines back to which a traceback's source lines are looked for
_INNERMOST: Final = 3
_SIGNALS: Final = 128  # a shell's exit code beyond this is a signal's number, of its last command


@dataclass(frozen=True, slots=True)
class Setting:
    """How the script ran, as far as that can make it fail: below an overlay (`kept`); `wrote` has the names of files
    that it made, `steps`: it started programs outside of its own processes (srun, containers)."""

    kept: bool = False
    wrote: frozenset[str] = frozenset()
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """`failed` or `inconclusive`, the finding behind it, and a sentence."""

    outcome: Literal["failed", "inconclusive"]
    sentence: str
    finding: Finding | None = None


def verdict(
    log: LogText, code: int | None, setting: Setting = Setting(), rules: Rules | None = None
) -> Judged:
    """What the output and the exit code of a script that ended badly come to; a negative code is a signal."""
    from prolog_epilog.failures.classify import Ended, classify

    signal = -code if code is not None and code < 0 else None
    ended = Ended(None, code if signal is None else None, signal)
    return judged(classify([log], ended, rules), log, code, setting)


def judged(finding: Finding, log: LogText, code: int | None, setting: Setting = Setting()) -> Judged:
    """The table over a finding."""
    from prolog_epilog.failures.taxonomy import NO_SIGNATURE, NONE, REASONS

    how = _how(code)
    if code is not None and (code < 0 or code > _SIGNALS):
        return Judged("inconclusive", f"it {how}, which says little of what the real job will do", finding)
    if finding.reason in (NO_SIGNATURE, NONE) or finding.reason not in REASONS:
        return Judged("inconclusive", f"it {how}, and nothing that is known says why", finding)
    about = REASONS[finding.reason].about
    if finding.reason not in FAILS:
        return Judged(
            "inconclusive", f"it {how}: {finding.reason} ({about}), which need not be so there", finding
        )
    if not _sure(finding, log):
        return Judged(
            "inconclusive", f"it {how}, perhaps by {finding.reason} ({about}): that is not sure", finding
        )
    doubt = _doubt(finding, log, setting)
    if doubt:
        return Judged("inconclusive", f"it {how} by {finding.reason}, but {doubt}", finding)
    return Judged("failed", f"{finding.reason}: {about}", finding)


def _sure(finding: Finding, log: LogText) -> bool:
    if finding.tier not in _TIERS or not finding.evidence:
        return False
    if finding.confidence >= SURE:
        return True
    at = _index(finding, log)
    return finding.confidence >= _LAST_SURE and at is not None and at >= len(log) - _LAST


def _how(code: int | None) -> str:
    if code is None:
        return "ended"
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _doubt(finding: Finding, log: LogText, setting: Setting) -> str:
    """Why a failure need not come in the real job; "" where nothing speaks for that."""
    words = [finding.evidence[0].text]  # the others are of other reasons
    near = spoken(finding, log)
    if finding.reason == "syntax_error":
        return ""
    named = finding.reason != "import_error"  # a module's name is no count: that one fails anywhere
    for row in OURS if named else ():
        if any(re.search(row.pattern, _COPY.sub("", text)) for text in near):
            return row.why
    if setting.kept:
        for row in BESIDE:
            if any(re.search(row.pattern, text) for text in words):
                return row.why
        refused = any(_REFUSED in text for text in _around(finding, log))
        if refused or finding.reason == "permission_error":
            return BESIDE[0].why
        if finding.reason in ("missing_input", "corrupt_input", "environment_error", "import_error") and (
            setting.steps or any(_names(name, text) for text in words for name in setting.wrote)
        ):
            return BESIDE[0].why
    for row in NEAR if named else ():
        if any(re.search(row.pattern, text) for text in near):
            return row.why
    around = _around(finding, log)
    for row in ANYWHERE:
        if any(re.search(row.pattern, text) for text in around):
            return row.why
    return ""


def spoken(finding: Finding, log: LogText) -> list[str]:
    """The deciding line, the message that goes on behind it, and the innermost lines of source above it."""
    return [finding.evidence[0].text, *_message(finding, log), *_sources(finding, log)]


def _names(name: str, text: str) -> bool:
    return name in text and bool(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text))


def _index(finding: Finding, log: LogText) -> int | None:
    """The deciding line's place in the log."""
    first = finding.evidence[0]
    if first.line is None and first.from_end is None:
        return None
    for index in range(len(log) - 1, -1, -1):
        line = log.line(index)
        if first.line is not None and line.number is not None and line.number <= first.line:
            return index if line.number == first.line else None
        if first.from_end is not None and line.from_end is not None and line.from_end >= first.from_end:
            return index if line.from_end == first.from_end else None
    return None


def _sources(finding: Finding, log: LogText) -> list[str]:
    """The innermost lines of source that a traceback quotes above the deciding line."""
    at = _index(finding, log)
    if at is None:
        return []
    found: list[str] = []
    for index in range(at - 1, max(-1, at - _STACK), -1):
        text = log.line(index).text
        if text.startswith("Traceback"):
            break
        if text.startswith("    ") and text.strip(" ^~"):
            found.append(text)
            if len(found) == _INNERMOST:
                break
    return found


def _message(finding: Finding, log: LogText) -> list[str]:
    """The indented lines right behind the deciding one: messages of exceptions may go on."""
    at = _index(finding, log)
    if at is None:
        return []
    behind = (log.line(index).text for index in range(at + 1, min(at + 5, len(log))))
    return list(takewhile(lambda text: text[:1] in (" ", "\t"), behind))


def _around(finding: Finding, log: LogText) -> list[str]:
    at = _index(finding, log)
    middle = at if at is not None else len(log) - 1
    return [log.line(i).text[:2000] for i in range(max(0, middle - _TAIL), min(len(log), middle + _TAIL))]
