"""The few facts of Slurm's configuration that decisions rest on, as slurmctld reports them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from site_configs.textfile import read_text
from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.runner import Runner, check
from slurm_plugins.client.versions import Version
from slurm_plugins.decide.context import SlurmFacts
from slurm_plugins.limits.billing import parse_billing_rule
from slurm_plugins.limits.lookup import is_enforcing, parse_lines, parse_memory_limits

__all__ = ["SlurmConfig", "parse_config", "read_config", "slurm_user_of_file"]


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """What `scontrol show config` said. `slurm_uid` is SlurmUser's; None when it was not told.

    MaxMemPerNode and MaxMemPerCPU, MiB, hold for partitions that have neither.
    """

    facts: SlurmFacts
    cluster: str = ""
    slurm_uid: int | None = None
    max_memory_per_node: int | None = None
    max_memory_per_cpu: int | None = None


def read_config(runner: Runner) -> SlurmConfig:
    """Ask slurmctld. Raises SlurmError."""
    return parse_config(check(runner.read(["scontrol", "show", "config"])).stdout)


def parse_config(text: str) -> SlurmConfig:
    """Read the output of ``scontrol show config``, of any release. Raises SlurmFormatError.

    >>> parse_config("SLURM_VERSION = 22.05.8\\nSlurmUser = slurm(64030)\\nTopologyPlugin = topology/tree").slurm_uid
    64030
    """
    found = parse_lines(text)
    if "SLURM_VERSION" not in found:
        raise SlurmFormatError("no SLURM_VERSION in scontrol show config", text)
    wait = re.search(r"max_switch_wait=(\d{1,9})", found.get("SchedulerParameters", ""), re.IGNORECASE)
    user = re.search(r"\((\d+)\)$", found.get("SlurmUser", ""))
    select = found.get("SelectTypeParameters")
    per_node, per_cpu = parse_memory_limits(found)
    return SlurmConfig(
        SlurmFacts(
            release=Version.parse(found["SLURM_VERSION"]).release,
            max_switch_wait=int(wait[1]) if wait else SlurmFacts().max_switch_wait,
            topology_plugin=_topology(found.get("TopologyPlugin", "")),
            memory_tracked="MEMORY" in select.upper() if select is not None else None,
            default_memory_per_cpu=_size(found.get("DefMemPerCPU", "")),
            default_memory_per_node=_size(found.get("DefMemPerNode", "")),
            admin_comment_free=not found.get("EpilogSlurmctld"),
            limits_enforced=is_enforcing(found.get("AccountingStorageEnforce")),
            billed=parse_billing_rule(found.get("PriorityFlags", "")),
        ),
        cluster=found.get("ClusterName", "").lower(),
        max_memory_per_node=per_node,
        max_memory_per_cpu=per_cpu,
        slurm_uid=int(user[1]) if user else None,
    )


def _size(text: str) -> int | None:
    """MiB; None for UNLIMITED and where the other of the two is set."""
    return int(text) or None if text.isdigit() else None


def _topology(plugin: str) -> str:
    """``topology/tree`` -> tree; none and default (names of older releases) are flat."""
    kind = plugin.removeprefix("topology/").lower()
    return "flat" if kind in {"", "none", "default"} else kind


def conf_path(env: Mapping[str, str], declared: str = "") -> Path:
    """slurm.conf of this host; `declared` is the site file's."""
    return Path(declared or env.get("SLURM_CONF", "") or _DEFAULT)


def slurm_user_of_file(env: Mapping[str, str], declared: str = "") -> str | None:
    """SlurmUser as slurm.conf on this host says, for the time before slurmctld answers; None when it does not.

    `declared` is the site file's slurm.conf.
    """
    try:
        text = read_text(os.fspath(conf_path(env, declared)), 16 << 20)
    except (OSError, ValueError):
        return None
    found = re.findall(r"(?mi)^\s*SlurmUser\s*=\s*([^\s#]+)", text)
    return found[-1] if found else None


_DEFAULT: Final = "/etc/slurm/slurm.conf"
