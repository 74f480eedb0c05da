"""A cluster's levers for faults: agents that are killed, an installation and a spool that go bad, a watch on the hooks.

The agent of `NODE` runs from an installation of its own, and has a spool of its own, each on a small file system: what
is done to them is done to no other process of the cluster.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from site_configs.devcluster import Cluster, agents, supervisor
from site_configs.devcluster.folder import MARKER
from site_configs.devcluster.machine import SYSTEM_PATH
from site_configs.devcluster.spec import Paths
from tests.unit.prolog_epilog.agent.conftest import fill, mount
from tests.waiting import wait_until

NODE = "n1"
PATIENCE = 60.0
_HOOKWATCH = Path(__file__).with_name("hookwatch.c")
_MIB = 1 << 20
# fanotify(7): every open of a file on the marked file system asks us, who never answer
_FAN_CLASS_CONTENT, _FAN_CLOEXEC = 0x04, 0x01
_FAN_MARK_ADD, _FAN_MARK_FILESYSTEM, _FAN_OPEN_PERM, _FAN_OPEN_EXEC_PERM = 0x1, 0x100, 0x10000, 0x40000


def await_(what: str, look: Callable[[], object]) -> None:
    """Wait until `look` finds something."""
    wait_until(look, PATIENCE, what)


@dataclass(frozen=True)
class HookRun:
    """One run of a hook: how long slurmd waited for it, in seconds, and the exit status that it saw."""

    event: str
    node: str
    job: int
    seconds: float
    status: int


class Nodes:
    """The nodes of a cluster, under the test's hand. `folder` is for file systems, seen inside chroots too."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.installation = folder / "installation"
        self.spool = folder / "spool"
        self.log = folder / "hooks.log"
        self._paths = cluster.paths
        self._watch_hooks()
        cluster.stop(f"slurmd-{NODE}")
        cluster.stop(f"{agents.PREFIX}{NODE}")
        self._own_installation()
        self._own_spool()
        cluster.start(f"slurmd-{NODE}")  # in a chroot it sees only what was mounted before it began
        self.start(NODE)
        await_("the nodes", lambda: set(cluster.run(["sinfo", "-hN", "-o%t"]).stdout.split()) == {"idle"})

    def close(self) -> None:
        """Leave no mount."""
        for daemon in (f"slurmd-{NODE}", f"{agents.PREFIX}{NODE}"):
            self.cluster.stop(daemon)
        for mounted in (self.installation, self.spool):
            subprocess.run(["umount", "--lazy", str(mounted)], check=True)

    # --- agents -----------------------------------------------------------------------------------------------------

    def pid(self, node: str) -> int | None:
        """The agent's."""
        return self.cluster.daemons().get(f"{agents.PREFIX}{node}")

    def begin(self, node: str, extra: Mapping[str, str] | None = None) -> None:
        """Start an agent, whether or not it can run; `extra` is for its environment."""
        name = f"{agents.PREFIX}{node}"
        place = Paths(self.installation) if node == NODE else self._paths
        argv = [f"{place.venv}/bin/gsub-noded", *agents.argv(self._paths, node)[1:]]
        # By way of a shell: an installation that hangs must not hold the supervisor
        line = self.cluster.rootfs.argv(["/bin/sh", "-c", 'exec "$@"', "sh", *argv])
        env = {
            "PATH": SYSTEM_PATH,
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self._paths.slurm_conf),
            MARKER: str(self._paths.root),
            **agents.environment(self._paths, node),
            **(extra or {}),
        }
        log = str(self._paths.log / f"{name}.out")
        supervisor.ask(self._paths.supervisor_socket, op="start", name=name, argv=line, env=env, log=log)

    def start(self, node: str, extra: Mapping[str, str] | None = None) -> None:
        """Start an agent that can run, and wait until it does."""
        before = self._greetings(node)
        self.begin(node, extra)
        await_(f"the agent of {node}", lambda: self._greetings(node) > before)

    def kill(self, node: str) -> None:
        """SIGKILL, and nothing left of it."""
        pid = self.pid(node)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            await_(f"the end of the agent of {node}", lambda: self.pid(node) is None)

    def _greetings(self, node: str) -> int:
        path = self._paths.log / f"{agents.PREFIX}{node}.out"
        return len(re.findall(r"node \S+ of cluster \S+, \d+ jobs known", path.read_text(errors="replace")))

    # --- the installation -------------------------------------------------------------------------------------------

    def _own_installation(self) -> None:
        self._ext4(self.installation, 64)
        own = Paths(self.installation)
        shutil.copytree(self._paths.src, own.src)
        shutil.copytree(self._paths.venv, own.venv, symlinks=True)
        old, new = (str(each) for each in (self._paths.root, self.installation))
        for path in (own.venv / "bin/gsub-noded", next(own.venv.rglob("devcluster.pth"))):
            path.write_text(path.read_text().replace(old, new))

    @property
    def python(self) -> Path:
        """The agent's interpreter."""
        return Paths(self.installation).venv / "bin/python3"

    def module(self, name: str) -> Path:
        """A file of our packages, as the agent has it."""
        return Paths(self.installation).src / name

    @contextmanager
    def hung_installation(self) -> Iterator[None]:
        """No file of it can be opened: who tries waits in the kernel, as on a network file system that is gone."""
        libc = ctypes.CDLL(None, use_errno=True)
        group = libc.fanotify_init(_FAN_CLASS_CONTENT | _FAN_CLOEXEC, os.O_RDONLY)
        assert group >= 0, os.strerror(ctypes.get_errno())
        try:
            flags, events = _FAN_MARK_ADD | _FAN_MARK_FILESYSTEM, _FAN_OPEN_PERM | _FAN_OPEN_EXEC_PERM
            marked = libc.fanotify_mark(
                group, flags, ctypes.c_uint64(events), -100, os.fsencode(self.installation)
            )
            assert marked == 0, os.strerror(ctypes.get_errno())
            yield
        finally:
            os.close(group)

    # --- the spool --------------------------------------------------------------------------------------------------

    def _own_spool(self) -> None:
        own = self._paths.agent_spool(NODE)
        self._ext4(self.spool, 16)
        self.spool.chmod(0o700)
        for entry in own.iterdir():
            shutil.move(entry, self.spool / entry.name)
        own.rmdir()
        own.symlink_to(self.spool)

    @contextmanager
    def full_spool(self) -> Iterator[None]:
        """Not a byte more fits."""
        taken = fill(self.spool)
        try:
            yield
        finally:
            taken.unlink()

    @contextmanager
    def hung_spool(self) -> Iterator[None]:
        """Every write hangs in the kernel, out of reach of SIGKILL."""
        subprocess.run(["fsfreeze", "-f", str(self.spool)], check=True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "-u", str(self.spool)], check=True)

    def hook_file(self, event: str, job: int) -> Path:
        """What a hook of `NODE` left of a job; the agent must be dead, or it is gone at once."""
        found: list[Path] = []

        def look() -> bool:
            found[:] = (self.spool / "new").glob(f"{event}.{job}.*")
            return bool(found)

        await_(f"the {event}'s file of job {job}", look)
        return found[0]

    def _ext4(self, place: Path, mib: int) -> None:
        place.mkdir()
        image = place.with_suffix(".image")
        with image.open("wb") as file:
            file.truncate(mib * _MIB)
        subprocess.run(["mkfs.ext4", "-q", "-m0", str(image)], check=True)
        mount("-o", "loop", str(image), str(place))
        (place / "lost+found").rmdir()

    # --- hooks ------------------------------------------------------------------------------------------------------

    def _watch_hooks(self) -> None:
        for event in ("prolog", "epilog"):
            hook = self._paths.libexec / event
            hook.rename(hook.with_name(f"{event}.real"))
            defined = {"LOG": self.log, "NOFORK": self.folder / "nofork"}
            names = [f'-D{key}="{value}"' for key, value in defined.items()]
            subprocess.run(
                ["cc", "-O2", *names, str(_HOOKWATCH), "-o", str(hook.with_suffix(".new"))], check=True
            )
            hook.with_suffix(".new").replace(hook)

    @contextmanager
    def no_forks(self, node: str) -> Iterator[None]:
        """No hook of this node can make a process."""
        mark = self.folder / f"nofork.{node}"
        mark.touch()
        try:
            yield
        finally:
            mark.unlink()

    def again(self, event: str, job: int) -> None:
        """Run a hook of `NODE` once more, for a job."""
        env = {"SLURMD_NODENAME": NODE, "SLURM_JOB_ID": str(job), "SLURM_JOB_RESTART_COUNT": "0"}
        done = self.cluster.run([str(self._paths.libexec / event)], env=env)
        assert (done.returncode, done.stdout) == (0, "")

    def hook_runs(self) -> list[HookRun]:
        """All until now."""
        lines = (line.split() for line in self.log.read_text().splitlines()) if self.log.exists() else ()
        return [HookRun(e, n, int(j), float(s), int(status)) for e, n, j, s, status in lines]


def keeper(cluster: Cluster) -> int:
    """The keeper's process id: gsubd's child that has the API."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [
            pid
            for pid in supervisor.descendants(cluster.daemons()["gsubd"])
            if b"slurm_plugins.service.keeper" in _command(pid)
        ]
        return bool(found)

    await_("the keeper", look)
    return found[0]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def slow(runs: list[HookRun], bound: float) -> list[HookRun]:
    """Those that took longer."""
    return [replace(run, seconds=round(run.seconds, 2)) for run in runs if run.seconds > bound]
