"""What may be asked, in one table: path, parameters, what is answered, and who may.

The table makes the API (`routes`) and its OpenAPI document (`openapi`). A user's question is answered from that user's
own jobs: another's is "not there", as one that never was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from profiler.answers import (
    BadNode,
    BadNodes,
    Curves,
    DecisionAnswer,
    EarlyFailures,
    Events,
    Jobs,
    JobSummary,
    Nodes,
    NodeSummary,
    QueuePosition,
    Reasons,
    Report,
    Resubmissions,
    Series,
    Sign,
    Usage,
    VerdictAnswer,
    Verdicts,
)
from profiler.store import EventQuery, JobQuery, ReasonsQuery, ReportQuery, Store, VerdictQuery
from profiler.store.early import EarlyQuery
from profiler.store.queries import LIMIT
from site_configs.hostlist import natural
from slurm_plugins.service.keeper.auth import Who
from slurm_plugins.service.keeper.learning import Learning
from slurm_plugins.service.keeper.parameters import Parameter, moment, whole, word
from slurm_plugins.service.keeper.pending_queue import PendingQueue
from slurm_plugins.service.keeper.refusal import RefusedError

__all__ = ["NODE", "QUESTIONS", "Asked", "Question"]

_T = TypeVar("_T")
_MAX_JOB: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to the store: of which cluster, by whom, with which values of path and query.

    `heard` says when nodes last gave a sign of life, since the keeper's start; `suspected` what speaks against nodes;
    `learning` knows the curves of workloads, None where none are made; `pending` the queue, None where it is not known.
    """

    cluster: str
    who: Who
    path: Mapping[str, Any]
    query: Mapping[str, Any]
    heard: Mapping[str, Sign]
    suspected: BadNodes
    learning: Learning | None = None
    pending: PendingQueue | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One GET, with the parameters of its path and its query.

    `answer` reads the store, in a thread; it may raise RefusedError and StoreError.
    """

    route: str
    answers: type[msgspec.Struct]
    answer: Callable[[Store, Asked], msgspec.Struct]
    path: tuple[Parameter, ...] = ()
    query: tuple[Parameter, ...] = ()
    operators: bool = False
    settles: bool = False
    """Whether the asker's curves are to be made of the last runs first."""

    @property
    def about(self) -> str:
        """What it answers, in a sentence."""
        return (self.answer.__doc__ or "").strip()


_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.@$-]{0,63}"
_JOB = word(
    "id",
    "The job's id as Slurm writes it: 12, 12_3 (task of an array), 12+1 (component of a heterogeneous job).",
    r"[1-9][0-9]{0,9}(?:[_+][0-9]{1,10})?",
    "a job id like 12, 12_3 or 12+1",
)
_PENDING = whole(
    "id",
    "The job's own id; of an array's tasks that wait together the one of these (%A of squeue).",
    1,
    _MAX_JOB,
)
_RESTARTS = whole(
    "restarts", "Which attempt: how often it was requeued before. Default: the last one.", 0, 1 << 20
)
NODE: Final = word("name", "The node's name.", r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}", "a node's name")
_GPUS = whole("gpus", "Of jobs with several GPUs, or of those with one. Default: several.", 1, 1_000_000)
_PAGE = (
    whole("limit", "At most so many. Default 100.", 1, LIMIT),
    word(
        "cursor",
        "`next` of the page before.",
        r"[A-Za-z0-9_.:=-]{1,512}",
        "what `next` of the page before said",
    ),
)
_SPAN = (
    moment("since", "Not before this time."),
    moment("until", "Before this time."),
)
_ENDED = moment("ended_since", "That ended at this time or later. The last to end then comes first.")
_USER = word("user", "Of this user.", _NAME, "a login name")
_ACCOUNT = word("account", "Of this Slurm account.", _NAME, "the name of an account")
_FILTERS = (
    _USER,
    whole("uid", "Of this uid.", 0, 2**32 - 1),
    _ACCOUNT,
    word(
        "state",
        "In this state of Slurm, like FAILED.",
        r"[A-Z][A-Z_]{1,31}",
        "a state like RUNNING or FAILED",
    ),
)
_WHY = (
    word("reason", "With this reason, like gpu_oom.", r"[a-z][a-z_]{1,63}", "a reason like gpu_oom"),
    word(
        "fingerprint",
        "With this evidence: `fingerprint` of another verdict.",
        r"[A-Za-z0-9_.:-]{1,128}",
        "the `fingerprint` of a verdict",
    ),
)
_ON_NODE: Final = word("node", "Only on this node.", r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}", "a node's name")
_WORKLOAD: Final = word(
    "workload",
    "Only this one, by any of its names.",
    r"[a-z]{2,8}:[^\x00-\x1f\x7f]{1,251}",
    "a workload's name like own:resnet",
)
_MONTH: Final = 30 * 86400.0


def _own(store: Store, asked: Asked) -> JobSummary:
    """The job that is asked about, if it is the asker's. Raises RefusedError (404)."""
    found = _look_up(store, asked)
    if found is None or not (asked.who.sees_all or found.uid == asked.who.uid):
        raise RefusedError(
            404,
            f"there is no job {asked.path['id']} of yours",
            "Jobs are known once a node has told of them; those of others are seen by operators.",
        )
    return found


def _look_up(store: Store, asked: Asked) -> JobSummary | None:
    text: str = asked.path["id"]
    leader, mark, part = text.partition("_") if "_" in text else text.partition("+")
    number: int | None = int(leader)
    if not mark:
        pass
    elif int(part) > _MAX_JOB:
        return None
    elif mark == "_":
        number = store.id_of(asked.cluster, int(leader), task=int(part))
    else:
        number = store.id_of(asked.cluster, int(leader), offset=int(part))
    if number is None or not 1 <= number <= _MAX_JOB:
        return None
    return store.job(asked.cluster, number, asked.query.get("restarts"))


def _there(found: _T | None) -> _T:
    """What is still there. Raises RefusedError: it was removed since it was looked up."""
    if found is None:
        raise RefusedError(404, "this job has just been removed", "The store keeps jobs for store.retention.")
    return found


# The questions


def _is_called(store: Store, asked: Asked, name: str) -> bool:
    """Whether that is the asker's login name, by the last of its jobs.

    Not by a search for both uid and name, which no index has: it would read all of the asker's jobs, a second for a
    hundred thousand.
    """
    last = store.jobs(JobQuery(cluster=asked.cluster, uid=asked.who.uid)).jobs
    return next((one.user for one in last if one.user), None) == name


def jobs(store: Store, asked: Asked) -> Jobs:
    """Jobs, the last to start first; with `ended_since` the last to end."""
    query = dict(asked.query)
    if not asked.who.sees_all:
        if query.get("uid", asked.who.uid) != asked.who.uid:
            return Jobs(())
        query["uid"] = asked.who.uid
        if "user" in query and not _is_called(store, asked, query.pop("user")):
            return Jobs(())
    return store.jobs(JobQuery(cluster=asked.cluster, **query))


def job(store: Store, asked: Asked) -> JobSummary:
    """One attempt at a job, in a few figures."""
    return _own(store, asked)


def job_usage(store: Store, asked: Asked) -> Usage:
    """What a job did on each GPU of each of its nodes; while it runs, so far."""
    own = _own(store, asked)
    return _there(store.usage(own.cluster, own.job_id, own.restarts, node=asked.query.get("node")))


def job_series(store: Store, asked: Asked) -> Series:
    """A job over time, on its first 64 nodes by name, or on one of them."""
    own = _own(store, asked)
    return _there(store.series(own.cluster, own.job_id, own.restarts, node=asked.query.get("node")))


def job_verdicts(store: Store, asked: Asked) -> Verdicts:
    """Why a job failed: of one attempt, or of all."""
    own = _own(store, asked)
    # A number that came again may have attempts of two users
    uid = None if asked.who.sees_all else asked.who.uid
    restarts = asked.query.get("restarts")
    return store.verdicts(VerdictQuery(cluster=own.cluster, job_id=own.job_id, restarts=restarts, uid=uid))


def job_verdict(store: Store, asked: Asked) -> VerdictAnswer:
    """Why an attempt failed, and what is known of failures of the same user that are like it."""
    own = _own(store, asked)
    return _there(store.verdict(own.cluster, own.job_id, own.restarts))


def job_resubmissions(store: Store, asked: Asked) -> Resubmissions:
    """What followed each failed attempt at a job: it is tried again, how and why; or why it is not. Oldest first."""
    own = _own(store, asked)
    uid = None if asked.who.sees_all else asked.who.uid
    return Resubmissions(store.resubmissions(own.cluster, own.job_id, uid))


def job_decision(store: Store, asked: Asked) -> DecisionAnswer:
    """What was decided when the job was submitted, and how the job was found to be of that submission."""
    own = _own(store, asked)
    return _there(store.decision(own.cluster, own.job_id, own.restarts))


def job_position(_store: Store, asked: Asked) -> QueuePosition:
    """What comes before a pending job, and which GPUs are free for it, at the last look at Slurm's queue."""
    uid = None if asked.who.sees_all else asked.who.uid
    found = None if asked.pending is None else asked.pending.position(asked.path["id"], uid)
    if found is None:
        raise RefusedError(
            404,
            f"no pending job {asked.path['id']} of yours is known",
            "The queue is looked at every half a minute or so: squeue tells what is new.",
        )
    return found


def _of_whom(store: Store, asked: Asked) -> dict[str, Any] | None:
    """The query, held to the asker's own jobs; None where it asks for another's only."""
    query = dict(asked.query)
    if asked.who.sees_all:
        return query
    if "user" in query and not _is_called(store, asked, query.pop("user")):
        return None
    return query | {"uid": asked.who.uid}


def verdicts(store: Store, asked: Asked) -> Verdicts:
    """Why jobs failed, the last to end first."""
    query = _of_whom(store, asked)
    return Verdicts(()) if query is None else store.verdicts(VerdictQuery(cluster=asked.cluster, **query))


def reasons(store: Store, asked: Asked) -> Reasons:
    """Failures by reason, the costliest first: how many, whose, what they held of GPUs. Default: the last 30 days."""
    query = _of_whom(store, asked)
    since, until = _span(asked)
    if query is None:
        return Reasons((), since, until)
    return store.reasons(ReasonsQuery(cluster=asked.cluster, **query | {"since": since, "until": until}))


def report(store: Store, asked: Asked) -> Report:
    """What the asker's own attempts held, used and lost, and what would have helped. Default: the last 30 days."""
    since, until = _span(asked)
    return store.report(ReportQuery(cluster=asked.cluster, uid=asked.who.uid, since=since, until=until))


def _span(asked: Asked) -> tuple[float, float]:
    """Since when, until when."""
    until: float = asked.query.get("until", time.time())
    return asked.query.get("since", until - _MONTH), until


def nodes(store: Store, asked: Asked) -> Nodes:
    """The nodes that ever gave a sign of life, and what is not well there. Operators only."""
    found = {one.name: one for one in store.nodes(asked.cluster).nodes}
    # An agent is heard of before it has a record to tell: that is how an installation is seen to work
    names = sorted({*found, *list(asked.heard)}, key=natural)
    return Nodes(tuple(_with(found.get(name, NodeSummary(name)), asked.heard.get(name)) for name in names))


def _with(one: NodeSummary, sign: Sign | None) -> NodeSummary:
    if sign is None:
        return one
    return msgspec.structs.replace(one, heard=max(sign.at, one.heard or 0.0), version=sign.release)


def node_events(store: Store, asked: Asked) -> Events:
    """What happened to a node and its GPUs, the latest first. Operators only."""
    return store.events(EventQuery(cluster=asked.cluster, node=asked.path["name"], **asked.query))


def bad_nodes(store: Store, asked: Asked) -> BadNodes:
    """Nodes that jobs keep off, and for which reason; operators see all that speaks against nodes, and how strongly."""
    found = asked.suspected
    if asked.who.sees_all:
        return found
    kept_off = tuple(BadNode(one.node, one.partition, one.reason, True) for one in found.nodes if one.avoided)
    return BadNodes(kept_off, found.at)


def curves(_store: Store, asked: Asked) -> Curves:
    """What is known of the asker's own workloads: throughput over CPUs, its knee, and the peak of memory."""
    found = Curves(()) if asked.learning is None else asked.learning.curves(asked.who.uid)
    wanted = asked.query.get("workload")
    if wanted is None:
        return found
    return Curves(tuple(one for one in found.curves if wanted in (one.workload, *one.also)))


def early(store: Store, asked: Asked) -> EarlyFailures:
    """After how long jobs failed of what a smoke run would have seen, in the last 90 days: of all users, no names."""
    several = asked.query.get("gpus", 2) > 1
    return store.early_failures(
        EarlyQuery(cluster=asked.cluster, several=several, since=time.time() - 3 * _MONTH)
    )


QUESTIONS: Final[tuple[Question, ...]] = (
    Question("/v1/jobs", Jobs, jobs, query=(*_FILTERS, *_SPAN, _ENDED, *_PAGE)),
    Question("/v1/jobs/{id}", JobSummary, job, path=(_JOB,), query=(_RESTARTS,)),
    Question("/v1/jobs/{id}/usage", Usage, job_usage, path=(_JOB,), query=(_RESTARTS, _ON_NODE)),
    Question("/v1/jobs/{id}/series", Series, job_series, path=(_JOB,), query=(_RESTARTS, _ON_NODE)),
    Question("/v1/jobs/{id}/verdicts", Verdicts, job_verdicts, path=(_JOB,), query=(_RESTARTS,)),
    Question("/v1/jobs/{id}/verdict", VerdictAnswer, job_verdict, path=(_JOB,), query=(_RESTARTS,)),
    Question("/v1/jobs/{id}/resubmissions", Resubmissions, job_resubmissions, path=(_JOB,)),
    Question("/v1/jobs/{id}/decision", DecisionAnswer, job_decision, path=(_JOB,), query=(_RESTARTS,)),
    Question("/v1/jobs/{id}/position", QueuePosition, job_position, path=(_PENDING,)),
    Question("/v1/verdicts", Verdicts, verdicts, query=(_USER, *_WHY, *_SPAN, *_PAGE)),
    Question("/v1/reasons", Reasons, reasons, query=(_USER, _ACCOUNT, *_SPAN)),
    Question("/v1/report", Report, report, query=_SPAN),
    Question("/v1/early", EarlyFailures, early, query=(_GPUS,)),
    Question("/v1/nodes", Nodes, nodes, operators=True),
    Question(
        "/v1/nodes/{name}/events", Events, node_events, path=(NODE,), query=(*_SPAN, *_PAGE), operators=True
    ),
    Question("/v1/bad-nodes", BadNodes, bad_nodes),
    Question("/v1/curves", Curves, curves, query=(_WORKLOAD,), settles=True),
)
