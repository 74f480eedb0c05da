"""A real slurmctld with thousands of nodes and a long queue: one slurmd answers for all nodes, then nobody does.

Slurm keeps a node that has answered once, and asks no more with SlurmdTimeout=0; an allocation without PrologFlags runs
without any slurmd. So 10,000 nodes are idle after seconds, and full of jobs after minutes. Pending jobs are submitted
while the configuration has few nodes, since slurmctld takes longer for each where there are many.

Everything lives in a mount namespace of its own, where /etc/passwd has users for the jobs: `enter_namespace`.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from site_configs.devcluster import Cluster, ClusterSpec, DevClusterError, accounting, gsubd
from site_configs.devcluster.machine import SYSTEM_PATH, locked
from site_configs.devcluster.rootfs import Rootfs
from site_configs.devcluster.spec import RELEASES, Release, cache_home

__all__ = [
    "LEAF",
    "RELEASES",
    "USERS",
    "Jobs",
    "Release",
    "ScaleCluster",
    "Users",
    "enter_namespace",
    "scale_cluster",
    "slurm_conf",
    "topology_conf",
]

LEAF: Final = 100
"""Nodes of a leaf switch; also of the configuration that pending jobs are submitted to."""
USERS: Final = 140
_FIRST_UID: Final = 21_001
_RUNNING_NODES: Final = 2
"""Nodes of each running job."""
_FREE: Final = 20
"""Nodes that stay idle: fewer than a pending job wants."""
PENDING_NODES: Final = 32
_ARRAY_EVERY: Final = 50
_ARRAY: Final = "1-50"
"""One record in fifty is an array of fifty tasks: twice as many jobs wait as there are records."""
_SECONDS: Final = 900.0
_SETTLE: Final = 12.0
"""Seconds for the pings that are on their way when SlurmdTimeout becomes 0: else all nodes stop responding."""
_AT_ONCE: Final = 64
"""Commands that are sent ahead of their answers."""

_SCHEDULER: Final = (
    "defer,bf_interval=30,bf_continue,bf_max_job_test=1000,bf_max_job_user=50,"
    "default_queue_depth=100,max_rpc_cnt=128"
)
_NO_SCHEDULER: Final = "defer,bf_interval=-1,sched_interval=-1,max_rpc_cnt=128"
_OTHER_VALUES: Final = {
    "InactiveLimit": "0",
    "MaxArraySize": "100001",
    "MaxJobCount": "250000",
    "MinJobAge": "10",
    "PreemptMode": "OFF",
    "PreemptType": "preempt/none",
    "PrologFlags": None,
    "SlurmdParameters": "config_overrides",
    "SlurmdTimeout": "60",
    "TreeWidth": "65533",
}
"""Keys of slurm.conf and their values here; None: it has none."""
_OLD_NODES: Final = re.compile(r"\bNodes=n1\b")
_CLONE_NEWNS: Final = 0x00020000


def enter_namespace() -> None:
    """Go on in a mount namespace of one's own: what is mounted there ends with its processes, and is seen by no other.

    Raises DevClusterError: not root.
    """
    if os.geteuid() != 0:
        raise DevClusterError("jobs of many users can be submitted by root only: run this as root")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise DevClusterError(f"no mount namespace: {os.strerror(ctypes.get_errno())}")
    _mount("--make-rprivate", "/")


def _mount(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True, env={"PATH": SYSTEM_PATH})
    if done.returncode:
        raise DevClusterError(f"mount {' '.join(words)}: {done.stderr.strip()}")


@dataclass(frozen=True, slots=True)
class Users:
    """The users whose jobs wait: one of the cluster's, then `USERS` - 1 that only this namespace knows."""

    first: str
    first_uid: int

    @property
    def uids(self) -> tuple[int, ...]:
        """All of them."""
        return (self.first_uid, *range(_FIRST_UID, _FIRST_UID + USERS - 1))

    @property
    def others(self) -> dict[str, int]:
        """Those that no machine has, by name."""
        return {f"scale{number}": _FIRST_UID + number - 1 for number in range(1, USERS)}

    def passwd(self, text: str) -> str:
        """Add them to a table of users."""
        lines = (f"{name}:x:{uid}:{uid}::/nonexistent:/bin/sh\n" for name, uid in self.others.items())
        return text.rstrip("\n") + "\n" + "".join(lines)

    def group(self, text: str) -> str:
        """Add their groups to a table of groups."""
        return text.rstrip("\n") + "\n" + "".join(f"{name}:x:{uid}:\n" for name, uid in self.others.items())


def nodes_expression(nodes: int) -> str:
    """Name all nodes of a cluster.

    >>> nodes_expression(100)
    'n[1-100]'
    """
    return f"n[1-{nodes}]"


def leaves(nodes: int) -> Iterator[tuple[str, str]]:
    """Yield the leaf switches and their nodes.

    >>> list(leaves(150))
    [('leaf1', 'n[1-100]'), ('leaf2', 'n[101-150]')]
    """
    for number, first in enumerate(range(1, nodes + 1, LEAF), 1):
        yield f"leaf{number}", f"n[{first}-{min(nodes, first + LEAF - 1)}]"


def topology_conf(nodes: int) -> str:
    """Write topology.conf: a leaf switch for each `LEAF` nodes, and one spine."""
    switches = [f"SwitchName={leaf} Nodes={members}" for leaf, members in leaves(nodes)]
    names = ",".join(leaf for leaf, _ in leaves(nodes))
    return "\n".join([*switches, f"SwitchName=spine Switches={names}"]) + "\n"


def slurm_conf(text: str, nodes: int, *, loading: bool = False, pings: bool = True) -> str:
    """Make slurm.conf of `nodes` nodes of that of a development cluster of one.

    loading: nothing is scheduled. pings: slurmctld asks nodes whether they are there.
    The partition `gpu` is down, so that its jobs wait until the nodes are full.
    """
    values: dict[str, str | None] = dict(_OTHER_VALUES)
    values["SchedulerParameters"] = _NO_SCHEDULER if loading else _SCHEDULER
    if not pings:
        values["SlurmdTimeout"] = "0"
    kept, node = [], ""
    for line in text.splitlines():
        key = line.partition("=")[0]
        if key == "NodeName":
            node = line
        elif key == "PartitionName":
            line = _OLD_NODES.sub(f"Nodes={nodes_expression(nodes)}", line)
            kept.append(
                line.replace("State=UP", "State=DOWN") if line.startswith("PartitionName=gpu ") else line
            )
        elif key not in values:
            kept.append(line)
    kept += [f"{key}={value}" for key, value in values.items() if value is not None]
    facts = node.partition(" ")[2].rpartition(" Feature=")[0]
    model = node.rpartition("Feature=")[2].partition(",")[0]
    kept += [
        f"NodeName={members} {facts} Feature={model},{leaf} State=UNKNOWN" for leaf, members in leaves(nodes)
    ]
    # Partitions name nodes: those must stand before them
    kept.sort(key=lambda line: line.startswith("PartitionName="))
    return "\n".join(kept) + "\n"


class Jobs:
    """Jobs of any user through libslurm: the program `many_jobs.c`, running in the cluster as root."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdin is not None and process.stdout is not None
        self._to: IO[str] = process.stdin
        self._from: IO[str] = process.stdout
        self._number = 0

    def submit(
        self, uids: Sequence[int], count: int, *, nodes: int, arrays: bool = False, name: str = "train"
    ) -> list[int]:
        """Submit so many jobs of these users in turn to the partition `gpu`; return their ids.

        Raises DevClusterError: one was refused.
        """
        lines = []
        for number in range(count):
            self._number += 1
            array = _ARRAY if arrays and number % _ARRAY_EVERY == 0 else "-"
            lines.append(
                f"batch\t{uids[number % len(uids)]}\t{name}-{self._number}\tgpu\t{nodes}\t8\t{array}"
            )
        return self._ask(lines)

    def allocate(self, uids: Sequence[int], count: int) -> list[int]:
        """Start so many jobs of two nodes in the partition `urgent`. Raises DevClusterError."""
        lines = (
            f"allocate\t{uids[number % len(uids)]}\trun-{number}\turgent\t{_RUNNING_NODES}\t8\t-"
            for number in range(count)
        )
        return self._ask(lines)

    def cancel(self, ids: Iterable[int]) -> None:
        """Cancel jobs. Raises DevClusterError."""
        self._ask(f"cancel\t{one}" for one in ids)

    def _ask(self, lines: Iterable[str]) -> list[int]:
        """Send commands some ahead of their answers, so that neither side waits for the other."""
        found: list[int] = []
        ahead = 0
        for line in lines:
            self._to.write(line + "\n")
            ahead += 1
            if ahead == _AT_ONCE:
                found.append(self._answer(flush=True))
                found += [self._answer() for _ in range(ahead - 1)]
                ahead = 0
        if ahead:
            found.append(self._answer(flush=True))
            found += [self._answer() for _ in range(ahead - 1)]
        return found

    def _answer(self, *, flush: bool = False) -> int:
        if flush:
            self._to.flush()
        line = self._from.readline().strip()
        if not line.isdecimal():
            raise DevClusterError(f"a job was refused: {line.removeprefix('- ') or 'the program has ended'}")
        return int(line)


@dataclass(slots=True)
class ScaleCluster:
    """The cluster, its users, and the ids of the records that wait."""

    cluster: Cluster
    users: Users
    jobs: Jobs
    nodes: int
    pending: list[int]

    def shorten(self, pending: int) -> None:
        """Cancel waiting jobs until so many records are left, and wait until slurmctld has forgotten the others."""
        gone, self.pending = self.pending[pending:], self.pending[:pending]
        self.jobs.cancel(gone)
        # MinJobAge, and slurmctld looks for old jobs once a minute
        _await("the cancelled jobs to be forgotten", lambda: self._cancelled() == 0, every=5.0)

    def _cancelled(self) -> int:
        done = self.cluster.run(["squeue", "--noheader", "--states=CANCELLED", "--format=%A"], timeout=120)
        return len(done.stdout.split()) if done.returncode == 0 else 1


@contextmanager
def scale_cluster(
    release: Release, nodes: int, pending: int, say: Callable[[str], None]
) -> Iterator[ScaleCluster]:
    """Bring up a cluster of so many nodes, full of running jobs, and so many pending records; end it afterwards.

    Call `enter_namespace` before. Raises DevClusterError.
    """
    spec = ClusterSpec(name=f"scale-{os.getpid()}", nodes=1, slurm=release, policy="enforce", agents=False)
    try:
        cluster = Cluster.up(spec, say=say)
        yield from _filled(cluster, nodes, pending, say)
    finally:
        Cluster.down(spec.name)


def _filled(cluster: Cluster, nodes: int, pending: int, say: Callable[[str], None]) -> Iterator[ScaleCluster]:
    for name in ("gsubd", "gsub-act"):
        cluster.stop(name)
    users = _add_users(cluster)
    text = cluster.paths.slurm_conf.read_text()
    program = _compile(cluster)
    few = min(LEAF, nodes)
    _configure(cluster, text, few, loading=True)
    with _jobs(cluster, program) as jobs:
        say(f"submitting {pending} records")
        ids = jobs.submit(
            users.uids, pending, nodes=PENDING_NODES if nodes > PENDING_NODES else 1, arrays=True
        )
        _configure(cluster, text, nodes)
        say(f"waiting for {nodes} nodes")
        _await("the nodes", lambda: _states(cluster) == {"idle"})
        (cluster.paths.slurm_conf).write_text(slurm_conf(text, nodes, pings=False))
        cluster.run(["scontrol", "reconfigure"], timeout=120, check=True)
        time.sleep(_SETTLE)
        cluster.stop("slurmd-n1")
        running = max(0, nodes - _FREE) // _RUNNING_NODES
        say(f"starting {running} jobs")
        jobs.allocate(users.uids, running)
        cluster.run(["scontrol", "update", "PartitionName=gpu", "State=UP"], timeout=120, check=True)
        cluster.start("gsubd", seconds=_SECONDS)
        cluster.start("gsub-act")
        _await("gsubd's API", lambda: gsubd.keeps(cluster.ports))
        yield ScaleCluster(cluster, users, jobs, nodes, ids)


def _add_users(cluster: Cluster) -> Users:
    """Give the namespace, or the chroot, its users, and accounting, too."""
    first = cluster.users[0]
    users = Users(first, cluster.rootfs.user(first).uid)
    for name, add in (("passwd", users.passwd), ("group", users.group)):
        if cluster.rootfs.is_chroot:
            # Written in place: the chroot has this very file as its own
            table = cluster.paths.etc / name
            table.write_text(add(table.read_text()))
        else:
            table = cluster.paths.etc / f"{name}.all"
            table.write_text(add(Path("/etc", name).read_text()))
            _mount("--bind", str(table), f"/etc/{name}")
    accounting.register(cluster.run, cluster.spec.name, list(users.others))
    return users


def _configure(cluster: Cluster, text: str, nodes: int, *, loading: bool = False) -> None:
    """Restart slurmctld, and the slurmd that answers for all, with so many nodes."""
    paths = cluster.paths
    cluster.stop("slurmd-n1")
    _shut_controller(cluster)
    paths.slurm_conf.write_text(slurm_conf(text, nodes, loading=loading))
    (paths.etc / "topology.conf").write_text(topology_conf(nodes))
    for name, old in (
        ("gres.conf", r"\bNodeName=(n1|n\[1-\d+\]) "),
        ("site.toml", r'\bnodes = "(n1|n\[1-\d+\])"'),
    ):
        written = re.sub(
            old,
            lambda found: found[0].replace(found[1], nodes_expression(nodes)),
            (paths.etc / name).read_text(),
        )
        (paths.etc / name).write_text(written)
    cluster.start("slurmctld", seconds=_SECONDS)
    cluster.start("slurmd-n1")


def _shut_controller(cluster: Cluster) -> None:
    """End slurmctld by its own command: it may take longer to save its state than a daemon is given to end."""
    cluster.run(["scontrol", "shutdown", "slurmctld"], timeout=120)
    with suppress(DevClusterError):
        _await("the end of slurmctld", lambda: "slurmctld" not in cluster.daemons())
    cluster.stop("slurmctld")


def _states(cluster: Cluster) -> set[str]:
    done = cluster.run(["sinfo", "-h", "-p", "urgent", "-o", "%t"], timeout=60)
    return set(done.stdout.split())


def _await(what: str, ready: Callable[[], bool], *, every: float = 1.0) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        with suppress(subprocess.TimeoutExpired):
            if ready():
                return
        if time.monotonic() > deadline:
            raise DevClusterError(f"{what}: not within {_SECONDS:.0f} s")
        time.sleep(every)


@contextmanager
def _jobs(cluster: Cluster, program: Path) -> Iterator[Jobs]:
    process = cluster.popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield Jobs(process)
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.kill()
        process.wait()
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()


def _compile(cluster: Cluster) -> Path:
    """Compile `many_jobs.c` with the headers of the cluster's release, for the library that its commands use."""
    source = Path(__file__).with_name("many_jobs.c")
    program = cluster.paths.lib / "many_jobs"
    headers = _headers(cluster.rootfs)
    folder = Path("/usr/lib") / f"{os.uname().machine}-linux-gnu" / "slurm-wlm"
    inside = cluster.rootfs.root / folder.relative_to("/")
    argv = ["cc", "-O2", f"-I{headers}", "-o", str(program), str(source), f"-L{inside}", "-l:libslurmfull.so"]
    # The release's own libraries may want a newer C library than this machine links with
    argv += [f"-Wl,-rpath,{folder}", "-Wl,--allow-shlib-undefined"]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise DevClusterError(f"{source.name} cannot be compiled:\n{done.stderr[-600:]}")
    return program


def _headers(rootfs: Rootfs) -> Path:
    """Fetch the headers of libslurm of the release's packages, once; return the folder to compile with."""
    folder = cache_home() / f"libslurm-{rootfs.release}"
    found = folder / "usr/include"
    with locked(cache_home() / f"libslurm-{rootfs.release}.lock"):
        if (found / "slurm/slurm.h").exists():
            return found
        half = folder.with_suffix(".unfinished")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)
        bare = ["chroot", str(rootfs.root)] if rootfs.is_chroot else []
        uris = subprocess.run(
            [*bare, "apt-get", "download", "--print-uris", "libslurm-dev"], capture_output=True, text=True
        )
        address = re.match(r"'([^']+)'", uris.stdout)
        if not address:
            raise DevClusterError(f"the package libslurm-dev is not found: {uris.stderr.strip()[-300:]}")
        package = half / "libslurm-dev.deb"
        fetch = ["/usr/lib/apt/apt-helper", "download-file", address[1], str(package)]
        for argv in (fetch, ["dpkg-deb", "-x", str(package), str(half)]):
            done = subprocess.run(argv, capture_output=True, text=True)
            if done.returncode:
                raise DevClusterError(f"{' '.join(argv[:2])}: {done.stderr.strip()[-300:]}")
        shutil.rmtree(folder, ignore_errors=True)
        half.rename(folder)
    return found


if __name__ == "__main__":
    sys.exit("run python -m benchmarks.scale")
