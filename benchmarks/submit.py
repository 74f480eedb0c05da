"""What the plugin costs a submission: submissions a second with it and with an empty Lua plugin, in turns, in one run.

    python -m benchmarks.submit [--cluster NAME] [--slurm RELEASE] [--rounds N] [--gate] [--json]

A round submits held jobs through the plugin, through an empty one, and through the plugin with a service behind it that
decides nothing (the floor: what asking alone costs), in another order each time, as one client and as eight. Told are
the medians of the rounds' ratios and their quartiles, the time inside the plugin, what a hung service costs, and how a
decision's time grows with the cluster. Exit 1 when an aim is missed; with --gate when one of GATES is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from benchmarks import deciding
from benchmarks.submitting import CPU, GPU, NEW, Bench, bench
from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.spec import RELEASES, Release

LOADS = {"GPU job, 1 client": (1, GPU), "GPU job, 8 clients": (8, GPU), "new GPU job, 1 client": (1, NEW)}
LOADS |= {"CPU job, 1 client": (1, CPU), "CPU job, 8 clients": (8, CPU)}
BLOCK_S = 0.4

AIMS = {
    "GPU job, 1 client": 0.95,
    "GPU job, 8 clients": 0.80,
    "CPU job, 1 client": 0.97,
    "CPU job, 8 clients": 0.97,
    "hung, after 1 s": 0.90,
    "inside, p99 in ms": 3.0,
    "10,000 nodes, p50": 1.2,
    "10,000 nodes, p99": 1.2,
}
GATES = {
    # Far from the aims on purpose: a gate is for what has broken, and must hold on two cores that others use as well.
    # There a service that decides nothing costs one client three in a hundred submissions already.
    "GPU job, 1 client": 0.75,
    "GPU job, 8 clients": 0.65,
    "CPU job, 1 client": 0.80,
    "CPU job, 8 clients": 0.80,
    "hung, after 1 s": 0.70,
    "inside, p99 in ms": 20.0,
    "10,000 nodes, p50": 2.0,
    "10,000 nodes, p99": 3.0,
}
_AT_MOST = ("inside", "10,000")
"""Names that begin so are met from below."""


@dataclass(frozen=True)
class Figure:
    """One number and its aim: `low` and `high` are the quartiles of its rounds."""

    name: str
    value: float
    low: float
    high: float
    about: str = ""

    @property
    def aim(self) -> float | None:
        """None for what is only told."""
        return AIMS.get(self.name)

    def meets(self, bounds: dict[str, float]) -> bool:
        """Whether the value keeps its bound, where it has one."""
        bound = bounds.get(self.name)
        if bound is None:
            return True
        return self.value <= bound if self.name.startswith(_AT_MOST) else self.value >= bound


def figure(name: str, values: Sequence[float], about: str = "") -> Figure:
    """The median of the rounds and their quartiles."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return Figure(name, middle, low, high, about)


def rates(bench: Bench, rounds: int) -> Iterator[Figure]:
    """With the plugin, without, and with a service that decides nothing."""
    found: dict[tuple[str, str], list[float]] = {}
    ways = ("plugin", "empty", "floor")
    for number in range(rounds):
        turn = number % len(ways)
        order = ways[turn:] + ways[:turn]
        for load, (clients, words) in LOADS.items():
            for way in order if number % 2 else reversed(order):
                if way != "floor" or words is GPU:
                    rate = bench.submit(way, clients, BLOCK_S, words).rate
                    found.setdefault((way, load), []).append(rate)
    for load, (_, words) in LOADS.items():
        base = found["empty", load]
        for way in ("plugin", "floor") if words is GPU else ("plugin",):
            ours = found[way, load]
            about = f"{statistics.median(ours):.0f}/s beside {statistics.median(base):.0f}/s"
            name = load if way == "plugin" else f"floor: {load}"
            yield figure(name, [a / b for a, b in zip(ours, base, strict=True)], about)


def inside(bench: Bench, rounds: int) -> Iterator[Figure]:
    """Milliseconds that slurmctld spends in the plugin for each GPU job, and with the floor behind it."""
    for clients in (1, 8):
        for _ in range(rounds):
            for way in ("timed plugin", "timed floor"):
                bench.submit(way, clients, BLOCK_S, GPU)
        for way, times in sorted(bench.times().items(), reverse=True):
            ordered = sorted(times[5:])
            middle, p99, most = percentile(ordered, 50), percentile(ordered, 99), ordered[-1]
            name = "inside, p99 in ms" if way == "plugin" else "floor: inside, p99 in ms"
            about = f"{clients} clients, {len(ordered)} jobs, p50 {middle:.2f} ms, most {most:.1f} ms"
            yield Figure(name if clients == 1 else f"{name}, 8 clients", p99, p99, p99, about)


def hung(bench: Bench, rounds: int) -> Iterator[Figure]:
    """The service is stopped in its tracks: the first second, and what comes after, beside the empty plugin."""
    first, after = [], []
    for number in range(rounds):
        bench.load()
        bench.submit("plugin", 1, 0.1, GPU)
        service = bench.cluster.daemons()["gsubd"]
        os.kill(service, signal.SIGSTOP)
        try:
            at_once = bench.submit("plugin", 1, 1.0, GPU).rate
            pairs = []
            for turn in range(6):
                order = ("plugin", "empty") if (turn + number) % 2 else ("empty", "plugin")
                found = {way: bench.submit(way, 1, BLOCK_S, GPU).rate for way in order}
                pairs.append((found["plugin"], found["empty"]))
        finally:
            os.kill(service, signal.SIGCONT)
        first.append(at_once / statistics.median(empty for _, empty in pairs))
        after += [plugin / empty for plugin, empty in pairs]
    yield figure("hung, first second", first)
    yield figure("hung, after 1 s", after)


def growth() -> Iterator[Figure]:
    """Small cluster and big one, in the service alone, with the socket, and for jobs that name nodes."""
    for name, times in (
        ("10,000 nodes", deciding.in_process()),
        ("over the socket, 10,000 nodes", deciding.over_the_socket()),
        ("job with -x, 10,000 nodes", deciding.in_process(1000, named=True)),
    ):
        small, big = (sorted(each) for each in times)
        for part in (50, 99):
            one, other = percentile(small, part), percentile(big, part)
            about = f"{other * 1e6:.0f} us beside {one * 1e6:.0f} us"
            yield Figure(f"{name}, p{part}", other / one, other / one, other / one, about)


def percentile(ordered: Sequence[float], part: int) -> float:
    """The value below which `part` in a hundred lie."""
    return ordered[min(len(ordered) - 1, len(ordered) * part // 100)]


@contextmanager
def cluster_for(name: str | None, release: Release) -> Iterator[Cluster]:
    """The cluster named, or one for this run alone."""
    if name is not None:
        yield Cluster.find(name)
        return
    spec = ClusterSpec(
        name=f"bench-{os.getpid()}", nodes=2, slurm=release, accounting=False, policy="enforce", agents=False
    )
    try:
        yield Cluster.up(spec)
    finally:
        Cluster.down(spec.name)


def tell(figures: Iterable[Figure]) -> None:
    """The table."""
    for each in figures:
        aim = ""
        if each.aim is not None:
            sign = "<=" if each.name.startswith(_AT_MOST) else ">="
            aim = f"   aim {sign} {each.aim}: {'met' if each.meets(AIMS) else 'MISSED'}"
        spread = f" ({each.low:.2f}-{each.high:.2f})" if each.low != each.high else ""
        print(f"{each.name:<36} {each.value:6.3f}{spread:<13} {each.about}{aim}")


def measure(bench: Bench, rounds: int) -> list[Figure]:
    """All of it."""
    return [*growth(), *rates(bench, rounds), *inside(bench, rounds // 2), *hung(bench, 3)]


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description="What the plugin costs a submission.")
    parser.add_argument(
        "--cluster", help="a development cluster that is up, in enforce (default: one of its own)"
    )
    parser.add_argument("--slurm", choices=RELEASES, default="host", help="release of the cluster")
    parser.add_argument("--rounds", type=int, help="of each load (24; 8 with --gate)")
    parser.add_argument("--gate", action="store_true", help="fail on the gates only, not on aims")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.umask(0o022)
    bounds, rounds = (GATES, asked.rounds or 8) if asked.gate else (AIMS, asked.rounds or 24)
    with cluster_for(asked.cluster, asked.slurm) as cluster, bench(cluster) as clients:
        figures = measure(clients, rounds)
        broken = {each.name for each in figures if not each.meets(bounds)}
        if asked.gate and broken:  # once more: what fails a gate must fail it twice
            print(
                f"measured again, for these missed their gates: {', '.join(sorted(broken))}", file=sys.stderr
            )
            figures = measure(clients, rounds)
            broken &= {each.name for each in figures if not each.meets(bounds)}
    if asked.json:
        print(json.dumps({"rounds": rounds, "figures": [asdict(each) for each in figures]}))
    else:
        tell(figures)
    for each in figures:
        if each.name in broken:
            what = "gate" if asked.gate else "aim"
            print(f"{what} missed: {each.name}: {each.value:.3f}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
