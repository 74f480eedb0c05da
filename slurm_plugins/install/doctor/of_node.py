"""Checks of the agent on a compute node: its process, its folders, its disk, what it could not deliver."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from profiler.counting import count
from site_configs.hostlist import HostlistError, expand
from slurm_plugins.install.doctor.check import NODE, Check, Said, UnseenError, error, ok, unknown, warning
from slurm_plugins.install.doctor.rights import shown
from slurm_plugins.install.doctor.sight import Sight
from slurm_plugins.install.host import HostError
from slurm_plugins.install.layout import part

__all__ = ["CHECKS", "unit"]

_WAITING_WARNS: Final = 500
_HOOK_FILES_WARN: Final = 100
_MIB: Final = 1 << 20
_UNIT_SECONDS: Final = 5.0


def _agent(sight: Sight) -> Iterator[Said]:
    if "gsub-noded" in sight.processes:
        yield ok("gsub-noded runs")
    elif sight.has_agent or sight.has_hooks:
        yield error("gsub-noded does not run on this node: its jobs are not measured")
    else:
        yield warning("gsub-noded is not installed on this node", "gsub admin install --role node")
    if sight.has_systemd:
        yield from unit(sight, "gsub-noded.service")


def unit(sight: Sight, name: str) -> Iterator[Said]:
    """How systemd has a unit of ours."""
    path = sight.unit(name)
    if path is None:
        return
    if sight.host.read(path) != part("site_configs", f"systemd/{name}"):
        yield ok(f"{path} is not as this gsub has it: the site's own words, or another release's")
    enabled = sight.host.run(["systemctl", "is-enabled", name], timeout=_UNIT_SECONDS)
    state = enabled.out.strip()
    if enabled.code is not None and state in ("disabled", "masked"):
        yield warning(
            f"{name} is {state}: it will not run after a restart of this host", f"systemctl enable {name}"
        )


def _folders(sight: Sight) -> Iterator[Said]:
    if not (sight.has_agent or sight.has_hooks):
        return
    layout = sight.layout
    wanted = {
        layout.spool: 0o077,
        layout.spool / "new": 0o077,
        layout.run_noded: 0o022,
        layout.run_noded / "new": 0o077,
    }
    fine = True
    for path, forbidden in wanted.items():
        found = sight.host.stat(path)
        if found is None:
            if sight.is_root:
                fine = False
                yield error(f"there is no folder {path}: hooks cannot leave word of jobs")
            continue
        if found.kind != "folder":
            yield error(f"{path} is no folder", "remove it, then systemd-tmpfiles --create gsub-noded.conf")
        elif found.uid != 0:
            yield error(
                f"{path} belongs to {shown(sight.host, found.uid)}: the hooks do not use it",
                f"chown root:root {path}",
            )
        elif found.mode & forbidden:
            yield error(
                f"{path} is open to others (mode {found.mode:04o})", f"chmod {0o777 & ~forbidden:04o} {path}"
            )
        else:
            continue
        fine = False
    if fine and sight.is_root:
        yield ok(f"{layout.spool} and {layout.run_noded} are root's")


def _space(sight: Sight) -> Iterator[Said]:
    folder = sight.layout.spool
    usage = sight.host.usage(folder)
    if usage is None:
        yield unknown(f"{folder} is not there, or not to be seen")
        return
    try:
        wanted = sight.site.agent.spool_size * _MIB
    except UnseenError:
        wanted = 256 * _MIB
    free = usage.free // _MIB
    if usage.free < 16 * _MIB or (usage.inodes and usage.inodes_free < 1000):
        what = f"{free} MiB" if usage.free < 16 * _MIB else f"{usage.inodes_free} inodes"
        yield error(f"{what} free where {folder} is: records are lost")
    elif usage.free < wanted:
        yield warning(f"{free} MiB free where {folder} is, less than it may take ({wanted // _MIB} MiB)")
    elif usage.inodes and usage.inodes_free * 100 < usage.inodes:
        yield warning(f"less than 1 % of the inodes are free where {folder} is")
    else:
        yield ok(f"{free} MiB free for {folder}")


def _waiting(sight: Sight) -> Iterator[Said]:
    layout = sight.layout
    if not _visible(sight, layout.spool):
        yield unknown(f"{layout.spool} is root's alone")
        return
    out = len(sight.host.names(layout.spool / "out"))
    new = sum(len(sight.host.names(folder / "new")) for folder in (layout.spool, layout.run_noded))
    if new > _HOOK_FILES_WARN:
        yield error(
            f"{new} files of hooks are not taken: the agent does not run, or hangs",
            "systemctl restart gsub-noded",
        )
    if out > _WAITING_WARNS:
        yield warning(f"{out} records wait in {layout.spool / 'out'}: the service is not reached")
    if new <= _HOOK_FILES_WARN and out <= _WAITING_WARNS:
        yield ok(f"{count(out, 'record')} wait{'s' * (out == 1)} to be delivered")


def _visible(sight: Sight, folder: Path) -> bool:
    return sight.is_root or bool(sight.host.names(folder))


def _lost(sight: Sight) -> Iterator[Said]:
    path = sight.layout.spool / "losses"
    if not _visible(sight, sight.layout.spool):
        yield unknown(f"{sight.layout.spool} is root's alone")
        return
    text = sight.text(path)
    try:
        dropped = json.loads(text).get("dropped", {}) if text else {}
        lost = sum(int(count) for count in dropped.values())
    except (ValueError, TypeError, AttributeError):
        yield unknown(f"{path} cannot be read")
        return
    if lost:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(dropped.items()))
        yield warning(f"records were lost for want of room, and the service has not been told yet: {kinds}")
    else:
        yield ok("no record was lost")


def _poison(sight: Sight) -> Iterator[Said]:
    folder = sight.layout.spool / "poison"
    if not _visible(sight, sight.layout.spool):
        yield unknown(f"{sight.layout.spool} is root's alone")
        return
    names = [name for name in sight.host.names(folder) if not name.endswith(".why")]
    if not names:
        yield ok("no record was set aside")
        return
    why = ""
    with suppress(UnseenError):
        why = (sight.text(folder / f"{names[0]}.why") or "").strip()
    yield warning(
        f"{count(len(names), 'record')} {'was' if len(names) == 1 else 'were'} set aside in {folder}"
        f"{f': {why}' if why else ''}",
        f"look at them, then rm {folder}/*",
    )


def _switches(sight: Sight) -> Iterator[Said]:
    off = sight.layout.etc / "health.off"
    drain = sight.layout.run_noded / "drain"
    if sight.host.stat(off) is not None:
        yield warning(f"{off} is there: health checks are off on this node", f"rm {off}")
    try:
        text = sight.text(drain)
    except UnseenError:
        text = None
    fields = (text or "").split(None, 2)
    if (
        len(fields) == 3
        and fields[0] == "v1"
        and fields[1].isdecimal()
        and int(fields[1]) > sight.question.clock()
    ):
        yield warning(
            f"this node refuses jobs: {fields[2]}", "see docs/health.md; touch /etc/gsub/health.off lifts it"
        )
    elif sight.host.stat(off) is None:
        yield ok("health checks may run, and refuse no job now")


_FILE: Final = re.compile(r"(?i)\b(?:Multiple)?Files?\s*=\s*(\S+)")
_NODES: Final = re.compile(r"(?i)\bNodeName\s*=\s*(\S+)")


def _devices(sight: Sight) -> Iterator[Said]:
    path = sight.layout.slurm_conf.with_name("gres.conf")
    text = sight.text(path)
    if text is None:
        return
    wanted: list[str] = []
    for line in text.splitlines():
        plain = line.split("#")[0]
        if not re.search(r"(?i)\bName\s*=\s*gpu\b", plain):
            continue
        try:
            nodes = _NODES.search(plain)
            if nodes is not None and sight.node not in expand(nodes[1]):
                continue
            wanted += [file for found in _FILE.findall(plain) for file in _files(found)]
        except HostlistError as problem:
            yield warning(f"{path}: {problem}", f"mend that line of {path}")
    missing = [file for file in wanted if file.startswith("/") and sight.host.stat(Path(file)) is None]
    if missing:
        yield error(f"GPUs of this node have no device file: {', '.join(missing[:4])}")
    elif wanted:
        yield ok(f"{len(wanted)} device files of GPUs are there")


def _files(text: str) -> Iterator[str]:
    """The paths of ``/dev/nvidia[0-3],/dev/x``. Raises HostlistError."""
    for piece in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text):
        folder, slash, name = piece.rpartition("/")
        yield from (f"{folder}{slash}{one}" for one in expand(name))


def _state(sight: Sight) -> Iterator[Said]:
    name = sight.node
    found = next((node for node in sight.nodes if node.name == name), None)
    if found is None:
        yield warning(
            f"Slurm has no node {name}: records of this host are kept under no node of its",
            "systemctl edit gsub-noded: Environment=SLURMD_NODENAME=NAME, as NodeName in slurm.conf",
        )
    elif found.available:
        yield ok(f"{name} is {found.state_text.lower()}")
    else:
        yield warning(
            f"{name} is {found.state_text}: {found.reason or 'no reason is given'}",
            f"scontrol show node {name}",
        )


def _read_hooks(sight: Sight) -> Iterator[Said]:
    """The folder that the hooks write to is the agent's."""
    for name in ("prolog", "epilog"):
        try:
            text = (sight.host.read(sight.layout.libexec / name) or b"").decode(errors="replace")
        except HostError:
            continue
        for key, folder in (("SPOOL", sight.layout.spool), ("RUN", sight.layout.run_noded)):
            found = re.search(rf"(?m)^(?:\w+=\S* )*{key}=(\S+)", text)
            if found is None:
                continue
            stated = found[1].replace("$SLURMD_NODENAME", sight.node)
            if stated != str(folder):
                yield error(f"{sight.layout.libexec / name} writes to {stated}, the agent reads {folder}")
                return
    yield ok("hooks write where the agent reads")


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "agent",
        "node",
        "gsub-noded runs on this node, and will after a restart.",
        "systemctl enable --now gsub-noded; journalctl -u gsub-noded tells why it ended",
        _agent,
        NODE,
    ),
    Check(
        "agent-folders",
        "node",
        "The folders that hooks write to and the agent reads are there, root's, and closed.",
        "systemd-tmpfiles --create gsub-noded.conf",
        _folders,
        NODE,
    ),
    Check(
        "hook-folders",
        "node",
        "The hooks write to the folders that the agent reads.",
        "gsub admin install --role node",
        _read_hooks,
        NODE,
    ),
    Check(
        "spool-space",
        "node",
        "There is room and inodes for the spool: what jobs did waits there while the service is away.",
        "make room on that file system, or name another with agent.spool of the site file",
        _space,
        NODE,
    ),
    Check(
        "spool-waiting",
        "node",
        "Few records wait in the spool. Many: the service is not reached, or the agent does not run.",
        "is service.url right, its port open, MUNGE's key the same? journalctl -u gsub-noded",
        _waiting,
        NODE,
    ),
    Check(
        "spool-lost",
        "node",
        "No record was lost because the spool or its disk was full.",
        "make room where the spool is; what is lost stays lost, and is told to the service",
        _lost,
        NODE,
    ),
    Check(
        "spool-poison",
        "node",
        "No record was set aside that cannot be read or that the service refused.",
        "each has its reason beside it, in NAME.why",
        _poison,
        NODE,
    ),
    Check(
        "health-switch",
        "node",
        "Health checks are not switched off on this node, and do not refuse jobs now.",
        "see docs/health.md",
        _switches,
        NODE,
    ),
    Check(
        "gpu-files",
        "node",
        "The device files that gres.conf names for this node are there.",
        "is the driver loaded (nvidia-smi)? gres.conf must name what /dev has",
        _devices,
        NODE,
    ),
    Check(
        "node-state",
        "node",
        "Slurm knows this host as a node, and may start jobs on it.",
        "scontrol show node NAME",
        _state,
        NODE,
    ),
)
