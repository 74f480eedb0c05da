"""The cost of decoding a long queue: CPU and memory of a reader, by the values that it reads.

    python -m benchmarks.queue_reading [--jobs 20000]

A command stands in for squeue and prints as many pending jobs, in the fields and with the separator that it is asked
for. Each reader is a process of its own, and what it uses is its own: squeue's work and slurmctld's are not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.purposes import POSITION, QUEUE, SUBMISSIONS

READERS: Final = {"all values": None, "gsubd": SUBMISSIONS, "keeper": QUEUE, "gsub why": POSITION}

_JOB: Final = {
    "ArrayJobID": "{id}",
    "ArrayTaskID": "N/A",
    "HetJobID": "N/A",
    "HetJobOffset": "N/A",
    "Name": "train-{id}",
    "UserName": "user{user}",
    "UserID": "{uid}",
    "Account": "lab{lab}",
    "QOS": "normal",
    "Partition": "gpu",
    "State": "PENDING",
    "Reason": "Priority",
    "Requeue": "1",
    "RestartCnt": "0",
    "exit_code": "0",
    "DerivedEC": "0:0",
    "TimeLimit": "1-00:00:00",
    "SubmitTime": "1795236133",
    "EligibleTime": "1795236133",
    "StartTime": "N/A",
    "EndTime": "N/A",
    "Deadline": "N/A",
    "NumNodes": "{nodes}",
    "NumCPUs": "{cpus}",
    "NumTasks": "{nodes}",
    "cpus-per-task": "8",
    "tres-alloc": "cpu={cpus},mem=64000M,node={nodes},billing={cpus},gres/gpu={cpus}",
    "tres-per-job": "N/A",
    "tres-per-node": "gres/gpu:8",
    "tres-per-socket": "N/A",
    "tres-per-task": "N/A",
    "mem-per-tres": "N/A",
    "cpus-per-tres": "N/A",
    "Feature": "(null)",
    "Prefer": "(null)",
    "Reservation": "(null)",
    "Licenses": "(null)",
    "ReqSwitch": "0",
    "Wait4Switch": "00:00:00",
    "PriorityLong": "{id}",
    "Nice": "0",
    "WorkDir": "/home/user{user}/project",
    "Command": "/home/user{user}/project/train.sh",
    "StdOut": "/home/user{user}/project/slurm-{id}.out",
    "StdErr": "/home/user{user}/project/slurm-{id}.out",
    "Comment": "(null)",
    "admin_comment": "(null)",
    "system_comment": "(null)",
    "BatchFlag": "1",
    "OverSubscribe": "OK",
    "GroupName": "users",
    "JobID": "{id}",
}
_SQUEUE: Final = """#!{python}
import json, sys
layout = sys.argv[-1]
if layout == "--version":
    sys.exit(print("slurm 24.11.5"))
values = json.loads({values!r})
fields = [field.partition(":") for field in layout.split(",")]
line = "".join(values.get(name, "") + separator for name, _, separator in fields) + "\\n"
for number in range(1, {jobs} + 1):
    of_user = dict(user=number % 200, uid=1000 + number % 200, lab=number % 20)
    sys.stdout.write(line.format(id=number, nodes=1 + number % 4, cpus=8 + number % 4 * 8, **of_user))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of a reader, and MiB that it held more at most than before it read."""

    cpu: float
    memory: float


def read(reader: str) -> Cost:
    """Read the queue in this process."""
    client = CommandClient()
    client.version()
    before = resource.getrusage(resource.RUSAGE_SELF)
    client.jobs(values=READERS[reader])
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu, (after.ru_maxrss - before.ru_maxrss) / 1024)


def measure(reader: str, jobs: int) -> Cost:
    """Read the queue in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        squeue = Path(folder, "squeue")
        squeue.write_text(_SQUEUE.format(python=sys.executable, values=json.dumps(_JOB), jobs=jobs))
        squeue.chmod(0o755)
        env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        argv = [sys.executable, "-m", "benchmarks.queue_reading", "--reader", reader]
        done = subprocess.run(argv, env=env, check=True, capture_output=True, text=True)
    return Cost(*json.loads(done.stdout))


def main() -> None:
    """Print a table: each reader, and its cost over that of who reads all values."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue_reading")
    parser.add_argument("--jobs", type=int, default=20_000, help="pending jobs (%(default)s)")
    parser.add_argument("--reader", choices=READERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        cost = read(arguments.reader)
        print(json.dumps([cost.cpu, cost.memory]))
        return
    costs = {reader: measure(reader, arguments.jobs) for reader in READERS}
    whole = costs["all values"]
    for reader, cost in costs.items():
        print(
            f"{reader:<12} {cost.cpu:6.2f} s of CPU (x{cost.cpu / whole.cpu:.2f})"
            f"  {cost.memory:5.0f} MiB (x{cost.memory / whole.memory:.2f})"
        )


if __name__ == "__main__":
    main()
