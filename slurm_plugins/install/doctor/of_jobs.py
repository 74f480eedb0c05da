"""Checks of the settings of jobs in slurm.conf that gsub's work rests on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from slurm_plugins.client.requeue_delay import requeue_delay
from slurm_plugins.install.doctor.check import (
    CONTROLLER,
    HOSTS,
    Check,
    Said,
    UnseenError,
    error,
    ok,
    unknown,
    warning,
)
from slurm_plugins.install.doctor.net import NetError
from slurm_plugins.install.doctor.sight import Sight

__all__ = ["CHECKS"]


def _min_job_age(sight: Sight) -> Iterator[Said]:
    age = sight.config.number("MinJobAge")
    if age is None:
        yield unknown("slurmctld does not tell its MinJobAge")
    elif 0 < age < 60:
        yield warning(
            f"MinJobAge is {age} s: slurmctld forgets an ended job before gsub has asked for its state"
        )
    else:
        yield ok(f"MinJobAge is {age} s")


def _job_requeue(sight: Sight) -> Iterator[Said]:
    if sight.config.number("JobRequeue") == 0:
        yield warning("JobRequeue=0: only jobs with --requeue can be run again in place")
    else:
        yield ok("jobs may be requeued unless they say otherwise")


def _requeue_delay(sight: Sight) -> Iterator[Said]:
    config, release = sight.config, sight.release.release
    most = requeue_delay(release, config.value("SchedulerParameters"), config.value("AuthInfo"))[1]
    said = f"a requeued job waits {most:.0f} s before it may start again"
    knows = release >= (26, 5)
    if config.option("SchedulerParameters", "requeue_delay") is not None and not knows:
        yield warning(
            f"{said}; requeue_delay in SchedulerParameters is of no effect in Slurm {sight.release}",
            "take it out, and set cred_expire in AuthInfo",
        )
    elif most > 600:
        yield warning(
            said, "" if knows else "lower cred_expire in AuthInfo; requeue_delay is known from 26.05 on"
        )
    else:
        yield ok(said)


def _prolog_flags(sight: Sight) -> Iterator[Said]:
    config = sight.config
    flags = {flag.lower() for flag in config.words("PrologFlags")}
    if sight.has_hooks and not flags & {"alloc", "contain", "x11", "runinjob", "deferbatch"}:
        yield warning(
            "PrologFlags has no Alloc: the prolog runs on a node when the job's first step comes there, so jobs "
            "are recorded late, and on some nodes not at all"
        )
    if "serial" in flags:
        yield warning(
            "PrologFlags has Serial: hooks of a node run one after the other, and a slow one delays all jobs there",
            "take Serial out of PrologFlags unless a hook of the site needs it",
        )
    elif not sight.has_hooks or flags:
        yield ok(f"PrologFlags is {config.value('PrologFlags') or 'not set'}")


_HOOK_TIMES: Final = ("PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout")


def _hook_time(sight: Sight) -> Iterator[Said]:
    found = {key: sight.config.number(key) for key in _HOOK_TIMES}
    short = [f"{key}={seconds}" for key, seconds in found.items() if seconds is not None and seconds < 5]
    if short:
        yield warning(
            f"{', '.join(short)}: a hook on a busy node takes longer, and the node is drained for it"
        )
        return
    told = ", ".join(f"{key}={s}" for key, s in found.items() if s is not None and s < 65534)
    yield ok(told or "hooks may take as long as they need; gsub's own take half a second at most")


def _message_timeout(sight: Sight) -> Iterator[Said]:
    seconds = sight.config.number("MessageTimeout")
    if seconds is not None and seconds < 5:
        yield warning(
            f"MessageTimeout is {seconds} s: a submission on a busy controller is given up too soon"
        )
    else:
        yield ok(f"MessageTimeout is {seconds if seconds is not None else 10} s")


def _job_count(sight: Sight) -> Iterator[Said]:
    most = sight.config.number("MaxJobCount")
    if most is not None and most > 200_000:
        yield warning(
            f"MaxJobCount is {most}: with job_submit/lua slurmctld copies the list of all jobs once a second, "
            "some 2 ms for a thousand jobs"
        )
    else:
        yield ok(f"MaxJobCount is {most if most is not None else 'not told'}")


def _job_ids(sight: Sight) -> Iterator[Said]:
    config = sight.config
    upcoming, first = config.number("NEXT_JOB_ID"), config.number("FirstJobId")
    if upcoming is None:
        yield unknown("slurmctld does not tell its next job id")
        return
    last = _last_recorded(sight)
    if last is not None and last > upcoming:
        yield error(
            f"the next job is {upcoming}, but {last} was recorded lately: Slurm has begun to count anew",
            f"set FirstJobId={last + 1} in slurm.conf and restart slurmctld; see docs/admin.md, What to watch",
        )
    else:
        yield ok(f"the next job is {upcoming}, FirstJobId is {first if first is not None else 1}")


_RECENT: Final = 30 * 86400.0


def _last_recorded(sight: Sight) -> int | None:
    """The highest id among the jobs that started last; None where it is not told."""
    try:
        page = sight.ask("/v1/jobs?limit=100")
        rows = json.loads(page.body)["jobs"] if page.status == 200 else []
        since = sight.question.clock() - _RECENT
        return max(
            (int(row["job_id"]) for row in rows if float(row.get("started") or 0) > since), default=None
        )
    except (NetError, UnseenError, ValueError, LookupError, TypeError):
        return None


def _private_data(sight: Sight) -> Iterator[Said]:
    hidden = sorted(
        {word.lower() for word in sight.config.words("PrivateData")} & {"jobs", "nodes", "partitions"}
    )
    if not hidden:
        yield ok("gsub's user sees jobs, nodes and partitions")
        return
    user = _service_user(sight)
    level = sight.slurm("sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=adminlevel")
    if level.ok and level.out.strip().lower() in ("operator", "administrator"):
        yield ok(f"PrivateData hides {', '.join(hidden)}, but {user} has the level {level.out.strip()}")
        return
    yield warning(
        f"PrivateData hides {', '.join(hidden)} from the user {user}: what became of others' jobs stays unknown",
        f"sacctmgr --immediate modify user {user} set adminlevel=operator (add the user first), "
        f"or take {', '.join(hidden)} out of PrivateData",
    )


def _service_user(sight: Sight) -> str:
    try:
        return sight.site.service.user
    except UnseenError:
        return "gsub"


def _prolog_hold(sight: Sight) -> Iterator[Said]:
    try:
        site = sight.site
    except UnseenError:
        return
    if not (site.health.drain and site.policy.mode == "enforce"):
        yield ok(
            "a prolog that fails holds the job; gsub's fails on purpose only with health.drain in enforce"
        )
    elif sight.config.option("SchedulerParameters", "nohold_on_prolog_fail") is None:
        yield warning(
            "health.drain is on: a job whose node is refused by the prolog is held until somebody releases it"
        )
    else:
        yield ok("a job whose node is refused by the prolog is queued again")


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "min-job-age",
        "slurm",
        "`MinJobAge` leaves an ended job in slurmctld long enough: gsub asks every 30 s, and can requeue a job only "
        "while slurmctld has it.",
        "MinJobAge=300 in slurm.conf, then scontrol reconfigure",
        _min_job_age,
        CONTROLLER,
    ),
    Check(
        "job-requeue",
        "slurm",
        "`JobRequeue`: whether jobs that say nothing can be requeued.",
        "JobRequeue=1 in slurm.conf, then scontrol reconfigure",
        _job_requeue,
        CONTROLLER,
    ),
    Check(
        "requeue-delay",
        "slurm",
        "How long a requeued job is kept from starting (`cred_expire` of AuthInfo, else 120 s; in 26.05 "
        "`requeue_delay` of SchedulerParameters before it).",
        "lower cred_expire in AuthInfo, or from 26.05 on requeue_delay in SchedulerParameters",
        _requeue_delay,
        CONTROLLER,
    ),
    Check(
        "prolog-flags",
        "slurm",
        "`PrologFlags` has Alloc, so that a job's hooks run on all of its nodes when it starts, and not Serial.",
        "PrologFlags=Alloc in slurm.conf beside the flags that are there, then scontrol reconfigure",
        _prolog_flags,
        HOSTS,
    ),
    Check(
        "hook-timeout",
        "slurm",
        "`PrologEpilogTimeout` (`PrologTimeout`, `EpilogTimeout` from 24.11 on) is no shorter than a hook may take "
        "on a node that is busy.",
        "PrologEpilogTimeout=60 in slurm.conf, then scontrol reconfigure",
        _hook_time,
        HOSTS,
    ),
    Check(
        "prolog-hold",
        "slurm",
        "With `health.drain` in enforce a prolog may refuse a node: `nohold_on_prolog_fail` then keeps the job in "
        "the queue.",
        "add nohold_on_prolog_fail to SchedulerParameters in slurm.conf, then scontrol reconfigure",
        _prolog_hold,
        CONTROLLER,
    ),
    Check(
        "message-timeout",
        "slurm",
        "`MessageTimeout` leaves a busy slurmctld time to answer a submission; gsub itself takes 50 ms of it at most.",
        "MessageTimeout=10 in slurm.conf, then scontrol reconfigure",
        _message_timeout,
        CONTROLLER,
    ),
    Check(
        "max-job-count",
        "slurm",
        "`MaxJobCount` against what job_submit/lua costs: Slurm copies its list of jobs for Lua once a second.",
        "a queue of that size costs slurmctld time with any job_submit.lua: see docs/shim.md",
        _job_count,
        CONTROLLER,
    ),
    Check(
        "job-ids",
        "slurm",
        "Slurm's next job id lies above what was recorded: where it began to count anew, new jobs would fall onto "
        "old ones.",
        "set FirstJobId in slurm.conf above the last id; see docs/admin.md, What to watch",
        _job_ids,
        CONTROLLER,
    ),
    Check(
        "private-data",
        "slurm",
        "`PrivateData` does not hide jobs, nodes or partitions from the service's user, or that user has Slurm's "
        "Operator level.",
        "sacctmgr modify user gsub set adminlevel=operator",
        _private_data,
        CONTROLLER,
    ),
)
