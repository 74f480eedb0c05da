"""Compiles the emulated NVML library, once for each state of its source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
SONAME = "libnvidia-ml.so.1"
FLAGS = (
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O2",
    "-Wall",
    "-Wextra",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-pthread",
    f"-Wl,-soname,{SONAME}",
)


class BuildError(Exception):
    """The library could not be compiled; the message says what to do about it."""


def build(target_dir: Path, *, extra_flags: Sequence[str] = ()) -> Path:
    """Compile ``libnvidia-ml.so.1`` into `target_dir`, unless it is there already.

    Returns the library's path; put `target_dir` on ``LD_LIBRARY_PATH`` *before* a process starts. It needs a C
    compiler and nothing else, and binds to no symbol younger than glibc 2.33, so that a library built on a newer host
    still loads in the chroot of an older release.

    Raises BuildError without a compiler, or when it fails.
    """
    library = target_dir / SONAME
    stamp = target_dir / f"{SONAME}.digest"
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise BuildError(
            "The emulated GPUs need a C compiler, and there is no `cc` on PATH.\n"
            "Install one: `apt-get install gcc libc6-dev` (Debian, Ubuntu) or `dnf install gcc` (Fedora, RHEL)."
        )
    digest = _digest(compiler, extra_flags)
    if library.exists() and stamp.exists() and stamp.read_text() == digest:
        return library
    target_dir.mkdir(parents=True, exist_ok=True)
    # Compiled aside and renamed: a process that has the old library mapped keeps it whole.
    with tempfile.TemporaryDirectory(prefix=".nvml-", dir=target_dir) as scratch:
        made = Path(scratch) / SONAME
        done = subprocess.run(
            [compiler, *FLAGS, *extra_flags, "-o", str(made), *map(str, sorted(SOURCE.glob("*.c")))],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}, nothing said"]
            raise BuildError(
                f"Compiling the emulated NVML library failed: {lines[0]}\n"
                "A C compiler with its headers is needed: `apt-get install gcc libc6-dev` (Debian, Ubuntu)."
            )
        made.chmod(0o755)
        made.replace(library)
        text = Path(scratch) / "digest"
        text.write_text(digest)
        text.chmod(0o644)
        text.replace(stamp)
    return library


def copied(cache: Path, target_dir: Path) -> Path:
    """The library in `target_dir`: a copy of the one in `cache`, which is compiled if it is not there. One at a time.

    Raises BuildError as `build`.
    """
    names = (SONAME, f"{SONAME}.digest")
    build(cache)
    library, stamp = (target_dir / name for name in names)
    if library.exists() and stamp.exists() and stamp.read_text() == (cache / stamp.name).read_text():
        return library
    target_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".nvml-", dir=target_dir) as scratch:
        for name in names:  # renamed, as `build` does
            Path(shutil.copy(cache / name, scratch)).replace(target_dir / name)
    return library


def _digest(compiler: str, extra_flags: Sequence[str]) -> str:
    """A digest of all that decides what the compiler makes."""
    state = hashlib.sha256("\0".join((compiler, *FLAGS, *extra_flags)).encode())
    for path in sorted(SOURCE.glob("*.[ch]")):
        state.update(path.name.encode() + b"\0" + path.read_bytes())
    return state.hexdigest()
