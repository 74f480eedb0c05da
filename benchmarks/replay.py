"""The replay engine: how fast it is, how that grows, and Philly's trade of waiting for spread.

    python -m benchmarks.replay speed            jobs a second of CPU time on the Philly trace, by policy
    python -m benchmarks.replay growth [--most N]  with jobs and nodes, to a million jobs and 10,000 nodes; memory
    python -m benchmarks.replay philly [--cover 0.98]  delays by size and cause beside Table 2, waiting against spread
    python -m benchmarks.replay itp              the same trade on four ITP clusters

The traces are no part of gsub: see `benchmarks.traces` for how to get them.
A trace does not tell its cluster: nodes of 8 GPUs in racks of 16, the fewest racks whose GPUs cover what the jobs would
hold if none waited, in a share `--cover` of the time from the first arrival to the last; never fewer than the largest
job needs. Quotas of virtual clusters are in proportion to what each would hold at that quantile of its own, and no
smaller than its largest job.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from benchmarks.traces import add_data_option, find_trace
from slurm_plugins.replay.engine import replay
from slurm_plugins.replay.policy import Policy
from slurm_plugins.replay.traces.read import read
from slurm_plugins.replay.values import Cluster, Job, Replayed, Trace

RACK: Final = 16
SPEED: Final = (
    "fifo+pack",
    "fifo+pack+strict",
    "fifo+skip+strict",
    "fifo+easy+strict",
    "srtf+skip+strict",
    "tiresias+skip+strict",
    "philly",
    "philly+strict",
)
SIZES: Final = {"1": (1, 1), "2-4": (2, 4), "5-8": (5, 8), ">8": (9, 10**9)}
TABLE_2: Final = {"2-4": (5168, 7567), "5-8": (3793, 10928), ">8": (66, 3117)}
"""Occurrences of delay by fair share and by fragmentation (Philly, Table 2)."""
TRADE: Final = (
    "philly",
    "philly+strict",
    "philly+anywhere",
    "philly+retries=0",
    "philly+retries=1",
    "philly+retries=10",
    "philly+worth",
    "philly+even",
    "philly+noquotas",
    "philly+strict+noquotas",
    "philly+quotas",
    "philly+pack",
    "philly+spread",
    "fifo+strict",
    "fifo+easy+strict",
)


def limited(trace: Trace) -> Trace:
    """With time limits, which neither Philly nor ITP tells: half as much again as it runs, ten minutes at least."""
    limit = np.maximum(1.5 * trace["work"], 600.0)
    return dataclasses.replace(trace, columns={**trace.columns, "limit": limit})


def demand(trace: Trace, cover: float) -> float:
    """GPUs that the jobs would hold if none waited, at that quantile of the time in which jobs arrive."""
    begin, gpus = trace["arrival"], trace["gpus"]
    times = np.concatenate([begin, begin + trace["work"]])
    change = np.concatenate([gpus, -gpus])
    order = np.lexsort((change, times))
    held, lasting = np.cumsum(change[order])[:-1], np.diff(np.minimum(times[order], begin[-1]))
    by_held = np.argsort(held, kind="stable")
    reached = np.cumsum(lasting[by_held]) / lasting.sum()
    return float(held[by_held][np.searchsorted(reached, cover)])


def cluster_for(trace: Trace, cover: float) -> Cluster:
    """Racks of 16 nodes with 8 GPUs, and quotas, as the module's text says."""
    gpus = max(demand(trace, cover), float(trace["gpus"].max()))
    racks = int(-(-gpus // (8 * RACK)))
    alike = Cluster.alike(racks * RACK, 8, 96, 512_000, leaf_size=RACK, name=trace.name)
    return dataclasses.replace(alike, quotas=quotas_for(trace, cover, alike.gpus))


def quotas_for(trace: Trace, cover: float, gpus: int) -> dict[str, int]:
    """GPUs by queue; together they may be a little more than there are."""
    rows = [trace["queue"] == code for code in range(len(trace.words["queue"]))]
    own = [demand(trace.only(row, ""), cover) if row.sum() > 1 else 1.0 for row in rows]
    return {
        name: max(int(gpus * held / sum(own)), int(trace["gpus"][row].max()))
        for name, held, row in zip(trace.words["queue"], own, rows, strict=True)
    }


def timed(trace: Trace, cluster: Cluster, policy: Policy) -> tuple[Replayed, float]:
    """The outcome, and seconds of CPU time: the machine is shared."""
    gc.collect()
    begun = time.process_time()
    done = replay(trace, cluster, policy)
    return done, time.process_time() - begun


def told(cluster: Cluster) -> str:
    """A cluster in words."""
    nodes = sum(group.count for group in cluster.nodes)
    return f"{nodes} nodes of 8 GPUs in {len(cluster.nodes)} racks, {cluster.gpus} GPUs"


def speed(args: argparse.Namespace) -> None:
    """Jobs a second on Philly."""
    trace = read(find_trace("philly_jobs.csv.gz", args.data)).trace
    trace, cluster = limited(trace), cluster_for(trace, args.cover)
    print(f"philly, {len(trace)} jobs on {told(cluster)}")
    for text in args.policy or SPEED:
        done, cpu = timed(trace, cluster, Policy.parse(text))
        gangs = trace["gpus"] > 1
        wait = float(np.nanmean((done.started - trace["arrival"])[gangs]))
        print(
            f"  {text:22} {len(trace) / cpu:8,.0f} jobs/s  {cpu:6.2f} s of CPU  gangs wait {wait / 60:.1f} min"
        )


def drawn(count: int, nodes: int, load: float, seed: int = 1) -> Trace:
    """Jobs with Philly's mix of GPUs and lognormal run times, arriving so that the cluster's GPUs are `load` in use.

    Load 0: all arrive at once.
    """
    rng = np.random.default_rng(seed)
    gpus = rng.choice([1, 2, 4, 8, 16, 32], count, p=[0.70, 0.10, 0.10, 0.07, 0.02, 0.01])
    work = np.round(np.exp(rng.normal(7.0, 1.5, count))) + 1.0
    gap = float((gpus * work).mean()) / (nodes * 8 * load) if load else 0.0
    arrival = np.cumsum(rng.exponential(gap, count)) if load else np.zeros(count)
    one = Trace.of([Job(1, 0.0, 1.0)])
    columns = {name: np.repeat(column, count) for name, column in one.columns.items()}
    columns |= {"job": np.arange(count), "arrival": arrival, "work": work, "gpus": gpus.astype(np.int64)}
    columns["limit"] = 1.5 * work + 600.0
    return Trace("drawn", columns, one.words)


def growth(args: argparse.Namespace) -> None:
    """Each size in a process of its own, so that the peak of memory is its own."""
    sizes = [
        (10_000, 100),
        (100_000, 100),
        (1_000_000, 100),
        (100_000, 1000),
        (100_000, 10_000),
        (1_000_000, 10_000),
    ]
    print("jobs      nodes   load  policy             jobs/s of CPU   us a job   MiB at most (trace alone)")
    for text, load in (("fifo+pack", 0.85), ("fifo+pack", 0.0), ("fifo+easy+strict", 0.85)):
        for count, nodes in sizes:
            if count > args.most or (text != "fifo+pack" and count > 100_000):
                continue
            asked = json.dumps([text, count, nodes, load])
            child = [sys.executable, "-m", "benchmarks.replay", "one", asked]
            cpu, most, before = json.loads(
                subprocess.run(child, capture_output=True, check=True, text=True).stdout
            )
            print(
                f"{count:9,} {nodes:6,}  {load or 'burst':5}  {text:18} {count / cpu:12,.0f} {1e6 * cpu / count:10.1f} "
                f"{most:8,.0f} ({before:,.0f})",
                flush=True,
            )


def one(args: argparse.Namespace) -> None:
    """One size: prints seconds of CPU, peak MiB, and the peak before the replay."""
    text, count, nodes, load = json.loads(args.asked)
    trace = drawn(count, nodes, load)
    cluster = Cluster.alike(nodes, 8, 96, 512_000, leaf_size=32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    done, cpu = timed(trace, cluster, Policy.parse(text))
    assert not np.isnan(done.ended).any(), "a job was lost"
    print(json.dumps([cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, before]))


def of_size(trace: Trace, size: str) -> np.ndarray:
    """Jobs of that size which ran a minute, as Table 2 counts them."""
    low, high = SIZES[size]
    return (trace["gpus"] >= low) & (trace["gpus"] <= high) & (trace["work"] >= 60)


def causes(trace: Trace, done: Replayed, beside: bool) -> None:
    """Occurrences and hours of delay by size; `beside`: with what the paper counted."""
    wait = done.started - trace["arrival"]
    fair = done.waited["fair_share"]
    for size in SIZES:
        rows = of_size(trace, size)
        late = rows & (wait > 1)
        by_share = int((late & (fair > wait / 2)).sum())
        count, paper = int(late.sum()), TABLE_2.get(size) if beside else None
        hours = {name: seconds[rows].sum() / 3600 for name, seconds in done.waited.items()}
        noted = f", Table 2: {paper[0] / sum(paper):.1%}" if paper else ""
        print(
            f"    {size:>4} GPUs: {int(rows.sum()):6} jobs, {count:5} delayed, by fair share {by_share:4} "
            f"({by_share / max(count, 1):.1%}{noted}); hours "
            + ", ".join(
                f"{name} {hours[name]:.0f}" for name in ("fair_share", "fragmentation", "resources", "order")
            )
        )
    within = sum(done.waited[name].sum() for name in ("fragmentation", "resources", "order"))
    everything = sum(seconds.sum() for seconds in done.waited.values())
    seen = " (paper: ~80 %)" if beside else ""
    print(f"    of all waiting, within quota and without a place: {within / max(everything, 1e-9):.0%}{seen}")


def trade(trace: Trace, cluster: Cluster, policies: Sequence[str], *, by_cause: Sequence[str] = ()) -> None:
    """A line a policy: how long gangs wait, how many are spread, what that costs, and what comes of it."""
    gangs = trace["gpus"] > 1
    whole = np.maximum(-(-trace["gpus"] // 8), 1)
    print(
        "  policy                 gang wait min mean p95   jobs of 1 wait   spread   slower   gang time in system h"
        "   out of order   preempted GPU-h lost"
    )
    for text in policies:
        done, _ = timed(trace, cluster, Policy.parse(text))
        wait = done.started - trace["arrival"]
        ran = ~np.isnan(wait)
        rows = gangs & ran
        jct = (done.ended - trace["arrival"])[rows] / 3600
        spread = (done.nodes > whole)[rows].mean()
        slower = (done.run_s - done.lost_gpu_s / np.maximum(trace["gpus"], 1))[rows].sum() / trace["work"][
            rows
        ].sum()
        single = wait[ran & ~gangs].mean() / 60
        more = "" if ran.all() else f"   {int((~ran).sum())} never ran"
        print(
            f"  {text:22} {wait[rows].mean() / 60:14.1f} {np.quantile(wait[rows], 0.95) / 60:7.1f} {single:16.1f} "
            f"{spread:8.1%} {slower:8.3f} {jct.mean():23.2f} {done.out_of_order / len(trace):14.1%} "
            f"{int((done.attempts > 1).sum()):11} {done.lost_gpu_s.sum() / 3600:10.0f}{more}",
            flush=True,
        )
        if text in by_cause:
            causes(trace, done, trace.name.startswith("philly"))


def philly(args: argparse.Namespace) -> None:
    """All jobs of Philly: the trade, and delays by cause."""
    trace = read(find_trace("philly_jobs.csv.gz", args.data)).trace
    trace, cluster = limited(trace), cluster_for(trace, args.cover)
    print(f"philly, {len(trace)} jobs on {told(cluster)} (cover {args.cover:g})")
    trade(
        trace,
        cluster,
        args.policy or TRADE,
        by_cause=("philly", "philly+strict", "philly+quotas", "philly+strict+noquotas"),
    )


def itp(args: argparse.Namespace) -> None:
    """The four ITP clusters."""
    numbers = ("01", "02", "03", "05")
    paths = [find_trace(f"itp_cluster{number}.csv.gz", args.data) for number in numbers]
    for number, path in zip(numbers, paths, strict=True):
        trace = limited(read(path).trace)
        cluster = cluster_for(trace, args.cover)
        print(f"itp {number}, {len(trace)} jobs on {told(cluster)} (cover {args.cover:g})")
        some = [text for text in TRADE if "quotas" not in text]
        trade(trace, cluster, args.policy or some, by_cause=("philly",))


def main() -> None:
    """One of the four."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("speed", "growth", "philly", "itp", "one"))
    parser.add_argument("asked", nargs="?", default="", help=argparse.SUPPRESS)
    add_data_option(parser)
    parser.add_argument("--cover", type=float, default=0.98)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--most", type=int, default=1_000_000)
    args = parser.parse_args()
    {"speed": speed, "growth": growth, "philly": philly, "itp": itp, "one": one}[args.what](args)


if __name__ == "__main__":
    main()
