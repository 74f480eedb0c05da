"""Scenarios of the record: every job leaves one, as it was, and nobody else may read it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Final, TypeVar

from profiler.answers import JobSummary, Usage
from slurm_plugins.install.selftest.outcome import Fact, Outcome, Steps, failed, ok, skipped
from slurm_plugins.install.selftest.queue import Asked, Wish
from slurm_plugins.install.selftest.records import NoAnswerError
from slurm_plugins.install.selftest.world import DOCTOR, World, until

__all__ = ["array", "authorisation", "cancelled", "exit_code", "hooks", "requeue", "two_nodes", "usage"]

_T = TypeVar("_T")

_SLEEPS: Final = 5.0
"""Seconds that the script of the measured job takes."""
_RUN_SECONDS: Final = 60.0
"""What a job may take beyond its time limit until Slurm says that it has ended."""
_WORD_SECONDS: Final = 70.0
"""Beyond that, until the service has Slurm's word on a job's state: two of its looks, and slurmdbd's delay."""
_HELD_UP: Final = 5.0
"""Seconds that Slurm and both hooks may take around a script; the hooks end within half a second each."""
_EXIT: Final = 7
_AGAIN: Final = 5
_REFUSED: Final = 6
_REQUEUE: Final = f"""\
if [ "${{SLURM_RESTART_COUNT:-0}}" != 0 ]; then sleep 1; exit {_AGAIN}; fi
sleep 1
scontrol requeue "$SLURM_JOB_ID" || exit {_REFUSED}
sleep 40"""
_AGENT: Final = (
    "on the node: systemctl status gsub-noded, and are Prolog and Epilog of slurm.conf gsub's hooks? "
    "'gsub admin doctor' there and on the controller's host tells more"
)
_UNDER_WAY: Final = (None, "PENDING", "RUNNING", "COMPLETING", "SUSPENDED")


def usage(world: World) -> Steps:
    """A job is in the record with its user, node, GPU, exit code and course over time."""
    world.needs_records()
    asked = _measured(world)
    summary = yield from _told(world, asked, 0)
    found = yield from _usage(world, summary)
    wrong = []
    if (summary.user or None) != world.queue.who.name and summary.uid != world.queue.who.uid:
        wrong.append("its user")
    if summary.exit_code not in (0, None) or summary.state != "COMPLETED":
        wrong.append("its end")
    if len(found.nodes) != 1 or found.nodes[0].node not in {node.name for node in world.nodes}:
        wrong.append("its node")
    gpus = sum(len(node.gpus) for node in found.nodes)
    if gpus != world.gpus:
        wrong.append("its GPUs")
    measured = sum(use.samples > 0 for node in found.nodes for use in node.gpus)
    if gpus and not measured:
        wrong.append("the use of its GPU, which was never looked at")
    course = yield from _asking(
        world, lambda: world.needs_records().series(summary.job_id), "its course over time"
    )
    facts = {"gpus": gpus, "gpus_measured": measured, "course_nodes": len(course.nodes)}
    if wrong:
        return failed(f"the record is wrong in {', '.join(wrong)}", DOCTOR, **facts)
    what = f"{gpus} GPU measured" if gpus else "no GPUs here"
    return ok(f"in the record with user, node, end, course; {what}", **facts)


def hooks(world: World) -> Steps:
    """Prolog and epilog run and hold nobody up: a job takes hardly longer than its script."""
    world.needs_records()
    asked = _measured(world)
    summary = yield from _recorded(world, asked, 0)
    found = yield from _usage(world, summary)
    node = next(iter(found.nodes), None)
    if node is None or node.since is None or node.until is None:
        return failed("the record has no begin or no end", _AGENT)
    if node.ended_by != "epilog":
        return failed("the epilog did not tell of the job's end: the agent found it by itself", _AGENT)
    around = max(0.0, node.until - node.since - _SLEEPS)
    facts: dict[str, Fact] = {"around_script_seconds": round(around, 2), "script_seconds": _SLEEPS}
    said = f"{around:.2f} s around a script of {_SLEEPS:.0f} s, from prolog to epilog"
    if around <= _HELD_UP:
        return ok(said, **facts)
    if not _ours_alone(world):
        return skipped(f"{said}; the site has hooks of its own, so nothing is concluded", **facts)
    return failed(
        f"{said}: jobs are held up", "time the hooks on the node; is /var/spool/gsub on a slow disk?", **facts
    )


def exit_code(world: World) -> Steps:
    """A job that fails is in the record with its exit code."""
    return (yield from _ends(world, "exit-code", f"sleep 1; exit {_EXIT}", "FAILED", _EXIT))


def cancelled(world: World) -> Steps:
    """A job that is cancelled while it runs is in the record as cancelled."""
    world.needs_records()
    asked = world.queue.submit(Wish("cancelled", "sleep 50"))
    number = _number(asked)
    yield from world.wait_for_start(number)
    if world.queue.ended(number):
        return skipped("it ended before it could be cancelled")
    world.queue.cancel(number)
    summary = yield from _told(world, asked, 0)
    if summary.state != "CANCELLED":
        return failed(f"the record says {summary.state}", DOCTOR)
    return ok("in the record as CANCELLED")


def array(world: World) -> Steps:
    """Each task of an array has a record of its own."""
    records = world.needs_records()
    asked = world.queue.submit(Wish("array", "sleep 1; exit 0", options=("--array=1-3",), tasks=3))
    number = _number(asked)
    yield from _end(world, number)

    def task(index: int) -> JobSummary | None:
        found = records.attempt(f"{number}_{index}", 0)
        return found if found is not None and found.complete else None

    for index in (1, 2, 3):
        told = yield from _asking(world, partial(task, index), f"task {index} of the array")
        if (told.array_job_id, told.array_task_id) != (number, index):
            return failed(f"the record of task {index} is of another job", DOCTOR)
    return ok("three tasks, three records")


def two_nodes(world: World) -> Steps:
    """A job on two nodes is in the record with both."""
    world.needs_records()
    if world.bounds.nodes < 2 or len(world.nodes) < 2:
        why = "--nodes 1" if world.bounds.nodes < 2 else "the partition has one node"
        return skipped(f"no job on two nodes was made: {why}")
    options = ("--nodes=2-2", "--ntasks=2", "--ntasks-per-node=1")
    gpus = 0 if world.queue.cpu_jobs else 2 * world.gpus
    asked = world.queue.submit(Wish("two-nodes", "sleep 2", gpus=gpus, options=options))
    yield from world.wait_for_start(_number(asked))
    summary = yield from _recorded(world, asked, 0)
    found = yield from _usage(world, summary)
    seen = len({node.node for node in found.nodes if node.final})
    if seen != 2:
        return failed(f"the record has {seen} of its 2 nodes", _AGENT, nodes=seen)
    return ok("both nodes are in the record", nodes=seen)


def requeue(world: World) -> Steps:
    """A job that is requeued has a record for each attempt."""
    world.needs_records()
    delay = world.requeue_delay()
    options = ("--requeue", "--open-mode=append")
    asked = world.queue.submit(Wish("requeue", _REQUEUE, options=options))
    number = _number(asked)
    yield from world.wait_for_start(number)
    restarted = yield from until(
        world.queue.clock.now,
        delay + world.bounds.wait,
        lambda: _restarted(world, number),
        lambda: skipped(
            f"its second start did not come within {delay + world.bounds.wait:.0f} s; Slurm holds a requeued job for "
            f"{delay} s",
            "give it longer with --wait",
            requeue_delay_seconds=delay,
        ),
    )
    if not restarted:
        return skipped("this site lets no job requeue itself (scontrol requeue was refused)")
    first = yield from _recorded(world, asked, 0)
    second = yield from _recorded(world, asked, 1)
    if second.exit_code not in (_AGAIN, None):
        return failed("the second attempt has another exit code than the script's", DOCTOR)
    if None not in (first.ended, second.started) and (first.ended or 0) > (second.started or 0) + 1:
        return failed("the attempts overlap in the record", DOCTOR)
    return ok("two attempts, two records", requeue_delay_seconds=delay)


def authorisation(world: World) -> Steps:
    """Another user is answered as if the job had never been."""
    records = world.needs_records()
    asked = _measured(world)
    summary = yield from _recorded(world, asked, 0)
    if not world.root:
        return skipped("only root can ask as another user")
    status = yield from _asking(
        world, lambda: records.status_for_other(summary.job_id), "an answer to another user"
    )
    if status == 404:
        return ok("another user is answered as if the job had never been", status=status)
    return failed(
        f"another user's question is answered with status {status}, not 404",
        "is that user (nobody) among the operators of the site file?",
        status=status,
    )


# --- the parts of them ----------------------------------------------------------------------------------------------


def _measured(world: World) -> Asked:
    """A job that does nothing for a known time on the GPU that it asks for."""
    return world.once(
        "measured", lambda: world.queue.submit(Wish("usage", f"sleep {_SLEEPS:.0f}", gpus=world.gpus))
    )


def _ends(world: World, what: str, body: str, state: str, code: int) -> Steps:
    world.needs_records()
    asked = world.queue.submit(Wish(what, body))
    summary = yield from _told(world, asked, 0)
    if (summary.state, summary.exit_code) != (state, code):
        return failed(
            f"the record says {summary.state} with exit code {summary.exit_code}, not {state} with {code}",
            DOCTOR,
        )
    return ok(f"in the record as {state} with exit code {code}")


def _number(asked: Asked) -> int:
    assert asked.job is not None  # noqa: S101 - submit() raises where there is none
    return asked.job


def _end(world: World, number: int) -> Generator[None, None, None]:
    """Until a job has started, and then ended."""
    yield from world.wait_for_start(number)
    limit = 60 * world.bounds.minutes + _RUN_SECONDS
    yield from until(
        world.queue.clock.now,
        limit,
        lambda: world.queue.ended(number) or None,
        lambda: skipped(f"it did not end within {limit:.0f} s of its start, beyond its own time limit"),
    )


def _recorded(world: World, asked: Asked, restarts: int) -> Generator[None, None, JobSummary]:
    """An attempt's record, once every node has told its end."""
    number = _number(asked)
    yield from _end(world, number)

    def whole() -> JobSummary | None:
        found = _attempt(world, number, restarts)
        return found if found is not None and found.complete else None

    def late() -> Outcome:
        if _attempt(world, number, restarts) is not None:
            return failed(f"{world.bounds.record:.0f} s after the job's end its record has no end", _AGENT)
        return failed(
            f"{world.bounds.record:.0f} s after the job's end there is no record of it{_silent(world)}",
            _AGENT,
        )

    return (yield from _asking(world, whole, "the record", late=late))


def _told(world: World, asked: Asked, restarts: int) -> Generator[None, None, JobSummary]:
    """The same, once the service has Slurm's word on it too."""
    summary = yield from _recorded(world, asked, restarts)

    def known() -> JobSummary | None:
        found = _attempt(world, summary.job_id, restarts)
        return found if found is not None and found.state not in _UNDER_WAY else None

    def late() -> Outcome:
        return failed(
            f"the nodes told of the job, and the service does not have Slurm's word on it after {_WORD_SECONDS:.0f} s",
            "may gsubd's user see all jobs (PrivateData=jobs in slurm.conf)? Its log says what Slurm does not tell",
        )

    return (yield from _asking(world, known, "Slurm's word", seconds=_WORD_SECONDS, late=late))


def _attempt(world: World, number: int, restarts: int) -> JobSummary | None:
    return world.needs_records().attempt(number, restarts)


def _usage(world: World, summary: JobSummary) -> Generator[None, None, Usage]:
    records = world.needs_records()
    return (
        yield from _asking(
            world, lambda: records.usage(summary.job_id, summary.restarts), "the job's use of its GPUs"
        )
    )


def _asking(
    world: World,
    ready: Callable[[], _T | None],
    what: str,
    *,
    seconds: float | None = None,
    late: Callable[[], Outcome] | None = None,
) -> Generator[None, None, _T]:
    """What the service answers, once it does; it may be away for a moment. `seconds`: not those of the bounds."""
    seconds = world.bounds.record if seconds is None else seconds
    why = ""

    def once() -> _T | None:
        nonlocal why
        try:
            found = ready()
        except NoAnswerError as error:
            why = str(error)
            return None
        why = ""
        return found

    def silent() -> Outcome:
        if why:
            return failed(
                f"the service does not answer for {what}: {why}", f"systemctl status gsubd; {DOCTOR}"
            )
        try:
            return (
                late() if late else failed(f"after {seconds:.0f} s the service does not have {what}", DOCTOR)
            )
        except NoAnswerError as error:
            return failed(f"the service does not answer for {what}: {error}", DOCTOR)

    return (yield from until(world.queue.clock.now, seconds, once, silent))


def _silent(world: World) -> str:
    """Whether the agents of the partition are silent altogether, as far as we may know."""
    heard = world.needs_records().heard()
    if heard is None:
        return ""
    silent = [node.name for node in world.nodes if node.name not in heard]
    return (
        f"; {len(silent)} of {len(world.nodes)} nodes of the partition were never heard of" if silent else ""
    )


def _restarted(world: World, number: int) -> bool | None:
    """Whether its second attempt has ended; None: it may still come. False: it ended in its first."""
    jobs = world.queue.jobs(number)
    if not jobs:
        return None
    if jobs[0].restarts:
        return True if jobs[0].ended else None
    return False if jobs[0].ended and jobs[0].exit.code == _REFUSED else None


def _ours_alone(world: World) -> bool:
    """Whether Prolog and Epilog are one program each, so that what they take is gsub's."""
    return all(
        world.config.get(key, "").rpartition("/")[2] in (name, "(null)", "")
        for key, name in (("Prolog", "prolog"), ("Epilog", "epilog"))
    )
