"""Where a request becomes an act or a refusal: one at a time, written down before it is done.

The order of the checks is that of their cost: what needs no Slurm comes first. Nothing here waits for anybody but
Slurm, and whatever comes in is answered.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from profiler.logs import one_line
from site_configs.site_model import Site
from slurm_plugins.act.checks import RETRY, UNSETTLED, Checks, RefusedError
from slurm_plugins.act.journal import Journal, JournalError
from slurm_plugins.act.ledger import Entry, Event, Held, Standing
from slurm_plugins.act.limits import Limits
from slurm_plugins.act.mark import add_mark, needs_mark
from slurm_plugins.act.slurm import Slurm
from slurm_plugins.act.verbs import VERBS, Seen, argv, came_about
from slurm_plugins.act.wire import Answer, MalformedError, Request, Result, digest_of, parse_request
from slurm_plugins.client.errors import NoSuchJob, SlurmError, SlurmNotInstalled, SlurmRefused
from slurm_plugins.client.states import JobState
from slurm_plugins.client.values import Job

__all__ = ["OFF", "Desk"]

OFF: Final = Path("/etc/gsub/act.off")
"""Where this file exists nothing is done but releases."""
_SETTLE: Final = 30.0
"""A command that was begun has ended or was ended after this; what is not to be seen then does not come."""

_GUARD: Final = 30.0
"""Seconds from one look at the jobs whose memory was set to the next."""

_log = logging.getLogger("gsub-act")


class Desk:
    """Answers lines.

    Parameters
    ----------
    site: what is in force; `cluster` and the modes are read from it each time.
    callers: the uids that may ask.
    off: a file that switches everything off while it exists.
    clock: seconds since the epoch.
    """

    def __init__(
        self,
        slurm: Slurm,
        journal: Journal,
        site: Callable[[], Site],
        *,
        callers: Callable[[], frozenset[int]],
        off: Path = OFF,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._slurm = slurm
        self._journal = journal
        self._callers = callers
        self._clock = clock
        self._checks = Checks(slurm, lambda: journal.book, site, off, clock)
        before = [one.asked for one in journal.book.standing.values()]
        self._limits = Limits(now=clock(), ended=[asked.at for asked in before if _ends(asked)])
        self._owed: list[Entry] = []
        """Ends that could not be written yet."""
        self._unseen: dict[str, float] = {}
        """Open requests that a look did not see come about, and when that was first."""
        self._guarded_at = float("-inf")
        self._later: dict[str, float] = {}
        """When something that did not work is tried again, by request or job."""

    # --- answering ----------------------------------------------------------------------------------------------------

    def answer(self, line: bytes, uid: int) -> bytes:
        """The answer to one line of a caller with this uid. Never raises."""
        if uid not in self._callers():
            return self.turn_away(uid, "only gsubd's user and root may ask")
        try:
            request = parse_request(line)
        except MalformedError as error:
            self._write_refusal(
                Entry(event="refused", at=self._clock(), id=error.id, uid=uid, said=error.why)
            )
            return Answer(id=error.id, result="refused", said=f"not a request: {one_line(error.why)}").line()
        try:
            return self._answer(request, uid).line()
        except RefusedError as refused:
            entry = _entry("refused", request, uid, self._clock(), said=refused.why)
            self._write_refusal(entry)
            return Answer(id=request.id, result="refused", said=refused.why, again=refused.again).line()
        except Exception:
            _log.exception("a fault while answering")
            said = "a fault in gsub-act: see its log"
            return Answer(id=request.id, result="unknown", said=said, again=_SETTLE).line()

    def turn_away(self, uid: int | None, why: str) -> bytes:
        """The answer to who is not heard at all."""
        self._write_refusal(Entry(event="refused", at=self._clock(), uid=uid, said=why))
        return Answer(id="", result="refused", said=why).line()

    def _write_refusal(self, entry: Entry) -> None:
        with suppress(OSError):
            self._journal.refused(entry)

    def _answer(self, request: Request, uid: int) -> Answer:
        before = self._journal.book.standing.get(request.id)
        if before is not None:
            return self._repeat(request, before)
        now = self._clock()
        checks = self._checks
        fields = checks.form(request, now)
        checks.not_silent()
        self._take_token(request, now)
        if not VERBS[request.verb].always:
            checks.standing(request, now)
        job = checks.look(request)
        try:
            checks.job(request, fields, job)
        except RefusedError as refused:
            if request.verb == "release":
                self._forget(request.job, refused.why)  # by whoever released it, or holds it now
            raise
        now = self._clock()
        checks.in_time(request, now)
        asked = _entry("asked", request, uid, now, restarts=job.restarts, fields=fields)
        comment = add_mark(job.comment) if request.verb == "update" and needs_mark(fields) else ""
        return self._do(asked, request, comment)

    def _repeat(self, request: Request, before: Standing) -> Answer:
        if before.asked.request != digest_of(request):
            raise RefusedError("this id was used for another request")
        if before.open and self._clock() >= self._later.get(request.id, 0.0):
            self._settle(before.asked)
            before = self._journal.book.standing.get(request.id, before)
        owed = [entry for entry in self._owed if entry.id == request.id]
        told = _told(Standing(before.asked, owed[-1]) if owed else before)
        return msgspec.structs.replace(told, repeat=True)

    def _take_token(self, request: Request, now: float) -> None:
        limits = self._limits
        ends = VERBS[request.verb].ends
        wait = limits.release(now) if request.verb == "release" else limits.take(request.job, now, ends=ends)
        if wait:
            raise RefusedError(f"too fast: again in {wait:.0f} s", round(wait + 0.05, 1))

    # --- doing --------------------------------------------------------------------------------------------------------

    def _do(self, asked: Entry, request: Request | None = None, comment: str = "") -> Answer:
        """Write it down, do it, write down how it ended. Raises RefusedError when it cannot be written down.

        `comment`: the Comment that an update gives the job, in the same command.
        """
        try:
            self._pay()
            self._journal.put(asked)
        except JournalError as error:
            raise RefusedError(f"the journal cannot be written, so nothing is done: {error}", RETRY) from None
        if _ends(asked):
            self._limits.end(asked.at)
        try:
            if request is not None:
                self._checks.in_time(request, self._clock())  # a disk may take its time too
            self._slurm.act(argv(asked.verb, asked.job, asked.fields, comment))
            if asked.verb == "hold" and not self._holds(asked.job):
                ended = self._end(
                    asked, "failed", "it is not held: it started first, or was released at once"
                )
            else:
                ended = self._end(asked, "done")
        except (RefusedError, SlurmRefused, NoSuchJob, SlurmNotInstalled) as error:
            ended = self._end(asked, "failed", str(error))
        except SlurmError as error:
            self._checks.was_silent()
            ended = self._end(asked, "unknown", str(error))
        except Exception as error:
            _log.exception("a fault while acting")
            ended = self._end(asked, "unknown", f"{type(error).__name__}: {error}")
        return _told(Standing(asked, ended))

    def _holds(self, name: str) -> bool:
        """Whether a job is held after we said so: it may have started between our look and the command."""
        try:
            job = self._slurm.job(name, nodes=False)
        except NoSuchJob:
            return False
        return not self._take_back(job, name) and job.held

    def _take_back(self, job: Job, name: str) -> bool:
        """Release a job that was held as it started: Slurm takes the hold of one that runs, for its next attempt.

        Of an array all of it, if a task has started.
        """
        started = job.state in (JobState.RUNNING, JobState.SUSPENDED) and job.priority == 0
        if started or (job.held and job.array_tasks is not None and self._slurm.begun(name)):
            self._slurm.act(argv("release", name, {}))
            return True
        return False

    def _end(self, asked: Entry, event: Event, said: str = "") -> Entry:
        """Write down how it ended; an end that cannot be written is owed, and nothing is begun until it is paid."""
        entry = _ended(asked, event, self._clock(), one_line(said))
        try:
            self._pay()
            self._journal.put(entry)
        except JournalError as error:
            _log.error("the journal cannot be written: %s; nothing more is done until it can", error)
            self._owed.append(entry)
        else:
            level = logging.INFO if event == "done" else logging.WARNING
            _log.log(level, "%s %s: %s%s (%s)", asked.verb, asked.job, event, said and f": {said}", asked.why)
        return entry

    def _pay(self) -> None:
        """Write the ends that are owed. Raises JournalError."""
        while self._owed:
            self._journal.put(self._owed[0])
            del self._owed[0]

    def _forget(self, job: str, why: str, *, verb: str = "") -> None:
        try:
            self._journal.put(Entry(event="forgot", at=self._clock(), job=job, verb=verb, said=one_line(why)))
        except JournalError as error:
            self._later[job] = self._clock() + RETRY
            _log.error("the journal cannot be written: %s", error)

    # --- looking after what is open, and what is held -----------------------------------------------------------------

    def tend(self) -> None:
        """Find out how open requests ended, and release what was held for long enough. Called every second or so."""
        now = self._clock()
        with suppress(JournalError):
            self._pay()
        self._journal.sum_up(now)
        self._tend_all(now)
        self._guard(now)
        book = self._journal.book
        known = book.standing.keys() | {held.job for held in book.all_held()}
        self._later = {key: at for key, at in self._later.items() if key in known}
        self._unseen = {key: at for key, at in self._unseen.items() if key in known}

    def _tend_all(self, now: float) -> None:
        """Stops where Slurm is silent: each look would take as long, and nobody be answered meanwhile."""
        for asked in self._journal.book.open:
            if now >= self._later.get(asked.id, 0.0) and not self._settle(asked):
                return
        off = self._checks.is_off
        in_doubt = {asked.job for asked in self._journal.book.open}
        for held in self._journal.book.all_held():
            due = (off or now >= held.until) and now >= self._later.get(held.job, 0.0)
            if due and held.job not in in_doubt:
                why = "gsub-act is switched off" if off else "nobody released it in time"
                if not self._let_go(held, why):
                    return

    def _guard(self, now: float) -> None:
        """Hold waiting jobs whose memory we set and that have grown beyond a limit since: Slurm would start them.

        The shim refuses such changes; this is for sites without it, and for what an operator changes.
        """
        guarded = self._journal.book.guarded
        if not guarded or 0 <= now - self._guarded_at < _GUARD or self._checks.is_off:
            return
        self._guarded_at = now
        with suppress(SlurmError):
            found: dict[str, Job] = {}
            for job in self._slurm.jobs([asked.job for asked in guarded]):
                found |= {job.shown_id: job, str(job.id): job}
            for asked in guarded:
                waits = found.get(asked.job)
                if waits is None or waits.state is not JobState.PENDING:
                    self._forget(asked.job, "it waits no more", verb="update")
                else:
                    self._stop_or_release(asked, waits)

    def _stop_or_release(self, asked: Entry, job: Job) -> None:
        """Raises SlurmError."""
        why = self._checks.find_excess(asked, job)
        stopped = self._journal.book.is_stopped(asked.job)
        if why and not stopped:
            verb, why = "stop", f"its memory was set by gsub-act, and {why}"
        elif stopped and not why:
            verb, why = "release", "it is within its limits again"
        else:
            return
        act = Entry(
            event="asked",
            at=self._clock(),
            id=f"act-{secrets.token_hex(8)}",
            job=asked.job,
            verb=verb,
            why=one_line(why)[:300],
            by=asked.by,
            restarts=job.restarts,
        )
        with suppress(RefusedError):
            self._do(act)

    def end(self, seconds: float) -> None:
        """Release all that is held, for so long at most: nobody would when we have gone."""
        until = time.monotonic() + seconds
        for asked in self._journal.book.open:
            # A hold whose answer got lost is ours to release too, once it is seen that it came about.
            verb = VERBS.get(asked.verb)  # a later version's journal may have others
            if verb and verb.holds and (time.monotonic() >= until or not self._settle(asked)):
                break
        for held in self._journal.book.all_held():
            if time.monotonic() >= until:
                _log.error("job %s stays held: gsub-act releases it when it is started again", held.job)
            elif held.certain:
                self._let_go(held, "gsub-act ends")
            else:
                _log.warning("it is not known whether job %s was held: see scontrol show job", held.job)
        self._journal.sum_up(self._clock(), at_once=True)

    def _settle(self, asked: Entry) -> bool:
        """Look in Slurm for what an open request was to bring about; whether Slurm answered."""
        now = self._clock()
        if self._owed:
            return True  # how it ended is known, and cannot be written down yet
        fields = asked.fields if asked.verb == "update" else {}
        try:
            job = self._slurm.job(asked.job, nodes="ExcNodeList" in fields)
            seen = Seen(job, asked.at, asked.restarts, self._slurm.memory(asked.job) if fields else {})
            taken_back = asked.verb == "hold" and self._take_back(job, asked.job)
        except NoSuchJob:
            self._end(asked, "failed", "Slurm has no such job any more")
            return True
        except SlurmError:
            self._later[asked.id] = self._clock() + RETRY
            return False
        if taken_back:
            self._end(asked, "failed", "it is not held: it started first")
            return True
        if came_about(asked.verb, asked.fields, seen):
            self._end(asked, "done", "seen in Slurm afterwards")
            return True
        first = self._unseen.setdefault(asked.id, now)
        if now - asked.at >= _SETTLE and now - first >= UNSETTLED:
            self._end(asked, "failed", "it did not come about")
        else:
            self._later[asked.id] = now + 1
        return True

    def _let_go(self, held: Held, why: str) -> bool:
        """Release a job by ourselves; whether Slurm answered."""
        try:
            job = self._slurm.job(held.job, nodes=False)
        except NoSuchJob:
            self._forget(held.job, "Slurm has no such job any more")
            return True
        except SlurmError:
            self._later[held.job] = self._clock() + RETRY
            return False
        against = VERBS["release"].against(job)
        if against:
            self._forget(held.job, against)
            return True
        asked = Entry(
            event="asked",
            at=self._clock(),
            id=f"act-{secrets.token_hex(8)}",
            job=held.job,
            verb="release",
            why=why,
            by=held.by,
            restarts=job.restarts,
        )
        try:
            done = self._do(asked)
        except RefusedError:
            # The disk is full: a job that stays held is worse than a release that nobody wrote down.
            with suppress(SlurmError):
                self._slurm.act(argv("release", held.job, {}))
            self._later[held.job] = self._clock() + RETRY
            return True
        if done.result != "done":
            self._later[held.job] = self._clock() + RETRY
        return done.result != "unknown"


def _entry(
    event: Event,
    request: Request,
    uid: int,
    at: float,
    *,
    restarts: int = 0,
    said: str = "",
    fields: Mapping[str, str] | None = None,
) -> Entry:
    return Entry(
        event=event,
        at=at,
        id=request.id,
        uid=uid,
        job=request.job,
        verb=request.verb,
        fields=dict(request.fields if fields is None else fields),
        why=request.why,
        by=request.by,
        until=request.until,
        restarts=restarts,
        expected=request.restarts,
        request=digest_of(request) if event == "asked" else "",
        said=said,
    )


def _ends(asked: Entry) -> bool:
    verb = VERBS.get(asked.verb)  # a later version's journal may have others
    return verb is not None and verb.ends


def _ended(asked: Entry, event: Event, at: float, said: str) -> Entry:
    return Entry(event=event, at=at, id=asked.id, job=asked.job, verb=asked.verb, said=said)


_RESULTS: Final[Mapping[str, Result]] = {"done": "done", "failed": "failed"}


def _told(standing: Standing) -> Answer:
    ended = standing.ended
    result = _RESULTS.get(ended.event, "unknown") if ended is not None else "unknown"
    said = ended.said if ended is not None and ended.said else ""
    if result == "unknown":
        said = said or "it is being found out what became of it"
    return Answer(
        id=standing.asked.id, result=result, said=said, again=UNSETTLED if result == "unknown" else None
    )
