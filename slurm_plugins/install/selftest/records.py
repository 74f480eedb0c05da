"""The record of a job as gsub's service answers for it, to us and to another user."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Protocol, TypeVar

import msgspec

from profiler.answers import JobSummary, Nodes, Problem, Series, Usage
from profiler.munge import Munge
from profiler.sealed import Service, ServiceError, believed
from site_configs.site_model import Site

__all__ = ["NoAnswerError", "Records", "ServiceRecords", "answer_status"]

_T = TypeVar("_T")
_SECONDS = 10.0
_NOBODY = 65534


class NoAnswerError(Exception):
    """The service did not answer, or not with what it was asked for; the message says why, without an address."""


class Records(Protocol):
    """What the service keeps. Every method raises NoAnswerError."""

    def attempt(self, job: int | str, restarts: int) -> JobSummary | None:
        """An attempt at a job, or at a task of an array ("12_3"); None: there is no record of it."""
        ...

    def usage(self, job: int, restarts: int) -> Usage | None:
        """What an attempt used; None: there is no record of it."""
        ...

    def series(self, job: int) -> Series | None:
        """A job over time."""
        ...

    def heard(self) -> Mapping[str, float] | None:
        """When each node was last heard of (seconds since the epoch); None: that is not for us to know."""
        ...

    def status_for_other(self, job: int) -> int | None:
        """The HTTP status that a user gets who has no right to the job; None: we cannot be another user."""
        ...


class ServiceRecords:
    """`Records` of the site's service."""

    def __init__(self, site: Site, *, root: bool) -> None:
        self._site = site
        self._root = root
        self._service = _service(site)

    def attempt(self, job: int | str, restarts: int) -> JobSummary | None:
        """See `Records.attempt`."""
        return self._get(f"/v1/jobs/{job}?restarts={restarts}", JobSummary)

    def usage(self, job: int, restarts: int) -> Usage | None:
        """See `Records.usage`."""
        return self._get(f"/v1/jobs/{job}/usage?restarts={restarts}", Usage)

    def series(self, job: int) -> Series | None:
        """See `Records.series`."""
        return self._get(f"/v1/jobs/{job}/series", Series)

    def heard(self) -> Mapping[str, float] | None:
        """See `Records.heard`."""
        status, body = self._ask("/v1/nodes")
        if status == 403:
            return None
        found = _decoded(status, body, Nodes)
        return (
            {} if found is None else {node.name: node.heard for node in found.nodes if node.heard is not None}
        )

    def status_for_other(self, job: int) -> int | None:
        """See `Records.status_for_other`. Only root can be somebody else: nobody, in a child."""
        if not self._root:
            return None
        who = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--"]
        site = self._site
        words = [site.service.url, site.slurm.munge_socket, site.service.user, f"/v1/jobs/{job}/usage"]
        try:
            done = subprocess.run(
                [*who, sys.executable, "-I", "-m", __name__, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=3 * _SECONDS,
                cwd="/",
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoAnswerError(
                f"the question could not be put as another user: {type(error).__name__}"
            ) from error
        if done.returncode or not done.stdout.strip().isdigit():
            raise NoAnswerError("the question could not be put as another user")
        return int(done.stdout)

    def _get(self, target: str, kind: type[_T]) -> _T | None:
        return _decoded(*self._ask(target), kind)

    def _ask(self, target: str) -> tuple[int, bytes]:
        try:
            answer = self._service.ask("GET", target)
        except ServiceError as error:
            raise NoAnswerError(_WHY[error.reason]) from error
        return answer.status, answer.body


_WHY = {
    "unreachable": "it cannot be reached",
    "timeout": "it did not answer in time",
    "unsealed": "what answers is not known to be gsub's service",
    "too_long": "it answers more than is read",
    "munge": "munged does not run here as it should",
}


def _service(site: Site) -> Service:
    return Service(site.service.url, Munge(site.slurm.munge_socket), believed(site.service.user), _SECONDS)


def _decoded(status: int, body: bytes, kind: type[_T]) -> _T | None:
    if status == 404:
        return None
    try:
        if status == 200:
            return msgspec.json.decode(body, type=kind)
        problem = msgspec.json.decode(body, type=Problem)
    except msgspec.MsgspecError as error:
        raise NoAnswerError(f"its answer (status {status}) is not understood") from error
    raise NoAnswerError(f"it answers with status {status}: {problem.error}")


def answer_status(url: str, munge_socket: str, user: str, target: str) -> int:
    """The status of the service's answer to whoever runs this. Raises ServiceError."""
    return Service(url, Munge(munge_socket), believed(user), _SECONDS).ask("GET", target).status


if __name__ == "__main__":
    print(answer_status(*sys.argv[1:5]))
