"""Synergy's simulator of rounds: every 300 s the queue is ordered and the cluster handed out anew.

As in the artifact, moving and restarting cost nothing and spreading over servers does not slow a job down.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slurm_plugins.tuner.placing import Placing, Request
from slurm_plugins.tuner.values import PROFILES, V100, Profile, Shape

ROUND_S = 300.0
_KEEPS_ORDER = {"fifo"}


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a trace: arrival (s), work (s at proportional speed), GPUs, model."""

    job: int
    arrival: float
    work: float
    gpus: int
    profile: Profile


@dataclass(frozen=True, slots=True)
class Times:
    """Job completion times and makespan, hours."""

    mean: float
    p99: float
    makespan: float

    @classmethod
    def of(cls, jobs: Sequence[Job], ends: dict[int, float]) -> Times:
        """Over the jobs given; p99 interpolates linearly, as numpy does."""
        waits = sorted((ends[j.job] - j.arrival) / 3600 for j in jobs)
        at = 0.99 * (len(waits) - 1)
        low = math.floor(at)
        high = min(low + 1, len(waits) - 1)
        p99 = waits[low] + (at - low) * (waits[high] - waits[low])
        makespan = (max(ends[j.job] for j in jobs) - min(j.arrival for j in jobs)) / 3600
        return cls(sum(waits) / len(waits), p99, makespan)


def _key(policy: str, job: Job, left: float, now: float, pace: float) -> tuple[float, float, int]:
    done = (job.work - left) * job.gpus
    first = {
        "fifo": job.arrival,
        "srtf": left / pace,
        "las": done,
        # finish-time fairness: least far from what the job would have had alone goes last
        "ftf": -((now - job.arrival + left) / job.work),
    }[policy]
    return (first, job.arrival, job.job)


def simulate(
    jobs: Sequence[Job],
    policy: str,
    placing: Placing,
    servers: int,
    *,
    shape: Shape = V100,
    until: int | None = None,
    paced: bool = True,
) -> dict[int, float]:
    """When each job ends (s); `policy` is fifo, srtf, las or ftf. Stops once all jobs up to id `until` have ended.
    SRTF counts the time left at a job's last speed, before its first round at its best case;
    at proportional speed where `paced` is False.

    Raises:
        ValueError: a job asks for more GPUs than the cluster has; an unknown policy.
    """
    if policy not in {"fifo", "srtf", "las", "ftf"}:
        raise ValueError(f"no such policy: {policy}")
    total = servers * shape.gpus
    if any(job.gpus > total for job in jobs):
        raise ValueError(f"a job asks for more than the {total} GPUs of the cluster")
    coming = sorted(jobs, key=lambda j: (j.arrival, j.job))
    wanted = {j.job for j in jobs if until is None or j.job <= until}
    left: dict[int, float] = {}
    by_id = {j.job: j for j in jobs}
    waiting: list[Job] = []
    ends: dict[int, float] = {}
    now, at = 0.0, 0
    last: tuple[int, ...] = ()
    speeds: dict[int, float] = {}
    pace = {j.job: j.profile.curve.speed(j.profile.curve.best()) if paced else 1.0 for j in jobs}
    while wanted:
        if not waiting and at < len(coming) and coming[at].arrival > now:
            now = math.ceil(coming[at].arrival / ROUND_S) * ROUND_S
        while at < len(coming) and coming[at].arrival <= now:
            waiting.append(coming[at])
            left[coming[at].job] = coming[at].work
            at += 1
        if policy not in _KEEPS_ORDER:
            moment = now
            waiting.sort(key=lambda j: _key(policy, j, left[j.job], moment, pace[j.job]))
        chosen = tuple(_prefix(waiting, total))
        if chosen != last:
            placed = placing([Request(j, by_id[j].gpus, by_id[j].profile.curve) for j in chosen], servers, shape)
            speeds = {j: p.speed for j, p in placed.items()}
            last = chosen
            if paced:
                pace.update(speeds)
        over = set()
        for job, speed in speeds.items():
            need = left[job] / speed
            if need <= ROUND_S:
                ends[job] = now + need
                over.add(job)
            else:
                left[job] -= ROUND_S * speed
        if over:
            wanted -= over
            waiting = [j for j in waiting if j.job not in over]
        now += ROUND_S
    return ends


def _prefix(waiting: Sequence[Job], gpus: int) -> Iterator[int]:
    """The runnable set: in order, up to the first job whose GPUs no longer fit."""
    for job in waiting:
        gpus -= job.gpus
        if gpus < 0:
            return
        yield job.job
        if not gpus:
            return


_MODELS = {
    "image": ("alexnet", "res18", "res50", "mobilenet", "shufflenet"),
    "language": ("gnmt", "transformer", "lstm"),
    "speech": ("m5", "deepspeech"),
}


def poisson(seed: int, count: int, per_hour: float, split: tuple[int, int, int]) -> list[Job]:
    """Single-GPU jobs as Gavel and Synergy draw them: 80 % 60 * 10^U(1.5, 3) s, 20 % 60 * 10^U(3, 4) s.

    `split` is the weight of image, language and speech jobs.
    """
    rng = random.Random(seed)  # noqa: S311
    now, jobs = 0.0, []
    for number in range(count):
        now += rng.expovariate(per_hour / 3600)
        task = rng.choices(("image", "language", "speech"), split)[0]
        long = rng.random() >= 0.8
        work = 60 * 10 ** rng.uniform(3, 4) if long else 60 * 10 ** rng.uniform(1.5, 3)
        jobs.append(Job(number, now, work, 1, PROFILES[rng.choice(_MODELS[task])]))
    return jobs
