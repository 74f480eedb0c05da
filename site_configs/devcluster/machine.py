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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from site_configs.devcluster.spec import DevClusterError, state_home

# Below the kernel's ephemeral range (32768 on Linux), where a client's socket could take a port from us.
PORT_RANGE: Final = range(20000, 32000)
SYSTEM_PATH: Final = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class User:
    """A user as a root file system knows them."""

    name: str
    uid: int
    gid: int
    home: str
    groups: tuple[int, ...] = ()


def me() -> str:
    """Whoever runs this."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise DevClusterError(
            f"user id {os.geteuid()} has no name on this machine, and Slurm wants one: add it to /etc/passwd"
        ) from None


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


def system_user(name: str) -> User:
    """A user of this machine for a daemon; made where it is missing, with a group of its own."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        options = ["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin"]
        done = subprocess.run(["useradd", *options, name], capture_output=True, text=True)
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
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        path.chmod(0o666)
    except PermissionError:  # not root, or root of a container that may not
        path.symlink_to("/dev/null")


def free_ports(count: int) -> int:
    """The first of `count` consecutive ports that no other cluster claims and nothing listens on."""
    taken = set()
    for kept in state_home().glob("*/cluster.json"):
        with contextlib.suppress(ValueError, LookupError, TypeError, OSError):
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


def processes_with(*marks: bytes) -> Iterator[int]:
    """The processes that have every one of `marks` in their environment, as far as we may look.

    A mark is `NAME=value`, or `NAME=` for any value.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "environ").read_bytes().split(b"\0")
                if all(any(w.startswith(m) if m.endswith(b"=") else w == m for w in words) for m in marks):
                    yield int(entry.name)


@contextlib.contextmanager
def locked(path: Path, *, remove: bool = False, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock file: nothing is made, started or ended twice at once.

    `waiting` is called when someone else holds it. `remove` takes the file away at the end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            if not _names(path, file.fileno()):
                continue  # removed by who held it before us: the lock that counts is another file
            try:
                yield
            finally:
                if remove:
                    path.unlink(missing_ok=True)
            return


def _names(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Undo what the caller's shell may have set otherwise: a cluster's users read what we write, and its
    tools lie in sbin, which `su` leaves out of PATH.
    """
    umask, path = os.umask(0o022), os.environ.get("PATH", "")
    os.environ["PATH"] = ":".join(filter(None, (path, SYSTEM_PATH)))
    try:
        yield
    finally:
        os.umask(umask)
        os.environ["PATH"] = path


def open_to_all(path: Path) -> bool:
    """Whether every user of this machine may reach `path`: each folder above it that exists can be entered."""
    real = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (real, *real.parents) if folder.exists())


def may_enter(path: Path, user: User) -> bool:
    """Whether `user`, with no group but their own, may work in folder `path`."""

    def enters(folder: Path) -> bool:
        facts = folder.stat()
        if facts.st_uid == user.uid:
            return bool(facts.st_mode & stat.S_IXUSR)
        return bool(facts.st_mode & (stat.S_IXGRP if facts.st_gid == user.gid else stat.S_IXOTH))

    real = path.resolve()
    return user.uid == 0 or all(enters(folder) for folder in (real, *real.parents))
