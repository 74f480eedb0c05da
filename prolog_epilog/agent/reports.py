"""A job's usage and its course over time as records, from its meter. Pure."""

from __future__ import annotations

from profiler.job_meter import JobMeter
from profiler.records import JobEnded, JobSeries, JobStarted, JobUsage, new_id

__all__ = ["reports"]


def reports(
    started: JobStarted, ended: JobEnded | None, meter: JobMeter, *, serial: int, at: float, note: str = ""
) -> tuple[JobUsage, JobSeries]:
    """What is known of a job at `at` (seconds since the epoch); the last word on it once it has `ended`.

    The time from the last look to the end counts as unseen.
    """
    until = started.at + meter.seconds()
    unseen = meter.unseen_seconds()
    if ended is not None:
        unseen += max(ended.at - until, 0.0)
        until = max(ended.at, started.at)
    usage = JobUsage(
        id=new_id(),
        cluster=started.cluster,
        node=started.node,
        at=at,
        job=started.job,
        serial=serial,
        final=ended is not None,
        since=started.at,
        until=until,
        gpus=meter.gpu_uses(),
        host=meter.host_use(),
        unseen_seconds=unseen,
        note=" ".join(filter(None, (note, meter.note())))[:4096],
    )
    columns = meter.series()
    series = JobSeries(
        id=new_id(),
        cluster=started.cluster,
        node=started.node,
        at=at,
        job=started.job,
        serial=serial,
        final=ended is not None,
        since=started.at,
        step=columns.step,
        gpus=columns.gpus,
        cpus=columns.cpus,
        memory_bytes=columns.memory_bytes,
    )
    return usage, series
