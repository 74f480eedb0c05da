"""What is known of a job as a person reads it: what became of it, why, what to do; and as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gsub import why_tasks
from gsub.again_view import rows
from gsub.render import count
from gsub.term import one_line
from gsub.waiting import Wait
from gsub.why_log import first_to_fail, saved, sentence, where
from gsub.why_tasks import NO_TASKS, Tasks
from profiler.answers import DecisionAnswer, JobSummary, Similar, Usage, Verdict, VerdictAnswer
from profiler.receipt import ENDED, headline, receipt, rule_told
from profiler.wording import shown_id, span
from prolog_epilog.failures.taxonomy import NO_SIGNATURE, NONE

if TYPE_CHECKING:
    from profiler.findings import Finding
    from profiler.resubmissions import Resubmission

__all__ = ["Known", "facts", "lines"]

_MARGIN: Final = "  "
_LINES: Final = 4
"""Lines of evidence that are shown; --json has them all."""
_SOURCE: Final = {
    "root": "told by Slurm, the kernel or the GPU driver",
    "user": "told by its own logs",
}
_KEPT: Final = {"enforce": "gsub set", "advise": "gsub advised", "observe": "gsub would have set"}


@dataclass(frozen=True, slots=True)
class Known:
    """What could be found out about a job. `own`: what its logs say to this user here; `read` are those logs.

    `verdict` is the service's; `unsettled`: it has only just ended, and the reason may still become another one.
    `earlier` is of the attempt before, if the job was requeued since, and `again` what followed each of its failed
    attempts. `troubles` says what could not be asked. `tasks` are those of an array that was asked about as a whole.
    """

    job: JobSummary
    now: datetime
    wait: Wait | None = None
    verdict: Verdict | None = None
    similar: Similar | None = None
    decision: DecisionAnswer | None = None
    usage: Usage | None = None
    own: Finding | None = None
    read: tuple[str, ...] = ()
    unsettled: bool = False
    earlier: VerdictAnswer | None = None
    again: tuple[Resubmission, ...] = ()
    troubles: tuple[str, ...] = ()
    tasks: Tasks = NO_TASKS

    @property
    def finding(self) -> Finding | None:
        """The verdict that counts: the service's, unless the logs say more to their owner than they did to the node."""
        told = self.verdict.finding if self.verdict is not None else None
        if self.own is None or (
            told is not None and told.reason not in (NO_SIGNATURE, NONE) and not told.unseen
        ):
            return told
        if told is not None and self.own.reason in (NO_SIGNATURE, NONE):
            return told
        return self.own


def lines(known: Known) -> Iterator[str]:
    """The whole page, harmless on a terminal."""
    yield f"job {headline(known.job)}"
    yield from _when(known)
    if known.wait is not None:
        yield from _labelled("waits", f"{known.wait.sentence} (Slurm: {one_line(known.wait.reason)})")
        for fact in known.wait.facts:
            yield from _labelled("", fact)
        if known.wait.advice:
            yield from _labelled("try", known.wait.advice)
    yield from _why(known)
    yield from _earlier(known.earlier)
    # Of an array the job that is spoken of is one task of many
    for label, text in why_tasks.rows(known.tasks) if known.tasks.states else rows(known.again):
        yield from _labelled(label, text)
    yield from _decided(known.decision)
    for one in known.usage.told if known.usage is not None else ():
        yield from _labelled("told", rule_told(one))
    if known.usage is not None and known.usage.nodes:
        for row in receipt(known.usage)[1:4]:
            yield from _labelled(row[:13].strip(), row[13:].strip())
    for trouble in known.troubles:
        yield from _labelled("not known", trouble)


def _labelled(label: str, text: str) -> Iterator[str]:
    yield f"{_MARGIN}{label:<10} {one_line(text)}"


def _when(known: Known) -> Iterator[str]:
    job = known.job
    times = [
        f"{name} {datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"
        for name, at in (("submitted", job.submitted), ("started", job.started), ("ended", job.ended))
        if at is not None and not (name == "ended" and job.state not in ENDED)
    ]
    if times:
        yield from _labelled("when", ", ".join(times))


def _why(known: Known) -> Iterator[str]:
    finding = known.finding
    if finding is None:
        return
    if known.unsettled:
        yield from _labelled("why", "not known yet: it has only just ended; ask again in a minute")
        if finding.reason in (NONE, NO_SIGNATURE):
            return
    yield from _labelled("so far" if known.unsettled else "why", _sentence(finding, known.job))
    for one in finding.evidence[:_LINES]:
        yield from _labelled("", f"{where(one)}{one.text}")
    if first := first_to_fail(finding):
        yield from _labelled("", f"first to fail: {first}")
    if finding.reason not in (NONE, NO_SIGNATURE) and finding.evidence:
        yield from _labelled("", _SOURCE[finding.evidence[0].source])
    if kept := saved(finding):
        yield from _labelled("saved", kept)
    if finding.advice:
        yield from _labelled("try", finding.advice)
    yield from _before(known)
    for remark in finding.remarks:
        yield from _labelled("note", remark)
    for gap in finding.unseen:
        yield from _labelled("not seen", gap)


def _sentence(finding: Finding, job: JobSummary) -> str:
    if finding.reason == NONE and job.state is None:
        return "its log ends well; Slurm has not said how it ended"
    return sentence(finding)


def _earlier(answer: VerdictAnswer | None) -> Iterator[str]:
    """The attempt before this one."""
    if answer is None:
        return
    yield from _labelled("earlier", headline(answer.job))
    if answer.verdict is None:
        return
    finding = answer.verdict.finding
    yield from _labelled("", _sentence(finding, answer.job))
    for one in finding.evidence[:1]:
        yield from _labelled("", f"{where(one)}{one.text}")
    if finding.advice:
        yield from _labelled("try", finding.advice)


def _before(known: Known) -> Iterator[str]:
    similar = known.similar
    if similar is None or similar.count == 0:
        return
    alike = "with the same evidence" if similar.by == "fingerprint" else "of this reason and job name"
    several = f"{similar.count} more failures" if similar.count > 1 else "one more failure"
    ago = span(max(0.0, known.now.timestamp() - similar.last_at))
    within = f"in the {similar.days} days before or since"
    text = f"{several} {alike} {within}, the last {ago} ago (job {similar.last_job})"
    if similar.passed_after:
        text += f"; {count(similar.passed_after, 'run')} of that name ended well since"
    else:
        text += "; no run of that name has ended well since"
    yield from _labelled("before", text)


def _decided(answer: DecisionAnswer | None) -> Iterator[str]:
    record = None if answer is None else answer.decision
    if not isinstance(record, dict):
        return
    mode = str(record.get("mode"))
    if record.get("opted_out"):
        yield from _labelled("decided", "nothing: the job opted out (gsub:off)")
        return
    label = "decided"
    for change in _dicts(record.get("changes")):
        if change.get("reason"):
            set_ = _KEPT["enforce"] if record.get("enforced") else _KEPT.get(mode, "gsub would have set")
            yield from _labelled(
                label, f"{set_} {_option(change)}: {change['reason']} ({change.get('stage')})"
            )
            label = ""
    for note in _dicts(record.get("notes")):
        if note.get("advice"):
            yield from _labelled(label, f"note: {note.get('text')} ({note.get('stage')})")
            label = ""
    if label:
        yield from _labelled(label, f"nothing to change ({mode})")


def _option(change: dict[str, Any]) -> str:
    from slurm_plugins.decide.pipeline import option

    try:
        return option(str(change.get("field")), change.get("after"))  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError):  # of another release
        return f"{change.get('field')}={change.get('after')}"


def _dicts(value: object) -> Sequence[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list | tuple) else []


# --- for programs ---------------------------------------------------------------------------------------------------


def facts(known: Known) -> dict[str, Any]:
    """All of it for `--json`."""
    finding = known.finding
    reason = finding.reason if finding is not None and not known.unsettled else None
    return {
        "job": _plain(known.job),
        "id": shown_id(known.job),
        "waits": None
        if known.wait is None
        else {
            "reason": known.wait.reason,
            "sentence": known.wait.sentence,
            "facts": list(known.wait.facts),
            "advice": known.wait.advice or None,
        },
        "reason": reason,
        "settled": not known.unsettled,
        "confidence": round(finding.confidence, 3) if finding is not None else None,
        "finding": _plain(finding),
        "by": None if finding is None else "here" if finding is known.own else "service",
        "read": list(known.read),
        "similar": _plain(known.similar),
        "earlier": _plain(known.earlier),
        "resubmissions": [_plain(one) for one in known.again],
        "decision": known.decision.decision if known.decision is not None else None,
        "usage": _plain(known.usage),
        **dict(why_tasks.facts(known.tasks, _plain)),
        "not_known": list(known.troubles),
    }


def _plain(value: msgspec.Struct | None) -> Any:  # noqa: ANN401 - JSON
    # Not by its encoder, which refuses a name that is no UTF-8
    return None if value is None else msgspec.to_builtins(value)
