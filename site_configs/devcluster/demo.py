"""`make demo`: the example training job, submitted with `gsub`, run by a real Slurm, and reported.

Every figure that is printed was measured in this run: the state and times by Slurm, the accuracy by the job's own
output, the GPU use by NVML samples taken on the job's nodes while it ran.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from site_configs.devcluster.cluster import Cluster
from site_configs.devcluster.pythonenv import REPOSITORY
from site_configs.devcluster.spec import ClusterSpec, DevClusterError

EXAMPLE: Final = REPOSITORY / "examples" / "digits"
_ACCURACY: Final = re.compile(r"final accuracy (\d\.\d+)")
_MIB: Final = 1 << 20


@dataclass(slots=True)
class Samplers:
    """NVML samplers, one a node, that run until `finish`."""

    running: dict[str, subprocess.Popen[str]]

    def finish(self) -> list[tuple[str, dict[str, Any]]]:
        """End the samplers; what each saw of its GPUs, as (node, usage)."""
        for process in self.running.values():
            if process.stdin is not None:
                process.stdin.close()
        seen = []
        for node, process in self.running.items():
            said = process.stdout.read() if process.stdout is not None else ""
            if process.wait(timeout=30):
                raise DevClusterError(f"the GPU sampler of {node} failed")
            seen += [(node, gpu) for gpu in json.loads(said)["gpus"]]
        return seen


@contextmanager
def _samplers(cluster: Cluster) -> Iterator[Samplers]:
    command = ["python3", "-m", "profiler.sampler", "--until-eof", "--interval", "0.5", "--json"]
    running = {
        node: cluster.popen(
            command, env={"GSUB_EMU_NODE": node}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path("/")
        )
        for node in cluster.spec.node_names
    }
    try:
        yield Samplers(running)
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def main() -> int:
    """Run the demo; 0 when the job completed and its figures could be read."""
    started = time.monotonic()
    cluster = Cluster.up(ClusterSpec(), say=lambda text: print(f"  {text}", flush=True))
    print(f"Slurm {cluster.version} is up: {cluster.spec.nodes} nodes x {cluster.spec.gpus} GPUs\n")
    user = cluster.users[0] if cluster.users else None
    folder = _example(cluster, user)
    with _samplers(cluster) as samplers:
        print(f"{user or 'you'}$ gsub --watch train.sh", flush=True)
        job, output = _submit(cluster, folder, user)
        gpus = samplers.finish()
    report = _report(cluster, job, output, gpus, user)
    print("\n" + "\n".join(report))
    print(
        f"\n{time.monotonic() - started:.0f} s in all. The cluster stays up; `make cluster-down` ends it. Next:"
    )
    print(f"  .venv/bin/python -m site_configs.devcluster run {f'--user {user} ' if user else ''}-- bash")
    return 0


def _example(cluster: Cluster, user: str | None) -> Path:
    """Give the user a copy of the example. The user writes it: in a folder of theirs, root would follow their links."""
    folder = cluster.home(user) / "digits"
    cluster.run(["mkdir", "-p", str(folder)], user=user, check=True)
    for source in sorted(path for path in EXAMPLE.iterdir() if path.is_file()):
        target = str(folder / source.name)
        # a new file, so that nobody's link is followed and no earlier owner keeps it
        script = 'rm -f "$0" && cat > "$0"'
        cluster.run(["sh", "-c", script, target], user=user, input=source.read_text(), check=True)
    return folder


def _submit(cluster: Cluster, folder: Path, user: str | None) -> tuple[str, str]:
    """Submit and follow the job, passing on what it prints; its id and that text."""
    process = cluster.popen(
        ["gsub", "--watch", "train.sh"],
        user=user,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines = []
    for line in process.stdout or ():
        print(f"  {line}", end="", flush=True)
        lines.append(line)
    text = "".join(lines)
    job = re.search(r"Submitted batch job (\d+)", text)
    if process.wait() or job is None:
        raise DevClusterError(
            f"the job did not complete (gsub ended with {process.returncode}); its output is above"
        )
    return job[1], text


def _report(
    cluster: Cluster, job: str, output: str, gpus: list[tuple[str, dict[str, Any]]], user: str | None
) -> list[str]:
    state, elapsed, nodes = _accounted(cluster, job, user)
    accuracy = _ACCURACY.search(output)
    if state != "COMPLETED" or accuracy is None:
        raise DevClusterError(
            f"job {job} is {state}, and printed {accuracy and accuracy[0]!r} as its accuracy"
        )
    lines = [f"job {job}: {state} in {elapsed} on {nodes}", f"accuracy: {accuracy[1]} on held-out digits", ""]
    lines += ["node  GPU  busy s  mean use while busy  memory peak  mean power"]
    used = [(node, gpu) for node, gpu in gpus if gpu["busy_seconds"]]
    for node, gpu in used:
        use = _shown(gpu["utilisation_busy_mean"], ".0f", "%")
        memory = _shown(gpu["memory_peak_bytes"], ".0f", " MiB", _MIB)
        power = _shown(gpu["power_mean_w"], ".0f", " W")
        seconds = f"{gpu['busy_seconds']:.1f}"
        lines.append(f"{node:<5} {gpu['minor']:>3}  {seconds:>6}  {use:>19}  {memory:>11}  {power:>10}")
    if not used:
        raise DevClusterError("no GPU was seen busy while the job ran")
    return lines


def _accounted(cluster: Cluster, job: str, user: str | None) -> tuple[str, str, str]:
    """State, elapsed time and nodes from accounting, which learns of the end a moment after the job."""
    for _ in range(100):
        said = cluster.run(
            ["sacct", "-n", "-X", "-P", "-j", job, "-o", "State,Elapsed,NodeList"], user=user
        ).stdout
        state, _, rest = said.strip().partition("|")
        if state not in ("", "RUNNING", "PENDING", "COMPLETING"):
            elapsed, _, nodes = rest.partition("|")
            return state, elapsed, nodes
        time.sleep(0.1)
    raise DevClusterError(f"accounting does not know how job {job} ended")


def _shown(value: float | None, form: str, unit: str, scale: float = 1.0) -> str:
    return "n/a" if value is None else f"{value / scale:{form}}{unit}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DevClusterError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\ndemo: interrupted; `make cluster-down` ends what is up, jobs included", file=sys.stderr)
        sys.exit(130)
