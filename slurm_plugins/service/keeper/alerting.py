"""The site's rules on use: each minute all jobs that run are looked at, users are told, and gsub-act ends jobs.

What has to come together before anything follows is `profiler.watches`; on top of that Slurm itself has to say, just
then, that the very attempt runs. Nothing is done by what an earlier keeper knew alone: its watches are taken up, and
need two fresh samples of this keeper's own, like any other.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from profiler.alerts import Facts, Finding, allowed, evidence_of, facts_of, fresh_seconds
from profiler.answers import JobSummary, RuleTold, Usage
from profiler.logs import Troubles, one_line
from profiler.store.errors import StoreError
from profiler.store.use import in_use
from profiler.watches import ENOUGH, Watch, against_cancelling, anew, looked, pause_seconds, remembered
from profiler.whole_file import put
from profiler.wording import shown_id
from site_configs.site_model import Site
from slurm_plugins.act.ask import HandError, new
from slurm_plugins.act.checks import spared
from slurm_plugins.act.wire import Answer, Request
from slurm_plugins.client.errors import SlurmError, SlurmRefused
from slurm_plugins.client.states import JobFlag, JobState
from slurm_plugins.client.values import Job
from slurm_plugins.service.keeper.again_look import Slurm
from slurm_plugins.service.keeper.alert_mail import AlertMail, Attempt
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.keeper.resubmitting import Asker
from slurm_plugins.service.keeper.storing import Storing

__all__ = ["EVERY", "Alerting"]

_log = logging.getLogger("gsubd.keeper")

EVERY: Final = 60.0
"""Seconds from one look to the next."""
_MOST: Final = 50
"""Jobs about which Slurm is asked at a look; the others have their turn at the next."""
_T = TypeVar("_T")


class _Kept(msgspec.Struct):
    """What outlives a restart."""

    watches: list[Watch] = []


class Alerting:
    """Looks again and again; `run` ends only by being cancelled.

    Parameters
    ----------
    slurm: asked about single jobs, in a thread of its own.
    hand: gsub-act.
    file: watches are kept there.
    """

    def __init__(
        self,
        site: Site,
        storing: Storing,
        counts: Counts,
        slurm: Slurm,
        hand: Asker,
        *,
        mail: AlertMail,
        file: Path,
        every: float = EVERY,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._site = site
        self._storing = storing
        self._slurm = slurm
        self._hand = hand
        self.mail = mail
        self._file = file
        self._every = every
        self._now = now
        self._rules = site.alerts.every()
        self._fresh = fresh_seconds(site.agent)
        self._watches: dict[Attempt, dict[str, Watch]] | None = None
        self._last: Attempt = (0, 0)
        self._found: dict[Attempt, dict[str, Finding]] = {}
        self._untold: dict[Attempt, dict[str, RuleTold]] = {}
        """What the store is to be told yet."""
        self._later: dict[Attempt, float] = {}
        """When gsub-act may be asked again to end a job."""
        self._threads = ThreadPoolExecutor(1, "alerts")
        self._troubles = Troubles(_log)
        self._counted = counts.registry.counter(
            "gsub_alerts_total",
            "Rules on use that jobs came to meet, by rule and by what followed.",
            ["rule", "what"],
        )

    async def run(self) -> None:
        """Look, tell, end what is to end, wait, again."""
        try:
            while True:
                try:
                    await self.once()
                except (StoreError, RefusedError):
                    pass  # said by `Storing`
                except Exception:
                    # our bug: it must not end the looking for good
                    _log.exception("a fault while looking at how jobs use what they hold")
                await asyncio.sleep(self._every)
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def once(self) -> None:
        """One look. Raises StoreError, RefusedError, OSError."""
        store, cluster = self._storing.store, self._site.cluster
        if self._watches is None:
            self._watches = await asyncio.to_thread(self._read)
        self._hear()
        used = await self._storing.read(lambda: in_use(store, cluster))
        # In a thread: thousands of jobs must not hold up the API
        found, new = await asyncio.to_thread(self._look, used, self._watches)
        for finding in new:
            self._counted.add(finding.rule.name, "met")
            name = shown_id(finding.facts.job)
            _log.info("job %s meets %s: %s", name, finding.rule.name, evidence_of(finding))
        await self._follow(found)
        await asyncio.to_thread(self._save)
        if self.mail.on:
            await self._storing.aside("mail", lambda: self.mail.run_once(store, self._now()))
            self._hear()
        if self._untold:
            told = {key: tuple(rules.values()) for key, rules in self._untold.items()}
            await self._storing.write("told", lambda: store.put_told(cluster, told))
            self._untold = {}

    # --- looking ------------------------------------------------------------------------------------------------------

    def _look(
        self, used: Sequence[Usage], before: dict[Attempt, dict[str, Watch]]
    ) -> tuple[list[tuple[Finding, Watch]], list[Finding]]:
        """What the jobs meet now, and what of it they did not at the last look.

        Their watches are brought up to date, and those of jobs that have gone dropped.
        """
        now, all_found, new = self._now(), [], []
        after: dict[Attempt, dict[str, Watch]] = {}
        for usage in used:
            facts = facts_of(usage, now=now, fresh=self._fresh)
            key = _attempt(facts.job)
            watches = before.get(key, {})
            found = looked(
                self._rules,
                facts,
                watches,
                now=now,
                pause=pause_seconds(self._fresh),
                does=partial(allowed, site=self._site, job=facts.job),
            )
            kept = {watch.rule: watch for watch in remembered(self._rules, facts, watches)}
            kept |= {watch.rule: watch for _, watch in found}
            if kept:
                after[key] = kept
            new += [finding for finding, watch in found if watch.rule not in watches]
            all_found += found
        self._watches = after
        self._found = {}
        for finding, _ in all_found:
            self._found.setdefault(_attempt(finding.facts.job), {})[finding.rule.name] = finding
        self._later = {key: at for key, at in self._later.items() if key in after}
        return all_found, new

    # --- what follows -------------------------------------------------------------------------------------------------

    async def _follow(self, found: Sequence[tuple[Finding, Watch]]) -> None:
        """Tell users of what holds, and end jobs whose time is up; Slurm is asked about each of them before."""
        due: dict[Attempt, list[tuple[Finding, float]]] = {}
        asked: dict[Attempt, Job | None] = {}
        # Those first that come after whom Slurm was asked about last: each has its turn
        for finding, watch in sorted(found, key=lambda one: _attempt(one[0].facts.job) <= self._last):
            does = allowed(finding.rule, self._site, finding.facts.job)
            if does == "observe" or finding.exempt or watch.held < ENOUGH:
                continue
            of = finding.facts.job
            # A component's end would be that of the whole heterogeneous job
            ends = does == "cancel" and of.het_job_id is None and not against_cancelling(finding.rule, watch)
            key = _attempt(of)
            if watch.told is not None and (not ends or self._now() < self._later.get(key, 0.0)):
                continue
            if key not in asked:
                if len(asked) >= _MOST:
                    continue
                self._last = key
                name = shown_id(of) if of.het_job_id is None else str(of.job_id)
                try:
                    asked[key] = await self._thread(partial(self._slurm.job, name))
                except SlurmRefused:
                    asked[key] = None
                except SlurmError as error:
                    self._troubles.say(
                        "Slurm does not tell of jobs that meet a rule, nothing follows", one_line(str(error))
                    )
                    break
                self._troubles.say("Slurm does not tell of jobs that meet a rule, nothing follows", "")
            job = asked[key]
            if job is not None and job.state is JobState.SUSPENDED and finding.rule.do == "cancel":
                self._note(anew(watch, self._now()))  # its GPUs were taken from it, and that is no grace
            if job is None or not _is_it(job, finding):
                continue
            if watch.told is None:
                due.setdefault(key, []).append((finding, watch.since))
            elif self._is_fresh(watch):
                await self._end(finding, watch)
        self.mail.wanted(due)

    def _is_fresh(self, watch: Watch) -> bool:
        """Whether the evidence is: while Slurm took its time, it may have grown old."""
        now, oldest = self._now(), min((at for at, _ in watch.samples.values()), default=0.0)
        return watch.at <= now <= oldest + self._fresh

    async def _end(self, finding: Finding, watch: Watch) -> None:
        """Ask gsub-act to end a job. A fault of it, or of Slurm's, leaves the job alone until the next look."""
        try:
            answer = await self._thread(lambda: self._hand.ask(_request(self._site.cluster, finding, watch)))
        except HandError as error:
            self._troubles.say("gsub-act does not answer, no job is ended", one_line(str(error)))
            return
        self._troubles.say("gsub-act does not answer, no job is ended", "")
        self._after(finding, watch, answer)

    def _after(self, finding: Finding, watch: Watch, answer: Answer) -> None:
        key, name = _attempt(finding.facts.job), shown_id(finding.facts.job)
        if answer.result == "done":
            _log.warning("job %s is ended by %s: %s", name, watch.rule, evidence_of(finding))
            self._note(watch, done="done")
            self._remind(key, watch, cancelled=self._now())
        elif answer.again is not None:
            self._later[key] = self._now() + answer.again
            return
        else:
            said = one_line(answer.said, 300) or answer.result
            _log.warning("job %s is not ended by %s: %s", name, watch.rule, said)
            self._note(watch, done=said)
        self._counted.add(watch.rule, "ended" if answer.result == "done" else "not_ended")

    def _note(self, watch: Watch, **changes: object) -> None:
        watches = (self._watches or {}).get((watch.job_id, watch.restarts))
        if watches is not None:
            watches[watch.rule] = msgspec.structs.replace(watch, **changes)

    def _hear(self) -> None:
        """Users whose mail the server has taken have been told: their grace begins."""
        for job_id, restarts, rule, since in self.mail.taken():
            watch = (self._watches or {}).get((job_id, restarts), {}).get(rule)
            if watch is not None and watch.since == since and watch.told is None:
                self._note(watch, told=self._now(), grace=0.0)
                self._remind((job_id, restarts), msgspec.structs.replace(watch, told=self._now()))
                self._counted.add(rule, "told")

    def _remind(self, key: Attempt, watch: Watch, cancelled: float | None = None) -> None:
        """Let the store know that a job's user was told of a rule, and what followed."""
        found = self._found.get(key, {}).get(watch.rule)
        if found is not None and watch.told is not None:
            told = RuleTold(watch.rule, watch.told, found.rule.about, evidence_of(found), cancelled)
            self._untold.setdefault(key, {})[watch.rule] = told

    async def _thread(self, call: Callable[[], _T]) -> _T:
        waits: Awaitable[_T] = asyncio.get_running_loop().run_in_executor(self._threads, call)
        return await waits

    # --- kept ---------------------------------------------------------------------------------------------------------

    def _read(self) -> dict[Attempt, dict[str, Watch]]:
        try:
            kept = msgspec.json.decode(self._file.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning("%s is spoilt, and begun anew: %s", self._file, one_line(str(error)))
            return {}
        found: dict[Attempt, dict[str, Watch]] = {}
        for watch in kept.watches:
            of = found.setdefault((watch.job_id, watch.restarts), {})
            of[watch.rule] = msgspec.structs.replace(watch, held=0)
        return found

    def _save(self) -> None:
        """Raises OSError."""
        watches = [watch for each in (self._watches or {}).values() for watch in each.values()]
        put(self._file, msgspec.json.encode(_Kept(watches)), sync=False)


def _attempt(job: JobSummary) -> Attempt:
    return job.job_id, job.restarts


def _is_it(job: Job, finding: Finding) -> bool:
    """Whether Slurm says that this very attempt runs, and is none that the rule leaves alone."""
    facts: Facts = finding.facts
    same = job.id == facts.job.job_id and job.restarts == facts.job.restarts and job.uid == facts.job.uid
    runs = job.state is JobState.RUNNING and JobFlag.COMPLETING not in job.flags
    return same and runs and not spared(finding.rule, job)


def _request(cluster: str, finding: Finding, watch: Watch) -> Request:
    """The same each time for one time that a rule came to hold: who asks again is answered, and nothing done twice."""
    of = finding.facts.job
    about = hashlib.sha256(
        msgspec.json.encode([cluster, watch.job_id, watch.restarts, watch.rule, watch.since])
    )
    return new(
        "cancel",
        shown_id(of),
        cluster=cluster,
        why=one_line(f"{watch.rule}: {evidence_of(finding)}", 300),
        by=f"alert-{about.hexdigest()[:16]}",
        restarts=of.restarts,
        number=of.job_id if of.array_job_id not in (None, of.job_id) else None,
        own_id=f"r-{about.hexdigest()[:40]}",
    )
