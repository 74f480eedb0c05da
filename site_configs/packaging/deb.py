"""Debian packages from staged trees, byte for byte the same from the same wheels."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from textwrap import indent
from typing import Final

from site_configs.packaging.targets import PackagingError, Target
from site_configs.packaging.tree import PACKAGES, settle

__all__ = ["Version", "build"]

MAINTAINER: Final = "gsub developers <gsub@localhost>"
_COMPILED: Final = frozenset({"gsub"})
_MORE: Final = {
    "gsub-service": {"Depends": "gsub (= {version}), lua-posix", "Recommends": "munge"},
    "gsub-node": {"Depends": "gsub (= {version})", "Recommends": "munge"},
}
_ABOUT: Final = """GPU-aware job submission, profiling and failure handling for Slurm clusters.
Nothing of Slurm is changed by installing this: `gsub admin install` does it,
with a plan before it and a rollback after it."""
_DISPATCH: Final = {
    "postinst": """case $1 in
configure) installed "${2:-}" ;;
abort-upgrade | abort-remove | abort-deconfigure) resumed ;;
esac
""",
    "prerm": """case $1 in
upgrade) upgrading ;;
remove) removing ;;
esac
""",
    "postrm": """case $1 in
remove) removed ;;
purge) purged ;;
esac
""",
}
"""How dpkg calls a package's scripts (Debian policy 6.5), and which function of ours answers."""


@dataclass(frozen=True, slots=True)
class Version:
    """gsub's version, and the package's number of it: `0.1.0-1~deb12`."""

    upstream: str
    revision: int
    mark: str

    def __str__(self) -> str:
        return f"{self.upstream}-{self.revision}~{self.mark}"


def build(
    roots: Mapping[str, Path], target: Target, version: Version, *, architecture: str, out: Path, epoch: int
) -> tuple[Path, ...]:
    """Make a .deb of each staged tree in the folder `out`. Raises PackagingError: dpkg-deb is not there or refuses."""
    made = []
    for package, root in roots.items():
        where = architecture if package in _COMPILED else "all"
        _write_changelog(root, package, version, epoch)
        control = root / "DEBIAN"
        control.mkdir()
        _write(control / "md5sums", _sums(root))
        _write(control / "control", _control(package, root, target, where, version))
        for name, dispatch in _DISPATCH.items():
            _write(control / name, script(package, dispatch))
            (control / name).chmod(0o755)
        settle(root, epoch)
        path = out / f"{package}_{version}_{where}.deb"
        _dpkg_deb(root, path, epoch)
        made.append(path)
    return tuple(made)


def script(package: str, dispatch: str) -> str:
    """A maintainer's script: what all packages share, what the package does, and which part of it is called."""
    folder = files(__package__).joinpath("scripts")
    parts = [folder.joinpath(name).read_text() for name in ("common.sh", f"{package}.sh")]
    return "\n".join(["#!/bin/sh\nset -e", *parts, dispatch])


def _control(package: str, root: Path, target: Target, architecture: str, version: Version) -> str:
    major, minor = target.python
    fields = {
        "Package": package,
        "Version": str(version),
        "Architecture": architecture,
        "Maintainer": MAINTAINER,
        "Installed-Size": str(sum(_kib(path) for path in root.rglob("*") if "DEBIAN" not in path.parts)),
        "Section": "admin",
        "Priority": "optional",
    }
    if package in _COMPILED:
        fields["Depends"] = (
            f"python3 (>= {major}.{minor}), python3 (<< {major}.{minor + 1}), passwd, "
            "systemd | systemd-standalone-sysusers"
        )
    fields |= {key: value.format(version=version) for key, value in _MORE.get(package, {}).items()}
    fields["Description"] = f"gsub for Slurm: {PACKAGES[package]}\n{indent(_ABOUT, ' ')}"
    return "".join(f"{key}: {value}\n" for key, value in fields.items())


def _kib(path: Path) -> int:
    """As dpkg counts (deb-substvars, Installed-Size): a file's bytes rounded up to KiB, 1 for anything else."""
    return -(-path.lstat().st_size // 1024) if path.is_file() and not path.is_symlink() else 1


def _write_changelog(root: Path, package: str, version: Version, epoch: int) -> None:
    date = subprocess.run(
        ["date", "--utc", "--rfc-email", f"--date=@{epoch}"],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    text = f"{package} ({version}) unstable; urgency=medium\n\n  * See the commits.\n\n -- {MAINTAINER}  {date}\n"
    path = root / f"usr/share/doc/{package}/changelog.Debian.gz"
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=epoch))


def _sums(root: Path) -> str:
    """DEBIAN/md5sums: what `dpkg --verify` compares with; its format has no other digest."""
    found = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return "".join(
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(root)}\n"
        for path in found
        if "DEBIAN" not in path.relative_to(root).parts
    )


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _dpkg_deb(root: Path, path: Path, epoch: int) -> None:
    if shutil.which("dpkg-deb") is None:
        raise PackagingError("this machine has no dpkg-deb: build .deb packages on Debian or Ubuntu")
    # One thread: how many there are shows in what xz writes. Level 2 as in .rpm.
    line = [
        "dpkg-deb",
        "--root-owner-group",
        "-Zxz",
        "-z2",
        "--threads-max=1",
        "--build",
        str(root),
        str(path),
    ]
    done = subprocess.run(
        line, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}, capture_output=True, text=True
    )
    if done.returncode:
        raise PackagingError("\n".join(["dpkg-deb did not work:", *done.stderr.strip().splitlines()[-3:]]))
