"""`make demo`: the example training job, submitted with `gsub`, run by a real Slurm, and reported.

Every figure that is printed was measured in this run: the state and times by Slurm, the accuracy by the job's own
output, the use of GPUs, processors and memory by the agents on the job's nodes; it is read back from the record as the
user reads it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from site_configs.devcluster.cluster import Cluster
from site_configs.devcluster.pythonenv import REPOSITORY
from site_configs.devcluster.spec import ClusterSpec, DevClusterError

EXAMPLE: Final = REPOSITORY / "examples" / "digits"
_ACCURACY: Final = re.compile(r"final accuracy (\d\.\d+)")
_RECORD_S: Final = 60.0
"""From the job's end until all its nodes have told theirs: seconds, but for a machine that is busy with else."""


def main() -> int:
    """Run the demo; 0 when the job completed and its figures could be read."""
    started = time.monotonic()
    cluster = Cluster.up(ClusterSpec(), say=lambda text: print(f"  {text}", flush=True))
    print(f"Slurm {cluster.version} is up: {cluster.spec.nodes} nodes x {cluster.spec.gpus} GPUs\n")
    user = cluster.users[0] if cluster.users else None
    folder = _example(cluster, user)
    print(f"{user or 'you'}$ gsub --watch train.sh", flush=True)
    job, output = _submit(cluster, folder, user)
    print("\n" + "\n".join(_report(cluster, job, output, user)), flush=True)
    _recorded(cluster, job, user)
    for command in (["gsub", "usage", job], ["gsub", "usage", "--receipt", job]):
        print(f"\n{user or 'you'}$ {' '.join(command)}", flush=True)
        for line in cluster.run(command, user=user, check=True).stdout.splitlines():
            print(f"  {line}", flush=True)
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


def _report(cluster: Cluster, job: str, output: str, user: str | None) -> list[str]:
    state, elapsed, nodes = _accounted(cluster, job, user)
    accuracy = _ACCURACY.search(output)
    if state != "COMPLETED" or accuracy is None:
        raise DevClusterError(
            f"job {job} is {state}, and printed {accuracy and accuracy[0]!r} as its accuracy"
        )
    return [f"job {job}: {state} in {elapsed} on {nodes}", f"accuracy: {accuracy[1]} on held-out digits"]


def _recorded(cluster: Cluster, job: str, user: str | None) -> None:
    """Wait for the whole record of the job. Raises DevClusterError: it did not come, or tells of no work on a GPU."""
    deadline = time.monotonic() + _RECORD_S
    while time.monotonic() < deadline:
        said = cluster.run(["gsub", "usage", "--json", job], user=user)
        usage: dict[str, Any] = json.loads(said.stdout) if said.returncode == 0 else {}
        if usage.get("job", {}).get("complete") and all(node.get("final") for node in usage["nodes"]):
            if any(gpu.get("busy_seconds") for node in usage["nodes"] for gpu in node["gpus"]):
                return
            raise DevClusterError("no GPU was seen busy while the job ran")
        time.sleep(0.5)
    raise DevClusterError(f"the record of job {job} did not come within {_RECORD_S:g} s\n{said.stderr}")


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


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DevClusterError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\ndemo: interrupted; `make cluster-down` ends what is up, jobs included", file=sys.stderr)
        sys.exit(130)
