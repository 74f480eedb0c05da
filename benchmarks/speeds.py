"""How well speed is foretold from few runs: ``python -m benchmarks.speeds [--truths N] [--gate]``.

Hidden truths are drawn at random; a light profile of each is measured with noise and fitted; then every other placement
and batch of the grid (B x G x N without what was measured) is foretold. Four kinds of truth: the two forms of
`profiler.speed`, and two that neither of them is, so that the model is wrong: GENIE's with a time of each iteration
that grows with the logarithm of nodes, and Chronus's, computation, and synchronisation by the logarithms of nodes and
of GPUs. Printed are the mean error of the foretold rate, the worst truth's, and how often a run falls into its 95 %
interval. Last, what was measured on A100s (`profiler.scaling`): each run foretold from the others of its model.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from profiler.scaling import MEASURED, points
from profiler.speed import Point, SpeedModel, fit, light_profile

BATCHES: Final = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)
NOISES: Final = (0.005, 0.02, 0.05)

Truth = Callable[[float, int, int], float]
"""Batch, nodes, GPUs on each -> samples a second."""


def genie(rng: Random) -> Truth:
    """Equations 5 to 8: a rate that rises with the batch to its plateau, and a part of the GPUs lost."""
    bottom, vertex = rng.uniform(0.2, 0.6), rng.uniform(1.0, 1.6)
    gamma, lam, peak = rng.uniform(0.1, 1.4), rng.uniform(0.1, 0.9), rng.uniform(50, 2000)

    def rate(batch: float, nodes: int, gpus: int) -> float:
        count = nodes * gpus
        local = batch / count / BATCHES[-1]
        comm = gamma * ((nodes - 1) * gpus + lam * (gpus - 1)) / (count - 1) if count > 1 else 0.0
        single = bottom + (1 - bottom) * (2 * local / vertex - (local / vertex) ** 2)
        return (count - comm) * single * peak

    return rate


def pollux(rng: Random) -> Truth:
    """T_iter, with a faster network inside a node than between nodes."""
    alpha = rng.uniform(0.05, 0.4)
    inside = 10 ** rng.uniform(-2, -0.5)
    across = inside * rng.uniform(1.5, 8)
    more_in, more_out = inside * rng.uniform(0, 0.1), across * rng.uniform(0, 0.05)
    power, whole = rng.uniform(1, 4), 10 ** rng.uniform(-1, 1)

    def rate(batch: float, nodes: int, gpus: int) -> float:
        count = nodes * gpus
        grad = alpha + (1 - alpha) * batch / count / BATCHES[-1]
        sync = 0.0
        if count > 1:
            sync = across + more_out * (count - 2) if nodes > 1 else inside + more_in * (count - 2)
        took: float = whole * (grad**power + sync**power) ** (1 / power)
        return batch / took

    return rate


def genie_with_latency(rng: Random) -> Truth:
    """GENIE's, and 0.1 to 3 % of one GPU's largest iteration for each doubling of the nodes, whatever the batch."""
    base = genie(rng)
    each = 10 ** rng.uniform(-3, -1.5) * BATCHES[-1] / base(BATCHES[-1], 1, 1)
    return lambda batch, nodes, gpus: batch / (batch / base(batch, nodes, gpus) + each * math.log2(nodes))


def chronus(rng: Random) -> Truth:
    """t_c + log2(n) t_o, for nodes and in a node."""
    alpha, across = rng.uniform(0.05, 0.4), 10 ** rng.uniform(-1.5, -0.3)
    inside = across * rng.uniform(0.05, 0.3)

    def rate(batch: float, nodes: int, gpus: int) -> float:
        grad = alpha + (1 - alpha) * batch / (nodes * gpus) / BATCHES[-1]
        return batch / (grad + across * math.log2(nodes) + inside * math.log2(gpus))

    return rate


TRUTHS: Final[dict[str, Callable[[Random], Truth]]] = {
    "genie": genie,
    "pollux": pollux,
    "genie + latency": genie_with_latency,
    "chronus": chronus,
}


@dataclass(frozen=True, slots=True)
class Foretold:
    """Of one truth: errors of the foretold rates, how many runs fell into their interval, half widths, the form."""

    errors: tuple[float, ...]
    inside: float
    width: float
    form: str
    runs: int

    @property
    def mean(self) -> float:
        """Mean error."""
        return sum(self.errors) / len(self.errors)


def profiled(
    truth: Truth, noise: float, rng: Random, nodes: int, gpus: int
) -> tuple[SpeedModel, set[object]]:
    """The model from a light profile with noise, and what was measured."""
    runs = light_profile(BATCHES, nodes, gpus)
    return fit([Point(*run, truth(*run) * math.exp(rng.gauss(0, noise))) for run in runs]), set(runs)


def foretold(kind: str, noise: float, seed: int, nodes: int = 4, gpus: int = 4) -> Foretold:
    """One hidden truth, measured, fitted and foretold."""
    rng = Random(f"{kind} {seed} {nodes}")
    truth = TRUTHS[kind](rng)
    model, measured = profiled(truth, noise, rng, nodes, gpus)
    errors, inside, widths = [], 0, []
    for n in range(1, nodes + 1):
        for g in range(1, gpus + 1):
            for batch in BATCHES:
                if (batch, n, g) in measured or batch < n * g:
                    continue
                real = truth(batch, n, g)
                rate, low, high = model.rate(batch, n, g)
                errors.append(abs(rate / real - 1))
                inside += low <= real * math.exp(rng.gauss(0, noise)) <= high
                widths.append((high - low) / 2 / rate)
    return Foretold(tuple(errors), inside / len(errors), sum(widths) / len(widths), model.form, len(measured))


def left_out(model: str) -> tuple[list[float], int]:
    """Errors of each measured run foretold from the others of its model, and how many fell into their interval."""
    runs = points(model)
    errors, inside = [], 0
    for i, one in enumerate(runs):
        rate, low, high = fit(runs[:i] + runs[i + 1 :]).rate(*one.at)
        errors.append(abs(rate / one.rate - 1))
        inside += low <= one.rate <= high
    return errors, inside


def report(kind: str, noise: float, all_of: Sequence[Foretold]) -> str:
    """A line of the table."""
    errors = sorted(error for one in all_of for error in one.errors)
    own = sum(one.form == kind for one in all_of)
    return (
        f"| {kind} | {100 * noise:g} % | {100 * sum(one.mean for one in all_of) / len(all_of):.1f} % "
        f"| {100 * max(one.mean for one in all_of):.1f} % | {100 * errors[int(0.95 * len(errors))]:.1f} % "
        f"| {100 * sum(one.inside for one in all_of) / len(all_of):.0f} % "
        f"| {100 * sum(one.width for one in all_of) / len(all_of):.0f} % "
        f"| {f'{own} of {len(all_of)}' if kind in ('genie', 'pollux') else '-'} |"
    )


def main() -> int:
    """Measure, print, and with --gate judge."""
    parser = argparse.ArgumentParser(description="How well speed is foretold from few runs.")
    parser.add_argument("--truths", type=int, default=40, help="of each kind and noise")
    parser.add_argument("--gate", action="store_true", help="few truths; fail when the error is 5 %% or more")
    options = parser.parse_args()
    count, wrong = (6, []) if options.gate else (options.truths, [])
    for size in (4,) if options.gate else (4, 8):
        runs = len(light_profile(BATCHES, size, size))
        print(
            f"{size} nodes x {size} GPUs, {len(BATCHES)} batches: {runs} runs measured, {count} truths of each kind",
            "",
            "| truth | noise | mean error | worst truth's | 95 % of errors below | runs in their 95 % interval "
            "| its half width | form chosen right |",
            "|---|---|---|---|---|---|---|---|",
            sep="\n",
        )
        for kind in TRUTHS:
            for noise in NOISES:
                all_of = [foretold(kind, noise, seed, size, size) for seed in range(count)]
                print(report(kind, noise, all_of), flush=True)
                mean = sum(one.mean for one in all_of) / count
                if kind in ("genie", "pollux") and mean >= 0.05:
                    wrong.append(f"{kind} at {noise}: {mean:.3f}")
        print()
    if not options.gate:
        for model in MEASURED:
            errors, inside = left_out(model)
            print(
                f"{model} on A100s, each of {len(errors)} runs from the others: mean error "
                f"{100 * sum(errors) / len(errors):.1f} %, worst {100 * max(errors):.1f} %, {inside} in their interval"
            )
    if wrong:
        print(f"speeds: 5 % or more off: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
