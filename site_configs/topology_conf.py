"""topology.conf(5): the lines of topology/tree, topology/block and topology/ring.

The lexical rules are Slurm's (src/common/parse_config.c): ``#`` starts a comment, a backslash at the end
joins lines, keys ignore case, values may be quoted, blanks may stand around ``=``, ``Include`` takes a path
relative to the including file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from site_configs.textfile import read_text
from site_configs.topology import Topology, TopologyError
from site_configs.topology_entries import Entry, block_of, block_sizes, islands_of, meant, tree_of

__all__ = ["load", "parse"]

MAX_BYTES = 16 << 20
_MAX_INCLUDES = 8

_PAIR = re.compile(r"\s*([A-Za-z]\w*)\s*=\s*(?:\"([^\"]*)\"|(\S*))")
_INCLUDE = re.compile(r"\s*include\s+(\S+)\s*$", re.IGNORECASE)
_COMMENT = re.compile(r"(?<!\\)#.*")
_JOINED = re.compile(r"(?<!\\)((?:\\\\)*)\\\s*$")

# First key of a line -> the other keys that it may have. Slurm refuses others; we do so only for a near miss,
# since newer releases add keys.
_LINES = {
    "switchname": ("switches", "nodes", "linkspeed"),
    "blockname": ("nodes",),
    "ringname": ("nodes",),
    "blocksizes": (),
}
_SPELLED = {
    "switchname": "SwitchName",
    "blockname": "BlockName",
    "ringname": "RingName",
    "blocksizes": "BlockSizes",
    "switches": "Switches",
    "nodes": "Nodes",
    "linkspeed": "LinkSpeed",
}


@dataclass(frozen=True, slots=True)
class _Line:
    file: str
    number: int
    text: str

    def error(self, problem: str, remedy: str) -> TopologyError:
        return TopologyError(problem, remedy, file=self.file, line=self.number, text=self.text)


def load(path: str | os.PathLike[str]) -> Topology:
    """The topology in a file. Raises TopologyError, for an unreadable file too."""
    path = Path(path)
    return _topology(_file_lines(path, ()), os.fspath(path))


def parse(text: str, file: str = "topology.conf", folder: str | os.PathLike[str] = ".") -> Topology:
    """The topology in a text called `file`, whose Includes start at `folder`. Raises TopologyError."""
    return _topology(_lines(text, file, Path(folder), ()), file)


def _file_lines(path: Path, above: tuple[Path, ...]) -> Iterator[_Line]:
    try:
        text = read_text(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    yield from _lines(text, os.fspath(path), path.parent, (*above, path.resolve()))


def unreadable(path: Path, error: OSError | ValueError) -> TopologyError:
    """The error for a file that could not be read at all."""
    why = (error.strerror if isinstance(error, OSError) else "") or str(error)
    return TopologyError(
        f"the topology cannot be read: {why}",
        "Check the path (topology.file in the site file) and its permissions.",
        file=str(path),
    )


def _lines(text: str, file: str, folder: Path, above: tuple[Path, ...]) -> Iterator[_Line]:
    """Logical lines that say something, with the number of their first physical line."""
    parts: list[str] = []
    first = 0
    for number, physical in enumerate(text.splitlines(), start=1):
        first = first if parts else number
        content = _COMMENT.sub("", physical)
        joined = _JOINED.search(content)
        parts.append(content[: joined.start(1)] + joined[1] if joined else content)
        if joined:
            continue
        line = _Line(file, first, "".join(parts).strip())
        parts = []
        if line.text:
            yield from _include(line, folder, above)
    if parts and "".join(parts).strip():
        yield _Line(file, first, "".join(parts).strip())


def _include(line: _Line, folder: Path, above: tuple[Path, ...]) -> Iterator[_Line]:
    match = _INCLUDE.match(line.text)
    if match is None:
        yield line
        return
    path = folder / match[1]
    if path.resolve() in above or len(above) >= _MAX_INCLUDES:
        raise line.error("this Include never ends", "Remove the Include that leads back to its own file.")
    if not path.is_file():
        raise line.error(
            f"the included file {path} does not exist",
            "Correct the path; it is relative to this file's folder.",
        )
    yield from _file_lines(path, above)


def _topology(lines: Iterator[_Line], file: str) -> Topology:
    found: dict[str, list[Entry]] = {}
    sizes: tuple[int, ...] = ()
    first: _Line | None = None
    for line in lines:
        key, pairs = _pairs(line)
        if key == "blocksizes":
            sizes = _sizes(line, pairs[key])
        else:
            entry = Entry(
                line.file,
                line.number,
                line.text,
                pairs[key],
                pairs.get("nodes", ""),
                pairs.get("switches", ""),
            )
            if found and key not in found:
                here, there = _SPELLED[key], _SPELLED[next(iter(found))]
                raise line.error(
                    f"{here} in a file of {there} lines", "One topology.conf describes one kind of topology."
                )
            found.setdefault(key, []).append(entry)
        first = first or line
    if (blocks := found.get("blockname")) is not None:
        return block_of(blocks, sizes)
    if sizes and first:
        raise first.error("BlockSizes without a block", "Add BlockName= lines, or remove BlockSizes.")
    if (switches := found.get("switchname")) is not None:
        return tree_of(switches)
    if (rings := found.get("ringname")) is not None:
        return islands_of("ring", rings)
    raise TopologyError(
        "the topology is empty",
        "Add SwitchName=, BlockName= or RingName= lines, or take topology.file out of the site file.",
        file=file,
    )


def _pairs(line: _Line) -> tuple[str, dict[str, str]]:
    """(first key, all keys and values), keys in lower case."""
    pairs: dict[str, str] = {}
    at = 0
    while at < len(line.text):
        match = _PAIR.match(line.text, at)
        if match is None:
            raise line.error(
                f"{line.text[at:].split()[0]!r} is not Key=Value",
                "Write lines like: SwitchName=leaf1 Nodes=n[1-4]",
            )
        key, value = match[1].lower(), match[2] if match[2] is not None else match[3]
        if key in pairs:
            raise line.error(f"{match[1]} stands twice in one line", "Join the two values with a comma.")
        if not value and key != "linkspeed":
            raise line.error(f"{match[1]}= has no value", "Give it one, or remove the key.")
        pairs[key] = value
        at = match.end()
        while at < len(line.text) and line.text[at].isspace():
            at += 1
    key = next(iter(pairs))
    if key not in _LINES:
        raise line.error(
            f"a line cannot start with {key}{meant(key, _LINES)}",
            "Start it with SwitchName=, BlockName=, BlockSizes=, RingName= or Include.",
        )
    for other in list(pairs)[1:]:
        if other not in _LINES[key] and (hint := meant(other, (*_LINES[key], *_LINES))):
            raise line.error(f"{other}= is no key of a {_SPELLED[key]} line{hint}", "Correct the key.")
    return key, pairs


def _sizes(line: _Line, value: str) -> tuple[int, ...]:
    try:
        return block_sizes(value.split(","))
    except ValueError as error:
        raise line.error(str(error), "Write numbers of nodes, smallest first: BlockSizes=4,16") from None
