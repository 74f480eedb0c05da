"""A cluster's record as a test sees it: jobs submitted as a user, and what the service then answers of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from ClusterShell.NodeSet import NodeSet, RangeSet

from profiler.answers import Jobs, JobSummary, Nodes, Series, Usage
from profiler.munge import Munge
from profiler.records import GpuUse
from profiler.sealed import Service, ServiceError
from site_configs.devcluster import Cluster, layouts
from site_configs.devcluster.nvml import EmulatedGpus
from site_configs.site import load_site
from tests.waiting import wait_until

T = TypeVar("T")
PATIENCE = 240.0
_UNDER_WAY = (None, "PENDING", "RUNNING", "COMPLETING", "SUSPENDED")
_BOOKS = "JobIDRaw,DBIndex,State,Submit,Start,End,NodeList"
_LOAD = Path(__file__).with_name("load.py")
_ASK = """
import os, sys
from profiler.munge import Munge
from profiler.sealed import Service, believed
from site_configs.site import load_site
site = load_site(os.environ["GSUB_SITE"])
service = Service(site.service.url, Munge(site.slurm.munge_socket), believed(site.service.user))
answer = service.ask("GET", sys.argv[1])
print(answer.status)
print(answer.body.decode())
"""


@dataclass(frozen=True)
class Device:
    """A GPU or a MIG instance that Slurm has on a node: its device number, and the instance's id in its GPU."""

    number: int
    instance: int | None
    uuid: str


@dataclass(frozen=True)
class Given:
    """What Slurm says a job was given: the places in gres.conf, by node."""

    places: dict[str, tuple[int, ...]]


class Recorded:
    """A cluster with agents."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.user = cluster.users[0] if cluster.users else None
        self.gpus = EmulatedGpus(cluster.paths.gpus)
        self.home = cluster.home(self.user)
        url, munge = f"http://127.0.0.1:{cluster.ports.api}", Munge(str(cluster.paths.munge_socket))
        self._service = Service(url, munge, {0, cluster.daemon_user("gsub").uid})
        cluster.run(["sh", "-c", "cat > load.py"], user=self.user, input=_LOAD.read_text(), check=True)

    @property
    def interval(self) -> float:
        """Seconds between two looks at the GPUs."""
        return float(load_site(self.cluster.paths.site).agent.interval)

    # --- jobs -------------------------------------------------------------------------------------------------------

    def devices(self, node: str) -> list[Device]:
        """The GPUs of a node, in the order of gres.conf."""
        layout, count = self.cluster.spec.layout(node), self.cluster.spec.gpus
        whole = [
            Device(number, None, str(self.gpus.state(node, number)["uuid"]))
            for number in layouts.numbers(layout, count)
        ]
        if layout != "mig":
            return whole
        lines = [value for key, value in sorted(self.gpus.state(node, 0).items()) if key.startswith("mig ")]
        fields = [str(line).split() for line in lines]
        return whole + [Device(0, int(each[0]), each[4]) for each in fields]

    def load(self, seconds: float, *options: str) -> str:
        """The command that loads a step's GPUs."""
        named = {
            node: [(each.number, each.instance) for each in self.devices(node)]
            for node in self.cluster.spec.node_names
        }
        return " ".join(["python3", "load.py", f"'{json.dumps(named)}'", str(seconds), *options])

    def submit(self, *options: str, script: str) -> int:
        """Submit a script as the user; the job's id."""
        line = ["sbatch", "--parsable", "--mem=500", *options]
        done = self.cluster.run(line, user=self.user, input=f"#!/bin/bash\n{script}\n", check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.strip().splitlines()[-1].split(";")[0])

    def given(self, job: int | str) -> Given:
        """What Slurm gave to a job, once it runs."""

        def look() -> Given | None:
            text = self.cluster.run(["scontrol", "-o", "-d", "show", "job", str(job)]).stdout
            if "JobState=RUNNING" not in text:
                return None
            places: dict[str, tuple[int, ...]] = {}
            for nodes, gres in re.findall(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S*)", text):
                named = [int(i) for part in re.findall(r"IDX:([\d,-]+)", gres) for i in RangeSet(part)]
                places |= {node: tuple(sorted(named)) for node in NodeSet(nodes)}
            return Given(places)

        return self.wait_for(f"job {job} to run", look)

    def loaded(self, node: str) -> int:
        """How many loads are on a node's GPUs."""
        return len([*(self.gpus.root / node).glob("*/load/[0-9]*")])

    def did(self, job: int, node: str, restart: int = 0) -> dict[str, float]:
        """What the job itself wrote down of its load."""
        written: dict[str, float] = json.loads((self.home / f"did-{job}-{restart}-{node}.json").read_text())
        return written

    # --- the service ------------------------------------------------------------------------------------------------

    def ask(self, target: str, user: str | None = None) -> tuple[int, bytes]:
        """Status and body of the API's answer to `user`; by default to who runs the test."""
        if user is None:  # in this process: most ask again and again, and a Python each is what costs
            try:
                answer = self._service.ask("GET", target)
            except ServiceError as error:
                raise ConnectionError(str(error)) from None
            if answer.status == 503:
                raise ConnectionError(answer.body.decode())
            return answer.status, answer.body
        done = self.cluster.run(["python3", "-c", _ASK, target], user=user)
        if done.returncode:
            raise ConnectionError(done.stderr.strip().splitlines()[-1])
        status, _, body = done.stdout.partition("\n")
        if status == "503":
            raise ConnectionError(body)
        return int(status), body.encode()

    def jobs(self) -> tuple[JobSummary, ...]:
        """All jobs in the store."""
        status, body = self.ask("/v1/jobs?limit=500")
        assert status == 200, body
        return msgspec.json.decode(body, type=Jobs).jobs

    def nodes(self) -> Nodes:
        """The nodes that were heard."""
        return self._get("/v1/nodes", Nodes)

    def complete(self, job: int, restarts: int = 0) -> Usage:
        """The usage of an attempt, once Slurm and every node have said all of it."""

        there: list[JobSummary] = []

        def look() -> JobSummary | None:
            there[:] = [each for each in self.jobs() if each.job_id == job]
            found = [each for each in there if each.restarts == restarts]
            ended = found and found[0].complete and found[0].state not in _UNDER_WAY
            return found[0] if ended else None

        try:
            self.wait_for(f"the record of job {job}, attempt {restarts}", look)
        except AssertionError as error:
            books = self.cluster.run(["sacct", "-D", "-X", "-P", "-o", _BOOKS, f"-j{job}"]).stdout
            raise AssertionError(f"{error}; of it there is {there}, and in Slurm's books\n{books}") from None
        return self._get(f"/v1/jobs/{job}/usage?restarts={restarts}", Usage)

    def admin(self, *words: str) -> str:
        """What ``gsub admin`` says to root, with this Python: reports need more packages than the cluster's has."""
        site = load_site(self.cluster.paths.site)
        program = "import sys; from gsub.cli import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-c", program, "admin", *words, "--store", site.store.url],
            env=os.environ
            | {"GSUB_SITE": str(self.cluster.paths.site), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def series(self, job: int) -> Series:
        """A job over time."""
        return self._get(f"/v1/jobs/{job}/series", Series)

    def _get(self, target: str, kind: type[T]) -> T:
        status, body = self.ask(target)
        assert status == 200, body
        return msgspec.json.decode(body, type=kind)

    def wait_for(self, what: str, look: Callable[[], T | None]) -> T:
        """What `look` finds, as soon as it finds something."""

        why: list[str] = []

        def seen() -> tuple[T] | None:
            try:
                found = look()
            except ConnectionError as error:  # the keeper is started again now and then
                why[:] = [str(error)]
                return None
            return None if found is None else (found,)

        try:
            return wait_until(seen, PATIENCE, what)[0]
        except AssertionError as error:
            raise AssertionError(": ".join([str(error), *why])) from None


def near(value: float | None, wanted: float, part: float = 0.01) -> bool:
    """Whether a figure is there, and within 1 % of what it should be."""
    return value is not None and abs(value - wanted) <= part * abs(wanted)


def uuids(found: Sequence[GpuUse]) -> set[str]:
    """Those of GPU uses."""
    return {str(use.gpu.uuid) for use in found}
