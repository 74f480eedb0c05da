"""Figures as people read them: spans, sizes, shares; what is not known is "n/a", never 0. Plain text, no terminal."""

from __future__ import annotations

from math import ceil
from typing import Final

from profiler.answers import JobSummary
from profiler.records import GpuRef

__all__ = ["NOT_KNOWN", "amount", "gpu_label", "percent", "plain", "shown_id", "size", "span", "time_option"]

NOT_KNOWN: Final = "n/a"
"""What stands for None."""

_UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_SIZES: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def span(seconds: float | None) -> str:
    """A time span, two units at most.

    >>> span(42), span(3725), span(180000), span(None)
    ('42 s', '1 h 2 min', '2 d 2 h', 'n/a')
    """
    if seconds is None:
        return NOT_KNOWN
    left = round(seconds)
    parts: list[str] = []
    for unit, length in _UNITS:
        count, left = divmod(left, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def size(count: float | None) -> str:
    """A number of bytes, in binary units as Slurm and NVML count.

    >>> size(85899345920), size(1.5 * 2**30), size(2**20), size(0), size(None)
    ('80 GiB', '1.5 GiB', '1 MiB', '0 B', 'n/a')
    """
    if count is None:
        return NOT_KNOWN
    for unit, length in _SIZES:
        if count >= length:
            return f"{_short(count / length)} {unit}"
    return f"{count:.0f} B"


def percent(value: float | None) -> str:
    """A share, given in per cent. Little is not nothing.

    >>> percent(63.4), percent(0.04), percent(0.0), percent(None)
    ('63 %', '<1 %', '0 %', 'n/a')
    """
    if value is None:
        return NOT_KNOWN
    return "<1 %" if 0 < value < 0.5 else f"{value:.0f} %"


def amount(value: float | None) -> str:
    """A number of CPUs or the like, in the mean. Little is not nothing.

    >>> amount(2.44), amount(0.01), amount(0.0), amount(None)
    ('2.4', '<0.1', '0', 'n/a')
    """
    if value is None:
        return NOT_KNOWN
    return f"{value:.1f}" if value >= 0.05 else "<0.1" if value > 0 else "0"


def time_option(seconds: float) -> str:
    """A time limit for `sbatch --time`, rounded up: to 5 minutes, from two hours on to half an hour.

    >>> time_option(61), time_option(7300), time_option(2 * 86400 + 1)
    ('0:05:00', '2:30:00', '2-00:30:00')
    """
    step = 300 if seconds <= 7200 else 1800
    minutes = ceil(seconds / step) * step // 60
    days, minutes = divmod(minutes, 1440)
    hours, minutes = divmod(minutes, 60)
    return f"{days}-{hours:02}:{minutes:02}:00" if days else f"{hours}:{minutes:02}:00"


def plain(text: str, most: int = 200) -> str:
    r"""What others wrote (names, notes) on one line, without anything that steers a terminal or reorders a line.

    >>> plain("a\x1b[31mb\n c\u202ed")
    'a?[31mb c?d'
    """
    line = "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))
    return line if len(line) <= most else line[: most - 3] + "..."


def shown_id(job: JobSummary) -> str:
    """A job's id as Slurm's commands write it: `12`, `12_3` (a task of an array), `12+1` (a component)."""
    if job.array_job_id is not None and job.array_task_id is not None:
        return f"{job.array_job_id}_{job.array_task_id}"
    if job.het_job_id is not None and job.het_offset is not None:
        return f"{job.het_job_id}+{job.het_offset}"
    return str(job.job_id)


def gpu_label(gpu: GpuRef) -> str:
    """A GPU of a node: its device file's number, that of an instance with the beginning of its own name.

    >>> gpu_label(GpuRef(3)), gpu_label(GpuRef(1, "MIG-4f2c81aa-7", parent_uuid="GPU-1")), gpu_label(GpuRef())
    ('3', '1 MIG-4f2c81aa', 'n/a')
    """
    name = plain(gpu.uuid or "")[:12]
    if gpu.minor is None:
        return name or NOT_KNOWN
    return f"{gpu.minor} {name}" if gpu.parent_uuid is not None and name else str(gpu.minor)


def _short(value: float) -> str:
    text = f"{value:.1f}"
    return text.removesuffix(".0") if value < 10 else f"{value:.0f}"
