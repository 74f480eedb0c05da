"""Checks of how Slurm knows GPUs and the network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from profiler.counting import count
from site_configs.site_model import Site
from site_configs.topology import TopologyError
from slurm_plugins.install.doctor.check import (
    CONTROLLER,
    HOSTS,
    Check,
    Said,
    error,
    ok,
    warning,
)
from slurm_plugins.install.doctor.sight import Sight
from slurm_plugins.install.doctor.words import some

__all__ = ["CHECKS"]

_SWITCH_WAIT: Final = 300


def _gres(sight: Sight) -> Iterator[Said]:
    config = sight.config
    gpus = sum(node.gpus for node in sight.nodes)
    if not config.has("GresTypes", "gpu"):
        yield error("GresTypes has no gpu: Slurm hands out no GPUs, and gsub has nothing to do")
    elif not gpus:
        yield warning(
            "GresTypes has gpu, but no node has any", "add Gres=gpu:N to the nodes' lines in slurm.conf"
        )
    else:
        yield ok(f"{count(gpus, 'GPU')} on {count(sum(bool(node.gpus) for node in sight.nodes), 'node')}")


_GRES_LINE: Final = re.compile(r"(?i)\bName\s*=\s*gpu\b")


def _gres_conf(sight: Sight) -> Iterator[Said]:
    path = sight.layout.slurm_conf.with_name("gres.conf")
    text = sight.text(path)
    if text is None:
        if sight.conf is None:
            return  # slurmd has it from slurmctld
        yield warning(
            f"there is no {path}: which device file a GPU has is not known", "see docs/emulated-gpus.md"
        )
        return
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    if any(re.match(r"(?i)AutoDetect\s*=\s*(nvml|nvidia|rsmi|nrt|oneapi)", line) for line in lines):
        yield ok("Slurm finds the GPUs itself (AutoDetect)")
        return
    bare = [
        number
        for number, line in enumerate(lines, 1)
        if _GRES_LINE.search(line) and not re.search(r"(?i)\b(File|MultipleFiles|AutoDetect)\s*=", line)
    ]
    if bare:
        yield warning(
            f"{path} line {bare[0]}: a GPU without File=: which device a job holds cannot be told, and nothing measured"
        )
        return
    yield ok("each GPU has its device file")


def _topology(sight: Sight) -> Iterator[Said]:
    plugin = sight.config.value("TopologyPlugin").removeprefix("topology/").lower() or "flat"
    plugin = "flat" if plugin in ("none", "default") else plugin
    site = sight.site
    try:
        found = sight.topologies()
    except TopologyError as problem:
        where = f"{problem.file}:{problem.line}" if problem.line else problem.file
        yield error(f"topology {where}: {problem.problem}", problem.remedy)
        return
    if found is None:
        if plugin != "flat" and not site.topology.feature_prefix:
            beside = sight.layout.slurm_conf.with_name("topology.conf")
            yield warning(
                f"Slurm has topology/{plugin}, but the site file names no topology: gsub takes the network for flat",
                f'[topology] file = "{beside}" in {sight.layout.site}',
            )
        else:
            yield ok("the network is flat" if plugin == "flat" else f"topology/{plugin}, leaves by features")
        return
    if plugin == "flat":
        yield warning(
            "the site file names a topology, but Slurm has none: --switches does nothing there",
            "TopologyPlugin=topology/tree in slurm.conf, or topology.feature_prefix instead of topology.file",
        )
    known = {node for one in found.by_name.values() for node in one.nodes}
    outside = [node.name for node in sight.nodes if node.gpus and node.name not in known]
    gone = sorted(known - {node.name for node in sight.nodes})
    if outside:
        yield warning(
            f"{some(outside)}: not in {site.topology.file}", "add them to the file, where they are cabled"
        )
    if gone:
        yield warning(
            f"{some(gone)}: in {site.topology.file}, but Slurm has no such nodes", "take them out of the file"
        )
    yield from _own_copy(sight, site)
    if plugin != "flat" and not outside and not gone:
        yield ok(f"topology/{plugin}: {len(known)} nodes on the leaves of {site.topology.file}")


def _own_copy(sight: Sight, site: Site) -> Iterator[Said]:
    """The site's file must say what Slurm's own says, when it is another one."""
    for name in ("topology.yaml", "topology.conf"):
        own = sight.layout.slurm_conf.with_name(name)
        text = sight.text(own)
        if text is None:
            continue
        if text != sight.text(Path(site.topology.file)):
            yield warning(
                f"{site.topology.file} is not what Slurm reads ({own})",
                f'[topology] file = "{own}" in {sight.layout.site}',
            )
        return


def _switch_wait(sight: Sight) -> Iterator[Said]:
    site = sight.site
    stated = sight.config.option("SchedulerParameters", "max_switch_wait")
    limit = int(stated) if stated and stated.isdecimal() else _SWITCH_WAIT
    wanted = max([site.locality.max_wait, *(part.locality.max_wait for part in site.partitions.values())])
    modes = {site.policy.mode, *(part.mode for part in site.partitions.values())}
    plugin = sight.config.value("TopologyPlugin").removeprefix("topology/")
    if limit >= wanted or plugin != "tree":
        yield ok(f"jobs may wait {limit} s for switches, gsub asks for {wanted} s at most")
    elif "enforce" in modes:
        yield warning(
            f"gsub lets jobs wait up to {wanted} s for fewer switches (locality.max_wait), Slurm cuts it at {limit} s",
            f'SchedulerParameters=...,max_switch_wait={wanted} in slurm.conf, or locality.max_wait = "{limit} s"',
        )
    else:
        yield ok(f"Slurm cuts waiting for switches at {limit} s; before enforce set max_switch_wait={wanted}")


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "gres",
        "slurm",
        "`GresTypes` has gpu, and nodes have some.",
        "GresTypes=gpu in slurm.conf, and Gres=gpu:N for the nodes that have them",
        _gres,
        CONTROLLER,
    ),
    Check(
        "gres-conf",
        "slurm",
        "gres.conf gives each GPU its device file (or AutoDetect does): that is how gsub knows which GPU a job holds.",
        "Name=gpu File=/dev/nvidia[0-7] in gres.conf, or AutoDetect=nvml",
        _gres_conf,
        HOSTS,
    ),
    Check(
        "topology",
        "slurm",
        "Slurm's topology plugin, its file and the site file agree on the network, and know all nodes with GPUs.",
        'name Slurm\'s own file in the site file: [topology] file = "/etc/slurm/topology.conf"',
        _topology,
        CONTROLLER,
    ),
    Check(
        "max-switch-wait",
        "slurm",
        "`max_switch_wait` of SchedulerParameters is no shorter than `locality.max_wait` of the site file.",
        "SchedulerParameters=...,max_switch_wait=SECONDS in slurm.conf",
        _switch_wait,
        CONTROLLER,
    ),
)
