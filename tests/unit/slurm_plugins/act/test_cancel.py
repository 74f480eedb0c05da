"""The one verb that ends jobs: where the site lets it alone, of the attempt that was meant, and a few an hour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from site_configs.site import parse_site
from slurm_plugins.act.limits import CANCELS
from slurm_plugins.client.errors import SlurmUnreachable
from slurm_plugins.client.states import JobFlag, JobState
from tests.unit.slurm_plugins.act.fakes import SITE, World, failed, job, pending

MAY = SITE + "[alerts]\nmail = true\ncancel = true\n"
LETS = MAY + '[alerts.rules.idle_from_start]\ndo = "cancel"\n'
"""A site file of a site that has switched it on."""


def running(number: int | str = 7, **fields: Any) -> Any:
    return job(number, JobState.RUNNING, **({"batch": True} | fields))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, running(), running("9_3"), site=LETS)


def test_a_running_attempt_is_ended(world: World) -> None:
    assert world.ask("cancel", "7", restarts=0)["result"] == "done"
    assert world.slurm.acts == [["scancel", "--state=RUNNING", "7"]]
    asked, done = world.lines()
    assert (asked["event"], asked["verb"], asked["expected"], done["event"]) == ("asked", "cancel", 0, "done")


def test_a_task_of_an_array_is_ended_and_no_other(world: World) -> None:
    assert world.ask("cancel", "9_3", restarts=0, number=12)["result"] == "done"
    assert world.slurm.acts == [["scancel", "--state=RUNNING", "9_3"]]


@pytest.mark.parametrize(
    ("found", "more", "words"),
    [
        (running(), {"restarts": None}, "name it"),
        (running(restarts=1), {}, "once, not 0"),
        (running(restarts=1), {"restarts": 2}, "once, not 2"),
        (running(), {"fields": {"StartTime": "now"}}, "has no fields"),
        (running(), {"until": 1_900_000_060.0}, "holds nothing"),
        (running(uid=0), {}, "left alone"),
        (running(uid=64030), {}, "left alone"),
        (running(het_job_id=7), {}, "heterogeneous"),
        (running(array_job_id=7), {}, "one by one"),
        (running(array_job_id=7, array_task_id=4), {}, "it is known as 7_4"),
        (running(flags=frozenset({JobFlag.COMPLETING})), {}, "completing"),
        (pending(), {}, "only a running job"),
        (pending(array_job_id=7, array_tasks="1-3"), {}, "one by one"),
        (failed(), {}, "only a running job"),
        (job(7, JobState.SUSPENDED), {}, "only a running job"),
        (job(7, JobState.COMPLETED), {}, "only a running job"),
        (job(7, JobState.UNKNOWN), {}, "only a running job"),
    ],
)  # fmt: skip
def test_all_else_is_refused(tmp_path: Path, found: Any, more: dict[str, Any], words: str) -> None:
    world = World(tmp_path, site=LETS)
    world.slurm.known_jobs["7"] = found
    answer = world.ask("cancel", "7", **({"restarts": 0} | more))
    assert answer["result"] == "refused" and words in answer["said"], answer
    assert world.slurm.acts == [] and [line["event"] for line in world.lines()] == ["refused"]


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (SITE, "alerts.cancel"),
        (SITE + "[alerts]\nmail = true\n", "alerts.cancel"),
        (MAY, "no rule of the site ends jobs"),
        (LETS.replace('do = "cancel"', 'do = "notify"'), "no rule of the site ends jobs"),
        (LETS + 'exempt.users = ["user1"]\n', "user user1 is exempt"),
        (MAY + 'exempt.accounts = ["Lab"]\n' + LETS.removeprefix(MAY), "account lab is exempt"),
        (LETS.replace("enforce", "advise"), "the site is in advise"),
        (LETS.replace("enforce", "observe"), "the site is in observe"),
        (LETS + '[partitions.gpu]\nmode = "advise"\n', "in advise for this job"),
        (LETS + '[accounts.lab]\nmode = "observe"\n', "in observe for this job"),
    ],
)
def test_a_site_has_to_let_it(world: World, site: str, words: str) -> None:
    world.site = parse_site(site)
    answer = world.ask("cancel", "7", restarts=0)
    assert answer["result"] == "refused" and words in answer["said"], answer
    assert world.slurm.acts == []


def test_the_off_switch_keeps_it_from_being_done(world: World) -> None:
    world.off.touch()
    assert "switched gsub-act off" in world.ask("cancel", "7", restarts=0)["said"]
    assert world.slurm.acts == []


@pytest.mark.parametrize(
    ("age", "result"), [(29, "done"), (31, "refused"), (595, "refused"), (-61, "refused")]
)
def test_who_asked_long_ago_may_not_know_that_it_computes_again(
    world: World, age: float, result: str
) -> None:
    answer = world.ask("cancel", "7", restarts=0, at=world.clock() - age)
    assert answer["result"] == result and bool(world.slurm.acts) == (result == "done")
    assert bool(answer.get("again")) == (result == "refused"), "who asks looks again, and asks anew"


@pytest.mark.parametrize(("slow", "result"), [("job", "refused"), ("put", "failed")])
def test_nor_while_slurm_or_the_disk_took_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch, slow: str, result: str
) -> None:
    of = world.slurm if slow == "job" else world.journal
    do = getattr(of, slow)

    def slowly(*arguments: Any, **more: Any) -> Any:
        world.clock.now += 31
        return do(*arguments, **more)

    monkeypatch.setattr(of, slow, slowly)
    answer = world.ask("cancel", "7", restarts=0)
    assert (answer["result"], world.slurm.acts) == (result, []) and "too long ago" in answer["said"]


def test_a_silent_slurm_is_asked_nothing(world: World) -> None:
    world.slurm.silent = True
    answer = world.ask("cancel", "7", restarts=0)
    assert answer["result"] == "refused" and answer["again"] and world.slurm.acts == []


def test_what_slurm_did_not_say_is_found_out_and_not_done_twice(world: World) -> None:
    world.slurm.deaf = True
    request = world.request("cancel", restarts=0)
    line = json.dumps(request).encode()
    assert world.send(line)["result"] == "unknown"
    world.slurm.deaf = False
    world.wait(10)
    assert world.send(line)["result"] == "done" and len(world.slurm.acts) == 1


def test_a_command_that_never_reached_slurm_is_told_as_failed(world: World) -> None:
    def lost() -> None:
        raise SlurmUnreachable("slurmctld")

    world.slurm.before_act = lost
    assert world.ask("cancel", "7", restarts=0)["result"] == "unknown"
    world.slurm.before_act = lambda: None
    world.wait(60)
    assert world.lines()[-1]["event"] == "failed" and world.slurm.acts == []


@pytest.mark.parametrize("batch", [False, None])
def test_a_job_without_a_batch_script_needs_a_rule_of_such(tmp_path: Path, batch: bool | None) -> None:
    world = World(tmp_path, running(batch=batch), site=LETS)
    assert "no batch script" in world.ask("cancel", "7", restarts=0)["said"]
    world.site = parse_site(LETS + "interactive = true\n")
    assert world.ask("cancel", "7", restarts=0)["result"] == "done"


def test_who_one_rule_leaves_alone_is_another_rules(world: World) -> None:
    world.site = parse_site(
        LETS + 'exempt.users = ["user1"]\n[alerts.rules.idle_after_activity]\ndo = "cancel"\n'
    )
    assert world.ask("cancel", "7", restarts=0)["result"] == "done"


# --- how fast ---------------------------------------------------------------------------------------------------------


def many(world: World, count: int = 3) -> int:
    """Jobs that were ended, of so many that run."""
    for number in range(1, count + 1):
        world.slurm.known_jobs[str(number)] = running(number)
    return [world.ask("cancel", str(number), restarts=0)["result"] for number in range(1, count + 1)].count(
        "done"
    )


def test_a_rule_that_is_wrong_ends_a_few_jobs_and_no_more(world: World) -> None:
    at_once, a_second = CANCELS
    assert many(world, 30) == at_once
    answer = world.ask("cancel", "30", restarts=0)
    assert "too fast" in answer["said"] and answer["again"] == pytest.approx(1 / a_second, abs=1)
    # other acts go on meanwhile, and whoever asks all the time ends no more than was said
    world.slurm.known_jobs["40"] = pending(40)
    assert world.ask("hold", "40")["result"] == "done"
    done = 0
    for _ in range(3 * 60):
        world.clock.now += 60
        done += many(world)
    assert done == pytest.approx(3 * 3600 * a_second, abs=1)


def test_a_start_anew_gives_no_more(world: World) -> None:
    at_once, a_second = CANCELS
    assert many(world, 30) == at_once
    for _ in range(2):
        world.clock.now += 20
        world.restart()
        assert many(world) == 0
    world.clock.now += 1 / a_second - 35
    world.restart()
    assert many(world) == 1
    world.clock.now += 3600
    world.restart()
    assert many(world, 30) == at_once, "what was long ago counts no more"


def test_what_is_refused_costs_nothing(world: World) -> None:
    at_once, _ = CANCELS
    world.slurm.known_jobs["50"] = pending(50)
    for _ in range(2 * at_once):
        assert "only a running job" in world.ask("cancel", "50", restarts=0)["said"]
    assert many(world, 30) == at_once
