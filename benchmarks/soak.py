"""Ten thousand submissions with a service that misbehaves in every way in turn, then as many through an empty plugin.

    python -m benchmarks.soak [--slurm RELEASE] [--count N]

Every job must be accepted and be as the user wrote it, slurmctld must be the same process at the end, and its memory
must not grow by more than that of another one with the empty plugin. Exit 1 where one of these is not so.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.submit import cluster_for
from benchmarks.submitting import GPU, Bench, bench
from site_configs.devcluster import Cluster
from site_configs.devcluster.spec import RELEASES
from tests.slurm.decide.wicked import WICKED, Server

# One as it is shipped, for services that do not answer; one that never stops asking, for those that answer at once.
_SHIMS = """\
local patient, eager = dofile("{shim}/gsub.lua"), dofile("{shim}/gsub.lua")
patient.setup({{ socket = "{socket}" }})
eager.setup({{ socket = "{socket}", failures = 1e9 }})
ways.patient, ways.eager = patient.submit, eager.submit
"""
_SLOW = frozenset({"mute", "late", "a byte at a time"})
CLIENTS = 8
MORE = 1.10
"""How much more memory the plugin may take than the empty one: what malloc gives back differs from run to run."""


@dataclass(frozen=True)
class Soaked:
    """What became of one slurmctld: whether it lived, how many jobs it holds, and their shapes.

    `grown` is what it had grown by after each misbehaviour, in KiB.
    """

    grown: tuple[int, ...]
    lived: bool
    jobs: int
    shapes: frozenset[str]


def soak(bench: Bench, count: int, *, empty: bool) -> Soaked:
    """Submit, a share of it under each service that misbehaves; `empty`: as much through the empty plugin."""
    cluster = bench.cluster
    socket = cluster.paths.run / "gsub/soak.sock"
    shims = _SHIMS.format(shim=cluster.paths.libexec, socket=socket)
    bench.text = bench.text.replace("function slurm_job_submit", shims + "function slurm_job_submit")
    bench.load()
    process, before = cluster.daemons()["slurmctld"], memory(cluster)
    share = -(-count // (len(WICKED) + 1))
    grown = []
    for name in (*WICKED, "killed"):
        with _wicked(cluster, name, socket):
            way = "empty" if empty else "patient" if name in _SLOW else "eager"
            bench.submit(way, CLIENTS, 600, GPU, share)
        grown.append(memory(cluster) - before)
    return Soaked(tuple(grown), cluster.daemons().get("slurmctld") == process, *shapes(cluster))


@contextmanager
def _wicked(cluster: Cluster, name: str, path: Path) -> Iterator[None]:
    if name == "killed":  # its socket stays behind, nobody listens there
        yield
        return
    path.unlink(missing_ok=True)
    slurm = cluster.daemon_user("slurm")
    owner = cluster.daemon_user("gsub").uid if os.geteuid() == 0 else os.geteuid()
    server = Server(path, WICKED[name], owner=owner, group=slurm.gid)
    try:
        yield
    finally:
        server.close()


def memory(cluster: Cluster) -> int:
    """KiB that slurmctld holds (VmRSS)."""
    status = Path(f"/proc/{cluster.daemons()['slurmctld']}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def shapes(cluster: Cluster) -> tuple[int, frozenset[str]]:
    """How many jobs wait, and what they ask for: one text where none was changed."""
    said = cluster.run(
        ["squeue", "-h", "-o", "%D|%C|%m|%b|%l|%Q"], timeout=120, check=True
    ).stdout.splitlines()
    return len(said), frozenset(said)


def main() -> int:
    """Soak and tell."""
    parser = argparse.ArgumentParser(description="Submissions with services that misbehave.")
    parser.add_argument("--slurm", choices=RELEASES, default="host", help="release of the clusters")
    parser.add_argument("--count", type=int, default=10_000)
    asked = parser.parse_args()
    os.umask(0o022)
    found = []
    for empty in (False, True):
        with cluster_for(None, asked.slurm) as cluster, bench(cluster) as clients:
            found.append(soak(clients, asked.count, empty=empty))
        each = found[-1]
        print(
            f"{'empty plugin' if empty else 'plugin over services that misbehave'}: {each.jobs} jobs accepted,"
            f" {len(each.shapes)} shape(s), slurmctld {'is the same process' if each.lived else 'DIED'},"
            f" its memory +{each.grown[-1]} KiB, of that {second_half(each)} in the second half",
            flush=True,
        )
    plugin, bare = found
    # In the first half each takes what it takes once: buffers, Lua's heap. What goes on growing is a leak.
    more = second_half(plugin) / max(second_half(bare), 1)
    unharmed = (
        plugin.lived and plugin.jobs >= asked.count and plugin.shapes == bare.shapes and len(bare.shapes) == 1
    )
    fine = unharmed and more <= MORE
    print(f"growth in the second half x{more:.3f} (at most {MORE}): {'passed' if fine else 'FAILED'}")
    for at in range(0, len(plugin.grown), 5):
        print(
            f"  after {at + 1:>2} of {len(plugin.grown)}: {plugin.grown[at]:>6} KiB, {bare.grown[at]:>6} KiB"
        )
    return 0 if fine else 1


def second_half(soaked: Soaked) -> int:
    """KiB that it grew by in the second half."""
    return soaked.grown[-1] - soaked.grown[len(soaked.grown) // 2]


if __name__ == "__main__":
    sys.exit(main())
