"""A cluster that runs: commands in it, its daemons, its users. What makes and ends one is in `cluster`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from site_configs.devcluster import agents, config, daemons, gsubd, supervisor
from site_configs.devcluster.folder import MARKER
from site_configs.devcluster.machine import SYSTEM_PATH, User, machine_user, may_enter, me
from site_configs.devcluster.rootfs import Rootfs, Say
from site_configs.devcluster.spec import ACT_USER, ClusterSpec, DevClusterError, Paths

USERS: Final = ("user1", "user2")
READY_S: Final = 60.0
# After a restart over old state a job may still be on the books, until slurmctld finds that it is gone.
_SITE_READS: Final = "gsub_site_file_reads_total"
_ANSWERING: Final = frozenset({"idle", "mix", "alloc", "comp"})


@dataclass(slots=True)
class Running:
    """A cluster as its users and the tests see it."""

    spec: ClusterSpec
    paths: Paths
    ports: config.Ports
    rootfs: Rootfs
    say: Say = field(default=lambda _: None, repr=False)
    _version: str = ""

    def is_up(self) -> bool:
        """Whether its supervisor answers and the controller runs."""
        return "slurmctld" in self.daemons()

    def daemons(self) -> dict[str, int]:
        """The running daemons and their pids; empty when the cluster is down."""
        try:
            running: dict[str, int] = supervisor.ask(self.paths.supervisor_socket, op="list")["running"]
        except (OSError, RuntimeError, KeyError):
            return {}
        return running

    # --- use --------------------------------------------------------------------------------------------------------

    @property
    def release(self) -> str:
        """`host`, `trixie` or `forky`."""
        return self.spec.slurm

    @property
    def version(self) -> str:
        """Slurm's version as its own commands print it, e.g. `22.05.8`."""
        if not self._version:
            said = self.run(["sinfo", "--version"], check=True).stdout.split()
            self._version = said[-1]
        return self._version

    @property
    def users(self) -> tuple[str, ...]:
        """The ordinary users; none in single-user mode."""
        return USERS if os.geteuid() == 0 else ()

    @property
    def env(self) -> dict[str, str]:
        """The variables that make a shell part of the cluster."""
        return {
            "PATH": f"{self.paths.venv}/bin:{SYSTEM_PATH}",
            "SLURM_CONF": str(self.paths.slurm_conf),
            "LD_LIBRARY_PATH": str(self.paths.lib),
            "GSUB_SITE": str(self.paths.site),
            "GSUB_EMU_GPUS": str(self.paths.gpus),
        }

    def home(self, user: str | None = None) -> Path:
        """A folder that `user` can write and every node sees."""
        return self.paths.home / (user or me())

    def argv(self, command: Sequence[str], *, user: str | None = None, cwd: Path | None = None) -> list[str]:
        """The vector that runs `command` in the cluster, without its environment."""
        who = self._user(user) if user and user != me() else None
        return self.rootfs.argv(command, user=who, cwd=cwd)

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        input: str | None = None,  # noqa: A002 - subprocess.run's own word
        timeout: float | None = 60,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside the cluster's environment, chroot included, and keep what it prints.

        `env` is added to the cluster's; nothing else of the caller's environment comes along, so that a run is the
        same from any shell. `cwd` defaults to the user's folder.
        """
        where = cwd or self.home(user)
        return subprocess.run(
            self.argv(argv, user=user, cwd=where),
            env=self._environment(user) | dict(env or {}),
            cwd=where,
            input="" if input is None else input,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=check,
        )

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,  # noqa: ANN401 - Popen's
    ) -> subprocess.Popen[str]:
        """Like `run` for a process that goes on; `options` are Popen's."""
        where = options.pop("cwd", None) or self.home(user)
        return subprocess.Popen(
            self.argv(argv, user=user, cwd=where),
            env=self._environment(user) | dict(env or {}),
            cwd=where,
            text=True,
            **options,
        )

    def exec(self, argv: Sequence[str], *, user: str | None = None) -> None:
        """Become the command, in the caller's terminal, and folder where the user may enter it. Does not return."""
        who = self._user(user or me())
        try:
            cwd = Path.cwd()
            stays = may_enter(cwd, who) and self.rootfs.sees(cwd)
        except OSError:  # it was removed, or lies where even the caller cannot look
            stays = False
        if not stays:
            cwd = self.home(user)
            os.chdir(cwd)
            self.say(f"{who.name} cannot enter this folder inside the cluster: running in {cwd}")
        kept = {
            k: v for k, v in os.environ.items() if k in ("TERM", "NO_COLOR", "COLUMNS", "LINES", "COLORTERM")
        }
        line = self.argv(argv, user=user, cwd=cwd)
        env = kept | self._environment(user)
        sys.stdout.flush()
        found = shutil.which(line[0], path=env["PATH"])
        if found is None:
            raise DevClusterError(f"{line[0]}: no such command in cluster {self.spec.name!r}")
        # Python ignores these two, and the command would inherit that
        for sig in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(sig, signal.SIG_DFL)
        os.execve(found, line, env)  # noqa: S606 - no shell is the point

    def stop(self, name: str) -> None:
        """Stop one daemon (`slurmctld`, `slurmdbd`, `slurmd-n3`, `gsubd`...)."""
        supervisor.ask(self.paths.supervisor_socket, op="stop", name=name)

    def start(self, name: str, *, seconds: float = READY_S) -> None:
        """Start one daemon again, and wait until it answers, for so many seconds at most."""
        self._launch(name)
        if name == "slurmctld":
            self._await("the controller", self._controller_up, "slurmctld", seconds)
        elif name == "slurmdbd":
            self._await("the accounting daemon", self._accounting_up, "slurmdbd", seconds)
        elif name == "munged":
            self._await("munged", self.paths.munge_socket.is_socket, "munged", seconds)
        elif name == "mariadbd":
            self._await("MariaDB", self._database_up, "mariadbd", seconds)
        elif name == "gsubd":
            self._await("gsubd", lambda: gsubd.answers(self.ports), "gsubd", seconds)
        elif name == "gsub-act":
            self._await("gsub-act", lambda: gsubd.act_answers(self.paths), "gsub-act", seconds)

    def restart(self, name: str) -> None:
        """Stop one daemon and start it again."""
        self.stop(name)
        self.start(name)

    def write_site(self, text: str) -> None:
        """Replace the site file, and wait until gsubd, where it runs, has read it."""
        pid = self.daemons().get("gsubd")
        before = (gsubd.metric(self.ports, _SITE_READS) or 0) if pid else 0
        gsubd.write_site(self.paths, text)
        if pid:
            os.kill(pid, signal.SIGHUP)
            self._await(
                "the new site file", lambda: (gsubd.metric(self.ports, _SITE_READS) or 0) > before, "gsubd"
            )

    def decisions(self) -> list[dict[str, Any]]:
        """What gsubd has written down so far, oldest first."""
        return gsubd.decisions(self.paths)

    def clean(self, *, timeout: float = 60) -> None:
        """Cancel every job and wait until the queue is empty and the nodes idle again."""
        deadline = time.monotonic() + timeout
        while True:
            queue = self.run(["squeue", "-h", "-o", "%i"])
            nodes = self.run(["sinfo", "-h", "-N", "-o", "%t"])
            if queue.returncode == 0 and not queue.stdout.strip() and set(nodes.stdout.split()) == {"idle"}:
                return
            if time.monotonic() > deadline:
                raise DevClusterError(
                    f"the queue does not empty:\n{queue.stdout}{queue.stderr}{nodes.stdout}"
                )
            self.run(["scancel", "--quiet", "--state=PENDING"])
            self.run(["scancel", "--quiet", "--state=SUSPENDED"])
            self.run(["scancel", "--quiet", "--signal=KILL", "--full", "--state=RUNNING"])
            self.run(["scancel", "--quiet", "--state=RUNNING"])
            time.sleep(0.2)

    def status(self) -> dict[str, Any]:
        """The cluster in a few facts, for people and for --json."""
        running = self.daemons()
        facts: dict[str, Any] = {
            "name": self.spec.name,
            "up": "slurmctld" in running,
            "release": self.spec.slurm,
            "nodes": self.spec.nodes,
            "gpus_per_node": self.spec.gpus,
            "policy": self.spec.policy,
            "accounting": self.spec.accounting,
            "gsub": self.spec.gsub,
            "agents": self.spec.has_agents,
            "state": str(self.paths.root),
            "slurmctld_port": self.ports.slurmctld,
            "daemons": running,
        }
        if facts["up"]:
            facts["version"] = self.version
            facts["node_states"] = self.run(["sinfo", "-h", "-o", "%D %t"]).stdout.split("\n")[:-1]
        return facts

    def _launch(self, name: str) -> None:
        mysql = self.daemon_user("mysql").name if self.spec.accounting else ""
        argv, user = daemons.command(name, self.spec, self.paths, self.ports, mysql)
        self._ask(
            op="start",
            name=name,
            argv=self.rootfs.argv(argv, user=self.daemon_user(user)),
            env={
                "PATH": SYSTEM_PATH,
                "LANG": "C.UTF-8",
                "SLURM_CONF": str(self.paths.slurm_conf),
                MARKER: str(self.paths.root),
                **daemons.environment(name, self.paths),
            },
            log=str(self.paths.log / f"{name}.out"),
        )

    def _supervisor_up(self) -> bool:
        try:
            return "supervisor" in supervisor.ask(self.paths.supervisor_socket, op="list")
        except (OSError, RuntimeError, ValueError):
            return False

    def _controller_up(self) -> bool:
        done = self.run(["scontrol", "ping"], timeout=15)
        return done.returncode == 0 and " UP" in done.stdout

    def _nodes_answer(self) -> bool:
        done = self.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%t"], timeout=15)
        states = done.stdout.split()  # a '*' marks a node that does not answer
        return len(states) == self.spec.nodes and set(states) <= _ANSWERING

    def _agents_run(self) -> bool:
        running = self.daemons()
        return all(
            f"{agents.PREFIX}{node}" in running and (self.paths.agent_spool(node) / "jobs").is_dir()
            for node in self.spec.node_names
        )

    def _database_up(self) -> bool:
        ping = [
            "mariadb-admin",
            "--no-defaults",
            f"--socket={self.paths.run}/mariadb/socket",
            "--user=root",
            "ping",
        ]
        return self.run(ping, timeout=15).returncode == 0

    def _accounting_up(self) -> bool:
        return self.run(["sacctmgr", "-n", "-P", "show", "cluster"], timeout=30).returncode == 0

    def _await(self, what: str, ready: Callable[[], bool], daemon: str, seconds: float = READY_S) -> None:
        """Wait until `ready`; give up when time is over or the daemon has ended."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if ready():
                    return
            if daemon != "supervisor" and daemon not in self.daemons():
                raise DevClusterError(f"{what} ended at once:\n{self._log_tail(daemon)}")
            if time.monotonic() > deadline:
                raise DevClusterError(f"{what} did not come up in {seconds:.0f} s:\n{self._log_tail(daemon)}")
            time.sleep(0.1)

    def _log_tail(self, name: str) -> str:
        lines: list[str] = []
        for suffix in (".log", ".out"):
            path = self.paths.log / f"{name}{suffix}"
            if path.exists():
                lines += [
                    f"  {path.name}: {line}" for line in path.read_text(errors="replace").splitlines()[-4:]
                ]
        return "\n".join(lines) or f"  (no log in {self.paths.log})"

    def _ask(self, **command: Any) -> dict[str, Any]:  # noqa: ANN401
        try:
            return supervisor.ask(self.paths.supervisor_socket, **command)
        except (OSError, RuntimeError, ValueError) as error:
            raise DevClusterError(
                f"the supervisor of cluster {self.spec.name!r} did not do it: {error}"
            ) from error

    # --- who ------------------------------------------------------------------------------------------------------

    def daemon_user(self, name: str) -> User:
        """The system user of a daemon; oneself in single-user mode."""
        if os.geteuid() != 0:
            return machine_user(me())
        user = self.rootfs.user(name)
        # A daemon gives its socket to its asker's group: SupplementaryGroups= in the systemd units.
        shared = {gsubd.USER: "slurm", ACT_USER: gsubd.USER}.get(name)
        return user if shared is None else replace(user, groups=(self.rootfs.user(shared).gid,))

    def _user(self, name: str) -> User:
        if name != me() and (os.geteuid() != 0 or name not in self.users):
            raise DevClusterError(f"cluster {self.spec.name!r} has no user {name!r}")
        return machine_user(name)

    def _environment(self, user: str | None) -> dict[str, str]:
        who = machine_user(user or me())
        base = {
            "HOME": who.home,
            "USER": who.name,
            "LOGNAME": who.name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
        }
        return base | self.env
