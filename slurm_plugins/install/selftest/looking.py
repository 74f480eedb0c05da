"""What a site is, before the first job: who submits, which nodes, what the partition takes, what we may see."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from site_configs.site_model import Mode, Site
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import SlurmError
from slurm_plugins.client.runner import Runner, check
from slurm_plugins.client.values import Node
from slurm_plugins.install.host import Host
from slurm_plugins.install.layout import Layout
from slurm_plugins.install.selftest.bounds import Bounds
from slurm_plugins.install.selftest.halt import LocalHalt
from slurm_plugins.install.selftest.queue import Queue, Submitter, Wish
from slurm_plugins.install.selftest.records import ServiceRecords
from slurm_plugins.install.selftest.world import World

__all__ = ["CannotRunError", "look", "names_of", "submitter"]

_SECONDS: Final = 20.0
"""What one command of Slurm may take."""
_ORDINARY: Final = 1000
"""The first uid of people on most systems: the names from there on are taken out of the result file."""


class CannotRunError(Exception):
    """The selftest cannot be run: what is wrong, why, and what to do."""

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.fix = what, why, fix


def submitter(user: str | None) -> Submitter:
    """Whose jobs they are: an ordinary user's. Raises CannotRunError."""
    root = os.geteuid() == 0
    if root and not user:
        raise CannotRunError(
            "root's jobs show nothing of what users see",
            fix="name an ordinary user who may submit to the partition: --user U",
        )
    try:
        entry = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
    except KeyError as error:
        raise CannotRunError(f"there is no user {user or os.geteuid()} here") from error
    if entry.pw_uid == 0 or (not root and entry.pw_uid != os.geteuid()):
        raise CannotRunError(
            f"jobs of {entry.pw_name} cannot be submitted",
            why="root is no ordinary user" if entry.pw_uid == 0 else "only root submits as another user",
            fix="name an ordinary user with --user" if root else "leave --user out",
        )
    if root and shutil.which("setpriv") is None:
        raise CannotRunError(
            f"root cannot turn into {entry.pw_name} here",
            why="setpriv is not on this host",
            fix="install util-linux, or run this as that user",
        )
    return Submitter(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir, become=root)


@dataclass(frozen=True, slots=True)
class _Clock:
    """The machine's."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


def look(
    env: Mapping[str, str], site: Site, *, layout: Layout, host: Host, bounds: Bounds, who: Submitter
) -> World:
    """Look at the site; nothing is submitted. `env` is that of Slurm's commands. Raises CannotRunError."""
    client, reader = CommandClient(env, timeout=_SECONDS), Runner(env, timeout=_SECONDS)
    queue = Queue(client, reader, reader, who, bounds, _Clock())
    try:
        config = _config(check(reader.read(["scontrol", "show", "config"])).stdout)
        nodes = _nodes_of(client, bounds.partition)
        queue.gpus = 1 if any(node.gpus for node in nodes) else 0
        _probe(queue)
        mode = _mode(site, bounds, who, reader)
    except SlurmError as error:
        raise CannotRunError(
            "Slurm cannot be asked", why=str(error), fix="'scontrol ping' tells more"
        ) from error
    root = host.euid() == 0
    return World(
        site=site,
        mode=mode,
        bounds=bounds,
        queue=queue,
        records=ServiceRecords(site, root=root) if site.service.url else None,
        journal=_journal(site, layout),
        halt=_halt(site, host) if root else None,
        root=root,
        config=config,
        nodes=nodes,
        all_nodes=client.nodes,
    )


def _config(text: str) -> dict[str, str]:
    """What ``scontrol show config`` says, by key."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found.setdefault(key.split("[")[0].strip(), value.strip())
    return found


def _nodes_of(client: CommandClient, partition: str) -> tuple[Node, ...]:
    """The partition's nodes. Raises CannotRunError, SlurmError."""
    known = {one.name: one for one in client.partitions()}
    if partition not in known:
        raise CannotRunError(f"there is no partition {partition}", fix=f"one of {', '.join(sorted(known))}")
    if known[partition].state != "UP":
        raise CannotRunError(f"the partition {partition} is {known[partition].state}: no job would start")
    found = tuple(node for node in client.nodes() if partition in node.partitions)
    if not any(node.available for node in found):
        raise CannotRunError(f"no node of the partition {partition} takes jobs", fix="'sinfo -R' says why")
    return found


def _probe(queue: Queue) -> None:
    """Find out which jobs the partition takes of this user, without gsub. Raises CannotRunError, SlurmError."""
    without = queue.ask(Wish("probe", gpus=0, word="off"), only=True)
    queue.cpu_jobs = not without.code
    if not without.code and not queue.gpus:
        return
    asked = queue.ask(Wish("probe", gpus=queue.gpus, word="off"), only=True) if queue.gpus else without
    if asked.code:
        raise CannotRunError(
            f"Slurm takes no job of {queue.who.name} in this partition",
            why=asked.last,
            fix="name another --user, --account, --qos or --partition",
        )
    queue.open_gpus = queue.gpus
    if queue.gpus and not queue.ask(Wish("probe", gpus=2, word="off"), only=True).code:
        queue.open_gpus = 2


def _mode(site: Site, bounds: Bounds, who: Submitter, reader: Runner) -> Mode:
    """How far gsub may go with these jobs, as gsubd reads the site file."""
    account = bounds.account
    if site.accounts and not account:
        words = ["sacctmgr", "--noheader", "--parsable2", "show", "user", who.name, "format=DefaultAccount"]
        told = reader.read(words, daemon="slurmdbd").stdout.split()
        account = told[0] if told else ""
    return site.mode_for(partition=bounds.partition, account=account, uid=who.uid)


def _journal(site: Site, layout: Layout) -> Path | None:
    """gsubd's decisions, where we may read them: beside its store, or in its state folder."""
    folders = [layout.state]
    if site.store.url.startswith("sqlite:////"):
        folders.insert(0, Path(site.store.url.removeprefix("sqlite:///")).parent)
    return next((path for folder in folders if os.access(path := folder / "decisions.jsonl", os.R_OK)), None)


def _halt(site: Site, host: Host) -> LocalHalt | None:
    """gsubd, where it listens on this host."""
    path, uid = Path(site.service.socket), host.uid(site.service.user)
    found = host.stat(path)
    return LocalHalt(path, uid, host) if uid is not None and found and found.kind == "socket" else None


def names_of(world: World, layout: Layout) -> dict[str, list[str]]:
    """Every name of the site that is known here, by kind: what the result file must not hold."""
    site, bounds, who = world.site, world.bounds, world.queue.who
    return {
        "node": list(_all(*((node.name, node.hostname, node.address) for node in world.nodes))),
        "host": list(_all((socket.gethostname(), socket.getfqdn(), urlsplit(site.service.url).hostname))),
        "controller": _controllers(world.config),
        "user": list(_all((who.name, site.service.user), site.operators, _people())),
        "account": list(_all((bounds.account, bounds.qos), site.accounts)),
        "partition": list(
            _all((bounds.partition,), site.partitions, *(node.partitions for node in world.nodes))
        ),
        "cluster": list(_all((site.cluster, site.name, world.config.get("ClusterName")))),
        "path": list(_all((who.home, str(layout.slurm_conf), site.service.socket))),
    }


def _all(*several: Mapping[str, object] | tuple[str | None, ...] | Iterator[str]) -> Iterator[str]:
    for names in several:
        for name in names:
            if name:
                yield name
                if "." in name:
                    yield name.partition(".")[0]


def _controllers(config: Mapping[str, str]) -> list[str]:
    """SlurmctldHost as "name(address)"."""
    words = config.get("SlurmctldHost", "").replace("(", " ").replace(")", " ").replace(",", " ").split()
    return list(_all(tuple(words)))


def _people() -> Iterator[str]:
    """Users of this host; where a directory service lists none, those are not known."""
    return (entry.pw_name for entry in pwd.getpwall() if entry.pw_uid >= _ORDINARY)
