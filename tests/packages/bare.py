"""A bare Debian of a test's own: minimal, with Slurm and munge from its suite, and no trace of gsub or of a network.

Its processes, mounts, network and name are in namespaces: what runs there meets nothing of this machine, and all of it
ends with its first process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from site_configs.devcluster.machine import locked
from site_configs.devcluster.rootfs import install_packages
from site_configs.devcluster.spec import cache_home
from tests.waiting import wait_until

NAME = "bare1"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SITE = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "systemd", "procps")
"""What a site's host has before gsub comes."""
NEEDED = ("python3", "lua-posix")
"""What gsub's packages ask for: kept as archives, so that apt installs them without a network."""
_INIT = Path(__file__).with_name("bare_init.py")


def bare_root(suite: str) -> Path:
    """The cached tree of a bare host, made once by mmdebstrap."""
    root = cache_home() / f"bare-{suite}"
    recipe = " ".join([*SITE, *NEEDED])
    made_of = root.with_suffix(".recipe")
    cache_home().mkdir(parents=True, exist_ok=True)
    with locked(cache_home() / f"bare-{suite}.lock"):
        if made_of.exists() and made_of.read_text() == recipe:
            return root
        if shutil.which("mmdebstrap") is None:
            install_packages(["mmdebstrap"], say=print)
        made_of.unlink(missing_ok=True)
        shutil.rmtree(root, ignore_errors=True)
        download = f"apt-get -q -y --no-install-recommends --download-only install {' '.join(NEEDED)}"
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(SITE)}"]
        command += ['--aptopt=Acquire::Check-Valid-Until "false"', '--aptopt=APT::Install-Recommends "false"']
        command += ["--skip=cleanup/apt", f'--customize-hook=chroot "$1" {download}', suite, str(root)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        assert done.returncode == 0, done.stderr[-2000:]
        made_of.write_text(recipe)
    return root


class BareHost:
    """A copy of the tree, running. Use as a context manager."""

    def __init__(self, suite: str, folder: Path) -> None:
        self.suite = suite
        self.root = folder / "host"
        subprocess.run(["cp", "-a", bare_root(suite), self.root], check=True)
        self._init: subprocess.Popen[str] | None = None
        self.pid = 0
        self._daemons: dict[str, subprocess.Popen[str]] = {}
        self.logs = folder / "logs"
        self.logs.mkdir()

    def __enter__(self) -> BareHost:
        namespaces = [
            "--mount",
            "--propagation=private",
            "--pid",
            "--fork",
            "--kill-child",
            "--net",
            "--uts",
            "--ipc",
        ]
        self._init = subprocess.Popen(
            ["unshare", *namespaces, sys.executable, str(_INIT), str(self.root), NAME],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._init.stdout and self._init.stdout.readline() == "ready\n"
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children")
        self.pid = int(children.read_text())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._init
        self._init.kill()  # unshare's --kill-child takes the first process along, and that all the others
        self._init.wait()
        for daemon in self._daemons.values():
            daemon.wait()

    def argv(
        self, command: Sequence[str], *, user: str | None = None, env: Mapping[str, str] | None = None
    ) -> list[str]:
        """The vector that runs `command` here, with nothing of our environment."""
        spaces = ("--mount", "--pid", "--net", "--uts", "--ipc")
        given = {
            "PATH": PATH,
            "LANG": "C.UTF-8",
            "HOME": "/root",
            "DEBIAN_FRONTEND": "noninteractive",
        } | dict(env or {})
        bare = ["env", "-i", *(f"{key}={value}" for key, value in given.items())]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        return [
            "nsenter",
            f"--target={self.pid}",
            *spaces,
            "--",
            "chroot",
            str(self.root),
            *bare,
            *become,
            *command,
        ]

    def run(
        self,
        line: str,
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a line of shell here, as root or `user`; with `check` it must end with 0."""
        done = subprocess.run(
            self.argv(["sh", "-c", line], user=user, env=env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
        assert not check or done.returncode == 0, f"{line}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start a daemon in the foreground; what it says goes to a file."""
        with (self.logs / f"{name}.log").open("a") as log:
            self._daemons[name] = subprocess.Popen(
                self.argv(command, user=user, env=env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )

    def stop(self, name: str, by: signal.Signals = signal.SIGTERM) -> None:
        """End a daemon as systemd does, by a signal to it."""
        daemon = self._daemons.pop(name)
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), by)
        daemon.send_signal(signal.SIGCONT)  # nsenter stops itself when its child was stopped for a while
        daemon.wait(30)

    def mount(self, kind: str, place: str, options: str) -> None:
        """Mount a file system in the host's tree; it is seen there alone."""
        line = ["mount", "-t", kind, "-o", options, kind, f"{self.root}{place}"]
        subprocess.run(["nsenter", f"--target={self.pid}", "--mount", "--", *line], check=True)

    def copy(self, *paths: Path, to: str) -> None:
        """Copy files of ours into a folder here."""
        place = self.root / to.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copy(path, place)

    def wait(self, what: str, ready: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until `ready`; fail with the daemons' last lines when it is not in time."""
        try:
            wait_until(ready, seconds, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tails()}") from None

    def tails(self) -> str:
        """The last lines of each daemon."""
        return "\n".join(
            f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in sorted(self.logs.iterdir())
        )


def listing(root: Path, left_out: Sequence[str]) -> dict[str, str]:
    """Every file below `root`: kind, mode, owner and content of each path, but for those under `left_out`."""
    return dict(_entries(root, "", frozenset(left_out)))


def _entries(root: Path, below: str, left_out: frozenset[str]) -> Iterator[tuple[str, str]]:
    for entry in sorted(os.scandir(root / below), key=lambda entry: entry.name):
        path = f"{below}/{entry.name}".lstrip("/")
        if path in left_out:
            continue
        status = entry.stat(follow_symlinks=False)
        what = f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}"
        if entry.is_symlink():
            what += f" -> {Path(entry.path).readlink()}"
        elif entry.is_file():
            what += f" {hashlib.sha256(Path(entry.path).read_bytes()).hexdigest()[:16]}"
        yield path, what
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(root, path, left_out)
