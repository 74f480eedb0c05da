"""The checks of a node that look at files, mounts and the clock. They run in a child process, where they may block."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from prolog_epilog.health.finding import Finding, cleaned
from prolog_epilog.health.tasks import Task

__all__ = ["NODE_CHECKS", "NodeCheck"]

NodeCheck: TypeAlias = Callable[[Task], Iterator[Finding]]

_MIB: Final = 1 << 20
_IMAGES: Final = frozenset({"squashfs", "erofs", "cramfs", "iso9660", "romfs"})  # never writable
_EDAC: Final = Path("/sys/devices/system/edac/mc")


def disk_space(task: Task) -> Iterator[Finding]:
    """How full local file systems are, in per cent of what users may fill."""
    for path, stat in _writable(task.paths):
        usable = stat.f_blocks - stat.f_bfree + stat.f_bavail
        if usable:
            percent = 100 * (1 - stat.f_bavail / usable)
            free = stat.f_bavail * stat.f_frsize // _MIB
            yield Finding(
                task.limits.judge(percent), f"{path} is {percent:.0f} % full, {free} MiB free", path
            )


def inodes(task: Task) -> Iterator[Finding]:
    """How many of the inodes of local file systems are used, in per cent."""
    for path, stat in _writable(task.paths):
        if stat.f_files:  # btrfs and others have no fixed number
            percent = 100 * (1 - stat.f_ffree / stat.f_files)
            yield Finding(task.limits.judge(percent), f"{path} has used {percent:.0f} % of its inodes", path)


def read_only(task: Task) -> Iterator[Finding]:
    """Local file systems that must take writes and do not: what the kernel does after an error of the disk."""
    kinds = _mounts()
    for path, stat in _file_systems(task.paths):
        if kinds.get(path) in _IMAGES:
            continue
        bad = bool(stat.f_flag & os.ST_RDONLY)
        detail = f"{path} is mounted {'read-only' if bad else 'for writing'}"
        yield Finding("error" if bad else "ok", detail, path)


def slurmd_spool(task: Task) -> Iterator[Finding]:
    """Room for slurmd's own files, in MiB: without it jobs cannot start."""
    for path, stat in _file_systems(task.paths):
        free = stat.f_bavail * stat.f_frsize / _MIB
        yield Finding(task.limits.judge(free), f"{path} has {free:.0f} MiB free", path)


def memory_errors(task: Task, edac: Path = _EDAC) -> Iterator[Finding]:
    """Errors of the main memory since boot, by the kernel's EDAC. Without EDAC nothing is known."""
    counts = {"ce_count": 0, "ue_count": 0}
    controllers = sorted(edac.glob("mc[0-9]*")) if edac.is_dir() else []
    if not controllers:
        return
    for controller in controllers:
        for name in counts:
            counts[name] += int((controller / name).read_text())
    detail = f"{counts['ue_count']} uncorrected and {counts['ce_count']} corrected errors of the main memory"
    lost = counts["ue_count"] > 0
    yield Finding("error" if lost else task.limits.judge(counts["ce_count"]), detail, certain=lost)


def clock_offset(task: Task) -> Iterator[Finding]:
    """How far the clock may be off, in seconds, as the kernel knows it from its time service."""
    from prolog_epilog.health.clock import kernel_clock

    clock = kernel_clock()
    if not clock.synchronised:
        yield Finding("warning", "no time service keeps the clock (the kernel says: not synchronised)")
        return
    off = max(abs(clock.offset), clock.estimated_error)
    yield Finding(task.limits.judge(off), f"the clock is off by up to {off:.3f} s")


def stale_mounts(task: Task) -> Iterator[Finding]:
    """Whether each network file system answers; or, with `paths`, whether those are mounted and answer."""
    from prolog_epilog.health.mounts import NETWORK, probed

    mounts = _mounts()
    wanted = task.paths or tuple(path for path, kind in mounts.items() if kind in NETWORK)
    for path in wanted:
        if path not in mounts:
            yield Finding("error", f"{path} is not mounted", path)
    asked = [path for path in wanted if path in mounts]
    for path, trouble in probed(asked, seconds=0.6 * task.deadline).items():
        said = f"{path} ({mounts[path]}) {trouble or 'answers'}"
        yield Finding("error" if trouble else "ok", said, path)


def _mounts() -> dict[str, str]:
    """What is mounted here; asks no file system."""
    from prolog_epilog.health.mounts import mounted

    return mounted(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace"))


def _writable(paths: tuple[str, ...]) -> Iterator[tuple[str, os.statvfs_result]]:
    """An image of a diskless node is full, and is meant to be."""
    return ((path, stat) for path, stat in _file_systems(paths) if not stat.f_flag & os.ST_RDONLY)


def _file_systems(paths: tuple[str, ...]) -> Iterator[tuple[str, os.statvfs_result]]:
    """Each file system once, by the first of the paths that lies on it; a path that is not there is passed over."""
    seen: set[int] = set()
    for path in paths:
        try:
            device, stat = os.stat(path).st_dev, os.statvfs(path)  # noqa: PTH116
        except FileNotFoundError:
            continue
        if device not in seen:
            seen.add(device)
            yield cleaned(path, 300), stat


NODE_CHECKS: Final[dict[str, NodeCheck]] = {
    check.__name__: check
    for check in (
        disk_space,
        inodes,
        read_only,
        slurmd_spool,
        memory_errors,
        clock_offset,
        stale_mounts,
    )
}
