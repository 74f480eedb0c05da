"""Room for what the job writes: space and inodes of its file systems, and your quota on them. Warnings only.

Asked are the file systems of the folder that the job begins in and of its output: statvfs, `quota` where a machine has
it, and `lfs quota` on Lustre.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gsub.preflight.children import child
from gsub.preflight.outputs import targets
from gsub.preflight.paths import short
from gsub.preflight.places import Mount, mount_of, shown
from gsub.preflight.values import Finding, Submission

__all__ = ["Quota", "quotas", "space"]

LITTLE_MIB: Final = 100
FEW_INODES: Final = 100
NEARLY: Final = 0.98
"""A share of a quota beyond which it is told of."""
_SECONDS: Final = 1.5
_NUMBER: Final = re.compile(r"(\d{1,20})\*?")
_HELPS: Final = "remove what is not needed, or write elsewhere"


@dataclass(frozen=True, slots=True)
class Quota:
    """A row of `quota`: used, soft and hard limit, in KiB and in files; a limit of 0 is none."""

    place: str
    blocks: tuple[int, int, int]
    files: tuple[int, int, int]


def quotas(said: str) -> tuple[Quota, ...]:
    """The rows that `quota -w` or `lfs quota -q` prints; rows of another form are left out.

    >>> quotas("/dev/sdb1  1000*  900  1200  6days  7  0  0\\n")
    (Quota(place='/dev/sdb1', blocks=(1000, 900, 1200), files=(7, 0, 0)),)
    """
    found = []
    for line in re.sub(r"\n\s+(?=\d)", " ", said).splitlines():  # a long name has a line of its own
        words = line.split()
        numbers = [_NUMBER.fullmatch(word) for word in words[1:]]
        if len(words) not in (7, 8, 9) or not all(numbers[:3]):
            continue
        # Where nothing is exceeded the grace time is left out, or "-", or 0 (--raw-grace).
        files = 3 if len(words) == 7 or (len(words) == 8 and not words[1].endswith("*")) else 4
        if len(numbers) < files + 3 or not all(numbers[files : files + 3]):
            continue
        values = [int(one[1]) if one else 0 for one in numbers]
        first, second = values[:3], values[files : files + 3]
        found.append(Quota(words[0], (first[0], first[1], first[2]), (second[0], second[1], second[2])))
    return tuple(found)


def space(submission: Submission) -> Iterator[Finding]:
    """What is nearly used up where the job writes."""
    if submission.elsewhere:
        return
    folders = {submission.folder: 0, **{folder: line for _, line, _, folder in targets(submission)}}
    seen: set[str] = set()
    mounts: dict[Mount, tuple[int, str]] = {}
    for folder, line in folders.items():
        try:
            found = os.statvfs(folder)
        except OSError:
            continue
        mount = mount_of(os.path.realpath(folder))
        mounts.setdefault(mount, (line, folder))
        if mount.point in seen:
            continue
        seen.add(mount.point)
        what = _full(found)
        if what:
            yield submission.finding(
                "warning", line, f"{what} in {short(_named(folder, submission))}", _HELPS
            )
    rows = _asked(submission, tuple(mounts))
    for mount, (line, folder) in mounts.items():
        for row in rows:
            if row.place in (mount.source, mount.point):
                for what in _spent(row):
                    told = f"{what} where {short(_named(folder, submission))} lies"
                    yield submission.finding("warning", line, told, _HELPS)


def _named(folder: str, submission: Submission) -> str:
    return folder if folder == submission.folder else shown(folder, submission)


def _full(found: os.statvfs_result) -> str:
    if found.f_blocks and not found.f_bavail:
        return "there is no space left"
    left = found.f_bavail * found.f_frsize >> 20
    if found.f_blocks and left < LITTLE_MIB:
        return f"there are only {left} MiB of space left"
    if found.f_files and not found.f_favail:
        return "no more files can be made: the inodes are used up"
    if found.f_files and found.f_favail < FEW_INODES:
        return f"only {found.f_favail} more files can be made"
    return ""


def _spent(row: Quota) -> Iterator[str]:
    for (used, soft, hard), unit in ((row.blocks, "space"), (row.files, "files")):
        if hard and used >= hard:
            yield f"your quota of {unit} is used up ({_amount(used, unit)} of {_amount(hard, unit)})"
        elif soft and used >= soft:
            yield f"your quota of {unit} is exceeded ({_amount(used, unit)} of {_amount(soft, unit)}), for a while"
        elif (least := min(filter(None, (soft, hard)), default=0)) and used >= NEARLY * least:
            yield f"your quota of {unit} is nearly used up ({_amount(used, unit)} of {_amount(least, unit)})"


def _amount(number: int, unit: str) -> str:
    return f"{number / (1 << 20):.1f} GiB" if unit == "space" else str(number)


def _asked(submission: Submission, mounts: tuple[Mount, ...]) -> tuple[Quota, ...]:
    """What the quota commands of this machine say; nothing where there is none, or it is late."""
    path = submission.environ.get("PATH", os.defpath)
    environ = {"PATH": path, "LC_ALL": "C"}
    found: tuple[Quota, ...] = ()
    lustre = [mount.point for mount in mounts if mount.kind == "lustre"]
    if lustre and shutil.which("lfs", path=path):
        for point in lustre[:3]:
            said = child(
                ["lfs", "quota", "-q", "-u", str(os.getuid()), point], environ=environ, seconds=_SECONDS / 3
            )
            found += quotas(said.out)
    elif shutil.which("quota", path=path):
        # It ends with 1 when a quota is exceeded. -p: times of grace as numbers, so that no column is empty.
        found = quotas(child(["quota", "-u", "-w", "-p"], environ=environ, seconds=_SECONDS).out)
    return found
