"""What a cluster needs of the machine it runs on: users, ports, device files, a look at the processes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import random
import socket
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from site_configs.devcluster.spec import DevClusterError, state_home

# Below the kernel's ephemeral range (32768 on Linux), where a client's socket could take a port from us.
PORT_RANGE: Final = range(20000, 32000)


@dataclass(frozen=True, slots=True)
class User:
    """A user as a root file system knows them."""

    name: str
    uid: int
    gid: int
    home: str


def me() -> str:
    """Whoever runs this."""
    return pwd.getpwuid(os.geteuid()).pw_name


def machine_user(name: str) -> User:
    """A user of this machine; one of the cluster's ordinary users is made where it is missing."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        done = subprocess.run(
            ["useradd", "--create-home", "--shell", "/bin/bash", name], capture_output=True, text=True
        )
        if done.returncode:
            raise DevClusterError(f"user {name!r} could not be made: {done.stderr.strip()}") from None
        entry = pwd.getpwnam(name)
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def give(path: Path, owner: User) -> None:
    """Make `owner` the owner, where we may."""
    if os.geteuid() == 0:
        os.chown(path, owner.uid, owner.gid)


def device_file(path: Path) -> None:
    """A GPU's device file for gres.conf: /dev/null's numbers, or a link to it where only root may make devices.

    With a plain file Slurm counts the GPU but hands out no CUDA_VISIBLE_DEVICES.
    """
    path.unlink(missing_ok=True)
    if os.geteuid() == 0:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        path.chmod(0o666)
    else:
        path.symlink_to("/dev/null")


def free_ports(count: int) -> int:
    """The first of `count` consecutive ports that no other cluster claims and nothing listens on."""
    taken = set()
    for kept in state_home().glob("*/cluster.json"):
        with contextlib.suppress(ValueError, KeyError, OSError):
            base = json.loads(kept.read_text())["port"]
            taken |= set(range(base, base + 70))
    for _ in range(200):
        base = random.randrange(PORT_RANGE.start, PORT_RANGE.stop - count)  # noqa: S311 - not a secret
        ports = range(base, base + count)
        if not taken & set(ports) and all(_free(port) for port in ports):
            return base
    raise DevClusterError(f"no {count} free ports in a row between {PORT_RANGE.start} and {PORT_RANGE.stop}")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def processes_with(mark: bytes) -> Iterator[int]:
    """The processes that have `mark` (`NAME=value`) in their environment, as far as we may look."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file: nothing is made, started or ended twice at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def open_to_all(path: Path) -> bool:
    """Whether every user of this machine may reach `path`: each folder above it can be entered."""
    real = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (real, *real.parents))
