"""What `gsub.train.step()` costs: nanoseconds a call, without and with somebody who measures.

    python -m benchmarks.step [--calls N] [--rounds N] [--python PATH]

Each row is the median over rounds of a loop of calls less the same loop without the call. Exit 1 when a call with
measurement on misses its aim, 1 microsecond.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

AIM_NS = 1000.0
HELPER = Path(__file__).parents[1] / "gsub/train.py"

TIMED = """
import json, runpy, sys, time
helper, calls, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
step = runpy.run_path(helper, run_name="gsub_train")["step"]

def empty(count):
    begun = time.perf_counter()
    for _ in range(count):
        pass
    return time.perf_counter() - begun

def counted(count):
    begun = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - begun

counted(calls // 10)
each = [(counted(calls) - empty(calls)) / calls * 1e9 for _ in range(rounds)]
print(json.dumps(each))
"""


def cost(python: str, calls: int, rounds: int, folder: str) -> list[float]:
    """Nanoseconds of a call, a figure a round; `folder` is where steps are told, "" nowhere."""
    environ = {name: text for name, text in os.environ.items() if name != "GSUB_STEPS"}
    if folder:
        environ["GSUB_STEPS"] = folder
    words = [python, "-c", TIMED, str(HELPER), str(calls), str(rounds)]
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return sorted(found)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--python", default=sys.executable)
    asked = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, where in (("nobody measures", ""), ("measured", folder)):
            each = cost(asked.python, asked.calls, asked.rounds, where)
            middle = each[len(each) // 2]
            missed |= middle > AIM_NS
            print(
                f"step(), {name:<16}{middle:7.0f} ns a call  (lowest {each[0]:.0f}, highest {each[-1]:.0f})"
            )
        files = list(Path(folder).iterdir())
        print(f"files left by it: {len(files)}, {sum(one.stat().st_size for one in files) / 1024:.0f} KiB")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
