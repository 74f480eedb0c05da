"""Told at a submission: that the user's last runs of this job name failed, and with what evidence.

Most failures of deep-learning jobs come again: 2.3 times a job, 38.8 times a user (Philly, ATC'19, section 4.2). Who
submits the same once more is told, in a line, while it still helps. Silent where a run has ended well since.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gsub.briefly import BUDGET, briefly, is_off

if TYPE_CHECKING:
    from gsub.service import Records
    from profiler.answers import JobSummary, VerdictAnswer

__all__ = ["SWITCH", "of_runs", "recall"]

SWITCH: Final = "GSUB_HINTS"
"""The variable that says "off"."""
_DAYS: Final = 7
_PAGE: Final = 50
_WIDTH: Final = 100


def recall(name: str, environ: Mapping[str, str] | None = None, *, budget: float = BUDGET) -> list[str]:
    """At most two lines about the last runs of that job name; none when nothing is known within `budget` seconds."""
    environ = os.environ if environ is None else environ
    if not name or is_off(environ, SWITCH):
        return []
    return briefly(lambda until: _look(name, environ, until), budget)


def _look(name: str, environ: Mapping[str, str], until: float) -> list[str]:
    """What the service knows. Raises all sorts of errors."""
    from gsub.service import of_site
    from site_configs.site import find_site, load_site

    path = find_site(environ)
    site = None if path is None else load_site(path)
    if site is None or not site.service.url:
        return []
    service = of_site(site, timeout=max(0.01, until - time.monotonic()))
    return _asked(name, service, time.time())


def _asked(name: str, service: Records, now: float) -> list[str]:
    page = service.jobs(uid=os.geteuid(), ended_since=int(now - _DAYS * 86400), limit=_PAGE)
    runs = [job for job in page.jobs if job.name == name]
    runs.sort(key=lambda job: job.ended or 0.0, reverse=True)
    if not runs or runs[0].state in (None, "COMPLETED", "CANCELLED"):
        return []
    return of_runs(runs, service.verdict(str(runs[0].job_id), runs[0].restarts), now)


def of_runs(runs: Sequence[JobSummary], last: VerdictAnswer, now: float) -> list[str]:
    """The lines about runs of one name, the last to end first, with the verdict on that one."""
    from gsub.term import one_line
    from profiler.wording import shown_id, span
    from prolog_epilog.failures.taxonomy import REASONS

    if last.verdict is None:
        return []
    finding = last.verdict.finding
    reason = REASONS.get(finding.reason)
    alike = last.similar.count if last.similar is not None and last.similar.by == "fingerprint" else 0
    # Once is no pattern, unless what failed cannot pass by itself
    if reason is None or not finding.evidence or (not alike and reason.retry != "never"):
        return []
    failed = 0
    for job in runs:
        if job.state in (None, "COMPLETED", "CANCELLED"):
            break
        failed += 1
    ago = span(max(0.0, now - (runs[0].ended or now)))
    several = f"the last {failed} runs" if failed > 1 else "the last run"
    text = one_line(finding.evidence[0].text)
    text = text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
    again = f", as {alike} more before" if alike else ""
    return [
        f"note: {several} of this name failed ({finding.reason}, {ago} ago{again}): {text}",
        f"  see: gsub why {shown_id(runs[0])}" + ("" if failed > 1 else f"   (not again: {SWITCH}=off)"),
    ]
