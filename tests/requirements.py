"""Programs and rights that some tests need: how each is checked, and how to get it.

A test that needs one is left out by name where it is missing, and the run ends with one line for each that was. With
``CI`` set it fails instead. Root gets Debian's packages by itself, once. A test names what it needs

    @pytest.mark.needs("chromium")

or a fixture of it calls ``require("chromium")``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

import pytest

from site_configs.devcluster.rootfs import install_packages, prepare
from site_configs.devcluster.spec import RELEASES, DevClusterError
from tests.releases import can_make_chroots

CHROMIUM: Final = ("chromium", "chromium-browser", "google-chrome")
"""Names of Chromium: Debian's, others', and Google's."""
LUA_VERSIONS: Final = ("5.1", "5.2", "5.3", "5.4")


class MissingError(Exception):
    """A requirement is not met; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A program or right that a machine may lack.

    Args:
        check: raises MissingError where it is missing, after root has tried to install it.
        hint: how to get it.
    """

    check: Callable[[], None]
    hint: str


def find_program(*names: str) -> str | None:
    """Find the first of these programs on PATH, or where Debian keeps those of root."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return next(filter(None, (shutil.which(name, path=path) for name in names)), None)


def find_postgresql() -> Path | None:
    """Find the programs of the newest PostgreSQL server, which are not on PATH."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=lambda path: int(path.parent.name), default=None)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(":.")


def _install(packages: Sequence[str]) -> None:
    try:
        install_packages(packages, say=lambda _: None)
    except DevClusterError as error:
        raise MissingError(_first_line(error)) from None


def _program(packages: Sequence[str], *names: str) -> None:
    if find_program(*names) is None:
        _install(packages)


def _package(name: str, *programs: str) -> Requirement:
    """Any of these programs, which Debian has in a package."""
    return Requirement(partial(_program, [name], *(programs or (name,))), f"apt-get install {name}")


def _root() -> None:
    if os.geteuid() != 0:
        raise MissingError("an ordinary user runs the tests")


def _mounts() -> None:
    _root()
    line = ["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "gsub-test", "/mnt"]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise MissingError(f"nothing can be mounted: {done.stderr.strip()}")


def _chroots() -> None:
    _root()
    if not can_make_chroots():
        raise MissingError("this machine lets root make no mount namespace")


def _compiler() -> None:
    if find_program(os.environ.get("CC") or "cc") is None or find_program("nm") is None:
        _install(["gcc", "libc6-dev"])


def _postgresql() -> None:
    if find_postgresql() is None:
        _install(["postgresql"])


def _lua(version: str) -> None:
    from tests.unit.slurm_plugins.lua.lua import LuaMissingError, environment

    try:
        environment(version)
    except LuaMissingError as error:
        raise MissingError(_first_line(error)) from None


def _any_lua() -> None:
    if all(find_problem(f"lua{version}") for version in LUA_VERSIONS):
        raise MissingError("none of the Luas has lua-posix")


def _slurm(release: str) -> None:
    try:
        prepare(release, accounting=True, say=lambda _: None)  # type: ignore[arg-type]
    except DevClusterError as error:
        raise MissingError(_first_line(error)) from None


def _package_index() -> None:
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries=0", "--timeout=15"]
        line = [*pip, "download", "-q", "--no-deps", f"--dest={directory}", "hatchling"]
        done = subprocess.run(line, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise MissingError(f"pip reaches no package index: {(done.stderr.splitlines() or [''])[-1]}")


def _pyslurm() -> None:
    from tests.unit.slurm_plugins.client.pyslurm_package import UnobtainableError, source_package

    try:
        source_package()
    except UnobtainableError as error:
        raise MissingError(f"pip could not fetch it: {str(error).splitlines()[-1]}") from None


REQUIREMENTS: Final[Mapping[str, Requirement]] = {
    "root": Requirement(_root, "run them as root"),
    "mounts": Requirement(_mounts, "run them as root where mount(2) is allowed"),
    "chroots": Requirement(_chroots, "run them as root where unshare(2) is allowed"),
    "compiler": Requirement(_compiler, "apt-get install gcc libc6-dev"),
    "chromium": Requirement(
        partial(_program, ["chromium", "fonts-dejavu-core"], *CHROMIUM),
        "apt-get install chromium fonts-dejavu-core",
    ),
    "postgresql": Requirement(_postgresql, "apt-get install postgresql"),
    "lua": Requirement(_any_lua, "apt-get install lua5.4 lua-posix"),
    **{
        f"lua{version}": Requirement(partial(_lua, version), f"apt-get install lua{version} lua-posix")
        for version in LUA_VERSIONS
    },
    "munge": _package("munge", "munged"),
    **{
        f"slurm-{release}": Requirement(partial(_slurm, release), "once as root: make cluster")
        for release in RELEASES
    },
    "package-index": Requirement(_package_index, "run them with a network"),
    "pyslurm-sources": Requirement(_pyslurm, "run them once with a network"),
    "dash": _package("dash"),
    "bash": _package("bash"),
    "busybox": _package("busybox"),
    "openssl": _package("openssl"),
    "systemd": _package("systemd", "systemd-analyze"),
    "setpriv": _package("util-linux", "setpriv"),
    "fsfreeze": _package("util-linux", "fsfreeze"),
    "mkfs.ext4": _package("e2fsprogs", "mkfs.ext4"),
    "dpkg": _package("dpkg", "dpkg-deb"),
    "rpm": Requirement(partial(_program, ["rpm", "cpio"], "rpmbuild"), "apt-get install rpm cpio"),
}
"""Name -> requirement."""


@cache
def find_problem(name: str) -> str:
    """Check a requirement once a process; return one line on what is missing and how to get it, "" where it is met."""
    requirement = REQUIREMENTS[name]
    try:
        requirement.check()
    except MissingError as error:
        return f"{error}; {requirement.hint}"
    return ""


def require(*names: str) -> None:
    """Leave the test out where one of these is missing; fail it where ``CI`` is set.

    Args:
        names: keys of REQUIREMENTS.
    """
    for name in names:
        if problem := find_problem(name):
            sentence = f"needs {name}: {problem}"
            if "CI" in os.environ:
                pytest.fail(sentence, pytrace=False)
            pytest.skip(sentence)


class RequirementGate:
    """A plugin that checks the markers ``needs``, ``root`` and ``slurm``, and names at the end what was left out."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.get_closest_marker("root"):
            require("root")
        for marker in item.iter_markers("needs"):
            require(*marker.args)
        if hasattr(item, "callspec") and "cluster" in item.callspec.params:
            require(f"slurm-{item.callspec.params['cluster']}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            found = re.search(r"needs (\S+): (.*)", report.longrepr[2])
            if found and found[1] in REQUIREMENTS:
                self.counts[found[1]] += 1
                self.problems[found[1]] = found[2]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, count in sorted(self.counts.items()):
            tests = "1 test needs" if count == 1 else f"{count} tests need"
            terminalreporter.write_line(f"left out: {tests} {name}: {self.problems[name]}")
