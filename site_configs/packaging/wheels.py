"""The wheels of a package: ours, built from the sources, and those that it needs, chosen for another Python than this.

pip looks at the environment markers of the Python that runs it (`python_version < "3.13"`), whatever Python it chooses
wheels for. So what it brought is read again here with the markers of the target, and what is missing is asked for.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Final

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from site_configs.packaging.targets import ARCHITECTURES, PackagingError, Target

__all__ = ["EXTRAS", "Wheel", "bring", "build_ours", "lock_lines"]

EXTRAS: Final = ("service", "postgresql")
"""Of gsub's extras, those that the packages have; pyslurm and amdsmi must be built against the site's own libraries.

`report` is left to who wants it: pandas and pyarrow take 300 MB.
"""
_ROUNDS: Final = 5


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel as it lies on disk; `name` is canonical."""

    path: Path
    name: str
    version: str
    sha256: str

    @classmethod
    def read(cls, path: Path) -> Wheel:
        """Name and version are the file name's (PEP 427)."""
        name, version = path.name.split("-")[:2]
        return cls(path, canonicalize_name(name), version, hashlib.sha256(path.read_bytes()).hexdigest())

    def metadata(self) -> Sequence[Requirement]:
        """What it asks for."""
        with zipfile.ZipFile(self.path) as archive:
            name = next(
                name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)
            )
            headers = HeaderParser().parsestr(archive.read(name).decode())
        return [Requirement(line) for line in headers.get_all("Requires-Dist", [])]


def build_ours(source: Path, out: Path, epoch: int) -> Wheel:
    """Build gsub's own wheel from the sources in `source`. Raises PackagingError."""
    _pip("wheel", "--no-deps", "--wheel-dir", str(out), str(source), env={"SOURCE_DATE_EPOCH": str(epoch)})
    return Wheel.read(next(out.glob("gsub-*.whl")))


def bring(
    ours: Wheel,
    target: Target,
    architecture: str,
    out: Path,
    *,
    locked: Path | None = None,
) -> tuple[Wheel, ...]:
    """Download what `ours` needs on `target` into the folder `out`, sorted by name.

    `locked` is a `wheels.txt` of an earlier package: exactly those are taken, by their hashes. Raises PackagingError:
    pip cannot have them, or what it brought is not all that is needed.
    """
    chosen = [
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={target.python[0]}.{target.python[1]}",
        *(f"--platform={platform}" for platform in target.platforms(architecture)),
    ]
    download = ("download", "--dest", str(out), *chosen)
    environment = _environment(target, architecture)
    if locked is not None:
        _pip(*download, "--no-deps", "--require-hashes", "--requirement", str(locked))
    else:
        wanted = {str(_bare(need)) for need in _needs(ours.metadata(), EXTRAS, environment)}
        for _ in range(_ROUNDS):
            _pip(*download, *sorted(wanted))
            missing = _missing(ours, _read(out), environment)
            if not missing:
                break
            wanted |= missing
    wheels = _read(out)
    missing = _missing(ours, wheels, environment)
    if missing:
        raise PackagingError(f"wheels are missing for {target.name}: {', '.join(sorted(missing))}")
    return wheels


def lock_lines(wheels: Iterable[Wheel]) -> str:
    """The wheels with their hashes, as `pip install --require-hashes --requirement` reads them."""
    return "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in wheels)


def _read(folder: Path) -> tuple[Wheel, ...]:
    return tuple(sorted(map(Wheel.read, folder.glob("*.whl")), key=lambda wheel: wheel.name))


def _missing(ours: Wheel, wheels: Sequence[Wheel], environment: Mapping[str, str]) -> set[str]:
    """The requirements that none of the wheels meets, on the target."""
    there = {wheel.name: wheel for wheel in wheels}
    asked = {name: need for wheel in wheels for name, need in [(wheel.name, wheel.metadata())]}
    missing: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = list(_needs(ours.metadata(), EXTRAS, environment))
    while waiting:
        need = waiting.pop()
        name = canonicalize_name(need.name)
        if (name, frozenset(need.extras)) in seen:
            continue
        seen.add((name, frozenset(need.extras)))
        if name not in there or not need.specifier.contains(there[name].version, prereleases=True):
            missing.add(str(_bare(need)))
        else:
            waiting += _needs(asked[name], tuple(need.extras), environment)
    return missing


def _needs(
    requirements: Sequence[Requirement],
    extras: Sequence[str],
    environment: Mapping[str, str],
) -> Iterator[Requirement]:
    """Those that hold on the target with one of the extras, or with none."""
    for requirement in requirements:
        marker = requirement.marker
        holds = marker is None or any(
            marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)
        )
        if holds:
            yield requirement


def _bare(requirement: Requirement) -> Requirement:
    """Without its marker, which held: pip would look at it with the wrong Python."""
    bare = Requirement(str(requirement))
    bare.marker = None
    return bare


def _environment(target: Target, architecture: str) -> dict[str, str]:
    """The markers of a Python of the target (PEP 508)."""
    version = f"{target.python[0]}.{target.python[1]}"
    return {
        **{key: str(value) for key, value in default_environment().items()},
        "implementation_name": "cpython",
        "implementation_version": f"{version}.0",
        "os_name": "posix",
        "platform_machine": ARCHITECTURES[architecture],
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{version}.0",
        "python_version": version,
        "sys_platform": "linux",
    }


def _pip(*arguments: str, env: Mapping[str, str] | None = None) -> None:
    line = [
        sys.executable,
        "-I",
        "-m",
        "pip",
        arguments[0],
        "--quiet",
        "--disable-pip-version-check",
        *arguments[1:],
    ]
    done = subprocess.run(
        line, env={**os.environ, **(env or {})}, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise PackagingError("\n".join([f"pip {arguments[0]} did not work:", *said]))
