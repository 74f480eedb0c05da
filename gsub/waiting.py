"""Why a job waits, in Slurm's own terms and in a sentence: `Reason=` of a pending job, told honestly.

Slurm names one reason, the last that its scheduler met; others may stand behind it. Start times are estimates by the
backfill scheduler, which takes every running job's time limit at its word.

The codes are those of Slurm's src/common/job_state_reason.c, 22.05 to 26.05. Most of them are limits that are named by
one scheme, which is read here rather than listed: ``QOSMaxGRESPerUser`` is whose, which bound, of what, per what.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from gsub.render import count, duration
from gsub.term import one_line

if TYPE_CHECKING:
    from profiler.answers import FreeGpus, QueuePosition
    from slurm_plugins.client.values import Job

__all__ = ["REASONS", "Wait", "limit_sentence", "meaning", "waiting"]


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a job waits: Slurm's code, what that means, what is known besides, and what its user can do ("": nothing)."""

    reason: str
    sentence: str
    facts: tuple[str, ...] = ()
    advice: str = ""


_LATER: Final = "nothing: it starts when its turn comes"
_RELEASE: Final = "scontrol release JOB"
REASONS: Final[dict[str, tuple[str, str]]] = {
    "None": ("it was not looked at yet by the scheduler", ""),
    "Prolog": ("its nodes are being prepared: a prolog still runs", ""),
    "Priority": (
        "other jobs of this partition come first: by a higher priority, or submitted before it with the same one",
        _LATER,
    ),
    "Resources": ("it is next, and what it asks for is not free yet", _LATER),
    "Dependency": ("it waits for another job (its dependency)", ""),
    "DependencyNeverSatisfied": (
        "its dependency can never be met any more: the other job ended in another way",
        "gsub cancel JOB, or scontrol update JobId=JOB Dependency=",
    ),
    "PartitionNodeLimit": ("it asks for more nodes than its partition allows", "ask for fewer nodes"),
    "PartitionTimeLimit": ("it asks for more time than its partition allows", "ask for less with --time"),
    "PartitionDown": ("its partition is down", "ask the site, or take another partition"),
    "PartitionInactive": ("its partition starts no jobs now", "ask the site, or take another partition"),
    "PartitionConfig": ("its request does not fit its partition", "compare with: scontrol show partition"),
    "JobHeldAdmin": ("an administrator holds it", "ask the site why"),
    "JobHeldUser": ("its user holds it", _RELEASE),
    "BeginTime": ("it is not to start before its begin time", ""),
    "Licenses": ("it waits for a licence", _LATER),
    "AssociationJobLimit": ("its account or user has as many jobs as may run", _LATER),
    "AssociationResourceLimit": ("its account or user holds as much as it may", _LATER),
    "AssociationTimeLimit": ("its account or user has used up the time that it may", "ask the site"),
    "AssociationUsageThreshold": ("its account or user has used more than its QOS allows", "ask the site"),
    "Reservation": ("its reservation has not begun", ""),
    "ReservationDeleted": ("its reservation was deleted", "submit it without --reservation"),
    "ReservationInvalid": ("its reservation cannot be used by it", "submit it without --reservation"),
    "ReqNodeNotAvail": (
        "nodes that it needs are down, drained, or kept for a maintenance that begins before it would end",
        "ask for less time if a maintenance is near; leave nodes that it names out",
    ),
    "FrontEndDown": ("no front end is up", "ask the site"),
    "SchedDefer": ("the controller is busy, and starts no job at its submission", ""),
    "NodeDown": ("a node that it needs is down", "leave the node out, or wait for it"),
    "BadConstraints": (
        "no node can ever meet its constraints",
        "gsub cancel JOB, and ask for what the nodes have",
    ),
    "Constraints": ("no node can meet its constraints now", "compare --constraint with: sinfo -o '%N %f'"),
    "SystemFailure": ("Slurm or a file system of its failed when it was to start", "ask the site"),
    "JobLaunchFailure": ("it could not be started on its node", "ask the site, or leave the node out"),
    "NonZeroExitCode": ("it ended with an exit code", ""),
    "RaisedSignal": ("it was ended by a signal", ""),
    "TimeLimit": ("its time was up", ""),
    "InactiveLimit": ("it did nothing for longer than the site allows", ""),
    "OutOfMemory": ("its memory was not enough", ""),
    "DeadLine": ("it cannot end before its deadline any more", ""),
    "InvalidAccount": ("its account is not known", "submit it with an account of yours"),
    "InvalidQOS": ("its QOS is not known", "submit it with a QOS of yours"),
    "AccountNotAllowed": ("its account may not use its partition", "take another account or partition"),
    "QOSNotAllowed": ("its QOS may not be used in its partition", "take another QOS or partition"),
    "QOSUsageThreshold": ("its account has used more than its QOS allows", "take another QOS, or wait"),
    "QOSJobLimit": ("its QOS has as many jobs as may run", _LATER),
    "QOSResourceLimit": ("its QOS holds as much as it may", _LATER),
    "QOSTimeLimit": ("it asks for more time than its QOS allows", "ask for less with --time"),
    "Cleaning": ("its last attempt is still being cleaned up", ""),
    "JobHoldMaxRequeue": ("it was requeued too often, and is held", _RELEASE),
    "JobArrayTaskLimit": ("as many tasks of its array run as it allows itself (%)", ""),
    "BurstBufferResources": ("it waits for room in the burst buffer", _LATER),
    "BurstBufferStageIn": ("its data is being staged in", ""),
    "BurstBufferOperation": ("an operation of the burst buffer failed", "ask the site"),
    "PowerNotAvail": ("there is not enough electrical power for it", _LATER),
    "PowerReserved": ("the electrical power that it needs is reserved", _LATER),
    "AccountingPolicy": ("a limit of accounting is reached", "compare with: sacctmgr show assoc"),
    "FedJobLock": ("the clusters of the federation agree on who starts it", ""),
    "MaxMemPerLimit": ("it asks for more memory than MaxMemPerCPU or -Node allows", "ask for less memory"),
    "MaxPoweredUpNodes": ("as many nodes are powered up as may be", _LATER),
    "LaunchFailedRequeued": ("it could not be started on a node, and was requeued", ""),
    "JobHoldRequeueLaunchFailed": ("it could not be started on a node, and is held", _RELEASE),
}
"""What each code means, and what one can do. Limits with names of a scheme are read by `limit_sentence`."""

_LIMIT: Final = re.compile(
    r"(?P<whose>Assoc|QOS|)(?P<bound>Grp|Max|Min)"
    r"(?P<what>CPU|Cpu|Jobs?|SubmitJobs?|Memory|Mem|Nodes?|Wall(?:Duration)?|Energy|GRES|Gres|License|BB|Billing|Unknown)"
    r"(?P<minutes>RunMinutes|Minutes|)(?:Per(?P<per>Job|Node|User|Account))?(?:Limit|NotSatisfied)?"
)
_WHAT: Final = {
    "cpu": "CPUs",
    "job": "running jobs",
    "jobs": "running jobs",
    "submitjob": "submitted jobs",
    "submitjobs": "submitted jobs",
    "mem": "memory",
    "memory": "memory",
    "node": "nodes",
    "nodes": "nodes",
    "wall": "run time",
    "wallduration": "run time",
    "energy": "energy",
    "gres": "GPUs or other GRES",
    "license": "licences",
    "bb": "burst buffer",
    "billing": "billing units",
    "unknown": "some resource",
}
_WHOSE: Final = {
    "Assoc": "its account's limit",
    "QOS": "its QOS's limit",
    "": "its account's limit in its QOS",
}
_PER: Final = {"Job": "of one job", "Node": "on one node", "User": "of one user", "Account": "of one account"}


def limit_sentence(reason: str) -> tuple[str, str] | None:
    """What a limit's code means, and what to do; None for a code that is no limit's.

    >>> limit_sentence("QOSMaxGRESPerUser")[0]
    "its QOS's limit is reached: at most so many GPUs or other GRES of one user"
    """
    found = _LIMIT.fullmatch(reason)
    if found is None:
        return None
    what = _WHAT[found["what"].lower()]
    spent = {"": "", "Minutes": " x minutes in all", "RunMinutes": " x minutes of what runs"}[
        found["minutes"]
    ]
    per = f" {_PER[found['per']]}" if found["per"] else ""
    whose = _WHOSE[found["whose"]]
    if found["bound"] == "Min":
        return f"{whose} is not met: at least so many {what}", f"ask for more {what}, or take another QOS"
    if found["bound"] == "Grp":
        held = " together" if not found["minutes"] else ""
        text = f"{whose} is reached: at most so many {what}{spent} of all its jobs{held}"
        return text, "ask the site" if found["minutes"] == "Minutes" else _LATER
    text = f"{whose} is reached: at most so many {what}{spent}{per}"
    if found["per"] in ("Job", "Node") or found["what"].lower().startswith("wall"):
        return text, f"ask for less: {what}"
    return text, _LATER


def meaning(reason: str) -> tuple[str, str]:
    """A code in a sentence, and what to do; an unknown one is said to be so."""
    plain = reason.partition(",")[0].strip()  # "ReqNodeNotAvail, UnavailableNodes:n3"
    known = REASONS.get(plain) or limit_sentence(plain) or _requeued_held(plain)
    return known or (f"Slurm says {one_line(reason)}, which is not known here", "ask the site")


def _requeued_held(reason: str) -> tuple[str, str] | None:
    """Slurm's own sentences of a job that could not be started: "user env retrieval failed requeued held".

    squeue writes them with blanks, scontrol with underscores.
    """
    words = reason.replace("_", " ")
    cause, failed, _ = words.partition(" failed requeued held")
    if not failed or not cause:
        return None
    return f"it could not be started ({one_line(cause)} failed), was requeued and is held", _RELEASE


def waiting(job: Job, now: datetime, position: QueuePosition | None = None) -> Wait:
    """Why a pending job waits. `position` is its position in the queue; None: not known."""
    reason = job.reason or "None"
    sentence, advice = meaning(reason)
    plain = reason.partition(",")[0]
    facts = []
    if job.held and plain == "Priority":  # held, and not looked at since
        sentence, advice = REASONS["JobHeldUser"]
    if position is not None and not job.held and plain in ("Priority", "Resources"):
        facts += _ahead(position, now) + _free(job, position.free)
    if plain.startswith("Dependency") and job.dependency:
        facts.append(f"dependency: {one_line(job.dependency)}")
    if plain == "BeginTime" and job.eligible is not None:
        facts.append(f"not before {_at(job.eligible)}")
    if plain == "ReqNodeNotAvail" and "," in reason:
        facts.append(one_line(reason.partition(",")[2].strip(" ()")))
    if job.reservation and plain.startswith("Reservation"):
        facts.append(f"reservation {one_line(job.reservation)}")
    facts += _switches(job, now)
    if job.start is not None and job.start > now and not job.held:
        facts.append(
            f"Slurm's estimate: it starts {_at(job.start)}, in {duration((job.start - now).total_seconds())}"
        )
    if job.submitted is not None:
        facts.append(f"it waits since {duration(max(0.0, (now - job.submitted).total_seconds()))}")
    return Wait(reason, sentence, tuple(facts), advice.replace("JOB", job.shown_id))


def _ahead(position: QueuePosition, now: datetime) -> list[str]:
    facts = []
    if position.higher:
        have = "has" if position.higher == 1 else "have"
        facts.append(f"{count(position.higher, 'waiting job')} of its partition {have} a higher priority")
    if position.earlier:
        have = "has" if position.earlier == 1 else "have"
        facts.append(
            f"{count(position.earlier, 'waiting job')} of its partition {have} the same priority and came before it: "
            "among equals it is first in, first out"
        )
    if position.at is None:
        return facts or ["no waiting job of its partition that you can see comes before it"]
    seen = f" (seen {duration(max(0.0, now.timestamp() - position.at))} ago)"
    return [fact + seen for fact in facts or ["no waiting job of its partition comes before it"]]


def _free(job: Job, gpus: FreeGpus | None) -> list[str]:
    if not job.gpu_count or gpus is None:
        return []
    text = f"it asks for {count(job.gpu_count, 'GPU')} on {count(job.num_nodes or 1, 'node')}; free now: "
    text += f"{gpus.free} of {gpus.total} GPUs, at most {gpus.largest} on one node"
    return [text + (f"; {count(gpus.unusable, 'node')} cannot be used" if gpus.unusable else "")]


def _switches(job: Job, now: datetime) -> list[str]:
    if not job.switches:
        return []
    text = f"it wants {count(job.switches, 'switch').replace('switchs', 'switches')} at most"
    if job.switches_wait is None:
        return [text]
    text += f", and waits up to {duration(job.switches_wait)} for that, counted from Slurm's first try to start it"
    since = job.eligible or job.submitted
    if since is None:
        return [text]
    # When that first try was is not told: it was not before the job could start
    left = job.switches_wait - (now - since).total_seconds()
    return [f"{text}: over in {duration(left)} at the earliest" if left > 0 else f"{text}: that may be over"]


def _at(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")
