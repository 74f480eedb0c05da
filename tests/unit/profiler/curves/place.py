"""The keeper's part and gsubd's over one store and one folder, without Slurm: points in, decisions out."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from profiler.answers import WorkloadCurve
from profiler.curves import Point
from profiler.points import Measured
from profiler.records import new_id
from profiler.store import Store
from profiler.workload import identify
from site_configs.site_model import Policy, Resources, Site
from slurm_plugins.decide.context import Context, SlurmFacts
from slurm_plugins.decide.decision import Decision
from slurm_plugins.decide.pipeline import decide
from slurm_plugins.decide.request import Job, Request
from slurm_plugins.service.keeper.app import App
from slurm_plugins.service.keeper.collect import Collector
from slurm_plugins.service.keeper.learning import Learning
from slurm_plugins.service.keeper.openapi import text
from slurm_plugins.service.keeper.routes import endpoints
from slurm_plugins.service.learnt import Learnt
from slurm_plugins.service.written import decision_line
from tests.unit.slurm_plugins.decide.cluster import inventory, nodes, partition
from tests.unit.slurm_plugins.keeper.door import ADA, CLUSTER, PATIENCE, Door, Got, new_store

SCRIPT = "#!/bin/bash\n#SBATCH -G 1\nsrun python train.py --model resnet --seed 7\n"
HOSTS = "n[1-4]"


def points(knee: float, cap: int = 24, *, at: float = 0.0, seed: int = 1) -> tuple[Point, ...]:
    """What a learning run would measure of a workload whose throughput grows up to that many CPUs.

    A knee on a whole number is found there or, as it is rounded up, one above; one like 5.7 is found at 6.
    """
    chance = random.Random(seed)
    counts = {
        cap,
        cap // 2,
        cap // 4,
        max(round(knee), 1),
        max(round(knee) - 1, 1),
        min(round(knee) + 2, cap),
    }
    return tuple(
        Point(cpus, min(cpus, knee) * chance.gauss(1, 0.004), 0.005 * min(cpus, knee), 60, 10.0, at)
        for cpus in sorted(counts, reverse=True)
    )


def measured(knee: float = 5.7, *, at: float | None = None, **more: Any) -> Measured:
    """A learning run of the workload of `SCRIPT`."""
    given: dict[str, Any] = {
        "id": new_id(),
        "at": time.time() if at is None else at,
        "source": "learn",
        "workload": identify(SCRIPT, name="train-1").fingerprints,
        "gpu_type": "a100",
        "cap": 24,
        "points": points(knee),
    }
    return Measured(**given | more)


class Place:
    """`post` and `ask` are requests to the keeper, `decided` is a submission."""

    def __init__(self, store: Store, state: Path) -> None:
        self.store = store
        self.state = state
        self.door = Door(store)
        self.learning = Learning(CLUSTER, self.door.storing, self.door.counts, state, patience=PATIENCE)
        collector = Collector(CLUSTER, store.take, lambda: None, self.door.whence)
        answered = endpoints(
            CLUSTER, self.door.storing, collector, self.door.counts, document=text, learning=self.learning
        )
        self.door.app = App(answered, self.door.gate, self.door.counts)

    def curves(self, uid: int) -> tuple[WorkloadCurve, ...]:
        """What is known of a user's workloads, made of all that is stored by now."""
        asyncio.run(self.learning.refine(uid))
        return self.learning.curves(uid).curves

    def ask(self, uid: int, target: str) -> Got:
        return asyncio.run(self.door.ask(uid, "GET", target))

    def post(self, one: Measured | dict[str, Any] | bytes, uid: int = ADA) -> Got:
        """Send it, and let the keeper make of it what it does."""
        body = one if isinstance(one, bytes) else msgspec.json.encode(one)

        async def sent() -> Got:
            got = await self.door.ask(uid, "POST", "/v1/points", body)
            await self.learning.once()
            return got

        return asyncio.run(sent())

    def decided(
        self,
        script: str = SCRIPT,
        *,
        name: str = "train-2",
        uid: int = ADA,
        env: dict[str, str] | None = None,
        resources: Resources | None = None,
        **job: Any,
    ) -> Decision:
        """A job of one GPU that states neither CPUs nor memory, unless `job` does."""
        return decide(*self.asked(script, name, uid, env, resources, **job), decision_id="d-0123456789abcdef")

    def asked(
        self,
        script: str,
        name: str,
        uid: int,
        env: dict[str, str] | None = None,
        resources: Resources | None = None,
        **job: Any,
    ) -> tuple[Request, Context]:
        known = Learnt(self.state).read(CLUSTER)
        hosts = inventory(nodes(HOSTS, {"a100": 8}), [partition("gpu", HOSTS, default=True)])
        site = Site(cluster=CLUSTER, policy=Policy("enforce"), resources=resources or Resources())
        fields: dict[str, Any] = {"min_nodes": 1, "max_nodes": 1, "tres_per_node": "gres:gpu:1", **job}
        return (
            Request(
                id=1,
                uid=uid,
                job=Job(name=name, **fields),
                env=env or {},
                script_head=script,
                script_bytes=len(script),
            ),
            Context(site, hosts, SlurmFacts(memory_tracked=True), known),
        )

    def ran(self, number: int, at: float, *, script: str = SCRIPT, uid: int = ADA) -> None:
        """The decision on a job, joined with it, as gsubd's journal has both."""
        request, context = self.asked(script, "train-2", uid)
        key = f"d-{number:016x}"
        decision = decide(request, context, decision_id=key)
        lines: Sequence[dict[str, Any]] = (
            msgspec.json.decode(decision_line(request, decision, at)),
            {"kind": "job", "decision": key, "at": at, "job": number},
        )
        assert self.store.put_decisions(CLUSTER, lines) == 2


@contextmanager
def place(folder: Path) -> Iterator[Place]:
    state = folder / "state"
    state.mkdir()
    store = new_store(folder)
    made = Place(store, state)
    try:
        yield made
    finally:
        made.door.close()
        store.close()
