"""RPM packages from the same staged trees and scripts as Debian's; see gsub.spec."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

from site_configs.packaging.deb import Version, script
from site_configs.packaging.targets import ARCHITECTURES, PackagingError, Target

__all__ = ["build"]

_DISPATCH: Final = {
    "post": """if [ "$1" = 1 ]; then installed; else installed "an earlier version"; fi\n""",
    "preun": """if [ "$1" = 0 ]; then removing; fi\n""",
    "postun": """if [ "$1" = 0 ]; then removed; fi\n""",
}
"""How rpm calls a package's scripts: with the number of its versions that stay. There is no purge: the store stays."""


def build(
    roots: Mapping[str, Path], target: Target, version: Version, *, architecture: str, out: Path, epoch: int
) -> tuple[Path, ...]:
    """Make the three .rpm in the folder `out`. Raises PackagingError: rpmbuild is not there or refuses."""
    if shutil.which("rpmbuild") is None:
        raise PackagingError("this machine has no rpmbuild: install rpm-build (Debian: rpm)")
    with tempfile.TemporaryDirectory(prefix="gsub-rpm-") as folder:
        top = Path(folder)
        sources = top / "SOURCES"
        sources.mkdir()
        with tarfile.open(sources / "tree.tar", "w") as archive:
            for package, root in roots.items():
                _write_sources(package, root, sources)
                archive.add(root, arcname=".", filter=_root_owned)
        spec = sources / "gsub.spec"
        spec.write_text(files(__package__).joinpath("gsub.spec").read_text())
        defined = {
            "_topdir": str(top),
            "_sourcedir": str(sources),
            "gsub_version": version.upstream,
            "gsub_release": f"{version.revision}.{version.mark}",
            "gsub_python": target.interpreter,
            "use_source_date_epoch_as_buildtime": "1",
            "clamp_mtime_to_source_date_epoch": "1",
            "_buildhost": "localhost",
            "_binary_payload": "w2.xzdio",  # rpm's own; 6 is 15 % smaller and takes 3.6 times as long
        }
        line = ["rpmbuild", "-bb", "--nodeps", f"--target={ARCHITECTURES[architecture]}-linux"]
        for name, value in defined.items():
            line += ["--define", f"{name} {value}"]
        done = subprocess.run(
            [*line, str(spec)],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise PackagingError(
                "\n".join(["rpmbuild did not work:", *done.stderr.strip().splitlines()[-5:]])
            )
        made = []
        for path in sorted((top / "RPMS").rglob("*.rpm")):
            shutil.move(path, out / path.name)
            made.append(out / path.name)
    return tuple(made)


def _write_sources(package: str, root: Path, sources: Path) -> None:
    """What gsub.spec includes: the package's list of files, and its scriptlets."""
    lines = []
    for path in sorted(root.rglob("*")):
        place = f"/{path.relative_to(root)}"
        if not path.is_dir() or path.is_symlink():
            lines.append(f'"{place}"')
        elif place.startswith("/opt/gsub") or place.startswith("/usr/share/doc/gsub"):
            lines.append(f'%dir "{place}"')  # the other folders are the distribution's
    (sources / f"{package}.files").write_text("%defattr(-,root,root,-)\n" + "\n".join(lines) + "\n")
    for name, dispatch in _DISPATCH.items():
        text = script(package, dispatch).removeprefix("#!/bin/sh\n")
        (sources / f"{package}.{name}").write_text(text.replace("%", "%%"))


def _root_owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry
