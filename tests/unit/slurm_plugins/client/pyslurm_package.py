"""pyslurm's source package: fetched once by pip, by name, and read for its classes without compiling a line.

pip insists on a package's metadata, and pyslurm makes its metadata by running Cython over everything: 2.5 minutes.
So pip is given a build backend that takes the metadata from the package's own PKG-INFO: 1 second.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from functools import cache as cached
from pathlib import Path

from site_configs.devcluster.spec import cache_home

# Stands where `build-system.build-backend = "setuptools.build_meta"` is looked for; runs in the unpacked source
# package.
BACKEND = """
import re, shutil
from pathlib import Path

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    version = re.search(r"(?m)^Version: (\\S+)", Path("PKG-INFO").read_text())[1]
    folder = Path(metadata_directory, f"pyslurm-{version}.dist-info")
    folder.mkdir()
    shutil.copy("PKG-INFO", folder / "METADATA")
    return folder.name
"""


class UnobtainableError(Exception):
    """pip could not get the package, and none was got before."""


@cached
def source_package() -> Path:
    """The newest pyslurm that pip finds, else (offline) the newest that it found before."""
    cache = cache_home() / "pyslurm"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        backend = Path(scratch, "setuptools")
        backend.mkdir()
        (backend / "__init__.py").touch()
        (backend / "build_meta.py").write_text(BACKEND)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        command += ["--no-binary=:all:", "--no-build-isolation", f"--dest={cache}", "pyslurm"]
        environment = {**os.environ, "PYTHONPATH": scratch}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    packages = sorted(cache.glob("pyslurm-*.tar.gz"), key=_version)
    if not packages:
        raise UnobtainableError(done.stderr.strip() or "pip fetched nothing")
    return packages[-1]


def _version(package: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", package.name)))


@dataclass
class Class:
    """What a class of pyslurm offers, from its .pyx and .pxd."""

    bases: tuple[str, ...] = ()
    members: set[str] = field(default_factory=set)


_CLASS = re.compile(r"(?:cdef )?class (\w+)(?:\(([^)]*)\))?:")
_METHOD = re.compile(r"    (?:c?p?def) (?:\w+ )?(\w+)\(")
_PUBLIC = re.compile(r"    cdef (?:public|readonly)(?::| (.*))")
_ASSIGNED = re.compile(r"        self\.(\w+) = ")


class Sources:
    """The classes of a source package, by the name under which ``pyslurm`` shows them: ``Job``, ``db.Job``."""

    def __init__(self, package: Path) -> None:
        self.classes: dict[str, Class] = {}
        self.exported: set[str] = set()
        with tarfile.open(package) as archive:
            for member in archive:
                parts = Path(member.name).parts[1:]
                file = archive.extractfile(member)
                if file is None or not parts or parts[0] != "pyslurm":
                    continue
                if member.name.endswith((".pyx", ".pxd", ".py")) and "deprecated" not in member.name:
                    prefix = "db." if parts[1] == "db" else ""
                    text = file.read().decode()
                    self._read(text, prefix)
                    if parts[1:] in (("__init__.py",), ("db", "__init__.py")):
                        imports = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
                        self.exported |= {prefix + name.name for node in imports for name in node.names}

    def _read(self, text: str, prefix: str) -> None:
        current: Class | None = None
        public = False
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            if line and not line[0].isspace():
                found = _CLASS.match(line)
                public = False
                current = self.classes.setdefault(prefix + found[1], Class()) if found else None
                if found and found[2] and current:
                    current.bases += tuple(base.strip() for base in found[2].split(","))
            elif current is not None:
                if method := _METHOD.match(line):
                    current.members.add(method[1])
                    public = False
                elif block := _PUBLIC.match(line):
                    public = not block[1]
                    current.members.update(re.findall(r"\w+", block[1] or "")[-1:])
                elif public and line.startswith("        "):
                    current.members.update(re.findall(r"\w+", line)[-1:])
                elif line.strip():
                    public = False
                    if assigned := _ASSIGNED.match(line):
                        current.members.add(assigned[1])

    def has(self, path: str) -> bool:
        """Is there ``db.Jobs.load``, in the class or one that it inherits from? Is ``RPCError`` there, and to be
        imported?
        """
        owner, _, name = path.rpartition(".")
        if owner in ("", "db"):
            return path in self.exported and path in self.classes
        if owner not in self.exported or owner not in self.classes:
            return False
        return self._offers(owner, name)

    def _offers(self, owner: str, name: str) -> bool:
        found = self.classes.get(owner)
        if found is None:
            return False
        return name in found.members or any(self._offers(base, name) for base in found.bases)
