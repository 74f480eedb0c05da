"""A keeper's resubmitting over a store and a gsub-act on disk, and a Slurm in memory that both of them see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from profiler.findings import Finding
from profiler.records import Record
from profiler.resubmissions import ENDED, Resubmission
from profiler.store import Judged, Store, open_store
from site_configs.site import parse_site
from slurm_plugins.act.ask import HandError
from slurm_plugins.act.wire import Answer, Request, decode_answer
from slurm_plugins.client.errors import SlurmUnreachable
from slurm_plugins.client.states import JobState
from slurm_plugins.client.values import Job
from slurm_plugins.service.keeper.again_look import Asked, Look, Room
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.resubmitting import Resubmitting
from slurm_plugins.service.keeper.storing import Storing
from tests.unit.profiler.store.empty import empty_store
from tests.unit.profiler.store.records import CLUSTER, T0, ended, found, started
from tests.unit.profiler.store.test_verdicts import failed as told_of
from tests.unit.slurm_plugins.act.fakes import GSUB, FakeSlurm, World
from tests.unit.slurm_plugins.act.fakes import failed as failed_job

END = T0 + 3600
NOW = END + 10
NODES = tuple(f"n{number}" for number in range(1, 41))
SITE = 'cluster = "lab"\n[policy]\nmode = "enforce"\n'


class Seen:
    """The look of the keeper at the Slurm that gsub-act acts on."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self.slurm = slurm
        self.waiting: dict[str, tuple[str, ...]] = {}
        self.owners: dict[str, tuple[int, str]] = {}
        self.memory: dict[int, Asked] = {}
        self.delay = 120.0
        self.quick = True
        self.silent = False
        self.looks: list[tuple[int, ...]] = []

    def look(self, ids: Sequence[int], memory_of: Sequence[int]) -> Look:
        self.looks.append(tuple(ids))
        if self.silent:
            raise SlurmUnreachable("slurmctld", "it is down")
        jobs = {job.id: job for job in self.slurm.known_jobs.values() if job.id in ids}
        memory = {number: self.memory[number] for number in memory_of if number in self.memory}
        rooms = {"gpu": Room(NODES, 512000)}
        return Look(jobs, self.waiting, rooms, memory, self.delay, quick=self.quick, owners=self.owners)

    def job(self, shown: str) -> Job | None:
        if self.silent:
            raise SlurmUnreachable("slurmctld", "it is down")
        return self.slurm.known_jobs.get(shown)


class Hand:
    """gsub-act without a socket. `away`: it does not answer. `lost`: it does it, and its answer gets lost."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.away = False
        self.lost = False
        self.asked: list[Request] = []

    def ask(self, request: Request) -> Answer:
        if self.away:
            raise HandError("gsub-act is not there")
        request = msgspec.structs.replace(
            request,
            at=self.world.clock(),
            until=None if request.until is None else self.world.clock() + request.until - request.at,
        )
        self.asked.append(request)
        answer = decode_answer(self.world.desk.answer(msgspec.json.encode(request), GSUB))
        if self.lost:
            raise HandError("gsub-act did not answer within 90 s")
        return answer

    @property
    def done(self) -> list[str]:
        """What Slurm was told to do."""
        return [" ".join(argv[1:]) for argv in self.world.slurm.acts]


class Again:
    """All of it in a folder. `restart` is what a keeper that was killed and started anew finds."""

    def __init__(self, folder: Path, *jobs: Job, site: str = SITE, slurm: FakeSlurm | None = None) -> None:
        self.folder = folder
        self.world = World(folder, *jobs)
        if slurm is not None:
            self.world.slurm = slurm
            self.world.restart()
        self.seen = Seen(self.world.slurm)
        self.hand = Hand(self.world)
        self.site = parse_site(site)
        self.time = NOW
        url, before = f"sqlite:///{folder / 'store.db'}", (folder / "store.db").exists()
        self.store: Store = open_store(url) if before else empty_store(url)
        self.told: list[Resubmission] = []
        self.start()

    def start(self) -> None:
        self.counts = Counts()
        self.storing = Storing(self.counts)
        self.storing._store = self.store
        self.driver = Resubmitting(
            self.site,
            self.storing,
            self.counts,
            self.seen,
            self.hand,
            off=self.folder / "act.off",
            waits=self.folder / "dependants.json",
            told=self.told.extend,
            now=lambda: self.time,
            chance=lambda: 0.5,
        )

    def close(self) -> None:
        self.storing.close()
        self.store.close()
        self.world.journal.close()

    def fail(self, number: int, reason: str = "network_error", *, restarts: int = 0, **more: Any) -> None:
        """An attempt that failed at END, with its verdict, in the store alone; `read`: so were its logs."""
        nodes = more.pop("nodes", "n1")
        finding = more.pop("finding", {})
        records: list[Record] = [
            started(number, restarts=restarts, uid=more.get("uid", 1000), nodes=nodes),
            ended(number, at=END, restarts=restarts),
        ]
        if more.pop("read", True):
            records.append(found(number, reason, restarts=restarts, **finding))
        self.store.take(records, self.time)
        facts = told_of(number, restarts=restarts, partition="gpu", nodes=nodes, **more)
        self.store.enrich([facts], self.time)
        self.judge(reason)

    def judge(self, reason: str = "core_dump") -> None:
        """Verdicts by what logs say, and of this reason where nobody has read them."""
        cases = self.store.unjudged(CLUSTER, 1000, self.time + 60)
        blind = Finding(reason, 0.5, "none")
        self.store.put_verdicts([Judged(case, case.finding or blind) for case in cases], self.time)

    def once(self) -> tuple[float, float]:
        """Decide once, then work once on what is due; seconds to the next of both."""

        async def both() -> tuple[float, float]:
            self.driver._rest_until = 0.0
            return await self.driver.decide(), await self.driver.carry_out()

        return asyncio.run(both())

    def until(self, ready: Callable[[], object], seconds: float = 7200.0) -> None:
        """Go on, with time passing, until something is so."""
        last = self.time + seconds
        while not ready():
            assert self.time < last, "it never came about"
            wait = min(self.once())
            self.pass_time(max(wait, 0.05))

    def settle(self) -> None:
        """Go on until nothing is left to do."""
        self.until(lambda: not self.undecided() and not self.store.due_resubmissions(CLUSTER, 10, 4e9))

    def pass_time(self, seconds: float) -> None:
        self.time += seconds
        self.world.clock.now += seconds
        self.world.desk.tend()

    def undecided(self) -> list[int]:
        return [one.job.job_id for one in self.store.undecided(CLUSTER, 10_000, 4e9)]

    def row(self, number: int = 8) -> Resubmission:
        """What was decided about the last attempt that failed."""
        return self.store.resubmissions(CLUSTER, number)[-1]

    def row_or_none(self, number: int = 8) -> Resubmission | None:
        rows = self.store.resubmissions(CLUSTER, number)
        return rows[-1] if rows else None

    def rows(self) -> list[Resubmission]:
        return [one.resubmission for one in self.store.due_resubmissions(CLUSTER, 10_000, 4e9)]

    def change(self, name: str, **values: Any) -> None:
        """Somebody else does something to a job."""
        jobs = self.world.slurm.known_jobs
        jobs[name] = replace(jobs[name], **values)


def a_failed_job(number: int | str = 8, **more: Any) -> Job:
    """As Slurm has it."""
    return failed_job(number, **more)


def over(row: Resubmission) -> bool:
    return row.state in ENDED


__all__ = ["END", "NODES", "NOW", "Again", "Hand", "JobState", "Seen", "a_failed_job", "over"]
