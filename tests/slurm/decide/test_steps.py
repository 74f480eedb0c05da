"""An edit and its variables, made through the shim on the real Slurm: a bare `srun` in the script gets what was edited.

In gsubd's place stands a server that asks `steps` for what goes with the edits of the case, as the pipeline does.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from site_configs.devcluster import Cluster
from slurm_plugins.decide.edits import Value, check, check_env
from slurm_plugins.decide.request import parse_request
from slurm_plugins.decide.steps import complete, mirrors
from tests.slurm.decide.bare import Step, steps, submit_marked
from tests.slurm.decide.wicked import Ask, Server, answer

pytestmark = pytest.mark.all_releases

Edits = Mapping[str, Value]


@dataclass(frozen=True)
class Case:
    """Options of sbatch, edits, and what a bare `srun` must get.

    `tasks` and `cpus` on each of the `nodes` (CPUs of the step), `gpus` of each task, `memory` of the whole step in
    MiB; `told` is SLURM_CPUS_PER_TASK in a task. None: not looked at. `env` is there when it is submitted.
    """

    options: str
    edits: Edits
    tasks: int = 1
    cpus: int | None = None
    gpus: int = 2
    nodes: int = 1
    memory: int | None = None
    told: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """The options; a job of one node is held to it, since a full cluster would spread it."""
        open_nodes = "-N" not in self.options and "min_nodes" not in self.edits
        return [*self.options.split(), *(["-N1"] if self.nodes == 1 and open_nodes else [])]


def _nodes(count: int) -> dict[str, Value]:
    return {"min_nodes": count, "max_nodes": count}


_TWO: Edits = _nodes(2) | {"gres": "gpu:2"}

# Of the cluster: 8 CPUs for each GPU and 8000 MiB for each CPU, where nothing is stated.
CASES: Mapping[str, Case] = {
    # shape
    "gpus": Case("--gpus=4", _TWO, nodes=2, cpus=16),
    "gpus-tasks": Case("--gpus=4 -n4", {**_TWO, "ntasks_per_node": 2}, tasks=2, nodes=2, cpus=16),
    "gpus-tasks-cpus": Case("--gpus=4 -n4 -c6", {**_TWO, "ntasks_per_node": 2}, 2, 12, nodes=2, told=6),
    "new-tasks": Case("--gpus=4", {**_TWO, "num_tasks": 4, "ntasks_per_node": 2}, tasks=2, nodes=2, cpus=16),
    "fewer-tasks": Case("--gpus=4 -n4", {"num_tasks": 2, **_nodes(1)}, tasks=2, gpus=4, cpus=32),
    "repacked-tasks": Case(
        "-N4 --ntasks-per-node=1 --gpus-per-task=1", _nodes(2) | {"ntasks_per_node": 2}, 2, 16, gpus=1, nodes=2
    ),
    "repacked-gpus": Case("-N4 --gpus-per-node=1", _TWO, nodes=2, cpus=16),
    "repacked-gres": Case("-N4 --gres=gpu:1", _TWO, nodes=2, cpus=16),
    "per-gpu-tasks": Case("--gpus=4 --ntasks-per-gpu=2", _TWO, tasks=4, gpus=1, nodes=2, cpus=4),
    "from-inside-a-job": Case("--gpus=4", _TWO, nodes=2, cpus=16, env={"SLURM_GPUS_PER_NODE": "1"}),
    "exclusive": Case("-N2 --gpus-per-node=8", {"shared": 0}, gpus=8, cpus=64, nodes=2),
    # CPUs
    "more-cpus": Case("-n2 -c3 --gres=gpu:2", {"cpus_per_task": 5}, tasks=2, cpus=10, told=5),
    "fewer-cpus": Case("-n2 -c6 --gpus-per-task=1", {"cpus_per_task": 3}, tasks=2, cpus=6, gpus=1, told=3),
    "more-cpus-gpus": Case("-n2 -c3 --gpus-per-task=1", {"cpus_per_task": 6}, tasks=2, cpus=12, gpus=1, told=6),
    "one-task-fewer": Case("-c6 --gres=gpu:2", {"cpus_per_task": 3}, cpus=3, told=3),
    "one-task-more": Case("-c3 --gres=gpu:2", {"cpus_per_task": 6}, cpus=6, told=6),
    "by-node-fewer": Case("-N2 --ntasks-per-node=2 -c6 --gres=gpu:2", {"cpus_per_task": 3}, 2, 6, nodes=2, told=3),
    "by-node-more": Case("-N2 --ntasks-per-node=2 -c3 --gres=gpu:2", {"cpus_per_task": 6}, 2, 12, nodes=2, told=6),
    "cpus-unstated": Case("-n2 --gres=gpu:2", {"cpus_per_task": 5}, tasks=2, cpus=10, told=5),
    "cpus-unstated-gpus": Case("-n2 --gpus-per-task=1", {"cpus_per_task": 5}, tasks=2, cpus=10, gpus=1, told=5),
    "one-a-node": Case("-N2 --gpus-per-node=2 -c12", {"cpus_per_task": 8}, cpus=8, nodes=2, told=8),
    "srun-cpus": Case(
        "-n2 -c6 --gres=gpu:2", {"cpus_per_task": 3}, tasks=2, cpus=6, told=3, env={"SRUN_CPUS_PER_TASK": "6"}
    ),
    "per-gpu": Case("--gpus=2", {"cpus_per_tres": "gpu:4"}, cpus=8),
    "per-gpu-fewer": Case("--gpus=2 --cpus-per-gpu=6", {"cpus_per_tres": "gpu:4"} | _nodes(1), cpus=8),
    "per-gpu-more": Case("--gpus=2 --cpus-per-gpu=3", {"cpus_per_tres": "gres:gpu:5"} | _nodes(1), cpus=10),
    "per-gpu-nodes": Case("-N2 --gpus-per-node=2 --cpus-per-gpu=6", {"cpus_per_tres": "gres/gpu:4"}, cpus=8, nodes=2),
    "per-gpu-task": Case(
        "-n2 --gpus-per-task=1 --cpus-per-gpu=3", {"cpus_per_tres": "gpu:5"}, tasks=2, cpus=10, gpus=1
    ),
    "per-gpu-task-fewer": Case(
        "-n2 --gpus-per-task=1 --cpus-per-gpu=5", {"cpus_per_tres": "gpu:3"}, tasks=2, cpus=6, gpus=1
    ),
    # memory
    "memory": Case("--gpus=2", {"min_mem_per_node": 9000}, memory=9000),
    "memory-more": Case("--gpus=2 --mem=4G", {"min_mem_per_node": 9000}, memory=9000),
    "memory-fewer": Case("--gpus=2 --mem=9G", {"min_mem_per_node": 3000}, memory=3000),
    "memory-nodes": Case("-N2 --gres=gpu:2", {"min_mem_per_node": 6000}, nodes=2, memory=12000),
    "memory-cpu": Case("-c4 --gres=gpu:2 --mem-per-cpu=100", {"min_mem_per_cpu": 200}, memory=800),
    "memory-cpu-node": Case("-c4 --gres=gpu:2 --mem-per-cpu=100", {"min_mem_per_node": 5000}, memory=5000),
    "memory-gpu": Case("--gpus=2", {"mem_per_tres": "gpu:3000"}, memory=6000),
    "memory-gpu-more": Case("--gpus=2 --mem-per-gpu=1G", {"mem_per_tres": "gpu:3000"}, memory=6000),
    "memory-gpu-fewer": Case("--gpus=2 --mem-per-gpu=3G", {"mem_per_tres": "gpu:1000"}, memory=2000),
}  # fmt: skip

# Made all the same, each of these leaves a script whose `srun` fails, or gets something else than the job.
REFUSED: Mapping[str, Case] = {
    "two-memories": Case("--gpus=2 --mem-per-gpu=1G", {"min_mem_per_node": 9000}, memory=2048),
    "memory-counts-instead": Case("--gpus=2 --mem=4G", {"mem_per_tres": "gpu:3000"}, memory=4096),
    "tasks-per-gpu": Case("--gpus=4 --ntasks-per-gpu=2", {"ntasks_per_node": 4}, tasks=8, gpus=1),
    "other-total": Case("-N2 --gpus=4 --gpus-per-node=2", {"gres": "gpu:3"}, nodes=2),
    "cpus-per-task": Case("-c4 --gres=gpu:2", {"cpus_per_tres": "gpu:4"}, cpus=4),
}  # fmt: skip

ALL: Mapping[str, Case] = {**CASES, **REFUSED}


class _Decider:
    """Answers with the edits of the case that the job is named after, and what goes with them."""

    def __init__(self, release: tuple[int, int]) -> None:
        self.release = release
        self.refused: dict[str, Mapping[str, str]] = {}

    def reply(self, peer: socket.socket, ask: Ask) -> None:
        request = parse_request(json.dumps(ask).encode())
        name = request.job.name or ""
        full = complete(request, ALL[name].edits, self.release)
        seen = mirrors(request, full, self.release)
        self.refused[name] = seen.refused
        edits: dict[str, Value] = {} if seen.refused else dict(full)
        env = {} if seen.refused else dict(seen.env)
        for field_, value in edits.items():
            check(field_, value)
        for variable, text in env.items():
            check_env(variable, text)
        peer.sendall(answer(ask, edits={**edits, "admin_comment": f"gsub:{name}"}, env=env))


@pytest.fixture(scope="module")
def ran(cluster: Cluster, user: str | None) -> Iterator[tuple[dict[str, Step], _Decider]]:
    """All cases, run side by side, and what was refused."""
    cluster.clean()
    major, minor = cluster.version.split(".")[:2]
    decider = _Decider((int(major), int(minor)))
    folder = cluster.home(user) / "steps"
    cluster.run(["mkdir", "-p", str(folder)], user=user, check=True)
    cluster.stop("gsubd")
    place = cluster.paths.decision_socket
    server = Server(place, decider.reply, owner=os.geteuid(), group=cluster.daemon_user("slurm").gid)
    try:
        jobs = {
            name: submit_marked(
                cluster,
                ["-J", name, "-t2", f"--output={folder}/%j.out", *case.words],
                user=user,
                env=case.env,
                mark=f"gsub:{name}".__eq__,
            )
            for name, case in ALL.items()
        }
        seen = steps(cluster, jobs.values(), folder)
    finally:
        server.close()
        place.unlink()
        cluster.start("gsubd")
    yield {name: seen[job] for name, job in jobs.items()}, decider
    cluster.clean()


def _holds(case: Case, step: Step) -> None:
    assert step.tasks_per_node == [case.tasks] * case.nodes, step
    assert step.gpus == {case.gpus}, step
    assert step.tres["node"] == case.nodes, step
    if case.cpus is not None:
        assert set(step.cpus.values()) == {case.cpus}, step
        assert step.tres["cpu"] == case.cpus * case.nodes, step
    if case.memory is not None:
        assert step.tres["mem"] == case.memory, step
    if case.told is not None:
        assert step.cpus_told == {case.told}, step


@pytest.mark.parametrize("name", CASES)
def test_a_bare_srun_gets_what_was_edited(ran, name):
    seen, decider = ran
    assert not decider.refused[name]
    _holds(CASES[name], seen[name])
    assert seen[name].tres == seen[name].job, "the step has less than its job"
    assert not seen[name].noise


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_steps_would_not_see_is_not_edited(ran, name):
    seen, decider = ran
    assert set(decider.refused[name]) == set(REFUSED[name].edits)
    _holds(REFUSED[name], seen[name])
