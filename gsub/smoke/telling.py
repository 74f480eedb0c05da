"""What came of a smoke run, as a `Result`: judged, with the files that it changed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gsub.smoke.result import CHANGED, Line, Result
from gsub.smoke.steps import MARK

if TYPE_CHECKING:
    from gsub.smoke.judging import Judged
    from gsub.smoke.plan import Plan
    from gsub.smoke.runner import Ended, Run
    from gsub.smoke.watching import Watched
    from prolog_epilog.failures.text import LogText

__all__ = ["keep_output", "left_alone", "told"]


def told(job: Run, watched: Watched, ended: Ended) -> Result:
    """The result but for what it cost and what was held."""
    result = _judged(job, watched, ended)
    names, more, note = _changed(job, watched)
    return msgspec.structs.replace(
        result,
        exit_code=ended.code,
        peak_memory=watched.peak,
        steps_per_second=job.measuring.rate if job.measuring else 0.0,
        points=job.measuring.points if job.measuring else (),
        changed=names,
        changed_more=more,
        changed_note=note,
        kept="overlay" if job.overlay is not None else "none",
        kept_why=job.kept_why,
    )


def _judged(job: Run, watched: Watched, ended: Ended) -> Result:
    from gsub.render import duration
    from gsub.smoke.denied import denied
    from gsub.smoke.judging import Setting, verdict
    from gsub.smoke.overlay import OUTSIDE

    plan = job.plan
    base = Result(smoke=job.smoke, real=plan.real, mode=plan.mode, outcome="inconclusive", key=plan.key)
    if ended.how in ("started", "gone", "way"):
        return left_alone(plan, job.smoke, ended.how)
    sentence = {
        "signal": "the smoke job itself was ended (cancelled, preempted, or out of time)",
        "room": "it wrote more than can be kept apart here",
        "learnt": f"it ran for {duration(watched.seconds)} and was measured",
        "time": f"it ran for {duration(watched.seconds)} and was alive",
        "exit": f"it ended well after {duration(watched.seconds)}",
    }
    if ended.how in ("time", "learnt") or (ended.how == "exit" and ended.code == 0):
        return msgspec.structs.replace(base, outcome="passed", sentence=sentence[ended.how])
    if ended.how != "exit":
        return msgspec.structs.replace(base, sentence=sentence[ended.how])
    apart = job.overlay
    wrote = frozenset(Path(path).name for path in apart.changed()) if apart else frozenset()
    steps = (job.folder / MARK).exists() or any(OUTSIDE.fullmatch(word) for word in watched.words)
    judged = verdict(_log(watched), ended.code, Setting(apart is not None, wrote - {""}, steps))
    found = judged.finding
    if (
        apart is not None
        and judged.outcome == "inconclusive"
        and found is not None
        and found.reason == "permission_error"
        and denied(found.evidence[0].text if found.evidence else "", plan.cwd)
    ):  # so it is no doing of the overlay
        judged = verdict(_log(watched), ended.code, Setting(False, frozenset(), steps))
        found = judged.finding
    if found is None:
        return msgspec.structs.replace(base, sentence=judged.sentence)
    judged = _but_for_what_it_lacks(job, judged, _log(watched))
    return msgspec.structs.replace(
        base,
        outcome=judged.outcome,
        sentence=judged.sentence,
        reason=found.reason,
        advice=found.advice if judged.outcome == "failed" else "",
        evidence=tuple(Line(one.file or one.what, one.line, one.text) for one in found.evidence[:8]),
    )


def _but_for_what_it_lacks(job: Run, judged: Judged, log: LogText) -> Judged:
    """The judgement again, with what only the real job has in mind."""
    from gsub.smoke.judging import Judged, spoken
    from gsub.smoke.otherwise import doubt

    plan, found = job.plan, judged.finding
    if judged.outcome != "failed" or found is None:
        return judged
    why = doubt(
        found.reason,
        spoken(found, log),
        job=job.smoke,
        outputs=plan.outputs,
        asks=job.asks,
        array=bool(plan.array),
        script=plan.script.decode(errors="replace"),
    )
    return Judged("inconclusive", f"it failed by {found.reason}, but {why}", found) if why else judged


def _log(watched: Watched) -> LogText:
    from prolog_epilog.failures.text import LogText

    head, tail = watched.output.text
    if not watched.output.left_out:
        return LogText.of("output", head + tail)
    return LogText.of(
        "output", head, tail, unseen=(f"output: {watched.output.left_out} bytes amid it were not kept",)
    )


def _changed(job: Run, watched: Watched) -> tuple[tuple[str, ...], int, str]:
    """Names of files that it changed, how many more, and what was not looked at."""
    from gsub.smoke.changed import changes, look

    apart = job.overlay
    ours = (str(job.folder), *((job.plan.state,) if job.plan.state else ()))
    found: dict[str, None] = {}
    note = ""
    if apart is not None:
        found |= dict.fromkeys(apart.changed())
    if job.before is not None:
        roots = [path for path in (job.plan.cwd, *job.named) if apart is None or not apart.covers(path)]
        opened = [path for path in watched.opened if apart is None or not apart.covers(path)]
        seen = changes(job.before, look(roots), opened=opened, ours=ours)
        if apart is not None and seen.paths:
            note = f"not kept apart of these: {', '.join(seen.paths[:5])}"
        elif seen.cut:
            note = "there are too many files to look at them all: others may have changed"
        found = dict.fromkeys(seen.paths) | found
    names = list(found)
    return tuple(names[:CHANGED]), max(0, len(names) - CHANGED), note


def keep_output(plan: Plan, smoke: int, watched: Watched) -> None:
    """What the script said, its two ends, beside the result."""
    if not plan.state or not smoke:
        return
    head, tail = watched.output.text
    with suppress(OSError):
        folder = Path(plan.state, "smoke", str(smoke))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(head)
            if watched.output.left_out:
                file.write(f"\n... {watched.output.left_out} bytes left out ...\n".encode())
            file.write(tail)


def left_alone(plan: Plan, smoke: int, standing: str) -> Result:
    """The result where the real job has started, or is gone."""
    why = {
        "started": "the real job has started",
        "way": "a job of yours waits for nothing but the GPU that this run held",
    }.get(standing, "the real job is gone")
    return Result(smoke=smoke, real=plan.real, mode=plan.mode, outcome="left", sentence=why, key=plan.key)
