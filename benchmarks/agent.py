"""What the agent costs a node: CPU in per cent of a core, and memory with its children, at 8 GPUs and a look each 10 s.

    python -m benchmarks.agent [--slurm RELEASE] [--seconds N] [--gate] [--json]

Measured while no job runs, in the first minute of a job on all 8 GPUs, and after that minute. CPU is that of the agent
and of all its children, ended ones too; memory is PSS, which counts a page shared by two processes once. Exit 1 when
an aim is missed; with --gate only when a bound far above the aims is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.hooks import cluster_of_one
from site_configs.devcluster import Cluster
from site_configs.devcluster.agents import PREFIX
from site_configs.devcluster.nvml import EmulatedGpus
from site_configs.devcluster.spec import RELEASES
from site_configs.devcluster.supervisor import descendants

DAEMON = f"{PREFIX}n1"
INTERVAL, REPORT = "10 s", "60 s"
"""A site's defaults: the development cluster looks more often."""
AIM_CPU, AIM_MIB = 0.5, 60.0
GATE_CPU, GATE_MIB = 2.5, 120.0
FIRST_MINUTE = 60.0
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Figure:
    """A stretch of time: CPU in per cent of a core, and memory at its end in MiB."""

    when: str
    seconds: float
    cpu: float
    mib: float
    processes: int


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """User and system time of processes and of their children that ended (proc(5), fields 14 to 17)."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / _TICK


def pss_mib(pids: tuple[int, ...]) -> float:
    """What processes hold of the machine's memory."""
    kib = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        kib += sum(map(int, re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)))
    return kib / 1024


def watch(cluster: Cluster, when: str, seconds: float) -> Figure:
    """Wait, and say what the agent took meanwhile."""
    agent = cluster.daemons()[DAEMON]
    before, began = cpu_seconds((agent, *descendants(agent))), time.monotonic()
    time.sleep(seconds)
    pids = (agent, *descendants(agent))
    took = time.monotonic() - began
    return Figure(when, took, 100 * (cpu_seconds(pids) - before) / took, pss_mib(pids), len(pids))


def measure(cluster: Cluster, seconds: float) -> list[Figure]:
    """All three."""
    # the emulated driver's own sampling would be counted as the agent's
    EmulatedGpus(cluster.paths.gpus).set_node("n1", sample_period_ms=None)
    text = cluster.paths.site.read_text()
    text = re.sub(r"^interval = .*", f'interval = "{INTERVAL}"', text, flags=re.MULTILINE)
    cluster.write_site(re.sub(r"^report = .*", f'report = "{REPORT}"', text, flags=re.MULTILINE))
    cluster.restart(DAEMON)
    time.sleep(15)  # its start, and its first look
    figures = [watch(cluster, "no job", seconds)]
    user = cluster.users[0] if cluster.users else None
    script = (
        "from site_configs.devcluster import emugpu\nimport time\n"
        "with emugpu.load(80, memory_mib=9000): time.sleep(3600)"
    )
    line = ["sbatch", "--parsable", "--gpus=8", "--output=/dev/null", "--wrap", f"python3 -c '{script}'"]
    job = cluster.run(line, user=user, check=True).stdout.strip()
    figures.append(watch(cluster, "a job's first minute", FIRST_MINUTE))
    figures.append(watch(cluster, "a job", seconds))
    cluster.run(["scancel", job], user=user)
    return figures


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description="What the agent costs a node.")
    parser.add_argument("--slurm", choices=RELEASES, default="host", help="release of the cluster")
    parser.add_argument("--seconds", type=float, help="of watching without and with a job (60; 30 with --gate)")
    parser.add_argument("--gate", action="store_true", help="fail on the gates only, not on aims")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.umask(0o022)
    with cluster_of_one(asked.slurm, agents=True) as cluster:
        figures = measure(cluster, asked.seconds or (30.0 if asked.gate else 60.0))
    cpu, mib = (GATE_CPU, GATE_MIB) if asked.gate else (AIM_CPU, AIM_MIB)
    if asked.json:
        print(json.dumps([asdict(each) for each in figures]))
    else:
        print(f"8 GPUs, a look each {INTERVAL}   aims: CPU < {AIM_CPU} %, memory < {AIM_MIB:.0f} MiB")
        for each in figures:
            print(
                f"{each.when:<22} {each.cpu:5.2f} % of a core   {each.mib:5.1f} MiB in {each.processes} processes"
            )
    return 1 if any(each.cpu > cpu or each.mib > mib for each in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
