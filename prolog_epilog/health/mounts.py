"""Network file systems: which are mounted, and which of them still answer.

A call on a dead one may never return, and no signal ends it. So each is asked by a thread of its own, and those that
are late are left behind; the process that asked should end afterwards, as far as it can.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

__all__ = ["NETWORK", "mounted", "probed"]

NETWORK: Final = frozenset(
    {
        "nfs", "nfs4", "lustre", "beegfs", "gpfs", "ceph", "cifs", "smb3", "afs", "panfs", "wekafs", "orangefs",
        "pvfs2", "glusterfs", "ocfs2", "gfs2", "fuse.ceph", "fuse.glusterfs", "fuse.sshfs", "fuse.daos",
        "fuse.dfuse", "fuse.juicefs", "fuse.s3fs", "fuse.mfs", "fuse.beegfs",
    }
)  # fmt: skip
"""Types of file systems that are somewhere else, as /proc/self/mountinfo names them."""

_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_A_USERS: Final = re.compile(r"(?:^|,)user_id=[1-9]")
_MOST: Final = 64  # threads


def mounted(mountinfo: str) -> dict[str, str]:
    """What is mounted where: a path to the type of its file system; of several at one place the last, which is seen.

    Without what users mounted themselves (FUSE): they may let it hang, as many of them as they like.

    >>> mounted(r"36 35 0:45 / /home\\040dirs rw,relatime shared:1 - nfs4 server:/home rw")
    {'/home dirs': 'nfs4'}
    """
    found: dict[str, str] = {}
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        fields, about = head.split(" "), tail.split(" ")
        kind, options = about[0], about[-1]
        if len(fields) < 6 or not kind:
            continue
        place = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        found[place] = kind
        if kind.startswith("fuse") and _A_USERS.search(options):
            del found[place]
    return found


def probed(
    paths: Sequence[str], seconds: float, call: Callable[[str], object] = os.statvfs
) -> Mapping[str, str]:
    """What is wrong with each of at most 64 paths, "" for nothing; within `seconds`, whatever hangs."""
    troubles: dict[str, str] = {}

    def ask(path: str) -> None:
        try:
            call(path)
            troubles[path] = ""
        except OSError as error:
            troubles[path] = f"is stale: {error.strerror or error}"

    threads = [threading.Thread(target=ask, args=(path,), daemon=True) for path in paths[:_MOST]]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    # A copy: a late thread may still write.
    answers = dict(troubles)
    return {path: answers.get(path, f"has not answered for {seconds:.0f} s") for path in paths[:_MOST]}
