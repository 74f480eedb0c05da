"""Where Slurm puts what was decided, and what a bare `srun` in the script then gets: through the real shim and gsubd.

The cluster has 8 nodes of 8 GPUs, 64 CPUs and 512000 MiB on two leaf switches: 8 CPUs and 64000 MiB for each GPU, where
a job states neither. All jobs are submitted at once: they compete for it, and none may spread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from site_configs.devcluster import Cluster
from site_configs.hostlist import expand
from tests.slurm.decide.bare import SCRIPT, Step, records, steps, submit_marked
from tests.waiting import wait_until

pytestmark = pytest.mark.all_releases

GPUS, CPUS, CPUS_PER_GPU, MIB_PER_GPU = 8, 64, 8, 64_000


@dataclass(frozen=True)
class Want:
    """What a request must end as.

    `nodes`; on each of them `tasks` and `cpus` of the step (None: in proportion to the GPUs); `gpus` of the job on each
    node, and of each task (`each`, None: all of its node's). `memory` on each node in MiB (None: by the GPUs, too).
    `whole`: the nodes are its own. `leaves`: so many leaf switches at most. `within`: nodes that it must keep to.
    """

    options: str
    nodes: int
    gpus: int
    tasks: int = 1
    each: int | None = None
    cpus: int | None = None
    memory: int | None = None
    told: int = 0
    whole: bool = False
    leaves: int = 1
    within: str = "n[1-8]"
    env: Mapping[str, str] = field(default_factory=dict)


WANTED: Mapping[str, Want] = {
    # --gpus
    "g1": Want("--gpus=1", 1, 1),
    "g4": Want("--gpus=4", 1, 4),
    "g8": Want("--gpus=8", 1, 8, whole=True),
    "g10": Want("--gpus=10", 2, 5),
    "g12": Want("--gpus=12", 2, 6),
    "g16": Want("--gpus=16", 2, 8, whole=True),
    "g24": Want("--gpus=24", 3, 8, whole=True),
    "g40": Want("--gpus=40", 5, 8, whole=True, leaves=2),
    "g16-n16": Want("--gpus=16 --ntasks=16", 2, 8, tasks=8, whole=True),
    "g12-n4": Want("--gpus=12 -n4", 2, 6, tasks=2),
    # nodes stated, or a range of them
    "N2-g4": Want("-N2 --gpus=4", 2, 2),
    "N2-g6": Want("-N2 --gpus=6 --ntasks-per-node=3", 2, 3, tasks=3),
    "N1-4-g16": Want("-N1-4 --gpus=16", 2, 8, whole=True),
    "N2-4-g8": Want("-N2-4 --gpus=8", 2, 4),
    "N1-8-n4": Want("-N1-8 -n4 --gpus-per-task=1", 1, 4, tasks=4, each=1),
    # by node, task, GPU, socket
    "node": Want("-N2 --gpus-per-node=4", 2, 4),
    "node-tasks": Want("-N2 --gpus-per-node=4 --ntasks-per-node=4", 2, 4, tasks=4),
    "gres": Want("-N2 --gres=gpu:2", 2, 2),
    "gres-whole": Want("-N2 --gres=gpu:8", 2, 8, whole=True),
    "gres-open": Want("--gres=gpu:3", 1, 3),
    "task8": Want("-n8 --gpus-per-task=1", 1, 8, tasks=8, each=1, whole=True),
    "task16": Want("-n16 --gpus-per-task=1", 2, 8, tasks=8, each=1, whole=True),
    "task6x2": Want("-n6 --gpus-per-task=2", 2, 6, tasks=3, each=2),
    "N2-task": Want("-N2 -n4 --gpus-per-task=1", 2, 2, tasks=2, each=1),
    "per-gpu": Want("--gpus=4 --ntasks-per-gpu=2", 1, 4, tasks=8, each=1),
    # CPUs and memory stated: kept
    "c4": Want("-n4 --gpus-per-task=2 -c4", 1, 8, tasks=4, each=2, cpus=16, told=4),
    "c20": Want("--gpus=4 -c20", 1, 4, cpus=20, told=20),
    "cpg": Want("--gpus=4 --cpus-per-gpu=4", 1, 4, cpus=16),
    "cpg-nodes": Want("--gpus=12 --cpus-per-gpu=4", 2, 6, cpus=24),
    "c6-nodes": Want("--gpus=12 -n4 -c6", 2, 6, tasks=2, cpus=12, told=6),
    "mem": Want("--gpus=4 --mem=64G", 1, 4, memory=64 * 1024),
    "mem-nodes": Want("--gpus=12 --mem=64G", 2, 6, memory=64 * 1024),
    "mpc": Want("--gpus=2 --mem-per-cpu=1000", 1, 2, memory=16_000),
    "mpg": Want("--gpus=4 --mem-per-gpu=10G --cpus-per-gpu=6", 1, 4, cpus=24, memory=40 * 1024),
    # where
    "exclusive": Want("--gpus=12 --exclusive", 2, 6, cpus=CPUS, whole=True),
    "debug": Want("-p debug -t30 --gpus=12", 2, 6),
    "w": Want("-w n3 --gpus=4", 1, 4, within="n3"),
    "x": Want("-x n[1,5] --gpus=10", 2, 5, within="n[2-4,6-8]"),
    "leaf": Want("-C leaf2 --gpus=12", 2, 6, within="n[5-8]"),
    # the user's own --switches stays
    "switches": Want("--gpus=12 --switches=2@1", 2, 6, leaves=2),
    # asked for by the user: a stated shape put together
    "repack": Want(
        "-N4 --ntasks-per-node=2 --gpus-per-node=2", 1, 8, tasks=8, whole=True, env={"GSUB_REPACK": "yes"}
    ),
    "repack-2": Want(
        "-N4 --ntasks-per-node=3 --gpus-per-task=1", 2, 6, tasks=6, each=1, env={"GSUB_REPACK": "yes"}
    ),
    "array": Want("--array=1-2 --gpus=10", 2, 5),
}  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """A job that ran: its step, its record in scontrol, and what gsubd wrote down."""

    step: Step
    record: Mapping[str, str]
    decision: Mapping[str, Any]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where Slurm put it."""
        return expand(self.record["NodeList"])

    @property
    def edits(self) -> dict[str, Any]:
        """Field -> what it was set to."""
        return {change["field"]: change["after"] for change in self.decision["changes"]}


def _folder(cluster: Cluster, user: str | None) -> Path:
    folder = cluster.home(user) / "placement"
    cluster.run(["mkdir", "-p", str(folder)], user=user, check=True)
    return folder


def _collect(cluster: Cluster, jobs: list[str], folder: Path) -> dict[str, Ran]:
    """Shown id -> what ran, of the jobs and their tasks and components."""
    seen = steps(cluster, jobs, folder)
    found = records(cluster)
    ids = {shown: found[shown]["AdminComment"].removeprefix("gsub:") for shown in seen}

    def written() -> dict[str, dict[str, Any]] | None:
        known = {one["decision"]: one for one in cluster.decisions() if one["kind"] == "decision"}
        return known if known.keys() >= set(ids.values()) else None

    decisions = wait_until(written)
    return {shown: Ran(step, found[shown], decisions[ids[shown]]) for shown, step in seen.items()}


def _marked(comment: str) -> bool:
    return comment.startswith("gsub:d-")


@pytest.fixture(scope="module")
def ran(enforcing: Cluster, user: str | None) -> Iterator[dict[str, list[Ran]]]:
    """Name -> its job, or the tasks of its array, all run side by side."""
    enforcing.clean()
    folder = _folder(enforcing, user)
    jobs = {}
    for name, want in WANTED.items():
        output = f"{folder}/%A_%a.out" if "--array" in want.options else f"{folder}/%j.out"
        # so long that keeping it together is worth a wait
        line = ["-J", name, "-t4:00:00", f"--output={output}", *want.options.split()]
        jobs[name] = submit_marked(enforcing, line, user=user, env=want.env, mark=_marked)
    found = _collect(enforcing, list(jobs.values()), folder)
    yield {
        name: [one for shown, one in found.items() if shown.partition("_")[0] == job]
        for name, job in jobs.items()
    }
    enforcing.clean()


def _leaves(cluster: Cluster, nodes: tuple[str, ...]) -> set[str]:
    return {leaf for leaf, members in cluster.spec.leaves.items() if set(members) & set(nodes)}


@pytest.mark.parametrize("name", WANTED)
def test_slurm_places_it_as_decided(ran, enforcing, name):
    want = WANTED[name]
    assert len(ran[name]) == (2 if "--array" in want.options else 1)
    for one in ran[name]:
        assert len(one.nodes) == want.nodes
        assert set(one.nodes) <= set(expand(want.within))
        assert len(_leaves(enforcing, one.nodes)) <= want.leaves, one.edits
        assert one.step.job["gres/gpu"] == (GPUS if want.whole else want.gpus) * want.nodes
        if want.whole:
            assert one.step.job["cpu"] == CPUS * want.nodes


@pytest.mark.parametrize("name", WANTED)
def test_a_bare_srun_gets_what_was_decided(ran, name):
    want = WANTED[name]
    for one in ran[name]:
        step = one.step
        assert not step.noise
        assert sorted(step.tasks) == sorted(one.nodes), "the step is where its job is"
        assert step.tasks_per_node == [want.tasks] * want.nodes
        assert step.gpus == {want.gpus if want.each is None else want.each}
        cpus = (CPUS if want.whole else want.gpus * CPUS_PER_GPU) if want.cpus is None else want.cpus
        assert set(step.cpus.values()) == {cpus}
        assert step.cpus_told == {want.told}
        memory = (GPUS if want.whole else want.gpus) * MIB_PER_GPU if want.memory is None else want.memory
        assert step.tres == {
            "cpu": cpus * want.nodes,
            "gres/gpu": want.gpus * want.nodes,
            "mem": memory * want.nodes,
            "node": want.nodes,
        }


@pytest.mark.parametrize("name", WANTED)
def test_the_step_equals_the_decision(ran, name):
    for one in ran[name]:
        step, edits, nodes = one.step, one.edits, len(one.nodes)
        assert one.decision["mode"] == "enforce"
        assert not one.decision["failures"]
        seen: dict[str, Any] = {
            "min_nodes": nodes,
            "max_nodes": nodes,
            "num_tasks": sum(step.tasks.values()),
            "ntasks_per_node": max(step.tasks.values()),
            "gres": f"gpu:{step.tres['gres/gpu'] // nodes}",
            "shared": 0 if one.record["OverSubscribe"] == "NO" else None,
            "cpus_per_task": min(step.cpus_told),
            "cpus_per_tres": step.tres["cpu"] // step.tres["gres/gpu"],
            "min_mem_per_node": step.tres["mem"] // nodes,
            "mem_per_tres": step.tres["mem"] // step.tres["gres/gpu"],
        }
        for name_, value in edits.items():
            if name_ in seen:
                decided = int(value.rpartition(":")[2]) if name_.endswith("per_tres") else value
                assert decided == seen[name_], name_


def test_a_job_waits_for_one_leaf_while_that_is_worth_it(enforcing, user):
    enforcing.clean()
    folder = _folder(enforcing, user)
    first, second = (nodes[-1] for nodes in enforcing.spec.leaves.values())

    def running(job: str) -> dict[str, str] | None:
        record = records(enforcing)[job]
        return record if record["JobState"] in {"RUNNING", "COMPLETED"} else None

    def fill(node: str) -> str:
        line = ["sbatch", "--parsable", "--output=/dev/null", "-t9:00:00", f"-w{node}", "--gpus-per-node=8"]
        job: str = enforcing.run([*line, "--wrap=sleep 900"], user=user, check=True).stdout.strip()
        return job

    # one idle node is left in each leaf
    fillers = {node: fill(node) for node in enforcing.spec.node_names if node not in (first, second)}
    wait_until(lambda: all(running(job) for job in fillers.values()))
    line = [
        "sbatch",
        "--parsable",
        "-t4:00:00",
        "--output=/dev/null",
        "--gpus=16",
        "--comment=gsub:off",
        "--wrap=:",
    ]
    spread = enforcing.run(line, user=user, check=True).stdout.strip()
    assert set(expand(wait_until(lambda: running(spread))["NodeList"])) == {first, second}, (
        "without gsub it spreads"
    )

    line = ["-t4:00:00", f"--output={folder}/%j.out", "--gpus=16"]
    job = submit_marked(enforcing, line, user=user, mark=_marked)
    # The scheduler has passed it over once a later one of another partition ran.
    line = ["sbatch", "--parsable", "-pdebug", "-t1", "--output=/dev/null", "--wrap=:"]
    later = enforcing.run(line, user=user, check=True).stdout.strip()
    wait_until(lambda: running(later))
    assert records(enforcing)[job]["JobState"] == "PENDING"
    neighbour = enforcing.spec.leaves["leaf2"][0]
    enforcing.run(["scancel", fillers[neighbour]], check=True)
    one = _collect(enforcing, [job], folder)[job]
    enforcing.clean()
    assert set(one.nodes) == {neighbour, second}
    assert one.step.tasks_per_node == [1, 1]


def test_one_node_is_found_beside_a_fuller_one(enforcing, user):
    """Closing a shape must not make a job wait: 26.05 looks no further than a node with too few idle GPUs."""
    enforcing.clean()
    folder = _folder(enforcing, user)
    line = [
        "sbatch",
        "--parsable",
        "--output=/dev/null",
        "-t5",
        "-wn1",
        "--gpus-per-node=6",
        "--wrap=sleep 300",
    ]
    filler = enforcing.run(line, user=user, check=True).stdout.strip()
    wait_until(lambda: records(enforcing)[filler]["JobState"] == "RUNNING")
    job = submit_marked(enforcing, ["-t5", f"--output={folder}/%j.out", "--gpus=4"], user=user, mark=_marked)
    one = _collect(enforcing, [job], folder)[job]
    enforcing.run(["scancel", filler], check=True)
    assert len(one.nodes) == 1
    assert one.nodes != ("n1",)
    assert one.step.tres["gres/gpu"] == 4


def test_what_cannot_be_even_stays_as_it_is(enforcing, user):
    folder = _folder(enforcing, user)
    job = submit_marked(enforcing, ["-t5", f"--output={folder}/%j.out", "--gpus=13"], user=user, mark=_marked)
    one = _collect(enforcing, [job], folder)[job]
    assert not set(one.edits) & {"min_nodes", "max_nodes", "gres", "ntasks_per_node"}
    assert one.step.job["gres/gpu"] == 13


def test_components_of_a_heterogeneous_job_are_decided_apart(enforcing, user):
    folder = _folder(enforcing, user)
    script = SCRIPT + SCRIPT.partition("\n")[2].replace("srun", "srun --het-group=1").replace(
        "task ", "other "
    )
    job = submit_marked(
        enforcing,
        ["-t5", f"--output={folder}/%j.out", "--gpus=10", ":", "--gpus=4", "-n2"],
        user=user,
        mark=_marked,
        script=script,
    )
    found = _collect(enforcing, [job], folder)
    assert sorted(found) == [f"{job}+0", f"{job}+1"]
    first, second = found[f"{job}+0"], found[f"{job}+1"]
    assert [len(one.nodes) for one in (first, second)] == [2, 1]
    assert first.edits["gres"] == "gpu:5"
    lines = [line.split() for line in (folder / f"{job}.out").read_text().splitlines()]
    got = [(kind, node, gpus.count(",") + 1) for kind, node, _, _, gpus in lines]
    assert sorted(got) == sorted(
        [("task", node, 5) for node in first.nodes] + [("other", node, 4) for node in second.nodes * 2]
    )


def test_a_job_without_gpus_is_not_asked_about(enforcing, user):
    before = len(enforcing.decisions())
    done = enforcing.run(
        ["sbatch", "--parsable", "--output=/dev/null", "-n2", "--wrap=:"], user=user, check=True
    )
    record = records(enforcing)[done.stdout.strip()]
    assert "gsub" not in record.get("AdminComment", "")
    submit_marked(enforcing, ["-J", "later", "--output=/dev/null", "--gpus=1"], user=user, mark=_marked)

    def asked() -> set[str]:
        return {one["asked"]["name"] for one in enforcing.decisions()[before:] if one["kind"] == "decision"}

    # Written in the order in which they are decided: had the first been asked about, it would be there too.
    wait_until(lambda: "later" in asked())
    assert asked() == {"later"}
