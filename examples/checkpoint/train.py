#!/usr/bin/env python3
"""Fit a line to noisy points, a step at a time, and survive being stopped: Python 3.8 and nothing else.

Stopped and started again as often as you like, it ends at the very numbers of a run that was never stopped: the
checkpoint has all that the next step depends on, the state of the random numbers too.
"""

import argparse
import json
import random
import time
from pathlib import Path

import gsub_train

RATE = 0.05


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--seconds-per-step", type=float, default=0.0)
    parser.add_argument("--folder", default="checkpoints")
    wanted = parser.parse_args()

    slope, offset, done = 0.0, 0.0, 0
    numbers = random.Random(0)  # noqa: S311 - noise
    found = gsub_train.latest(wanted.folder, "*.ckpt")
    if found:
        slope, offset, done, (version, words, spare) = json.loads(Path(found).read_text())
        numbers.setstate((version, tuple(words), spare))
        print(f"goes on from {found}, step {done}", flush=True)

    for step in range(done + 1, wanted.steps + 1):
        x = numbers.uniform(-1, 1)
        error = slope * x + offset - (2 * x + 1 + numbers.gauss(0, 0.1))
        slope -= RATE * error * x
        offset -= RATE * error
        time.sleep(wanted.seconds_per_step)
        stopping = gsub_train.stopping()
        if step % wanted.every == 0 or stopping:
            print(f"step {step} slope {slope:.4f} offset {offset:.4f}", flush=True)
            with gsub_train.saving(f"{wanted.folder}/{step}.ckpt", step) as part:
                Path(part).write_text(json.dumps([slope, offset, step, numbers.getstate()]))
        if stopping and step < wanted.steps:
            gsub_train.stop()
    print(f"final slope {slope:.12f} offset {offset:.12f} after {wanted.steps} steps")


if __name__ == "__main__":
    main()
