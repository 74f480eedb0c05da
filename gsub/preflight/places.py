"""Which paths are the same on login and compute node: certainly, or only perhaps."""

# ruff: noqa: PTH112 - paths as scripts have them

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from gsub.preflight.command import Command
from gsub.preflight.values import Level, Submission

__all__ = ["NETWORK", "Mount", "certain", "level", "mount_of", "shown"]

NETWORK: Final = frozenset({
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "pvfs2", "orangefs", "glusterfs",
    "fuse.glusterfs", "fuse.ceph", "fuse.cvmfs2", "cvmfs2", "afs", "cifs", "smb3", "vast", "quobyte", "fuse.quobyte",
    "daos", "fuse.dfuse",
})  # fmt: skip
"""Kinds of file systems that a cluster's machines share."""


def certain(path: str, submission: Submission) -> bool:
    """Whether the path leads to the same file on the compute node.

    So it is below the folder where the job begins (which must be there too), below the home folder, and on network file
    systems; of anything else (/tmp, /opt, /usr, a local scratch) nobody here knows.
    """
    for folder in (submission.folder, submission.cwd, submission.home):
        if folder and folder != "/" and (path == folder or path.startswith(folder.rstrip("/") + "/")):
            return True
    return mount_of(path).kind in NETWORK


class Mount(NamedTuple):
    """Where a file system is mounted, its kind, and the device or export that it is of."""

    point: str = ""
    kind: str = ""
    source: str = ""


def mount_of(path: str) -> Mount:
    """The file system that a path lies in; an empty one where nobody knows."""
    found = [one for one in _mounts() if path == one.point or path.startswith(one.point.rstrip("/") + "/")]
    return max(reversed(found), key=lambda one: len(one.point), default=Mount())  # the last one lies on top


@lru_cache(maxsize=1)
def _mounts() -> Sequence[Mount]:
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ()
    found = []
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) > 4 and len(kinds) > 1:
            found.append(Mount(fields[4].replace("\\040", " "), kinds[0], kinds[1]))
    return tuple(found)


def level(submission: Submission, command: Command, path: str) -> Level | None:
    """How sure it is that a path which is not there now will not be there for the command; None: say nothing."""
    if submission.elsewhere or command.allowed or command.makes(path):
        return None
    if submission.later:
        return None
    if command.folder is not None and not os.path.isdir(command.folder):
        return None  # it is not even there: that is told where the script goes into it
    if command.sure and command.decisive and certain(path, submission):
        return "error"
    return "warning" if certain(path, submission) and command.folder is not None else None


def shown(path: str, submission: Submission) -> str:
    """A path as the user knows it: relative below the folder of the job."""
    folder = submission.folder.rstrip("/") + "/"
    return path[len(folder) :] if path.startswith(folder) and os.sep else path
