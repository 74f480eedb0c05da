"""The nodes that jobs keep off, as the service tells any user, for who works a decision out beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gsub.errors import UserError
from gsub.service import of_site
from site_configs.site_model import Site
from slurm_plugins.decide.context import NOTHING_KNOWN, Knowledge, Workload
from slurm_plugins.decide.request import Request
from slurm_plugins.service.learnt import why_avoided

__all__ = ["avoided"]

_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class _Avoided:
    """A `Knowledge` of nodes alone: partition -> node -> why, the worst first."""

    nodes: Mapping[str, Mapping[str, str]]

    def workload(self, request: Request, gpu_type: str) -> Workload | None:
        return None

    def avoid(self, partition: str) -> Mapping[str, str]:
        return self.nodes.get(partition, {})


def avoided(site: Site) -> tuple[Knowledge, tuple[str, ...]]:
    """What is to be avoided, and what is to be said where that is not known. Never raises UserError."""
    if not site.service.url:
        return NOTHING_KNOWN, ()
    try:
        found = of_site(site, timeout=_SECONDS).bad_nodes()
    except UserError as error:
        return NOTHING_KNOWN, (f"which nodes are avoided is not known: {error.what}",)
    nodes: dict[str, dict[str, str]] = {}
    for one in found.nodes:
        if one.avoided:
            nodes.setdefault(one.partition, {}).setdefault(one.node, why_avoided(one.reason))
    return _Avoided(nodes), ()
