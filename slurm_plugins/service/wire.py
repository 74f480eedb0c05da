"""What the looking process hands to gsubd: a question and a report, as JSON on its standard input and output.

Looking at 10,000 nodes is a second of Python; done in gsubd's own process, even in a thread, it holds submissions up
for tens of milliseconds [measured]. What crosses is small: kinds of nodes, leaves, the submissions that decisions
wait for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

import msgspec

from site_configs.topology import Topology
from slurm_plugins.decide.context import SlurmFacts
from slurm_plugins.decide.inventory import Inventory, Kind, Pool
from slurm_plugins.limits.records import NO_LIMITS, Association, Associations, Limits, Qos
from slurm_plugins.service.patience import COMMAND_SECONDS
from slurm_plugins.service.submitted import Submission

__all__ = ["Question", "Report", "decode_question", "decode_report", "encode_question", "encode_report"]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to look at.

    `site` is the text of the site file that gsubd took, `site_path` where it stands (relative paths start there).
    `jobs_since` asks for the submissions since then (seconds since the epoch; None: for none), those of `uids` where
    these are named; `queue_seconds` is the limit of time for them. `limits` asks for those of accounting.
    """

    site: str
    site_path: str
    jobs_since: float | None = None
    uids: tuple[int, ...] | None = None
    limits: bool = False
    queue_seconds: float = COMMAND_SECONDS


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen. `error`, `limits_error` and `jobs_error` are sentences: what they stand for is not known.

    `trouble` is something for the site's people that leaves the rest as it is (a topology that cannot be read).
    `gpus` is how many there are in each state (`look.gpus_by_state`). `unread` counts rows that could not be read and
    were left out (`client.tables.Unread`), of which `unread_example` is one.
    `queue_took` is the seconds that reading jobs took; `queue_late`: they were not read within the limit.
    """

    inventory: Inventory | None = None
    associations: Associations | None = None
    limits_error: str = ""
    gpus: dict[str, int] = msgspec.field(default_factory=dict)
    facts: SlurmFacts = SlurmFacts()
    slurm_uid: int | None = None
    error: str = ""
    trouble: str = ""
    jobs_at: float = 0.0
    jobs: tuple[Submission, ...] | None = None
    jobs_error: str = ""
    queue_took: float | None = None
    queue_late: bool = False
    unread: dict[str, int] = msgspec.field(default_factory=dict)
    unread_example: str = ""


def encode_question(question: Question) -> bytes:
    """For the looking process."""
    return msgspec.json.encode(question)


def decode_question(data: bytes) -> Question:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(data, type=Question)


class _Wire(msgspec.Struct, frozen=True, kw_only=True):
    """A report as it travels: an inventory is taken apart, its topologies stand once each."""

    pools: list[dict[str, Any]] | None
    default: str
    topologies: list[dict[str, Any]]
    facts: SlurmFacts
    slurm_uid: int | None
    error: str
    trouble: str
    jobs_at: float
    jobs_error: str
    queue_took: float | None
    queue_late: bool
    limits_error: str
    has_jobs: bool
    limits: list[Limits]
    qos: list[Qos]
    associations: int | None
    """In how many of the lines that follow they stand."""
    gpus: dict[str, int]
    unread: dict[str, int]
    unread_example: str


def encode_report(report: Report) -> bytes:
    """For gsubd: lines, the first with all but the jobs, the others with `_PART` jobs each."""
    topologies: dict[int, Topology] = {}
    pools = None
    if report.inventory is not None:
        pools = []
        for pool in report.inventory.pools.values():
            topologies.setdefault(id(pool.topology), pool.topology)
            pools.append(
                _public(pool)
                | {"kinds": [_public(kind) for kind in pool.kinds]}
                | {"topology": list(topologies).index(id(pool.topology))}
            )
    limits, associations = _taken_apart(report.associations)
    first = _Wire(
        limits=limits,
        qos=[] if report.associations is None else list(report.associations.qos.values()),
        associations=None if report.associations is None else len(associations),
        pools=pools,
        default=report.inventory.default if report.inventory is not None else "",
        topologies=[_public(topology) for topology in topologies.values()],
        has_jobs=report.jobs is not None,
        **{name: getattr(report, name) for name in _PLAIN},
    )
    jobs = report.jobs or ()
    parts = (jobs[start : start + _PART] for start in range(0, len(jobs), _PART))
    return msgspec.json.Encoder().encode_lines((first, *associations, *parts))


def decode_report(data: bytes) -> Report:
    """Raises msgspec.DecodeError, and whatever a report that was not made by `encode_report` leads to.

    Line by line: the event loop waits for as long as one call of msgspec takes, even when this is run in a thread.
    """
    first, *parts = data.splitlines()
    wire = msgspec.json.decode(first, type=_Wire)
    associations, parts = parts[: wire.associations or 0], parts[wire.associations or 0 :]
    jobs = tuple(chain.from_iterable(map(_JOBS.decode, parts))) if wire.has_jobs else None
    inventory = None
    if wire.pools is not None:
        topologies = [_topology(one) for one in wire.topologies]
        pools = {pool["name"]: _pool(pool, topologies) for pool in wire.pools}
        inventory = Inventory(MappingProxyType(pools), wire.default)
    return Report(
        inventory=inventory,
        jobs=jobs,
        associations=None if wire.associations is None else _put_together(wire, associations),
        **{name: getattr(wire, name) for name in _PLAIN},
    )


_PART: Final = 200
_ASSOCIATIONS: Final = msgspec.json.Decoder(tuple[tuple[Association, int], ...])
_JOBS: Final = msgspec.json.Decoder(tuple[Submission, ...])
_PLAIN = (
    "facts",
    "gpus",
    "slurm_uid",
    "error",
    "trouble",
    "jobs_at",
    "jobs_error",
    "queue_took",
    "queue_late",
    "limits_error",
    "unread",
    "unread_example",
)


def _taken_apart(told: Associations | None) -> tuple[list[Limits], list[list[tuple[Association, int]]]]:
    """Associations some to a line, without their limits, of which few differ: those stand once each."""
    if told is None:
        return [], []
    limits: dict[int, int] = {}
    different: list[Limits] = []
    every = []
    for one in chain(told.accounts.values(), told.users.values()):
        if id(one.limits) not in limits:
            limits[id(one.limits)] = len(different)
            different.append(one.limits)
        every.append((replace(one, limits=NO_LIMITS), limits[id(one.limits)]))
    return different, [every[start : start + _PART] for start in range(0, len(every), _PART)]


def _put_together(wire: _Wire, lines: Sequence[bytes]) -> Associations:
    every = chain.from_iterable(map(_ASSOCIATIONS.decode, lines))
    return Associations.of((replace(one, limits=wire.limits[which]) for one, which in every), wire.qos)


def _public(value: Pool | Kind | Topology) -> dict[str, Any]:
    """The fields of a dataclass that its constructor takes; what it remembers for itself stays behind."""
    return {one.name: getattr(value, one.name) for one in fields(value) if not one.name.startswith("_")}


def _topology(given: Mapping[str, Any]) -> Topology:
    leaves = {leaf: frozenset(nodes) for leaf, nodes in given["leaves"].items()}
    return Topology(**{**given, "leaves": leaves, "block_sizes": tuple(given["block_sizes"])})


def _pool(given: Mapping[str, Any], topologies: list[Topology]) -> Pool:
    kinds = tuple(_kind(kind) for kind in given["kinds"])
    billing = tuple((name, weight) for name, weight in given["billing"])
    return Pool(**{**given, "kinds": kinds, "billing": billing, "topology": topologies[given["topology"]]})


def _kind(given: Mapping[str, Any]) -> Kind:
    types = tuple((name, count) for name, count in given["gpu_types"])
    return Kind(
        **{
            **given,
            "gpu_types": types,
            "features": frozenset(given["features"]),
            "nodes": tuple(given["nodes"]),
        }
    )
