"""What becomes of a job on this node: from its hooks' files and samples to its records. No threads, no waiting.

A start and an end are put into the spool the moment they are known; usage follows when there is a sample for it. Each
step is such that the agent may be killed after it: what is not yet in the registry is done again from the hook's file,
and a record that is put twice is one fact to the store.
"""

from __future__ import annotations

import errno
import logging
import zlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from profiler.findings import Finding
from profiler.gpu import GpuSample
from profiler.host import HostReading
from profiler.job_meter import JobMeter, MeterState
from profiler.records import GpuRef, JobEnded, JobFinding, JobRef, JobStarted, JobUsage, Record, new_id
from prolog_epilog.agent import intake
from prolog_epilog.agent.edges import Attempt, Clock, Gpus, Sink
from prolog_epilog.agent.intake import HookFile
from prolog_epilog.agent.reconcile import Found
from prolog_epilog.agent.registry import Entry, Registry
from prolog_epilog.agent.reports import reports
from prolog_epilog.agent.settings import Settings

__all__ = ["Jobs"]

_log = logging.getLogger("gsub-noded")

SAVE_EVERY: Final = 30.0
REMEMBER: Final = 600.0
"""Seconds for which an ended job is remembered, so that a late or repeated file of its hooks changes nothing."""
FORGET_EVERY: Final = 10.0
MOST_READS: Final = 2
"""How often the reading of a job's logs is begun, however often the agent is ended meanwhile."""
_RESTARTED: Final = "The node was restarted while the job ran."


class Jobs:
    """The jobs of this node. Not for several threads.

    `restore` comes first. With `findings`, an ended job stays open until its logs were read (`unread`).
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        spool: Sink,
        gpus: Gpus,
        clock: Clock | None = None,
        *,
        findings: bool = False,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._spool = spool
        self._gpus = gpus
        self._clock = clock or Clock()
        self._findings = findings
        self._deadline = settings.deadline + 2.0  # for how long an ended job's last sample is waited for
        self._entries: dict[JobRef, Entry] = {}
        self._open: dict[JobRef, Entry] = {}  # those with which something is left to be done
        self._forget_at = 0.0
        self._unsaved = False
        self._meters: dict[JobRef, JobMeter] = {}
        self._reported: dict[JobRef, float] = {}
        self._saved: dict[JobRef, float] = {}
        self._untold: dict[JobRef, list[Record]] = {}  # last reports that are in memory only
        self._heard: dict[
            JobRef, float
        ] = {}  # when an end was learnt of: its last sample is waited for since

    # --- what is known ---

    def __len__(self) -> int:
        """How many jobs run here, or wait for their last sample."""
        return sum(not entry.final for entry in self._open.values())

    def running(self) -> dict[JobRef, float]:
        """The jobs that run here, with the monotonic time of their start."""
        return {job: entry.began for job, entry in self._open.items() if entry.running}

    def known(self) -> dict[JobRef, float]:
        """These, and the jobs that ended lately."""
        return {job: entry.began for job, entry in self._entries.items()}

    def holder(self, gpu: GpuRef) -> JobRef | None:
        """The job that holds a GPU now; the last one to start where several share it. From any thread."""
        for entry in reversed(list(self._open.values())):
            if entry.running and entry.started is not None and entry.started.gpus:
                for held in entry.started.gpus:
                    by_uuid = held.uuid is not None and held.uuid in (gpu.uuid, gpu.parent_uuid)
                    if by_uuid or (held.minor is not None and held.minor == gpu.minor):
                        return entry.job
        return None

    def restore(self) -> list[str]:
        """Take up what the last run of the agent knew. Returns what could not be read. Raises OSError."""
        self._entries, bad = self._registry.load()
        self._open = dict(self._entries)
        now = self._clock.mono()
        for entry in self._entries.values():
            if entry.boot != self._settings.boot:
                entry.began, entry.ended_mono = now, now  # the monotonic clock began anew with the machine
            if entry.started is not None and not entry.final:
                self._meters[entry.job] = self._restored(entry, entry.started)
        self.end_of_other_boots()
        return [f"{path.name}: {why}" for path, why in bad]

    # --- starts and ends ---

    def take(self, hook: HookFile, sample: GpuSample | None) -> None:
        """Do as a hook's file says. Raises OSError when that cannot be kept: to be tried again later."""
        if hook.event == "prolog":
            self._take_start(hook, sample)
        else:
            self._take_end(hook)

    def found(self, found: Found, sample: GpuSample | None) -> None:
        """A job runs here of which no prolog told. Raises OSError."""
        if found.job in self._entries:
            return
        # Whose it is, is the kernel's word: the environment is the user's own, who may have set it to another's uid
        env = {
            key: value for key, value in found.env.items() if key not in ("SLURM_JOB_UID", "SLURM_JOB_GID")
        }
        if found.uid is not None:
            env["SLURM_JOB_UID"] = str(found.uid)
        hook = HookFile(
            self._settings.spool, "prolog", self._clock.wall(), found.job, env, self._settings.boot
        )
        self._take_start(hook, sample, reconciled=True)

    def gone(self, job: JobRef) -> None:
        """A job has left without an epilog's word. Raises OSError."""
        entry = self._entries.get(job)
        if entry is not None and entry.running:
            self._end(entry, self._ended(entry, self._clock.wall(), "reconciled"))

    def end_of_other_boots(self) -> None:
        """End what ran before the machine was restarted."""
        ours = self._settings.boot
        for entry in list(self._open.values()):
            if entry.running and ours and entry.boot and entry.boot != ours:
                booted = self._clock.wall() - self._clock.mono()
                try:
                    self._end(entry, self._ended(entry, booted, "reboot"))
                except OSError as error:  # it is told again later
                    _log.warning("job %s: its end cannot be kept yet: %s", _shown(entry.job), error)
                self._finish(entry, _RESTARTED)

    def _take_start(self, hook: HookFile, sample: GpuSample | None, *, reconciled: bool = False) -> None:
        entry = self._entries.get(hook.job)
        if entry is None:
            age = max(self._clock.wall() - hook.at, 0.0)
            boot = hook.boot or self._settings.boot
            entry = Entry(hook.job, boot, began=self._clock.mono() - min(age, self._clock.mono()))
            self._entries[hook.job] = entry
        self._open[hook.job] = entry
        if entry.started is None:
            if entry.ended is not None:
                if hook.at > entry.ended.at and (hook.job.restarts or not hook.counted):
                    # That end was of the attempt before, which we knew nothing of
                    entry.ended, entry.end_told, entry.end_hook = None, False, ""
                    entry.reads, entry.read = 0, False
                else:
                    # Heard of after the end: its file was cut off, or the clock was set back while the job ran
                    self._heard[hook.job] = self._clock.mono()
                    if hook.at > entry.ended.at:
                        entry.ended, entry.end_told = msgspec.structs.replace(entry.ended, at=hook.at), False
                entry.final, entry.closed = False, None
            entry.gpu_env = hook.gpu_env
            # A prolog that names no GPU says that there is none; what was cut off, or a step's environment, does not
            told = (hook.whole and not reconciled) or "SLURM_JOB_GPUS" in hook.gpu_env
            gpus = self._gpus.of(hook.gpu_env, sample) if told else None
            record = intake.started(
                hook, cluster=self._settings.cluster, node=self._settings.node, job=hook.job, gpus=gpus
            )
            if reconciled:
                record = msgspec.structs.replace(record, source="reconciled")
            entry.started = record
            if not entry.final:
                self._meters[hook.job] = self._metered(record)
                self._reported[hook.job] = self._clock.mono()
            _log.info("job %s started", _shown(hook.job))
        self._keep(entry)

    def _take_end(self, hook: HookFile) -> None:
        entry = self._ending(hook)
        if entry is None:
            entry = Entry(hook.job, hook.boot or self._settings.boot, began=self._clock.mono(), final=True)
            self._entries[hook.job] = entry
        if entry.ended is not None and entry.ended.source == "epilog":
            self._keep(entry)
            return
        entry.end_hook = hook.path.name
        cluster, node = self._place(entry)
        record = intake.ended(hook, cluster=cluster, node=node, job=entry.job)
        if hook.counted and hook.job != entry.job:  # requeued: the 0 that Slurm tells then is no exit code
            record = msgspec.structs.replace(record, exit_code=None, signal=None, derived_exit_code=None)
        if entry.started is not None and record.at < entry.started.at:  # the clock was set back in between
            record = msgspec.structs.replace(record, at=entry.started.at)
        self._end(entry, record)

    def _ending(self, hook: HookFile) -> Entry | None:
        """The attempt whose end an epilog tells; None for one that is not known.

        The epilog of an attempt that is requeued bears the restart count of the next one, which slurmctld has counted
        by then (seen on 22.05.8, 24.11.5 and 26.05.5). Attempts follow each other: where one of before is still open,
        it is that one.
        """
        same = [entry for entry in self._entries.values() if entry.job.job_id == hook.job.job_id]
        for entry in same:
            if (
                entry.end_hook == hook.path.name
            ):  # the same file again: from the other folder, or after a kill
                return entry
        exact = self._entries.get(hook.job)
        if exact is not None and exact.running:
            return exact
        before = [
            entry
            for entry in same
            if entry.running and (not hook.counted or entry.job.restarts < hook.job.restarts)
        ]
        return max(before, key=lambda entry: entry.job.restarts, default=exact)

    def _end(self, entry: Entry, record: JobEnded) -> None:
        now, age = self._clock.mono(), self._clock.wall() - record.at
        self._open[entry.job] = entry
        entry.ended = record
        entry.ended_mono = max(now - max(age, 0.0), min(entry.began, now))
        self._heard[entry.job] = now
        entry.end_told = False
        entry.reads, entry.read = 0, False  # what ended it may be known better now
        _log.info("job %s ended (%s)", _shown(entry.job), record.source)
        if entry.final:
            entry.closed = self._clock.wall()
        self._keep(entry)

    def _keep(self, entry: Entry) -> None:
        """Have start and end told, and remember that. Raises OSError when a kill now would undo it."""
        self._tell(entry)
        self._save(entry)
        if not self._is_told(entry):
            raise OSError(errno.EAGAIN, "records wait in memory, since the spool cannot be written")

    def _tell(self, entry: Entry) -> None:
        if entry.started is not None and not entry.told:
            entry.told = self._spool.put(entry.started)
        if entry.ended is not None and not entry.end_told:
            entry.end_told = self._spool.put(entry.ended)
        if entry.finding is not None and not entry.finding_told:
            entry.finding_told = self._spool.put(entry.finding)

    @staticmethod
    def _is_told(entry: Entry) -> bool:
        return (entry.told or entry.started is None) and (entry.end_told or entry.ended is None)

    def _place(self, entry: Entry) -> tuple[str, str]:
        """The cluster and the node of an attempt: as it was called when it started, though we have another name now."""
        if entry.started is None:
            return self._settings.cluster, self._settings.node
        return entry.started.cluster, entry.started.node

    def _ended(self, entry: Entry, at: float, source: str) -> JobEnded:
        least = entry.started.at if entry.started is not None else 0.0
        cluster, node = self._place(entry)
        return JobEnded(
            id=new_id(),
            cluster=cluster,
            node=node,
            at=min(max(at, least), 4e9),
            job=entry.job,
            source="reboot" if source == "reboot" else "reconciled",
        )

    def _all_told(self, entry: Entry) -> bool:
        told = entry.finding_told or entry.finding is None
        return told and self._is_told(entry) and entry.job not in self._untold

    # --- what its logs say ---

    def unread(self) -> list[Attempt]:
        """The attempts that have ended here and whose logs were not read yet, in the order of their ends."""
        waiting: Iterable[Entry] = filter(self._is_unread, self._open.values())
        attempts = [Attempt(each.started, each.ended) for each in waiting if each.started and each.ended]
        return sorted(attempts, key=lambda attempt: attempt.ended.at)

    def begin_reading(self, attempt: Attempt) -> bool:
        """The logs are being read now; False if that was begun often enough."""
        entry = self._entries[attempt.ended.job]
        if entry.reads >= MOST_READS:
            return False
        entry.reads += 1
        self._try_save(entry)
        return True

    def were_read(self, attempt: Attempt, finding: Finding | None) -> None:
        """What the logs said; None: nothing that is to be told. Of an end that is known better by now it is passed
        over: they are read again."""
        entry = self._entries.get(attempt.ended.job)
        if entry is None or entry.ended != attempt.ended:
            return
        entry.read = True
        if finding is not None:
            cluster, node = self._place(entry)
            entry.finding = JobFinding(
                id=new_id(),
                cluster=cluster,
                node=node,
                at=min(max(self._clock.wall(), 0.0), 4e9),
                job=entry.job,
                finding=finding,
                serial=1 if entry.finding is None else entry.finding.serial + 1,
            )
            entry.finding_told = False
            self._tell(entry)
        self._try_save(entry)

    def _is_unread(self, entry: Entry) -> bool:
        return self._findings and entry.started is not None and entry.ended is not None and not entry.read

    # --- usage ---

    def sampled(self, sample: GpuSample, at: float, host: Mapping[int, HostReading]) -> None:
        """A look at the node, at `at` by its clock; `host` has what each job holds of CPUs and memory, by its id."""
        for entry in list(self._open.values()):
            meter = self._meters.get(entry.job)
            if meter is None or entry.final:
                continue
            # Of one that has ended too: both hooks' files may have been here before the first look
            meter = self._completed(entry, meter, sample)
            if entry.ended is None:
                meter.add(sample, at, host.get(entry.job.job_id))
                continue
            ended = sample.at if entry.ended_mono is None else entry.ended_mono
            if sample.at < ended:
                # Of before the end, and handed over after it: the next one does not tell of this stretch again
                meter.add(sample, at, host.get(entry.job.job_id))
            else:
                # Counted back by the monotonic clock: the other may have stepped since
                meter.add(sample, at, None, until=at - (sample.at - ended))
                self._finish(entry)

    def _completed(self, entry: Entry, meter: JobMeter, sample: GpuSample) -> JobMeter:
        """The job's meter; a new one once it is known which GPUs are to be measured."""
        if entry.started is None or entry.started.gpus is not None or not entry.gpu_env:
            return meter
        gpus = self._gpus.of(entry.gpu_env, sample)
        if gpus is None:
            return meter
        entry.started = msgspec.structs.replace(entry.started, gpus=gpus)
        meter = self._meters[entry.job] = self._metered(entry.started)
        return meter

    def turn(self) -> None:
        """Do what is due by now: finals that waited long enough for a sample, reports, saving, forgetting."""
        now = self._clock.mono()
        for job, entry in list(self._open.items()):
            if now - self._saved.setdefault(job, now) >= SAVE_EVERY:
                self._tell_again(entry)
            if entry.closed is not None:
                if self._all_told(entry) and not self._is_unread(entry):
                    del self._open[job]
            elif entry.ended is not None:
                if not entry.final and now - self._heard.setdefault(job, now) >= self._deadline:
                    self._finish(entry)
            elif now - self._reported.setdefault(job, now) >= self._settings.report:
                self._reported[job] = now
                self._report(entry, final=False)
            elif now - self._saved[job] >= SAVE_EVERY:
                self._try_save(entry)
        if now >= self._forget_at:
            self._forget_at = now + FORGET_EVERY
            for entry in [entry for entry in self._entries.values() if entry.job not in self._open]:
                if not 0 <= self._clock.wall() - (entry.closed or 0.0) < REMEMBER:
                    self._forget(entry)

    def _tell_again(self, entry: Entry) -> None:
        """Try to bring to the disk what is in memory only."""
        if self._all_told(entry):
            return
        self._tell(entry)
        left = [record for record in self._untold.pop(entry.job, []) if not self._spool.put(record)]
        if left:
            self._untold[entry.job] = left
        self._try_save(entry)

    def due_in(self) -> float | None:
        """Seconds until an ended job's last sample is waited for no longer; None if no one waits."""
        now = self._clock.mono()
        waits = [
            self._deadline - (now - self._heard.get(entry.job, now))
            for entry in self._open.values()
            if entry.ended is not None and not entry.final
        ]
        return max(min(waits), 0.0) if waits else None

    def save_all(self) -> None:
        """Keep all that is known, before the agent ends."""
        for entry in self._open.values():
            if entry.closed is None:
                self._try_save(entry)

    def _finish(self, entry: Entry, note: str = "") -> None:
        """The last report of a job that has ended."""
        if not entry.final and entry.started is not None:
            untold = self._report(entry, final=True, note=note)
            usage: list[Record] = [record for record in untold if isinstance(record, JobUsage)]
            if usage:
                self._untold[entry.job] = usage
        entry.final = True
        entry.closed = self._clock.wall()
        self._try_save(entry)
        self._meters.pop(entry.job, None)
        self._reported.pop(entry.job, None)
        self._heard.pop(entry.job, None)

    def _report(self, entry: Entry, *, final: bool, note: str = "") -> list[Record]:
        """Report on a job; the records that are not on the disk yet."""
        meter, started = self._meters.get(entry.job), entry.started
        if meter is None or started is None:
            return []
        entry.serial += 1
        if not final:
            self._try_save(entry)  # first: no two reports may ever have the same number
        records = reports(
            started,
            entry.ended if final else None,
            meter,
            serial=entry.serial,
            at=min(max(self._clock.wall(), 0.0), 4e9),
            note=note,
        )
        return [record for record in records if not self._spool.put(record)]

    # --- keeping ---

    def _metered(self, started: JobStarted) -> JobMeter:
        return JobMeter(
            started.gpus,
            started.at,
            shared=self._gpus.shared,
            several_types=self._gpus.several_types,
            max_gap=self._max_gap,
        )

    def _restored(self, entry: Entry, started: JobStarted) -> JobMeter:
        try:
            state = msgspec.json.decode(entry.meter, type=MeterState | None)
            if state is not None:
                return JobMeter.restored(state, max_gap=self._max_gap)
        except (ValueError, zlib.error) as error:  # also of another release, or a disk that forgets
            _log.warning("what was measured of job %s is lost: %s", _shown(entry.job), error)
        return self._metered(started)

    @property
    def _max_gap(self) -> float:
        return 3 * self._settings.interval + self._settings.deadline

    def _save(self, entry: Entry) -> None:
        """Raises OSError."""
        meter, untold = self._meters.get(entry.job), entry.job in self._untold
        if meter is not None and (not entry.final or untold):
            entry.meter = msgspec.Raw(msgspec.json.encode(meter.state()))
        elif entry.final and not untold:
            entry.meter = msgspec.Raw(b"null")
        self._saved[entry.job] = self._clock.mono()
        # A last report that is in memory only is made again after a restart
        self._registry.save(msgspec.structs.replace(entry, final=False, closed=None) if untold else entry)

    def _try_save(self, entry: Entry) -> None:
        """As good as it goes: nothing but the place of a restart depends on it."""
        try:
            self._save(entry)
        except OSError as error:
            if not self._unsaved:  # once, and not for each of 300 jobs twice a minute
                _log.warning("job %s cannot be kept over a restart: %s", _shown(entry.job), error)
            self._unsaved = True
        else:
            self._unsaved = False

    def _forget(self, entry: Entry) -> None:
        try:
            self._registry.remove(entry.job)
        except OSError as error:
            _log.warning("job %s cannot be forgotten: %s", _shown(entry.job), error)
        self._entries.pop(entry.job, None)
        self._saved.pop(entry.job, None)
        self._untold.pop(entry.job, None)


def _shown(job: JobRef) -> str:
    return f"{job.job_id}" + (f" (restart {job.restarts})" if job.restarts else "")
