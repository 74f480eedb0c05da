"""The hooks as a sysadmin installs them, and the shells that may run them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.paths import REPOSITORY
from tests.requirements import require

HOOKS = REPOSITORY / "prolog_epilog"

SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
"""What /bin/sh is: Debian's, Red Hat's, a small image's."""


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> list[str]:
    """The command that runs a hook; left out where this machine does not have it."""
    require(request.param)
    command = SHELLS[request.param]
    return [str(shutil.which(command[0])), *command[1:]]


@dataclass
class Installed:
    """The hooks in a folder of the test's own, with the folders that they write to."""

    folder: Path
    spool: Path
    run: Path
    off: Path
    shell: list[str] = field(default_factory=lambda: ["dash"])

    def install(self, **folders: Path) -> None:
        """Write the hooks as the installer does: with one line replaced in each."""
        spool, run = folders.get("spool", self.spool), folders.get("run", self.run)
        for name in ("prolog", "epilog"):
            text = (HOOKS / name).read_text()
            line = "SPOOL=/var/spool/gsub RUN=/run/gsub-noded"
            assert text.count(line) == 1
            text = text.replace(line, f"SPOOL={spool} RUN={run}").replace(
                "/etc/gsub/health.off", str(self.off)
            )
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    def argv(self, name: str) -> list[str]:
        return [*self.shell, str(self.folder / name)]

    def start(self, name: str, env: dict[str, str] | dict[bytes, bytes]) -> subprocess.Popen[bytes]:
        """Run a hook as slurmd does: without PATH, its output in a pipe."""
        return subprocess.Popen(
            self.argv(name),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def hook(
        self, name: str, env: dict[str, str] | dict[bytes, bytes], timeout: float = 60.0
    ) -> tuple[int, bytes]:
        """Exit code and output of a hook, when it and all that hold its pipe have ended."""
        process = self.start(name, env)
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output

    def files(self, folder: Path | None = None) -> list[Path]:
        """What hooks have left, in both folders."""
        folders = [folder] if folder else [self.spool, self.run]
        return sorted(path for one in folders if (one / "new").is_dir() for path in (one / "new").iterdir())


def mount(*argv: str) -> None:
    """Mount by mount(8); the test is left out where nothing can be mounted."""
    require("mounts")
    subprocess.run(["mount", *argv], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all room of a file system."""
    path = folder / "fill"
    with path.open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(b"x" * 4096)
    return path


@pytest.fixture
def hooks(tmp_path: Path) -> Iterator[Installed]:
    """Hooks run by dash."""
    made = Installed(tmp_path / "hooks", tmp_path / "spool", tmp_path / "run", tmp_path / "health.off")
    for folder in (made.folder, made.spool / "new", made.run / "new"):
        folder.mkdir(parents=True)
    made.install()
    yield made
