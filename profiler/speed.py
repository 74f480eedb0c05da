"""Throughput over GPUs and placement: a model of it, its fit from few short runs, and how sure it is of itself. Pure.

Two forms stand to choice, and the runs choose, by their error on runs that were left out.

**GENIE** (Chen et al., TPDS 2020, equations 4 to 8). Of `nodes` x `gpus` GPUs communication takes a part away, and the
others are as fast as one GPU with its share of the batch::

    rate = (n - comm) * (k0 + k1 w + k2 w^2)        n = nodes * gpus, w = batch / n
    comm = gamma * ((nodes - 1) * gpus + lambda * (gpus - 1)) / (n - 1)        0 for one GPU and for inference

**Pollux** (Qiao et al., OSDI'21, section 4.1). An iteration computes and synchronises, which overlap in part::

    rate = batch / (grad^gamma + sync^gamma)^(1/gamma)        grad = alpha + beta w
    sync = a + b (n - 2), one pair of (a, b) on one node and another across nodes; 0 for one GPU and for inference

>>> model = fit([Point(64 * n, 1, n, 100.0 * (n - 0.2 * (n > 1))) for n in (1, 2, 4, 8)])
>>> rate, low, high = model.rate(64 * 6, 1, 6)
>>> 500 < low < rate < high < 700
True

NumPy is needed to fit and not to predict: the extra `solver` or `replay`. What holds for a workload of which nothing is
known is in `profiler.spread`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from profiler.spread import slowdown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]

__all__ = ["Fitted", "Form", "Point", "Range", "SpeedModel", "fit", "light_profile", "slowdown"]

Form = Literal["genie", "pollux"]

_NOISE: Final = (
    0.02  # of a rate, one standard deviation, before anything is measured; as sure as _PRIOR_DOF points
)
_PRIOR_DOF: Final = 2.0
_LEAST: Final = 1e-9  # of a rate or a time: keeps logarithms finite


class Range(NamedTuple):
    """A value and the bounds between which it is expected."""

    value: float
    low: float
    high: float


_AT_ONCE: Final = Range(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Point:
    """One run: global batch (samples), nodes, GPUs on each, samples a second of all GPUs together, without the start.

    `startup` is what passed before its first iteration, seconds; nan: not known.
    Raises ValueError for what no run can be.
    """

    batch: float
    nodes: int
    gpus: int
    rate: float
    startup: float = math.nan

    @property
    def at(self) -> tuple[float, int, int]:
        """Batch, nodes, GPUs on each."""
        return self.batch, self.nodes, self.gpus

    def __post_init__(self) -> None:
        _check(self.batch, self.nodes, self.gpus)
        if not 0 < self.rate < math.inf:
            raise ValueError(f"a run of {self.rate} samples a second")
        if self.startup < 0 or self.startup == math.inf:
            raise ValueError(f"a run that started within {self.startup} s")


def _check(batch: float, nodes: int, gpus: int) -> None:
    if not (0 < batch < math.inf and nodes >= 1 and gpus >= 1):
        raise ValueError(f"a batch of {batch} on {nodes} x {gpus} GPUs")


def light_profile(batches: Sequence[float], nodes: int, gpus: int) -> list[tuple[float, int, int]]:
    """Which runs to make, as (batch, nodes, GPUs a node): B on one GPU, G and N at the largest batch, and corners.

    GENIE's light profile: B + G + N runs for a cluster of `nodes` x `gpus` where a grid has B x G x N. N is tried with
    one GPU and with all of a node, since gamma and lambda tell in different ones. The corners are ours: the smallest
    batch on one whole node and on all, where a time that each iteration takes, whatever its batch, tells most.

    >>> light_profile([32, 64, 128], 2, 2)[3:]
    [(128, 1, 2), (128, 2, 1), (128, 2, 2), (32, 1, 2), (32, 2, 2)]
    """
    least, most = min(batches), max(batches)
    one = [(batch, 1, 1) for batch in batches]
    inside = [(most, 1, count) for count in _counts(gpus)]
    across = [(most, count, each) for each in sorted({1, gpus}) for count in _counts(nodes)]
    corners = sorted({(least, 1, gpus), (least, nodes, gpus)} - {*one, *inside, *across})
    return [*one, *inside, *across, *(corner for corner in corners if least >= corner[1] * corner[2])]


def _counts(most: int) -> list[int]:
    """2 and 3, then doubling, and the most."""
    tried = {2, 3, *(2**power for power in range(2, most.bit_length())), most}
    return sorted(count for count in tried if 1 < count <= most)


@dataclass(frozen=True, slots=True)
class Fitted:
    """One form, fitted: its parameters, their covariance, and how far runs that were left out are from it.

    `noise` and `error` are standard deviations of the logarithm of a rate, so about shares of it; `error` is of runs
    left out one at a time. `scale` is the batch of one GPU and the rate that parameters are relative to.
    """

    form: Form
    values: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    noise: float
    freedom: float
    error: float
    scale: tuple[float, float]
    training: bool = True

    def log_rate(self, batch: float, nodes: int, gpus: int) -> float:
        """Logarithm of samples a second."""
        return _FORMS[self.form].log_rate(self.values, self.scale, self.training, (batch, nodes, gpus))

    def variance(self, batch: float, nodes: int, gpus: int) -> float:
        """Of the logarithm of the rate, from the parameters alone."""
        said, at = _FORMS[self.form].log_rate, (batch, nodes, gpus)
        slope = _slope(lambda values: said(values, self.scale, self.training, at), self.values)
        return sum(
            a * b * c
            for a, row in zip(slope, self.covariance, strict=True)
            for b, c in zip(slope, row, strict=True)
        )


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """What is known of a workload's speed. Its value is the forms' mean by weight; the intervals are of another run."""

    fits: tuple[Fitted, ...]
    weights: tuple[float, ...]
    startup: Range = _AT_ONCE

    @property
    def form(self) -> Form:
        """The form that fits better."""
        return max(zip(self.weights, self.fits, strict=True), key=lambda pair: pair[0])[1].form

    @property
    def error(self) -> float:
        """Typical error on runs that were left out, as a share: of the better form."""
        return min(one.error for one in self.fits)

    def rate(self, batch: float, nodes: int = 1, gpus: int = 1, *, confidence: float = 0.95) -> Range:
        """Samples a second on `nodes` x `gpus` GPUs, and within what another run would be found.

        Raises ValueError for a batch or a placement that cannot be, for a confidence that is not between 0 and 1.
        """
        _check(batch, nodes, gpus)
        if not 0 < confidence < 1:
            raise ValueError(f"a confidence of {confidence}")
        logs = [one.log_rate(batch, nodes, gpus) for one in self.fits]
        mean = sum(w * log for w, log in zip(self.weights, logs, strict=True))
        spread = sum(
            w * (one.variance(batch, nodes, gpus) + one.noise**2 + (log - mean) ** 2)
            for w, one, log in zip(self.weights, self.fits, logs, strict=True)
        )
        freedom = sum(w * one.freedom for w, one in zip(self.weights, self.fits, strict=True))
        far = min(_student(freedom, confidence) * math.sqrt(spread), 20.0)
        return Range(math.exp(mean), math.exp(mean - far), math.exp(mean + far))

    def latency(
        self, batch: float, iterations: float, nodes: int = 1, gpus: int = 1, *, confidence: float = 0.95
    ) -> Range:
        """Seconds that `iterations` of `batch` take with the start (equation 4). Raises ValueError as `rate` does."""
        if not 0 <= iterations < math.inf:
            raise ValueError(f"{iterations} iterations")
        rate, low, high = self.rate(batch, nodes, gpus, confidence=confidence)
        samples = batch * iterations
        start, start_low, start_high = self.startup
        return Range(samples / rate + start, samples / high + start_low, samples / low + start_high)

    def slowdown(self, batch: float, nodes: int, gpus: int, gpus_a_node: int) -> float:
        """How much longer it takes than on as few nodes as hold its GPUs; the form of `profiler.spread.slowdown`."""
        if gpus_a_node < 1:
            raise ValueError(f"nodes of {gpus_a_node} GPUs")
        count = nodes * gpus
        fewest = -(-count // gpus_a_node)
        # Where they do not divide evenly, the next fewer that do, and in proportion
        each = count // fewest
        compact = self.rate(batch, fewest, each).value * count / (fewest * each)
        return max(compact / self.rate(batch, nodes, gpus).value, 1.0)


# --- the two forms ----------------------------------------------------------------------------------------------------


def _genie(
    values: Sequence[float], scale: tuple[float, float], training: bool, at: tuple[float, int, int]
) -> float:
    batch, nodes, gpus = at
    k0, k1, k2, across, inside = values
    count = nodes * gpus
    local = batch / count / scale[0]
    if k2 < 0:
        local = min(
            local, -k1 / (2 * k2) if k1 > 0 else 0.0
        )  # a rate that has risen stays: it does not fall again
    single = max(k0 + k1 * local + k2 * local * local, _LEAST)
    comm = 0.0
    if training and count > 1:
        comm = (across * (nodes - 1) * gpus + inside * (gpus - 1)) / (count - 1)
    return math.log(max(count - comm, _LEAST)) + math.log(single * scale[1])


def _pollux(
    values: Sequence[float], scale: tuple[float, float], training: bool, at: tuple[float, int, int]
) -> float:
    batch, nodes, gpus = at
    alpha, beta, a_in, b_in, a_out, b_out, gamma = (math.exp(min(max(v, -60.0), 60.0)) for v in values)
    count = nodes * gpus
    grad = alpha + beta * batch / count / scale[0]
    sync = 0.0
    if training and count > 1:
        sync = a_out + b_out * (count - 2) if nodes > 1 else a_in + b_in * (count - 2)
    power = 1.0 + gamma
    most = max(grad, sync)
    whole = most * ((grad / most) ** power + (sync / most) ** power) ** (1 / power)
    return math.log(batch * scale[1] / scale[0]) - math.log(whole)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A form: its function, where its parameters start and how far from there they are likely, their bounds."""

    log_rate: Callable[..., float]
    start: tuple[float, ...]
    likely: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


# Relative to one GPU at the largest batch: a rate of 1 there, an iteration of 1. GENIE's comm is at most as many GPUs
# as there are, so less than 2. Pollux's parameters are logarithms; its gamma is 1 + the last one's.
_FORMS: Final[dict[Form, _Kind]] = {
    "genie": _Kind(
        _genie,
        (0.5, 0.7, -0.2, 0.4, 0.2),
        (2.0, 4.0, 3.0, 0.6, 0.4),
        (-5.0, -20.0, -20.0, 0.0, 0.0),
        (5.0, 20.0, 20.0, 1.95, 1.95),
    ),
    "pollux": _Kind(
        _pollux,
        (math.log(0.2), math.log(0.8), math.log(0.1), math.log(0.02), math.log(0.2), math.log(0.02), 0.0),
        (2.5, 1.5, 2.0, 2.0, 2.0, 2.0, 1.0),
        (-12.0,) * 6 + (-4.0,),
        (6.0,) * 6 + (2.2,),
    ),
}


def _slope(at: Callable[[Sequence[float]], float], values: Sequence[float]) -> list[float]:
    slopes = []
    for i, value in enumerate(values):
        step = 1e-5 * max(1.0, abs(value))
        up, down = list(values), list(values)
        up[i], down[i] = value + step, value - step
        slopes.append((at(up) - at(down)) / (2 * step))
    return slopes


# --- the fit ----------------------------------------------------------------------------------------------------------


def fit(
    points: Iterable[Point], *, training: bool = True, forms: Sequence[Form] = ("genie", "pollux")
) -> SpeedModel:
    """From runs, in any order, repeats welcome; see `light_profile` for which runs tell most.

    Least squares in logarithms, so that errors are shares of a rate, with a weak prior on each parameter: what no run
    tells stays unknown, and shows in the interval, instead of making the fit impossible. `training=False`: inference,
    which does not communicate.

    Raises ValueError without points or forms.
    """
    runs = list(points)
    if not runs or not forms:
        raise ValueError("nothing to fit: no runs, or no form")
    # GENIE's quadratic is of the rate at a batch, so the scale is that of the largest batch that a GPU had.
    top = max(runs, key=lambda p: (p.batch / (p.nodes * p.gpus), -p.nodes * p.gpus))
    count = top.nodes * top.gpus
    scale = (top.batch / count, top.rate / count)
    fits = tuple(_fitted(form, runs, scale, training) for form in forms)
    # Stacking by what each form says of runs left out of it (pseudo Bayesian model averaging).
    scores = [-len(runs) * math.log(max(one.error, 1e-6)) for one in fits]
    best = max(scores)
    raw = [math.exp(score - best) for score in scores]
    return SpeedModel(fits, tuple(w / sum(raw) for w in raw), _startup([p.startup for p in runs]))


def _startup(seconds: Sequence[float]) -> Range:
    known = sorted(s for s in seconds if not math.isnan(s))
    if not known:
        return _AT_ONCE
    return Range(median(known), known[0], known[-1])


def _fitted(form: Form, runs: Sequence[Point], scale: tuple[float, float], training: bool) -> Fitted:
    import numpy as np

    kind = _FORMS[form]
    likely, low, high = (np.array(one) for one in (kind.likely, kind.low, kind.high))
    centre = np.array(kind.start)
    seen = np.log([p.rate for p in runs])

    def said(values: Array) -> Array:
        listed = [float(v) for v in values]
        return np.array([kind.log_rate(listed, scale, training, p.at) for p in runs])

    def off(values: Array) -> Array:
        # The prior is an observation of each parameter, as good as one run at the noise that is supposed.
        return np.concatenate([seen - said(values), (centre - values) / likely * _NOISE])

    def slopes(values: Array) -> Array:
        columns, here = [], said(values)
        for i, value in enumerate(values):
            step = 1e-7 * max(1.0, abs(value))
            moved = values.copy()
            moved[i] += step if value + step <= high[i] else -step
            columns.append((said(moved) - here) / (moved[i] - value))
        return np.vstack([np.array(columns).T, np.diag(_NOISE / likely)])

    values = min(
        (_descend(off, slopes, start, low, high) for start in _starts(form, centre)),
        key=lambda v: float(off(v) @ off(v)),
    )
    left = seen - said(values)
    jacobian = slopes(values)
    inverse = np.linalg.inv(jacobian.T @ jacobian)
    measured = jacobian[: len(runs)]
    leverage = np.clip(np.einsum("ij,jk,ik->i", measured, inverse, measured), 0.0, 0.999)
    freedom = len(runs) - float(leverage.sum()) + _PRIOR_DOF
    noise = math.sqrt((float(left @ left) + _PRIOR_DOF * _NOISE**2) / freedom)
    error = math.sqrt(float(np.mean((left / (1 - leverage)) ** 2)))
    covariance = tuple(tuple(float(v) for v in row) for row in inverse * noise**2)
    return Fitted(form, tuple(float(v) for v in values), covariance, noise, freedom, error, scale, training)


def _starts(form: Form, centre: Array) -> list[Array]:
    """Several, since squares in seven parameters have more than one valley."""
    starts = [centre]
    for shift in (-1.5, 1.5):
        moved = centre.copy()
        moved[2:6] += shift if form == "pollux" else 0.1 * shift
        starts.append(moved)
    return starts


def _descend(
    off: Callable[[Array], Array], slopes: Callable[[Array], Array], start: Array, low: Array, high: Array
) -> Array:
    """Levenberg and Marquardt's steps, held within bounds."""
    import numpy as np

    values: Array = start.copy()
    damping = 1e-2
    now = off(values)
    best = float(now @ now)
    for _ in range(50):
        jacobian = slopes(values)
        square = jacobian.T @ jacobian
        while True:
            # off = seen - said: its slope is minus the model's, and of the prior likewise
            step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-12), jacobian.T @ now)
            tried = np.clip(values + step, low, high)
            then = off(tried)
            total = float(then @ then)
            if total < best:
                break
            damping *= 4
            if damping > 1e10:
                return values
        small = best - total < 1e-7 * best
        values, now, best, damping = tried, then, total, max(damping / 5, 1e-9)
        if small:
            break
    return values


def _student(freedom: float, confidence: float) -> float:
    """Student's quantile, two-sided: the normal one and the first terms of its expansion (Abramowitz 26.7.5)."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    v = max(freedom, 1.0)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
