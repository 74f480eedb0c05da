"""The health checks, one line each. docs/health.md shows this table; a site changes it in [health.checks.NAME].

`every` is in seconds; None: with each look at the GPUs. (The reader asks for NVLinks every 30 s: two looks within that
time are one.) `warn` and `fail` are in the check's unit. What a check does stands in `gpu_checks` (pure, over samples)
and `node_checks` (in a child process).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from prolog_epilog.health import gpu_checks
from prolog_epilog.health.gpu_checks import GpuCheck

__all__ = ["CHECKS", "LOCAL", "SLURMD_SPOOL", "SPOOL", "OnFail", "Row"]

OnFail = Literal["none", "comment", "drain"]

SPOOL: Final = "SPOOL"
"""Stands in `paths` for the agent's spool."""

SLURMD_SPOOL: Final = "SLURMD_SPOOL"
"""Stands in `paths` for SlurmdSpoolDir."""

LOCAL: Final = ("/", "/tmp", "/var", "/dev/shm", SPOOL)  # noqa: S108 - they are looked at, never written


@dataclass(frozen=True, slots=True)
class Row:
    """A check. `gpu` is its function over GPUs; without one it is a function of `node_checks` with the same name.

    `below`: low values are the bad ones. `deadline` is in seconds. One that runs `alone` may block.
    """

    name: str
    looks_at: str
    on_fail: OnFail
    doc: str
    gpu: GpuCheck | None = None
    every: int | None = None
    deadline: int | None = None
    warn: float | None = None
    fail: float | None = None
    unit: str = ""
    below: bool = False
    paths: tuple[str, ...] = ()
    alone: bool = False


_GPU: Final = (
    Row("gpu_count", "GPUs that answer", "drain", "Fewer GPUs answer than Slurm or the site file count here.",
        gpu_checks.gpu_count),
    Row("gpu_lost", "each GPU", "drain", "A GPU does not answer, or a driver call hangs.",
        gpu_checks.gpu_lost, warn=0, fail=180, unit="s of hanging"),
    Row("xid", "the driver's Xid events", "drain", "The driver told an error that speaks of bad hardware.",
        gpu_checks.xids),
    Row("row_remap", "replaced memory rows", "drain", "A memory row could not be replaced, or waits for a reset.",
        gpu_checks.row_remap),
    Row("retired_pages", "retired memory pages", "comment", "A memory page waits for a reset to be retired.",
        gpu_checks.retired_pages),
    Row("ecc_uncorrected", "ECC counters", "comment", "Memory errors that ECC could not correct.",
        gpu_checks.ecc_uncorrected, fail=1, unit="errors"),
    Row("nvlink", "each GPU's NVLinks", "comment", "A GPU has fewer NVLinks up than it had, or than its likes.",
        gpu_checks.nvlink, every=60, fail=1, unit="links down"),
    Row("clocks_stuck", "SM clock of a busy GPU", "comment", "A busy GPU runs far below its clock for no reason.",
        gpu_checks.clocks_stuck, warn=50, unit="% of the highest clock", below=True),
    Row("hw_slowdown", "reasons for low clocks", "none", "Heat or the power brake slows a GPU.",
        gpu_checks.hw_slowdown),
    Row("gpu_temperature", "each GPU", "comment", "A GPU is too hot.",
        gpu_checks.gpu_temperature, warn=88, fail=95, unit="°C"),
)  # fmt: skip

_NODE: Final = (
    Row("disk_space", "local file systems", "comment", "A local file system is nearly full.",
        every=300, deadline=10, warn=90, fail=97, unit="% full", paths=LOCAL),
    Row("inodes", "local file systems", "comment", "A local file system has hardly any inodes left.",
        every=300, deadline=10, warn=90, fail=97, unit="% used", paths=LOCAL),
    Row("read_only", "local file systems", "comment", "A local file system does not take writes any more.",
        every=300, deadline=10, paths=("/", "/tmp", "/var", SPOOL)),  # noqa: S108
    Row("slurmd_spool", "SlurmdSpoolDir", "comment", "slurmd has hardly any room for jobs' scripts and credentials.",
        every=300, deadline=10, warn=200, fail=50, unit="MiB free", below=True, paths=(SLURMD_SPOOL,)),
    Row("memory_errors", "EDAC counters", "comment", "The main memory had uncorrected, or many corrected, errors.",
        every=300, deadline=10, warn=1000, unit="corrected errors"),
    Row("clock_offset", "the kernel's clock", "none", "The clock is off, or no time service keeps it.",
        every=300, deadline=10, warn=0.5, unit="s"),
    Row("stale_mounts", "network file systems", "comment", "A network file system is stale, hangs, or is missing.",
        every=300, deadline=15, alone=True),
)  # fmt: skip

CHECKS: Final[Mapping[str, Row]] = MappingProxyType({row.name: row for row in (*_GPU, *_NODE)})
"""gsub's checks by name."""
