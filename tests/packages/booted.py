"""A bare Debian that is booted: systemd is its first process, and runs its units as on a site's host."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.packages import slurm
from tests.packages.bare import NAME, BareHost

SLURM = "munge slurmctld slurmd"

_INIT = Path(__file__).with_name("booted_init.py")
_CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


def unified() -> Path | None:
    """Where this machine has cgroups of version 2, which systemd needs; None: nowhere, or they are not ours."""
    for place in _CGROUPS:
        if (place / "cgroup.controllers").exists() and os.access(place, os.W_OK):
            return place
    return None


def _removed(cgroup: Path) -> bool:
    try:
        cgroup.rmdir()
    except OSError:  # what was killed has not gone yet
        return False
    return True


class BootedHost(BareHost):
    """A copy of the tree, booted. Its daemons are units: `run("systemctl ...")`."""

    def __enter__(self) -> BootedHost:
        try:
            self._boot()
        except BaseException:
            self._end()
            raise
        return self

    def power_cut(self) -> None:
        """End all that runs at once, and boot from what is on the disk."""
        self._end()
        self._boot()

    def _boot(self) -> None:
        place = unified()
        assert place
        (self.root / "etc/hostname").write_text(f"{NAME}\n")  # systemd goes by it
        # A cgroup of its own, which becomes the root of what systemd sees.
        self._cgroup = Path(tempfile.mkdtemp(prefix="gsub-test-", dir=place))
        spaces = ["--mount", "--propagation=private", "--pid", "--net", "--uts", "--ipc", "--cgroup"]
        line = [
            "unshare",
            *spaces,
            "--fork",
            "--kill-child",
            sys.executable,
            str(_INIT),
            str(self.root),
            NAME,
        ]
        enter = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
        with (self.logs / "systemd.log").open("w") as log:
            self._init = subprocess.Popen(
                ["sh", "-c", enter, "sh", str(self._cgroup), *line],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children")
        self.wait("the first process", lambda: bool(children.read_text()), 20)
        self.pid = int(children.read_text())
        self.wait("systemd", self._is_up)

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        super().__exit__()
        folders = [self._cgroup, *(path for path in self._cgroup.rglob("*") if path.is_dir())]
        for folder in sorted(folders, reverse=True):
            self.wait(f"{folder} to be empty", partial(_removed, folder), 20)

    def argv(
        self, command: Sequence[str], *, user: str | None = None, env: Mapping[str, str] | None = None
    ) -> list[str]:
        """The vector that runs `command` here; its tree is the root there, not a folder."""
        line = super().argv(command, user=user, env=env)
        at = line.index("chroot")
        assert line[at + 1] == str(self.root)
        return [*line[: at - 1], "--root", "--wd", "--", *line[at + 2 :]]

    def _is_up(self) -> bool:
        # Not the whole system: a slurmd without its configuration takes long to give up.
        return self.unit("basic.target") == "active"

    def unit(self, name: str) -> str:
        """`active`, `failed`..."""
        return self.run(f"systemctl is-active {name}", check=False).stdout.strip()

    def journal(self, name: str) -> str:
        """The last lines of a unit."""
        return self.run(f"journalctl --no-pager -n 30 -u {name}", check=False).stdout


def idle(host: BareHost) -> None:
    """Wait until the node takes jobs."""
    host.wait("the node", lambda: slurm.node_state(host) == "idle")


@contextmanager
def booted(suite: str, folder: Path) -> Iterator[BootedHost]:
    """A host with a Slurm that has never heard of gsub, its daemons units of systemd."""
    with BootedHost(suite, folder) as host:
        slurm.set_up(host)
        # /dev is new at each boot
        devices = "".join(f"c /dev/nvidia{number} 0666 root root - 1:3\n" for number in range(slurm.GPUS))
        (host.root / "etc/tmpfiles.d/nvidia.conf").write_text(devices)
        if suite == "bookworm":  # 22.05 has no word for none, and its version 2 cannot read a mixed machine
            (host.root / "etc/slurm/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        host.run(f"systemctl restart {SLURM}")
        idle(host)
        yield host
