"""Whether a request may be done: by its form and the tables, by the site and the rights, and by the job as it is.

Nothing here changes anything. What is in the way is raised as a `RefusedError`, a sentence for who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from profiler.alerts import exempted
from profiler.logs import one_line
from site_configs.alerts_table import Rule
from site_configs.site_model import MODES, Mode, Site
from slurm_plugins.act.allowed import Need, find_excess, find_obstacle, need_of
from slurm_plugins.act.ledger import MOST_PROMISED, Book, Entry
from slurm_plugins.act.slurm import Rights, Slurm
from slurm_plugins.act.verbs import FIELDS, VERBS, WrongFieldError, check_fields
from slurm_plugins.act.wire import STALE, Request
from slurm_plugins.client.errors import NoSuchJob, SlurmError, SlurmRefused, SlurmUnreachable
from slurm_plugins.client.values import Job
from slurm_plugins.limits.bounds import NotKnownError

__all__ = ["MOST_HELD", "RETRY", "UNSETTLED", "Checks", "RefusedError", "mode_of", "spared"]

MOST_HELD: Final = 1000
RETRY: Final = 10.0
"""Seconds after which what did not work is tried again."""
UNSETTLED: Final = 5.0
"""Seconds between two looks that do not see it: a controller that hung answers a look beside what came before."""
_QUIET: Final = 5.0
"""Seconds for which a Slurm that was silent is not asked again: the next request would wait as long for nothing."""
_RIGHTS: Final = 600.0
"""How long what Slurm lets us do is taken for known; what it does not let us do, for `RETRY`."""
_RIGHTS_UNTOLD: Final = 60.0
"""The same where slurmdbd did not tell: sacctmgr waits long for one that is away."""
_KNOWN_FOR: Final[Mapping[bool | None, float]] = {True: _RIGHTS, False: RETRY, None: _RIGHTS_UNTOLD}
_AHEAD: Final = 60.0
"""How far the asker's clock may be ahead."""
_ENDS_WITHIN: Final = 30.0
"""Seconds after which a request to end a job is not taken any more: the job may have begun to compute since."""


class RefusedError(Exception):
    """Not done, and why; `again`: in how many seconds it may be."""

    def __init__(self, why: str, again: float | None = None) -> None:
        self.why = why
        self.again = again
        super().__init__(why)


class Checks:
    """Looks at requests before they are done.

    Parameters
    ----------
    book: what was done so far.
    site: what is in force.
    off: a file that switches everything off while it exists.
    clock: seconds since the epoch.
    """

    def __init__(
        self,
        slurm: Slurm,
        book: Callable[[], Book],
        site: Callable[[], Site],
        off: Path,
        clock: Callable[[], float],
    ) -> None:
        self._slurm = slurm
        self._clock = clock
        self._book = book
        self._site = site
        self._off = off
        self._rights: tuple[float, Rights] | None = None
        self._silent_until = 0.0

    @property
    def is_off(self) -> bool:
        """Whether the off switch is set."""
        try:
            self._off.lstat()
        except FileNotFoundError:
            return False
        except OSError:
            return True  # what cannot be looked at may be there
        return True

    # --- without Slurm ------------------------------------------------------------------------------------------------

    def form(self, request: Request, now: float) -> dict[str, str]:
        """The fields as Slurm takes them, if all is well that can be seen without Slurm. Raises RefusedError."""
        verb = VERBS.get(request.verb)
        if verb is None or verb.own:
            verbs = ", ".join(name for name, one in VERBS.items() if not one.own)
            raise RefusedError(f"no verb of ours; there are {verbs}")
        if request.fields and (verb.ends or not verb.attempt):
            raise RefusedError(f"{request.verb} has no fields")
        try:
            # those of a requeue are looked at and not set: what may not follow it is better known before
            fields = check_fields(request.fields) if request.fields or request.verb == "update" else {}
        except WrongFieldError as error:
            raise RefusedError(one_line(str(error))) from None
        self.in_time(request, now)
        if request.until is not None:
            if not verb.holds:
                raise RefusedError(f"{request.verb} holds nothing: `until` goes with hold and requeuehold")
            if not now < request.until <= now + MOST_PROMISED + _AHEAD:
                raise RefusedError("`until` lies within the next hour")
        if request.restarts is not None and not verb.attempt:
            raise RefusedError(
                f"{request.verb} is not of one attempt: `restarts` goes with requeue and update"
            )
        if request.restarts is None and verb.ends:
            raise RefusedError(f"{request.verb} is of one attempt: name it (`restarts`)")
        if request.cluster != self._site().cluster:
            raise RefusedError("the job is another cluster's")
        if not verb.always and self.is_off:
            raise RefusedError(f"an administrator has switched gsub-act off ({self._off})")
        book = self._book()
        if request.verb == "release" and book.held(request.job) is None:
            raise RefusedError("gsub-act does not hold this job, and releases no hold but its own")
        if verb.holds and len(book.all_held()) >= MOST_HELD:
            raise RefusedError(f"{MOST_HELD} jobs are held already", RETRY)
        if any(asked.job == request.job for asked in book.open):
            raise RefusedError("an earlier request for this job has not been settled yet", UNSETTLED)
        return fields

    def in_time(self, request: Request, now: float) -> None:
        """It was asked not long ago; to end a job, a moment ago. Raises RefusedError."""
        ends = VERBS[request.verb].ends
        if not -(_ENDS_WITHIN if ends else STALE) <= request.at - now <= _AHEAD:
            why = "it was asked too long ago, or in the future: ask anew, with the time of now"
            raise RefusedError(why, RETRY if ends else None)

    # --- the site and our rights --------------------------------------------------------------------------------------

    def standing(self, request: Request, now: float) -> None:
        """The site may have said observe for everybody, and Slurm no to us. Raises RefusedError."""
        site = self._site()
        if "enforce" not in site.modes:
            raise RefusedError(f"the site is in {site.policy.mode}: only release is done")
        if VERBS[request.verb].ends and not site.alerts.cancel:
            raise RefusedError("the site does not let gsub end jobs (alerts.cancel)")
        rights = self.rights(now)
        if rights.enough is False:
            raise RefusedError(f"Slurm does not let gsub-act do this: {rights.why}")
        if rights.cluster and rights.cluster != request.cluster:
            raise RefusedError(f"slurmctld here is that of cluster {rights.cluster}")

    def rights(self, now: float) -> Rights:
        """What Slurm lets us do, asked for once in a while."""
        if self._rights is not None:
            asked, found = self._rights
            if found.slurm_uid is not None and 0 <= now - asked <= _KNOWN_FOR[found.enough]:
                return found
        self._rights = now, self._slurm.rights()
        return self._rights[1]

    # --- a Slurm that is silent ---------------------------------------------------------------------------------------

    def not_silent(self) -> None:
        """Raises RefusedError where Slurm was silent a moment ago.

        All requests are done in one row: each would wait for Slurm's silence to end, and who asks last the longest.
        """
        left = self._silent_until - self._clock()
        if 0 < left <= _QUIET:  # else the clock was set back
            raise RefusedError(
                "Slurm was not reached a moment ago, nothing was done", max(1.0, round(left, 1))
            )

    def was_silent(self) -> None:
        """Slurm did not answer: ask nothing of it for a moment."""
        self._silent_until = self._clock() + _QUIET

    def _unreached(self, error: SlurmError) -> RefusedError:
        # without slurmdbd all goes on but what needs it
        if isinstance(error, SlurmUnreachable) and error.daemon != "slurmdbd":
            self.was_silent()
        return RefusedError(f"Slurm was not reached, nothing was done: {one_line(str(error))}", RETRY)

    # --- the job ------------------------------------------------------------------------------------------------------

    def look(self, request: Request) -> Job:
        """The job as it is. Raises RefusedError."""
        # Nodes that it excludes stay so through a requeue: they count when they are to be changed
        nodes = request.verb == "update" and "ExcNodeList" in request.fields
        try:
            return self._slurm.job(request.job, nodes=nodes, number=request.number)
        except NoSuchJob:
            raise RefusedError("Slurm has no such job (any more)") from None
        except SlurmRefused as error:
            raise RefusedError(f"Slurm does not tell of this job: {one_line(str(error))}") from None
        except SlurmError as error:
            raise self._unreached(error) from None

    def job(self, request: Request, fields: Mapping[str, str], job: Job) -> None:
        """What is asked for makes sense for the job, and may be done to it. Raises RefusedError."""
        verb = VERBS[request.verb]
        if not verb.always:
            slurm_uid = self._rights[1].slurm_uid if self._rights else None
            if slurm_uid is None:
                raise RefusedError("it is not known who SlurmUser is, whose jobs are left alone", RETRY)
            if job.uid is None or job.uid in (0, slurm_uid):
                raise RefusedError("jobs of root and of SlurmUser are left alone")
            mode = mode_of(self._site(), job)
            if mode != "enforce":
                raise RefusedError(f"the site is in {mode} for this job: only release is done")
        why = _restarted(request, job) or verb.against(job)
        if verb.ends and not why and job.shown_id != request.job:
            # An array's last task has the array's own number, by which Slurm ends all of its tasks
            why = f"it is known as {job.shown_id}: ask for that"
        if verb.ends and not why:
            # By whichever rule: what the job does is not seen from here
            against = [spared(rule, job) for rule in self._site().alerts.every() if rule.do == "cancel"]
            if all(against):
                why = against[0] if against else 'no rule of the site ends jobs (do = "cancel")'
        if request.verb == "hold" and not why and self._has_begun(request.job, job):
            why = "tasks of this array run already: Slurm would hold their next attempts too"
        for name, value in fields.items():
            why = why or FIELDS[name].against(value, job)
        if why:
            raise RefusedError(why, verb.passes(job))
        need = need_of(job, fields)
        if need is not None:
            self._memory(job, need)

    def _has_begun(self, name: str, job: Job) -> bool:
        """Whether tasks of an array run, of which `job` is what waits. Raises RefusedError."""
        try:
            return job.array_tasks is not None and self._slurm.begun(name)
        except SlurmError as error:
            raise self._unreached(error) from None

    # --- its memory ---------------------------------------------------------------------------------------------------

    def _memory(self, job: Job, need: Need) -> None:
        """Slurm lets an operator ask for more than a partition has or accounting allows. Raises RefusedError."""
        try:
            why = find_obstacle(job, need, self._slurm.room(job))
        except NotKnownError as error:
            why = one_line(str(error))
        except SlurmError as error:
            raise self._unreached(error) from None
        if why:
            raise RefusedError(why)

    def find_excess(self, asked: Entry, job: Job) -> str:
        """Why a job that waits has more memory than it may, by the update that set it; empty: it has not, or Slurm does
        not say. Raises SlurmError."""
        need = need_of(job, asked.fields)
        try:
            return "" if need is None else find_excess(job, need, self._slurm.room(job))
        except NotKnownError:
            return ""


def mode_of(site: Site, job: Job) -> Mode:
    """How far gsub may go with a job: in the most cautious of the partitions that it may start in."""
    uid = -1 if job.uid is None else job.uid
    modes = [
        site.mode_for(partition=name, account=job.account or "", uid=uid) for name in job.partition.split(",")
    ]
    return min(modes, key=MODES.index)


def _restarted(request: Request, job: Job) -> str:
    """Why this is not the attempt that is meant: two askers, or one with an old plan, never requeue a job twice."""
    if request.restarts is None or job.restarts == request.restarts:
        return ""
    times = "once" if job.restarts == 1 else f"{job.restarts} times"
    return f"it has been restarted meanwhile: {times}, not {request.restarts}"


def spared(rule: Rule, job: Job) -> str:
    """Why a rule on use leaves a job alone whatever it does, by Slurm's word of now; empty: it does not."""
    if job.batch is not True and not rule.interactive:
        return "it has no batch script, or Slurm does not say"
    whose = {"user": job.user, "account": job.account, "partition": job.partition, "qos": job.qos}
    return exempted(rule, **{what: name or "" for what, name in whose.items()})
