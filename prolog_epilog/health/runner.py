"""Runs a node's health checks ahead of need, and tells what changes: the agent's health thread.

    runner = HealthRunner(site, "n1", spool.put, Path("/run/gsub-noded/drain"), Path("/etc/gsub/health.off"))
    runner.start()
    runner.feed(sample)        # after each look at the GPUs

Two threads, so that neither a driver, a dead file system nor a dead installation holds up the rest: this one judges
samples and answers and keeps the drain file; another one starts the children in which checks may block.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from profiler.gpu import GpuSample
from profiler.records import GpuRef, JobRef, NodeEvent, new_id
from prolog_epilog.health.children import Children
from prolog_epilog.health.drain import EXPIRY, DrainFile
from prolog_epilog.health.finding import Finding, cleaned
from prolog_epilog.health.gpu_view import GpuHistory, GpuView
from prolog_epilog.health.keeping import Change, Conditions, HealthState
from prolog_epilog.health.plan import Planned, planned
from prolog_epilog.health.schedule import Schedule
from prolog_epilog.health.tasks import Answer
from prolog_epilog.health.xids import xid
from site_configs.site_model import Site

__all__ = ["HealthRunner"]

_log = logging.getLogger("gsub-noded")

_TURN: Final = 2.0  # seconds between two looks at the kill switch
_RENEW: Final = EXPIRY / 6
_OVERDUE: Final = 60.0  # seconds over its time after which a check that nobody ran is "unknown"
_HASTE: Final = 60.0  # seconds between two runs of all checks out of their turn
_SAME_XID: Final = 600.0  # seconds in which one GPU's Xid of one kind is told once
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_State = Literal["ok", "warning", "error", "unknown", "info"]


class HealthRunner(threading.Thread):
    """The checks of one node.

    Parameters
    ----------
    emit: takes each NodeEvent, from this thread; it may block.
    drain_file, off_file: where to keep new jobs off; what switches all off while it exists.
    slurm_gpus: how many GPUs Slurm counts on this node, None if that is not known (then the site file's
    gpus_per_node counts, then the most that were ever seen).
    job_of: the job that holds a GPU now, for events that belong to one.
    spool, slurmd_spool: the folders that `disk_space` and `slurmd_spool` look at.
    untrusted: why others than root could have written the site file (`plan.planned`).
    restored: what `state` gave an earlier agent.
    """

    def __init__(
        self,
        site: Site,
        node: str,
        emit: Callable[[NodeEvent], None],
        drain_file: Path,
        off_file: Path,
        *,
        slurm_gpus: Callable[[], int | None] = lambda: None,
        job_of: Callable[[GpuRef], JobRef | None] = lambda _: None,
        spool: Path | None = None,
        slurmd_spool: Path = Path("/var/spool/slurmd"),
        untrusted: str = "",
        restored: HealthState | None = None,
        children: Callable[[], Children] = Children,
    ) -> None:
        super().__init__(name="health", daemon=True)
        self._site = site
        self._node = node
        self._emit = emit
        self._drain = DrainFile(drain_file)
        self._off_file = off_file
        self._slurm_gpus = slurm_gpus
        self._job_of = job_of
        self._make_children = children
        self._plan = planned(
            site,
            node,
            spool=str(spool or site.agent.spool),
            slurmd_spool=str(slurmd_spool),
            untrusted=untrusted,
        )
        self._over_gpus = [check for check in self._plan.checks if check.gpu is not None]
        self._in_children = [check for check in self._plan.checks if check.task is not None]
        may_drain = site.policy.mode == "enforce" and site.health.drain
        self._conditions = Conditions(self._plan.checks, may_drain=may_drain)
        self._history = GpuHistory(self._declared)
        self._lock = threading.Lock()  # of the two above
        self._boot = _boot_id()
        self._items: queue.SimpleQueue[GpuSample | Answer | None] = queue.SimpleQueue()
        self._runs: _Runs | None = None
        self._last_run: dict[str, float] = {}
        self._told_xids: dict[tuple[str, int], float] = {}
        self._drained: tuple[str, float] | None = None  # the reason that the file holds, and since when
        self._drain_trouble = ""
        self._fault = ""
        self._off = False
        if restored is not None:
            self._restore(restored)

    def feed(self, sample: GpuSample) -> None:
        """Have a sample of the GPUs judged; returns at once."""
        if self._items.qsize() < 64:  # emit() blocks: what is new will be seen in the next one
            self._items.put(sample)

    def look_soon(self) -> None:
        """Run all checks now, not when they are due, as a job has ended; once a minute at most."""
        runs = self._runs
        if runs is not None:
            runs.hasten()

    def stop(self, seconds: float = 5.0) -> None:
        """End within that time. A drain is left to expire: the next agent renews or lifts it."""
        self._items.put(None)
        if self.is_alive():
            self.join(seconds)

    def state(self) -> HealthState:
        """What a later agent needs to go on: msgspec encodes it."""
        with self._lock:
            return HealthState(self._boot, self._conditions.kept(), self._history.kept())

    def run(self) -> None:
        """Until `stop`."""
        for problem in self._plan.problems:
            self._say("health", "warning", problem)
        stopped = False
        try:
            while not stopped:
                try:
                    stopped = self._turn()
                except Exception as error:  # else nobody would look after this node, and nobody would know
                    self._tell_fault(error)
                    time.sleep(_TURN)
        finally:
            self._end_runs()

    # --- this thread ---

    def _turn(self) -> bool:
        """Look at the switch, take what has come, keep the drain file; True at the end."""
        self._look_at_switch()
        try:
            item = self._items.get(timeout=_TURN)
        except queue.Empty:
            item = None
            self._notice_overdue()
        else:
            if item is None:
                return True
        if item is not None and not self._off:
            if isinstance(item, GpuSample):
                self._judge_gpus(item)
            else:
                self._last_run[item.name] = time.monotonic()
                self._take(item.name, item.findings)
        self._keep_drain_file()
        return False

    def _tell_fault(self, error: Exception) -> None:
        told = f"a fault of the checks: {type(error).__name__}: {error}"
        if told == self._fault:
            return
        self._fault = told
        _log.error("%s", told, exc_info=error)
        with suppress(Exception):  # it may be of telling
            self._say("health", "warning", told)

    def _look_at_switch(self) -> None:
        off = self._off_file.exists() or not self._site.health.enabled
        if off and not self._off:
            self._end_runs()
            with self._lock:
                self._conditions.forget()
                self._history = GpuHistory(self._declared)
            if self._site.health.enabled:
                self._say("health", "info", f"all checks are off while {self._off_file} exists")
        elif self._off and not off:
            self._say("health", "info", "the checks run again, and begin anew")
        self._off = off
        if not off and self._runs is None and self._in_children:
            now = time.monotonic()
            self._last_run = {check.name: now for check in self._in_children}
            self._runs = _Runs(self._in_children, self._make_children, self._items.put)
            self._runs.start()

    def _end_runs(self) -> None:
        if self._runs is not None:
            self._runs.stop()
            self._runs = None

    def _judge_gpus(self, sample: GpuSample) -> None:
        with self._lock:
            view = self._history.add(sample)
        now = time.monotonic()
        for uuid, code in view.told:
            self._tell_xid(view, uuid, code, now)
        for check in self._over_gpus:
            last = self._last_run.get(check.name)
            if check.gpu is None or (check.every and last is not None and now - last < check.every):
                continue
            self._last_run[check.name] = now
            complete = sample.state == "ok"
            self._take(check.name, tuple(check.gpu(view, check.limits)), view=view, complete=complete)

    def _take(
        self, name: str, findings: tuple[Finding, ...], *, view: GpuView | None = None, complete: bool = True
    ) -> None:
        with self._lock:
            changes = self._conditions.take(name, findings, time.monotonic(), complete=complete)
        for change in changes:
            self._tell(change, view)

    def _tell(self, change: Change, view: GpuView | None) -> None:
        gpu = _ref(change.gpu, view)
        self._say(change.name, change.state, change.detail, action=change.action, gpu=gpu)

    def _tell_xid(self, view: GpuView, uuid: str, code: int, now: float) -> None:
        """An Xid that a user's program caused: a record, and no evidence against the node."""
        if not any(check.name == "xid" for check in self._over_gpus):
            return
        self._told_xids = {key: at for key, at in self._told_xids.items() if now - at < _SAME_XID}
        if (uuid, code) not in self._told_xids:
            self._told_xids[uuid, code] = now
            detail = f"{view.name(uuid)}: Xid {code} ({xid(code).meaning})"
            self._say("xid", "info", detail, gpu=_ref(uuid, view))

    def _say(
        self,
        name: str,
        state: _State,
        detail: str,
        *,
        action: Literal["none", "comment", "drain", "undrain"] = "none",
        gpu: GpuRef | None = None,
    ) -> None:
        job = self._job_of(gpu) if gpu is not None else None
        self._emit(
            NodeEvent(
                id=new_id(),
                cluster=self._site.cluster,
                node=self._node,
                at=time.time(),
                name=name,
                state=state,
                detail=cleaned(detail, 1000),
                action=action,
                gpu=gpu,
                job=job,
            )
        )

    def _notice_overdue(self) -> None:
        """The other thread may be held up itself: where the interpreter lies, the file system may hang."""
        now = time.monotonic()
        for check in self._in_children if self._runs is not None else ():
            assert check.task is not None and check.every is not None  # noqa: S101 - for the types
            late = now - self._last_run[check.name] - 1.1 * check.every - check.task.deadline
            if late > _OVERDUE:
                self._last_run[check.name] = now
                self._take(check.name, (Finding("unknown", "was not run: no process could be started"),))

    def _keep_drain_file(self) -> None:
        with self._lock:
            reasons = self._conditions.reasons()
        now = time.monotonic()
        try:
            if not reasons:
                # Also what an earlier agent left: without a reason of our own nobody may be kept off.
                self._drain.remove()
                self._drained = None
                return
            more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
            reason = reasons[0] + more
            if self._drained is None or self._drained[0] != reason or now - self._drained[1] >= _RENEW:
                self._drain.write(reason, time.time())
                self._drained = (reason, now)
        except OSError as error:
            if str(error) != self._drain_trouble:
                self._drain_trouble = str(error)
                _log.warning("the drain file cannot be kept: %s", error)

    def _declared(self) -> int | None:
        """GPUs of this node by Slurm, else by the site file."""
        counted = self._slurm_gpus()
        if counted is not None:
            return counted
        stated = [
            partition.gpus_per_node
            for partition in self._site.partitions.values()
            if self._node in partition.nodes and partition.gpus_per_node is not None
        ]
        return max(stated, default=None)

    def _restore(self, state: HealthState) -> None:
        same_boot = bool(self._boot) and state.boot == self._boot
        self._conditions.restore(state.conditions, same_boot=same_boot)
        if same_boot:
            self._history = GpuHistory(self._declared, state.gpus)


class _Runs(threading.Thread):
    """Starts the children when their checks are due, and hands on what they answer."""

    def __init__(
        self, checks: list[Planned], make: Callable[[], Children], hand_on: Callable[[Answer], None]
    ) -> None:
        super().__init__(name="health-runs", daemon=True)
        self._schedule = Schedule(checks, time.monotonic())
        self._children = make()
        self._hand_on = hand_on
        self._hasten = threading.Event()
        self._next_haste = 0.0
        self._at_end = threading.Event()

    def hasten(self) -> None:
        now = time.monotonic()
        if now < self._next_haste:  # 200 jobs that end together are one reason
            return
        self._next_haste = now + _HASTE
        self._hasten.set()
        self._children.wake()

    def stop(self) -> None:
        """Does not wait for a start that hangs."""
        self._at_end.set()
        self._children.wake()
        self.join(2.0)

    def run(self) -> None:
        try:
            while not self._at_end.is_set():
                now = time.monotonic()
                if self._hasten.is_set():
                    self._hasten.clear()
                    self._schedule.hasten(now)
                due = self._schedule.due(now)
                if due:
                    self._children.start([check.task for check in due if check.task is not None])
                following = self._schedule.next_due()
                for answer in self._children.wait(60.0 if following is None else max(following - now, 0.0)):
                    if not self._at_end.is_set():
                        self._hand_on(answer)
        finally:
            self._children.close()


def _ref(uuid: str, view: GpuView | None) -> GpuRef | None:
    if not uuid:
        return None
    gpu = view.gpus.get(uuid) if view is not None else None
    return GpuRef(uuid=uuid) if gpu is None else GpuRef(minor=gpu.minor, uuid=uuid, name=gpu.name)


def _boot_id() -> str:
    with suppress(OSError):
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return ""
