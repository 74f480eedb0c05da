"""topology.yaml(5) of Slurm 25.05 and newer: named topologies, each a tree, blocks, flat, rings or 3D tori.

The file is read as YAML nodes, not as Python objects, so that every error has its line. Aliases are refused:
a hostlist needs none, and nested ones can grow without bound.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from site_configs.textfile import read_text
from site_configs.topology import Topologies, Topology, TopologyError
from site_configs.topology_conf import MAX_BYTES, unreadable
from site_configs.topology_entries import Entry, block_of, block_sizes, islands_of, meant, tree_of

__all__ = ["load", "parse"]


def load(path: str | os.PathLike[str], nodes: Iterable[str] = ()) -> Topologies:
    """The topologies in a file; `nodes` are the cluster's, for flat ones. Raises TopologyError."""
    try:
        text = read_text(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise unreadable(Path(path), error) from None
    return parse(text, os.fspath(path), nodes)


def parse(text: str, file: str = "topology.yaml", nodes: Iterable[str] = ()) -> Topologies:
    """The topologies in a text; `file` is its name in errors. Raises TopologyError."""
    nodes = tuple(nodes)
    by_name: dict[str, Topology] = {}
    default = ""
    for item in _compose(text, file).items("a list of topologies"):
        fields = item.fields(("topology", "cluster_default", *_KINDS))
        name = fields["topology"].word() if "topology" in fields else ""
        if not name:
            raise item.error("a topology without a name", "Start it with: - topology: NAME")
        if name in by_name:
            raise item.error(f"topology {name} is defined twice", "Give each topology a name of its own.")
        kinds = [kind for kind in _KINDS if kind in fields]
        if len(kinds) != 1:
            has = f"both {kinds[0]} and {kinds[1]}" if kinds else "no type"
            raise item.error(f"topology {name} has {has}", f"Give it exactly one of {', '.join(_KINDS)}.")
        by_name[name] = _KINDS[kinds[0]](fields[kinds[0]], name, nodes)
        if not default and "cluster_default" in fields and fields["cluster_default"].truth():
            default = name
    if not by_name:
        raise TopologyError(
            "the topology is empty", "Add a topology: see the example in topology.yaml(5).", file=file
        )
    return Topologies(by_name, default or next(iter(by_name)))


@dataclass(frozen=True, slots=True)
class _View:
    """A YAML node with its place, read by what is expected there."""

    node: yaml.Node
    file: str
    source: str

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    def error(self, problem: str, remedy: str) -> TopologyError:
        lines = self.source.splitlines()
        text = lines[self.line - 1] if self.line <= len(lines) else ""
        return TopologyError(problem, remedy, file=self.file, line=self.line, text=text)

    def _at(self, node: yaml.Node) -> _View:
        return _View(node, self.file, self.source)

    def items(self, what: str) -> list[_View]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error(
                f"{what} is expected here", "Write it as a YAML list: lines that start with a dash."
            )
        return [self._at(node) for node in self.node.value]

    def fields(self, known: tuple[str, ...]) -> dict[str, _View]:
        """The entries of a mapping. An unknown key is left to Slurm, except a near miss of a known one."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("keys and values are expected here", f"Write lines like  {known[0]}: ...")
        fields: dict[str, _View] = {}
        for key_node, value in self.node.value:
            key = self._at(key_node)
            name = key.word()
            if name in fields:
                raise key.error(f"{name} stands twice", "Remove one of them.")
            if name not in known and (hint := meant(name, known)):
                raise key.error(f"{name} is no key here{hint}", f"The keys are {', '.join(known)}.")
            fields[name] = self._at(value)
        return fields

    def word(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(
                "one word is expected here", "Write a name or a hostlist, without dashes or keys."
            )
        return str(self.node.value).strip()

    def truth(self) -> bool:
        word = self.word().lower()
        if word not in ("true", "false", "yes", "no", "on", "off"):
            raise self.error(f"{word!r} is neither true nor false", "Write true or false.")
        return word in ("true", "yes", "on")

    def hostlist(self) -> str:
        """A hostlist, or a list of them."""
        if isinstance(self.node, yaml.SequenceNode):
            return ",".join(item.word() for item in self.items("a list of nodes"))
        return self.word()

    def entry(self, key: str, *others: str) -> Entry:
        """A named entry with `nodes`, and what else its mapping may have."""
        fields = self.fields((key, "nodes", *others))
        if key not in fields:
            raise self.error(f"a {key} without a name", f"Start it with: - {key}: NAME")
        text = {word: fields[word].hostlist() for word in ("nodes", "children") if word in fields}
        nodes = ",".join(filter(None, [text.get("nodes", ""), *self._regions(fields)]))
        return Entry(self.file, self.line, _flow(fields), fields[key].word(), nodes, text.get("children", ""))

    def _regions(self, fields: dict[str, _View]) -> Iterable[str]:
        """Nodes of a torus that are given by region."""
        if "regions" in fields:
            for region in fields["regions"].items("a list of regions"):
                inside = region.fields(("anchor", "dims", "nodes"))
                if "nodes" in inside:
                    yield inside["nodes"].hostlist()


def _flow(fields: dict[str, _View]) -> str:
    return ", ".join(
        f"{key}: {view.node.value}" for key, view in fields.items() if isinstance(view.node, yaml.ScalarNode)
    )


def _compose(text: str, file: str) -> _View:
    """The root node. Raises TopologyError for what is not YAML, with the parser's line."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                line = event.start_mark.line + 1 if event.start_mark else 0
                raise TopologyError(
                    "a YAML alias", "Write the value out where it is used.", file=file, line=line
                )
        root = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        said = getattr(error, "problem", None) or "unreadable characters"
        lines = text.splitlines()
        at = lines[mark.line] if mark and mark.line < len(lines) else ""
        raise TopologyError(
            f"not YAML: {said}",
            "Check indentation, colons and brackets.",
            file=file,
            line=mark.line + 1 if mark else 0,
            text=at,
        ) from None
    except RecursionError:
        raise TopologyError(
            "not a topology: nested too deeply", "See the example in topology.yaml(5).", file=file
        ) from None
    if root is None:
        raise TopologyError(
            "the topology is empty", "Add a topology: see the example in topology.yaml(5).", file=file
        )
    return _View(root, file, text)


def _tree(view: _View, name: str, _nodes: tuple[str, ...]) -> Topology:
    switches = _listed(view, "switches", "tree")
    return tree_of([item.entry("switch", "children") for item in switches], name, empty_ok=True)


def _block(view: _View, name: str, _nodes: tuple[str, ...]) -> Topology:
    blocks = _listed(view, "blocks", "block", "block_sizes")
    fields = view.fields(("blocks", "block_sizes"))
    sizes: tuple[int, ...] = ()
    if (listed := fields.get("block_sizes")) is not None:
        try:
            sizes = block_sizes([item.word() for item in listed.items("a list of block sizes")])
        except ValueError as error:
            raise listed.error(str(error), "Write numbers of nodes, smallest first, like 4 and 16.") from None
    return block_of([item.entry("block") for item in blocks], sizes, name)


def _flat(view: _View, name: str, nodes: tuple[str, ...]) -> Topology:
    if isinstance(view.node, yaml.ScalarNode) and not view.truth():
        raise view.error(
            f"topology {name} has flat: false, and so no type", "Write flat: true, or another type."
        )
    return Topology.flat(nodes, name)


def _ring(view: _View, name: str, _nodes: tuple[str, ...]) -> Topology:
    return islands_of("ring", [item.entry("ring") for item in _listed(view, "rings", "ring")], name)


def _torus3d(view: _View, name: str, _nodes: tuple[str, ...]) -> Topology:
    return islands_of(
        "torus3d",
        [item.entry("name", "dims", "regions", "placements") for item in _listed(view, "toruses", "torus3d")],
        name,
    )


def _listed(view: _View, key: str, kind: str, *others: str) -> list[_View]:
    fields = view.fields((key, *others))
    items = fields[key].items(f"a list of {key}") if key in fields else []
    if not items:
        raise view.error(f"{kind} lists no {key}", f"Add {key}: see the example in topology.yaml(5).")
    return items


_KINDS: dict[str, Callable[[_View, str, tuple[str, ...]], Topology]] = {
    "tree": _tree,
    "block": _block,
    "flat": _flat,
    "ring": _ring,
    "torus3d": _torus3d,
}
