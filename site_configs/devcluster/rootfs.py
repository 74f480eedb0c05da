"""Where a cluster's Slurm comes from: this machine's packages, or a Debian suite in a cached chroot.

Both give the same three things: an argument vector that runs a command there, a user table, and a Python with what
jobs need. A chroot is entered in a private mount namespace, so nothing is ever mounted on the machine itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from site_configs.devcluster.machine import User, locked
from site_configs.devcluster.spec import DevClusterError, Release, cache_home

Say = Callable[[str], None]

SLURM_PACKAGES: Final = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "munge",
    "lua-posix",
)
ACCOUNTING_PACKAGES: Final = ("slurmdbd", "mariadb-server")
_CHROOT_PACKAGES: Final = ("python3", "python3-venv", "ca-certificates", "procps")
# Debian's suites keep their release files for a limited time; an old mirror must still serve.
_APT_OPTIONS: Final = ('Acquire::Check-Valid-Until "false"', 'APT::Install-Recommends "false"')
_ENTER: Final = Path(__file__).with_name("enter.sh")
_PASSED_ON: Final = ("PIP_", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@dataclass(frozen=True, slots=True)
class Rootfs:
    """A file system with Slurm in it.

    `root` is `/` for the machine's own; `binds` names the fstab(5) of a chroot's bind mounts.
    """

    release: Release
    root: Path
    binds: Path | None = None

    @property
    def is_chroot(self) -> bool:
        """Whether commands are run behind a chroot."""
        return self.root != Path("/")

    def argv(self, command: Sequence[str], *, user: User | None = None, cwd: Path | None = None) -> list[str]:
        """The vector that runs `command` here, as `user`, in `cwd` where that is visible."""
        line = list(command)
        if user is not None and user.uid != os.geteuid():
            groups = ",".join(map(str, user.groups))
            ids = [f"--reuid={user.uid}", f"--regid={user.gid}"]
            ids.append(f"--groups={groups}" if groups else "--clear-groups")
            line = ["setpriv", *ids, "--", *line]
        if not self.is_chroot:
            return line
        if self.binds is None:
            raise ValueError("a chroot needs its list of bind mounts")
        enter = ["sh", str(_ENTER), str(self.root), str(self.binds), str(cwd or "/")]
        return ["unshare", "--mount", "--propagation", "private", "--", *enter, *line]

    def sees(self, folder: Path) -> bool:
        """Whether commands here find `folder`, where the machine has it."""
        if self.binds is None:
            return True
        targets = (Path(line.split()[1]) for line in self.binds.read_text().splitlines())
        return any(folder.is_relative_to(target) for target in targets)

    def user(self, name: str) -> User:
        """Look a user up in this file system's own table, where ids may differ from the machine's."""
        table = self.binds.parent / "passwd" if self.binds else self.root / "etc/passwd"
        for line in table.read_text(errors="replace").splitlines():
            fields = line.split(":")
            if len(fields) >= 7 and fields[0] == name:
                return User(name, int(fields[2]), int(fields[3]), fields[5])
        raise DevClusterError(f"no user {name!r} in {table}")


def prepare(release: Release, *, accounting: bool, say: Say) -> Rootfs:
    """Make sure that `release` can run here; install or build what it lacks.

    Raises
    ------
    DevClusterError: it cannot be had; says what to install, or who must.
    """
    cache_home().mkdir(parents=True, exist_ok=True)
    with locked(cache_home() / f"{release}.lock"):
        if release == "host":
            _install_host(accounting=accounting, say=say)
            return Rootfs("host", Path("/"))
        return Rootfs(release, _make_chroot(release, say=say))


# --- the machine's own packages -------------------------------------------------------------------------------------


def _install_host(*, accounting: bool, say: Say) -> None:
    wanted = [*SLURM_PACKAGES, *(ACCOUNTING_PACKAGES if accounting else ())]
    missing = list_missing_packages(wanted)
    if shutil.which("cc") is None:
        missing += ["gcc", "libc6-dev"]
    if missing:
        install_packages(missing, say=say)


def install_packages(names: Sequence[str], *, say: Say) -> None:
    """Install Debian packages on this machine, without letting their services start.

    Raises
    ------
    DevClusterError: not root, or not a Debian-like machine, or apt refused.
    """
    line = f"apt-get install {' '.join(names)}"
    if shutil.which("apt-get") is None:
        raise DevClusterError(
            f"this machine lacks {', '.join(names)} and has no apt-get.\n"
            "The development cluster runs on Debian and Ubuntu; elsewhere install Slurm 22.05 or newer and munge first."
        )
    if os.geteuid() != 0:
        raise DevClusterError(
            f"this machine lacks {', '.join(names)}, and only root can install them: ask for\n  {line}"
        )
    say(f"installing {' '.join(names)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-q", "-y"]
    # One at a time: the parts of a test run, each preparing a release, would find apt's own locks taken.
    with locked(cache_home() / "apt.lock"), _no_service_starts():
        for command in (
            [*apt, "update"],
            [*apt, "install", "--no-install-recommends", *names],
        ):
            done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace")
            if done.returncode and command[-1] != "update":
                tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-3:])
                raise DevClusterError(f"`{line}` failed:\n{tail}")


def list_missing_packages(names: Sequence[str]) -> list[str]:
    """List those of Debian's packages that this machine lacks; all of them where there is no dpkg."""
    if shutil.which("dpkg-query") is None:
        return [*names]
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\\n", *names]
    shown = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    return [name for name in names if f"{name} installed" not in shown]


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    """Keep apt from starting the machine-wide munge, MariaDB and Slurm: the cluster starts its own.

    Debian's documented way is a policy-rc.d that answers 101; one that the machine already has is left alone.
    """
    policy = Path("/usr/sbin/policy-rc.d")
    try:
        fd = os.open(policy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
    except FileExistsError:
        yield
        return
    with os.fdopen(fd, "w") as file:
        file.write("#!/bin/sh\nexit 101\n")
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


# --- a Debian suite in a chroot -------------------------------------------------------------------------------------


def _make_chroot(suite: Release, *, say: Say) -> Path:
    root = cache_home() / suite
    packages = [*SLURM_PACKAGES, *ACCOUNTING_PACKAGES, *_CHROOT_PACKAGES]
    if (root / ".complete").exists() and set(packages) <= _packages(root):
        return root
    if os.geteuid() != 0:
        raise DevClusterError(
            f"Slurm of Debian {suite} runs in a chroot, and only root can make one: run this as root,\n"
            "or use --slurm host"
        )
    if shutil.which("mmdebstrap") is None:
        install_packages(["mmdebstrap"], say=say)
    say(f"building the chroot of Debian {suite} (once, about a minute)")
    unfinished = cache_home() / f"{suite}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}"]
    command += [f"--aptopt={option}" for option in _APT_OPTIONS]
    done = subprocess.run(
        [*command, suite, str(unfinished)], capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-2:])
        raise DevClusterError(f"the chroot of Debian {suite} could not be made (mmdebstrap):\n{tail}")
    # The machine may trust certificate authorities of its own, for a mirror behind a proxy.
    authorities = Path("/etc/ssl/certs/ca-certificates.crt")
    if authorities.exists():
        shutil.copy(authorities, unfinished / "etc/ssl/certs/ca-certificates.crt")
    (unfinished / ".complete").touch()
    shutil.rmtree(root, ignore_errors=True)  # one that was made for another list of packages
    unfinished.rename(root)
    return root


def _packages(root: Path) -> set[str]:
    """What dpkg has installed below `root`."""
    entries = (root / "var/lib/dpkg/status").read_text(errors="replace").split("\n\n")
    return {
        entry.split("\n", 1)[0].removeprefix("Package: ")
        for entry in entries
        if "\nStatus: install ok installed\n" in entry
    }


def new_user(rootfs: Rootfs, name: str, others: Sequence[User] = ()) -> User:
    """A system user for a chroot's user table, with ids that neither it, nor the machine, nor `others` have."""
    with contextlib.suppress(DevClusterError):
        return rootfs.user(name)
    taken = {
        int(line.split(":")[2])
        for etc in (Path("/etc"), rootfs.root / "etc")
        for table in ("passwd", "group")
        for line in (etc / table).read_text(errors="replace").splitlines()
        if line.count(":") >= 3 and not line.startswith(f"{name}:")
    }
    taken |= {user.uid for user in others}
    free = next(number for number in range(999, 99, -1) if number not in taken)
    return User(name, free, free, "/nonexistent")


def bind_line(source: Path, target: Path) -> str:
    """Return the line of fstab(5) that shows `source` as `target`."""
    return f"{source} {target} none rbind 0 0"


def write_binds(rootfs: Rootfs, visible: Sequence[Path], users: Sequence[User], etc: Path) -> Rootfs:
    """Give a chroot its bind mounts: the kernel's file systems, `visible` folders, and a user table with `users`."""
    if not rootfs.is_chroot:
        return rootfs
    for name, extra in (
        ("passwd", [f"{u.name}:x:{u.uid}:{u.gid}::{u.home}:/bin/bash" for u in users]),
        ("group", [f"{u.name}:x:{u.gid}:" for u in users]),
    ):
        own = (rootfs.root / "etc" / name).read_text().splitlines()
        (etc / name).write_text("\n".join([*own, *extra]) + "\n")
    pairs = [(Path(p), Path(p)) for p in ("/proc", "/sys", "/dev", "/tmp", "/home")]  # noqa: S108 - a mount point
    pairs += [(path, path) for path in visible]
    pairs += [(etc / name, Path("/etc") / name) for name in ("passwd", "group")]
    pairs += [(Path("/etc") / name, Path("/etc") / name) for name in ("hosts", "resolv.conf", "hostname")]
    lines = []
    for source, target in pairs:
        inside = rootfs.root / target.relative_to("/")
        if source.is_dir():
            inside.mkdir(parents=True, exist_ok=True)
        elif not source.exists():
            continue
        elif not inside.exists():
            inside.touch()
        lines.append(bind_line(source, target))
    binds = etc / "binds"
    binds.write_text("\n".join(lines) + "\n")
    return Rootfs(rootfs.release, rootfs.root, binds)
