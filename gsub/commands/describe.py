"""What a person wants to know right after submitting: what was asked for, where output goes, how to follow."""

from __future__ import annotations

from gsub.client import connect
from gsub.recall import recall
from gsub.render import duration, size
from gsub.term import one_line


def describe(job_id: int) -> list[str]:
    """A few lines about a job just submitted; only how to follow it where Slurm has nothing to say."""
    from slurm_plugins.client.errors import SlurmError

    lines = []
    output = ""
    recalled: list[str] = []
    try:
        parts = connect().jobs(ids=[job_id])
        if parts:
            job = parts[0]
            tasks = f", array {job.array_tasks}" if job.array_tasks else ""
            more = f", {len(parts)} components" if job.het_job_id is not None and len(parts) > 1 else ""
            limit = duration(job.time_limit)
            lines.append(
                one_line(
                    f"  {job.name}: {size(job)}{tasks}{more}, at most {limit}, partition {job.partition}"
                )
            )
            recalled = recall(job.name)
            output = f"output {one_line(job.stdout)}; " if job.stdout else ""
    except SlurmError:
        pass  # the job is there, which is what counts; watch will tell if the controller stays silent
    told = [f"  {line.strip()}" for line in lines] + [f"  {output}follow with: gsub watch {job_id}"]
    return told + [f"  {line}" for line in recalled]
