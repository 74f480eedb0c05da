"""The Python that a cluster's jobs and users see: our packages, and what they and the examples need."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import requires
from pathlib import Path
from typing import Final

from site_configs.devcluster.machine import locked, open_to_all
from site_configs.devcluster.rootfs import Rootfs, Say, install_packages
from site_configs.devcluster.spec import DevClusterError, Paths, cache_home

PACKAGES: Final = ("gsub", "slurm_plugins", "profiler", "prolog_epilog", "site_configs")
SCRIPTS: Final = {
    "gsub": "gsub.cli",
    "gsubd": "slurm_plugins.service.__main__",
    "gsub-noded": "prolog_epilog.agent.__main__",
    "gsub-act": "slurm_plugins.act.__main__",
}
EXTRAS: Final = ("examples", "service", "postgresql")
REPOSITORY: Final = Path(__file__).resolve().parents[2]
_PASSED_ON: Final = ("PIP_", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def install(rootfs: Rootfs, paths: Paths, *, say: Say) -> None:
    """Put our packages and their dependencies where the cluster's users can read them.

    The cluster's Python is a bare virtual environment over two folders: the shared one with the dependencies,
    and this cluster's own copy of the sources (a checkout may lie in a private folder).
    """
    deps = python_packages(rootfs, say=say)
    fresh = paths.root / "src.new"
    shutil.rmtree(fresh, ignore_errors=True)
    with locked(cache_home() / f"{rootfs.release}-sources.lock"):
        _copy(_compiled_sources(rootfs, deps), fresh)
    stale = paths.root / "src.old"
    shutil.rmtree(stale, ignore_errors=True)
    if paths.src.exists():
        paths.src.rename(stale)
    fresh.rename(paths.src)
    shutil.rmtree(stale, ignore_errors=True)
    outside = rootfs.root / deps.relative_to("/") if rootfs.is_chroot else deps
    library = next(outside.glob("lib/python3.*/site-packages"))
    bin_ = paths.venv / "bin"
    site = paths.venv / library.relative_to(outside)
    for folder in (bin_, site):
        folder.mkdir(parents=True, exist_ok=True)
    (paths.venv / "pyvenv.cfg").write_text((outside / "pyvenv.cfg").read_text())
    (site / "devcluster.pth").write_text(f"{paths.src}\n{deps / library.relative_to(outside)}\n")
    for name in ("python3", "python"):
        link = bin_ / name
        link.unlink(missing_ok=True)
        link.symlink_to(_base(rootfs))
    for name, module in SCRIPTS.items():
        script = bin_ / name
        script.write_text(
            f"#!{bin_}/python3 -IXutf8\nimport sys\n\nfrom {module} import main\n\nsys.exit(main())\n"
        )
        script.chmod(0o755)


def _compiled_sources(rootfs: Rootfs, deps: Path) -> Path:
    """Our packages with their bytecode, by that file system's interpreter, as an installed gsub has them.

    The cluster's users cannot write where the sources lie: without this each of their commands compiles anew what it
    imports, for some 200 ms. Made once for each state of the sources; the caller holds the lock until it has its copy.
    """
    folder = rootfs.root / "opt/gsub" if rootfs.is_chroot else cache_home() / "host"
    files = [
        (path.relative_to(REPOSITORY), path)
        for package in PACKAGES
        for path in sorted((REPOSITORY / package).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    digest = hashlib.sha256(deps.name.encode())  # which stands for the interpreter
    for name, path in files:
        content = path.read_bytes()
        digest.update(f"{name} {len(content)} {path.stat().st_mode}\n".encode() + content)
    made = folder / f"sources-{digest.hexdigest()[:12]}"
    if made.exists():
        return made
    for earlier in folder.glob("sources-*"):
        shutil.rmtree(earlier, ignore_errors=True)
    half = folder / "sources-half-made"
    for package in PACKAGES:
        if (REPOSITORY / package).is_dir():
            _copy(REPOSITORY / package, half / package, ignore=shutil.ignore_patterns("__pycache__"))
    inside = "/" / half.relative_to(rootfs.root) if rootfs.is_chroot else half
    done = subprocess.run(
        _bare_argv(rootfs, str(_base(rootfs)), "-I", "-m", "compileall", "-q", str(inside)),
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        raise DevClusterError(f"the Python files could not be compiled for the cluster:\n{tail}")
    for path in half.rglob("*"):
        path.chmod(path.stat().st_mode | stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0))
    return half.rename(made)


def _copy(source: Path, target: Path, *, ignore: Callable[[str, list[str]], set[str]] | None = None) -> None:
    try:
        shutil.copytree(source, target, ignore=ignore)
    except shutil.Error as error:
        # one entry a file; a full disk fails all of them alike
        raise DevClusterError(f"{source} could not be copied: {error.args[0][0][2]}") from None


def python_packages(rootfs: Rootfs, *, say: Say) -> Path:
    """A virtual environment with what our packages and the examples need; its path as seen from inside.

    Made once for each set of requirements and interpreter, and shared by all clusters of that file system.
    """
    wanted = _requirements()
    version = subprocess.run(
        _bare_argv(rootfs, str(_base(rootfs)), "-c", "import sys; print(sys.version)"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    digest = hashlib.sha256("\n".join([version, *wanted]).encode()).hexdigest()[:12]
    inside = (
        Path("/opt/gsub") / f"deps-{digest}" if rootfs.is_chroot else cache_home() / "host" / f"deps-{digest}"
    )
    outside = rootfs.root / inside.relative_to("/") if rootfs.is_chroot else inside
    with locked(cache_home() / f"{rootfs.release}-python.lock"):
        if (outside / ".complete").exists():
            return inside
        say("installing the Python packages for jobs (once)")
        shutil.rmtree(outside, ignore_errors=True)
        outside.parent.mkdir(parents=True, exist_ok=True)
        env = pip_environment()
        _ensure_venv(rootfs, say)
        steps = (
            [str(_base(rootfs)), "-m", "venv", str(inside)],
            [f"{inside}/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted],
        )
        for step in steps:
            done = subprocess.run(
                _bare_argv(rootfs, *step), env=env, capture_output=True, text=True, errors="replace"
            )
            if done.returncode:
                tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-3:])
                raise DevClusterError(f"the Python packages for jobs could not be installed:\n{tail}")
        (outside / ".complete").touch()
    return inside


def _ensure_venv(rootfs: Rootfs, say: Say) -> None:
    """Debian and Ubuntu ship python3 without venv; our chroots have it."""
    if rootfs.is_chroot:
        return
    probe = subprocess.run([str(_base(rootfs)), "-c", "import ensurepip, venv"], capture_output=True)
    if probe.returncode:
        install_packages(["python3-venv"], say=say)


def _base(rootfs: Rootfs) -> Path:
    """The base interpreter that every user may run, as seen from inside."""
    return Path("/usr/bin/python3") if rootfs.is_chroot else _public_python()


def _bare_argv(rootfs: Rootfs, *command: str) -> list[str]:
    """Run a command in a root file system that has no cluster (and so no bind mounts) yet."""
    return ["chroot", str(rootfs.root), *command] if rootfs.is_chroot else list(command)


def _requirements() -> tuple[str, ...]:
    """What gsub with `EXTRAS` asks for, from the package's own metadata."""
    lines = requires("gsub") or []
    wanted = []
    for line in lines:
        requirement, _, marker = (part.strip() for part in line.partition(";"))
        if "extra ==" not in marker:
            wanted.append(line)
        elif any(extra in marker for extra in EXTRAS):
            wanted.append(requirement)
    return tuple(sorted(wanted))


def pip_environment() -> dict[str, str]:
    """What pip in a chroot needs to reach the package index that this machine uses."""
    passed_on = {key: value for key, value in os.environ.items() if key.startswith(_PASSED_ON)}
    return passed_on | {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": os.environ.get("HOME", "/root"),
        **_pip_index(),
    }


def _pip_index() -> Mapping[str, str]:
    """The machine's choice of package index, which pip's own files keep and a chroot does not see."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, errors="replace"
    )
    chosen = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition("=")
        if key in ("global.index-url", "user.index-url") and value:
            chosen["PIP_INDEX_URL"] = value.strip("'\"")
    return chosen


def _public_python() -> Path:
    """An interpreter that every user of this machine may run: ours if its path is open, else the system's."""
    for candidate in (Path(sys.base_prefix) / "bin/python3", Path("/usr/bin/python3")):
        real = candidate.resolve()
        if not real.exists():
            continue
        if os.geteuid() != 0 or open_to_all(real):
            return candidate
    raise DevClusterError(
        "no Python that the cluster's users may run: ours lies in a private folder, and there is no /usr/bin/python3.\n"
        "Install it: apt-get install python3 python3-venv"
    )
