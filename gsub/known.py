"""What the service tells a user of nodes and of the user's own workloads, for who works a decision out beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gsub.errors import UserError
from gsub.service import of_site
from profiler.answers import BadNodes, Curves
from site_configs.site_model import Site
from slurm_plugins.decide.context import NOTHING_KNOWN, Knowledge
from slurm_plugins.decide.knowledge import AvoidRecord, Profiles, WorkloadRecord
from slurm_plugins.service.learnt import records_of, why_avoided

__all__ = ["known_of"]

_SECONDS: Final = 3.0


def known_of(site: Site, uid: int) -> tuple[Knowledge, tuple[str, ...]]:
    """What is known, and what is to be said of what is not. Never raises UserError."""
    if not site.service.url:
        return NOTHING_KNOWN, ()
    service = of_site(site, timeout=_SECONDS)
    problems = []
    try:
        nodes = service.bad_nodes()
    except UserError as error:
        return NOTHING_KNOWN, (f"which nodes are avoided, and what was measured, is not known: {error.what}",)
    curves = Curves(())
    try:
        curves = service.curves()
    except UserError as error:
        problems.append(f"what was measured of your workloads is not known: {error.what}")
    found: list[AvoidRecord | WorkloadRecord] = [*_avoided(site.cluster, nodes)]
    found += _learnt(site.cluster, uid, curves)
    return Profiles.of(found, site.cluster), tuple(problems)


def _avoided(cluster: str, nodes: BadNodes) -> Iterator[AvoidRecord]:
    seen = set()
    for one in nodes.nodes:
        if one.avoided and (one.partition, one.node) not in seen:
            seen.add((one.partition, one.node))
            yield AvoidRecord(cluster, one.partition, one.node, why_avoided(one.reason))


def _learnt(cluster: str, uid: int, curves: Curves) -> Iterator[WorkloadRecord]:
    for one in curves.curves:
        yield from records_of(cluster, uid, one)
