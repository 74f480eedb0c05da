"""The agent's loop: takes in hooks' files, samples and answers as they come, and never waits for any of them.

What may hang has a thread of its own: the driver's calls (`sampling`), the service (`deliver`), health checks, reading
/proc and having logs read (`beside`). They post to the loop, and the loop alone touches the jobs.
"""

from __future__ import annotations

import logging
import os
import queue
import selectors
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from profiler.gpu import GpuSample
from profiler.host import HostReading
from profiler.notify import Notifier
from profiler.records import JobRef
from prolog_epilog.agent import reconcile
from prolog_epilog.agent.beside import Beside
from prolog_epilog.agent.edges import Clock, Gpus, Health, Host, ReadLogs, Sampler, Sender, Sink
from prolog_epilog.agent.findings import Findings
from prolog_epilog.agent.intake import HookFile, Intake
from prolog_epilog.agent.jobs import Jobs
from prolog_epilog.agent.notices import Notices
from prolog_epilog.agent.reconcile import Found, Reconciler
from prolog_epilog.agent.registry import Registry
from prolog_epilog.agent.sampling import DENSE
from prolog_epilog.agent.settings import Settings
from prolog_epilog.agent.watch import FolderWatch

__all__ = ["Agent", "Parts", "SamplingDiedError"]

_log = logging.getLogger("gsub-noded")

_TURN: Final = 5.0  # seconds at most from one turn of the loop to the next
_BLIND_TURN: Final = 1.0  # where the kernel does not tell of new files
_HOOKS_A_TURN: Final = (
    200  # after a week without an agent there are thousands, and systemd wants to hear of us
)
_RECONCILE_EVERY: Final = 30.0
_KEEP_HEALTH_EVERY: Final = 300.0
_HOST_DEADLINE: Final = 3.0  # seconds for which a sample waits to be told of CPUs and memory
_HANGS_AFTER: Final = 60.0  # seconds after which reading /proc is said to hang
_STOP_WITHIN: Final = 3.0


_HANGS: Final = (
    "reading /proc hangs: look for processes in state D. CPUs, memory and missed jobs may not be seen."
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the agent is put together from; each is made with what it posts to. `warm` comes first, beside the loop.

    Without `read_logs` no job's logs are read.
    """

    spool: Sink
    gpus: Gpus
    host: Host
    sampler: Callable[[Callable[[GpuSample, float], None]], Sampler]
    sender: Callable[[Callable[[tuple[JobRef, ...], float], None]], Sender | None]
    health: Callable[[Callable[[msgspec.Struct], None], Jobs], Health | None]
    keep_health: Callable[[msgspec.Struct], None] = lambda _: None
    warm: Callable[[], object] = lambda: None
    read_logs: ReadLogs | None = None


class SamplingDiedError(Exception):
    """The thread that looks at the GPUs has ended by a fault, and with it what the agent is for."""


class Agent:
    """One node's agent. `run` goes on until `stop`, which any thread or signal handler may call."""

    def __init__(self, settings: Settings, parts: Parts, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._parts = parts
        self._clock = clock or Clock()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        folders = (settings.spool / "new", settings.run / "new")
        self._intake = Intake(folders, settings.spool / "poison")
        self._watch = FolderWatch(folders)
        self._jobs = Jobs(
            settings,
            Registry(settings.spool / "jobs"),
            parts.spool,
            parts.gpus,
            self._clock,
            findings=parts.read_logs is not None,
        )
        self._notices = Notices(settings.cluster, settings.node, parts.spool.put)
        self._reconciler = Reconciler()
        self._beside = Beside("host", self._post)
        self._looking_up = Beside("look-up", self._post)
        self._reading = Beside("logs", self._post)
        read = parts.read_logs
        self._findings = None if read is None else Findings(self._jobs, self._reading, read, self._clock)
        self._held: tuple[GpuSample, float, float] | None = (
            None  # a sample, its time, until when it waits for the host
        )
        self._notifier = Notifier(os.environ)
        self._due: dict[str, float] = {}
        self._sampler = parts.sampler(lambda sample, at: self._post(lambda: self._sampled(sample, at)))
        self._sender = parts.sender(lambda jobs, at: self._post(lambda: self._heard(jobs, at)))
        self._health = parts.health(lambda event: self._post(lambda: self._emit(event)), self._jobs)

    def run(self) -> None:
        """Be the agent. Raises OSError when its folders cannot be used at the start, SamplingDiedError."""
        self._renew_watch(start=True)
        for problem in self._jobs.restore():
            self._notices.happened("registry_unread", "warning", f"a job of before is forgotten: {problem}")
        self._beside.start()
        self._looking_up.start()
        self._reading.start()
        self._looking_up.ask(self._parts.warm, lambda _: None, lambda error: _log.warning("%s", error))
        self._sampler.start()
        for part in (self._sender, self._health):
            if part is not None:
                part.start()
        self._notifier.send("READY=1", f"STATUS={len(self._jobs)} jobs")
        _log.info(
            "node %s of cluster %s, %d jobs known",
            self._settings.node,
            self._settings.cluster,
            len(self._jobs),
        )
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            if self._watch.descriptor is not None:
                selector.register(self._watch.descriptor, selectors.EVENT_READ)
            while not (self._stopping or self._sampler.has_died()):
                self._turn()
                if not self._stopping:
                    selector.select(self._patience())
        died = not self._stopping
        self._close()
        if died:  # its traceback is in the log; a new process looks again
            raise SamplingDiedError("the thread that looks at the GPUs has died")

    def stop(self) -> None:
        """End soon; all that is known is kept."""
        self._stopping = True
        self._post(lambda: None)

    def _post(self, what: Callable[[], None]) -> None:
        self._inbox.put(what)
        with suppress(OSError):  # closed at the end
            os.eventfd_write(self._wake, 1)

    # --- one turn ---

    def _turn(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._watch.clear()  # before the look: what comes during it wakes us again
        self._guard(self._take_hooks)
        for _ in range(self._inbox.qsize()):
            self._guard(self._inbox.get_nowait())
        if self._held is not None and self._clock.mono() >= self._held[2]:
            self._use_held({})
        self._guard(self._jobs.turn)
        if self._findings is not None:
            self._guard(self._findings.turn)
        if self._is_due("reconcile", _RECONCILE_EVERY):
            self._guard(self._reconcile)
        if self._health is not None and self._is_due("health", _KEEP_HEALTH_EVERY):
            self._guard(self._keep_health)
        if self._notifier.watchdog and self._is_due("watchdog", self._notifier.watchdog / 3):
            self._notifier.send("WATCHDOG=1", f"STATUS={len(self._jobs)} jobs")

    def _guard(self, work: Callable[[], None]) -> None:
        """A fault in one thing must not end all others: it is told, and the loop goes on."""
        try:
            work()
        except Exception as error:
            told = True
            with suppress(Exception):  # it may be of telling
                told = self._notices.happened("agent_fault", "error", f"{type(error).__name__}: {error}")
            if told:
                _log.exception("a fault of the agent")

    def _is_due(self, what: str, every: float) -> bool:
        now = self._clock.mono()
        if now < self._due.setdefault(what, now + every):
            return False
        self._due[what] = now + every
        return True

    def _patience(self) -> float:
        blind = self._watch.descriptor is None or self._intake.incomplete
        waits = [_BLIND_TURN if blind else _TURN]
        if (final := self._jobs.due_in()) is not None:
            waits.append(final + 0.01)
        if self._held is not None:
            waits.append(max(self._held[2] - self._clock.mono(), 0.0) + 0.01)
        if self._notifier.watchdog:
            waits.append(self._notifier.watchdog / 3)
        return 0.0 if not self._inbox.empty() else min(waits)

    # --- hooks ---

    def _take_hooks(self) -> None:
        self._renew_watch()
        hooks, unfit = self._intake.waiting(self._clock.mono())
        for path, why in unfit:
            self._notices.happened(
                "hook_unfit", "warning", f"{path.name} of {path.parent} is set aside: {why}"
            )
            self._drop(lambda path=path: self._intake.set_aside(path))  # type: ignore[misc]
        taken = [hook for hook in hooks[:_HOOKS_A_TURN] if self._take(hook)]
        if taken and len(hooks) > _HOOKS_A_TURN:
            self._post(lambda: None)  # the rest comes at once, after what else is due
        if taken:
            self._jobs.end_of_other_boots()
            starts = any(hook.event == "prolog" for hook in taken)
            self._sampler.sample_soon(dense=DENSE if starts else 0.0)

    def _renew_watch(self, *, start: bool = False) -> None:
        try:
            self._watch.renew()
        except OSError as error:
            if start and self._settings.spool / "new" not in self._watch.usable:
                raise
            self._notices.state("hook_folder", "error", str(error))
        else:
            self._notices.state("hook_folder", "ok")

    def _take(self, hook: HookFile) -> bool:
        """Whether this hook's file is done with."""
        try:
            self._jobs.take(hook, self._sampler.last())
        except OSError as error:  # no room: the file stays, and is taken in again
            self._notices.state(
                "registry", "error", f"jobs cannot be kept over a restart of the agent: {error}"
            )
            return False
        self._notices.state("registry", "ok")
        if not hook.whole:
            self._notices.happened("hook_torn", "warning", f"{hook.path.name} was cut off", hook.job)
        if hook.event == "epilog" and self._health is not None:
            self._health.look_soon()
        self._drop(lambda: self._intake.done(hook.path))
        return True

    def _drop(self, remove: Callable[[], None]) -> None:
        try:
            remove()
        except OSError as error:
            self._notices.happened("hook_kept", "warning", f"what was taken in cannot be removed: {error}")

    # --- samples ---

    def _sampled(self, sample: GpuSample, at: float) -> None:
        self._use_held({})
        if self._health is not None:
            self._health.feed(sample)
        hung = sample.state == "hung"
        self._notices.state("gpu_driver", "error" if hung else "ok", sample.detail if hung else "")
        ids = {job.job_id for job in self._jobs.running()}
        self._held = (sample, at, self._clock.mono() + _HOST_DEADLINE)
        for name, beside in (("host_use_hangs", self._beside), ("look_up_hangs", self._looking_up)):
            stuck = beside.busy_for > _HANGS_AFTER
            self._notices.state(name, "error" if stuck else "ok", _HANGS if stuck else "")
        read = self._parts.host.read
        if not ids or not self._beside.ask(
            lambda: read(ids), lambda found: self._host_read(sample, found), self._host_failed
        ):
            self._use_held({})

    def _host_read(self, sample: GpuSample, found: Mapping[int, HostReading]) -> None:
        if self._held is not None and self._held[0] is sample:
            self._use_held(found)

    def _host_failed(self, error: Exception) -> None:
        self._notices.happened("host_use", "warning", f"CPUs and memory cannot be read: {error}")
        self._use_held({})

    def _use_held(self, host: Mapping[int, HostReading]) -> None:
        if self._held is not None:
            (sample, at, _), self._held = self._held, None
            self._jobs.sampled(sample, at, host)

    # --- what the hooks missed ---

    def _heard(self, running: tuple[JobRef, ...], seen_at: float) -> None:
        self._reconciler.hear(running, seen_at, self._jobs.running(), self._clock.mono())

    def _reconcile(self) -> None:
        now, node = self._clock.mono(), self._settings.node
        here = reconcile.traces(self._settings.slurmd_spool, node)
        for job in self._reconciler.gone(self._jobs.running(), here, now, self._jobs.known()):
            self._notices.happened("epilog_missed", "warning", f"job {job.job_id} left untold", job)
            self._jobs.gone(job)
            self._sampler.sample_soon()
        if missed := self._reconciler.missed(self._jobs.known(), here, now):
            self._looking_up.ask(
                lambda: reconcile.look_up(missed, self._settings.cluster, node),
                lambda found: self._found(missed, found),
                lambda _: self._found(missed, {}),
            )

    def _found(self, missed: list[int], found: Mapping[int, Found]) -> None:
        known = {job.job_id for job in self._jobs.known()}
        for job_id in missed:
            if job_id in known:
                continue
            one = found.get(job_id)
            told = self._reconciler.restarts(job_id)
            restarts = told if told is not None else one.job.restarts if one else 0
            job = JobRef(job_id, restarts)
            self._notices.happened("prolog_missed", "warning", f"job {job_id} runs untold", job)
            self._jobs.found(
                Found(job, one.uid if one else None, one.env if one else {}), self._sampler.last()
            )

    # --- the rest ---

    def _emit(self, event: msgspec.Struct) -> None:
        self._parts.spool.put(event)  # type: ignore[arg-type]
        self._keep_health()  # an Xid comes once: an agent that is killed must not forget it

    def _keep_health(self) -> None:
        if self._health is not None:
            self._parts.keep_health(self._health.state())

    def _close(self) -> None:
        self._notifier.send("STOPPING=1")
        self._guard(self._take_hooks)
        self._guard(self._keep_health)
        self._guard(self._jobs.save_all)
        self._sampler.stop()
        for part in (self._health, self._sender):
            if part is not None:
                part.stop(_STOP_WITHIN)
        self._watch.close()
        os.close(self._wake)
