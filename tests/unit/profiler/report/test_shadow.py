"""`gsub admin shadow`: every figure of a history made by hand, what is recommended, and what never is."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert

from gsub.cli import main
from gsub.shadow_view import show
from profiler.report.advice import HOLDS, advice
from profiler.report.evidence import Figure
from profiler.report.shadow import Overview, Shadow, shadow
from profiler.report.shadow_stages import Stages
from profiler.report.shadow_values import Attempt, Body, Changed, Stage
from profiler.store import Store, open_store
from profiler.store.schema import decision, job, job_node, resubmission, verdict
from site_configs.site import parse_site
from site_configs.site_model import Site
from slurm_plugins.decide.context import Knowledge, Workload
from slurm_plugins.decide.pipeline import decide
from slurm_plugins.decide.request import Job, Request
from slurm_plugins.decide.stages.topology import Topology
from tests.properties import examples
from tests.unit.profiler.report.pages import read
from tests.unit.profiler.store.empty import empty_store
from tests.unit.slurm_plugins.decide.cluster import CLUSTERS

T0 = 1_760_000_000.0
GIB = 1 << 30
DAY = 86400.0
MEMORY = {"stage": "sensitivity", "field": "min_mem_per_node", "before": 65536, "after": 32768}


class World:
    """Rows of a store, to be written in any order."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {
            name: [] for name in ("job", "decision", "job_node", "verdict", "resubmission")
        }
        self.number = 0
        self.at = T0

    def decide(self, *changes: dict[str, Any], number: int | None = None, **more: Any) -> None:
        """One decision; without a number no job is known of it."""
        at, mode = more.pop("at", self.at), more.pop("mode", "observe")
        body = {"v": 1, "kind": "decision", "changes": changes, "asked": {"partition": "gpu"}} | more
        self.rows["decision"].append(
            {
                "cluster": "lab", "id": f"d-{len(self.rows['decision']):016x}", "at": at, "uid": 1000, "mode": mode,
                "enforced": mode == "enforce", "outcome": "dropped" if number is None else "job", "job_id": number,
                "body": json.dumps(body), "joined": None,
            }
        )  # fmt: skip

    def run(self, *changes: dict[str, Any], decided: bool = True, **values: Any) -> int:
        """A job of one attempt that ran for an hour after a minute, with its decision; its number."""
        self.number += 1
        self.at += 10
        number, pk = values.pop("number", self.number), len(self.rows["job"]) + 1
        of_decision = {
            name: values.pop(name) for name in ("facts", "notes", "script", "mode", "asked") if name in values
        }
        wait, run, reason = values.pop("wait", 60.0), values.pop("run", 3600.0), values.pop("reason", "")
        followed, working = values.pop("followed", ""), values.pop("working", None)
        at = values.pop("at", self.at)
        start, end = at + wait, at + wait + run
        row = {
            "pk": pk, "cluster": "lab", "job_id": number, "restarts": 0, "array_job_id": None, "sort_at": start,
            "touched": end, "uid": 1000, "partition": "gpu", "state": "FAILED" if reason else "COMPLETED",
            "facts_final": True, "submitted": at, "started": start, "ended": end, "nodes": "n1", "node_count": 1,
            "cpus": 8, "gpus": 2, "memory_asked_bytes": 64 * GIB, "memory_peak_bytes": 20 * GIB,
            "cpu_seconds": 3600.0, "utilisation_mean": 50.0,
        } | values  # fmt: skip
        self.rows["job"].append(row)
        self.rows["job_node"].append({"job": pk, "node": "n1", "memory_working_bytes": working})
        if reason:
            of = {"job": pk, "cluster": "lab", "job_id": row["job_id"], "uid": row["uid"]}
            self.rows["verdict"].append(
                of
                | {"at": end, "reason": reason, "tier": "explicit", "source": "user", "body": "{}"}
                | {"gpu_seconds": 2 * run, "runtime": run}
            )
            if followed:
                done = followed == "done"
                self.rows["resubmission"].append(
                    of
                    | {"restarts": row["restarts"], "state": "done" if done else "stopped", "reason": reason}
                    | {"at": end, "body": json.dumps({"stop": "" if done else followed})}
                )
        if decided:
            self.decide(*changes, number=number, at=at, **of_decision)
        return int(number)

    def write(self, store: Store, order: random.Random | None = None) -> None:
        """Into an empty store; with `order` by other keys and in another order."""
        keys = list(range(1, len(self.rows["job"]) + 1))
        if order is not None:
            order.shuffle(keys)
        tables = {"job": job, "decision": decision, "job_node": job_node}
        with store.writing("The history cannot be written.") as connection:
            for name, table in (tables | {"verdict": verdict, "resubmission": resubmission}).items():
                rows = [dict(row) for row in self.rows[name]]
                for row in rows:
                    for key in {"pk", "job"} & row.keys():
                        row[key] = keys[row[key] - 1]
                if order is not None:
                    order.shuffle(rows)
                if rows:
                    connection.execute(insert(table), rows)


def page_of(store: Store, **more: Any) -> Shadow:
    return shadow(store, cluster="lab", since=T0, until=T0 + 30 * DAY, **more)


def stage_of(page: Shadow, name: str) -> Stage:
    return next(one for one in page.stages if one.name == name)


def told(figures: Sequence[Figure]) -> dict[str, Any]:
    return {one.label: (one.value, one.of) for one in figures}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store to be copied."""
    path = tmp_path_factory.mktemp("empty") / "store.db"
    made = empty_store(f"sqlite:///{path}")
    made.close()
    return path


@pytest.fixture
def lab(empty: Path, tmp_path: Path) -> Iterator[Store]:
    """An empty SQLite store: what hangs on the database is tried on both by a few."""
    found = open_store(f"sqlite:///{shutil.copy(empty, tmp_path)}")
    yield found
    found.close()


# --- by hand --------------------------------------------------------------------------------------------------------


def test_less_memory(world: World, store: Store) -> None:
    for number in range(80):
        # Page cache counts in the peak, not in what the kernel could not take back
        world.run(MEMORY, memory_peak_bytes=60 * GIB, working=(33 if number < 3 else 20) * GIB)
    for _ in range(4):
        world.run(MEMORY, memory_peak_bytes=None)
    world.write(store)
    page = page_of(store)
    found = stage_of(page, "sensitivity")
    assert page.overview == Overview(decisions=84, attempts=84)
    assert (found.attempts, found.jobs, found.gpu_hours, found.changes) == (
        84,
        84,
        168.0,
        {"min_mem_per_node": 84},
    )
    assert told(found.happened) == {
        "waited (median)": (60.0, 84), "GPU utilisation": (50.0, 84), "ended: completed": (84, 84),
    }  # fmt: skip
    assert told(found.harm)["memory: peaked above what they would have had"] == (3, 80)
    assert told(found.benefit)["memory: left to others"] == (80 * 32.0, 80), "what nobody saw is left to none"
    assert told(found.harm)["run still, or what they had, used or would have had is not known"] == (4, None)
    assert (found.helped, found.harmed, found.known, found.verdict) == (0, 3, 80, "against")
    assert found.why == "memory: 3 of 80 would have been harmed"
    assert advice(page, None).stage is None


@pytest.mark.parametrize(
    ("signal", "harmed", "helped"),
    [
        ({"state": "OUT_OF_MEMORY", "peak": None}, 1, 1),
        ({"reason": "cpu_oom", "state": "FAILED", "peak": None}, 1, 1),
        ({"peak": 33.0 * GIB}, 1, 0),
        ({"peak": 31.0 * GIB}, 0, 0),
    ],
)
def test_each_sign_of_too_little_memory_counts_alone(
    signal: dict[str, Any], harmed: int, helped: int
) -> None:
    for asked, counted in ((64.0, (0, harmed)), (16.0, (helped, 0))):
        stages = Stages()
        change = Changed("min_mem_per_node", 32768, None, "sensitivity")
        stages.add(Body(changes=(change,)), [attempt(asked=asked * GIB, **signal)], settled=True)
        found = next(one for one in stages.done() if one.name == "sensitivity")
        assert (found.helped, found.harmed) == counted


def test_memory_that_harms_none_is_recommended(world: World, lab: Store) -> None:
    for _ in range(73):
        world.run(MEMORY)
    for _ in range(6):
        world.run(MEMORY, memory_asked_bytes=16 * GIB, reason="cpu_oom", state="OUT_OF_MEMORY")
    world.write(lab)
    page = page_of(lab)
    found = stage_of(page, "sensitivity")
    assert told(found.benefit)["memory: ran out of it, and would have had more"] == (6, 6)
    assert told(found.happened)["failed: cpu_oom"] == (6, 79)
    assert (found.helped, found.harmed, found.known, found.verdict) == (6, 0, 79, "for")
    line = advice(page, None)
    assert (line.stage, line.table, line.line) == ("sensitivity", "policy", 'mode = "enforce"')
    assert line.command == "gsub admin mode enforce" and line.first == ()


def test_what_is_left_to_others_speaks_for_it_once_enough_are_known(world: World, lab: Store) -> None:
    for _ in range(73):
        world.run(MEMORY)
    world.write(lab)
    found = stage_of(page_of(lab), "sensitivity")
    assert (found.verdict, found.helped, found.sure) == ("for", 0, 0.0) and "left to others" in found.why


@pytest.mark.parametrize(("unseen", "verdict"), [(73, "for"), (74, "open")])
@pytest.mark.parametrize(
    ("change", "nothing"),
    [
        (Changed("min_mem_per_node", 32768, None, "sensitivity"), {"peak": None}),
        (Changed("cpus_per_tres", "gres:gpu:2", None, "sensitivity"), {"used": None}),
    ],
)
def test_most_must_be_known(change: Changed, nothing: dict[str, Any], unseen: int, verdict: str) -> None:
    stages = Stages()
    for values, count in (({}, 73), (nothing, unseen)):
        for _ in range(count):
            stages.add(Body(changes=(change,)), [attempt(**values)], settled=True)
    found = next(one for one in stages.done() if one.name == "sensitivity")
    assert found.verdict == verdict
    assert {one.of for one in found.benefit if "left to others" in one.label} == {0, 73}
    assert found.harm[-1].value == unseen


def test_too_few_are_no_evidence(world: World, lab: Store) -> None:
    for _ in range(72):
        world.run(MEMORY)
    for _ in range(6):
        world.run(MEMORY, memory_asked_bytes=16 * GIB, reason="cpu_oom", state="OUT_OF_MEMORY")
    world.write(lab)
    page = page_of(lab)
    assert stage_of(page, "sensitivity").verdict == "open"
    line = advice(page, None)
    assert line.stage is None and "too few to rule harm out" in line.waits[0]


def test_cpus(world: World, lab: Store) -> None:
    by_gpu = {"stage": "sensitivity", "field": "cpus_per_tres", "before": None, "after": "gres:gpu:8"}
    by_task = {"stage": "sensitivity", "field": "cpus_per_task", "before": 8, "after": 2}
    curve = [{"stage": "sensitivity", "text": "", "inputs": {"knee": 2, "cpus_per_gpu": 2}}]
    for number in range(10):
        # 16 instead of 8; busy: 7.2, or 7.0
        world.run(by_gpu, cpu_seconds=3600 * (7.2 if number < 4 else 7.0))
    for number in range(10):
        # 4 instead of 8; used: 3.6, or 3.5
        seconds = 3600 * (3.6 if number < 2 else 3.5)
        world.run(by_task, facts={"tasks": 2}, notes=curve, cpu_seconds=seconds, run=3600.0)
    world.run(by_task, facts={})
    world.run(by_task, facts={"tasks": 2}, ended=None, state="RUNNING", cpu_seconds=9e9)
    world.write(lab)
    found = stage_of(page_of(lab), "sensitivity")
    assert told(found.benefit) == {
        "memory: ran out of it, and would have had more": (0, 0),
        "memory: left to others": (0, 0),
        "CPUs: kept all busy, and would have had more": (4, 10),
        "CPUs: left to others": (40.0, 10),
        "CPUs: by a measured curve, the others by a GPU's share": (10, 22),
    }
    assert told(found.harm) == {
        "memory: peaked above what they would have had": (0, 0),
        "CPUs: used what they would have had, and more": (2, 10),
        "run still, or what they had, used or would have had is not known": (2, None),
    }
    assert found.verdict == "against"


def test_gang(world: World, lab: Store) -> None:
    two = {"stage": "gang", "field": "min_nodes", "before": None, "after": 2}
    facts = {"nodes": 2, "gpus": 16}
    for number in range(24):
        odd = number % 2
        world.run(two, facts=facts, gpus=16, node_count=4, utilisation_mean=40.0 + odd)  # spread
        world.run(two, facts=facts, gpus=16, node_count=2, utilisation_mean=60.0 + odd)
        world.run(facts=facts, gpus=16, node_count=2)  # stated
    world.write(lab)
    page = page_of(lab)
    found = stage_of(page, "gang")
    assert (found.attempts, found.known, found.helped, found.verdict) == (48, 48, 24, "for")
    benefit, harm = {one.label: one for one in found.benefit}, found.harm[0]
    use = benefit["utilisation on so few nodes, beside more"]
    # Standard error of each mean: sqrt(24 * 0.25 / 23 / 24); the difference's is sqrt(2) times that
    assert (use.value, use.of) == (20.0, 24)
    assert use.low == pytest.approx(20 - 1.959964 * (2 * 0.25 / 23) ** 0.5)
    assert harm.value == pytest.approx(1.0)
    assert advice(page, None).stage == "gang"


def test_gang_that_waits_longer_is_not_recommended(world: World, lab: Store) -> None:
    two = {"stage": "gang", "field": "min_nodes", "before": None, "after": 2}
    for number in range(24):
        wait = 60.0 + number
        world.run(two, facts={"nodes": 2}, node_count=4, utilisation_mean=40.0 + number % 2, wait=wait)
        world.run(two, facts={"nodes": 2}, node_count=2, utilisation_mean=60.0 + number % 2, wait=wait)
        world.run(facts={"nodes": 2}, node_count=2, wait=3 * wait)
    world.write(lab)
    page = page_of(lab)
    assert stage_of(page, "gang").verdict == "against"
    assert advice(page, None).stage is None


@pytest.mark.parametrize(("wait", "verdict"), [(300, "for"), (1800, "against")])
def test_topology(world: World, lab: Store, tmp_path: Path, wait: int, verdict: str) -> None:
    (tmp_path / "topology.conf").write_text(
        "SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[5-8]\nSwitchName=c Switches=a,b\n"
    )
    site = parse_site(
        f'cluster = "lab"\n[topology]\nfile = "{tmp_path}/topology.conf"\n[partitions.gpu]\nnodes = "n[1-8]"\n'
    )
    changes = [
        {"stage": "topology", "field": "req_switch", "before": None, "after": 1},
        {"stage": "topology", "field": "wait4switch", "before": None, "after": wait},
    ]
    for number in range(24):
        odd = number % 2
        world.run(*changes, nodes="n[4-5]", node_count=2, utilisation_mean=40.0 + odd)
        world.run(*changes, nodes="n[1-2]", node_count=2, utilisation_mean=60.0 + odd)
    world.write(lab)
    found = stage_of(page_of(lab, site=site), "topology")
    assert found.verdict == verdict
    assert told(found.benefit)["ran under more switches than it would have asked for"] == (24, 48)
    assert told(found.harm) == {"waits that it would have allowed these, at most": (24.0 * wait, 24)}
    low = 20 - 1.959964 * (2 * 0.25 / 23) ** 0.5
    saved = told(found.benefit)["run time that this would have saved, at least"][0]
    assert saved == pytest.approx(24 * 3600 * low / (40.5 + low))  # 7.9 h: 20 min each
    assert stage_of(page_of(lab), "topology").known == 0, "without a site file no switch is known"


def test_avoid_nodes(world: World, lab: Store) -> None:
    off = {"stage": "avoid_nodes", "field": "exc_nodes", "before": "n9", "after": "n[1,9]"}
    for number in range(30):
        world.run(off, reason="gpu_hardware" if number < 10 else "import_error" if number < 12 else "")
    for number in range(40):
        world.run(off, nodes="n[8-9]", reason="nccl_error" if number < 2 else "")
    world.write(lab)
    page = page_of(lab)
    found = stage_of(page, "avoid_nodes")
    assert told(found.benefit) == {
        "failed for a node's reason on a node it would have been kept off": (10, 30),
        "failed for such a reason elsewhere": (2, 40),
    }
    assert told(found.harm) == {"ran there and did not fail so: they would have gone elsewhere": (20, 30)}
    assert (found.verdict, advice(page, None).stage) == ("for", "avoid_nodes")


@pytest.mark.case("F1")
def test_changes_that_a_limit_held_back_are_harm_that_was_seen() -> None:
    stages = Stages(None)
    note = {"stage": "sensitivity", "inputs": {"limited": "clipped"}}
    for notes in ([note, note], [{"inputs": {"share": 8}}], []):
        stages.add(msgspec.convert({"notes": notes}, Body), (), settled=True)
    (found,) = (stage for stage in stages.done() if stage.name == "limits")
    assert [(one.label.split(",")[0], one.value) for one in found.harm[1:]] == [
        ("changes clipped or left out", 1)
    ]


def test_limits(world: World, lab: Store) -> None:
    for number in range(6):
        world.number += 1
        world.decide(number=world.number, reject="no node has 16 GPUs", at=T0 + number)
    world.decide(reject="no node has 16 GPUs")
    for later in (1.0, 2.0, 6 * DAY):  # these may wait still
        world.number += 1
        world.decide(number=world.number, reject="no node has 16 GPUs", at=T0 + 23 * DAY + later)
    world.write(lab)
    page = page_of(lab)
    found = stage_of(page, "limits")
    assert (found.helped, found.harmed, found.known, found.jobs, found.attempts) == (6, 0, 6, 10, 0)
    assert found.benefit[-1].value == 4
    assert advice(page, None).stage == "limits" and page.overview.lost == 1


def test_what_would_be_refused_and_ran_keeps_enforce_away(world: World, lab: Store) -> None:
    """It comes with the mode, and no key holds it back."""
    for _ in range(79):
        world.run(MEMORY)
    for _ in range(6):
        world.run(MEMORY, memory_asked_bytes=16 * GIB, reason="cpu_oom", state="OUT_OF_MEMORY")
    world.run()
    world.rows["decision"][-1]["body"] = json.dumps({"reject": "it can never run"})
    world.write(lab)
    page = page_of(lab)
    assert stage_of(page, "sensitivity").verdict == "for" and stage_of(page, "limits").verdict == "against"
    line = advice(page, None)
    assert line.stage is None and "limits" in line.why


def again(world: World, count: int, passed: int, followed: str = "mode") -> None:
    """So many failures, each followed an hour later by a run of its script, of which so many pass."""
    for number in range(count):
        script = {"sha256": f"{number:064x}", "bytes": 10}
        at = T0 + DAY + 7 * number
        world.run(at=at, script=script, reason="node_failure", followed=followed)
        world.run(at=at + 2 * 3600, script=script, reason="" if number < passed else "node_failure")
        world.run(at=at + 3 * 3600, script=script, reason="traceback")  # not the next one


def test_resubmission(world: World, store: Store) -> None:
    again(world, 30, 25)
    world.run(reason="node_failure", followed="mode")  # nobody tried it again
    world.run(reason="import_error", followed="never")
    world.run(reason="node_failure", followed="done")  # gsub did
    world.write(store)
    page = page_of(store)
    found = stage_of(page, "resubmission")
    assert (found.attempts, found.gpu_hours, found.changes) == (31, 62.0, {"node_failure": 31})
    assert told(found.benefit) == {"next runs that passed": (25, 30)}
    assert told(found.harm) == {
        "next runs that failed for the same reason": (5, 30),
        "next runs that failed for another": (0, 30),
        "GPU-hours of one more attempt each, as long as the failed one": (62.0, 31),
    }
    assert (found.helped, found.harmed, found.known, found.enforced) == (25, 5, 30, 1)
    assert found.verdict == "for" and page.overview.failures == 68
    assert advice(page, None).stage == "resubmission"


def test_nineteen_next_runs_tell_nothing(world: World, lab: Store) -> None:
    again(world, 19, 19)
    world.write(lab)
    page = page_of(lab)
    found = stage_of(page, "resubmission")
    assert (found.known, found.verdict) == (19, "open") and advice(page, None).stage is None
    assert found.benefit[0].low is None


def test_what_is_no_next_run(world: World, lab: Store) -> None:
    script = {"sha256": "a" * 64, "bytes": 1}
    number = world.run(script=script, reason="node_failure", followed="mode")
    world.run(number=number, restarts=1, uid=7, at=T0 + 9000, decided=False)  # another user's job
    world.run(script=script, at=T0 + 3700 + 2 * DAY)  # another day's
    world.run(script={"sha256": "b" * 64}, at=T0 + 9000)  # another script
    failed = {"sha256": "c" * 64, "bytes": 1}
    world.run(script=failed, reason="node_failure", followed="mode")
    world.run(script=failed, at=T0 + 9000, uid=7)  # its number is another user's
    world.write(lab)
    assert stage_of(page_of(lab), "resubmission").known == 0


def test_resubmission_in_vain_is_held_back(world: World, lab: Store) -> None:
    again(world, 30, 5)
    for _ in range(73):
        world.run(MEMORY)
    for _ in range(6):
        world.run(MEMORY, memory_asked_bytes=16 * GIB, reason="cpu_oom", state="OUT_OF_MEMORY")
    world.write(lab)
    page = page_of(lab)
    assert stage_of(page, "resubmission").verdict == "against"
    line = advice(page, None)
    assert line.stage == "sensitivity"
    assert [(hold.stage, hold.table, hold.line) for hold in line.first] == [
        ("resubmission", "resubmit", "enabled = false")
    ]


def test_deterministic_failures_that_were_repeated(world: World, lab: Store) -> None:
    again(world, 22, 2, followed="never")
    world.write(lab)
    figures = told(stage_of(page_of(lab), "resubmission").happened)
    assert figures["... which the user repeated in vain"] == (20, 22)
    assert figures["of another cause than any attempt can mend (never tried again)"] == (22, None)


def test_tasks_of_an_array_that_were_tried_again_together_are_one_run(world: World, lab: Store) -> None:
    script = {"sha256": "a" * 64, "bytes": 1}
    asked = {"partition": "gpu", "array_inx": "0-3"}
    leader = world.run(script=script, reason="node_failure", followed="mode", array_job_id=1, asked=asked)
    for task in range(3):
        values: dict[str, Any] = {
            "number": 100 + task,
            "array_job_id": leader,
            "at": T0 + 10,
            "decided": False,
        }
        world.run(**values, reason="node_failure", followed="mode")
    world.run(at=T0 + 9000, script=script)
    world.write(lab)
    page = page_of(lab)
    found = stage_of(page, "resubmission")
    assert (found.attempts, found.known, found.helped) == (4, 1, 1)
    assert page.overview.attempts == 5


def test_the_next_attempt_at_the_same_job_counts(world: World, lab: Store) -> None:
    number = world.run(reason="node_failure", followed="mode")
    world.run(number=number, restarts=1, at=T0 + 9000, decided=False)
    world.write(lab)
    found = stage_of(page_of(lab), "resubmission")
    assert (found.known, found.helped) == (1, 1)


@pytest.mark.parametrize(("others", "verdict"), [(0, "for"), (120, "open")])
def test_smoke(world: World, lab: Store, others: int, verdict: str) -> None:
    for number in range(30):
        wait = 600.0 if number < 20 else 599.0  # started before a smoke run would have ended
        world.run(gpus=64, reason="import_error", run=90.0, wait=wait)
    for _ in range(2):
        world.run(gpus=64, reason="import_error", run=601.0, wait=7200.0)  # too late for a smoke run
        world.run(gpus=64, reason="gpu_oom", run=90.0, wait=7200.0)
        world.run(gpus=8, reason="import_error", run=90.0, wait=7200.0)  # not above
    for _ in range(others):
        world.run(gpus=16)
    world.write(lab)
    page = page_of(lab)
    found = stage_of(page, "smoke")
    tried = 34 + others
    assert told(found.benefit) == {
        "failed so early of the script's own fault": (30, tried),
        "... and waited for longer than a smoke run takes": (20, tried),
        "hours that these waited in vain": (pytest.approx(20 / 6), 20),
        "GPU-hours that these held": (pytest.approx(32.0), 20),
    }
    assert told(found.harm) == {"GPU-hours of smoke runs, at most": (pytest.approx(tried / 6), tried)}
    assert found.verdict == verdict
    line = advice(page, None)
    assert (line.table, line.line, line.command) == (
        ("smoke", "above_gpus = 8", "") if verdict == "for" else ("", "", "")
    )
    on = parse_site(SITE + "[smoke]\nabove_gpus = 8\n")
    assert stage_of(page_of(lab, site=on), "smoke").verdict == "open"


# --- what is left out -------------------------------------------------------------------------------------------------


def test_what_was_enforced_or_opted_out_tells_nothing(world: World, lab: Store) -> None:
    world.run(MEMORY, mode="enforce")
    world.decide(mode="enforce", reject="no node has 16 GPUs")
    world.rows["decision"][-1]["enforced"] = False
    world.decide(opted_out=True)
    world.run(MEMORY)
    world.rows["decision"][-1]["body"] = "{"
    world.run(MEMORY, at=T0 - 10 * DAY)
    world.run(MEMORY, uid=7)  # another user's: not the job that was decided about
    world.write(lab)
    page = page_of(lab)
    assert page.overview == Overview(decisions=5, enforced=2, opted_out=1, unread=1)
    assert stage_of(page, "sensitivity").attempts == stage_of(page, "limits").jobs == 0


def test_numbers_of_jobs_that_come_again(world: World, lab: Store) -> None:
    number = world.run(MEMORY)
    world.run(MEMORY, number=number, restarts=1, at=T0 + 20 * DAY, partition="other")
    world.write(lab)
    found = stage_of(page_of(lab), "sensitivity")
    assert (found.attempts, found.jobs) == (2, 2), "each decision has its own attempt"


def test_a_partition_alone(world: World, lab: Store) -> None:
    for name in ("gpu", "cpu") * 3:
        world.run(reason="node_failure", followed="mode", partition=name, asked={"partition": name})
    world.run(partition="gpu", asked={})  # the default partition
    world.run(partition="gpu", asked={"partition": "gpu,cpu"})  # goes by the more cautious of two modes
    world.write(lab)
    page = page_of(lab, partition="gpu")
    assert (page.overview.decisions, page.overview.failures, page.overview.attempts) == (4, 3, 4)
    assert stage_of(page, "resubmission").attempts == 3


def test_an_empty_store(lab: Store) -> None:
    page = page_of(lab)
    assert page.overview == Overview() and {one.verdict for one in page.stages} == {"open"}
    line = advice(page, None)
    assert line.stage is None and line.why == "nothing would have been changed yet"


def recommended() -> World:
    world = World()
    for _ in range(73):
        world.run(MEMORY)
    for _ in range(6):
        world.run(MEMORY, memory_asked_bytes=16 * GIB, reason="cpu_oom", state="OUT_OF_MEMORY")
    again(world, 30, 25)
    off = {"stage": "avoid_nodes", "field": "exc_nodes", "before": None, "after": "n1"}
    world.run(off, script={"sha256": "b" * 64})
    world.run({"stage": "night_queue", "field": "prefer", "before": None, "after": "v100"})
    return world


SITE = 'cluster = "lab"\n'


@pytest.mark.parametrize(
    ("text", "partition", "table", "command"),
    [
        (SITE, None, "policy", "gsub admin mode enforce"),
        (SITE, "gpu", "partitions.gpu", "gsub admin mode enforce --partition gpu"),
        (SITE + "[partitions.gpu]\nmode = 'enforce'\n", None, "policy", "gsub admin mode enforce"),
        (SITE + "[policy]\nmode = 'enforce'\n", None, None, ""),
        (SITE + "[partitions.gpu]\nmode = 'enforce'\n", "gpu", None, ""),
        (
            SITE + "[policy]\nmode = 'enforce'\n[partitions.gpu]\nmode = 'advise'\n",
            "gpu",
            "partitions.gpu",
            "",
        ),
    ],
)
def test_the_line(lab: Store, text: str, partition: str | None, table: str | None, command: str) -> None:
    recommended().write(lab)
    site: Site = parse_site(text)
    line = advice(page_of(lab, partition=partition, site=site), site)
    if table is None:
        assert line.stage is None and "enforces already" in line.why
        return
    assert (line.stage, line.table) == ("resubmission", table) and line.command.startswith(command)
    assert line.comes_with == ("avoid_nodes", "night_queue")
    assert line.keep == (("partition gpu (enforce)",) if "[partitions" in text and partition is None else ())
    after = parse_site(f"{SITE}[{line.table}]\n{line.line}\n")
    assert after.mode_for(partition="gpu", account="", uid=1) == "enforce"


def test_a_site_that_enforces_for_some_users_goes_on_to_all(lab: Store) -> None:
    recommended().write(lab)
    site = parse_site(SITE + "[policy]\nmode = 'enforce'\nrollout = 25\n")
    line = advice(page_of(lab, site=site), site)
    assert (line.stage, line.line) == ("resubmission", "rollout = 100")
    assert line.command == "gsub admin mode enforce --rollout 100"


def open_topology(field: str, partition: str | None = None) -> Shadow:
    """A page that speaks for sensitivity, and leaves topology open."""
    stages = Stages()
    oom = attempt(asked=16.0 * GIB, state="OUT_OF_MEMORY", reason="cpu_oom")
    stages.add(Body(changes=(Changed(field, 1, None, "topology"),)), [attempt()], settled=True)
    for _ in range(5):
        stages.add(
            Body(changes=(Changed("min_mem_per_node", 32768, 16384, "sensitivity"),)), [oom], settled=True
        )
    return Shadow("lab", T0, T0 + DAY, partition, Overview(), stages.done())


class Minds(Knowledge):
    """A workload that was measured to run twice as long when it is spread."""

    def workload(self, request: Request, gpu_type: str) -> Workload | None:
        return Workload("k", runs=5, slowdown=2.0, run_time=7200)

    def avoid(self, partition: str) -> dict[str, str]:
        return {}


def topology_edits(site: str, network: str) -> dict[str, object]:
    where = CLUSTERS[network](site=parse_site(site), knowledge=Minds(), max_switch_wait=7200)
    of = Job(min_nodes=2, max_nodes=2, tres_per_node="gres:gpu:4", time_limit=2880)
    found = decide(Request(id=1, uid=1, job=of), where, decision_id="d-0", stages=[Topology()], mode="advise")
    assert found.failures == ()
    return dict(found.edits)


@pytest.mark.parametrize("partition", [None, "gpu"])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("network", ["two-leaves", "features"])
def test_the_hold_keeps_topology_off(network: str, own: bool, partition: str | None) -> None:
    """Also where a workload was measured, and where the partition has a wait of its own."""
    mine = '[partitions.gpu.locality]\nmax_wait = "1 h"\n' if own else ""
    assert topology_edits(SITE + mine, network)
    line = advice(open_topology("req_switch", partition), parse_site(SITE + mine))
    assert line.stage == "sensitivity" and {hold.stage for hold in line.first} == {"topology"}
    # What is written replaces what the table had
    text = SITE + "".join(f"[{hold.table}]\n{hold.line}\n" for hold in line.first)
    assert topology_edits(text if "[partitions.gpu" in text else text + mine, network) == {}


def test_what_has_its_own_mode_gets_no_line() -> None:
    site = parse_site(
        SITE
        + "[partitions.a]\nmode = 'enforce'\nlocality.max_wait = '1 h'\n[partitions.b]\nmode = 'enforce'\n"
    )
    (hold,) = advice(open_topology("req_switch"), site).first
    assert (hold.table, hold.hits) == ("locality", ("partition b",))


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("", ()),
        ("[partitions.b]\nmode = 'enforce'\n[accounts.c]\nmode = 'enforce'\n", ("partition b", "account c")),
        ("[policy]\nmode = 'enforce'\n[partitions.gpu]\nmode = 'observe'\n", ("the site",)),
    ],
)
def test_whom_a_hold_for_the_whole_site_hits(
    world: World, lab: Store, capsys: pytest.CaptureFixture[str], text: str, hits: tuple[str, ...]
) -> None:
    again(world, 30, 5)
    for _ in range(79):
        world.run(MEMORY)
    world.write(lab)
    site = parse_site(SITE + text)
    page = page_of(lab, partition="gpu", site=site)
    line = advice(page, site)
    assert line.table == "partitions.gpu"
    assert [(hold.table, hold.hits) for hold in line.first] == [("resubmit", hits)]
    show(page, line)
    said = capsys.readouterr().out
    assert "in [resubmit], for the whole site:\n    enabled = false\n" in said
    taken = "    which takes resubmission from what enforces already: "
    assert (taken + ", ".join(hits) + "\n" in said) if hits else (taken not in said)


def test_what_can_be_held_back() -> None:
    """Each line is one that a site file takes; segments of blocks heed none."""
    for name, (table, key) in HOLDS.items():
        assert parse_site(f"{SITE}[{table}]\n{key}\n") != parse_site(SITE), name
    for field, held in (("req_switch", True), ("segment_size", False)):
        line = advice(open_topology(field, "g.p"), None)
        assert line.table == 'partitions."g.p"'
        assert [hold.table for hold in line.first] == (['partitions."g.p".locality'] if held else [])
        assert line.comes_with == (() if held else ("topology",))


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_shows_nowhere(empty: Path, tmp_path: Path, seed: int) -> None:
    pages: list[Shadow] = []
    for order in (None, random.Random(seed)):
        store = open_store(f"sqlite:///{shutil.copy(empty, tmp_path / str(seed + len(pages)))}")
        recommended().write(store, order)
        pages.append(page_of(store))
        store.close()
    assert pages[0] == pages[1]


# --- never ----------------------------------------------------------------------------------------------------------


def attempt(**values: Any) -> Attempt:
    usual: dict[str, Any] = {
        "key": 1, "job_id": 1, "restarts": 0, "uid": 1, "partition": "gpu", "hosts": "n1", "state": "COMPLETED",
        "submitted": T0, "wait": 60.0, "run": 3600.0, "nodes": 1, "cpus": 8, "gpus": 2, "asked": 64.0 * GIB,
        "peak": 20.0 * GIB, "used": 2.0, "utilisation": 50.0, "reason": "",
    }  # fmt: skip
    return Attempt(**(usual | values))


COUNT = st.integers(0, 90)


@settings(max_examples=examples(60), deadline=None)
@given(COUNT, COUNT, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_what_would_have_harmed_is_never_turned_on(
    lowered: int, raised: int, starved: int, slowed: int, refused: int
) -> None:
    stages = Stages()
    memory = Body(changes=(Changed("min_mem_per_node", 32768, 65536, "sensitivity"),))
    cpus = Body(changes=(Changed("cpus_per_tres", "gres:gpu:2", None, "sensitivity"),))
    oom = attempt(asked=16.0 * GIB, state="OUT_OF_MEMORY", reason="cpu_oom")
    for body, one, count in (
        (memory, attempt(), lowered),
        (memory, oom, raised),
        (memory, attempt(peak=33.0 * GIB), starved),
        (cpus, attempt(used=5.0), slowed),
        (Body(reject="never"), attempt(), refused),
    ):
        for _ in range(count):
            stages.add(body, [one], settled=True)
    line = advice(Shadow("lab", T0, T0 + DAY, None, Overview(), stages.done()), None)
    harmed = starved + slowed > 0
    assert not (harmed or refused) or line.stage is None
    if line.stage is not None:
        assert line.stage == "sensitivity" and (lowered >= 73 or (raised >= 5 and not lowered))


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(
    lab: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    recommended().write(lab)
    lab.close()
    site = tmp_path / "site.toml"
    site.write_text(f'{SITE}store.url = "sqlite:///{tmp_path}/store.db"\n')
    monkeypatch.setenv("GSUB_SITE", str(site))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["admin", "shadow", *words])
        return (code, *capfd.readouterr())

    return run


WINDOW = ("--since", "2025-10-01", "--until", "2025-11-30")


def test_the_page_on_a_terminal(command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = command(*WINDOW)
    assert (code, err) == (0, "")
    assert "\nresubmission  helps: more of the next runs passed than failed\n" in out
    assert "next runs that passed: 25 of 30, 83 % (66.4 to 92.7 %)" in out
    assert "would have acted on 79 attempts at 79 jobs, 158.0 GPU-hours: min_mem_per_node 79" in out
    assert (
        "\nTurn on resubmission: " in out
        and '\n    mode = "enforce"      # or: gsub admin mode enforce\n' in out
    )
    assert "it also turns on, as they have no key of their own: avoid_nodes, night_queue" in out


def test_the_page_as_json(command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = command(*WINDOW, "--json")
    found = json.loads(out)
    assert code == 0 and found["advice"]["line"] == 'mode = "enforce"'
    assert [one["name"] for one in found["page"]["stages"]] == [
        "gang", "topology", "sensitivity", "avoid_nodes", "limits", "smoke", "night_queue", "resubmission",
    ]  # fmt: skip
    assert found["page"]["overview"]["decisions"] == 171


def test_names_of_others_do_not_steer_a_terminal(command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = command(*WINDOW, "--partition", "a\x1b[31mb\nc")
    assert code == 0 and "\x1b" not in out and "partition ab c" in out and "Nothing to turn on" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "2025-10-02", "--until", "2025-10-01"), "--since lies after --until"),
        (("--partition", ""), "--partition names nothing"),
    ],
)
def test_wrong_questions(
    command: Callable[..., tuple[int, str, str]], words: tuple[str, ...], said: str
) -> None:
    code, out, err = command(*words)
    assert (code, out) == (2, "") and said in err


def test_the_page_for_a_browser(command: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    file = tmp_path / "shadow.html"
    code, out, err = command(*WINDOW, "--html", str(file))
    assert (code, out, err) == (0, f"{file}: 171 decisions\n", "")
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    reader = read(text)
    assert "http" not in text.replace("http-equiv", "") and not any(
        name[:2] == "on" for _, named in reader.tags for name in named
    )
    rows = {cells[0].text: [cell.text for cell in cells] for cells in reader.tables["overview"]["tbody"]}
    assert rows["resubmission"][1] == "helps" and rows["sensitivity"][2:5] == ["79", "79", "158.0"]
    again_ = {cells[1].text: cells[2:] for cells in reader.tables["stage-resubmission"]["tbody"]}
    passed = again_["next runs that passed"]
    assert [cell.text for cell in passed] == ["25 of 30, 83 %", "30", "66.4 to 92.7 %"] and passed[
        0
    ].value == "25"
    said = " ".join(re.sub("<[^>]*>", " ", text).split())
    assert (
        "line of the site file, in [policy] : mode = &#34;enforce&#34; , or gsub admin mode enforce" in said
    )
    assert "It also turns on, as they have no key of their own: avoid_nodes, night_queue" in said
    code, _, err = command(*WINDOW, "--html", str(file))
    assert code == 2 and "is there already; nothing was written" in err and file.read_text() == text


def test_names_of_others_are_text_in_the_page(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    file = tmp_path / "shadow.html"
    code, _, _ = command(*WINDOW, "--partition", "<script>x</script>\u202e", "--html", str(file))
    text = file.read_text()
    assert code == 0 and "<script>x" not in text and "\u202e" not in text
    assert "Nothing yet: " in text and "&lt;script&gt;x&lt;/script&gt;" in text
    assert command("--json", "--html", str(tmp_path / "other.html"))[0] == 2
