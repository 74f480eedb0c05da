"""Who may change a file that root, slurmctld or slurmd runs: it, and each folder above it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from slurm_plugins.install.host import Host

__all__ = ["real", "shown", "weakness"]

_STICKY: Final = 0o1000
_MOST_LINKS: Final = 16


def real(host: Host, path: Path) -> Path:
    """The path that a link leads to, itself where it is none; its folders' links are left as they are."""
    for _ in range(_MOST_LINKS):
        found = host.stat(path)
        if found is None or found.kind != "link":
            break
        path = Path(found.target) if found.target.startswith("/") else path.parent / found.target
    return path


def weakness(host: Host, path: Path, owners: Collection[int] = (0,)) -> str:
    """Why others than `owners` can change what lies at `path`; empty where they cannot, or nothing is there.

    A folder with the sticky bit protects what is not theirs.
    """
    path = real(host, path)
    for place in (path, *path.parents):
        found = host.stat(place)
        if found is None:
            continue
        if found.kind == "link":  # a folder on the way: what it leads to
            if found.uid not in owners:
                return f"{place} belongs to {shown(host, found.uid)}"
            if why := weakness(host, place, owners):
                return why
            continue
        if found.uid not in owners:
            return f"{place} belongs to {shown(host, found.uid)}"
        if found.kind == "folder" and place != path and found.mode & _STICKY:
            continue
        if found.mode & 0o002:
            return f"everybody may write to {place} (mode {found.mode:04o})"
        if found.mode & 0o020 and found.gid != 0:
            return f"a group may write to {place} (mode {found.mode:04o})"
    return ""


def shown(host: Host, uid: int) -> str:
    """A user's name, its number where it has none."""
    return host.user(uid) or f"uid {uid}"
