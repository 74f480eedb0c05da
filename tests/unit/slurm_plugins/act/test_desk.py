"""What gsub-act does and refuses, on a Slurm in memory: each refusal is answered, journalled, and nothing is done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from site_configs.site import parse_site
from slurm_plugins.act.journal import held
from slurm_plugins.act.slurm import Rights
from slurm_plugins.act.verbs import FIELDS, VERBS
from slurm_plugins.act.wire import digest_of, parse_request
from slurm_plugins.client.errors import SlurmRefused, SlurmUnreachable
from slurm_plugins.client.resources import Hosts
from slurm_plugins.client.states import JobFlag, JobState
from tests.unit.slurm_plugins.act.fakes import GSUB, World, failed, job, pending
from tests.unit.slurm_plugins.act.test_allowed import TIGHT


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, pending(), failed(8), pending(9, restarts=1))


# --- what is done -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "number", "fields", "command"),
    [
        ("hold", "7", {}, "scontrol uhold 7"),
        ("requeue", "8", {}, "scontrol requeue 8"),
        ("requeuehold", "8", {}, "scontrol requeuehold 8"),
        ("update", "9", {"ExcNodeList": "n[1-2]"}, "scontrol update JobId=9 ExcNodeList=n[1-2]"),
        (
            "update",
            "9",
            {"MinMemoryNode": "4000"},
            "scontrol update JobId=9 MinMemoryNode=4000 Comment=gsub:guarded",
        ),
        (
            "update",
            "9",
            {"MinMemoryCPU": "4000"},
            "scontrol update JobId=9 MinMemoryCPU=4000 Comment=gsub:guarded",
        ),
        ("update", "9", {"StartTime": "now"}, "scontrol update JobId=9 StartTime=now"),
        ("update", "9", {"StartTime": "now+60"}, "scontrol update JobId=9 StartTime=now+60"),
    ],
)
def test_each_verb_is_one_command(world, verb, number, fields, command):
    answer = world.ask(verb, number, fields=fields)
    assert (answer["result"], answer["repeat"]) == ("done", False)
    assert [" ".join(argv) for argv in world.slurm.acts] == [command]
    asked, done = world.lines()
    assert (asked["event"], asked["verb"], asked["job"], asked["uid"]) == ("asked", verb, number, GSUB)
    assert (asked["why"], asked["by"]) == ("the smoke run failed", "v-00000000")
    assert (done["event"], done["id"]) == ("done", asked["id"])


def test_a_requeue_whose_change_would_be_refused_is_refused(world):
    """Else the job would run again as it was, and fail as it did."""
    more = {"MinMemoryNode": "600000", "StartTime": "now"}
    answer = world.ask("requeue", "8", fields=more)
    assert answer["result"] == "refused" and "more than a node" in answer["said"]
    assert world.slurm.acts == []
    assert world.ask("requeue", "8", fields=more | {"MinMemoryNode": "4000"})["result"] == "done"
    assert world.slurm.acts == [["scontrol", "requeue", "8"]]


def test_the_table_has_these_verbs_and_fields_and_no_other():
    """A verb or a field more is a decision, and a line in docs/gsub-act.md."""
    assert set(VERBS) == {"requeue", "requeuehold", "hold", "release", "update", "cancel", "stop"}
    assert set(FIELDS) == {"ExcNodeList", "MinMemoryNode", "MinMemoryCPU", "StartTime"}


def test_what_is_held_is_in_the_ledger_until_it_is_released(world, tmp_path):
    world.ask("hold", "7", by="v-11111111", why="smoke: import_error")
    (found,) = held(tmp_path / "state")
    assert (found.job, found.by, found.why, found.certain) == ("7", "v-11111111", "smoke: import_error", True)
    assert (found.since, found.until) == (world.clock(), world.clock() + 180)
    assert world.ask("release", "7")["result"] == "done"
    assert held(tmp_path / "state") == ()
    assert world.slurm.known_jobs["7"].priority != 0


def test_held_reads_no_journal_as_nothing_held(tmp_path):
    assert held(tmp_path) == ()


def test_slurms_own_no_is_told(world):
    world.slurm.no = SlurmRefused("scontrol", "Access/permission denied")
    answer = world.ask("hold", "7")
    assert (answer["result"], answer["said"]) == ("failed", "Access/permission denied")
    assert [line["event"] for line in world.lines()] == ["asked", "failed"]


def test_a_job_that_started_first_is_not_said_to_be_held(world, tmp_path):
    def start():
        if len(world.slurm.acts) == 0:
            world.slurm.known_jobs["7"] = job(7, JobState.RUNNING, priority=100)

    world.slurm.before_act = start
    answer = world.ask("hold", "7")
    assert answer["result"] == "failed" and "started first" in answer["said"]
    assert held(tmp_path / "state") == ()
    # Slurm takes the hold all the same, for the attempt after this one
    assert world.slurm.known_jobs["7"].priority != 0
    assert [argv[1] for argv in world.slurm.acts] == ["uhold", "release"]


def test_an_array_is_held_while_none_of_it_runs(tmp_path):
    """Slurm's hold of an array marks the tasks that run, too."""
    waits = pending(7, array_job_id=7, array_tasks="2-9")
    world = World(tmp_path, waits)
    world.slurm.known_jobs["7_1"] = job("7_1", JobState.RUNNING)
    assert "tasks of this array run" in world.ask("hold", "7")["said"]
    assert world.slurm.acts == []
    del world.slurm.known_jobs["7_1"]

    def start():
        world.slurm.known_jobs["7_1"] = job("7_1", JobState.RUNNING)

    world.slurm.before_act = start
    assert world.ask("hold", "7")["result"] == "failed"
    assert [argv[1] for argv in world.slurm.acts] == ["uhold", "release"]
    del world.slurm.known_jobs["7_1"]
    world.slurm.before_act = lambda: None
    assert world.ask("hold", "7")["result"] == "done"
    assert len(held(tmp_path / "state")) == 1


# --- what is refused: each row is a request and a word of the answer --------------------------------------------------

# fmt: off
LONG = "x" * 301
OUTSIDE: list[tuple[dict[str, Any], str]] = [
    # verbs that Slurm has and gsub-act has not
    *[({"verb": verb}, "no verb of ours") for verb in (
        "scancel", "suspend", "resume", "top", "delete", "reconfigure", "shutdown", "reboot", "create", "notify",
        "uhold",
    )],
    # fields of other verbs, and fields that update does not set
    ({"verb": "hold", "fields": {"StartTime": "now"}}, "has no fields"),
    ({"verb": "requeue", "fields": {"State": "SpecialExit"}}, "no field of ours"),
    ({"verb": "update"}, "at least one field"),
    *[({"verb": "update", "fields": {name: value}}, "no field of ours") for name, value in (
        ("AdminComment", "x"), ("Comment", "x"), ("TimeLimit", "UNLIMITED"), ("Priority", "4294967294"), ("Nice", "-1"),
        ("QOS", "high"), ("Account", "root"), ("Partition", "urgent"), ("NumCPUs", "64"), ("NumNodes", "8"),
        ("UserID", "0"), ("ReqNodeList", "n1"), ("Gres", "gpu:8"), ("Dependency", "singleton"),
        ("JobId", "1"), ("excnodelist", "n1"),
        ("WorkDir", "/"), ("StdOut", "/etc/passwd"), ("NodeName", "n1"), ("Reboot", "yes"), ("Name", "x"),
    )],
    # values
    *[({"verb": "update", "fields": {"ExcNodeList": value}}, "no list of nodes") for value in (
        "n[1-999999999]", "n[1-257]", "n1 State=DOWN", "n[1", ",", "-", "n1;reboot", "$(reboot)", "n1\nn2",
    )],
    *[({"verb": "update", "fields": {"MinMemoryNode": value}}, "memory is") for value in (
        "0", "-1", "4G", "1e9", "4000.5", "9999999999", " 4000", "٤٠٠٠", "UNLIMITED",
    )],
    *[({"verb": "update", "fields": {"StartTime": value}}, "a start is") for value in (
        "tomorrow", "now+0", "now+9999", "now+3601", "now-60", "now+60minutes", "2030-01-01", "now ",
    )],
    ({"verb": "update", "fields": {"MinMemoryNode": "1", "MinMemoryCPU": "1"}}, "not both"),
    # malformed
    ({"v": 2}, "not a request"),
    ({"v": None}, "not a request"),
    ({"id": None}, "not a request"),
    ({"id": "short"}, "not a request"),
    ({"id": "x" * 65}, "not a request"),
    ({"id": "with space and\n"}, "not a request"),
    ({"at": "now"}, "not a request"),
    ({"at": -1}, "not a request"),
    ({"job": 7}, "not a request"),
    *[({"job": value}, "not a request") for value in (
        "", "0", "-1", "7,8", "7 8", "7_", "7+1", "--all", "7_[1-3]", "007", "99999999999", "7\n", "name=x",
    )],
    ({"cluster": "Lab"}, "not a request"),
    ({"verb": "HOLD"}, "not a request"),
    ({"verb": ""}, "not a request"),
    ({"verb": "hold; reboot"}, "not a request"),
    ({"fields": ["StartTime"]}, "not a request"),
    ({"fields": {"StartTime": 5}}, "not a request"),
    ({"fields": {"Start Time": "now"}}, "not a request"),
    ({"fields": {"StartTime": ""}}, "not a request"),
    ({"fields": {f"A{chr(97 + n)}": "x" for n in range(9)}}, "not a request"),
    ({"why": ""}, "not a request"),
    ({"why": LONG}, "not a request"),
    ({"why": "two\nlines"}, "one line"),
    ({"why": "\x1b[31mred"}, "one line"),
    ({"why": "right\u202eto left"}, "one line"),
    ({"by": None}, "not a request"),
    ({"by": "-"}, "not a request"),
    ({"until": "soon"}, "not a request"),
    *[({"verb": "requeue", "restarts": value}, "not a request") for value in (-1, 0.5, "0", True, 10**6 + 1, [0])],
    ({"sudo": True}, "not a request"),
    # not now, not here, not for that
    ({"at": 1_900_000_000.0 - 601}, "too long ago"),
    ({"at": 1_900_000_000.0 + 61}, "future"),
    ({"cluster": "other"}, "another cluster"),
    ({"until": 1_900_000_000.0}, "next hour"),
    ({"until": 1_900_000_000.0 + 3700}, "next hour"),
    ({"verb": "requeue", "job": "8", "until": 1_900_000_000.0 + 60}, "holds nothing"),
    ({"restarts": 0}, "not of one attempt"),
    ({"verb": "release", "restarts": 0}, "not of one attempt"),
    ({"job": "4711"}, "no such job"),
    ({"verb": "release"}, "does not hold this job"),
]
# fmt: on


@pytest.mark.parametrize(("changes", "words"), OUTSIDE, ids=lambda value: json.dumps(value)[:60])
def test_what_is_outside_the_table_is_refused_and_journalled(world, changes, words):
    request = world.request(**({"verb": "hold"} | changes))
    answer = world.send(json.dumps(request).encode())
    assert (answer["result"], words in answer["said"]) == ("refused", True), answer
    assert world.slurm.acts == []
    (line,) = world.lines()
    assert (line["event"], line["uid"]) == ("refused", GSUB)
    assert words.removeprefix("not a request") in line["said"]


RESTS: list[tuple[str, Any, str]] = [
    ("hold", job(7, JobState.RUNNING), "only a pending job"),
    ("hold", job(7, JobState.COMPLETED), "only a pending job"),
    ("hold", pending(priority=0), "held already"),
    ("hold", pending(uid=0), "left alone"),
    ("hold", pending(uid=64030), "left alone"),
    ("hold", pending(uid=None), "left alone"),
    ("requeue", pending(), "only a job that failed"),
    ("requeue", job(7, JobState.RUNNING, batch=True, requeue=True), "only a job that failed"),
    ("requeue", job(7, JobState.COMPLETED, batch=True, requeue=True), "only a job that failed"),
    ("requeue", job(7, JobState.CANCELLED, batch=True, requeue=True), "only a job that failed"),
    ("requeue", failed(flags=frozenset({JobFlag.COMPLETING})), "completing"),
    ("requeue", failed(batch=False), "no batch job"),
    ("requeue", failed(requeue=False), "forbids"),
    ("requeue", failed(array_job_id=7), "one by one"),
    ("requeue", failed(array_job_id=7, array_tasks="1-3"), "one by one"),
    ("requeue", failed(het_job_id=7), "heterogeneous"),
    ("requeuehold", failed(uid=0), "left alone"),
    ("update", pending(), "never requeued"),
    ("update", failed(restarts=1), "only a pending job"),
    ("update", pending(restarts=1, excluded_nodes=Hosts("n[7-8]")), "excludes n7, n8 too"),
]


@pytest.mark.parametrize(("verb", "found", "words"), RESTS, ids=lambda value: str(value)[:40])
def test_a_verb_is_done_only_where_it_makes_sense(tmp_path, verb, found, words):
    world = World(tmp_path)
    world.slurm.known_jobs["7"] = found
    fields = {"ExcNodeList": "n1"} if verb == "update" else {}
    answer = world.ask(verb, "7", fields=fields)
    assert answer["result"] == "refused" and words in answer["said"], answer
    assert world.slurm.acts == []
    assert [line["event"] for line in world.lines()] == ["refused"]


STALE_PLANS: list[tuple[str, Any, int, str]] = [
    ("requeue", failed(restarts=1), 0, "once, not 0"),
    ("requeuehold", failed(restarts=3), 1, "3 times, not 1"),
    ("requeue", failed(), 2, "0 times, not 2"),  # Slurm lost its state
    ("update", pending(restarts=2), 1, "2 times, not 1"),
    # what another asker's requeue left is told of as that, not as a job that waits
    ("requeue", pending(restarts=1), 0, "once, not 0"),
]


@pytest.mark.parametrize(("verb", "found", "restarts", "words"), STALE_PLANS, ids=str)
def test_a_plan_for_another_attempt_is_refused_and_journalled(tmp_path, verb, found, restarts, words):
    world = World(tmp_path, found)
    fields = {"ExcNodeList": "n1"} if verb == "update" else {}
    answer = world.ask(verb, fields=fields, restarts=restarts)
    assert answer["result"] == "refused" and answer["again"] is None
    assert answer["said"] == f"it has been restarted meanwhile: {words}"
    (line,) = world.lines()
    assert (line["event"], line["expected"]) == ("refused", restarts)
    assert world.slurm.acts == []


@pytest.mark.parametrize("verb", ["requeue", "requeuehold", "update"])
def test_the_attempt_that_is_meant_is_acted_on(tmp_path, verb):
    world = World(tmp_path, pending(restarts=2) if verb == "update" else failed(restarts=2))
    answer = world.ask(verb, fields={"StartTime": "now"} if verb == "update" else {}, restarts=2)
    assert answer["result"] == "done"
    asked = world.lines()[0]
    assert (asked["event"], asked["restarts"], asked["expected"]) == ("asked", 2, 2)


def test_two_askers_requeue_a_job_once(tmp_path):
    """Each with an id of its own, as two services or one that lost its memory would."""
    world = World(tmp_path, failed())
    results = []
    for _ in range(2):
        results.append(world.ask("requeue", restarts=0)["result"])
        world.slurm.known_jobs["7"] = failed(restarts=1)  # it failed again, before the second one asks
    assert results == ["done", "refused"] and len(world.slurm.acts) == 1


def test_the_attempt_is_part_of_what_an_id_stands_for(world):
    request = world.request("requeue", "8", restarts=0)
    assert world.send(json.dumps(request).encode())["result"] == "done"
    assert "another request" in world.send(json.dumps(request | {"restarts": 1}).encode())["said"]
    assert world.send(json.dumps(request).encode())["repeat"]


def test_without_an_attempt_a_request_is_what_it_was_before_there_were_any():
    """A journal that an older version wrote has these digests."""
    line = {
        "v": 1,
        "id": "request-1",
        "at": 1,
        "cluster": "lab",
        "job": "8",
        "verb": "requeue",
        "why": "a",
        "by": "v-00000000",
    }
    assert digest_of(parse_request(json.dumps(line).encode())) == "d51df518b2b5c8b636b3c54acfd79f8d"


def test_a_job_that_completes_may_be_requeued_in_a_moment(tmp_path):
    world = World(tmp_path, failed(flags=frozenset({JobFlag.COMPLETING})), pending(8))
    assert world.ask("requeue", "7")["again"] == 2
    assert world.ask("requeue", "8")["again"] is None


def test_an_arrays_task_is_requeued_by_its_own_number(tmp_path):
    world = World(tmp_path, failed("7_3"))
    assert world.ask("requeue", "7_3")["result"] == "done"
    assert world.slurm.acts == [["scontrol", "requeue", "7_3"]]


@pytest.mark.parametrize(("most", "words"), [(3999, "gives, 3999 MiB"), (None, "not known")])
def test_no_more_memory_than_the_partition_gives(world, most, words):
    world.slurm.space = replace(world.slurm.space, biggest=most)
    answer = world.ask("update", "9", fields={"MinMemoryNode": "4000"})
    assert answer["result"] == "refused" and words in answer["said"]
    assert world.slurm.acts == []


# --- memory: the limits themselves are in test_allowed.py -------------------------------------------------------------


def more(world: World, number: str, mebibytes: int, **fields: Any) -> dict[str, Any]:
    return world.ask("update", number, fields={"MinMemoryNode": str(mebibytes)}, **fields)


@pytest.fixture
def limited(tmp_path: Path) -> World:
    """User 1001 has two jobs that were requeued, 7 in QOS tight, which limits memory, and 9 in none that does."""
    world = World(
        tmp_path,
        pending(7, restarts=1, uid=1001, qos="tight"),
        pending(9, restarts=1, uid=1001, comment="project 7"),
    )
    world.slurm.space = replace(world.slurm.space, enforced=True, associations=TIGHT)
    return world


@pytest.mark.case("A1")
def test_memory_is_not_set_where_a_limit_holds(limited):
    """Not even within it: Slurm would hold the job to it no longer, whatever its user changes."""
    for mebibytes in (4001, 10):
        answer = more(limited, "7", mebibytes)
        assert answer["result"] == "refused" and answer["again"] is None
        assert "the limit MaxTRESPerJob of QOS tight is" in answer["said"]
        assert limited.lines()[-1]["said"] == answer["said"]
    assert limited.slurm.acts == []


@pytest.mark.case("A1")
def test_a_job_whose_memory_was_set_is_marked(limited):
    assert more(limited, "9", 3000)["result"] == "done"
    assert limited.slurm.acts == [
        ["scontrol", "update", "JobId=9", "MinMemoryNode=3000", "Comment=project 7 gsub:guarded"]
    ]
    assert limited.ask("update", "9", fields={"StartTime": "now"})["result"] == "done"
    assert limited.slurm.acts[-1] == ["scontrol", "update", "JobId=9", "StartTime=now"]


@pytest.mark.case("A1")
def test_a_job_that_has_grown_beyond_a_limit_is_held_until_it_is_within(limited):
    """A site without the shim: the user moves the job to a QOS whose limit its memory is beyond."""
    more(limited, "9", 3000)
    limited.desk.tend()
    assert len(limited.slurm.acts) == 1
    limited.slurm.known_jobs["9"] = replace(limited.slurm.known_jobs["9"], qos="tight", num_nodes=4)
    limited.clock.now += 31
    limited.desk.tend()
    assert limited.slurm.acts[1:] == [["scontrol", "hold", "9"]]
    last = next(line for line in limited.lines() if line.get("verb") == "stop")
    assert "the limit MaxTRESPerJob of QOS tight" in last["why"] and "12000 MiB" in last["why"]
    limited.restart()
    limited.clock.now += 31
    limited.desk.tend()
    assert len(limited.slurm.acts) == 2, "once"
    limited.slurm.known_jobs["9"] = replace(limited.slurm.known_jobs["9"], qos="normal")
    limited.clock.now += 31
    limited.desk.tend()
    assert limited.slurm.acts[2:] == [["scontrol", "release", "9"]]
    limited.slurm.known_jobs["9"] = job(9, JobState.RUNNING, uid=1001, qos="tight", num_nodes=4)
    limited.clock.now += 31
    limited.desk.tend()
    assert limited.lines()[-1]["event"] == "forgot" and len(limited.slurm.acts) == 3


def test_nobody_can_ask_for_its_own_verb(limited):
    answer = limited.ask("stop", "9")
    assert (
        answer["result"] == "refused" and "no verb of ours" in answer["said"] and "stop" not in answer["said"]
    )


def test_other_updates_and_verbs_ask_for_no_limits(limited):
    limited.ask("update", "7", fields={"StartTime": "now", "ExcNodeList": "n1"})
    limited.ask("hold", "9")
    assert limited.slurm.rooms == 0


def test_limits_that_are_not_told_are_refused_only_where_they_are_enforced(limited):
    limited.slurm.space = replace(
        limited.slurm.space, associations=None, missing="Slurm's answer was not understood"
    )
    answer = more(limited, "7", 10)
    assert answer["result"] == "refused"
    assert answer["said"].startswith(
        "it is not known what accounting lets the job have: Slurm's answer was not"
    )
    limited.slurm.space = replace(limited.slurm.space, enforced=False)
    assert more(limited, "7", 10)["result"] == "done"


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"{" * 5000, b'{"v":1', b"GET / HTTP/1.1"]
)
def test_what_is_no_request_is_answered(world, line):
    assert world.send(line)["result"] == "refused"
    assert world.lines()[0]["event"] == "refused"


def test_a_malformed_request_is_answered_with_the_id_that_it_seems_to_have(world):
    request = world.request("hold", surplus=1)
    assert world.send(json.dumps(request).encode())["id"] == request["id"]


@pytest.mark.parametrize("uid", [1000, 1, 64030, 4294967294])
def test_nobody_else_is_heard(world, uid):
    answer = world.ask("hold", "7", uid=uid)
    assert answer["result"] == "refused" and answer["id"] == ""
    assert world.slurm.acts == [] and world.slurm.looks == 0
    assert [(line["event"], line["uid"]) for line in world.lines()] == [("refused", uid)]


def test_root_is_heard(world):
    assert world.ask("hold", "7", uid=0)["result"] == "done"


# --- modes, the off switch, rights ------------------------------------------------------------------------------------

MODES = [
    ('cluster = "lab"\n', "observe"),
    ('cluster = "lab"\n[policy]\nmode = "advise"\n', "advise"),
    ('cluster = "lab"\n[policy]\nmode = "enforce"\nrollout = 0\n', "observe"),
    ('cluster = "lab"\n[policy]\nmode = "enforce"\n[partitions.gpu]\nmode = "observe"\n', "observe"),
    ('cluster = "lab"\n[policy]\nmode = "enforce"\n[accounts.lab]\nmode = "advise"\n', "advise"),
    ('cluster = "lab"\n[partitions.debug]\nmode = "enforce"\n', "observe"),
]


@pytest.mark.parametrize(("site", "mode"), MODES)
def test_nothing_but_release_where_the_site_does_not_enforce(world, tmp_path, site, mode):
    world.ask("hold", "7")
    world.site = parse_site(site)
    for verb, number in (("hold", "9"), ("requeue", "8"), ("requeuehold", "8")):
        answer = world.ask(verb, number)
        assert answer["result"] == "refused" and f"in {mode}" in answer["said"], answer
    assert world.ask("release", "7")["result"] == "done"
    assert held(tmp_path / "state") == ()


def test_one_partition_may_enforce_and_the_most_cautious_of_several_counts(tmp_path):
    site = 'cluster = "lab"\n[partitions.gpu]\nmode = "enforce"\n'
    world = World(tmp_path, pending(), pending(8, partition="gpu,debug"), site=site)
    assert world.ask("hold", "7")["result"] == "done"
    assert "in observe" in world.ask("hold", "8")["said"]


def test_the_off_switch_refuses_all_and_lets_go_what_is_held(world, tmp_path):
    world.ask("hold", "7")
    world.off.touch()
    answer = world.ask("requeue", "8")
    assert answer["result"] == "refused" and "switched gsub-act off" in answer["said"]
    world.wait(1)
    assert held(tmp_path / "state") == () and not world.slurm.known_jobs["7"].held


def test_without_rights_it_says_so(world):
    world.slurm.known = Rights(False, "lab", 64030, "user gsub-act has Slurm's level None")
    answer = world.ask("hold", "7")
    assert answer["result"] == "refused" and "level None" in answer["said"]
    assert world.slurm.acts == []


def test_the_slurmctld_that_answers_is_the_sites(world):
    world.slurm.known = Rights(True, "other", 64030)
    assert "cluster other" in world.ask("hold", "7")["said"]


# --- too fast ---------------------------------------------------------------------------------------------------------


def test_a_job_is_acted_on_ten_times_a_minute(tmp_path):
    world = World(tmp_path, pending(restarts=1))
    answers = [world.ask("update", "7", fields={"StartTime": "now"}) for _ in range(11)]
    assert [answer["result"] for answer in answers] == ["done"] * 10 + ["refused"]
    assert "too fast" in answers[-1]["said"] and 5 < answers[-1]["again"] <= 6.1
    assert world.lines()[-1]["event"] == "refused"
    world.clock.now += answers[-1]["again"]
    assert world.ask("update", "7", fields={"StartTime": "now"})["result"] == "done"


def test_two_hundred_acts_at_once_in_all_and_releases_beside_them(tmp_path):
    world = World(tmp_path, *(pending(number) for number in range(1, 211)))
    results = [world.ask("hold", str(number))["result"] for number in range(1, 211)]
    assert results == ["done"] * 200 + ["refused"] * 10
    assert {world.ask("release", str(number))["result"] for number in range(1, 201)} == {"done"}


def test_a_thousand_jobs_that_fail_at_once_are_requeued_within_a_minute(tmp_path):
    """By an asker that comes again when it is told to."""
    world = World(tmp_path, *(failed(number) for number in range(1, 1001)))
    begun = world.clock()
    for number in range(1, 1001):
        while (answer := world.ask("requeue", str(number), restarts=0))["result"] == "refused":
            world.clock.now += answer["again"]
    assert len(world.slurm.acts) == 1000
    assert world.clock() - begun < 45


def test_a_flood_of_refusals_fills_no_disk(tmp_path):
    world = World(tmp_path, pending())
    for _ in range(5000):
        world.send(b"{}")
    assert len(world.lines()) == 100
    world.wait(61)
    assert world.lines()[-1]["event"] == "more"
    assert sum(line.get("count", 1) for line in world.lines()) == 5000


# --- once ------------------------------------------------------------------------------------------------------------


def test_a_repeat_is_answered_and_not_done_again(world):
    line = json.dumps(world.request("requeue", "8")).encode()
    assert world.send(line)["result"] == "done"
    again = world.send(line)
    assert (again["result"], again["repeat"]) == ("done", True)
    world.restart()
    assert world.send(line)["repeat"] is True
    assert world.slurm.acts == [["scontrol", "requeue", "8"]]


def test_an_id_stands_for_one_request(world):
    request = world.request("hold", "7")
    world.send(json.dumps(request).encode())
    answer = world.send(json.dumps(request | {"job": "9"}).encode())
    assert answer["result"] == "refused" and "another request" in answer["said"]
    assert len(world.slurm.acts) == 1


def test_a_refused_request_may_be_asked_again_with_its_id(world):
    world.off.touch()
    line = json.dumps(world.request("hold", "7")).encode()
    assert world.send(line)["result"] == "refused"
    world.off.unlink()
    assert (answer := world.send(line))["result"] == "done" and not answer["repeat"]


def test_a_silent_slurm_is_asked_nothing(world):
    world.slurm.silent = True
    answer = world.ask("hold", "7")
    assert answer["result"] == "refused" and answer["again"] == 10
    assert [line["event"] for line in world.lines()] == ["refused"]


def test_a_silent_slurm_is_waited_for_once_and_not_by_each_who_asks(world):
    """A look takes 20 s then, requests are done in a row, and an asker waits 90 s."""
    world.slurm.silent = True
    assert world.ask("hold", "7")["again"] == 10
    looks = world.slurm.looks
    answers = [world.ask("requeue", "8") for _ in range(5)] + [more(world, "9", 4000)]
    assert {answer["result"] for answer in answers} == {"refused"}
    assert all("a moment ago" in answer["said"] and 0 < answer["again"] <= 5 for answer in answers)
    assert world.slurm.looks == looks
    world.slurm.silent = False
    world.clock.now += answers[-1]["again"]
    assert world.ask("requeue", "8")["result"] == "done"


def test_after_an_act_without_an_answer_slurm_is_left_alone_for_a_moment(world):
    world.slurm.deaf = True
    assert world.ask("hold", "7")["result"] == "unknown"
    assert "a moment ago" in world.ask("requeue", "8")["said"]
    world.slurm.deaf = False
    world.wait(6)
    assert world.ask("requeue", "8")["result"] == "done"


def test_a_clock_that_is_set_back_does_not_make_it_wait(world):
    world.slurm.silent = True
    world.ask("hold", "7")
    world.slurm.silent = False
    world.clock.now -= 100
    assert world.ask("hold", "7")["result"] == "done"


def test_while_it_is_not_known_who_slurmuser_is_nothing_is_done(world):
    world.slurm.known = Rights(None, why="Slurm's controller (slurmctld) does not answer")
    answer = world.ask("hold", "7")
    assert (answer["result"], answer["again"]) == ("refused", 10) and "SlurmUser" in answer["said"]
    world.slurm.known = Rights(True, "lab", 64030)
    assert world.ask("hold", "7")["result"] == "done"  # it is asked again at once


def test_a_slurmdbd_that_is_away_keeps_back_only_what_needs_it(limited):
    def room(_job):
        raise SlurmUnreachable("slurmdbd")

    limited.slurm.room = room
    answer = more(limited, "7", 10)
    assert answer["result"] == "refused" and "slurmdbd" in answer["said"] and answer["again"] == 10
    assert limited.ask("update", "7", fields={"StartTime": "now"})["result"] == "done"


@pytest.mark.parametrize(
    ("known", "seconds"),
    [(Rights(True, "lab", 64030), 600), (Rights(None, "lab", 64030, "slurmdbd is away"), 60)],
)
def test_rights_are_asked_for_once_in_a_while(world, known, seconds):
    """sacctmgr waits long for a slurmdbd that is away; it must not at each request."""
    world.slurm.known = known
    counts = []
    for later in (0, 0, seconds - 1, 2):
        world.clock.now += later
        assert world.ask("update", "9", fields={"StartTime": "now"})["result"] == "done"
        counts.append(world.slurm.asked_rights)
    assert counts == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("verb", "number", "fields"),
    [
        ("hold", "7", {}),
        ("requeue", "8", {}),
        ("requeuehold", "8", {}),
        ("update", "9", {"ExcNodeList": "n[1-2]", "MinMemoryNode": "4000", "StartTime": "now"}),
        ("update", "9", {"MinMemoryCPU": "4000"}),
    ],
)
def test_an_answer_that_got_lost_is_found_out(world, verb, number, fields):
    world.slurm.deaf = True
    line = json.dumps(world.request(verb, number, fields=fields)).encode()
    assert world.send(line)["result"] == "unknown"
    assert [entry["event"] for entry in world.lines()] == ["asked", "unknown"]
    world.wait(1)
    assert world.lines()[-1]["event"] == "done"
    assert world.send(line)["result"] == "done"
    assert len(world.slurm.acts) == 1


def test_what_was_not_done_is_found_out_too_and_blocks_the_job_until_then(world):
    class Silent(type(world.slurm)):  # type: ignore[misc]
        def act(self, argv):
            self.silent = True
            super().act(argv)

    world.slurm.__class__ = Silent
    line = json.dumps(world.request("hold", "7")).encode()
    assert world.send(line)["result"] == "unknown"
    assert "not been settled" in world.ask("hold", "7")["said"]
    world.wait(40)
    assert world.lines()[-1]["event"] in ("refused", "unknown")  # Slurm says nothing: neither do we
    world.slurm.silent = False
    world.wait(4)
    assert world.lines()[-1]["event"] != "failed"  # a controller that was stopped may still do it
    world.wait(20)
    assert world.lines()[-1] | {"at": 0} == {
        "event": "failed", "at": 0, "id": json.loads(line)["id"], "job": "7", "verb": "hold",
        "said": "it did not come about",
    }  # fmt: skip
    assert world.send(line)["result"] == "failed"


# --- holds end --------------------------------------------------------------------------------------------------------


def test_a_hold_without_a_promise_ends_after_three_minutes(world, tmp_path):
    world.ask("hold", "7")
    world.wait(179)
    assert world.slurm.known_jobs["7"].held
    world.wait(2)
    assert not world.slurm.known_jobs["7"].held and held(tmp_path / "state") == ()
    asked, done = world.lines()[-2:]
    assert (asked["verb"], asked["why"], done["event"]) == ("release", "nobody released it in time", "done")


def test_a_promise_is_kept_to_and_no_longer(world):
    world.ask("requeuehold", "8", until=world.clock() + 1000)
    world.wait(999)
    assert world.slurm.known_jobs["8"].held
    world.wait(2)
    assert not world.slurm.known_jobs["8"].held


def test_a_hold_that_is_overdue_ends_at_the_start(world, tmp_path):
    world.ask("hold", "7")
    world.clock.now += 500
    world.restart()
    assert len(held(tmp_path / "state")) == 1
    world.desk.tend()
    assert held(tmp_path / "state") == () and not world.slurm.known_jobs["7"].held


def test_nothing_stays_held_at_the_end(world, tmp_path):
    world.ask("hold", "7", until=world.clock() + 3000)
    world.ask("requeuehold", "8")
    world.desk.end(5)
    assert held(tmp_path / "state") == ()
    assert not world.slurm.known_jobs["7"].held and not world.slurm.known_jobs["8"].held


@pytest.mark.parametrize(("verb", "number"), [("hold", "7"), ("requeuehold", "8")])
def test_a_hold_whose_answer_got_lost_does_not_stay_at_the_end(world, tmp_path, verb, number):
    world.slurm.deaf = True
    assert world.ask(verb, number)["result"] == "unknown"
    world.slurm.deaf = False
    assert world.slurm.known_jobs[number].held
    world.desk.end(5)
    assert held(tmp_path / "state") == () and not world.slurm.known_jobs[number].held


def test_a_silent_slurm_does_not_make_it_forget(world, tmp_path):
    world.ask("hold", "7")
    world.slurm.silent = True
    world.wait(300)
    assert len(held(tmp_path / "state")) == 1
    world.slurm.silent = False
    world.wait(11)
    assert held(tmp_path / "state") == () and not world.slurm.known_jobs["7"].held


def test_a_silent_slurm_is_looked_at_once_a_round_however_much_is_held(tmp_path):
    """A look takes 20 s then, and nobody is answered meanwhile."""
    world = World(tmp_path, *(pending(number) for number in range(1, 41)))
    for number in range(1, 41):
        world.ask("hold", str(number))
    world.slurm.silent = True
    world.clock.now += 181
    looks = world.slurm.looks
    world.desk.tend()
    assert world.slurm.looks == looks + 1
    world.slurm.silent = False
    world.wait(11)
    assert held(tmp_path / "state") == ()


@pytest.mark.parametrize(
    ("becomes", "words"),
    [
        (None, "no such job"),
        (pending(priority=100), "not held"),
        (job(7, JobState.RUNNING), "not held"),
        (pending(priority=0, reason="JobHeldAdmin"), "administrator"),
    ],
)
def test_what_others_did_to_a_held_job_is_left_as_it_is(world, tmp_path, becomes, words):
    world.ask("hold", "7")
    acts = len(world.slurm.acts)
    if becomes is None:
        del world.slurm.known_jobs["7"]
    else:
        world.slurm.known_jobs["7"] = becomes
    world.wait(181)
    assert held(tmp_path / "state") == ()
    assert len(world.slurm.acts) == acts
    assert (world.lines()[-1]["event"], words in world.lines()[-1]["said"]) == ("forgot", True)
    world.restart()
    assert held(tmp_path / "state") == ()
