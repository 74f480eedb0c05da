"""The files of the packages as they lie on a host, staged below a folder for each package.

Wheels are archives, so no Python of the target is needed to unpack them: a package for one release can be built on
another. The interpreter of /opt/gsub is a link to the distribution's own, whose security updates it gets.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from site_configs.packaging.targets import PackagingError, Target
from site_configs.packaging.wheels import Wheel, lock_lines

__all__ = ["PACKAGES", "UNITS", "stage"]

PACKAGES: Final = {
    "gsub": "the command, and what service and agent are made of",
    "gsub-service": "the service beside slurmctld",
    "gsub-node": "the agent of a compute node",
}
"""The packages and what each is; the second and the third need the first in the same version."""
UNITS: Final = {
    "gsub": {"gsubd.sysusers.conf": "usr/lib/sysusers.d/gsub.conf"},
    "gsub-service": {
        "gsubd.service": "usr/lib/systemd/system/gsubd.service",
        "gsub-act.service": "usr/lib/systemd/system/gsub-act.service",
        "gsub-act.sysusers.conf": "usr/lib/sysusers.d/gsub-act.conf",
    },
    "gsub-node": {
        "gsub-noded.service": "usr/lib/systemd/system/gsub-noded.service",
        "gsub-noded.tmpfiles.conf": "usr/lib/tmpfiles.d/gsub-noded.conf",
    },
}
"""Where the files of site_configs/systemd go, by package."""
_ENVIRONMENT: Final = "opt/gsub"
_USELESS: Final = re.compile(r"(^|/)(tests?|__pycache__)/|\.(pyc|pyi|pyx|pxd|c|h|cpp)$|\.dist-info/RECORD$")
"""What a host has no use for. RECORD names files that pip would have made; who owns the files knows dpkg or rpm."""
_OURS: Final = re.compile(r"(gsub|slurm_plugins|prolog_epilog|profiler|site_configs)/")
_LAUNCHED: Final = {"gsub": "gsub.cli:main"}
"""The command that the wheel brings as a script of its own, for pip; here each script names its interpreter."""
_SCRIPT: Final = """#!/{environment}/bin/python3 -IXutf8
import sys

from {module} import {function}

sys.exit({function}())
"""


def stage(work: Path, ours: Wheel, others: Sequence[Wheel], target: Target, epoch: int) -> dict[str, Path]:
    """Lay the files of each package out below `work`; its folders by name. Every time is `epoch`.

    Raises PackagingError: our wheel lacks a unit.
    """
    roots = {name: work / name for name in PACKAGES}
    environment = roots["gsub"] / _ENVIRONMENT
    library = environment / "lib" / target.interpreter / "site-packages"
    library.mkdir(parents=True)
    for wheel in (ours, *others):
        _unpack(wheel, library)
    _make_environment(environment, target, _console_scripts(library))
    for package, units in UNITS.items():
        for name, place in units.items():
            source = library / "site_configs/systemd" / name
            if not source.exists():
                raise PackagingError(f"{ours.path.name} has no site_configs/systemd/{name}")
            _place(source.read_bytes(), roots[package] / place)
    command = roots["gsub"] / "usr/bin/gsub"
    command.parent.mkdir(parents=True)
    command.symlink_to(f"/{_ENVIRONMENT}/bin/gsub")
    licence = next(library.glob("gsub-*.dist-info/**/LICENSE")).read_bytes()
    for package, root in roots.items():
        _place(licence, root / f"usr/share/doc/{package}/copyright")
    _place(lock_lines(others).encode(), roots["gsub"] / "usr/share/doc/gsub/wheels.txt")
    for root in roots.values():
        settle(root, epoch)
    return roots


def settle(root: Path, epoch: int) -> None:
    """Give a tree the modes that it has on any builder, whatever its umask, and one time."""
    for folder, folders, files in os.walk(root, topdown=False):
        for path in (Path(folder, name) for name in (*files, *folders)):
            if not path.is_symlink():
                executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
                path.chmod(0o755 if executable else 0o644)
            os.utime(path, (epoch, epoch), follow_symlinks=False)
    root.chmod(0o755)
    os.utime(root, (epoch, epoch))


def _unpack(wheel: Wheel, library: Path) -> None:
    """A wheel's files into site-packages (PEP 427); its scripts and headers stay behind."""
    with zipfile.ZipFile(wheel.path) as archive:
        for entry in archive.infolist():
            name = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", entry.filename)
            if entry.is_dir() or re.match(r"[^/]+\.data/", name) or not _wanted(name):
                continue
            place = library / name
            if not place.resolve().is_relative_to(library.resolve()):
                raise PackagingError(f"{wheel.path.name}: {name!r} would lie outside of the package")
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, place.open("xb") as out:
                shutil.copyfileobj(source, out)


def _wanted(name: str) -> bool:
    return bool(_OURS.match(name)) or not _USELESS.search(name)


def _console_scripts(library: Path) -> dict[str, str]:
    """The commands that gsub has, and what each calls."""
    entries = configparser.ConfigParser(delimiters=("=",))
    entries.optionxform = str  # type: ignore[assignment,method-assign]
    entries.read(next(library.glob("gsub-*.dist-info/entry_points.txt")))
    return _LAUNCHED | dict(entries["console_scripts"])


def _make_environment(environment: Path, target: Target, scripts: Mapping[str, str]) -> None:
    """What makes a folder a virtual environment: pyvenv.cfg, the interpreter as a link, the commands."""
    programs = environment / "bin"
    programs.mkdir()
    version = ".".join(map(str, target.python))
    _place(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n".encode(),
        environment / "pyvenv.cfg",
    )
    (programs / target.interpreter).symlink_to(f"/usr/bin/{target.interpreter}")
    for name in ("python3", "python"):
        (programs / name).symlink_to(target.interpreter)
    for name, call in scripts.items():
        module, function = call.split(":")
        _place(
            _SCRIPT.format(environment=_ENVIRONMENT, module=module, function=function).encode(),
            programs / name,
        )
        (programs / name).chmod(0o755)


def _place(content: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
