"""From a failure to the next attempt's end: each scenario on a real Slurm, with everything of gsub on it.

All jobs are submitted at once; then each one's story is awaited and held against its row of the table, as Slurm, the
service, gsub-act's journal, `gsub why` and the job itself tell it.
"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from tests.slurm.actions.rig import Stage, hosts
from tests.slurm.actions.scenarios import (
    DYING,
    FAILING,
    OWN,
    SCENARIOS,
    SMALL_MIB,
    STEPS,
    TASKS,
    TRAINED,
    Scenario,
)

pytestmark = pytest.mark.root

BY_NAME = {each.name: each for each in SCENARIOS}
SECONDS = 120.0
"""From a job's end to its requeue at most: the aim is 20 s, and this must hold on a machine that is busy with else."""


@pytest.mark.parametrize("name", BY_NAME)
def test_what_follows(played: Stage, name: str) -> None:
    scenario, job = BY_NAME[name], played.jobs[name]
    played.end(name)
    shown = played.shown(job)
    print(f"{name}: {scenario.attempts} attempts, {shown['JobState']}")
    attempts = played.tries(name)
    assert [each.restarts for each in attempts] == [*range(scenario.attempts)]
    assert (shown["JobState"], int(shown["Restarts"])) == (scenario.state, scenario.attempts - 1)
    _verdicts(played, scenario, job)
    _rows(played, scenario, job)
    _acts(played, scenario, job)
    _told(played, job)


def _verdicts(stage: Stage, scenario: Scenario, job: str) -> None:
    for restarts, reason in enumerate(scenario.reasons):
        verdict = stage.verdict(job, restarts)
        assert verdict is not None
        assert verdict.finding.reason == reason, verdict
        assert verdict.finding.evidence or reason == "no_signature"


def _rows(stage: Stage, scenario: Scenario, job: str) -> None:
    """A row for each attempt that failed, and none for one that did not."""

    def look() -> bool:
        rows = stage.rows(job)
        return len(rows) >= len(scenario.reasons) and all(row.state in ("done", "stopped") for row in rows)

    stage.wait_for(f"what was decided on {scenario.name}", look)
    rows = stage.rows(job)
    assert [row.restarts for row in rows] == [*range(len(scenario.reasons))]
    assert [row.reason for row in rows] == [*scenario.reasons]
    assert {row.action for row in rows} == {scenario.action}
    stops = [*[""] * (len(rows) - 1), scenario.stop]
    assert [row.stop for row in rows] == stops, rows
    assert [row.state for row in rows] == ["stopped" if stop else "done" for stop in stops]
    assert [row.nth for row in rows if not row.stop] == [*range(1, len(stops) + (not scenario.stop))]
    assert scenario.says in rows[-1].why
    assert all(row.why for row in rows)


def _acts(stage: Stage, scenario: Scenario, job: str) -> None:
    """gsub-act requeued it once for each row that says so, in time."""
    requeues = sorted([*stage.done(job, "requeue"), *stage.done(job, "requeuehold")])
    followed = [] if scenario.by_slurm else range(scenario.attempts - 1)
    assert len(requeues) == len(followed), stage.journal(job)
    assert len(stage.done(job, "update")) <= len(requeues)
    for restarts, at in zip(followed, requeues, strict=True):
        verdict = stage.verdict(job, restarts)
        assert verdict is not None and verdict.at is not None
        print(f"{scenario.name}: requeued {at - verdict.at:.1f} s after the end of attempt {restarts}")
        assert at - verdict.at < SECONDS


def _told(stage: Stage, job: str) -> None:
    """The user is told what was decided, in the words of the rows."""
    rows = stage.rows(job)
    plain = stage.why(job)
    for row in rows:
        assert " ".join(row.why.split()) in plain, plain
        assert row.command in plain
    told = stage.wait_for("gsub why --json", lambda: json.loads(stage.why(job, "--json"))["resubmissions"])
    assert [each["why"] for each in told] == [row.why for row in rows]


@pytest.mark.all_releases
def test_another_node_is_another_one(played: Stage) -> None:
    for name in ("one-node", "gpu"):
        played.end(name)
        first, second = played.tries(name)
        assert first.node != second.node
        kept_off = hosts(played.shown(played.jobs[name])["ExcNodeList"])
        assert kept_off == {first.node, *OWN}, "what the user keeps off stays"
        (row,) = played.rows(played.jobs[name])
        assert row.avoid == (first.node,)


def test_the_same_evidence_is_seen_on_three_nodes(played: Stage) -> None:
    played.end("everywhere")
    assert len({each.node for each in played.tries("everywhere")}) == 3


@pytest.mark.all_releases
def test_more_memory_each_time(played: Stage) -> None:
    played.end("memory")
    rows, attempts = played.rows(played.jobs["memory"]), played.tries("memory")
    asked = [each.memory for each in attempts]
    print(f"memory: {asked} MiB")
    assert asked[0] == 100
    assert asked == [rows[0].memory_was_mib, rows[0].memory_mib, rows[1].memory_mib]
    assert all(more >= 1.5 * less for less, more in pairwise(asked))


def test_more_memory_where_the_kernel_ends_the_job(played: Stage) -> None:
    if played.why_not:
        pytest.skip(played.why_not)
    played.end("kernel")
    job, attempts = played.jobs["kernel"], played.tries("kernel")
    print(f"kernel: {[each.memory for each in attempts]} MiB")
    rows = played.rows(job)
    assert played.shown(job)["JobState"] == "COMPLETED"
    assert [(row.reason, row.action, row.state) for row in rows] == [("cpu_oom", "more_memory", "done")] * 2
    assert [each.memory for each in attempts] == [SMALL_MIB, rows[0].memory_mib, rows[1].memory_mib]
    verdict = played.verdict(job, 0)
    assert verdict is not None and verdict.source == "root", verdict


def test_a_step_that_was_saved_is_not_done_again(played: Stage) -> None:
    played.end("checkpoint")
    log = (played.home / f"slurm-{played.jobs['checkpoint']}.out").read_text().splitlines()
    steps = [int(line.split()[1]) for line in log if line.startswith("step ")]
    assert log[-1] == "done"
    assert {*steps} == {*range(STEPS)}
    assert len(steps) <= STEPS + 1, "the one that was under way at the end of its time"


def test_the_example_that_stops_in_time_goes_on_where_it_was(played: Stage) -> None:
    """Two attempts or three: Slurm looks every half minute whose time is nearly up."""
    played.end("train")
    job = played.jobs["train"]
    rows, attempts = played.rows(job), played.tries("train")
    assert played.shown(job)["JobState"] == "COMPLETED"
    assert len(attempts) == len(rows) + 1 >= 2
    for row in rows:
        assert (row.reason, row.action, row.state) == ("time_limit", "from_checkpoint", "done")
        verdict = played.verdict(job, row.restarts)
        assert verdict is not None and verdict.finding.checkpoint and verdict.finding.resumes, verdict
    log = (played.home / f"slurm-{job}.out").read_text().splitlines()
    print(f"train: {len(attempts)} attempts", *(line for line in log if line.startswith("goes on")))
    whole = ["python3", "train.py", "--steps", str(TRAINED), "--folder", "once"]
    # srun brings the two streams on their own ways: the last checkpoint's line may come after it
    assert played.cluster.run(whole, user=played.user, check=True).stdout.splitlines()[-1] in log[-2:]


def test_who_is_queued_again_by_slurm_is_queued_once(played: Stage) -> None:
    for name in ("preempted", "node"):
        played.end(name)
    first, second = played.tries("node")
    assert DYING not in hosts(played.shown(played.jobs["node"])["NodeList"])
    assert first.restarts == 0 and second.restarts == 1


def test_only_the_failed_tasks_of_an_array_run_again(played: Stage) -> None:
    array = played.jobs["array"]
    for task in range(TASKS):
        played.end("array", task)
        attempts = played.tries("array", task)
        assert [each.restarts for each in attempts] == ([0, 1] if task in FAILING else [0])
        assert played.shown(f"{array}_{task}")["JobState"] == "COMPLETED"
        rows = played.rows(f"{array}_{task}")
        assert len(rows) == (task in FAILING)
        assert all((row.state, row.action) == ("done", "once") for row in rows), rows
    told = played.why(f"{array}_{FAILING[0]}")
    assert " ".join(played.rows(f"{array}_{FAILING[0]}")[0].why.split()) in told


def test_who_waits_for_a_failed_job_goes_on_waiting(played: Stage) -> None:
    played.end("needed")
    waits = played.shown(played.jobs["waits"])
    assert waits["JobState"] == "PENDING"
    assert waits["Restarts"] == "0"
    (row,) = played.rows(played.jobs["needed"])
    assert played.jobs["waits"] in row.why
    assert row.command == f"gsub resubmit {played.jobs['needed']}"


def test_who_is_observed_is_told_what_would_have_been(played: Stage) -> None:
    played.end("watched")
    (row,) = played.rows(played.jobs["watched"])
    assert "would" in row.why and "observe" in row.why


def test_another_user_learns_nothing(played: Stage) -> None:
    played.end("flaky")
    job, other = played.jobs["flaky"], played.cluster.users[1]
    assert played.rows(job)
    status = played.status(f"/v1/jobs/{job}/resubmissions", user=other)
    assert status == 404


def test_nothing_is_held(played: Stage) -> None:
    for name in BY_NAME:
        played.end(name)
    said = played.cluster.run(["squeue", "-h", "-tPD", "-o%i %r"], check=True).stdout.splitlines()
    assert [line for line in said if "Held" in line] == []
