"""The first process of a bare host: its file systems, its loopback, its name; then it gathers what has ended.

    python bare_init.py ROOT NAME

Run in namespaces of its own for mounts, processes, network and host name; what it started ends with it. Standard
library only. Prints `ready` when commands can be run.
"""

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


def main() -> None:
    root, name = sys.argv[1:]
    for kind, place in (("proc", "proc"), ("sysfs", "sys"), ("devpts", "dev/pts")):
        Path(root, place).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", kind, kind, f"{root}/{place}"], check=True)
    with socket.socket() as any_socket:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        flags = struct.unpack("16sH14s", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", flags | IFF_UP, b""))
    socket.sethostname(name)
    os.chroot(root)
    os.chdir("/")
    print("ready", flush=True)
    # Blocked, they wait for sigwait: an orphan's end cannot be missed.
    wanted = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    while True:
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break
        if signal.sigwait(wanted) == signal.SIGTERM:
            return


main()
