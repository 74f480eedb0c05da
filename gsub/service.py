"""Asks gsub's service what it keeps of jobs; what goes wrong is told to the user in three lines.

service = records(os.environ)
service.usage("12_3").job.utilisation_mean
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar
from urllib.parse import quote, urlencode

from gsub.errors import USAGE, UserError

if TYPE_CHECKING:
    from profiler.answers import (
        BadNodes,
        Clearance,
        Curves,
        DecisionAnswer,
        EarlyFailures,
        Forgotten,
        Jobs,
        QueuePosition,
        Reasons,
        Report,
        Resubmissions,
        Series,
        Usage,
        VerdictAnswer,
    )
    from profiler.sealed import Service, ServiceError
    from site_configs.site_model import Site

__all__ = ["NoRecordError", "Records", "of_site", "records"]

_T = TypeVar("_T")

_SECONDS: Final = 10.0
_LATER: Final = "try again in a few minutes; if it stays so, tell the site's administrators"


def records(environ: Mapping[str, str] | None = None, *, timeout: float = _SECONDS) -> Records:
    """The records of the cluster at hand. Nothing is asked yet.

    Raises UserError where the site has no service, or a site file that cannot be used.
    """
    from gsub.site import read_site

    site = read_site(os.environ if environ is None else environ)
    if site is None or not site.service.url:
        raise UserError(
            "there are no records of jobs here",
            why="there is no site file" if site is None else "its site file names no service (service.url)",
            fix="use a login node of a cluster with gsub's service; 'sacct -j JOB' tells what Slurm knows",
            exit_code=USAGE,
        )
    return of_site(site, timeout=timeout)


def of_site(site: Site, *, timeout: float) -> Records:
    """The records of a site that has a service (`service.url`)."""
    from profiler.munge import Munge
    from profiler.sealed import Service, believed

    munge = Munge(site.slurm.munge_socket)
    return Records(Service(site.service.url, munge, believed(site.service.user), timeout))


class NoRecordError(UserError):
    """The service knows of no such job of this user's."""


class Records:
    """What the service keeps of jobs. Every method raises UserError."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def usage(self, job: str, restarts: int | None = None) -> Usage:
        """What a job used, by its last attempt or the one that is named."""
        from profiler.answers import Usage

        return self._decoded(self.body("usage", job, restarts), Usage)

    def series(self, job: str, restarts: int | None = None, node: str | None = None) -> Series:
        """A job over time, on one of its nodes or on the first of them."""
        from profiler.answers import Series

        return self._decoded(self.body("series", job, restarts, node), Series)

    def verdict(self, job: str, restarts: int | None = None) -> VerdictAnswer:
        """Why a job failed, as far as the service knows, and what failures like it taught."""
        from profiler.answers import VerdictAnswer

        return self._decoded(self.body("verdict", job, restarts), VerdictAnswer)

    def resubmissions(self, job: str) -> Resubmissions:
        """What followed each failed attempt at a job, the oldest first."""
        from profiler.answers import Resubmissions

        return self._decoded(self.body("resubmissions", job), Resubmissions)

    def decision(self, job: str, restarts: int | None = None) -> DecisionAnswer:
        """What gsub decided when the job was submitted."""
        from profiler.answers import DecisionAnswer

        return self._decoded(self.body("decision", job, restarts), DecisionAnswer)

    def position(self, job: int) -> QueuePosition:
        """What comes before a pending job, by its own id, and which GPUs are free for it."""
        from profiler.answers import QueuePosition

        return self._decoded(self.body("position", str(job)), QueuePosition)

    def jobs(self, **query: str | int | float) -> Jobs:
        """A page of jobs, the last to start first; with `ended_since` the last to end."""
        from profiler.answers import Jobs

        return self._decoded(self._ask(f"/v1/jobs?{urlencode(query)}"), Jobs)

    def reasons(self, **query: str | float) -> Reasons:
        """Why jobs failed, by reason, the costliest first: an operator's view of all, a user's of the own ones."""
        from profiler.answers import Reasons

        return self._decoded(self._ask(f"/v1/reasons?{urlencode(query)}"), Reasons)

    def report(self, since: float, until: float) -> Report:
        """What one's own attempts at jobs that ran in a span of time held, used and lost."""
        from profiler.answers import Report

        return self._decoded(self._ask(f"/v1/report?{urlencode({'since': since, 'until': until})}"), Report)

    def early(self, gpus: int) -> EarlyFailures:
        """After how long jobs with several GPUs, or with one, failed of what a smoke run would have seen."""
        from profiler.answers import EarlyFailures

        return self._decoded(self._ask(f"/v1/early?gpus={max(gpus, 1)}"), EarlyFailures)

    def bad_nodes(self) -> BadNodes:
        """Nodes that jobs keep off; for an operator all that speaks against nodes."""
        from profiler.answers import BadNodes

        return self._decoded(self._ask("/v1/bad-nodes"), BadNodes)

    def clear_node(self, node: str, why: str) -> Clearance:
        """Let nothing that is known so far count against a node. Operators only."""
        import msgspec

        from profiler.answers import Clearance

        said = msgspec.json.encode({"why": why})
        return self._decoded(self._ask(f"/v1/nodes/{quote(node, safe='')}/clear", body=said), Clearance)

    def curves(self, workload: str = "") -> Curves:
        """What is known of one's own workloads, or of the one with that name."""
        from profiler.answers import Curves

        query = f"?{urlencode({'workload': workload})}" if workload else ""
        return self._decoded(self._ask(f"/v1/curves{query}"), Curves)

    def forget(self, workload: str, user: str = "") -> Forgotten:
        """Remove what was measured of a workload of one's own, or for operators of another user's."""
        import msgspec

        from profiler.answers import ForgetWorkload, Forgotten

        said = msgspec.json.encode(ForgetWorkload(workload, user))
        return self._decoded(self._ask("/v1/curves/forget", body=said), Forgotten)

    def points(self, measured: bytes) -> None:
        """Hand over what a run measured: a `profiler.points.Measured` as JSON."""
        self._ask("/v1/points", body=measured)

    def body(self, what: str, job: str, restarts: int | None = None, node: str | None = None) -> bytes:
        """The service's answer about a job as it came: JSON."""
        given = {name: value for name, value in (("restarts", restarts), ("node", node)) if value is not None}
        query = f"?{urlencode(given)}" if given else ""
        return self._ask(f"/v1/jobs/{quote(job, safe='')}/{what}{query}", job)

    def _ask(self, target: str, job: str = "", body: bytes | None = None) -> bytes:
        from profiler.sealed import ServiceError

        try:
            answer = self._service.ask("GET" if body is None else "POST", target, body or b"")
        except ServiceError as error:
            raise self._silent(error) from error
        if answer.status != 200:
            self._refused(answer.status, answer.body, job)
        return answer.body

    def _silent(self, error: ServiceError) -> UserError:
        """What an answer that did not come, or is not believed, means to a user."""
        what, fix = _SILENT[error.reason]
        return UserError(what.format(self._service.url), why=str(error), fix=fix)

    def _refused(self, status: int, body: bytes, job: str) -> NoReturn:
        """Tell why it did not answer the question. Always raises UserError."""
        import msgspec

        from profiler.answers import Problem

        try:
            problem = msgspec.json.decode(body, type=Problem)
        except msgspec.MsgspecError:
            problem = Problem(f"it answers with status {status}")
        if status == 404 and job:
            raise NoRecordError(
                f"there is no record of a job {job} of yours",
                why="no node has told of it, it is another user's, or it is too old",
                fix="'gsub status' lists your jobs, 'sacct' older ones; a record begins when the job starts",
            )
        raise UserError(
            "the gsub service cannot tell" if status >= 500 else "the gsub service refuses to tell",
            why=problem.error,
            fix=problem.remedy or _LATER,
        )

    def _decoded(self, body: bytes, kind: type[_T]) -> _T:
        import msgspec

        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise UserError(
                f"the gsub service at {self._service.url} answers in words that are not understood here",
                why=str(error),
                fix="tell the site's administrators: gsub here and the service are too far apart in their versions",
            ) from error


_SILENT: Final = {
    "unreachable": ("the gsub service at {} does not answer", _LATER),
    "timeout": ("the gsub service at {} does not answer", _LATER),
    "too_long": ("the gsub service at {} answers more than is read here", "ask for less: --node, one job"),
    "unsealed": (
        "what answers at {} is not known to be gsub's service",
        "tell the site's administrators: service.url and service.user of the site file, or MUNGE's key, may be wrong",
    ),
    "munge": (
        "this host cannot prove to the gsub service who you are",
        "use a login node of the cluster; on this one munged does not run as it should (systemctl status munge)",
    ),
}
"""By the reason of a ServiceError: what happened, what to do."""
