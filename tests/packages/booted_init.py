"""The first steps of a bare host that boots: its file systems and name, then systemd takes the process over.

    python booted_init.py ROOT NAME

Run in namespaces of its own for mounts, processes, network, host name and cgroups. Standard library only.
"""

import ctypes
import fcntl
import os
import socket
import stat
import struct
import subprocess
import sys
from pathlib import Path

MNT_DETACH = 2
SIOCSIFFLAGS, SIOCSIFADDR, IFF_UP = 0x8914, 0x8916, 0x1
ADDRESS = "10.0.0.1"
DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}


def main() -> None:
    root, name = Path(sys.argv[1]), sys.argv[2]
    mounts = (
        ("proc", "proc", "rw"),
        ("sysfs", "sys", "ro"),
        ("tmpfs", "run", "mode=755"),
        ("tmpfs", "dev", "mode=755"),
        ("devpts", "dev/pts", "newinstance,ptmxmode=0666"),
        ("tmpfs", "dev/shm", "mode=1777"),
        # covers what a kernel with cgroups of version 1 has there
        ("tmpfs", "sys/fs/cgroup", "mode=755"),
        ("cgroup2", "sys/fs/cgroup", "rw"),
    )
    os.umask(0)
    subprocess.run(["mount", "--bind", root, root], check=True)
    for kind, place, options in mounts:
        (root / place).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", kind, "-o", options, kind, root / place], check=True)
    # Nodes of its own: systemd gives /dev/console away, and the machine's must not be given.
    for device, minor in (*DEVICES.items(), ("console", DEVICES["null"])):
        os.mknod(root / "dev" / device, stat.S_IFCHR | 0o666, os.makedev(1, minor))
    (root / "dev/ptmx").symlink_to("pts/ptmx")
    socket.sethostname(name)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", IFF_UP, b""))
        # With loopback addresses alone the C library resolves no IPv4 address at all, for Slurm 22.05.
        address = struct.pack("HH4s8s", socket.AF_INET, 0, socket.inet_aton(ADDRESS), b"")
        fcntl.ioctl(any_socket, SIOCSIFADDR, struct.pack("16s16s", b"lo:1", address))
    _become_root(root)
    os.umask(0o022)
    environment = {"container": "gsub-test", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    os.execve(
        "/lib/systemd/systemd",
        ["systemd", "--system", "--log-target=console", "--show-status=0"],
        environment,
    )


def _become_root(root: Path) -> None:
    """Make the tree `/` for good: what is only chrooted cannot give its units file systems of their own."""
    os.chdir(root)
    libc = ctypes.CDLL(None, use_errno=True)
    for done in (libc.pivot_root(b".", b"."), libc.umount2(b".", MNT_DETACH)):
        if done:
            raise OSError(ctypes.get_errno(), "the tree cannot be made the root")
    os.chdir("/")


if __name__ == "__main__":
    main()
