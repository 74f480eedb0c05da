"""Receipts of jobs that have ended, at the user's next command: once each, on a terminal, and never in the way.

All that may take time (the service, MUNGE, a home directory on a network) is done in a thread that is left alone when
the budget is spent. What was shown is written down before it is shown: a receipt may be missed, and is not repeated.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from gsub.briefly import BUDGET, briefly, is_off
from gsub.term import is_terminal
from profiler.whole_file import put

if TYPE_CHECKING:
    from gsub.service import Records
    from profiler.answers import JobSummary

__all__ = ["BUDGET", "SWITCH", "Memory", "due", "memory_folder", "show"]

SWITCH: Final = "GSUB_RECEIPTS"
"""The variable that says "off"."""
AT_ONCE: Final = 3
"""Receipts at a time; of more jobs one line tells."""

_PATIENCE: Final = 600.0  # seconds after which a node that has not told its end is not waited for
_RECENT: Final = 7 * 86400.0
_FIRST: Final = 86400.0  # who uses gsub for the first time is told of the last day
_PAGE: Final = 200
_AGAIN: Final = 10.0  # seconds between two questions: commands in a loop
_SILENCE: Final = 300.0  # ... after the service did not answer
_CUT_OFF: Final = 60.0  # ... after the time was up: the service may be slow, or only this host
_KEPT: Final = 4000
_MARGIN: Final = 0.05  # seconds in which what was shown is written down
_HINT: Final = f"(once for each job; again with 'gsub usage --receipt JOB'; not at all with {SWITCH}=off)"


def show(
    environ: Mapping[str, str] | None = None, stream: IO[str] | None = None, *, budget: float = BUDGET
) -> None:
    """Print what is due on `stream` (standard error); takes `budget` seconds at most and never raises an Exception."""
    environ, stream = os.environ if environ is None else environ, stream or sys.stderr
    if not is_terminal(stream) or is_off(environ, SWITCH):
        return
    found = briefly(lambda until: _due_here(environ, until), budget)
    with suppress(Exception):
        if found:
            print("\n".join(("", *found)), file=stream, flush=True)


def _due_here(environ: Mapping[str, str], until: float) -> list[str]:
    """What is due to this user of this site, within the time. Raises all sorts of errors."""
    from site_configs.site import find_site, load_site

    path = find_site(environ)
    site = None if path is None else load_site(path)
    if site is None or not site.service.url or not site.receipt.shown:
        return []
    folder = memory_folder(environ)
    if folder is None:
        return []
    from gsub.service import of_site

    with Memory.opened(folder, site.cluster) as memory:
        if memory is None or not memory.may_ask(time.time()):
            return []
        service = of_site(site, timeout=max(0.01, until - time.monotonic()))
        return due(service, memory, os.geteuid(), time.time(), until)


def due(service: Records, memory: Memory, uid: int, now: float, until: float) -> list[str]:
    """The lines to show now; they are written down as shown. None once `until` (monotonic) is near. Raises OSError."""
    from gsub.errors import UserError
    from profiler.receipt import receipt

    # Beforehand: when the time is up nothing more is written down, and the next command would wait in vain again
    memory.asked(now, again=_CUT_OFF)
    memory.save()
    try:
        page = service.jobs(uid=uid, ended_since=int(memory.begin(now)), limit=_PAGE)
        jobs = [job for job in page.jobs if _worth(job, now) and memory.is_news(job, now)]
        jobs.sort(key=lambda job: job.ended or 0.0)
        shown = jobs[-AT_ONCE:]
        blocks = [receipt(service.usage(str(job.job_id), job.restarts)) for job in shown]
    except UserError:
        memory.asked(now, again=_SILENCE)
        memory.save()
        return []
    if time.monotonic() > until - _MARGIN:
        return []  # they are news at a later command
    first = memory.empty
    memory.asked(now, again=_AGAIN)
    memory.add(jobs, now)
    if page.next is not None:  # those before them are not worth a page at each of the next commands
        memory.pass_over(min((job.ended for job in page.jobs if job.ended is not None), default=now))
    memory.save()
    lines = [line for block in blocks for line in block]
    if len(jobs) > len(shown):
        more = f"{'at least ' if page.next is not None else ''}{len(jobs) - len(shown)}"
        lines.append(f"... and {more} more of your jobs have ended: gsub usage --receipt JOB")
    return [*lines, _HINT] if lines and first else lines


def _worth(job: JobSummary, now: float) -> bool:
    """Whether there is a receipt to show: it held GPUs, it is over, and its nodes have told or had time to."""
    from profiler.receipt import ENDED

    if job.ended is None or job.state not in ENDED or not (job.gpus or job.gpus_known):
        return False
    return job.complete or now - job.ended > _PATIENCE


def memory_folder(environ: Mapping[str, str]) -> Path | None:
    """`$XDG_STATE_HOME/gsub` or `~/.local/state/gsub`; None where that is not this user's own (sudo keeps HOME)."""
    stated = environ.get("XDG_STATE_HOME", "")
    # a relative path there is to be ignored (XDG Base Directory Specification)
    base = Path(stated) if stated.startswith("/") else None
    if base is None:
        home = environ.get("HOME", "")
        if not home.startswith("/"):
            return None
        base = Path(home, ".local", "state")
        if Path(home).stat().st_uid != os.geteuid():
            return None
    folder = base / "gsub"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder if folder.stat().st_uid == os.geteuid() else None


@dataclass
class Memory:
    """What was shown of a cluster's jobs, and when the service may be asked again: `receipts.json`."""

    file: Path
    cluster: str
    all: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def opened(cls, folder: Path, cluster: str) -> _Opened:
        """A context: the memory, or None while another command holds it. Raises OSError."""
        return _Opened(folder, cluster)

    @property
    def _mine(self) -> dict[str, Any]:
        mine = self.all.get(self.cluster)
        if not isinstance(mine, dict) or not isinstance(mine.get("shown"), dict):
            mine = self.all[self.cluster] = {"shown": {}}
        return mine

    @property
    def empty(self) -> bool:
        """Whether nothing was ever shown."""
        return not self._mine["shown"]

    def may_ask(self, now: float) -> bool:
        """Whether it is time to ask the service. A clock that was set back is no reason to wait for long."""
        after = self._mine.get("ask_after")
        return not isinstance(after, int | float) or not now < after <= now + _SILENCE

    def asked(self, now: float, *, again: float) -> None:
        """The service was asked; not again for `again` seconds."""
        self._mine["ask_after"] = now + again
        self._mine.setdefault("since", now - _FIRST)

    def begin(self, now: float) -> float:
        """What ended before this time is no news."""
        since = self._mine.get("since")
        return max(since if isinstance(since, int | float) else now - _FIRST, now - _RECENT)

    def pass_over(self, before: float) -> None:
        """What ended before this time counts as shown."""
        self._mine["since"] = before

    def is_news(self, job: JobSummary, now: float) -> bool:
        """Whether its receipt was not shown, and it ended not too long ago."""
        return (job.ended or 0.0) >= self.begin(now) and _key(job) not in self._mine["shown"]

    def add(self, jobs: Sequence[JobSummary], now: float) -> None:
        """These are shown; what is too old to come up again is forgotten."""
        shown: dict[str, float] = {
            key: ended
            for key, ended in self._mine["shown"].items()
            if isinstance(ended, int | float) and ended >= now - _RECENT - 86400
        }
        shown |= {_key(job): job.ended or now for job in jobs}
        newest = sorted(shown.items(), key=lambda pair: pair[1])[-_KEPT:]
        self._mine["shown"] = dict(newest)

    def save(self) -> None:
        """Write it down: all of it, or nothing. Raises OSError."""
        put(self.file, json.dumps(self.all | {"v": 1}).encode())


class _Opened:
    """Holds the lock of a `Memory`."""

    def __init__(self, folder: Path, cluster: str) -> None:
        self._folder = folder
        self._cluster = cluster
        self._lock = -1

    def __enter__(self) -> Memory | None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock = os.open(self._folder / "receipts.lock", flags, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None  # another command of the same user is about to show them
        file = self._folder / "receipts.json"
        try:
            known = json.loads(file.read_bytes())
        except (FileNotFoundError, ValueError):  # none yet, or spoilt: begin anew
            known = {}
        return Memory(file, self._cluster, known if isinstance(known, dict) else {})

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)


def _key(job: JobSummary) -> str:
    return f"{job.job_id}/{job.restarts}"
