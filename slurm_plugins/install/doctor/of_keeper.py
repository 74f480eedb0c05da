"""Checks of the keeper: whether it answers and is believed, and what it has heard of the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from profiler.counting import count
from slurm_plugins.install.doctor.check import (
    ANYWHERE,
    CONTROLLER,
    Check,
    Said,
    error,
    ok,
    unknown,
    warning,
)
from slurm_plugins.install.doctor.net import NetError
from slurm_plugins.install.doctor.sight import Sight, parse_metrics
from slurm_plugins.install.doctor.words import QUEUE_REMEDY, SLOW_QUEUE, some

__all__ = ["CHECKS"]

_SILENT: Final = 1800.0
"""Seconds without a word of a node; an agent gives one every five minutes."""
_SETTLED: Final = 600.0


def _api(sight: Sight) -> Iterator[Said]:
    url = sight.site.service.url
    if not url:
        yield warning("the site file names no service.url: nodes deliver no records, users see none")
        return
    try:
        page = sight.page(f"{url}/healthz")
    except NetError as problem:
        yield error(f"nothing answers at {url} ({problem})")
        return
    if page.status == 200:
        yield ok(f"the keeper answers at {url}, and its store is well")
    elif page.status == 503:
        yield error(f"the keeper answers at {url}, but its store does not work")
    else:
        yield error(f"what answers at {url} is not gsub's keeper (status {page.status})")


_UNBELIEVED: Final = {
    "unsealed": (
        "what answers at {} is not believed: its seal is of another user than service.user",
        "give service.user the same number on this host as on the controller: id gsub",
    ),
    "munge": ("this host cannot prove who it is: {}", "systemctl status munge"),
}


def _trusted(sight: Sight) -> Iterator[Said]:
    if not sight.site.service.url:
        return
    try:
        page = sight.ask("/v1/jobs?limit=1")
    except NetError as problem:
        if problem.kind in _UNBELIEVED:
            told, remedy = _UNBELIEVED[problem.kind]
            yield error(
                told.format(sight.site.service.url if problem.kind == "unsealed" else problem), remedy
            )
        else:
            yield unknown(f"the service does not answer: {problem}")  # told by the check of the keeper
        return
    if page.status == 200:
        yield ok("the service believes this host, and this host the service")
    elif page.status == 401:
        yield error("the service does not believe this host's credentials (401)")
    else:
        yield unknown(f"the service answers with status {page.status}")


def _heard(sight: Sight) -> Iterator[Said]:
    if not sight.has_hooks or not sight.site.service.url:
        return
    told = {str(row["name"]): row for row in sight.told_nodes}
    now = sight.question.clock()
    up = [node for node in sight.nodes if node.available]
    never = [node.name for node in up if node.name not in told]
    silent = [
        node.name
        for node in up
        if node.name in told and _number(told[node.name].get("heard")) < now - _SILENT
    ]
    if (never or silent) and _lately(sight):
        yield unknown(
            f"the service was started less than {_SETTLED / 60:.0f} minutes ago, and may not have heard yet of "
            f"{some(never + silent)}"
        )
        return
    if never:
        yield warning(
            f"never heard of: {some(never)}; is the agent installed there?",
            "gsub admin install --role node on each of them; gsub admin doctor there tells more",
        )
    if silent:
        yield warning(
            f"not heard for over {_SILENT / 60:.0f} minutes: {some(silent)}",
            "journalctl -u gsub-noded there; gsub admin doctor there tells more",
        )
    if not never and not silent:
        yield ok(f"{count(len(up), 'node')} {'is' if len(up) == 1 else 'are'} up, and heard of")


def _lately(sight: Sight) -> bool:
    """Whether the service has just started: of nodes that have nothing to tell it hears every five minutes."""
    started = sight.host.stat(Path(sight.site.service.socket))
    return started is None or sight.question.clock() - started.mtime < _SETTLED


def _number(value: Any) -> float:  # noqa: ANN401  (JSON's)
    return float(value) if isinstance(value, int | float) else 0.0


def _queue(sight: Sight) -> Iterator[Said]:
    url = sight.site.service.url
    if not url:
        return
    try:
        metrics = parse_metrics(sight.page(f"{url}/metrics").body.decode(errors="replace"))
    except NetError as problem:
        yield unknown(f"the keeper does not answer: {problem}")  # told by the check of the keeper
        return
    took, limit = (metrics.get(f"gsub_keeper_queue_{name}") for name in ("seconds", "limit_seconds"))
    if took is None or limit is None:
        yield unknown("the keeper has not read Slurm's queue yet")
    elif took > SLOW_QUEUE:
        yield warning(
            f"reading Slurm's queue takes {took:.0f} s, of at most {limit:.0f}: what is known of jobs is that old",
            QUEUE_REMEDY,
        )
    else:
        yield ok(f"reading Slurm's queue takes {took:.1f} s")


def _unwell(sight: Sight) -> Iterator[Said]:
    if not sight.site.service.url:
        return
    errors: dict[str, list[str]] = {}
    details: dict[str, str] = {}
    lesser: set[str] = set()
    for row in sight.told_nodes:
        events = row.get("unwell")
        for event in events if isinstance(events, list) else []:
            if not isinstance(event, dict):
                continue
            name = str(event.get("name"))
            if event.get("state") == "error":
                errors.setdefault(name, []).append(str(row["name"]))
                details.setdefault(name, str(event.get("detail") or ""))
            else:
                lesser.add(name)
    for name, nodes in sorted(errors.items()):
        yield warning(
            f"{name} on {some(nodes)}: {details[name]}", "docs/health.md has a remedy for each health check"
        )
    if not errors:
        yield ok(
            f"health checks warn of {', '.join(sorted(lesser))}" if lesser else "no node has told of trouble"
        )


def _releases(sight: Sight) -> Iterator[Said]:
    ours = sight.question.release
    by_release: dict[str, list[str]] = {}
    if sight.site.service.url:
        for row in sight.told_nodes:
            if isinstance(row.get("version"), str):
                by_release.setdefault(row["version"], []).append(str(row["name"]))
    other = {release: names for release, names in by_release.items() if release != ours}
    for release, names in sorted(other.items()):
        yield warning(
            f"agents are gsub {release} on {some(names)}, this host has {ours}", "upgrade those nodes"
        )
    if not by_release:
        yield unknown(f"this host has gsub {ours}; which one the agents are is not told")
    elif not other:
        yield ok(f"service and agents are gsub {ours}")


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "keeper",
        "service",
        "The keeper answers at `service.url` from this host, and its store and schema are well.",
        "is service.url right and its port open from here? on the controller: journalctl -u gsubd",
        _api,
        ANYWHERE,
    ),
    Check(
        "keeper-trust",
        "service",
        "Service and host believe each other: MUNGE's key is the same, clocks are within five minutes, service.user "
        "has the same number here and there.",
        "compare `id gsub`, the clocks, and the checksum of munge.key with the controller's",
        _trusted,
        ANYWHERE,
    ),
    Check(
        "queue",
        "service",
        "The keeper reads Slurm's whole queue within five seconds. It looks again each 30 s, and a queue that takes "
        "longer is read less often.",
        QUEUE_REMEDY,
        _queue,
        CONTROLLER,
    ),
    Check(
        "nodes-heard",
        "service",
        "The service has heard of each node that is up within the last half hour.",
        "gsub admin doctor on those nodes",
        _heard,
        CONTROLLER,
    ),
    Check(
        "nodes-unwell",
        "service",
        "No node has told the service of an error: records lost, a driver that hangs, a failed health check such as "
        "that of its clock. Warnings of health checks are only named here.",
        "see docs/health.md",
        _unwell,
        CONTROLLER,
    ),
    Check(
        "releases",
        "service",
        "Service and agents are of one release of gsub.",
        "upgrade the controller first, then the nodes: docs/admin.md, Upgrading",
        _releases,
        CONTROLLER,
    ),
)
