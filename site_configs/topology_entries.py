"""What topology.conf and topology.yaml share: entries with a name and nodes, and what may be wrong there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from site_configs.hostlist import HostlistError, expand
from site_configs.topology import Topology, TopologyError

__all__ = ["MAX_RING", "Entry", "block_of", "block_sizes", "islands_of", "meant", "tree_of"]

MAX_RING = 16
"""Nodes in one ring (topology.conf(5), topology/ring)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One switch, block or ring as it stands in a file; hostlists are not expanded yet."""

    file: str
    line: int
    text: str
    name: str
    nodes: str = ""
    children: str = ""

    def error(self, problem: str, remedy: str) -> TopologyError:
        """What is wrong with this entry, with its place."""
        return TopologyError(problem, remedy, file=self.file, line=self.line, text=self.text)

    def expand(self, hostlist: str) -> tuple[str, ...]:
        """The names in one of this entry's hostlists. Raises TopologyError."""
        try:
            return expand(hostlist)
        except HostlistError as error:
            raise self.error(
                f"a bad hostlist, {error.text}: {error.problem}",
                "Write it as Slurm does, like n[1-8,12] or rack[1-4]n[01-16].",
            ) from None


def _by_name(entries: Sequence[Entry], what: str) -> dict[str, Entry]:
    """Entries by name. Raises TopologyError for none, a name used twice or a name that is a hostlist."""
    by_name: dict[str, Entry] = {}
    for entry in entries:
        if not entry.name or set(entry.name) & set("[],= \t"):
            raise entry.error(
                f"{entry.name!r} cannot name a {what}",
                f"Give each {what} a line and one plain name of its own.",
            )
        if (first := by_name.get(entry.name)) is not None:
            raise entry.error(
                f"{what} {entry.name} is defined twice, first in line {first.line}",
                "Rename one, or put its nodes into the other.",
            )
        by_name[entry.name] = entry
    return by_name


def tree_of(entries: Sequence[Entry], name: str = "", *, empty_ok: bool = False) -> Topology:
    """A tree from its switches; `empty_ok` where they may wait for dynamic nodes (25.05 and newer)."""
    switches = _by_name(entries, "switch")
    leaves: dict[str, tuple[str, ...]] = {}
    parents: dict[str, str] = {}
    for entry in entries:
        if entry.nodes and entry.children:
            raise entry.error(
                f"switch {entry.name} has both nodes and child switches",
                "Put the nodes under a leaf switch of their own.",
            )
        if not entry.children:
            if not entry.nodes and not empty_ok:
                raise entry.error(
                    f"switch {entry.name} has neither nodes nor child switches",
                    "Add Nodes= or Switches=, or remove the line.",
                )
            leaves[entry.name] = entry.expand(entry.nodes)
        for child in entry.expand(entry.children):
            if child not in switches:
                raise entry.error(
                    f"switch {child} is not defined",
                    f"Define it{meant(child, switches)}, or take it out of {entry.name}'s children.",
                )
            if child in parents:
                raise entry.error(
                    f"switch {child} is under two switches, {parents[child]} and {entry.name}",
                    "A tree has one way up: leave it under one of them.",
                )
            parents[child] = entry.name
    return _placed(lambda: Topology.tree(leaves, parents, name), switches)


def block_of(entries: Sequence[Entry], sizes: Sequence[int], name: str = "") -> Topology:
    """A block topology from its blocks in the order of the file; `sizes` come from `block_sizes`."""
    blocks = _by_name(entries, "block")
    return _placed(lambda: Topology.block({e.name: e.expand(e.nodes) for e in entries}, sizes, name), blocks)


def block_sizes(words: Sequence[str]) -> tuple[int, ...]:
    """BlockSizes in nodes: each a power of two times the one before (topology.conf(5)). Raises ValueError."""
    sizes: list[int] = []
    for word in words:
        if not (word.isdecimal() and len(word) <= 6 and int(word) > 0):
            raise ValueError(f"{word[:20]!r} is not a block size")
        size = int(word)
        ratio, rest = divmod(size, sizes[-1]) if sizes else (2, 0)
        if rest or ratio < 2 or ratio & (ratio - 1):
            raise ValueError(f"block size {size} is not {sizes[-1]} times 2, 4, 8...")
        sizes.append(size)
    return tuple(sizes)


def islands_of(kind: Literal["ring", "torus3d"], entries: Sequence[Entry], name: str = "") -> Topology:
    """Rings or 3D tori: each one a leaf, with no way between two."""
    by_name = _by_name(entries, "ring" if kind == "ring" else "torus")
    nodes = {entry.name: entry.expand(entry.nodes) for entry in entries}
    for entry in entries:
        if kind == "ring" and len(nodes[entry.name]) > MAX_RING:
            raise entry.error(
                f"ring {entry.name} has {len(nodes[entry.name])} nodes, Slurm takes {MAX_RING}",
                "Split it, or use topology/tree or topology/block.",
            )
    return _placed(lambda: Topology.islands(kind, nodes, name), by_name)


def meant(word: str, known: Iterable[str]) -> str:
    """`` (did you mean leaf1?)`` or nothing."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f" (did you mean {close[0]}?)" if close else ""


def _placed(build: Callable[[], Topology], entries: Mapping[str, Entry]) -> Topology:
    """Build, and give an error of the value the line of the entry that it names."""
    try:
        return build()
    except TopologyError as error:
        entry = entries.get(error.text)
        raise entry.error(error.problem, error.remedy) if entry else error from None
