"""From measured points to the next submission, without Slurm: the keeper, its store, its file, and a decision."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gsub.workload_name import variable
from profiler import gathered, refining
from profiler.answers import Curves
from profiler.curves import Curve, Point
from profiler.records import HostUse
from profiler.workload import identify, owned
from site_configs.site_model import Resources
from slurm_plugins.service.keeper import learning
from slurm_plugins.service.keeper.learning import Learning
from slurm_plugins.service.learnt import CURVES
from tests.unit.profiler.curves.place import SCRIPT, Place, measured, place, points
from tests.unit.profiler.store.records import ended, started, usage
from tests.unit.slurm_plugins.keeper.door import ADA, BOB, CLUSTER, OPERATOR, PATIENCE
from tests.waiting import wait_until

GIB = 1 << 30
CPUS = "cpus_per_tres"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One for all that leave nothing behind."""
    with place(tmp_path_factory.mktemp("untouched")) as made:
        yield made


def curves(here: Place, uid: int = ADA, query: str = "") -> Curves:
    got = here.ask(uid, f"/v1/curves{query}")
    assert got.status == 200
    return msgspec.json.decode(got.body, type=Curves)


def test_the_next_submission_gets_what_was_measured(here: Place) -> None:
    assert here.decided().edits[CPUS] == "gres:gpu:8"  # its share of the node
    assert here.post(measured(11.3)).json == {"new": True}
    decision = here.decided()
    assert decision.edits[CPUS] == "gres:gpu:12"
    (cpus,) = [change for change in decision.changes if change.field == CPUS]
    assert cpus.reason == "its throughput is at its best from 12 CPUs for each GPU on (measured in 1 run)"
    assert here.decided(script=SCRIPT.replace("resnet", "bert")).edits[CPUS] == "gres:gpu:8"
    assert here.decided(script=SCRIPT.replace("--seed 7", "--seed 8")).edits[CPUS] == "gres:gpu:12"


def test_light_ones_give_back_what_they_do_not_use_and_the_site_has_its_bounds(here: Place) -> None:
    here.post(measured(3.0))
    assert here.decided().edits[CPUS] == "gres:gpu:3"
    here.post(measured(20.4, workload=("own:hungry",)))
    own = {"GSUB_WORKLOAD": "Hungry"}
    assert here.decided(env=own).edits[CPUS] == "gres:gpu:21"
    assert here.decided(env=own, resources=Resources(max_cpus_per_gpu=10)).edits[CPUS] == "gres:gpu:10"


def test_a_user_misleads_nobody_else(here: Place) -> None:
    here.post(measured(3.0), uid=BOB)
    assert here.decided(uid=ADA).edits[CPUS] == "gres:gpu:8"
    assert here.decided(uid=BOB).edits[CPUS] == "gres:gpu:3"
    assert curves(here, ADA).curves == () and curves(here, OPERATOR).curves == ()
    assert [one.knee for one in curves(here, BOB).curves] == [3]


def test_later_runs_refine_and_a_changed_workload_is_believed(here: Place) -> None:
    now = time.time()
    for day, seed in ((3, 1), (2, 2), (1, 3)):
        here.post(measured(6.0, at=now - day * 86400, points=points(6.0, seed=seed)))
    (known,) = curves(here).curves
    assert (known.knee, known.runs, len(known.measured)) == (6, 3, 15)
    assert here.decided().edits[CPUS] == "gres:gpu:6"
    faster = tuple(
        type(one)(one.cpus, one.rate * 1.6, one.error, one.steps, one.seconds) for one in points(12.0, seed=4)
    )
    here.post(measured(at=now, points=faster))
    assert here.decided().edits[CPUS] == "gres:gpu:12"
    (known,) = curves(here).curves
    assert (known.knee, known.runs, len(known.measured)) == (12, 1, 5)  # what it was before does not count


def test_memory_is_the_measured_peak_and_a_fifth(here: Place) -> None:
    here.post(measured(points=(), peak_memory=80 * GIB))
    decision = here.decided()
    assert decision.edits["min_mem_per_node"] == 96 * 1024 and decision.edits[CPUS] == "gres:gpu:8"
    assert "its measured peak and 20 % more" in " ".join(change.reason for change in decision.changes)


def test_an_ordinary_run_tells_its_memory(here: Place) -> None:
    now = time.time()
    host = HostUse("cgroup2", 120.5, 8.0, 200 * GIB, 70 * GIB, 500 * GIB, 0)  # 130 GiB of it are page cache
    here.post(measured(5.0))
    here.ran(41, now - 500)
    use: dict[str, Any] = {"since": now - 400, "at": now - 10, "host": host, "final": True}
    here.store.take([started(41, at=now - 400, gpus=()), usage(41, **use), ended(41, at=now - 10)], now)
    with here.store.writing("test") as connection:
        connection.exec_driver_sql("UPDATE job SET gpus = 1")

    async def looked() -> None:
        await here.learning.look()
        await here.learning.once()
        await here.learning.look()  # the same again is nothing new

    asyncio.run(looked())
    decision = here.decided()
    assert decision.edits["min_mem_per_node"] == 84 * 1024
    assert decision.edits[CPUS] == "gres:gpu:5"  # the run that learnt is not forgotten over it
    assert len(here.store.measured(CLUSTER, ADA)) == 2


def test_the_tasks_of_an_array_tell_theirs(here: Place) -> None:
    now = time.time()
    here.ran(41, now - 500)
    for task in (0, 1, 2):
        host = HostUse("proc", memory_peak_bytes=(70 + 5 * task) * GIB)
        use: dict[str, Any] = {"since": now - 400, "at": now - 10, "host": host, "final": True}
        number = 41 + task
        here.store.take(
            [started(number, at=now - 400), usage(number, **use), ended(number, at=now - 10)], now
        )
    with here.store.writing("test") as connection:
        connection.exec_driver_sql("UPDATE job SET gpus = 1, array_job_id = 41, array_task_id = job_id - 41")

    async def looked() -> None:
        await here.learning.look()
        await here.learning.once()

    asyncio.run(looked())
    assert len(here.store.measured(CLUSTER, ADA)) == 3
    assert here.decided().edits["min_mem_per_node"] == 96 * 1024


def test_what_gsub_tells_comes_first_and_only_for_its_own_script(here: Place) -> None:
    def told(*arguments: str) -> tuple[tuple[str, ...], dict[str, str]]:
        names = identify(SCRIPT, arguments, name="train-2").fingerprints
        text = next(name for name in names if name.startswith("text:"))
        return names, {"GSUB_WORKLOAD": f"{names[0]},{names[1]},{text},{names[-1]}"}

    small, large = told("--batch", "8"), told("--batch", "64")
    here.post(measured(2.6, workload=small[0]))
    here.post(measured(13.5, workload=large[0]))
    assert here.decided(env=small[1]).edits[CPUS] == "gres:gpu:3"
    assert here.decided(env=large[1]).edits[CPUS] == "gres:gpu:14"
    # A job that a job submits has its variables, and is not the same for that
    inner = here.decided(SCRIPT.replace("train.py", "evaluate.py"), env=large[1])
    assert inner.edits[CPUS] == "gres:gpu:8"


def test_a_small_trial_with_other_arguments_starves_nobody(here: Place) -> None:
    script = SCRIPT.replace("train.py", 'train.py "$@"')

    def told(*arguments: str) -> tuple[tuple[str, ...], dict[str, str]]:
        identity = identify(script, arguments, name="train-2")
        return identity.fingerprints, {"GSUB_WORKLOAD": variable(identity)}

    (tiny, here_tiny), (_, real) = told("--tiny"), told("--all")
    here.post(measured(1.7, workload=tiny))
    assert here.decided(script, env=here_tiny).edits[CPUS] == "gres:gpu:2"
    # By gsub, which knows the arguments; and by sbatch, which does not tell them
    for env in (real, {}):
        found = here.decided(script, env=env)
        assert found.edits[CPUS] == "gres:gpu:8"
        assert any("with other arguments 2 were enough" in note.text for note in found.notes)
    # More than the share is no loss
    here.post(measured(13.5, workload=told("--huge")[0], at=time.time() + 60))
    assert here.decided(script, env=real).edits[CPUS] == "gres:gpu:14"


def test_a_user_of_many_names_does_not_push_out_the_others(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "_MOST_OF_USER", 3)
    for number in range(6):
        here.post(measured(3.0, workload=(f"own:{number}",), at=time.time() + number))
    told = [json.loads(line)["workload"] for line in (here.state / CURVES).read_text().splitlines()]
    assert sorted(told) == ["own:3", "own:4", "own:5"]


def test_a_new_keeper_goes_on_where_the_last_one_was(here: Place) -> None:
    here.post(measured(5.7))
    (here.state / CURVES).unlink()
    again = Learning(CLUSTER, here.door.storing, here.door.counts, here.state, every=0.05)

    async def until_told() -> None:
        task = asyncio.create_task(again.run())
        file = here.state / CURVES
        await asyncio.to_thread(wait_until, lambda: file.exists() or task.done(), 60, CURVES)
        assert not task.done()
        task.cancel()

    asyncio.run(asyncio.wait_for(until_told(), 60))
    assert here.decided().edits[CPUS] == "gres:gpu:6"


def test_a_repeat_changes_nothing(here: Place) -> None:
    one = measured(6.0)
    assert here.post(one).json == {"new": True} and here.post(one).json == {"new": False}
    assert len(here.store.measured(CLUSTER, ADA)) == 1


GOOD = msgspec.to_builtins(measured(6.0))
LIES: dict[str, Any] = {
    "no JSON": b"{",
    "a list": b"[]",
    "neither points nor memory": {**GOOD, "points": []},
    "too many points": {**GOOD, "points": GOOD["points"] * 20},
    "a rate of nothing": {**GOOD, "points": [{**GOOD["points"][0], "rate": 0}]},
    "a rate beyond all": {**GOOD, "points": [{**GOOD["points"][0], "rate": 1e12}]},
    "an infinite rate": json.dumps(
        {**GOOD, "points": [{**GOOD["points"][0], "rate": float("inf")}]}
    ).encode(),
    "a text for a rate": {**GOOD, "points": [{**GOOD["points"][0], "rate": "fast"}]},
    "more CPUs than it had": {**GOOD, "points": [{**GOOD["points"][0], "cpus": 25}]},
    "no CPUs": {**GOOD, "points": [{**GOOD["points"][0], "cpus": 0}]},
    "an error below zero": {**GOOD, "points": [{**GOOD["points"][0], "error": -1}]},
    "steps below zero": {**GOOD, "points": [{**GOOD["points"][0], "steps": -1}]},
    "no name": {**GOOD, "workload": []},
    "a name of another kind": {**GOOD, "workload": ["class:a100"]},
    "a name with a line's end": {**GOOD, "workload": ["own:a\nb"]},
    "a name with a NUL": {**GOOD, "workload": ["own:a\0b"]},
    "of tomorrow": {**GOOD, "at": time.time() + 86400},
    "of long ago": {**GOOD, "at": 0.0},
    "memory below zero": {**GOOD, "peak_memory": -1},
    "a type of GPU that is none": {**GOOD, "gpu_type": "a100 or so"},
    "another cluster's": {**GOOD, "cluster": "elsewhere"},
    "deep": b'{"points":' + b"[" * 9000,
}


@pytest.mark.parametrize("name", LIES)
def test_what_cannot_be_is_refused(untouched: Place, name: str) -> None:
    lie = LIES[name]
    body = lie if isinstance(lie, bytes) else json.dumps(lie).encode()
    uid = 2000 + list(LIES).index(name)
    got = asyncio.run(untouched.door.ask(uid, "POST", "/v1/points", body))
    assert got.status == 400 and got.why
    assert untouched.store.measuring(CLUSTER) == ()


def test_other_ways_in_are_closed(untouched: Place) -> None:
    body, door = msgspec.json.encode(measured()), untouched.door
    assert asyncio.run(door.ask(None, "POST", "/v1/points", body)).status == 401
    assert asyncio.run(door.ask(ADA, "POST", "/v1/points", body, kind="text/plain")).status == 415
    assert asyncio.run(door.ask(ADA, "POST", "/v1/points", b" " * 300_000)).status == 413
    forged = door.credential(ADA, "POST", "/v1/points", msgspec.json.encode(measured()))
    assert asyncio.run(door.ask(ADA, "POST", "/v1/points", body, credential=forged)).status == 401
    assert untouched.store.measuring(CLUSTER) == ()


def test_twenty_a_minute_for_each_user(here: Place) -> None:
    body = msgspec.json.encode(measured())

    async def many(uid: int) -> list[int]:
        return [(await here.door.ask(uid, "POST", "/v1/points", body)).status for _ in range(22)]

    assert asyncio.run(many(ADA)) == [200] * 20 + [429] * 2
    assert asyncio.run(many(BOB))[0] == 200


def test_curves_by_name(here: Place) -> None:
    here.post(measured(5.7))
    here.post(measured(9.0, workload=(owned("My ResNet"),)))
    assert [one.workload for one in curves(here, query="?workload=own:my-resnet").curves] == ["own:my-resnet"]
    like = identify(SCRIPT, name="train-1").fingerprints[-1]
    (known,) = curves(here, query=f"?workload={like}").curves
    assert known.knee == 6 and like in known.also and len(known.measured) == 5
    assert here.ask(ADA, "/v1/curves?workload=../../etc/passwd").status == 400


@pytest.mark.case("A6")
def test_a_user_with_thousands_of_runs_holds_nobody_up(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything fitted where the store is read."""
    fitting, free = set[str](), threading.Event()

    def slow(*args: Any) -> Curve:
        fitting.add(threading.current_thread().name.partition("_")[0])
        if not free.is_set():
            time.sleep(0.05)
        return refining.refined(*args)

    monkeypatch.setattr(learning, "refined", slow)
    monkeypatch.setattr(learning, "_TURN", 0.01)
    runs = [measured(5.7, workload=(f"own:{number}",)) for number in range(100)]
    here.store.put_points(CLUSTER, ADA, runs)

    async def attack() -> None:
        here.learning._patience = 0.1
        for _ in range(4):
            assert (await here.door.ask(ADA, "GET", "/v1/curves")).json == {"curves": []}
        here.learning._patience = PATIENCE
        await here.door.ask(BOB, "POST", "/v1/points", msgspec.json.encode(measured(5.7)))
        got = await here.door.ask(BOB, "GET", "/v1/curves")
        assert [one["knee"] for one in got.json["curves"]] == [6]
        assert not here.learning.curves(ADA).curves, "Bob did not wait for all of Ada's"
        free.set()
        assert len((await here.door.ask(ADA, "GET", "/v1/curves")).json["curves"]) == 100

    asyncio.run(attack())
    assert fitting == {"fitting"}


@pytest.mark.case("A6")
def test_one_name_for_all_runs_is_no_more_work(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(runs: Sequence[Sequence[Point]], now: float) -> tuple[int, ...]:
        asked.append(len(runs))
        return refining.standing(runs, now)

    monkeypatch.setattr(gathered, "standing", counted)
    runs = [measured(5.7, workload=(f"own:{number}", "name:x")) for number in range(100)]
    here.store.put_points(CLUSTER, ADA, runs)
    assert here.curves(ADA) and max(asked) == gathered.RUNS
