"""Bringing a development cluster up, and taking it down again."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from site_configs.devcluster import accounting, agents, config, gsubd, layouts, pythonenv, rootfs
from site_configs.devcluster.folder import MARKER, check_place, empty, is_ours, shut
from site_configs.devcluster.machine import (
    SYSTEM_PATH,
    device_file,
    free_ports,
    give,
    locked,
    machine_user,
    me,
    settled,
    system_user,
)
from site_configs.devcluster.rootfs import Rootfs, Say
from site_configs.devcluster.running import USERS, Running
from site_configs.devcluster.spec import (
    ACT_USER,
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

# slurmctld's first greeting of slurmdbd took 0.7 s here; 26.05 does not tell of it.
BOOKS_S: Final = 3.0
KNOWN_MAJORS: Final = ("22.05", "24.11", "26.05")
# MariaDB's root has no password: who reaches the socket is root there.
_PRIVATE: Final = ("run/mariadb", "spool/mariadb")


@dataclass(slots=True)
class Cluster(Running):
    """A development cluster; made by `Cluster.up`, found again by `Cluster.find`."""

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
                if spec.gsub:
                    gsubd.install_shim(found.paths, spec.deadline)
                if spec.has_agents:
                    agents.install_hooks(found.paths)
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

    # --- making -----------------------------------------------------------------------------------------------------

    @classmethod
    def _read(cls, name: str) -> Cluster | None:
        paths = Paths(cluster_folder(name))
        try:
            kept = json.loads(paths.spec.read_text())
            spec = ClusterSpec.from_values(kept["spec"])
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
        if spec.gsub and os.geteuid() == 0:
            for name in (gsubd.USER, *([ACT_USER] if spec.has_act else [])):
                users.append(rootfs.new_user(files, name, users) if files.is_chroot else system_user(name))
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
            "site.toml": config.site_toml(self.spec, paths, self.ports, gsubd.USER if self.users else me()),
        }
        if self.spec.slurm != "host" or not self._host_is_2205():
            texts["cgroup.conf"] = config.cgroup_conf()
        for name, text in texts.items():
            (paths.etc / name).write_text(text)
        if self.spec.gsub:
            gsubd.install_shim(paths, self.spec.deadline)
        if self.spec.has_agents:
            agents.install_hooks(paths)
        for name in layouts.device_files(tuple(map(self.spec.layout, self.spec.node_names)), self.spec.gpus):
            (paths.dev / name).parent.mkdir(exist_ok=True)
            device_file(paths.dev / name)
        self._folders()
        self._gpus()
        pythonenv.install(self.rootfs, self.paths, say=self.say)

    def _host_is_2205(self) -> bool:
        said = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, env={"PATH": SYSTEM_PATH})
        return said.stdout.startswith("slurm-wlm 22.05") or " 22.05" in said.stdout

    def _folders(self) -> None:
        """The daemons' folders, each owned by who writes there."""
        slurm, root = self.daemon_user("slurm"), self.daemon_user("root")
        munge = self.daemon_user("munge")
        owners = {"spool/slurmctld": slurm, "munge": munge}
        if self.spec.accounting:
            owners |= dict.fromkeys(_PRIVATE, self.daemon_user("mysql"))
        if self.spec.gsub:
            owners |= dict.fromkeys(("run/gsub", "spool/gsub"), self.daemon_user(gsubd.USER))
        private = {*_PRIVATE}
        if self.spec.has_act:
            owners |= dict.fromkeys(("run/gsub-act", "spool/gsub-act"), self.daemon_user(ACT_USER))
            private.add("spool/gsub-act")
        owners |= {f"spool/{node}": root for node in self.spec.node_names}
        if self.spec.has_agents:
            for node in self.spec.node_names:
                own = [
                    str(folder.relative_to(self.paths.root)) for folder in agents.folders(self.paths, node)
                ]
                private |= {*own}
                owners |= dict.fromkeys(own, root)
        for name, owner in owners.items():
            folder = self.paths.root / name
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700 if name in private else 0o755)
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
            with locked(cache_home() / "nvml.lock"):  # compiled once for all clusters
                nvml.copied(cache_home() / "nvml", self.paths.lib)
        except nvml.BuildError as error:
            raise DevClusterError(str(error)) from error
        emulated = nvml.EmulatedGpus(self.paths.gpus)
        for node in self.spec.node_names:
            layouts.emulate(emulated, node, self.spec.layout(node), self.spec.gpus, self.spec.name)

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
        if self.spec.gsub:
            self.start("gsubd")  # after the nodes: its first look at them finds them all
        if self.spec.has_act:
            self.start("gsub-act")
        if self.spec.has_agents:
            self.say("starting the agents of the nodes")
            for node in self.spec.node_names:
                self._launch(f"{agents.PREFIX}{node}")
            self._await("the agents", self._agents_run, f"{agents.PREFIX}{self.spec.node_names[-1]}")
        if self.spec.gsub:
            self._await("gsubd's API", lambda: gsubd.keeps(self.ports), "gsubd")
        if not self.version.startswith(KNOWN_MAJORS):
            self.say(
                f"warning: Slurm {self.version} is not one that gsub was tested with ({', '.join(KNOWN_MAJORS)})"
            )

    def _heal(self) -> None:
        """Start the daemons again that have ended; those that run are left alone."""
        names = ["munged", *(("mariadbd", "slurmdbd") if self.spec.accounting else ())]
        names += [f"slurmd-{node}" for node in self.spec.node_names]
        names += ["gsubd"] if self.spec.gsub else []
        names += ["gsub-act"] if self.spec.has_act else []
        names += [f"{agents.PREFIX}{node}" for node in self.spec.node_names] if self.spec.has_agents else []
        running = self.daemons()
        for name in names:
            if name not in running:
                if name == "munged":
                    self.paths.munge_socket.unlink(missing_ok=True)
                self.say(f"starting {name} again, which had ended")
                self.start(name)

    def _start_accounting(self) -> None:
        self.say("starting MariaDB and slurmdbd")
        slurm, mysql = self.daemon_user("slurm"), self.daemon_user("mysql")
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
        if self.spec.has_act:
            accounting.appoint(self.run, self.spec.name, ACT_USER)

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


def _differences(old: ClusterSpec, new: ClusterSpec) -> str:
    names = [name for name in ClusterSpec.__slots__ if getattr(old, name) != getattr(new, name)]
    return ", ".join(f"{name}={getattr(old, name)}" for name in names)
