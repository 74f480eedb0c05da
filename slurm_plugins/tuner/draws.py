"""Jobs drawn as Synergy draws them: Poisson arrivals, Gavel's run times, models by kind of task.

Source: Synergy (OSDI'22), section 5.1, and the artifact's `workload.py`, `model_zoo.py` and `helpers/utils.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence

from slurm_plugins.tuner.rounds import Job
from slurm_plugins.tuner.values import PROFILES, Profile

MODELS: Mapping[str, tuple[str, ...]] = {
    "image": ("alexnet", "res18", "res50", "mobilenet", "shufflenet"),
    "language": ("gnmt", "transformer", "lstm"),
    "speech": ("m5", "deepspeech"),
}
SPLIT = (20, 70, 10)  # weights of image, language, speech: the artifact's default


def run_time(rng: random.Random) -> float:
    """Gavel's: 80 % 60 * 10^U(1.5, 3) s, 20 % 60 * 10^U(3, 4) s."""
    if rng.random() >= 0.8:
        return 60 * 10 ** rng.uniform(3, 4)
    return 60 * 10 ** rng.uniform(1.5, 3)


def in_turn(split: Sequence[float]) -> Iterator[Profile]:
    """Models as the artifact deals them: of the kind that is furthest below its weight, one after the other.

    >>> models = in_turn((20, 70, 10))
    >>> [next(models).name for _ in range(6)]
    ['alexnet', 'gnmt', 'transformer', 'm5', 'lstm', 'gnmt']
    """
    kinds = tuple(MODELS)
    dealt = [0, 0, 0]
    while True:
        total = sum(dealt)
        below = [weight / 100 - n / total if total else 0.0 for weight, n in zip(split, dealt, strict=True)]
        kind = max(range(3), key=lambda k: (below[k], -k))
        names = MODELS[kinds[kind]]
        yield PROFILES[names[dealt[kind] % len(names)]]
        dealt[kind] += 1


def at_random(rng: random.Random, split: Sequence[float]) -> Iterator[Profile]:
    """Models drawn by weight of their kind, alike within one."""
    while True:
        kind = rng.choices(tuple(MODELS), split)[0]
        yield PROFILES[rng.choice(MODELS[kind])]


def poisson(seed: int, count: int, per_hour: float, split: Sequence[float] = SPLIT) -> list[Job]:
    """Single-GPU jobs, all of them drawn anew by each seed; models in turn."""
    rng = random.Random(seed)  # noqa: S311
    now, jobs = 0.0, []
    models = in_turn(split)
    for number in range(count):
        now += rng.expovariate(per_hour / 3600)
        jobs.append(Job(number, now, run_time(rng), 1, next(models)))
    return jobs


def published(seed: int, count: int, per_hour: float, split: Sequence[float] = SPLIT) -> list[Job]:
    """The artifact's own jobs: run times and models are those of its seed 42 whatever `seed` is, arrivals are drawn by
    `seed`; with 42 they are the ones that its README shows the result of.

    The artifact draws the run times once and keeps them in a file, so from its second run on arrivals begin at the
    start of the seed's stream. Between two of them it draws a model that it then does not use. Run times are whole
    steps, arrivals whole seconds.
    """
    works = random.Random(42)  # noqa: S311
    arrivals = random.Random(seed)  # noqa: S311
    now, jobs = 0.0, []
    models = in_turn(split)
    for number in range(count):
        now += math.ceil(-math.log(1.0 - arrivals.random()) / per_hour * 3600)
        arrivals.randint(0, sum(map(len, MODELS.values())) - 1)
        profile = next(models)
        steps = int(run_time(works) / profile.step_s)
        jobs.append(Job(number, now, steps * profile.step_s, 1, profile))
    return jobs
