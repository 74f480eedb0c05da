"""What a decision may know besides the request: a frozen snapshot that the service swaps whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from site_configs.site_model import Site
from slurm_plugins.decide.inventory import EMPTY, Inventory
from slurm_plugins.decide.request import Request
from slurm_plugins.limits.billing import How
from slurm_plugins.limits.records import Associations

__all__ = ["NOTHING_KNOWN", "Context", "Curve", "Knowledge", "SlurmFacts", "Workload"]


@dataclass(frozen=True, slots=True)
class SlurmFacts:
    """What Slurm's configuration says that decisions rest on.

    `release` is (major, minor), (0, 0) when not known. `max_switch_wait` is SchedulerParameters' in seconds.
    `topology_plugin` is tree, block, flat, ... without "topology/"; flat also stands for none and default.
    `memory_tracked`: SelectTypeParameters counts memory, None when not known; the defaults are DefMemPer* outside of
    partitions, in MiB.
    `limits_enforced`: AccountingStorageEnforce has users held to the limits of accounting. `billed` is how weights
    make a charge.
    `admin_comment_free`: there is no EpilogSlurmctld, which may keep words of its own in a job's AdminComment.
    """

    release: tuple[int, int] = (0, 0)
    max_switch_wait: int = 300
    topology_plugin: str = "flat"
    memory_tracked: bool | None = None
    default_memory_per_cpu: int | None = None
    default_memory_per_node: int | None = None
    admin_comment_free: bool = True
    limits_enforced: bool = False
    billed: How = "sum"


@dataclass(frozen=True, slots=True)
class Curve:
    """Throughput of a workload over CPUs for each GPU (Synergy, section 3.1).

    `points` are (CPUs per GPU, throughput), by CPUs, ascending. Only how throughputs compare with one another counts:
    they may be shares of the best, or of that with the GPU-proportional share. `memory` is (MiB per GPU, throughput)
    likewise; empty when it was not measured.
    """

    points: tuple[tuple[float, float], ...]
    memory: tuple[tuple[int, float], ...] = ()
    uncertainty: float = 0.0
    """Standard error of the best throughput, as a share of it."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What the store knows of a workload: None is "not known".

    `slowdown` is run time spread over run time compact, `run_time` the expected run time in seconds, `memory_peak` MiB
    for each GPU, `runs` the attempts that the curve rests on. `source` says where slowdown and run time are from:
    "workload", "class" or "site". `other_arguments`: the curve is that of runs of the same script which may have been
    called with others.
    """

    key: str
    runs: int = 0
    slowdown: float | None = None
    run_time: int | None = None
    memory_peak: int | None = None
    curve: Curve | None = None
    source: str = "workload"
    other_arguments: bool = False


class Knowledge(Protocol):
    """What was learnt, as a snapshot in memory: no I/O behind these."""

    def workload(self, request: Request, gpu_type: str) -> Workload | None:
        """What is known of the workload that this request belongs to, on that type of GPU; None for
        nothing."""
        ...

    def avoid(self, partition: str) -> Mapping[str, str]:
        """Node -> one sentence why jobs should avoid it."""
        ...


class _Nothing:
    """A store that has seen nothing yet."""

    def workload(self, request: Request, gpu_type: str) -> Workload | None:
        return None

    def avoid(self, partition: str) -> Mapping[str, str]:
        return {}


NOTHING_KNOWN: Final[Knowledge] = _Nothing()


@dataclass(frozen=True, slots=True)
class Context:
    """Site, cluster, Slurm, and what was learnt. Nothing in it changes."""

    site: Site
    inventory: Inventory = EMPTY
    slurm: SlurmFacts = field(default_factory=SlurmFacts)
    knowledge: Knowledge = NOTHING_KNOWN
    associations: Associations | None = None
    """The limits of accounting; None where they are not known."""
