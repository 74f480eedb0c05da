"""A machine of a test's own to install gsub on: a copy of a release's chroot in which a development cluster runs.

What systemd does there is done from outside: its own tools make users and folders, and `systemctl` starts a unit's
program as the cluster's daemon, in the folders and as the user that the unit says.
"""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from site_configs.devcluster import Cluster, agents, pythonenv, supervisor
from site_configs.devcluster.machine import SYSTEM_PATH
from site_configs.devcluster.rootfs import Rootfs

NODE = "n1"


class Machine:
    """The cluster's only machine: controller and node in one."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.root = cluster.paths.root / "machine"
        self.source = cluster.paths.root / "source"
        self.root.mkdir()
        for entry in cluster.rootfs.root.iterdir():
            if entry.name == "opt":  # the clusters' own Python packages
                (self.root / "opt").mkdir()
            else:
                subprocess.run(["cp", "-a", entry, self.root], check=True)
        assert cluster.rootfs.binds is not None
        lines = cluster.rootfs.binds.read_text().splitlines()
        kept = [line for line in lines if line.split()[1] not in ("/etc/passwd", "/etc/group")]
        for table in ("passwd", "group"):
            shutil.copy(cluster.paths.etc / table, self.root / "etc" / table)
        binds = self.root / "etc/binds"
        binds.write_text("\n".join(kept) + "\n")
        cluster.rootfs = Rootfs(cluster.rootfs.release, self.root, binds)
        shutil.rmtree(self.root / "etc/slurm", ignore_errors=True)
        (self.root / "etc/slurm").symlink_to(cluster.paths.etc)
        socket = self.root / "run/munge/munge.socket.2"
        socket.parent.mkdir(exist_ok=True)
        socket.unlink(missing_ok=True)
        socket.symlink_to(cluster.paths.munge_socket)
        for daemon in ("slurmctld", f"slurmd-{NODE}"):  # they are to see this machine from now on
            cluster.restart(daemon)
        self._copy_source()

    def _copy_source(self) -> None:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=pythonenv.REPOSITORY, capture_output=True, text=True, check=True)
        for name in filter(None, names.stdout.split("\0")):
            origin, target = pythonenv.REPOSITORY / name, self.source / name
            if origin.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, target)

    def type(self, line: str) -> None:
        """Run a line as root, in the source folder. Raises AssertionError with what it said when it fails."""
        words = shlex.split(line)
        if words[0] == "systemctl":
            self._systemctl(words[1:])
        elif words[0].startswith("systemd-"):
            self._outside([words[0], f"--root={self.root}", *words[1:]])
        else:
            done = self.run(line)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line as root in the source folder, with nothing set that would tell where gsub or Slurm are."""
        env = {**pythonenv.pip_environment(), "PATH": SYSTEM_PATH}
        bare = ["env", "-i", *(f"{key}={value}" for key, value in env.items())]
        return self.cluster.run([*bare, "bash", "-c", line], cwd=self.source, timeout=400)

    def _outside(self, line: list[str]) -> None:
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, f"{shlex.join(line)}\n{done.stderr}"

    def _systemctl(self, words: list[str]) -> None:
        *verbs, name = words
        unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read(self.root / f"etc/systemd/system/{name}.service")
        service = unit["Service"]
        if verbs == ["disable", "--now"]:
            self.cluster.stop(name)
            if "RuntimeDirectory" in service:  # systemd takes it away with the service
                shutil.rmtree(self.root / "run" / service["RuntimeDirectory"])
            return
        assert verbs == ["enable", "--now"], words
        user = self.cluster.daemon_user(service.get("User", "root"))
        for place, key in (("run", "RuntimeDirectory"), ("var/lib", "StateDirectory")):
            if key in service:
                self._outside(
                    ["install", "-d", f"-o{user.uid}", f"-g{user.gid}", str(self.root / place / service[key])]
                )
        env = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "SLURMD_NODENAME": NODE}
        supervisor.ask(
            self.cluster.paths.supervisor_socket,
            op="start",
            name=name,
            argv=self.cluster.rootfs.argv(shlex.split(service["ExecStart"]), user=user),
            env=env | agents.environment(self.cluster.paths, NODE),
            log=str(self.cluster.paths.log / f"{name}.out"),
        )


def commands(document: Path) -> dict[str, list[str]]:
    """What a guide has typed on `controller#`, `node#` and `all#`, under the headings of its sections."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in document.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        typed = re.match(r"(?:controller|node|all)# (.*)", line)
        if typed:
            found.setdefault(heading, []).append(typed[1])
    return found
