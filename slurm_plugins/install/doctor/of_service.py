"""Checks of the site file and of gsubd: whether it decides, collects, keeps, and what it has heard of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from profiler.counting import count
from site_configs.site import SiteError, parse_site
from slurm_plugins.act.ask import is_wanted
from slurm_plugins.act.journal import NAME, held_in
from slurm_plugins.install.doctor.check import (
    ANYWHERE,
    CONTROLLER,
    HOSTS,
    Check,
    Said,
    UnseenError,
    error,
    ok,
    unknown,
    warning,
)
from slurm_plugins.install.doctor.net import NetError
from slurm_plugins.install.doctor.of_node import unit
from slurm_plugins.install.doctor.rights import shown
from slurm_plugins.install.doctor.sight import Sight
from slurm_plugins.install.doctor.words import QUEUE_REMEDY, SLOW_QUEUE
from slurm_plugins.install.journal import Journal

__all__ = ["CHECKS"]

_MIB: Final = 1 << 20
_GRACE: Final = 300.0
"""Seconds after which a held job that was to be released is a forgotten one."""


def _site(sight: Sight) -> Iterator[Said]:
    path = sight.layout.site
    found = sight.host.stat(path)
    text = sight.site_text
    if text is None or found is None:
        if sight.has_shim or sight.has_hooks or "gsubd" in sight.processes:
            yield error(f"there is no site file {path}: the service observes under no cluster's name")
        else:
            yield warning(f"there is no site file {path}: gsub is not installed here")
        return
    try:
        site = parse_site(text, str(path))
    except SiteError as problem:
        said = " = ".join(part for part in (problem.key, problem.value) if part)
        yield error(": ".join(part for part in (str(path), said, problem.problem) if part), problem.remedy)
        return
    if not found.mode & 0o004 and found.kind == "file":
        yield error(
            f"not all may read {path} (mode {found.mode:04o}), and users' gsub must", f"chmod 0644 {path}"
        )
        return
    above = sight.host.stat(path.parent)
    if above is not None and above.kind == "folder" and not above.mode & 0o001:
        yield error(
            f"not all may enter {path.parent} (mode {above.mode:04o}), and users' gsub must",
            f"chmod 0755 {path.parent}",
        )
        return
    told = ", ".join(mode for mode in ("observe", "advise", "enforce") if mode in site.modes)
    yield ok(f"{path}: cluster {site.cluster}, mode {told}")


def _cluster(sight: Sight) -> Iterator[Said]:
    name, ours = sight.config.value("ClusterName"), sight.site.cluster
    if name.lower() != ours.lower():
        yield error(
            f"the site file says cluster {ours}, slurm.conf ClusterName={name}: records are kept under a wrong name",
            f'cluster = "{name}" in {sight.layout.site}, then restart gsubd and the agents',
        )
    else:
        yield ok(f"both say {name}")


def _partitions(sight: Sight) -> Iterator[Said]:
    declared = set(sight.site.partitions)
    if not declared:
        return
    there = {name for node in sight.nodes for name in node.partitions}
    unknown_names = sorted(declared - there)
    if unknown_names and there:
        yield warning(
            f"the site file declares partitions that have no node in Slurm: {', '.join(unknown_names)}",
            f"take [partitions.{unknown_names[0]}] out of {sight.layout.site}, or mend its name",
        )
    else:
        yield ok(f"{len(declared)} declared partitions are Slurm's")


def _service(sight: Sight) -> Iterator[Said]:
    url = sight.question.metrics
    try:
        page = sight.page(f"{url}/healthz")
    except NetError as problem:
        if sight.has_service or sight.has_shim:
            runs = "gsubd runs, but" if "gsubd" in sight.processes else "gsubd does not run:"
            yield error(f"{runs} nothing answers at {url} ({problem})")
        else:
            yield warning("gsubd is not installed here", "gsub admin install --plan")
    else:
        if page.status == 200:
            yield ok("gsubd decides")
        elif page.status == 503:
            yield warning("gsubd runs, but cannot decide yet: Slurm has not answered it")
        else:
            yield error(
                f"what answers at {url} is not gsubd (status {page.status})",
                "name gsubd's --listen: --metrics HOST:PORT",
            )
    if sight.has_systemd:
        yield from unit(sight, "gsubd.service")


_ALARMS: Final[tuple[tuple[str, float, str, str, str], ...]] = (
    # metric, most that is well, level, what it means, what to do
    (
        "gsub_inventory_age_seconds",
        120,
        "warning",
        "Slurm has not answered gsubd for {:.0f} s",
        "journalctl -u gsubd: can the user gsub run scontrol?",
    ),
    (
        "gsub_queue_seconds",
        SLOW_QUEUE,
        "warning",
        "gsubd takes {:.0f} s to read the jobs of decisions from slurmctld",
        QUEUE_REMEDY,
    ),
    (
        "gsub_faults_total",
        0,
        "warning",
        "{:.0f} questions were left undecided by a fault of gsubd",
        "journalctl -u gsubd, and please report it",
    ),
    (
        "gsub_records_dropped_total",
        0,
        "warning",
        "{:.0f} records of decisions were lost",
        "make room where the service's state is",
    ),
    (
        'gsub_shim_events_total{event="dropped"}',
        0,
        "warning",
        "the shim dropped {:.0f} answers: shim and service are not of one release, or a policy's is not allowed",
        "gsub admin upgrade --plan; slurmctld's log names each",
    ),
)


def _counts(sight: Sight) -> Iterator[Said]:
    metrics = sight.metrics
    if not metrics:
        raise UnseenError(f"there are no metrics at {sight.question.metrics}")
    well = True
    if metrics.get("gsub_site_file_ok") == 0:
        well = False
        yield error(
            "the site file on disk is not in force: gsubd goes on with the one before",
            f"mend {sight.layout.site}; gsubd takes it within a second",
        )
    if metrics.get("gsub_topology_ok") == 0:
        well = False
        yield error(
            "gsubd cannot use the topology that the site file names, and takes the network as flat",
            "journalctl -u gsubd tells why; can the user gsub read that file?",
        )
    if "gsub_inventory_age_seconds" not in metrics:
        well = False
        yield warning(
            "Slurm has never answered gsubd", "journalctl -u gsubd: can the user gsub run scontrol?"
        )
    for name, most, level, told, remedy in _ALARMS:
        value = metrics.get(name)
        if value is not None and value > most:
            well = False
            yield Said("warning" if level == "warning" else "error", told.format(value), remedy)
    failed = [
        name for name, value in metrics.items() if name.startswith("gsub_stage_failures_total{") and value
    ]
    if failed:
        well = False
        stages = ", ".join(name.partition('"')[2].partition('"')[0] for name in failed)
        yield warning(
            f"stages that failed: {stages}; their changes are lost", "journalctl -u gsubd tells why"
        )
    if well:
        opened, late = (
            metrics.get(f'gsub_shim_events_total{{event="{what}"}}', 0) for what in ("opened", "late")
        )
        decided = sum(value for name, value in metrics.items() if name.startswith("gsub_decisions_total"))
        yield ok(f"{decided:.0f} decisions; {late:.0f} came late, the shim paused {opened:.0f} times")


def _state(sight: Sight) -> Iterator[Said]:
    if not sight.has_service:
        return
    site = sight.site
    path, host = sight.layout.state, sight.host
    found = host.stat(path)
    if found is None:
        yield error(
            f"there is no {path}: the service has nowhere to write",
            f"install -d -o {site.service.user} {path}",
        )
        return
    uid = host.uid(site.service.user)
    if found.uid != uid:
        yield error(
            f"{path} belongs to {shown(host, found.uid)}, not to {site.service.user}",
            f"chown -R {site.service.user}: {path}",
        )
    elif found.mode & 0o022:
        yield error(f"others may write to {path} (mode {found.mode:04o})", f"chmod go-w {path}")
    else:
        yield ok(f"{path} is {site.service.user}'s")


_SQLITE: Final = "sqlite:///"


def _store(sight: Sight) -> Iterator[Said]:
    if not sight.has_service:
        return
    site = sight.site
    if not site.store.url.startswith(_SQLITE):
        yield ok("the store is a database server's; the keeper says whether it is well")
        return
    file = Path(site.store.url.removeprefix(_SQLITE))
    found = sight.host.stat(file)
    if found is None:
        if sight.host.stat(file.parent) is None or (not sight.is_root and not sight.host.names(file.parent)):
            yield unknown(f"{file} is not to be seen by this user")
        else:
            yield error(
                f"there is no store {file}", "gsubd makes it when its keeper starts: journalctl -u gsubd"
            )
        return
    well = True
    uid = sight.host.uid(site.service.user)
    if found.uid != uid:
        well = False
        yield error(
            f"{file} belongs to {shown(sight.host, found.uid)}, not to {site.service.user}",
            f"chown {site.service.user}: {file}*",
        )
    if found.mode & 0o007:
        well = False
        yield error(
            f"everybody may read {file} (mode {found.mode:04o}), and with it everybody's jobs",
            f"chmod o-rwx {file}*",
        )
    usage = sight.host.usage(file.parent)
    if usage is not None and (usage.free < 64 * _MIB or (usage.inodes and usage.inodes_free < 100)):
        well = False
        yield error(
            f"{usage.free // _MIB} MiB free where the store is: nothing more can be kept", "make room there"
        )
    elif usage is not None and usage.free < max(1024 * _MIB, usage.total // 50):
        well = False
        yield warning(
            f"{usage.free // _MIB} MiB free where the store is", "make room there, or shorten store.retention"
        )
    if well:
        yield ok(f"{file} is {site.service.user}'s alone, {found.size // _MIB} MiB")


def _act(sight: Sight) -> Iterator[Said]:
    if not is_wanted(sight.site):
        yield ok("gsub-act is not wanted here: nothing is enforced, or nothing that it would do")
        return
    try:
        up = sight.metrics.get("gsub_act_up")
    except UnseenError:
        up = None
    if up is None:
        up = float(sight.host.stat(sight.layout.act_socket) is not None)
    if up:
        yield ok("gsub-act answers")
    else:
        yield error(
            "something is enforced, but gsub-act does not answer: no failed job is tried again", _why(sight)
        )
    if sight.has_systemd:
        yield from unit(sight, "gsub-act.service")


def _why(sight: Sight) -> str:
    """What to do about a gsub-act that does not run, where more is known than that."""
    try:
        accounting = sight.config.value("AccountingStorageType").removeprefix("accounting_storage/")
    except UnseenError:
        return ""
    if accounting == "slurmdbd":
        return ""
    return (
        'Slurm knows operators from slurmdbd alone, and there is none: docs/gsub-act.md, "Without slurmdbd"; '
        "or resubmit.enabled = false in the site file"
    )


def _held(sight: Sight) -> Iterator[Said]:
    folder = sight.layout.act_state
    if sight.host.stat(folder) is None:
        yield ok("gsub-act is not installed: gsub holds no jobs")
        return
    if not sight.is_root and not sight.host.names(folder):
        yield unknown(f"{folder} is not to be seen by this user")
        return
    held = held_in(sight.host.read(folder / NAME) or b"")
    now = sight.question.clock()
    over = [one for one in held if now > one.until + _GRACE]
    if over:
        shown = ", ".join(one.job for one in over[:5]) + (", …" if len(over) > 5 else "")
        yield warning(
            f"jobs that gsub holds should have been released by now: {shown} (the first: {over[0].why})",
            f"systemctl status gsub-act; scontrol release {over[0].job}",
        )
    else:
        yield ok(f"gsub holds {count(len(held), 'job')}" if held else "gsub holds no job")


def _installation(sight: Sight) -> Iterator[Said]:
    folder = sight.layout.keep
    if sight.host.stat(folder) is None:
        return  # a package, or by hand
    if not sight.is_root:
        yield unknown(f"{folder} is root's alone")
        return
    journal = Journal(sight.host, folder, sight.question.clock)
    last = journal.entries[-1] if journal.entries else None
    if last is not None and (last.event in ("begun", "doing") or journal.unproven()):
        yield warning(
            f"an installation did not come to its end; the last that it did: {last.what or last.event}"
        )
    elif last is not None:
        yield ok("the last installation came to its end")


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "site-file",
        "service",
        "The site file is there, can be used, and can be read by all.",
        "gsub admin install --plan shows a first one; docs/site-file.md has every key",
        _site,
        ANYWHERE,
    ),
    Check(
        "cluster-name",
        "service",
        "`cluster` of the site file is ClusterName of slurm.conf: records are kept under it.",
        "set cluster in the site file on all hosts",
        _cluster,
        ANYWHERE,
    ),
    Check(
        "site-partitions",
        "service",
        "The partitions that the site file declares are Slurm's.",
        "mend their names in the site file",
        _partitions,
        CONTROLLER,
    ),
    Check(
        "service",
        "service",
        "gsubd runs and can decide (`/healthz` of its own port), and will after a restart.",
        "systemctl enable --now gsubd; journalctl -u gsubd tells why it ended",
        _service,
        CONTROLLER,
    ),
    Check(
        "service-counts",
        "service",
        "What gsubd counts: the site file is in force, Slurm answers it, and no decision or record was lost.",
        "journalctl -u gsubd",
        _counts,
        CONTROLLER,
    ),
    Check(
        "service-state",
        "service",
        "The folder of the service's state is its user's own.",
        "chown -R gsub: /var/lib/gsub",
        _state,
        CONTROLLER,
    ),
    Check(
        "store",
        "service",
        "The store is its user's alone, and has room.",
        "see docs/admin.md, What to watch",
        _store,
        CONTROLLER,
    ),
    Check(
        "installation",
        "service",
        "The last `gsub admin install`, `upgrade` or `rollback` came to its end.",
        "gsub admin install goes on where it was cut off; gsub admin rollback takes all of it back",
        _installation,
        HOSTS,
    ),
    Check(
        "gsub-act",
        "service",
        "gsub-act answers where something is enforced and failed jobs are to be tried again, or rules to cancel.",
        "systemctl enable --now gsub-act; journalctl -u gsub-act tells why it ended",
        _act,
        CONTROLLER,
    ),
    Check(
        "held-jobs",
        "service",
        "gsub-act released each job that it holds when it was to: one that is held and forgotten never runs.",
        "scontrol release JOB",
        _held,
        CONTROLLER,
    ),
)
