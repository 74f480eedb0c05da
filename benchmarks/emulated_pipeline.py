"""A workload of which the CPUs and the GPU are emulated: CPUs prepare batches, a queue holds them, a GPU takes them.

    python emulated_pipeline.py --draw SEED [--steps N | --seconds S] [--tell step|log|both|nothing]

One file, standard library only, so that a job can run a copy of it. Nothing is computed: it waits as long as a pipeline
of that shape would take with the CPUs that it has, so many of them can run side by side on a small machine. The shape
(its knee above all) is drawn from the seed, and the program tells nobody.

The CPUs are those of the emulated lever's file (GSUB_EMULATED_CPUS), which is read again and again, else those that
Slurm gave. k CPUs for each GPU make k batches in the time in which one makes one, up to the knee; from there on the
GPU is the limit. Its last line is JSON: the steps, the seconds that they took, the CPUs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["LEVER", "SECONDS", "Pipeline", "Shape", "cpus_given", "drawn"]

LEVER = "GSUB_EMULATED_CPUS"
"""The variable that names the emulated lever's file."""
SECONDS = "EMULATED_SECONDS"
"""The variable that says how long to run, without --seconds: so one script is the same in runs of any length."""
KNEES = (3.0, 24.0)
STEPS_S = (0.05, 0.3)
NOISES = (0.02, 0.08)
_LOOK = 0.05  # seconds between two looks at the lever
_HICCUP = 100  # one batch of so many takes three times as long
_COLD = 15  # batches that are slow at first
_MOST = 4096  # CPUs that are believed


@dataclass(frozen=True)
class Shape:
    """`knee` is CPUs for each GPU, `step` seconds of a step on the GPU, `noise` the deviation of both, as a share.

    `queue` batches are prefetched; `startup` seconds go by before the first batch is begun.
    """

    knee: float
    step: float
    noise: float = 0.05
    queue: int = 16
    startup: float = 2.0

    def making(self, cpus: float) -> float:
        """Batches a second that so many CPUs (for each GPU) prepare."""
        return cpus / self.knee / self.step

    def rate(self, cpus: float) -> float:
        """Steps a second, without noise.

        >>> Shape(knee=4, step=0.1).rate(2), Shape(knee=4, step=0.1).rate(9)
        (5.0, 10.0)
        """
        return min(self.making(cpus), 1 / self.step)

    @property
    def enough(self) -> int:
        """The fewest whole CPUs with which the GPU never waits."""
        return math.ceil(self.knee)


def drawn(seed: int, low: float = KNEES[0], high: float = KNEES[1], step: float = 0.0) -> Shape:
    """A shape by chance, the same for the same seed: a knee from `low` to `high`, whole ones with odd seeds.

    Twice a knee is as likely as the knee: uniform in its logarithm.

    `step` is seconds of a step, 0: drawn too.
    """
    draw = random.Random(f"shape {seed}")
    knee = math.exp(draw.uniform(math.log(low), math.log(high)))
    if seed % 2:
        knee = min(max(round(knee), math.ceil(low)), math.floor(high))
    return Shape(
        knee,
        step or draw.uniform(*STEPS_S),
        draw.uniform(*NOISES),
        queue=draw.randint(4, 32),
        startup=draw.uniform(0.5, 3),
    )


@dataclass
class Pipeline:
    """The pipeline in a time of its own, which `advance` moves on: it does not wait and has no clock."""

    shape: Shape
    random: random.Random
    now: float = 0.0
    _ready: int = 0
    _left: float = 1.0  # of the batch in the making, in batches
    _busy: float | None = None  # seconds left of the GPU's step; None: it waits for a batch
    _made: int = 0
    _idle_until: float = field(init=False)

    def __post_init__(self) -> None:
        self._idle_until = self.now + self.shape.startup
        self._left = self._batch()

    def advance(self, until: float, cpus: float) -> list[float]:
        """Go on until then with so many CPUs for each GPU; the times at which steps ended."""
        ends = []
        if self.now < self._idle_until:
            self.now = min(self._idle_until, until)
        making = self.shape.making(cpus)
        while self.now < until:
            if self._busy is None and self._ready:
                self._ready -= 1
                self._busy = self.shape.step * self._noise()
            made_in = self._left / making if self._ready < self.shape.queue else math.inf
            done_in = math.inf if self._busy is None else self._busy
            passed = min(made_in, done_in, until - self.now)
            if passed < min(made_in, done_in):
                self.now = until
            else:
                self.now += passed
            if made_in < math.inf:
                self._left = 0.0 if passed == made_in else self._left - passed * making
            if self._busy is not None:
                self._busy -= passed
            if passed == made_in:
                self._ready += 1
                self._left = self._batch()
            if passed == done_in:
                self._busy = None
                ends.append(self.now)
        return ends

    def soonest(self, cpus: float) -> float:
        """Not later than this the next step may end, if nothing changes."""
        wait = max(self._idle_until - self.now, 0.0)
        if self._busy is not None:
            return self.now + wait + self._busy
        return self.now + wait + (0.0 if self._ready else self._left / self.shape.making(cpus))

    def _noise(self) -> float:
        return self.random.lognormvariate(-(self.shape.noise**2) / 2, self.shape.noise)

    def _batch(self) -> float:
        self._made += 1
        if self._made <= _COLD:
            return self._noise() * self.random.uniform(1.2, 3)
        # In the mean 1: so many CPUs make exactly as many batches as `Shape.making` says.
        slow = 3 if self.random.randrange(_HICCUP) == 0 else 1
        return self._noise() * slow / (1 + 2 / _HICCUP)


# --- the world around it --------------------------------------------------------------------------------------------


def cpus_given(env: Mapping[str, str]) -> int:
    """The CPUs that the job has on this node: as the lever says, else as Slurm does, else those of the machine."""
    for text in (
        _read(env.get(LEVER, "")),
        env.get("SLURM_CPUS_ON_NODE", ""),
        env.get("SLURM_CPUS_PER_TASK", ""),
    ):
        if text.strip().isdecimal() and 1 <= int(text) <= _MOST:
            return int(text)
    return os.cpu_count() or 1


def _read(path: str) -> str:
    if not path:
        return ""
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123
            return file.read(16)
    except (OSError, ValueError):
        return ""


def lived(pipeline: Pipeline, cpus: Callable[[], float]) -> Iterator[tuple[float, float]]:
    """The pipeline in real time, for ever: (seconds on its clock, CPUs for each GPU) at the end of each step.

    The pipeline's time does not slip where this process is woken late: on a busy machine steps come late, not fewer.
    """
    begun = time.monotonic() - pipeline.now
    while True:
        count = cpus()
        passed = time.monotonic() - begun
        for end in pipeline.advance(passed, count):
            yield end, count
        wait = min(pipeline.soonest(count) - (time.monotonic() - begun), _LOOK)
        time.sleep(max(wait, 0.001))


def bar(step: int, steps: int, seconds: float) -> str:
    """A line as tqdm draws it."""
    rate = step / max(seconds, 1e-9)
    left = max(steps - step, 0) / rate
    return (
        f"{100 * step // steps:3d}%|{'#' * (10 * step // steps):<10}| {step}/{steps} "
        f"[{_clock(seconds)}<{_clock(left)}, {rate:5.2f}it/s]"
    )


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def main() -> int:
    """Run until the steps are made, or the time is over."""
    parser = argparse.ArgumentParser(description="A training loop with an emulated CPU stage and GPU.")
    parser.add_argument("--draw", type=int, required=True, help="the shape comes from this number")
    parser.add_argument("--low", type=float, default=KNEES[0], help="knees are drawn from here")
    parser.add_argument("--high", type=float, default=KNEES[1])
    parser.add_argument("--step", type=float, default=0.0, help="seconds of a step; 0: drawn")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get(SECONDS, 0)))
    parser.add_argument(
        "--gpus", type=int, default=0, help="default: those that Slurm gave on this node, or 1"
    )
    parser.add_argument("--tell", choices=("step", "log", "both", "nothing"), default="both")
    asked = parser.parse_args()
    gpus = asked.gpus or _whole(os.environ.get("SLURM_GPUS_ON_NODE", "")) or 1
    count: Callable[[], object] | None = None
    if asked.tell in ("step", "both"):
        from gsub import train

        count = getattr(train, "step", None)
    shape = drawn(asked.draw, asked.low, asked.high, asked.step)
    pipeline = Pipeline(shape, random.Random())
    total = asked.steps or 10**6
    began, ends = time.time(), list[float]()
    drawn_at, cpus = -math.inf, 0
    for end, share in lived(pipeline, lambda: cpus_given(os.environ) / gpus):
        ends.append(end)
        cpus = round(share * gpus)
        if count is not None:
            count()
        if asked.tell in ("log", "both") and end - drawn_at >= 0.1:  # as often as tqdm
            drawn_at = end
            sys.stderr.write("\r" + bar(len(ends), total, end))
            sys.stderr.flush()
        if (asked.steps and len(ends) >= asked.steps) or (asked.seconds and end >= asked.seconds):
            break
    # What comes first is the start-up's and the queue's.
    rest = ends[len(ends) // 3 :]
    rate = (len(rest) - 1) / (rest[-1] - rest[0]) if len(rest) > 1 else 0.0
    # `cpus` are those at the end.
    told = {
        "began": began,
        "ended": time.time(),
        "steps": len(ends),
        "seconds": ends[-1],
        "rate": rate,
        "cpus": cpus,
        "gpus": gpus,
    }
    print("\n" + json.dumps({**told, "counted": count is not None}), flush=True)
    return 0


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 0


if __name__ == "__main__":
    sys.exit(main())
