"""One reason of many signs: the rules of the taxonomy, after the steps have taken out what cannot be the cause.

The highest tier that is left counts, and of that the first in time. docs/verdicts.md tells it at length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from prolog_epilog.failures.signs import TIERS, Case, Sign, before_in_time
from prolog_epilog.failures.steps import EVERYDAY, HANDLED, NEAR, STEPS, STRONG
from prolog_epilog.failures.taxonomy import NO_SIGNATURE, NONE

__all__ = ["Choice", "choose", "in_order"]

_END: Final = 8
"""Lines at a log's end: what was to be tried again there was not."""
_MESSAGE: Final = 12
"""Lines behind an exception that may be of its message."""
_SEEN_BY_PEERS: Final = frozenset(
    {"network_error", "traceback", "semantic_error", "filesystem_error", "output_error"}
)
_HUNG_UP: Final = re.compile(
    r"Connection ?[Rr]eset|Broken ?[Pp]ipe|Connection ?[Aa]borted|closed by (?:the )?(?:peer|remote)|EOFError"
)
"""Words of a connection whose other end has gone; the reason of their exception depends on what was being done."""
_LOST_PEER: Final = frozenset(
    {"network_error", "rendezvous_failure", "nccl_error", "nccl_timeout", "mpi_error", "mpi_runtime_failure"}
)
_DEATHS: Final = frozenset({"cpu_oom", "node_failure"})
"""Deaths that others see as a lost peer, and that the scheduler may tell later than they do."""


_SILENT: Final = "The log does not say how it ended, neither well nor badly."


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen: the sign that decides (None: nothing says why), its reason, what else spoke.

    `rivals` are reasons of the same tier that lost, `others` the signs that stood beside it, `weak` says that the log
    calls it dealt with, or (of `none`) shows no good end.
    """

    reason: str
    sign: Sign | None = None
    rivals: tuple[str, ...] = ()
    weak: bool = False
    remarks: tuple[str, ...] = ()
    others: tuple[Sign, ...] = ()


def in_order(signs: Iterable[Sign]) -> list[Sign]:
    """Signs by their time where all logs tell it, else log by log; within a log as they stand.

    A log in which every sign has its own time and rank was written by several: there the times decide, too.
    """
    listed = list(signs)
    if all(sign.line.time is not None and sign.rank is not None for sign in listed):
        return sorted(listed, key=lambda sign: (sign.line.time or 0.0, sign.log, sign.index))
    if len({sign.log for sign in listed}) <= 1 or any(sign.at is None for sign in listed):
        return sorted(listed, key=lambda sign: (sign.log, sign.index))
    # Within a log times may lie (buffers); a line is never later than those behind it.
    times: dict[int, float] = {}
    latest: dict[int, float] = {}
    for sign in sorted(listed, key=lambda sign: (sign.log, sign.index)):
        latest[sign.log] = max(latest.get(sign.log, 0.0), sign.at or 0.0)
        times[id(sign)] = latest[sign.log]
    return sorted(listed, key=lambda sign: (times[id(sign)], sign.log, sign.index))


def _lost_a_peer(sign: Sign) -> bool:
    """Whether it is what a process sees when the one at the other end of its connection dies."""
    return sign.reason in _SEEN_BY_PEERS and bool(_HUNG_UP.search(sign.line.text[:2000]))


def _of_another(sign: Sign, candidate: Sign) -> bool:
    """Whether a sign is another rank's, and tells more than that a peer was lost."""
    if sign.rank is None or candidate.rank is None or sign.rank == candidate.rank:
        return False
    return sign.reason not in _LOST_PEER and not _lost_a_peer(sign)


def _first(signs: Sequence[Sign]) -> Sign:
    """The earliest sign that stands for its event.

    An exception that ended its process is the end of what can be asked there. A mere line gives way to one near it
    that is more precise, to a more precise one at any distance, and, if it was only a warning or lies far back, to the
    exception that did end the process. An everyday exception gives way to a precise line right behind it: its message.
    Of two ranks' exceptions the one that lost its peer gives way: `srun` may bring its lines first.
    """
    candidate = signs[0]
    for sign in signs[1:]:
        near = sign.log == candidate.log and sign.first - candidate.index <= NEAR
        # Of causes of different ranks the earlier stands, however precise the later (rule 3).
        heavier = sign.weight > candidate.weight and (
            sign.tier != "explicit"
            or sign.rank == candidate.rank
            or sign.rank is None
            or candidate.rank is None
        )
        if candidate.fatal:
            if near and sign.fatal and _lost_a_peer(candidate) and _of_another(sign, candidate):
                candidate = sign
                continue
            said_next = near and sign.index - candidate.index <= _MESSAGE and not sign.fatal
            if said_next and heavier and candidate.weight <= EVERYDAY:
                candidate = sign
            continue
        lighter = candidate.mild and sign.weight >= min(candidate.weight, STRONG)
        if (heavier and (sign.log == candidate.log or sign.fatal)) or (
            sign.fatal and sign.log == candidate.log and (lighter or not near)
        ):
            candidate = sign
    return candidate


def _decided(case: Case, decisive: Sequence[Sign], explicit: Sequence[Sign]) -> Sign:
    """Between the scheduler's word and a cause before it: the cause, if it is plain and nothing went on after it."""
    word = max(decisive, key=lambda sign: sign.weight)
    early = [sign for sign in explicit if before_in_time(sign, word)]
    if word.reason in _DEATHS:
        early = [sign for sign in early if sign.reason not in _LOST_PEER]
    if not early:
        return word
    cause = _first(early)
    if not (cause.fatal or cause.weight >= STRONG) or cause.mild:
        return word
    until = word.index if cause.log == word.log else None
    return word if case.work_after(cause, until) else cause


def choose(case: Case) -> Choice:
    """The one reason that these signs give."""
    for step in STEPS:
        case = step.apply(case)
    weak = False
    signs = in_order(case.signs)
    failed = [sign for sign in signs if sign.tier == "failed_end"]
    ranked = [sign for sign in signs if sign.tier != "failed_end"]
    if not ranked and not case.ended_well:
        # All that could say why was set aside: the last that was dealt with may be the one that was not.
        last = in_order(
            sign for sign, why in case.set_aside if why == HANDLED and sign.tier in ("explicit", "implicit")
        )[-1:]
        ranked = [sign for sign in last if failed or case.lengths[sign.log] - sign.index <= _END]
        weak = bool(ranked)
    by_tier = {tier: [sign for sign in ranked if sign.tier == tier] for tier in TIERS}
    remarks = case.remarks
    if by_tier["decisive"]:
        chosen = _decided(case, by_tier["decisive"], by_tier["explicit"])
    elif by_tier["explicit"]:
        chosen = _first(by_tier["explicit"])
    elif by_tier["implicit"]:
        chosen = _first(by_tier["implicit"])
    elif by_tier["cascade"]:
        chosen = max(by_tier["cascade"], key=lambda sign: sign.weight)
    elif failed and not case.ended_well:
        best = max(failed, key=lambda sign: (bool(sign.reason), sign.weight))
        return Choice(best.reason or NO_SIGNATURE, best, remarks=remarks)
    else:
        if case.ended_well or case.set_aside:
            return Choice(NONE, None, remarks=remarks)
        return Choice(NO_SIGNATURE, None, weak=True, remarks=(*remarks, _SILENT))
    rivals = tuple(
        dict.fromkeys(
            sign.reason for sign in ranked if sign.tier == chosen.tier and sign.reason != chosen.reason
        )
    )
    others = tuple(sign for sign in ranked if sign is not chosen)
    return Choice(chosen.reason, chosen, rivals, weak, remarks, others)
