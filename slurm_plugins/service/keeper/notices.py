"""Mail about what was done after failures, where the site wants it: a receipt's ways, with other words.

    notices = Notices(site, state / "notices.json")
    notices.decided(rows)              # whenever rows are in the store; only remembers them
    notices.run_once(store, now)       # every so often, in a thread

A user hears what was tried again, and of what was not if there is something to type. What is never tried again has its
verdict in `gsub why`; a mail about each failure would be one too many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

from profiler.answers import Usage
from profiler.resubmissions import Resubmission, Stop
from profiler.store import Store
from profiler.wording import plain, shown_id
from slurm_plugins.service.keeper.mail import NAMED, Due, Judged, Mailer, Records, Waiting

__all__ = ["Notices"]

_SILENT: Final[frozenset[Stop]] = frozenset({"never", "confidence", "mode", "off", "moved_on"})
"""Ends that are not written about: nothing was to be done, or somebody else has done it."""
_TOO_OLD: Final = 86400.0
_WIDTH: Final = 600


@dataclass(frozen=True, slots=True)
class _Due(Due):
    """A mail that is due about what followed a failure."""

    row: Resubmission


class Notices(Mailer):
    """See the module. `decided` and `run_once` may be called from different threads."""

    _kind = "gsub-again"

    @property
    def on(self) -> bool:
        """Whether the site wants this mail."""
        return self._site.resubmit.mail

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
        return _Due(one, Usage(job, ()), rows[-1])

    def _subject(self, dues: Sequence[Due]) -> str:
        if len(dues) > 1:
            return f"{len(dues)} jobs have failed"
        job, row = dues[0].usage.job, _row(dues[0])
        what = "is tried again" if row.state == "done" else "has failed, and is not tried again"
        return f"job {shown_id(job)} {what}{f': {job.name}' if job.name else ''}"

    def _body(self, dues: Sequence[Due]) -> Iterator[str]:
        for due in dues[:NAMED]:
            row = _row(due)
            yield plain(f"job {shown_id(due.usage.job)} ({row.reason}): {row.why}", _WIDTH)
            if row.command:
                yield f"    {plain(row.command, _WIDTH)}"
        if len(dues) > NAMED:
            yield f"... and {len(dues) - NAMED} more"
        yield ""
        yield f"'gsub why {shown_id(dues[0].usage.job)}' shows why, and what was done. "
        yield "--comment=gsub:resubmit=off: gsub does not try that job again."


def _row(due: Due) -> Resubmission:
    return cast(_Due, due).row  # `_judged` makes no other


def _worth_it(row: Resubmission) -> bool:
    return row.state == "done" or (row.state == "stopped" and row.stop not in _SILENT)
