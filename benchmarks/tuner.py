"""Synergy's algorithms beside their paper and artifact: the tables of docs/algorithms.md.

    python -m benchmarks.tuner                       all of it, small: five to ten minutes of CPU
    python -m benchmarks.tuner --table loads --seeds 5

Tables: static, dynamic, loads, opt, time, replay. The static one and the replay's need public traces, which are no part
of gsub: see `benchmarks.traces` for how to get them.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.traces import add_data_option, find_trace
from slurm_plugins.tuner.draws import MODELS, SPLIT, at_random, in_turn, poisson, published
from slurm_plugins.tuner.market import market
from slurm_plugins.tuner.placing import Placing, Request, greedy, proportional, tune, tune_as_shipped
from slurm_plugins.tuner.rounds import ORDERS, SHIPPED, Job, Maker, Times, anew, simulate
from slurm_plugins.tuner.shares import tune_by_curves
from slurm_plugins.tuner.standing import standing
from slurm_plugins.tuner.values import PROFILES, V100, Curve

STATIC = "synergy_static_100jobs.csv"
PHILLY = "philly_jobs.csv.gz"
PRINTED = {
    ("fifo", "proportional"): (5.63, 12.94, 15.25),
    ("fifo", "tune as shipped"): (5.08, 10.59, 11.00),
    ("srtf", "proportional"): (4.41, 13.09, 14.08),
    ("srtf", "tune as shipped"): (4.11, 12.34, 12.92),
}
"""What the artifact prints for the static trace: mean, p99, makespan, h."""
README = (21.876600555555555, 156.93307777777775, 170.61199750000023)  # mean, p99, p99.9 of its README, h
ARTIFACT_S = 761

PLACINGS: dict[str, Placing] = {
    "proportional": proportional,
    "tune as shipped": tune_as_shipped,
    "tune": tune,
    "tune by curves": tune_by_curves,
    "market": market,
}


THREE = ("proportional", "tune as shipped", "market")
EVEN = {name: replace(profile, curve=Curve((3.0,), (62.5,), ((1.0,),))) for name, profile in PROFILES.items()}
"""The models as they run with the proportional share and nothing else."""


def static_jobs(path: Path) -> list[Job]:
    """The artifact's 100 jobs."""
    with path.open() as file:
        return [
            Job(
                int(row["job"]),
                float(row["arrival_s"]),
                int(row["iterations"]) * PROFILES[row["model"]].step_s,
                int(row["gpus"]),
                PROFILES[row["model"]],
            )
            for row in csv.DictReader(file)
        ]


def static(path: Path) -> None:
    """The static trace on 32 GPUs."""
    print(
        "\nThe static trace: 100 jobs at 0 s, 32 GPUs; mean JCT, p99, makespan in h, and what the artifact prints"
    )
    jobs = static_jobs(path)
    rounds = replace(SHIPPED, first=1.0)
    for order in ("fifo", "srtf"):
        for name, placing in PLACINGS.items():
            times = Times.of(jobs, simulate(jobs, order, anew(placing), 4, rounds=rounds).ends)
            ours = (times.mean, times.p99, times.makespan)
            theirs = PRINTED.get((order, name))
            worst = max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True)) if theirs else None
            beside = (
                f"   {theirs[0]:5.2f} {theirs[1]:6.2f} {theirs[2]:6.2f}   off by {worst:.2%}"
                if theirs
                else ""
            )
            print(f"  {order:5} {name:16} {ours[0]:5.2f} {ours[1]:6.2f} {ours[2]:6.2f}{beside}", flush=True)


def one_run(jobs: Sequence[Job], order: str, name: str) -> tuple[list[float], float]:
    """JCTs of jobs 4000 to 4999 in h on 128 GPUs, and the seconds of CPU that it took."""
    begun = time.process_time()
    make: Maker = anew(PLACINGS[name])
    if name == "proportional":
        # where a job of one GPU stands makes no difference to it
        jobs, make = [replace(job, profile=EVEN[job.profile.name]) for job in jobs], standing()
    ends = simulate(jobs, order, make, 16, until=4999, rounds=SHIPPED).ends
    took = time.process_time() - begun
    return [(ends[j.job] - j.arrival) / 3600 for j in jobs if 4000 <= j.job < 5000], took


def enough(draw: Callable[[int, int, float], list[Job]], seed: int, load: float) -> list[Job]:
    """Jobs that keep coming until all measured ones have ended: 300 h at that load after the last of them."""
    return draw(seed, 5000 + int(300 * load), load)


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    return ordered[low] + (at - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def dynamic(seeds: int) -> None:
    """FIFO at 9 jobs/h."""
    print(f"\nFIFO at 9 jobs/h, 128 GPUs, split {SPLIT}, jobs 4000 to 4999: mean JCT, h")
    print(
        f"  the artifact's README: mean {README[0]:.4f}, p99 {README[1]:.4f}, p99.9 {README[2]:.4f}; {ARTIFACT_S} s"
    )
    for title, draw in (
        ("run times of the artifact, arrivals by seed", published),
        ("all drawn by seed", poisson),
    ):
        print(f"  {title}")
        print(f"    {'seed':>6}" + "".join(f"{name:>18}" for name in THREE) + "   seconds of CPU of each")
        means: dict[str, list[float]] = {name: [] for name in THREE}
        for seed in [42, *range(1, seeds)]:
            jobs = enough(draw, seed, 9.0)
            runs = {name: one_run(jobs, "fifo", name) for name in THREE}
            for name, (waits, _) in runs.items():
                means[name].append(statistics.fmean(waits))
            row = "".join(f"{means[name][-1]:18.4f}" for name in THREE)
            print(f"    {seed:>6}{row}   {' '.join(f'{took:.1f}' for _, took in runs.values())}", flush=True)
            if draw is published and seed == 42:
                waits = runs["tune as shipped"][0]
                print(
                    f"           tune as shipped: p99 {quantile(waits, 0.99):.4f}, p99.9 {quantile(waits, 0.999):.4f}"
                )
                others = {name: one_run(jobs, "fifo", name) for name in PLACINGS if name not in THREE}
                told = (f"{name} {statistics.fmean(times):.2f}" for name, (times, _) in others.items())
                print(f"           {', '.join(told)}", flush=True)
        print(f"    {'mean':>6}" + "".join(f"{statistics.fmean(means[name]):18.2f}" for name in THREE))
        print(f"    {'median':>6}" + "".join(f"{statistics.median(means[name]):18.2f}" for name in THREE))
        for name in ("proportional", "market"):
            print(
                f"    {name:16} to tune as shipped, by seed: {ratio(means[name], means['tune as shipped'])}"
            )


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Mean of the ratios of paired runs, and their range."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{statistics.fmean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def loads(seeds: int, orders: Sequence[str], rates: Sequence[float]) -> None:
    """Orders and loads, paired by seed."""
    print(f"\nMean JCT in h of jobs 4000 to 4999, 128 GPUs, split {SPLIT}; {seeds} seeds, all drawn by seed")
    print(
        f"  {'order':5} {'jobs/h':>6}{'proportional':>14}{'tune shipped':>14}{'market':>10}"
        f"   {'proportional to tune':24}market to tune"
    )
    for order in orders:
        for rate in rates:
            means: dict[str, list[float]] = {name: [] for name in THREE}
            for seed in range(1, seeds + 1):
                jobs = enough(poisson, seed, rate)
                for name in THREE:
                    means[name].append(statistics.fmean(one_run(jobs, order, name)[0]))
            prop, tuned, ours = (means[name] for name in THREE)
            print(
                f"  {order:5} {rate:6g}{statistics.fmean(prop):14.2f}{statistics.fmean(tuned):14.2f}"
                f"{statistics.fmean(ours):10.2f}   {ratio(prop, tuned):24}{ratio(ours, tuned)}",
                flush=True,
            )


def mixes(kind: str, count: int) -> Iterator[tuple[int, list[Request]]]:
    """Random mixes that use all GPUs of 2 to 16 servers: single GPUs with weights of image, language and speech drawn
    anew; few models, one to five of the ten; or, of 2 and 3 servers, jobs of 1 to 8 GPUs as Gavel draws them."""
    for seed in range(count):
        rng = random.Random(seed)
        servers = rng.choice((2, 3) if kind == "gangs" else (2, 4, 8, 16))
        names = [name for some in MODELS.values() for name in some]
        if kind == "few":
            names = rng.sample(names, rng.randint(1, 5))
        drawn = at_random(rng, [rng.random() + 0.01 for _ in range(3)])
        free = servers * V100.gpus
        requests: list[Request] = []
        while free:
            profile = PROFILES[rng.choice(names)] if kind == "few" else next(drawn)
            gpus = rng.choices((1, 2, 4, 8), (70, 10, 15, 5))[0] if kind == "gangs" else 1
            if gpus <= free:
                free -= gpus
                requests.append(Request(len(requests), gpus, profile.curve))
        yield servers, requests


def against_opt(count: int) -> None:
    """Sums of speeds against OPT's."""
    from slurm_plugins.tuner.opt import opt, whole

    print(f"\nSum of speeds as a share of OPT's, {count} random mixes of each kind")
    print(
        "  OPT is program 1, one big machine; for gangs with whole jobs on servers, or the bound proven in 10 s"
    )
    print(
        f"  {'mix':8}{'placing':18}{'least':>7}{'p10':>7}{'p50':>7}{'p90':>7}   below 0.9   below proportional"
    )
    for kind in ("split", "few", "gangs"):
        shares: dict[str, list[float]] = {name: [] for name in PLACINGS}
        below = dict.fromkeys(PLACINGS, 0)
        hungry: list[tuple[float, float]] = []
        for servers, requests in mixes(kind, count):
            best = whole(requests, servers, V100) if kind == "gangs" else opt(requests, servers, V100).total
            for name, placing in PLACINGS.items():
                placed = placing(requests, servers, V100)
                shares[name].append(sum(one.speed for one in placed.values()) / best)
                below[name] += sum(
                    one.speed < one.request.curve.speed(V100.proportional) - 1e-9 for one in placed.values()
                )
            gains = sum(r.gpus * (r.curve.two(r.gpus, V100).fast > 1) for r in requests)
            hungry.append((gains / (servers * V100.gpus), shares["tune"][-1]))
        for name, values in shares.items():
            cuts = "".join(f"{quantile(values, cut):7.3f}" for cut in (0.0, 0.1, 0.5, 0.9))
            short = sum(value < 0.9 for value in values)
            print(f"  {kind:8}{name:18}{cuts}   {short:6} of {count}   {below[name]}", flush=True)
        for low, high in ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.01)):
            some = [share for part, share in hungry if low <= part < high]
            if some:
                text = f"median {statistics.median(some):.3f}, {sum(s < 0.9 for s in some)} of {len(some)} below 0.9"
                print(f"    tune where {low:.0%} to {min(high, 1):.0%} of the GPUs gain from more: {text}")


def times(jobs: Sequence[int], servers: Sequence[int]) -> None:
    """Time of one placing."""
    from slurm_plugins.tuner.opt import opt, spread

    print("\nMilliseconds of CPU of one placing")
    print(
        f"  {'jobs':>5} {'servers':>7}{'tune':>9}{'shipped':>9}{'greedy':>9}{'curves':>9}{'market':>9}"
        f"{'OPT 1':>9}{'OPT 1+2':>9}"
    )
    opt([Request(0, 1, PROFILES["gnmt"].curve)], 1, V100)  # what the solver loads once is not a placing's
    for count in jobs:
        for size in servers:
            if size * V100.gpus < count:
                continue
            models = at_random(random.Random(count), SPLIT)
            requests = [Request(n, 1, next(models).curve) for n in range(count)]
            spent = []
            for placing in (tune, tune_as_shipped, greedy, tune_by_curves, market):
                took = []
                for _ in range(5):
                    begun = time.process_time()
                    placing(requests, size, V100)
                    took.append(time.process_time() - begun)
                spent.append(statistics.median(took))
            begun = time.process_time()
            ideal = opt(requests, size, V100)
            spent.append(time.process_time() - begun)
            found = spread(requests, ideal, size, V100)
            second = f"{(time.process_time() - begun) * 1e3:9.1f}" if found else "     none"
            print(f"  {count:>5} {size:>7}" + "".join(f"{s * 1e3:9.1f}" for s in spent) + second, flush=True)


def in_replay(path: Path, servers: Sequence[int]) -> None:
    """Philly's trace by the replay's rounds, its jobs given models in turn."""
    import numpy as np

    from slurm_plugins.replay.engine import replay
    from slurm_plugins.replay.policy import Policy
    from slurm_plugins.replay.traces.read import read
    from slurm_plugins.replay.values import Cluster

    found = read(path).trace
    models = in_turn(SPLIT)
    dealt = [next(models).name for _ in range(len(found))]
    words = tuple(sorted(set(dealt)))
    codes = np.array([words.index(name) for name in dealt], np.int32)
    trace = replace(
        found,
        columns={**found.columns, "workload": codes},
        words={**found.words, "workload": words},
    )
    print(f"\nPhilly's {len(trace):,} jobs in rounds of 300 s, models in turn {SPLIT}, a restart costs 60 s")
    print(f"  {'GPUs':>5} {'policy':20}{'jobs/s of CPU':>14}{'mean JCT h':>12}{'p99 h':>9}{'GPU-h lost':>12}")
    for count in servers:
        cluster = Cluster.alike(count, V100.gpus, V100.cpus, V100.memory * 1024, leaf_size=16)
        for text in ("fifo+proportional", "fifo+tune", "fifo+fill", "srtf+tune"):
            begun = time.process_time()
            done = replay(trace, cluster, Policy.parse(text))
            took = time.process_time() - begun
            waits = (done.ended - trace["arrival"]) / 3600
            print(
                f"  {cluster.gpus:>5} {text:20}{len(trace) / took:14,.0f}{waits.mean():12.3f}"
                f"{np.percentile(waits, 99):9.2f}{done.lost_gpu_s.sum() / 3600:12,.1f}",
                flush=True,
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("static", "dynamic", "loads", "opt", "time", "replay")
    parser.add_argument("--table", action="append", choices=names, help="which; all by default")
    add_data_option(parser)
    parser.add_argument("--seeds", type=int, default=1, help="of dynamic and loads")
    parser.add_argument("--mixes", type=int, default=50, help="of opt; the documents have 200")
    parser.add_argument("--order", action="append", choices=ORDERS, help="of loads; all by default")
    parser.add_argument("--load", action="append", type=float, help="jobs/h, of loads; 9 by default")
    chosen = parser.parse_args(argv)
    if chosen.seeds < 1 or chosen.mixes < 1:
        parser.error("at least one seed and one mix")
    tables = chosen.table or names
    paths = {
        table: find_trace(name, chosen.data)
        for table, name in (("static", STATIC), ("replay", PHILLY))
        if table in tables
    }
    if "static" in tables:
        static(paths["static"])
    if "dynamic" in tables:
        dynamic(chosen.seeds)
    if "loads" in tables:
        loads(chosen.seeds, chosen.order or ORDERS, chosen.load or (9.0,))
    if "opt" in tables:
        against_opt(chosen.mixes)
    if "time" in tables:
        times((100, 300, 1000), (16, 64, 128, 512))
    if "replay" in tables:
        in_replay(paths["replay"], (100, 309))


if __name__ == "__main__":
    main()
