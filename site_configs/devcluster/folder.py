"""A cluster's folder: where it may lie, whose it is, and the end of everything that runs from it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from typing import Final

from site_configs.devcluster import supervisor
from site_configs.devcluster.machine import alive, open_to_all, processes_with
from site_configs.devcluster.spec import DevClusterError, Paths

# In the environment of the supervisor and of every daemon, with the cluster's folder as its value.
MARKER: Final = "GSUB_DEVCLUSTER"


def is_ours(paths: Paths) -> bool:
    """Whether the folder is a cluster's: what is not is never removed."""
    return paths.tag.exists() or paths.spec.exists()


def check_place(paths: Paths) -> None:
    """Refuse a folder in which the daemons could not live, before anything is made there."""
    root = paths.root
    if re.fullmatch(r"[\w./+@-]+", str(root), re.ASCII) is None:
        raise DevClusterError(
            f"{str(root)!r}: Slurm's configuration has no way to write such a path (want letters, digits and ./_+@-);\n"
            "set GSUB_DEVCLUSTER_HOME to another folder"
        )
    if os.geteuid() == 0 and not open_to_all(root.parent):
        raise DevClusterError(
            f"{root}: the cluster's users and daemons cannot enter a folder above it;\n"
            "set GSUB_DEVCLUSTER_HOME to one that everybody may enter (mode 0755 all the way)"
        )
    if root.exists() and not is_ours(paths) and any(root.iterdir()):
        raise DevClusterError(f"{root} holds other things than a development cluster: choose another --name")


def empty(paths: Paths) -> None:
    """Remove all but the users' folders: another release has other user ids and refuses a newer one's state."""
    for entry in paths.root.iterdir():
        if entry not in (paths.tag, paths.home):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def shut(paths: Paths) -> None:
    """End the cluster's every process: by its supervisor, and by their marks what that leaves."""
    with contextlib.suppress(OSError, RuntimeError, LookupError, ValueError):
        pid = supervisor.ask(paths.supervisor_socket, op="shutdown")["supervisor"]
        deadline = time.monotonic() + 60
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
    _sweep(paths)


def _sweep(paths: Paths) -> None:
    """End what a killed supervisor left behind: its daemons, and what a job left in the background."""
    daemon = (f"{MARKER}={paths.root}".encode(),)
    job = (f"SLURM_CONF={paths.slurm_conf}".encode(), b"SLURMD_NODENAME=")
    left: set[int] = set()
    for _ in range(50):
        left = {*processes_with(*daemon), *processes_with(*job)} - {os.getpid()}
        left = {pid for pid in left if alive(pid)}
        if not left:
            return
        for pid in {*left, *supervisor.descendants(*left)}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    pids = ", ".join(map(str, sorted(left)))
    raise DevClusterError(
        f"processes of {paths.root} do not end: {pids}\nEnd them (kill -9), then `down` again"
    )
