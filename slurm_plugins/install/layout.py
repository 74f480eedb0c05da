"""Where everything of gsub lies on a host, and where its parts are taken from."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

__all__ = ["HOOKS", "SHIM", "Layout", "part"]

HOOKS: Final = {"Prolog": "prolog", "Epilog": "epilog", "TaskProlog": "task_prolog"}
"""Keys of slurm.conf, and the hooks that they name."""
SHIM: Final = ("gsub.lua", "tables.lua", "json.lua", "wire.lua", "request.lua", "answer.lua", "chain.lua")
"""The shim's files."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of an installation.

    Parameters
    ----------
    slurm_conf: the cluster's slurm.conf; job_submit.lua lies beside it.
    libexec: what slurmd and slurmctld run: hooks and shim. On a local disk, root's.
    etc: the site file.
    keep: the journal of what was changed, and copies of what was there before; root's alone.
    state: gsubd's.
    spool, run_noded: the agent's.
    run: gsubd's sockets.
    units: where systemd units go.
    """

    slurm_conf: Path
    libexec: Path = Path("/usr/libexec/gsub")
    etc: Path = Path("/etc/gsub")
    keep: Path = Path("/var/lib/gsub-install")
    state: Path = Path("/var/lib/gsub")
    spool: Path = Path("/var/spool/gsub")
    run_noded: Path = Path("/run/gsub-noded")
    run: Path = Path("/run/gsub")
    units: Path = Path("/etc/systemd/system")

    @classmethod
    def under(cls, prefix: Path, slurm_conf: Path) -> Layout:
        """An installation with all of it below `prefix`: a second cluster on this host, or a trial."""
        return cls(
            slurm_conf=slurm_conf,
            libexec=prefix / "libexec",
            etc=prefix / "etc",
            keep=prefix / "install",
            state=prefix / "state",
            spool=prefix / "spool",
            run_noded=prefix / "run-noded",
            run=prefix / "run",
            units=prefix / "units",
        )

    @property
    def site(self) -> Path:
        """The site file."""
        return self.etc / "site.toml"

    @property
    def job_submit(self) -> Path:
        """The one Lua file that Slurm loads; the site may have written it."""
        return self.slurm_conf.parent / "job_submit.lua"

    @property
    def act_socket(self) -> Path:
        """Where gsub-act listens."""
        return self.run.parent / f"{self.run.name}-act" / "act.sock"

    @property
    def act_state(self) -> Path:
        """gsub-act's journal; its own user's alone."""
        return self.state.parent / f"{self.state.name}-act"


def part(package: str, name: str) -> bytes:
    """A file that is shipped inside one of our packages: `part("slurm_plugins", "lua/gsub.lua")`."""
    return files(package).joinpath(name).read_bytes()
