"""The development cluster as a site that three admins have made their own, each node with folders of its own.

gsub lies below one prefix. Each slurmd and whatever is typed on a node runs in a mount namespace where that prefix is
the node's own folder, so that one machine stands for several hosts with a disk each.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from site_configs.devcluster import Cluster, agents, supervisor
from site_configs.devcluster.folder import MARKER
from site_configs.devcluster.machine import SYSTEM_PATH, give, system_user
from site_configs.devcluster.rootfs import Rootfs, bind_line, new_user
from site_configs.devcluster.spec import GSUB_USER

FILES: Final = Path(__file__).parent / "files"
Hooks = Literal["scripts", "glob", "none"]
"""What the site has of its own: one script a hook and a job_submit.lua; folders of scripts; nothing at all."""

_SCRIPTS: Final = ("prolog", "epilog", "task_prolog", "slurmctld_epilog")

_HEAD: Final = """\
#
# slurm.conf of the development cluster
# managed by hand since 2019 -- TELL THE OTHERS before you touch it
#
# Prolog=/opt/site/old-prolog
"""
_SCRIPT_HOOKS: Final = """\

##  hooks  ###########################################
prolog  =   @ROOT@/site/bin/prolog      # scratch folders
TaskProlog=@ROOT@/site/bin/task_prolog
PrologFlags = Alloc
EpilogSlurmctld=@ROOT@/site/bin/slurmctld_epilog
\tJobSubmitPlugins=lua
Include hooks.conf
"""
_GLOB_HOOKS: Final = """\
Prolog=@ROOT@/site/prolog.d/*
Epilog=@ROOT@/site/epilog.d/*
TaskProlog=@ROOT@/site/bin/task_prolog
EpilogSlurmctld=@ROOT@/site/bin/slurmctld_epilog
PrologFlags=Alloc
JobSubmitPlugins=lua
"""


@dataclass(slots=True)
class Site:
    """A cluster dressed up; made by `Site.dress`."""

    cluster: Cluster
    hooks: Hooks
    before: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The cluster's folder."""
        return self.cluster.paths.root

    @property
    def files(self) -> Path:
        """The site's programs, and those of its users."""
        return self.root / "site/bin"

    @property
    def prefix(self) -> Path:
        """Where gsub is installed; another folder on each host."""
        return self.root / "gsub"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes' names."""
        return self.cluster.spec.node_names

    def disk(self, node: str) -> Path:
        """What a node has at `prefix`."""
        return self.root / "disks" / node

    @classmethod
    def dress(cls, cluster: Cluster, hooks: Hooks) -> Site:
        """Make the cluster such a site, slurmctld and the slurmds restarted with it."""
        site = cls(cluster, hooks)
        site._fresh_folders()
        site._users()
        site._qos()
        for name in filter(Path.is_file, FILES.iterdir()):  # Python may have compiled some of them
            site._place(name.name, site.files / name.name, 0o755)
        site._scripts()
        site._write_conf()
        for node in site.nodes:
            cluster.stop(f"slurmd-{node}")
        cluster.restart("slurmctld")
        for node in site.nodes:
            site.start_slurmd(node)
        site.wait_for_nodes()
        site.before = site.sums()
        return site

    # --- what the site's admins have made ---------------------------------------------------------------------------

    def _fresh_folders(self) -> None:
        for name in ("site", "scratch", "disks", "gsub"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        slurm = self.cluster.daemon_user("slurm")
        for folder in (self.files, self.root / "site/log", self.prefix):
            folder.mkdir(parents=True)
        give(self.root / "site/log", slurm)  # EpilogSlurmctld writes there, and root's prolog
        for node in self.nodes:
            self.disk(node).mkdir(parents=True)
            (self.root / "scratch" / node).mkdir(parents=True)
        for path in (self.root / "site", *self.root.glob("scratch/*"), *self.root.glob("disks/*")):
            path.chmod(0o755)

    def _users(self) -> None:
        """The user gsub, as a site's LDAP would have it: a chroot's user table is a mount, and useradd renames."""
        files = self.cluster.rootfs
        if not files.is_chroot:
            system_user(GSUB_USER)
            return
        user = new_user(files, GSUB_USER)
        etc = self.cluster.paths.etc
        entries = {
            "passwd": f"{user.name}:x:{user.uid}:{user.gid}::{user.home}:/bin/bash",
            "group": f"{user.name}:x:{user.gid}:",
        }
        for table, line in entries.items():
            text = (etc / table).read_text()
            if f"\n{user.name}:" not in text:
                text = re.sub(
                    r"^(slurm:x:\d+:)$", rf"\1{user.name}", text, flags=re.MULTILINE
                )  # of the table group
                (etc / table).write_text(f"{text}{line}\n")

    def _qos(self) -> None:
        for words in (["add", "qos", "short,long"], ["modify", "account", "lab", "set", "qos+=short,long"]):
            done = self.cluster.run(["sacctmgr", "-i", *words])
            said = done.stdout + done.stderr
            assert done.returncode == 0 or "othing" in said or "already" in said, said

    def _place(self, name: str, target: Path, mode: int) -> None:
        text = (FILES / name).read_text()
        target.write_text(
            text.replace("@ROOT@", str(self.root)).replace("@ETC@", str(self.cluster.paths.etc))
        )
        target.chmod(mode)

    def _scripts(self) -> None:
        etc = self.cluster.paths.etc
        # site.toml is the development cluster's, which is another installation
        for name in ("site.toml", "job_submit.lua", "hooks.conf"):
            (etc / name).unlink(missing_ok=True)
        if self.hooks == "none":
            return
        self._place("job_submit.lua", etc / "job_submit.lua", 0o644)
        if self.hooks == "glob":
            for hook in ("prolog", "epilog"):
                folder = self.root / f"site/{hook}.d"
                folder.mkdir()
                (folder / "50-site").symlink_to(f"../bin/{hook}")

    def _write_conf(self) -> None:
        """slurm.conf with the development cluster's settings, in the hand of three admins."""
        etc = self.cluster.paths.etc
        kept = self.root / "slurm.conf.devcluster"
        if not kept.exists():
            shutil.copy(etc / "slurm.conf", kept)
        lines = kept.read_text().splitlines()
        hardware = [line for line in lines if line.startswith(("NodeName=", "PartitionName="))]
        own = {"PrologFlags", "JobSubmitPlugins", "Prolog", "Epilog", "TaskProlog"}
        rest = [
            line
            for line in lines
            if {line, line.partition("=")[0], line[:1]}.isdisjoint({*hardware, *own, "#"})
        ]
        gpus = next(line for line in hardware if line.startswith("PartitionName=gpu"))
        cpus = gpus.replace("PartitionName=gpu", "PartitionName=cpu").replace("Default=YES", "Default=NO")
        folded = [line.replace(" State=UP", "  \\\n   State=UP") for line in (*hardware, cpus)]
        text = _HEAD + "\n".join(_untidy(line) for line in rest)
        text += {"scripts": _SCRIPT_HOOKS, "glob": "\n" + _GLOB_HOOKS, "none": "\n"}[self.hooks]
        text += "\n# nodes and partitions\nInclude nodes.conf"  # no newline at its end
        (etc / "nodes.conf").write_text("\n".join(["# the racks", *folded, ""]))
        (etc / "slurm.conf").write_text(text.replace("@ROOT@", str(self.root)))
        if self.hooks == "scripts":
            remark = "# epilog in a file of its own: the storage team edits it"
            (etc / "hooks.conf").write_text(f"{remark}\nEpilog={self.files}/epilog\n")

    def sums(self) -> dict[str, str]:
        """SHA-256, mode and owner of all that is the site's: its configuration, its programs and its links."""
        found = {}
        places = [self.cluster.paths.etc, self.root / "site"]
        for path in sorted(file for place in places for file in place.rglob("*")):
            if "log" in path.relative_to(self.root).parts or path.is_dir():
                continue
            content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
            status = path.lstat()
            name = str(path.relative_to(self.root))
            found[name] = (
                f"{hashlib.sha256(content).hexdigest()} {status.st_mode:o} {status.st_uid}:{status.st_gid}"
            )
        return found

    # --- daemons ----------------------------------------------------------------------------------------------------

    def argv_on(self, node: str, argv: Sequence[str]) -> list[str]:
        """The vector that runs a command as root on a node, which has its own folder at `prefix`."""
        files = self.cluster.rootfs
        if files.binds is None:
            script = 'mount --bind "$0" "$1" && shift && exec "$@"'
            inside = ["sh", "-c", script, str(self.disk(node)), str(self.prefix)]
            return ["unshare", "--mount", "--propagation", "private", "--", *inside, *argv]
        binds = self.root / "disks" / f"{node}.binds"
        binds.write_text(f"{files.binds.read_text()}{bind_line(self.disk(node), self.prefix)}\n")
        return Rootfs(files.release, files.root, binds).argv(argv)

    def launch(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Have the cluster's supervisor run a daemon."""
        base = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "SLURM_CONF": str(self.cluster.paths.slurm_conf)}
        supervisor.ask(
            self.cluster.paths.supervisor_socket,
            op="start",
            name=name,
            argv=list(argv),
            env={**base, MARKER: str(self.root), **(env or {})},
            log=str(self.cluster.paths.log / f"{name}.out"),
        )

    def start_slurmd(self, node: str) -> None:
        """Start a node's slurmd on its node."""
        conf = str(self.cluster.paths.slurm_conf)
        self.launch(f"slurmd-{node}", self.argv_on(node, ["/usr/sbin/slurmd", "-D", "-N", node, "-f", conf]))

    def start_agent(self, node: str, argv: Sequence[str]) -> None:
        """Start a node's agent on its node."""
        self.launch(f"noded-{node}", self.argv_on(node, argv), agents.environment(self.cluster.paths, node))

    def wait_for_nodes(self) -> None:
        """Wait until all nodes answer."""
        from tests.slurm.install.site.stream import wait_for

        def answer() -> bool:
            done = self.cluster.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%t"])
            states = done.stdout.split()
            return len(states) == len(self.nodes) and set(states) <= {"idle", "mix", "alloc", "comp"}

        wait_for("the nodes", answer)

    def kill_slurmctld(self) -> None:
        """kill -9, then start it again."""
        pid = self.cluster.daemons()["slurmctld"]
        os.kill(pid, signal.SIGKILL)
        from tests.slurm.install.site.stream import wait_for

        wait_for("slurmctld's end", lambda: "slurmctld" not in self.cluster.daemons())
        self.cluster.start("slurmctld")

    def run_on(
        self, node: str, argv: Sequence[str], env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root on a node."""
        return subprocess.run(
            self.argv_on(node, argv),
            env={"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": "/root", **env},
            capture_output=True,
            text=True,
            timeout=180,
        )


def _untidy(line: str) -> str:
    """The same line as somebody in a hurry writes it: every seventh has blanks, or another case, or a remark."""
    key, _, value = line.partition("=")
    if " " in value or '"' in value:
        return line
    styles = (
        f"{key} = {value}",
        f"{key.lower()}={value}",
        f"{key}=\t{value}   # do not touch",
        f"  {key}={value}  ",
    )
    number = sum(key.encode()) % 14
    return styles[number] if number < len(styles) else line
