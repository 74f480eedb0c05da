"""A made-up history of a site, straight into a store's tables: a million attempts in about a minute.

Sizes and durations are drawn from the quantiles of Philly's trace (`tests/data/traces/philly_durations.csv`); how
attempts end, what GPUs are used, and why and when jobs fail from the paper's Tables 3, 6 and 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sqlalchemy import Connection, insert

from profiler.store import Store
from profiler.store.schema import WAITED, gpu_usage, job, job_node, verdict
from tests.paths import DATA

CLUSTER = "philly"
SINCE = 1_735_689_600.0
"""2025-01-01, UTC."""
YEAR = 365 * 86400.0
UNTIL = SINCE + YEAR
_DURATIONS = DATA / "traces/philly_durations.csv"
_GIB = 1 << 30
_BLOCK = 20_000
"""Attempts that are made at a time: they are written in the order of their starts, as a service would."""

# Jobs by GPUs in Philly's trace
_SIZES = {1: 76627, 2: 1818, 4: 1870, 8: 1643, 12: 7, 16: 199, 24: 7, 32: 67, 64: 6, 128: 3}
# Table 6 (jobs by outcome, the unsuccessful apart as Slurm would call them), and Table 3's means by size
_STATES = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "PREEMPTED")
_STATE_SHARES = (0.693, 0.135, 0.150, 0.015, 0.007)
_USE = {1: (53.5, 37.0, 62.8), 4: (51.1, 34.4, 51.0), 8: (51.1, 60.6, 64.3), 16: (44.9, 37.0, 39.0)}
# Table 7: reason, trials, and the run time until it shows: median and 90th percentile in minutes
_WHY = (
    ("cpu_oom", 12076, 13.45, 17.73),
    ("missing_input", 9690, 1.87, 404.83),
    ("semantic_error", 2943, 2.72, 376.00),
    ("core_dump", 2912, 0.85, 72.75),
    ("invalid_memory_access", 2602, 1.03, 403.50),
    ("checkpoint_error", 1995, 181.67, 3728.93),
    ("cuda_failure", 1484, 1.32, 19.87),
    ("syntax_error", 1132, 0.58, 5.02),
    ("traceback", 777, 1.02, 894.33),
    ("mpi_error", 634, 1.62, 3015.27),
    ("gpu_oom", 487, 18.53, 353.62),
    ("mpi_runtime_failure", 478, 1389.48, 13778.60),
    ("permission_error", 299, 1.00, 8.15),
    ("import_error", 148, 0.67, 4.58),
    ("cuda_init_failed", 141, 1.08, 2.18),
    ("model_diverged", 84, 1.48, 44.37),
    ("gpu_hardware", 10, 26.82, 671.92),
    ("no_signature", 1684, 1.87, 28.00),
)
_TYPES = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB")
_PARTITIONS = ("a100", "h100", "v100")


def fill(store: Store, attempts: int, *, seed: int = 1) -> None:
    """Write so many attempts, spread over the year from SINCE on, into an empty store."""
    random = np.random.default_rng(seed)
    starts = np.sort(random.uniform(SINCE, UNTIL, attempts))
    sizes, lengths = _trace(random, attempts)
    with store.writing("The history cannot be written.") as connection:
        for first in range(0, attempts, _BLOCK):
            part = slice(first, first + _BLOCK)
            _write(connection, random, first, starts[part], sizes[part], lengths[part])


def _trace(random: np.random.Generator, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draw GPUs and seconds of so many jobs; log-linear between the quantiles of jobs of such a size."""
    shares = np.array([*_SIZES.values()], np.float64)
    sizes: NDArray[np.int64] = random.choice([*_SIZES], count, p=shares / shares.sum())
    at = random.uniform(0, 100, count)
    table = pd.read_csv(_DURATIONS, index_col="gpus")
    quantiles = table.filter(regex="^p")
    points = [float(name[1:]) for name in quantiles]
    lengths = np.zeros(count)
    for gpus, row in quantiles.iterrows():
        low, _, high = str(gpus).partition("-")
        rows = (sizes >= int(low)) & (sizes <= int(high or low))
        lengths[rows] = np.exp(np.interp(at[rows], points, np.log(row.to_numpy(np.float64))))
    return sizes, lengths


def _write(
    connection: Connection,
    random: np.random.Generator,
    first: int,
    starts: NDArray[np.float64],
    sizes: NDArray[np.int64],
    lengths: NDArray[np.float64],
) -> None:
    count = len(starts)
    states = random.choice(len(_STATES), count, p=_STATE_SHARES)
    failed = states == 2
    trials = np.array([row[1] for row in _WHY], np.float64)
    why = random.choice(len(_WHY), count, p=trials / trials.sum())
    middle, high = (np.array([row[n] for row in _WHY])[why] * 60 for n in (2, 3))
    # Log-normal through both percentiles
    until_failure = middle * np.exp(np.log(high / middle) / 1.2816 * random.standard_normal(count))
    lengths = np.minimum(np.where(failed, until_failure, lengths), 60 * 86400.0)
    ends = starts + lengths
    use = np.clip(random.normal(_means(sizes, states), 28), 0, 100)
    use[random.random(count) < 0.06] = 0.0  # never used
    unseen = random.random(count) < 0.02
    waits = random.exponential(np.where(sizes == 1, 240, 240 * np.sqrt(sizes) * 3))
    users = np.minimum(random.zipf(1.4, count) - 1, 399)
    kinds = random.choice(3, count, p=[0.5, 0.2, 0.3])
    # A third by jobs that come before, the more by the lack of GPUs, and of those that lie together, the larger
    shares = random.dirichlet((2.0, 3.0, 0.3, 0.3, 0.1, 0.1), count)
    apart = np.where(sizes > 1, shares[:, 1] * 0.6, 0.0)
    shares[:, 2] += apart
    shares[:, 1] -= apart
    seen = np.maximum(waits - random.uniform(0, 30, count), 0.0)
    unlooked = random.random(count) < 0.1
    held = np.where(random.random(count) < 0.05, random.exponential(7200, count), 0.0)
    nodes = -(-sizes // 8)
    spread = (sizes > 1) & (random.random(count) < 0.15)
    nodes = np.where(spread, np.minimum(sizes, nodes * 2), nodes)
    running = ends > UNTIL
    jobs: list[dict[str, Any]] = []
    hosts: list[dict[str, Any]] = []
    gpus: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    columns = (
        starts,
        ends,
        lengths,
        sizes,
        states,
        use,
        unseen,
        waits,
        users,
        kinds,
        nodes,
        why,
        running,
        held,
    )
    causes = (shares * seen[:, None]).tolist()
    for n, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        start, end, length, size, state, mean, blind, wait, user, kind, wide, reason, runs, before = row
        key = first + n + 1
        name, account = f"user{user:03d}", f"group{user % 40:02d}"
        idle = None if blind else size if mean == 0 else 0
        ended = None if runs else end
        jobs.append(
            {
                "pk": key, "cluster": CLUSTER, "job_id": key, "restarts": 0, "sort_at": start,
                "touched": min(end, UNTIL), "complete": not runs, "facts_at": min(end, UNTIL), "facts_final": not runs,
                "node_count": wide, "uid": 10_000 + user, "gid": 10_000, "name": f"train-{key % 997}", "user": name,
                "account": account, "partition": _PARTITIONS[kind], "qos": "normal",
                "state": "RUNNING" if runs else _STATES[state], "exit_code": int(state == 2), "signal": 0,
                "submitted": start - wait - before, "eligible": start - wait, "started": start, "ended": ended,
                "time_limit": 7 * 86400.0, "nodes": f"n[1-{wide}]", "cpus": 8 * size, "gpus": size,
                "memory_asked_bytes": 64 * _GIB * size, "work_dir": f"/home/{name}/run",
                "gpus_known": 0 if blind else size, "gpus_idle": idle, "gpu_seconds": None if blind else size * length,
                "utilisation_mean": None if blind else mean, "power_mean_w": None if blind else 80 + 3 * mean,
                "cpu_seconds": length * size * 3.5, "gpu_memory_peak_bytes": None if blind else 30 * _GIB,
                "gpu_memory_total_bytes": None if blind else 80 * _GIB, "memory_peak_bytes": 20 * _GIB,
                **dict(zip(WAITED, [None] * len(WAITED) if unlooked[n] else causes[n], strict=True)),
            }
        )  # fmt: skip
        for host in range(wide):
            hosts.append(
                {
                    "job": key, "node": f"n{host + 1}", "started_at": start, "start_source": 0, "ended_at": ended,
                    "serial": 2, "final": not runs, "usage_at": end, "since": start, "until": end,
                    "cpu_seconds": length,
                }
            )  # fmt: skip
        gpus += [] if blind else list(_uses(key, size, wide, kind, mean, length))
        if state in (2, 3, 4) and not runs:
            cause = _WHY[reason][0] if state == 2 else "time_limit" if state == 3 else "preempted"
            verdicts.append(
                {
                    "job": key, "cluster": CLUSTER, "job_id": key, "uid": 10_000 + user, "user": name,
                    "account": account, "name": "train", "at": end, "reason": cause, "tier": "explicit",
                    "confidence": 0.9, "source": "user", "gpu_seconds": size * length, "runtime": length,
                    "body": "{}" * 200,
                }
            )  # fmt: skip
    for table, rows in ((job, jobs), (job_node, hosts), (gpu_usage, gpus), (verdict, verdicts)):
        if rows:
            connection.execute(insert(table), rows)


def _means(sizes: NDArray[np.int64], states: NDArray[np.int64]) -> NDArray[np.float64]:
    """Table 3: the mean utilisation by size and outcome."""
    table = np.array(list(_USE.values()))
    size = np.searchsorted([1, 4, 8], sizes)
    mean: NDArray[np.float64] = table[size, np.minimum(states, 2)]
    return mean


def _uses(key: int, size: int, wide: int, kind: int, mean: float, length: float) -> Iterator[dict[str, Any]]:
    places: Sequence[int] = [n * wide // size for n in range(size)]
    for place, host in enumerate(places):
        yield {
            "job": key, "node": f"n{host + 1}", "place": place, "minor": place % 8, "name": _TYPES[kind],
            "uuid": f"GPU-{key % 4096:08x}-{place:04x}-4f2c-81aa-0123456789ab", "samples": 400, "seconds": length,
            "utilisation_mean": mean, "utilisation_p5": 0.0, "utilisation_p50": mean, "utilisation_p95": 99.0,
            "memory_peak_bytes": 30 * _GIB, "memory_total_bytes": 80 * _GIB, "power_mean_w": 80 + 3 * mean,
            "busy_seconds": length * mean / 100, "idle_at_start_seconds": 20.0, "idle_after_seconds": 60.0,
            "energy_j": length * 200, "temperature_peak_c": 71, "clock_sm_mean_mhz": 1410.0,
        }  # fmt: skip
