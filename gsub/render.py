"""Jobs as text: one line a state, times, sizes; plain, and in colour where a person reads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from gsub.term import console, one_line
from profiler.counting import count as count  # noqa: PLC0414 - views take it from here

if TYPE_CHECKING:
    from slurm_plugins.client.values import AccountingRecord, Job

STYLES: Final = {
    "PENDING": "yellow",
    "RUNNING": "cyan",
    "COMPLETED": "green",
    "SUSPENDED": "yellow",
    "COMPLETING": "cyan",
    "CONFIGURING": "cyan",
}
"""Colours of states; every other state is trouble."""
_TROUBLE: Final = "red"


def duration(seconds: float | None) -> str:
    """A time span as people say it, two units at most.

    >>> duration(42), duration(3725), duration(180000), duration(None)
    ('42 s', '1 h 2 min', '2 d 2 h', 'unlimited')
    """
    if seconds is None:
        return "unlimited"
    left = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def clock(seconds: float | None) -> str:
    """A time span in a table, as squeue writes it: `5:00`, `1:02:03`, `2-00:00:00`."""
    if seconds is None:
        return "-"
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def size(job: Job) -> str:
    """How much a job asks for or has: `2 nodes, 4 GPUs`."""
    gpus = job.gpu_count
    parts = [count(job.num_nodes or 1, "node")]
    parts.append(count(gpus, "GPU") if gpus else count(job.num_cpus or 1, "CPU"))
    return ", ".join(parts)


def elapsed(job: Job, now: datetime | None = None) -> float | None:
    """Seconds that a job has run, None when it has not started."""
    if job.start is None or job.state.value == "PENDING":
        return None
    end = job.end if job.ended and job.end else now or datetime.now(timezone.utc)
    return max(0.0, (end - job.start).total_seconds())


def state_name(job: Job | AccountingRecord) -> str:
    """The state as Slurm's commands show it, the flag COMPLETING ahead of the state."""
    flags = {flag.value for flag in job.flags}
    for flag in ("COMPLETING", "CONFIGURING", "REQUEUE_HOLD", "SPECIAL_EXIT"):
        if flag in flags:
            return flag
    return job.state.value


def state_text(job: Job) -> str:
    """What there is to say about a state: reason, place, how it ended."""
    name = state_name(job)
    if name == "PENDING":
        if job.reason and job.reason != "None":
            return one_line(f"waits: {job.reason}")
        return "waits"
    if name in ("RUNNING", "CONFIGURING", "SUSPENDED"):
        return one_line(f"on {job.nodes}: {size(job)}") if job.nodes else size(job)
    if job.state.ended:
        return ending(elapsed(job), job.exit.code, job.exit.signal, job.reason)
    return ""


def ending(seconds: float | None, code: int, signal: int, reason: str | None) -> str:
    """How a job ended: `after 42 s, exit code 1`."""
    parts = [] if seconds is None else [f"after {duration(seconds)}"]
    if signal:
        parts.append(f"signal {signal}")
    elif code:
        parts.append(f"exit code {code}")
    if reason and reason not in ("None", "NonZeroExitCode"):
        parts.append(one_line(reason))
    return ", ".join(parts)


def say(pieces: Sequence[tuple[str, str]], *, colour: bool) -> None:
    """Print a line made of (text, style) pieces; the styles count on a terminal only."""
    if not colour:
        print("".join(text for text, _ in pieces), flush=True)
        return
    from rich.text import Text

    console().print(Text.assemble(*pieces))


def style(state: str) -> str:
    """The colour of a state."""
    return STYLES.get(state, _TROUBLE)
