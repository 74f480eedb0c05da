"""Jobs on a cluster that enforces, and what Slurm, the service, gsub-act and the jobs themselves tell of them."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from ClusterShell.NodeSet import NodeSet

from profiler.answers import Resubmissions, Verdict, VerdictAnswer
from profiler.munge import Munge
from profiler.resubmissions import Resubmission
from profiler.sealed import Service, ServiceError
from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.nvml import EmulatedGpus
from site_configs.devcluster.spec import Release
from slurm_plugins.act.journal import NAME
from tests.paths import REPOSITORY
from tests.slurm.actions.scenarios import (
    APART,
    ARRAY,
    DYING,
    EATS,
    NODES,
    NOTE,
    OTHER,
    QUIET,
    SCENARIOS,
    SMALL_MIB,
    TAKEN,
    TASKS,
    TRAIN,
    WATCHED,
)
from tests.waiting import wait_until

T = TypeVar("T")
PATIENCE = 420.0
"""Seconds after the submission in which every story must have come to its end, on a machine that is busy."""
_ASK = """
import os, sys
from profiler.munge import Munge
from profiler.sealed import Service, believed
from site_configs.site import load_site
site = load_site(os.environ["GSUB_SITE"])
service = Service(site.service.url, Munge(site.slurm.munge_socket), believed(site.service.user))
print(service.ask("GET", sys.argv[1]).status)
"""
_EXAMPLE = REPOSITORY / "examples/checkpoint"
_CGROUPS = Path("/sys/fs/cgroup")
_OVER = frozenset({"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"})


@contextmanager
def stage(name: str, release: Release) -> Iterator[Stage]:
    """A cluster with hooks, agents, gsubd and gsub-act; its Slurm ends jobs that take more memory than they have."""
    os.umask(0o022)
    try:
        cluster = Cluster.up(
            ClusterSpec(name, len(NODES), 2, release, "enforce", deadline=1.0, short_delays=True)
        )
        made = Stage(cluster)
        made.prepare()
        yield made
    finally:
        Cluster.down(name)


@dataclass(frozen=True)
class Try:
    """What an attempt wrote down: its node, its memory in MiB, when it began and ended (None: it was killed)."""

    restarts: int
    node: str
    memory: int
    began: float
    ended: float | None = None


@dataclass
class Stage:
    """A cluster and the jobs of the scenarios. `jobs` are their ids by name."""

    cluster: Cluster
    jobs: dict[str, str] = field(default_factory=dict)
    since: float = 0.0
    cgroups: tuple[Path, ...] = ()
    why_not: str = ""

    def __post_init__(self) -> None:
        self.user = self.cluster.users[0]
        self.home = self.cluster.home(self.user)
        self.gpus = EmulatedGpus(self.cluster.paths.gpus)
        trusted = (0, self.cluster.daemon_user("gsub").uid)
        url = f"http://127.0.0.1:{self.cluster.ports.api}"
        self._service = Service(url, Munge(str(self.cluster.paths.munge_socket)), trusted)

    def prepare(self) -> None:
        """What this Slurm and this site have else than a development cluster."""
        conf = self.cluster.paths.slurm_conf
        text = conf.read_text()
        if "OverMemoryKill" not in text:
            # cgroups are off, so its own sampling has to end what takes too much
            text += "JobAcctGatherParams=OverMemoryKill\n"
            text = text.replace("JobAcctGatherFrequency=5", "JobAcctGatherFrequency=2")
            text = text.replace("MinJobAge=300", "MinJobAge=3600")  # a test looks when it comes to it
            conf.write_text(text)
            for name in ("slurmctld", *(f"slurmd-{node}" for node in NODES)):
                self.cluster.restart(name)
        site = self.cluster.paths.site.read_text()
        watched = f"[partitions.{WATCHED}]\n"
        if f'{watched}mode = "observe"' not in site:
            site = site.replace(watched, f'{watched}mode = "observe"\n')
            self.cluster.write_site(site + '\n[resubmit]\nbackoff = "10 s"\nwithout_gpus = true\n'
                '[resubmit.actions]\nno_signature = "once"\n')
        self.wait_for("the nodes", self._idle)
        self.wait_for("the service", lambda: self.get("/v1/jobs?limit=1"))

    def _idle(self) -> bool:
        states = self.cluster.run(["sinfo", "-hN", "-pgpu", "-o%t"]).stdout.split()
        return states == ["idle"] * len(NODES)

    # --- jobs -------------------------------------------------------------------------------------------------------

    def submit(self, name: str, *options: str, script: str, user: str = "") -> str:
        """Submit a script; the job's id."""
        line = ["sbatch", "--parsable", f"-J{name}", "--mem=500", *options]
        done = self.cluster.run(line, user=user or self.user, input=f"#!/bin/bash\n{NOTE}{script}\n")
        assert done.returncode == 0, done.stderr
        self.jobs[name] = done.stdout.strip().splitlines()[-1].split(";")[0]
        return self.jobs[name]

    def shown(self, job: str) -> dict[str, str]:
        """Slurm's own words on a job."""
        said = self.cluster.run(["scontrol", "--oneliner", "show", "job", job])
        assert said.returncode == 0, said.stderr
        return dict(word.split("=", 1) for word in said.stdout.split() if "=" in word)

    def running(self, name: str) -> str:
        """The node of a job, once it runs."""

        def look() -> str | None:
            shown = self.shown(self.jobs[name])
            return shown["BatchHost"] if shown["JobState"] == "RUNNING" and self.tries(name) else None

        return self.wait_for(f"job {name} to run", look)

    def on_the_books(self, name: str) -> str:
        """The node of a job, once accounting knows that it runs: 22.05 forgets the start of what ends before."""
        line = ["sacct", "-nXP", "-oStart", f"-j{self.jobs[name]}"]
        self.wait_for("accounting", lambda: self.cluster.run(line).stdout.startswith("20"))
        return self.running(name)

    def tries(self, name: str, task: int | None = None) -> list[Try]:
        """What the attempts themselves wrote down, oldest first."""
        of = self.jobs[name] + ("" if task is None else f"_{task}")
        try:
            text = (self.home / f"tries-{of}").read_text()
        except FileNotFoundError:
            return []
        found: list[Try] = []
        for line in text.splitlines():
            word, restarts, node, memory, at = line.split()
            if word == "began":
                found.append(Try(int(restarts), node, int(memory), float(at)))
            else:
                last = found[-1]
                found[-1] = Try(last.restarts, last.node, last.memory, last.began, float(at))
        return found

    # --- the service ------------------------------------------------------------------------------------------------

    def get(self, target: str) -> bytes | None:
        """The API's answer to root; None while there is none."""
        try:
            answer = self._service.ask("GET", target)
        except ServiceError:  # the keeper is started again now and then
            return None
        return answer.body if answer.status == 200 else None

    def status(self, target: str, user: str) -> int:
        """The status of the API's answer to an ordinary user."""
        done = self.cluster.run(["python3", "-c", _ASK, target], user=user)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def verdict(self, job: str, restarts: int) -> Verdict | None:
        """Why an attempt failed."""
        body = self.get(f"/v1/jobs/{job}/verdict?restarts={restarts}")
        return None if body is None else msgspec.json.decode(body, type=VerdictAnswer).verdict

    def rows(self, job: str) -> tuple[Resubmission, ...]:
        """What was decided after each failed attempt, oldest first."""
        body = self.get(f"/v1/jobs/{job}/resubmissions")
        return () if body is None else msgspec.json.decode(body, type=Resubmissions).resubmissions

    def why(self, job: str, *options: str, user: str = "") -> str:
        """What the user is told, on one line."""
        done = self.cluster.run(["gsub", "why", job, *options], user=user or self.user)
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.split())

    def journal(self, job: str = "") -> list[dict[str, Any]]:
        """What gsub-act wrote down; of one job: what it did to it."""
        path = self.cluster.paths.act_state / NAME
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if not job:
            return lines
        ids = {line["id"] for line in lines if line.get("job") == job and line["event"] == "asked"}
        return [line for line in lines if line.get("id") in ids]

    def done(self, job: str, verb: str) -> list[float]:
        """When gsub-act had done this to a job, each time."""
        lines = self.journal(job)
        asked = {line["id"] for line in lines if line["event"] == "asked" and line["verb"] == verb}
        return [line["at"] for line in lines if line["event"] == "done" and line["id"] in asked]

    # --- stories ----------------------------------------------------------------------------------------------------

    def settled(self, name: str, task: int | None = None) -> bool:
        """Whether a job has come to its end: it succeeded, or nothing more is done about its failure."""
        job = self.jobs[name] + ("" if task is None else f"_{task}")
        shown = self.shown(job)
        state, restarts = shown["JobState"], int(shown["Restarts"])
        if state == "COMPLETED":
            return True
        if state not in _OVER:
            return False
        return any(row.restarts == restarts and row.state == "stopped" for row in self.rows(job))

    def end(self, name: str, task: int | None = None) -> None:
        """Wait until a job has come to its end."""
        self.wait_for(f"the end of {name}", lambda: self.settled(name, task))

    def wait_for(self, what: str, look: Callable[[], T | None], patience: float = 0.0) -> T:
        """What `look` finds, as soon as it finds something."""
        began = time.monotonic()
        until = began + patience if patience else max(self.since or began, began - PATIENCE / 2) + PATIENCE
        return wait_until(look, until - began, what)

    def play(self) -> None:
        """Submit all scenarios, and do to them what befalls them from outside."""
        self.since = time.monotonic()
        for each in SCENARIOS:
            self.submit(each.name, *each.options, script=each.script)
        self.submit("waits", f"--dependency=afterok:{self.jobs['needed']}", script="echo never")
        self.submit("array", APART, f"--array=0-{TASKS - 1}", script=ARRAY)
        for name in ("train.py", "gsub_train.py"):
            self.put(name, (_EXAMPLE / name).read_text())
        self.submit("train", "-w", QUIET, "-t1", "--signal=USR1@10", "--open-mode=append", script=TRAIN)
        self.kernel_memory()
        self.act()

    def put(self, name: str, text: str) -> None:
        """A file of the user's."""
        self.cluster.run(["sh", "-c", f"cat > {name}"], user=self.user, input=text, check=True)

    def kernel_memory(self) -> None:
        """A job in cgroups as Slurm makes them (v1), where the kernel ends what outgrows the memory asked for.

        Slurm's own are off here: the test makes the job's, and its script sets the limit in Slurm's place.
        """
        node, user = OTHER, self.user
        uid = int(self.cluster.run(["id", "-u"], user=user, check=True).stdout)
        path = f"slurm_{node}/uid_{uid}/job_$SLURM_JOB_ID"
        script = EATS.replace("CGROUP", f"{_CGROUPS}/memory/{path}")
        for _ in range(20):  # a cluster beside this one may have the cgroups of that number just now
            job = self.submit("kernel", "-H", "-w", node, f"--mem={SMALL_MIB}", script=script)
            folders = [_CGROUPS / each / path.replace("$SLURM_JOB_ID", job) for each in ("memory", "cpuacct")]
            if not any(folder.exists() for folder in folders):
                break
            self.cluster.run(["scancel", job], check=True)
        else:
            self.why_not = f"{folders[0]} and those before it are there already"
            return
        try:
            for folder in folders:
                folder.mkdir(parents=True)
                self.cgroups = (*self.cgroups, folder)
            for name in ("cgroup.procs", "memory.limit_in_bytes"):
                os.chown(folders[0] / name, uid, uid)
        except OSError as error:
            self.why_not = f"cgroups (v1) cannot be made here ({error})"
        if self.cluster.run(["test", "-w", str(folders[0] / "cgroup.procs")], user=user).returncode:
            self.why_not = self.why_not or "the chroot does not show the machine's cgroups"
        self.cluster.run(
            ["scancel" if self.why_not else "scontrol", *([] if self.why_not else ["release"]), job]
        )

    def tidy(self) -> None:
        """Take the cgroups away that no job is in any more."""
        for folder in self.cgroups:
            for each in (folder, folder.parent, folder.parent.parent):
                with suppress(OSError):  # another run's jobs may be in the outer ones
                    each.rmdir()

    def _wait_alone(self, node: str, job: str) -> None:
        """Wait until a job is alone on its node, 30 s at most: a fault of the node explains all that fail there."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if self.cluster.run(["squeue", "-h", "-tR,CG", "-w", node, "-o%A"]).stdout.split() == [job]:
                return
            time.sleep(0.5)

    def act(self) -> None:
        """What befalls the jobs from outside."""
        run = self.cluster.run
        self.on_the_books("preempted")
        line = f"sbatch -purgent -w {TAKEN} --exclusive --mem=0 -o/dev/null --wrap=:"
        run(line.split(), user=self.user, check=True)
        self.on_the_books("node")
        assert DYING in hosts(self.shown(self.jobs["node"])["NodeList"])
        os.kill(self.cluster.daemons()[f"slurmd-{DYING}"], signal.SIGKILL)
        # SlurmdTimeout is five minutes here: the administrator does not wait for it
        run(["scontrol", "update", f"NodeName={DYING}", "State=DOWN", "Reason=dead"], check=True)
        self.running("cancelled")
        run(["scancel", self.jobs["cancelled"]], user=self.user, check=True)
        node, job = self.running("gpu"), self.jobs["gpu"]
        self._wait_alone(node, job)
        text = run(["scontrol", "-o", "-d", "show", "job", job], check=True).stdout
        found = re.search(r"IDX:(\d)", text)
        assert found, text
        self.gpus.xid(node, int(found[1]), 79)
        self.wait_for(
            "the Xid to be told", lambda: b'"xids":[79]' in (self.get(f"/v1/jobs/{job}/usage") or b"")
        )
        (self.home / f"go-{job}").touch()


def hosts(text: str) -> set[str]:
    """The nodes of a list as Slurm writes it."""
    return set() if text == "(null)" else set(NodeSet(text))
