"""Emulated pipelines as jobs of a development cluster: submitted, waited for, and what each of them tells."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import emulated_pipeline
from profiler.curves import Curve, relative
from profiler.workload import exact
from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.machine import machine_user
from site_configs.devcluster.spec import CPUS_PER_NODE, GPU_MODEL, Release

__all__ = ["Job", "Ran", "Rig", "rig"]

_PROGRAM = "pipeline.py"


@dataclass(frozen=True)
class Job:
    """A batch script around the emulated pipeline: `words` are its arguments, `options` sbatch's."""

    name: str
    words: tuple[str, ...]
    options: tuple[str, ...] = ("--gpus=1", "--nodes=1")
    command: tuple[str, ...] = ("sbatch",)
    other: str = ""
    """Another script than the pipeline's own."""

    @property
    def script(self) -> str:
        """The batch script, the same for all jobs of a workload."""
        return self.other or f"#!/bin/bash\nexec python3 {_PROGRAM} {' '.join(self.words)}\n"


@dataclass(frozen=True)
class Ran:
    """A job that has ended: times are seconds since the epoch, `rate` steps a second once it had settled."""

    job: str
    name: str
    submitted: float
    began: float
    ended: float
    cpus: int
    rate: float
    steps: int

    @property
    def completion(self) -> float:
        """Seconds from submission to the end."""
        return self.ended - self.submitted


class Rig:
    """A cluster whose ordinary user runs emulated pipelines."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.user = cluster.users[0] if cluster.users else None
        self.uid = machine_user(self.user).uid if self.user else cluster.daemon_user("root").uid
        self.share = CPUS_PER_NODE // cluster.spec.gpus
        self.write(_PROGRAM, Path(emulated_pipeline.__file__).read_text())

    def write(self, name: str, text: str) -> None:
        """A file in the user's folder."""
        self.cluster.run(["sh", "-c", 'cat >"$0"', name], user=self.user, input=text, check=True)

    def submit(self, job: Job, env: Mapping[str, str] | None = None) -> str:
        """The id of the job."""
        name = f"{job.name}.sh"
        self.write(name, job.script)
        argv = [*job.command, "--parsable", f"--job-name={job.name}", "--output=%j.out", *job.options, name]
        done = self.cluster.run(argv, user=self.user, env=env)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr}")
        return done.stdout.split()[-1].partition(";")[0]

    def wait(self, timeout: float) -> None:
        """Until the user has no job any more. Raises RuntimeError after so many seconds."""
        asked = ["squeue", "--noheader", "--format=%i %T %r", *([f"--user={self.user}"] if self.user else [])]
        deadline = time.monotonic() + timeout
        while True:
            said = self.cluster.run(asked)
            if said.returncode == 0 and not said.stdout.strip():
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"jobs are left after {timeout:.0f} s:\n{said.stdout}{said.stderr}")
            time.sleep(1)

    def output(self, job: str) -> str:
        """What a job wrote."""
        return (self.cluster.home(self.user) / f"{job}.out").read_text(errors="replace")

    def ran(self, job: str, name: str, submitted: float) -> Ran:
        """What a job that has ended told. Raises RuntimeError where it told nothing."""
        text = self.output(job)
        try:
            told = json.loads(text.splitlines()[-1])
        except (IndexError, ValueError):
            raise RuntimeError(f"job {job} ({name}) told nothing:\n{text[-2000:]}") from None
        return Ran(
            job, name, submitted, told["began"], told["ended"], told["cpus"], told["rate"], told["steps"]
        )

    def run_all(self, jobs: Iterable[tuple[Job, Mapping[str, str]]], timeout: float = 400) -> list[Ran]:
        """Submit all, in order, each with its environment, and wait for them."""
        begun = [(self.submit(job, env), job.name, time.time()) for job, env in jobs]
        self.wait(timeout)
        return [self.ran(*one) for one in begun]

    def know(self, curves: Iterable[tuple[Job, Curve]]) -> None:
        """Tell the service what was learnt of workloads, through the file that it reads."""
        lines = []
        for job, curve in curves:
            points, uncertainty = relative(curve, self.share)
            record = {
                "kind": "workload",
                "cluster": self.cluster.spec.name,
                "uid": self.uid,
                "workload": exact(job.script, job.name)[0],
                "gpu_type": GPU_MODEL,
                "runs": 1,
                "curve": {"points": points, "uncertainty": uncertainty},
            }
            lines.append(json.dumps(record) + "\n")
        path = self.cluster.paths.gsub_state / "profiles.jsonl"
        path.write_text("".join(lines))
        path.chmod(0o644)
        self.cluster.write_site(self.cluster.paths.site.read_text())  # with which it reads the file

    def await_curves(self, names: Iterable[str], timeout: float = 60) -> None:
        """Until the service has made curves of what was delivered to it. Raises RuntimeError after so many seconds."""
        path = self.cluster.paths.gsub_state / "curves.jsonl"
        missing = set(names)
        deadline = time.monotonic() + timeout
        while missing:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"after {timeout:.0f} s there are no curves of {', '.join(sorted(missing))}"
                )
            time.sleep(0.5)
            text = path.read_text() if path.exists() else ""
            missing -= {json.loads(line)["workload"] for line in text.splitlines()}
        time.sleep(3)  # decisions take a new file within two seconds


@contextmanager
def rig(
    name: str, nodes: int, release: Release = "host", resources: Mapping[str, int] | None = None
) -> Iterator[Rig]:
    """A cluster in enforce for a run of its own, with the site's `resources`."""
    spec = ClusterSpec(
        name=name, nodes=nodes, slurm=release, policy="enforce", deadline=1.0, agents=False, accounting=False
    )
    try:
        cluster = Cluster.up(spec)
        if resources:
            lines = "".join(f"{key} = {value}\n" for key, value in resources.items())
            cluster.write_site(cluster.paths.site.read_text() + f"\n[resources]\n{lines}")
        yield Rig(cluster)
    finally:
        Cluster.down(name)
