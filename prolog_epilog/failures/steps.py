"""The steps by which signs are taken out that cannot be the cause: a table, each with its sentence.

A step only takes signs out, and may be applied twice; docs/verdicts.md tells the table at length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from prolog_epilog.failures.signs import TIERS, Case, Mark, Sign, before_in_time, counter
from prolog_epilog.failures.taxonomy import NO_SIGNATURE

__all__ = ["EVERYDAY", "HANDLED", "NEAR", "STEPS", "STRONG", "Step", "first_cause"]

NEAR: Final = 40
"""Lines within which two lines of one log speak of one event."""
_DEALT_WITH: Final = 5
"""Lines behind a sign within which a word like "retrying" speaks of it."""
_CLEANING: Final = 60
"""Lines behind a mark of clean-up that are of it."""
_UNRAISABLE: Final = "python-exception-ignored"
"""The signature of a mark that speaks of one traceback alone."""
_GOES_ON: Final = 5
"""Lines with counts behind an exception by which its log goes on."""
EVERYDAY: Final = 4
"""Weight up to which an exception is one that programs raise and catch every day (KeyError and the like)."""
STRONG: Final = 6
"""Weight from which a line names its cause beyond a mere mention."""
HANDLED: Final = "the log says that it was dealt with"
_SHELL: Final = frozenset({"shell", "bash", "sh", "coreutils", "csh", "make", "cp", "mv", "rsync", "tar"})
_TROUBLE: Final = re.compile(r"(?i)\b(?:warn(?:ing)?|error|exception|fail(?:ed|ure)?|caught)\b")
"""Words of a line behind which `logging` prints a traceback (`exc_info`)."""
_BY_SCHEDULER: Final = frozenset({"preempted", "requeued", "time_limit", "cancelled", "node_failure"})
"""What tools log as a warning although it ends them."""
_OF_THE_GPU: Final = frozenset(
    {"cuda_failure", "cuda_init_failed", "invalid_memory_access", "nccl_error", "nccl_timeout", "core_dump"}
)
_TOLD_LATE: Final = frozenset(
    {"cpu_oom", "node_failure", "gpu_hardware", "time_limit", "preempted", "requeued", "cancelled"}
)
_REFUSED: Final = frozenset({"permission_error", "no_space", "filesystem_error", "network_error"})
"""Why a tool could not make or fetch a file..."""
_LACKING: Final = frozenset({"missing_input", "output_error", "checkpoint_error"})
"""...and what a program calls it that needs it next."""
_EXPLAINS_WRITING: Final = frozenset({"no_space", "permission_error"})
# not at a line's beginning: there stands who speaks
_PATH: Final = re.compile(r"(?<=[\s'\"`(=:,\[])/[\w.@%+,=~-]{1,255}(?:/[\w.@%+,=~-]{1,255}){1,40}")


@dataclass(frozen=True, slots=True)
class Step:
    """A rule that takes signs out: its name, its sentence, and what it does."""

    name: str
    sentence: str
    apply: Callable[[Case], Case]


def _on_a_line(sign: Sign) -> tuple[float, int]:
    """What is said of a line by name counts before that it is an exception of unknown cause."""
    if sign.reason == "traceback":
        return 0.5, sign.weight
    if sign.tier == "cascade" and sign.reason == NO_SIGNATURE:
        return 0.4, sign.weight
    return TIERS[sign.tier], sign.weight


def _one_a_line(case: Case) -> Case:
    best: dict[tuple[int, int], Sign] = {}
    for sign in case.signs:
        at = (sign.log, sign.index)
        known = best.get(at)
        if known is None or _on_a_line(sign) > _on_a_line(known):
            best[at] = sign
    taken = [sign for sign in case.signs if best[sign.log, sign.index] is not sign]
    # What a traceback's structure knows of the line stays, whichever rule named it.
    merged = {}
    for sign in taken:
        if sign.fatal or sign.chain >= 0:
            merged[sign.log, sign.index] = sign
    case = case.without(taken, "its line says something more precise")
    signs = tuple(
        replace(
            sign,
            fatal=shape.fatal,
            chain=shape.chain,
            first=shape.first,
            mild=shape.mild,
            tidying=shape.tidying,
        )
        if (shape := merged.get((sign.log, sign.index))) and sign.chain < 0
        else sign
        for sign in case.signs
    )
    return replace(case, signs=signs)


def _one_a_chain(case: Case) -> Case:
    """Of exceptions raised of one another the first is the cause, unless the later one is known and it is not."""
    chains: dict[tuple[int, int], list[Sign]] = {}
    for sign in case.signs:
        if sign.chain >= 0:
            chains.setdefault((sign.log, sign.chain), []).append(sign)
    taken: list[Sign] = []
    for signs in chains.values():
        signs.sort(key=lambda sign: sign.index)
        root = first_cause(signs)
        taken += [sign for sign in signs if sign is not root]
    return case.without(taken, "it was raised because of another exception")


def first_cause(chain: Sequence[Sign]) -> Sign:
    """The sign of a chain of exceptions that is the cause: the first of the strongest tier.

    What programs catch every day, as a KeyError, gives way to one that names a cause; a checkpoint that could not be
    written to what the system says of its file (the taxonomy's own order).
    """
    tier = max(TIERS[sign.tier] for sign in chain)
    known = [sign for sign in chain if TIERS[sign.tier] == tier]
    first = known[0]
    if first.reason == "checkpoint_error":
        return next((sign for sign in known if sign.reason in _EXPLAINS_WRITING), first)
    if first.weight <= EVERYDAY:
        return next((sign for sign in known if sign.weight > EVERYDAY), first)
    return first


def _marks(case: Case, kind: str) -> list[Mark]:
    return [mark for mark in case.marks if mark.kind == kind]


def _same(rank: int | None, other: int | None) -> bool:
    return rank is None or other is None or rank == other


def _dealt_with(case: Case) -> Case:
    """An error that the next lines say was dealt with is none, if the log goes on."""
    marks = _marks(case, "handled")
    taken = []
    for sign in case.signs:
        if sign.tier == "decisive":
            continue
        if any(_speaks_of(mark, sign, case) for mark in marks):
            taken.append(sign)
    return case.without(taken, HANDLED)


def _speaks_of(mark: Mark, sign: Sign, case: Case) -> bool:
    """Whether a word like "retrying" is of this sign: right behind it, or the line that logged its traceback."""
    if mark.log != sign.log or not _same(mark.line.rank, sign.rank):
        return False
    if counter(mark.index, mark.line.text) is not None:
        return False  # a line of progress counts what was skipped so far
    if sign.chain >= 0 and 0 <= sign.first - mark.index <= 2 and _TROUBLE.search(mark.line.raw[:2000]):
        return True
    if not 0 <= mark.index - sign.index <= _DEALT_WITH:
        return False
    if mark.index != sign.index and any(
        other.log == mark.log and other.index == mark.index for other in case.signs
    ):
        return False  # it names an error of its own, and speaks of that
    if sign.fatal and not _lives_on(sign, case):
        return False
    return not any(
        other.fatal and other.log == sign.log and sign.index < other.index < mark.index
        for other in case.signs
    )


def _lives_on(sign: Sign, case: Case) -> bool:
    """Whether the log of an exception goes on as if it had been caught: with work, another failure, or no bad end."""
    behind = [other for other in case.signs if other.log == sign.log and other.index > sign.index]
    if case.counts_after(sign) >= _GOES_ON or any(other.fatal for other in behind):
        return True
    return not any(other.tier in ("failed_end", "cascade") for other in behind)


def _cleaning(case: Case) -> Case:
    """What fails in clean-up (rule 5) is not the cause of what came before."""
    blocks = [(mark, mark.index + _CLEANING) for mark in _marks(case, "cleanup") if mark.name != _UNRAISABLE]
    blocks += [
        (mark, _end_of_ignored(mark, case)) for mark in _marks(case, "cleanup") if mark.name == _UNRAISABLE
    ]
    taken = []
    for sign in case.signs:
        if sign.tier == "decisive":
            continue
        if sign.tidying:
            taken.append(sign)
            continue
        for mark, end in blocks:
            inside = sign.first <= mark.index <= sign.index or (
                mark.index <= sign.first <= end or mark.index <= sign.index <= end
            )
            if mark.log == sign.log and _same(mark.line.rank, sign.rank) and inside:
                taken.append(sign)
                break
    return case.without(taken, "it failed in clean-up")


def _end_of_ignored(mark: Mark, case: Case) -> int:
    """The last line of what "Exception ignored in" speaks of: the one traceback behind it, and no more.

    Another that comes after it ended a process like any other.
    """
    chains = [
        sign
        for sign in case.signs
        if sign.log == mark.log and sign.chain >= 0 and mark.index <= sign.first <= mark.index + _CLEANING
    ]
    if not chains:
        return mark.index + NEAR
    first = min(chains, key=lambda sign: sign.first)
    return max(sign.index for sign in chains if sign.chain == first.chain)


def _of_hardware(case: Case) -> Case:
    """What a program sees of a broken GPU is no cause beside the kernel's or the driver's word of it."""
    if not any(sign.reason == "gpu_hardware" and sign.weight >= STRONG for sign in case.signs):
        return case
    return case.without(
        [sign for sign in case.signs if sign.reason in _OF_THE_GPU], "it is what a broken GPU looks like"
    )


def _survived(case: Case) -> Case:
    """What the work went on after was survived: the same count rises behind it."""
    taken = [sign for sign in case.signs if sign.tier != "decisive" and case.work_after(sign)]
    return case.without(taken, "the work went on after it")


def _ended_well(case: Case) -> Case:
    """What stands before the words of a good end was survived; a wrapper's command that fails behind them is told."""
    for mark in sorted(_marks(case, "ended_well"), key=lambda mark: mark.index, reverse=True):
        here = [sign for sign in case.signs if sign.log == mark.log]
        behind = [sign for sign in here if sign.index >= mark.index and sign.tier != "cascade"]
        before = [sign for sign in here if sign.index < mark.index]
        wrapper = [sign for sign in behind if sign.tool in _SHELL and not sign.fatal]
        worse = [
            sign for sign in behind if sign not in wrapper and not (wrapper and sign.tier == "failed_end")
        ]
        doubted = [sign for sign in before if sign.fatal and sign.tier == "explicit" and mark.weight < 5]
        if worse or doubted or any(sign.tier == "decisive" for sign in before):
            continue
        told = tuple(f"After the end: {sign.line.text.strip()[:300]}" for sign in wrapper[:2])
        cascades = [sign for sign in here if sign.index >= mark.index and sign.tier == "cascade"]
        ends = [sign for sign in behind if wrapper and sign.tier == "failed_end"]
        case = case.without([*before, *wrapper, *cascades, *ends], "the run ended well")
        case = replace(case, ended_well=True, remarks=case.remarks + told)
    return case


def _consequences(case: Case) -> Case:
    """A step's bare cancellation behind a task that ended badly is srun's doing (--kill-on-bad-exit)."""
    failed = [sign for sign in case.signs if sign.tier == "failed_end"]
    taken = [
        sign
        for sign in case.signs
        if sign.tier == "cascade"
        and sign.reason == "cancelled"
        and any(before_in_time(end, sign) for end in failed)
    ]
    return case.without(taken, "a task had ended badly before")


def _lacking(case: Case) -> Case:
    """What is not there, where a tool said before that it could not make or fetch it, is that trouble's doing."""
    refused: set[tuple[int, str]] = set()
    taken = []
    for sign in sorted(case.signs, key=lambda sign: (sign.log, sign.index)):
        if sign.tier != "explicit" or sign.reason not in _REFUSED | _LACKING:
            continue
        for path in (found.rstrip(".") for found in _PATH.findall(sign.line.text)):
            if sign.reason in _REFUSED:
                if sign.chain < 0:
                    refused.add((sign.log, path))
            elif any((sign.log, place) in refused for place in _places(path)):
                taken.append(sign)
                break
    return case.without(taken, "what it misses could not be made or fetched before")


def _places(path: str) -> list[str]:
    """A path and the folders above it: "/a/b/c" lies in "/a/b"."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 2, -1)]


def _too_late(case: Case) -> Case:
    """What fails behind a watchdog's timeout does not explain it: the ranks were being taken down.

    Deaths and hardware are told by others, and late; an exception near behind may have been written through.
    """
    timeouts: dict[int, Sign] = {}
    for sign in case.signs:
        if sign.reason == "nccl_timeout" and sign.tier == "implicit":
            first = timeouts.setdefault(sign.log, sign)
            timeouts[sign.log] = min(first, sign, key=lambda found: found.index)
    taken = [
        sign
        for sign in case.signs
        if sign.tier == "explicit"
        and sign.reason not in _TOLD_LATE
        and (timeout := timeouts.get(sign.log)) is not None
        and sign.index > timeout.index
        and not (sign.fatal and sign.first - timeout.index <= NEAR)
        and (sign.at is None or timeout.at is None or sign.at >= timeout.at)
    ]
    return case.without(taken, "it failed behind the watchdog's timeout")


def _warnings(case: Case) -> Case:
    """Warnings alone, where nothing failed, are no failure; one with a traceback is none if the log goes on."""
    if not case.signs or not all(_only_warns(sign, case) for sign in case.signs):
        return case
    return case.without(case.signs, "it was a warning, and nothing failed")


def _only_warns(sign: Sign, case: Case) -> bool:
    if not sign.mild or sign.tier in ("decisive", "failed_end") or sign.reason in _BY_SCHEDULER:
        return False
    return sign.chain < 0 or case.work_after(sign)


STEPS: Final = (
    Step("line", "Of what one line says the most precise counts.", _one_a_line),
    Step("clean-up", "What fails in clean-up never is the cause.", _cleaning),
    Step("chain", "Of exceptions raised of one another the first known one is the cause.", _one_a_chain),
    Step(
        "hardware",
        "What a program sees of a broken GPU is no cause beside the driver's word of it.",
        _of_hardware,
    ),
    Step("dealt with", "An error that the log says was dealt with is none.", _dealt_with),
    Step("survived", "An error after which the same count goes on was survived.", _survived),
    Step(
        "consequence", "A step's cancellation behind a task that ended badly is a consequence.", _consequences
    ),
    Step(
        "lacking",
        "What could not be made or fetched before, and is missing now, is its consequence.",
        _lacking,
    ),
    Step("too late", "What fails behind a watchdog's timeout does not explain it.", _too_late),
    Step("warning", "Warnings alone, where nothing failed, are no failure.", _warnings),
    Step("ended well", "What stands before the words of a good end was survived.", _ended_well),
)
