"""Run by jobs: puts loads on the GPUs that Slurm gave to this step, each its own by the GPU's number, for a while.

    load.py DEVICES SECONDS [--factor N] [--exit CODE] [--memory MIB] [--busy]

DEVICES is JSON: for each node the GPUs in the order of gres.conf, as [number, MIG instance or null]. Writes what it did
beside the job's output, as JSON. Standard library and the emulator's helper only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path

from site_configs.devcluster import emugpu


def utilisation(number: int, factor: int = 1) -> int:
    """Per cent on GPU `number`."""
    return 37 + 6 * number * factor


def memory_mib(number: int, factor: int = 1) -> int:
    """MiB on GPU `number`."""
    return 1500 + 700 * number * factor


def power_w(number: int, factor: int = 1) -> int:
    """Watts above idle on GPU `number`: never what the GPU cannot take."""
    return 100 + 15 * number * factor


def positions() -> list[int]:
    """Slurm's own numbers of this step's GPUs: places in gres.conf, on the three releases."""
    text = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS") or ""
    return [int(part) for part in text.split(",") if part]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("devices", type=json.loads)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--factor", type=int, default=1)
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--busy", action="store_true")
    asked = parser.parse_args()
    node = os.environ["SLURMD_NODENAME"]
    devices = asked.devices[node]
    mine = [devices[place] for place in positions()]
    held = bytearray(asked.memory << 20)
    held[::4096] = b"x" * len(held[::4096])  # touched, or it takes no memory
    with contextlib.ExitStack() as loads:
        for number, instance in mine:
            figures = [each(number, asked.factor) for each in (utilisation, memory_mib, power_w)]
            loads.enter_context(emugpu.load(*figures, gpus=[number], gpu_instance=instance))
        began = time.time()
        while (left := began + asked.seconds - time.time()) > 0:
            if not asked.busy:
                time.sleep(left)
        ended = time.time()
    times = os.times()
    job, restart = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_RESTART_COUNT", "0")
    done = {"began": began, "ended": ended, "gpus": mine, "cpu_seconds": times.user + times.system}
    Path(f"did-{job}-{restart}-{node}.json").write_text(json.dumps(done))
    return int(asked.exit)


if __name__ == "__main__":
    sys.exit(main())
