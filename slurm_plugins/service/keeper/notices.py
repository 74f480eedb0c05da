"""Mail about what was done after failures, where the site wants it: a receipt's ways, with other words.

    notices = Notices(site, state / "notices.json")
    notices.decided(rows)              # whenever rows are in the store; only remembers them
    notices.run_once(store, now)       # every so often, in a thread

A user hears what was tried again, and of what was not if there is something to type. What is never tried again has its
verdict in `gsub why`; a mail about each failure would be one too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from profiler.answers import JobSummary, Usage
from profiler.resubmissions import Resubmission, Stop
from profiler.store import Store
from profiler.wording import plain, shown_id
from site_configs.site_model import Site
from slurm_plugins.service.keeper.mail import NAMED, Due, Judged, Mailer, Records, Waiting
from slurm_plugins.service.keeper.smtp import Post

__all__ = ["Notices"]

_SILENT: Final[frozenset[Stop]] = frozenset({"never", "confidence", "mode", "off", "moved_on"})
"""Ends that are not written about: nothing was to be done, or somebody else has done it."""
_TOO_OLD: Final = 86400.0
_WIDTH: Final = 600


class Notices(Mailer):
    """See the module. `decided` and `run_once` may be called from different threads."""

    _kind = "gsub-again"

    def __init__(
        self,
        site: Site,
        file: Path,
        *,
        post: Callable[[], Post] | None = None,
        count: Callable[[str], object] = lambda how: None,
        sender: str = "",
    ) -> None:
        super().__init__(site.receipt, site.cluster, file, post=post, count=count, sender=sender)
        self._wanted = site.resubmit.mail
        self._rows: dict[tuple[int, int], Resubmission] = {}

    @property
    def on(self) -> bool:
        """Whether the site wants this mail."""
        return self._wanted

    def decided(self, rows: Iterable[Resubmission]) -> None:
        """These are in the store. Quick, and never waits for anything."""
        if self.on:
            self._remember([Waiting(row.job_id, row.restarts, None) for row in rows if _worth_it(row)])

    def _judged(self, store: Records, one: Waiting, now: float) -> Judged:
        if not isinstance(store, Store) or one.restarts is None:
            return None
        job = store.job(self._cluster, one.job_id, one.restarts)
        rows = [
            row
            for row in store.resubmissions(self._cluster, one.job_id, job.uid if job is not None else None)
            if row.restarts == one.restarts and _worth_it(row)
        ]
        if job is None or not rows or now - rows[-1].at > _TOO_OLD or not self._addressed(job):
            return None
        self._rows[job.job_id, job.restarts] = rows[-1]
        return Due(one, Usage(job, ()))

    def _subject(self, jobs: Sequence[JobSummary]) -> str:
        if len(jobs) > 1:
            return f"{len(jobs)} jobs have failed"
        row = self._rows[jobs[0].job_id, jobs[0].restarts]
        what = "is tried again" if row.state == "done" else "has failed, and is not tried again"
        return f"job {shown_id(jobs[0])} {what}{f': {jobs[0].name}' if jobs[0].name else ''}"

    def _body(self, usages: Sequence[Usage]) -> Iterator[str]:
        rows = [self._rows.pop((usage.job.job_id, usage.job.restarts)) for usage in usages]
        for usage, row in zip(usages[:NAMED], rows, strict=False):
            yield plain(f"job {shown_id(usage.job)} ({row.reason}): {row.why}", _WIDTH)
            if row.command:
                yield f"    {plain(row.command, _WIDTH)}"
        if len(usages) > NAMED:
            yield f"... and {len(usages) - NAMED} more"
        yield ""
        yield f"'gsub why {shown_id(usages[0].job)}' shows why, and what was done. "
        yield "--comment=gsub:resubmit=off: gsub does not try that job again."


def _worth_it(row: Resubmission) -> bool:
    return row.state == "done" or (row.state == "stopped" and row.stop not in _SILENT)
