"""Where a batch came from: whether the address of its connection is that of the node that it speaks for.

MUNGE says that root speaks, not on which host: without this, root on one node could speak for all others. Slurm knows
where its nodes are (NodeAddr, NodeHostName). A batch from the address of other nodes is refused. From an address that
Slurm has for no node it is taken, unless the site says "strict": a node may have several networks, and nodes behind a
gateway show the gateway's.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from profiler.logs import one_line
from slurm_plugins.service.keeper.refusal import RefusedError

__all__ = ["Checked", "ElsewhereError", "Place", "Whence", "plain_address"]

_log = logging.getLogger("gsubd.keeper")

Checked: TypeAlias = Literal["off", "known", "strict"]
Place: TypeAlias = Literal["own", "other", "unknown"]

_PEERS: Final = 10_000
"""Addresses of no node that are remembered; anybody with root on a host can show many."""


class ElsewhereError(RefusedError):
    """A batch of a node, from where that node is not."""


def plain_address(text: str) -> str | None:
    """An IP address in its shortest form; None for what is none, or is this host's own (it may be anybody's).

    >>> plain_address("::ffff:10.0.0.7"), plain_address("fe80::1%eth0"), plain_address("127.0.1.1")
    ('10.0.0.7', 'fe80::1', None)
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return None if address.is_loopback or address.is_unspecified else str(address)


class Whence:
    """Judges batches by the addresses that Slurm's nodes have; until those are known nothing is concluded."""

    def __init__(self, checked: Checked) -> None:
        self._checked = checked
        self._nodes: dict[str, frozenset[str]] | None = None
        self._spoke: dict[str, str] = {}
        self._told: set[str] = set()

    @property
    def wants_addresses(self) -> bool:
        """Whether anything is checked at all."""
        return self._checked != "off"

    def learn(self, addresses: Mapping[str, Iterable[str]]) -> None:
        """The addresses of each node, as Slurm's names were found. Several nodes may share one."""
        nodes: dict[str, set[str]] = {}
        for node, some in addresses.items():
            for address in filter(None, map(plain_address, some)):
                nodes.setdefault(address, set()).add(node)
        self._nodes = {address: frozenset(names) for address, names in nodes.items()}

    def judge(self, peer: str, node: str) -> Place:
        """Whose address `peer` is, seen from a batch of `node`."""
        address = plain_address(peer)
        there = self._nodes.get(address, None) if self._nodes is not None and address is not None else None
        if there is None:
            return "unknown"
        return "own" if node in there else "other"

    def check(self, peer: str, node: str) -> Place:
        """Judge a batch, and let it pass or not. Raises ElsewhereError (403; 503 while nothing is known yet)."""
        if self._checked == "off":
            return "unknown"
        place = self.judge(peer, node)
        if place == "unknown":
            self._say(peer, node)
        elif place == "other":
            self._warn(
                peer, f"says that it is {node}, and is another node's address: its records are not taken"
            )
        if place == "other" or (place == "unknown" and self._checked == "strict"):
            if self._nodes is None:
                raise ElsewhereError(503, "the nodes' addresses are not known yet", "Slurm is being asked.")
            raise ElsewhereError(
                403,
                f"{one_line(peer, 64)} is not where Slurm has {one_line(node, 64)}",
                "Compare NodeAddr in slurm.conf; behind a gateway set service.node_addresses in the site file.",
            )
        return place

    def _say(self, peer: str, node: str) -> None:
        """Once, when an address of no node speaks for several: a gateway, or somebody who lies."""
        if plain_address(peer) is None or self._nodes is None:
            return
        if peer in self._spoke and self._spoke[peer] != node:
            self._warn(peer, f"is no node's address by Slurm, and speaks for {self._spoke[peer]} and {node}")
        elif len(self._spoke) < _PEERS:
            self._spoke.setdefault(peer, node)

    def _warn(self, peer: str, what: str) -> None:
        if peer not in self._told and len(self._told) < _PEERS:
            self._told.add(peer)
            _log.warning("%s %s", one_line(peer, 64), one_line(what, 300))
