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

SIOCSIFFLAGS, SIOCSIFADDR, IFF_UP = 0x8914, 0x8916, 0x1


def main() -> None:
    root, name = sys.argv[1:]
    for kind, place in (("proc", "proc"), ("devpts", "dev/pts")):
        Path(root, place).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", kind, kind, f"{root}/{place}"], check=True)
    subprocess.run(
        ["mount", "--rbind", "/sys", f"{root}/sys"], check=True
    )  # slurmd 22.05 wants cgroups there
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", IFF_UP, b""))
        # A second address: getaddrinfo takes a host that has 127.0.0.1 alone for one without IPv4.
        address = struct.pack("HH4s8s", socket.AF_INET, 0, socket.inet_aton("10.99.0.1"), b"")
        fcntl.ioctl(any_socket, SIOCSIFADDR, struct.pack("16s16s", b"lo:1", address))
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


if __name__ == "__main__":
    main()
