"""A Slurm in memory, a clock that stands, and a desk between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from site_configs.site import parse_site
from site_configs.site_model import Site
from slurm_plugins.act.desk import Desk
from slurm_plugins.act.journal import NAME, Journal
from slurm_plugins.act.slurm import Rights
from slurm_plugins.client.errors import NoSuchJob, SlurmError, SlurmUnreachable
from slurm_plugins.client.resources import NO_HOSTS, Hosts
from slurm_plugins.client.states import JobFlag, JobState
from slurm_plugins.client.values import Job, Partition
from slurm_plugins.limits.lookup import Room

GSUB = 890
"""The uid of gsubd's user."""
SITE = 'cluster = "lab"\n[policy]\nmode = "enforce"\n'


class FakeSlurm:
    """`Slurm` over a dictionary of jobs.

    `silent`: it does not answer. `deaf`: it does what it is told and the answer gets lost. `acts` is what was done.
    """

    def __init__(self, *jobs: Job) -> None:
        self.known_jobs = {job.shown_id: job for job in jobs}
        self.silent = False
        self.deaf = False
        self.no: SlurmError | None = None
        self.acts: list[list[str]] = []
        self.looks = 0
        self.rooms = 0
        self.asked_rights = 0
        self.known = Rights(True, "lab", 64030)
        self.space = Room((Partition(name="gpu", state="UP"), Partition(name="debug", state="UP")), 512000)
        self.asks: dict[str, int] = {}
        self.before_act: Callable[[], None] = lambda: None

    def job(self, job: str, *, nodes: bool = True, number: int | None = None) -> Job:
        self.looks += 1
        if self.silent:
            raise SlurmUnreachable("slurmctld")
        if job not in self.known_jobs:
            raise NoSuchJob(job)
        found = self.known_jobs[job]
        return found if nodes else replace(found, excluded_nodes=NO_HOSTS)

    def jobs(self, jobs: Sequence[str]) -> tuple[Job, ...]:
        self.looks += 1
        return tuple(self.known_jobs[job] for job in jobs if job in self.known_jobs)

    def begun(self, array: str) -> bool:
        tasks = [job for job in self.known_jobs.values() if job.array_job_id == int(array)]
        return any(job.state is JobState.RUNNING for job in tasks)

    def rights(self) -> Rights:
        self.asked_rights += 1
        return self.known

    def memory(self, job: str) -> dict[str, int]:
        return self.asks

    def room(self, job: Job) -> Room:
        self.rooms += 1
        if self.silent:
            raise SlurmUnreachable("slurmctld")
        return self.space

    def act(self, argv: Sequence[str]) -> None:
        self.before_act()
        if self.silent:
            raise SlurmUnreachable("slurmctld", "Unable to contact slurm controller (connect failure)")
        if self.no:
            raise self.no
        self.acts.append(list(argv))
        verb, job, *fields = argv[1:] if argv[0] == "scontrol" else (argv[0], *argv[2:])
        name = job.removeprefix("JobId=")
        if name not in self.known_jobs:
            raise NoSuchJob(name)
        self.asks |= {
            name: int(value) for name, _, value in (f.partition("=") for f in fields) if "Mem" in name
        }
        self.known_jobs[name] = _done(
            self.known_jobs[name], verb, dict(field.split("=", 1) for field in fields)
        )
        if self.deaf:
            raise SlurmUnreachable("slurmctld", "Socket timed out on send/recv operation")


def _done(job: Job, verb: str, fields: dict[str, str]) -> Job:
    if verb == "uhold":
        return replace(job, priority=0, reason="JobHeldUser")
    if verb == "hold":
        return replace(job, priority=0, reason="JobHeldAdmin")
    if verb == "scancel":
        flags = job.flags | {JobFlag.COMPLETING}
        return replace(job, state=JobState.CANCELLED, state_text="CANCELLED", flags=flags)
    if verb == "release":
        return replace(job, priority=100, reason="Priority")
    if verb in ("requeue", "requeuehold"):
        again = replace(job, state=JobState.PENDING, state_text="PENDING", restarts=job.restarts + 1)
        return replace(again, priority=0 if verb == "requeuehold" else 100)
    assert verb == "update"
    for name, value in fields.items():
        if name == "ExcNodeList":
            job = replace(job, excluded_nodes=Hosts(value))
        elif name in ("MinMemoryNode", "MinMemoryCPU"):
            continue
        elif name == "Comment":
            job = replace(job, comment=value)
        else:
            assert name == "StartTime"
            job = replace(job, eligible=datetime.fromtimestamp(Clock.START, timezone.utc))
    return job


def pending(number: int | str = 7, **fields: Any) -> Job:
    """A job that waits."""
    return job(number, JobState.PENDING, **({"priority": 100} | fields))


def failed(number: int | str = 7, **fields: Any) -> Job:
    """A job that has failed, and can be run again."""
    return job(number, JobState.FAILED, **({"batch": True, "requeue": True} | fields))


def job(number: int | str, state: JobState, **fields: Any) -> Job:
    """A job of an ordinary user."""
    array, _, task = str(number).partition("_")
    if task:
        fields |= {"array_job_id": int(array), "array_task_id": int(task)}
    known: dict[str, Any] = {
        "user": "user1",
        "uid": 1000,
        "partition": "gpu",
        "account": "lab",
        "state_text": state.value,
        "qos": "normal",
        "num_nodes": 1,
        "num_cpus": 1,
    }
    return Job(id=int(array), name="train", state=state, **(known | fields))


class Clock:
    """Seconds that pass when a test says so."""

    START = 1_900_000_000.0

    def __init__(self) -> None:
        self.now = self.START

    def __call__(self) -> float:
        return self.now


class World:
    """A desk with its journal in `folder`, on a clock and a Slurm of the test's."""

    def __init__(self, folder: Path, *jobs: Job, site: str = SITE, **journal: Any) -> None:
        self.folder = folder
        self.clock = Clock()
        self.slurm = FakeSlurm(*jobs)
        self.site = parse_site(site)
        self.off = folder / "act.off"
        self.journal_options = journal
        (folder / "state").mkdir(mode=0o700, exist_ok=True)
        self.number = 0
        self.open()

    def open(self) -> None:
        """Start it, as after a crash when it ran before."""
        self.journal = Journal(self.folder / "state", now=self.clock(), **self.journal_options)
        self.desk = Desk(
            self.slurm,
            self.journal,
            self.in_force,
            callers=lambda: frozenset({0, GSUB}),
            off=self.off,
            clock=self.clock,
        )

    def in_force(self) -> Site:
        return self.site

    def restart(self) -> None:
        """End without a word, and start anew."""
        self.journal.close()
        self.open()

    def request(self, verb: str, job: str = "7", **fields: Any) -> dict[str, Any]:
        """A request that is well formed, unless `fields` say otherwise; a field that is None is left out."""
        self.number += 1
        made = {
            "v": 1, "id": f"request-{self.number}", "at": self.clock(), "cluster": "lab", "job": job, "verb": verb,
            "why": "the smoke run failed", "by": "v-00000000",
        } | fields  # fmt: skip
        return {name: value for name, value in made.items() if value is not None}

    def ask(self, verb: str, job: str = "7", *, uid: int = GSUB, **fields: Any) -> dict[str, Any]:
        """What becomes of a request."""
        return self.send(json.dumps(self.request(verb, job, **fields)).encode(), uid=uid)

    def send(self, line: bytes, *, uid: int = GSUB) -> dict[str, Any]:
        """What a line is answered."""
        answer = json.loads(self.desk.answer(line + b"\n", uid))
        assert isinstance(answer, dict)
        return answer

    def lines(self) -> list[dict[str, Any]]:
        """The journal."""
        return [json.loads(line) for line in (self.folder / "state" / NAME).read_text().splitlines()]

    def wait(self, seconds: float) -> None:
        """Let time pass, with the looking after that happens every second."""
        for _ in range(int(seconds)):
            self.clock.now += 1
            self.desk.tend()
