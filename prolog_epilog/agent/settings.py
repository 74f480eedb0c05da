"""What gsub-noded is told: the site file, its command line, and what Slurm calls this node."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from site_configs.site_model import Site

__all__ = ["Settings", "SettingsError", "node_name", "slurmd_spool"]

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
_SPOOL_DIR = re.compile(r"^\s*SlurmdSpoolDir\s*=\s*(\S+)", re.IGNORECASE | re.MULTILINE)
# Where slurm.conf lies when nobody says: Debian, SchedMD's own, what a configless slurmd fetched
_SLURM_CONFS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
_MAX_CONF = 1 << 22


class SettingsError(Exception):
    """gsub-noded cannot start. The message is three lines: what, why, what to do."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(f"{what}\n  why: {why}\n  try: {fix}")


@dataclass(frozen=True, slots=True)
class Settings:
    """How one agent runs. Spans are seconds, sizes bytes.

    `run` and `spool` are the folders that the hooks write to (`new` below each); `slurmd_spool` is where this node's
    step daemons have their sockets. `boot` names the time since the machine started.
    """

    site: Site
    node: str
    run: Path
    spool: Path
    slurmd_spool: Path
    interval: float
    boot: str
    off_file: Path = Path("/etc/gsub/health.off")
    untrusted: str = ""
    """Why others than root could have written the site file."""

    @property
    def cluster(self) -> str:
        """The cluster that records are kept under."""
        return self.site.cluster

    @property
    def report(self) -> float:
        """From one report of a running job to the next."""
        return float(self.site.agent.report)

    @property
    def deadline(self) -> float:
        """How long a look at the GPUs may take."""
        return float(self.site.agent.deadline)

    @property
    def spool_bytes(self) -> int:
        """Most that the records on their way may take."""
        return self.site.agent.spool_size << 20


def node_name(given: str | None, env: Mapping[str, str]) -> str:
    """Slurm's name of this node: as given, else $SLURMD_NODENAME, else the host's up to the first dot.

    Raises SettingsError for what cannot be a node's name.
    """
    name = given or env.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    if not _NODE.fullmatch(name):
        raise SettingsError(
            f"node name {name[:60]!r}",
            "that is no name of a node",
            "give the NodeName of slurm.conf as --node",
        )
    return name


def slurmd_spool(given: Path | None, slurm_conf: str, node: str) -> Path:
    """slurmd's spool folder: as given, else SlurmdSpoolDir of slurm.conf, else Slurm's default; %n and %h filled in."""
    if given is not None:
        pattern = os.fspath(given)
    else:
        pattern = next(filter(None, map(_stated, [slurm_conf] if slurm_conf else _SLURM_CONFS)), "")
    host = socket.gethostname().partition(".")[0]
    return Path((pattern or "/var/spool/slurmd").replace("%n", node).replace("%h", host)).absolute()


def _stated(conf: str) -> str:
    """SlurmdSpoolDir as a slurm.conf has it; "" where it has none or cannot be read."""
    try:
        with Path(conf).open(encoding="utf-8", errors="replace") as file:
            stated = _SPOOL_DIR.findall(file.read(_MAX_CONF))
    except OSError:
        return ""
    return str(stated[-1]) if stated else ""


def boot_id() -> str:
    """The kernel's name for the time since it started; "" where it does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
