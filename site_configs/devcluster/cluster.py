"""Bringing a development cluster up, running commands in it, and taking it down again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from site_configs.devcluster import accounting, config, daemons, pythonenv, rootfs, supervisor
from site_configs.devcluster.folder import MARKER, check_place, empty, is_ours, shut
from site_configs.devcluster.machine import (
    SYSTEM_PATH,
    User,
    device_file,
    free_ports,
    give,
    locked,
    machine_user,
    may_enter,
    me,
    settled,
)
from site_configs.devcluster.rootfs import Rootfs, Say
from site_configs.devcluster.spec import (
    ClusterSpec,
    DevClusterError,
    NotUpError,
    Paths,
    WrongSpecError,
    cache_home,
    cluster_folder,
    lock_file,
    state_home,
)

USERS: Final = ("user1", "user2")
READY_S: Final = 60.0
# slurmctld's first greeting of slurmdbd took 0.7 s here; 26.05 does not tell of it.
BOOKS_S: Final = 3.0
KNOWN_MAJORS: Final = ("22.05", "24.11", "26.05")
# After a restart over old state a job may still be on the books, until slurmctld finds that it is gone.
_ANSWERING: Final = frozenset({"idle", "mix", "alloc", "comp"})
# MariaDB's root has no password: who reaches the socket is root there.
_PRIVATE: Final = ("run/mariadb", "spool/mariadb")


@dataclass(slots=True)
class Cluster:
    """A development cluster; made by `Cluster.up`, found again by `Cluster.find`."""

    spec: ClusterSpec
    paths: Paths
    ports: config.Ports
    rootfs: Rootfs
    say: Say = field(default=lambda _: None, repr=False)
    _version: str = ""

    # --- life -------------------------------------------------------------------------------------------------------

    @classmethod
    def up(cls, spec: ClusterSpec, *, say: Say = lambda _: None) -> Cluster:
        """Bring the cluster up, or find it up; its copy of our packages is renewed either way.

        Raises
        ------
        DevClusterError: something is missing that cannot be installed, the name is taken by a cluster of another
            shape, or a daemon did not come up (with the end of its log).
        """
        waiting = f"waiting for another up or down of cluster {spec.name!r}"
        with settled(), locked(lock_file(spec.name), waiting=lambda: say(waiting)):
            found = cls._read(spec.name)
            if found is not None and found.is_up():
                if found.spec != spec:
                    raise DevClusterError(
                        f"cluster {spec.name!r} is up with other settings ({_differences(found.spec, spec)}).\n"
                        f"Take it down first (`down --name {spec.name}`), or choose another --name."
                    )
                found.say = say
                pythonenv.install(found.rootfs, found.paths, say=say)
                found._heal()
                return found
            if found is not None:
                shut(found.paths)
                if found.spec.slurm != spec.slurm:
                    empty(found.paths)
            cluster = cls._make(spec, say)
            try:
                cluster._start()
            except BaseException:
                shut(cluster.paths)
                raise
            return cluster

    @classmethod
    def find(cls, name: str = "dev") -> Cluster:
        """The cluster of that name, which must be up.

        Raises
        ------
        DevClusterError: it is not.
        """
        cluster = cls._read(name)
        if cluster is None or not cluster.is_up():
            raise NotUpError(f"no development cluster {name!r} is up: start it with `up --name {name}`")
        return cluster

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Every cluster of this user that left something on disk, up or not."""
        return tuple(sorted(p.name for p in state_home().glob("[a-z]*") if is_ours(Paths(p))))

    @classmethod
    def down(cls, name: str) -> bool:
        """End the cluster and remove its folder; whether there was one. Leaves no process and no mount.

        Needs nothing of what the folder says: a damaged cluster goes too.

        Raises
        ------
        DevClusterError: the name is none, the folder is not a cluster's, or a process cannot be ended.
        """
        paths = Paths(cluster_folder(name))
        if not paths.root.exists():
            return False
        if not is_ours(paths):
            raise DevClusterError(
                f"{paths.root} is not the folder of a development cluster: it stays as it is"
            )
        with locked(lock_file(name), remove=True):
            if not paths.root.exists():
                return False
            shut(paths)
            shutil.rmtree(paths.root)
            return True

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
        """Stop one daemon (`slurmctld`, `slurmdbd`, `slurmd-n3`...)."""
        supervisor.ask(self.paths.supervisor_socket, op="stop", name=name)

    def start(self, name: str) -> None:
        """Start one daemon again, and wait until it answers."""
        self._launch(name)
        if name == "slurmctld":
            self._await("the controller", self._controller_up, "slurmctld")
        elif name == "slurmdbd":
            self._await("the accounting daemon", self._accounting_up, "slurmdbd")
        elif name == "munged":
            self._await("munged", self.paths.munge_socket.is_socket, "munged")
        elif name == "mariadbd":
            self._await("MariaDB", self._database_up, "mariadbd")

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
            "state": str(self.paths.root),
            "slurmctld_port": self.ports.slurmctld,
            "daemons": running,
        }
        if facts["up"]:
            facts["version"] = self.version
            facts["node_states"] = self.run(["sinfo", "-h", "-o", "%D %t"]).stdout.split("\n")[:-1]
        return facts

    # --- making -----------------------------------------------------------------------------------------------------

    @classmethod
    def _read(cls, name: str) -> Cluster | None:
        paths = Paths(cluster_folder(name))
        try:
            kept = json.loads(paths.spec.read_text())
            spec = ClusterSpec(**kept["spec"])
            binds = Path(kept["binds"]) if kept["binds"] else None
            files = Rootfs(spec.slurm, Path(kept["rootfs"]), binds)
            return cls(spec, paths, config.Ports(int(kept["port"])), files)
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError, WrongSpecError) as error:
            raise DevClusterError(
                f"{paths.spec} is damaged ({error}).\n`down --name {name}` ends what runs of it and removes it"
            ) from error

    @classmethod
    def _make(cls, spec: ClusterSpec, say: Say) -> Cluster:
        paths = Paths(cluster_folder(spec.name))
        check_place(paths)
        if len(str(paths.munge_socket)) > 100:
            raise DevClusterError(
                f"{paths.root}: too long a path for a Unix socket; set GSUB_DEVCLUSTER_HOME to a shorter one"
            )
        files = rootfs.prepare(spec.slurm, accounting=spec.accounting, say=say)
        for path in (
            paths.root,
            paths.etc,
            paths.run,
            paths.log,
            paths.dev,
            paths.home,
            paths.gpus,
            paths.lib,
        ):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o755)
            paths.tag.touch()
        users = [machine_user(name) for name in USERS] if os.geteuid() == 0 else []
        visible = [state_home(), *([] if files.is_chroot else [cache_home()])]
        files = rootfs.write_binds(files, visible, users, paths.etc)
        with locked(lock_file("ports")):
            cluster = cls(spec, paths, config.Ports(free_ports(config.Ports.count(spec))), files, say)
            cluster._save()
        cluster._configure()
        return cluster

    def _save(self) -> None:
        kept = {
            "spec": json.loads(self.spec.to_json()),
            "port": self.ports.base,
            "rootfs": str(self.rootfs.root),
            "binds": str(self.rootfs.binds) if self.rootfs.binds else None,
        }
        # At once: an `up` that is killed here leaves no half of it.
        fresh = self.paths.spec.with_suffix(".new")
        fresh.write_text(json.dumps(kept, indent=1))
        fresh.replace(self.paths.spec)

    def _identity(self) -> config.Identity:
        name = socket.gethostname().partition(".")[0]
        if os.geteuid() == 0:
            return config.Identity(name, "slurm", "root")
        return config.Identity(name, me(), me())

    def _configure(self) -> None:
        paths, who = self.paths, self._identity()
        texts = {
            "slurm.conf": config.slurm_conf(self.spec, paths, self.ports, who),
            "gres.conf": config.gres_conf(self.spec, paths),
            "topology.conf": config.topology_conf(self.spec),
            "site.toml": config.site_toml(self.spec, paths),
        }
        if self.spec.slurm != "host" or not self._host_is_2205():
            texts["cgroup.conf"] = config.cgroup_conf()
        for name, text in texts.items():
            (paths.etc / name).write_text(text)
        for index in range(self.spec.gpus):
            device_file(paths.dev / f"nvidia{index}")
        self._folders()
        self._gpus()
        pythonenv.install(self.rootfs, self.paths, say=self.say)

    def _host_is_2205(self) -> bool:
        said = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, env={"PATH": SYSTEM_PATH})
        return said.stdout.startswith("slurm-wlm 22.05") or " 22.05" in said.stdout

    def _folders(self) -> None:
        """The daemons' folders, each owned by who writes there."""
        slurm, root = self._daemon_user("slurm"), self._daemon_user("root")
        munge = self._daemon_user("munge")
        owners = {"spool/slurmctld": slurm, "munge": munge}
        if self.spec.accounting:
            owners |= dict.fromkeys(_PRIVATE, self._daemon_user("mysql"))
        owners |= {f"spool/{node}": root for node in self.spec.node_names}
        for name, owner in owners.items():
            folder = self.paths.root / name
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700 if name in _PRIVATE else 0o755)
            give(folder, owner)
        for folder in (self.paths.log, self.paths.run):
            give(folder, slurm)
        key = self.paths.munge / "key"
        if not key.exists():
            accounting.write_private(key, accounting.new_password() * 2, munge.uid, munge.gid)
        for name in self.users or (me(),):
            folder = self.paths.home / name
            folder.mkdir(exist_ok=True)
            give(folder, self._user(name))
        if os.geteuid() == 0:
            (self.paths.home / "root").mkdir(exist_ok=True)

    def _gpus(self) -> None:
        from site_configs.devcluster import nvml

        self.say("building the emulated NVML")
        try:
            nvml.build(self.paths.lib)
        except nvml.BuildError as error:
            raise DevClusterError(str(error)) from error
        nvml.EmulatedGpus(self.paths.gpus).create(
            self.spec.node_names, self.spec.gpus, cluster=self.spec.name
        )

    # --- starting and ending ----------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.say(f"starting Slurm ({self.spec.slurm}) with {self.spec.nodes} nodes x {self.spec.gpus} GPUs")
        # Sockets that a kill or a reboot left behind would pass for those that are waited for.
        for stale in (self.paths.supervisor_socket, self.paths.munge_socket):
            stale.unlink(missing_ok=True)
        with (self.paths.log / "supervisor.log").open("ab") as log:
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "site_configs.devcluster.supervisor",
                    str(self.paths.supervisor_socket),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=pythonenv.REPOSITORY,
                env={**os.environ, MARKER: str(self.paths.root)},
            )
        self._await("the supervisor", self._supervisor_up, "supervisor")
        self._launch("munged")
        self._await("munged", self.paths.munge_socket.is_socket, "munged")
        if self.spec.accounting:
            self._start_accounting()
        self._start_controller()
        for node in self.spec.node_names:
            self._launch(f"slurmd-{node}")
        self._await("the nodes", self._nodes_answer, f"slurmd-{self.spec.node_names[-1]}")
        if not self.version.startswith(KNOWN_MAJORS):
            self.say(
                f"warning: Slurm {self.version} is not one that gsub was tested with ({', '.join(KNOWN_MAJORS)})"
            )

    def _heal(self) -> None:
        """Start the daemons again that have ended; those that run are left alone."""
        names = ["munged", *(("mariadbd", "slurmdbd") if self.spec.accounting else ())]
        names += [f"slurmd-{node}" for node in self.spec.node_names]
        running = self.daemons()
        for name in names:
            if name not in running:
                if name == "munged":
                    self.paths.munge_socket.unlink(missing_ok=True)
                self.say(f"starting {name} again, which had ended")
                self.start(name)

    def _start_accounting(self) -> None:
        self.say("starting MariaDB and slurmdbd")
        slurm, mysql = self._daemon_user("slurm"), self._daemon_user("mysql")
        password = accounting.new_password()
        accounting.initialise(self.run, self.paths, mysql.name)
        text = config.slurmdbd_conf(self.paths, self.ports, self._identity(), password)
        accounting.write_private(self.paths.etc / "slurmdbd.conf", text, slurm.uid, slurm.gid)
        self._launch("mariadbd")
        self._await("MariaDB", self._database_up, "mariadbd")
        accounting.grant(self.run, self.paths, password)
        self._launch("slurmdbd")
        self._await("slurmdbd", self._accounting_up, "slurmdbd")
        accounting.register(self.run, self.spec.name, [*self.users, me()])

    def _start_controller(self) -> None:
        """Start slurmctld for the first time, and let it finish its books with slurmdbd.

        When slurmdbd greets a controller for the first time, that ends in accounting whatever ran before: a job that
        starts in that moment is on record as "allocation", without its name and partition, for ever (22.05.8).
        """
        log = self.paths.log / "slurmctld.log"
        seen = log.stat().st_size if log.exists() else 0
        self._launch("slurmctld")
        self._await("the controller", self._controller_up, "slurmctld")
        deadline = time.monotonic() + (BOOKS_S if self.spec.accounting else 0)
        while time.monotonic() < deadline:
            if b"Reinitializing job accounting state" in log.read_bytes()[seen:]:
                return
            time.sleep(0.05)

    def _launch(self, name: str) -> None:
        mysql = self._daemon_user("mysql").name if self.spec.accounting else ""
        argv, user = daemons.command(name, self.spec, self.paths, self.ports, mysql)
        self._ask(
            op="start",
            name=name,
            argv=self.rootfs.argv(argv, user=self._daemon_user(user)),
            env={
                "PATH": SYSTEM_PATH,
                "LANG": "C.UTF-8",
                "SLURM_CONF": str(self.paths.slurm_conf),
                MARKER: str(self.paths.root),
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

    def _await(self, what: str, ready: Callable[[], bool], daemon: str) -> None:
        """Wait until `ready`; give up when time is over or the daemon has ended."""
        deadline = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if ready():
                    return
            if daemon != "supervisor" and daemon not in self.daemons():
                raise DevClusterError(f"{what} ended at once:\n{self._log_tail(daemon)}")
            if time.monotonic() > deadline:
                raise DevClusterError(f"{what} did not come up in {READY_S:.0f} s:\n{self._log_tail(daemon)}")
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

    def _daemon_user(self, name: str) -> User:
        """The system user of a daemon; oneself in single-user mode."""
        return self.rootfs.user(name) if os.geteuid() == 0 else machine_user(me())

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


def _differences(old: ClusterSpec, new: ClusterSpec) -> str:
    names = [name for name in ClusterSpec.__slots__ if getattr(old, name) != getattr(new, name)]
    return ", ".join(f"{name}={getattr(old, name)}" for name in names)
