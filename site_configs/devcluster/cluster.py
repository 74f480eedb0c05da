"""Bringing a development cluster up, running commands in it, and taking it down again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from site_configs.devcluster import accounting, config, rootfs, supervisor
from site_configs.devcluster.rootfs import Rootfs, Say, User
from site_configs.devcluster.spec import ClusterSpec, DevClusterError, Paths, state_home

USERS: Final = ("user1", "user2")
PACKAGES: Final = ("gsub", "slurm_plugins", "profiler", "prolog_epilog", "site_configs")
REPOSITORY: Final = Path(__file__).resolve().parents[2]
# Below the kernel's ephemeral range (32768 on Linux), where a client's socket could take a port from us.
PORT_RANGE: Final = range(20000, 32000)
READY_S: Final = 60.0
MARKER: Final = "GSUB_DEVCLUSTER"
KNOWN_MAJORS: Final = ("22.05", "24.11", "26.05")
_SYSTEM_PATH: Final = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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
        with _locked(spec.name):
            found = cls._read(spec.name)
            if found is not None and found.is_up():
                if found.spec != spec:
                    raise DevClusterError(
                        f"cluster {spec.name!r} is up with other settings ({_differences(found.spec, spec)}).\n"
                        f"Take it down first (`down --name {spec.name}`), or choose another --name."
                    )
                found.say = say
                found._install_packages()
                return found
            if found is not None:
                found._sweep()
            cluster = cls._make(spec, say)
            try:
                cluster._start()
            except BaseException:
                cluster._shut()
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
            raise DevClusterError(f"no development cluster {name!r} is up: start it with `up --name {name}`")
        return cluster

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Every cluster of this user that left something on disk, up or not."""
        return tuple(sorted(p.parent.name for p in state_home().glob("*/cluster.json")))

    @classmethod
    def down(cls, name: str) -> bool:
        """End the cluster and remove its folder; whether there was one. Leaves no process and no mount."""
        with _locked(name):
            cluster = cls._read(name)
            root = state_home() / name
            if cluster is None and not root.exists():
                return False
            if cluster is not None:
                cluster._shut()
            shutil.rmtree(root)
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
            "PATH": f"{self.paths.venv}/bin:{_SYSTEM_PATH}",
            "SLURM_CONF": str(self.paths.slurm_conf),
            "LD_LIBRARY_PATH": str(self.paths.lib),
            "GSUB_SITE": str(self.paths.site),
            "GSUB_EMU_GPUS": str(self.paths.gpus),
        }

    def home(self, user: str | None = None) -> Path:
        """A folder that `user` can write and every node sees."""
        return self.paths.home / (user or _me())

    def argv(self, command: Sequence[str], *, user: str | None = None, cwd: Path | None = None) -> list[str]:
        """The vector that runs `command` in the cluster, without its environment."""
        who = self._user(user) if user and user != _me() else None
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
        self, argv: Sequence[str], *, user: str | None = None, env: Mapping[str, str] | None = None, **options: Any
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
        """Become the command, in the caller's terminal, folder and locale. Does not return."""
        cwd = Path.cwd()
        kept = {k: v for k, v in os.environ.items() if k in ("TERM", "LANG", "NO_COLOR", "COLUMNS", "LINES", "COLORTERM")}
        line = self.argv(argv, user=user, cwd=cwd)
        env = kept | self._environment(user)
        sys.stdout.flush()
        found = shutil.which(line[0], path=env["PATH"])
        if found is None:
            raise DevClusterError(f"{line[0]}: no such command in cluster {self.spec.name!r}")
        os.execve(found, line, env)

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

    def clean(self, *, timeout: float = 60) -> None:
        """Cancel every job and wait until the queue is empty and the nodes idle again."""
        deadline = time.monotonic() + timeout
        while True:
            queue = self.run(["squeue", "-h", "-o", "%i"])
            nodes = self.run(["sinfo", "-h", "-N", "-o", "%t"])
            if queue.returncode == 0 and not queue.stdout.strip() and set(nodes.stdout.split()) == {"idle"}:
                return
            if time.monotonic() > deadline:
                raise DevClusterError(f"the queue does not empty:\n{queue.stdout}{queue.stderr}{nodes.stdout}")
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
        paths = Paths(state_home() / name)
        try:
            kept = json.loads(paths.spec.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DevClusterError(f"{paths.spec} is damaged ({error}): remove {paths.root}") from error
        binds = Path(kept["binds"]) if kept["binds"] else None
        files = Rootfs(kept["spec"]["slurm"], Path(kept["rootfs"]), binds)
        return cls(ClusterSpec(**kept["spec"]), paths, config.Ports(kept["port"]), files)

    @classmethod
    def _make(cls, spec: ClusterSpec, say: Say) -> Cluster:
        paths = Paths(state_home() / spec.name)
        if len(str(paths.munge_socket)) > 100:
            raise DevClusterError(
                f"{paths.root}: too long a path for a Unix socket; set GSUB_DEVCLUSTER_HOME to a shorter one"
            )
        files = rootfs.prepare(spec.slurm, accounting=spec.accounting, say=say)
        for path in (paths.root, paths.etc, paths.run, paths.log, paths.dev, paths.home, paths.gpus, paths.lib):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o755)
        users = [_machine_user(name) for name in USERS] if os.geteuid() == 0 else []
        visible = [state_home(), *([] if files.is_chroot else [rootfs.cache_home()])]
        files = rootfs.write_binds(files, visible, users, paths.etc)
        with _locked("ports"):
            cluster = cls(spec, paths, config.Ports(_free_ports(config.Ports.count(spec))), files, say)
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
        self.paths.spec.write_text(json.dumps(kept, indent=1))

    def _identity(self) -> config.Identity:
        name = socket.gethostname().partition(".")[0]
        if os.geteuid() == 0:
            return config.Identity(name, "slurm", "root")
        return config.Identity(name, _me(), _me())

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
            _device_file(paths.dev / f"nvidia{index}")
        self._folders()
        self._gpus()
        self._install_packages()

    def _host_is_2205(self) -> bool:
        said = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, env={"PATH": _SYSTEM_PATH})
        return said.stdout.startswith("slurm-wlm 22.05") or " 22.05" in said.stdout

    def _folders(self) -> None:
        """The daemons' folders, each owned by who writes there."""
        slurm, me = self._daemon_user("slurm"), self._daemon_user("root")
        munge, mysql = self._daemon_user("munge"), self._daemon_user("mysql")
        owners = {"spool/slurmctld": slurm, "munge": munge, "run/mariadb": mysql, "spool/mariadb": mysql}
        owners |= {f"spool/{node}": me for node in self.spec.node_names}
        for name, owner in owners.items():
            folder = self.paths.root / name
            folder.mkdir(parents=True, exist_ok=True)
            _give(folder, owner)
        for folder in (self.paths.log, self.paths.run):
            _give(folder, slurm)
        key = self.paths.munge / "key"
        if not key.exists():
            accounting.write_private(key, accounting.new_password() * 2, munge.uid, munge.gid)
        for name in self.users or (_me(),):
            folder = self.paths.home / name
            folder.mkdir(exist_ok=True)
            _give(folder, self._user(name))
        if os.geteuid() == 0:
            (self.paths.home / "root").mkdir(exist_ok=True)

    def _gpus(self) -> None:
        from site_configs.devcluster import nvml

        if not hasattr(nvml, "build"):
            return  # TEMP
        self.say("building the emulated NVML")
        nvml.build(self.paths.lib)
        nvml.EmulatedGpus(self.paths.gpus).create(self.spec.node_names, self.spec.gpus)

    def _install_packages(self) -> None:
        """Put our packages and their dependencies where the cluster's users can read them.

        The cluster's Python is a bare virtual environment over two folders: the shared one with the dependencies,
        and this cluster's own copy of the sources (a checkout may lie in a private folder).
        """
        deps = rootfs.python_packages(self.rootfs, say=self.say)
        fresh = self.paths.root / "src.new"
        shutil.rmtree(fresh, ignore_errors=True)
        for package in PACKAGES:
            if (REPOSITORY / package).is_dir():
                shutil.copytree(REPOSITORY / package, fresh / package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.rmtree(self.paths.src, ignore_errors=True)
        fresh.rename(self.paths.src)
        outside = self.rootfs.root / deps.relative_to("/") if self.rootfs.is_chroot else deps
        library = next(outside.glob("lib/python3.*/site-packages"))
        bin_ = self.paths.venv / "bin"
        site = self.paths.venv / library.relative_to(outside)
        for folder in (bin_, site):
            folder.mkdir(parents=True, exist_ok=True)
        (self.paths.venv / "pyvenv.cfg").write_text((outside / "pyvenv.cfg").read_text())
        (site / "devcluster.pth").write_text(f"{self.paths.src}\n{deps / library.relative_to(outside)}\n")
        for name in ("python3", "python"):
            link = bin_ / name
            link.unlink(missing_ok=True)
            link.symlink_to(self.rootfs.python())
        script = bin_ / "gsub"
        script.write_text(f"#!{bin_}/python3 -I\nimport sys\n\nfrom gsub.cli import main\n\nsys.exit(main())\n")
        script.chmod(0o755)
        for root, folders, files in os.walk(self.paths.src):
            for name in (*folders, *files):
                path = Path(root, name)
                path.chmod(path.stat().st_mode | stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0))

    # --- starting and ending ----------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.say(f"starting Slurm ({self.spec.slurm}) with {self.spec.nodes} nodes x {self.spec.gpus} GPUs")
        with (self.paths.log / "supervisor.log").open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-m", "site_configs.devcluster.supervisor", str(self.paths.supervisor_socket)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=REPOSITORY,
                env={**os.environ, MARKER: str(self.paths.root)},
            )
        self._await("the supervisor", self.paths.supervisor_socket.is_socket, "supervisor")
        self._launch("munged")
        self._await("munged", self.paths.munge_socket.is_socket, "munged")
        if self.spec.accounting:
            self._start_accounting()
        self._launch("slurmctld")
        self._await("the controller", self._controller_up, "slurmctld")
        for node in self.spec.node_names:
            self._launch(f"slurmd-{node}")
        self._await("the nodes", self._nodes_idle, f"slurmd-{self.spec.node_names[-1]}")
        if not self.version.startswith(KNOWN_MAJORS):
            self.say(f"warning: Slurm {self.version} is not one that gsub was tested with ({', '.join(KNOWN_MAJORS)})")

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
        accounting.register(self.run, self.spec.name, [*self.users, _me()])

    def _launch(self, name: str) -> None:
        argv, user = self._daemon(name)
        self._ask(
            op="start",
            name=name,
            argv=self.rootfs.argv(argv, user=user),
            env={"PATH": _SYSTEM_PATH, "LANG": "C.UTF-8", "SLURM_CONF": str(self.paths.slurm_conf), MARKER: str(self.paths.root)},
            log=str(self.paths.log / f"{name}.out"),
        )

    def _daemon(self, name: str) -> tuple[list[str], User | None]:
        """Command and user of a daemon; root where the user is None."""
        paths = self.paths
        match name.partition("-"):
            case ("munged", _, _):
                options = [f"--{what}-file={paths.munge / what}" for what in ("key", "pid", "seed", "log")]
                options += [f"--socket={paths.munge_socket}"]
                return ["/usr/sbin/munged", "--foreground", "--num-threads=2", *options], self._daemon_user("munge")
            case ("mariadbd", _, _):
                user = self._daemon_user("mysql")
                return accounting.mariadb_argv(paths, self.ports, user.name), user
            case ("slurmdbd", _, _):
                return ["/usr/sbin/slurmdbd", "-D"], self._daemon_user("slurm")
            case ("slurmctld", _, _):
                return ["/usr/sbin/slurmctld", "-D", "-f", str(paths.slurm_conf)], self._daemon_user("slurm")
            case ("slurmd", _, node) if node in self.spec.node_names:
                return ["/usr/sbin/slurmd", "-D", "-N", node, "-f", str(paths.slurm_conf)], None
            case _:
                raise DevClusterError(f"cluster {self.spec.name!r} has no daemon {name!r}")

    def _controller_up(self) -> bool:
        done = self.run(["scontrol", "ping"], timeout=15)
        return done.returncode == 0 and " UP" in done.stdout

    def _nodes_idle(self) -> bool:
        done = self.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%t"], timeout=15)
        return done.stdout.split() == ["idle"] * self.spec.nodes

    def _database_up(self) -> bool:
        ping = ["mariadb-admin", "--no-defaults", f"--socket={self.paths.run}/mariadb/socket", "--user=root", "ping"]
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
                lines += [f"  {path.name}: {line}" for line in path.read_text(errors="replace").splitlines()[-4:]]
        return "\n".join(lines) or f"  (no log in {self.paths.log})"

    def _ask(self, **command: Any) -> dict[str, Any]:  # noqa: ANN401
        try:
            return supervisor.ask(self.paths.supervisor_socket, **command)
        except OSError as error:
            raise DevClusterError(f"the supervisor of cluster {self.spec.name!r} does not answer: {error}") from error

    def _shut(self) -> None:
        with contextlib.suppress(OSError, RuntimeError, KeyError):
            pid = supervisor.ask(self.paths.supervisor_socket, op="shutdown")["supervisor"]
            deadline = time.monotonic() + 60
            while _alive(pid) and time.monotonic() < deadline:
                time.sleep(0.05)
        self._sweep()

    def _sweep(self) -> None:
        """End what a killed supervisor left behind: every process that carries this cluster's mark."""
        mark = f"{MARKER}={self.paths.root}".encode()
        for _ in range(50):
            left = [pid for pid in _processes_with(mark) if pid != os.getpid()]
            if not left:
                return
            for pid in {*left, *(child for one in left for child in supervisor.descendants(one))}:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    # --- who ------------------------------------------------------------------------------------------------------

    def _daemon_user(self, name: str) -> User:
        """The system user of a daemon; oneself in single-user mode."""
        return self.rootfs.user(name) if os.geteuid() == 0 else _machine_user(_me())

    def _user(self, name: str) -> User:
        if name != _me() and (os.geteuid() != 0 or name not in self.users):
            raise DevClusterError(f"cluster {self.spec.name!r} has no user {name!r}")
        return _machine_user(name)

    def _environment(self, user: str | None) -> dict[str, str]:
        who = _machine_user(user or _me())
        base = {"HOME": who.home, "USER": who.name, "LOGNAME": who.name, "SHELL": "/bin/bash", "LANG": "C.UTF-8"}
        return base | self.env


def _me() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _machine_user(name: str) -> User:
    """A user of this machine; one of the cluster's ordinary users is made where it is missing."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        done = subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", name], capture_output=True, text=True)
        if done.returncode:
            raise DevClusterError(f"user {name!r} could not be made: {done.stderr.strip()}") from None
        entry = pwd.getpwnam(name)
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def _give(path: Path, owner: User) -> None:
    if os.geteuid() == 0:
        os.chown(path, owner.uid, owner.gid)


def _device_file(path: Path) -> None:
    """A GPU's device file for gres.conf: /dev/null's numbers, or a link to it where only root may make devices.

    With a plain file Slurm counts the GPU but hands out no CUDA_VISIBLE_DEVICES.
    """
    path.unlink(missing_ok=True)
    if os.geteuid() == 0:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        path.chmod(0o666)
    else:
        path.symlink_to("/dev/null")


def _free_ports(count: int) -> int:
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


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def _processes_with(mark: bytes) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def _differences(old: ClusterSpec, new: ClusterSpec) -> str:
    names = [name for name in ClusterSpec.__slots__ if getattr(old, name) != getattr(new, name)]
    return ", ".join(f"{name}={getattr(old, name)}" for name in names)


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """One `up` or `down` of a name at a time."""
    state_home().mkdir(parents=True, exist_ok=True)
    with (state_home() / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
