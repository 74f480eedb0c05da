"""How six models got faster with more GPUs where they were measured, for jobs of which no such thing is known.

Source: the throughputs that ElasticFlow's artifact (Gu et al., ASPLOS'23) ships for A100s, eight to a node: iterations
a second at a fixed global batch on 1, 2, 4... 64 GPUs.

>>> model = typical("resnet50")
>>> [round(model.rate(256, 1, n).value / model.rate(256).value, 1) for n in (2, 4, 8)]
[1.9, 3.6, 5.9]
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from profiler.speed import Point, SpeedModel, fit

__all__ = ["GPUS_A_NODE", "LOCAL", "MEASURED", "points", "speeds", "typical"]

GPUS_A_NODE: Final = 8

MEASURED: Final[Mapping[str, Mapping[int, tuple[float, ...]]]] = {
    "vgg16": {
        64: (5.053, 9.036, 14.755, 19.330, 25.893, 30.556, 29.534),
        128: (2.625, 4.874, 8.721, 13.573, 18.060, 23.615, 25.783),
        256: (1.314, 2.523, 4.642, 7.996, 12.622, 16.372, 20.656),
    },
    "resnet50": {
        64: (6.843, 11.838, 18.299, 21.265, 21.510, 22.750, 20.969),
        128: (3.655, 6.620, 11.224, 16.534, 20.156, 20.291, 21.071),
        256: (1.843, 3.449, 6.191, 10.379, 15.153, 17.823, 18.845),
    },
    "inception3": {
        64: (4.821, 8.190, 11.693, 13.393, 13.693, 13.687, 13.055),
        128: (2.562, 4.659, 7.804, 10.854, 12.797, 12.844, 12.341),
    },
    "bert": {
        64: (6.031, 8.643, 10.356, 11.060, 10.987, 10.608, 9.246),
        128: (3.575, 5.679, 8.451, 9.994, 10.768, 10.711, 9.445),
    },
    "gpt2": {
        128: (7.309, 11.946, 16.666, 18.704, 19.875, 18.599, 16.646),
        256: (4.097, 6.960, 11.440, 15.656, 17.872, 18.855, 15.644),
    },
    "deepspeech2": {
        32: (3.023, 5.366, 7.544, 9.816, 12.883, 14.462),
        64: (1.600, 2.961, 5.253, 7.406, 9.401, 12.484, 13.974),
    },
}
"""Model -> global batch -> iterations a second on 1, 2, 4, 8, 16, 32, 64 GPUs."""

LOCAL: Final[Mapping[str, int]] = {
    "vgg16": 32,
    "resnet50": 32,
    "inception3": 16,
    "bert": 16,
    "gpt2": 32,
    "deepspeech2": 8,
}
"""A batch for each GPU that was asked for: of those measured one that scales well up to a node."""


def points(model: str) -> list[Point]:
    """What was measured of a model, as runs. Raises KeyError for one that was not."""
    return [
        Point(batch, -(-(2**i) // GPUS_A_NODE), min(2**i, GPUS_A_NODE), rate * batch)
        for batch, rates in MEASURED[model].items()
        for i, rate in enumerate(rates)
    ]


@cache
def typical(model: str) -> SpeedModel:
    """Fitted to what was measured of it. Raises KeyError for a model that is not in `MEASURED`."""
    return fit(points(model))


def speeds(model: str, asked: int, most: int) -> tuple[float, ...]:
    """Speed on 0 to `most` GPUs relative to one, of a job that keeps the batch which fills the `asked` ones.

    On as few nodes as hold them; straight between whole nodes. It never falls: who has more GPUs than help leaves them
    idle. Raises KeyError for a model that was not measured, ValueError for counts below 1.
    """
    if asked < 1 or most < 1:
        raise ValueError(f"{asked} GPUs asked for, {most} at most")
    known = [n for n in range(1, most + 1) if n <= GPUS_A_NODE or n % GPUS_A_NODE == 0]
    if known[-1] != most:
        known.append(known[-1] + GPUS_A_NODE)
    batch = LOCAL[model] * asked
    rates = [typical(model).rate(batch, -(-n // GPUS_A_NODE), min(n, GPUS_A_NODE)).value for n in known]
    found, at = [0.0], 0
    for count in range(1, most + 1):
        while known[at] < count:
            at += 1
        below = max(at - 1, 0)
        part = 1.0 if below == at else (count - known[below]) / (known[at] - known[below])
        speed = (rates[below] * (1 - part) + rates[at] * part) / rates[0]
        # a GPU never adds more than the first: noise of a fit
        found.append(min(max(speed, found[-1]), found[-1] + 1.0))
    return tuple(found)
