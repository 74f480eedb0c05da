"""Whatever the service does, the job is accepted, unchanged unless every part of the answer is allowed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.unit.slurm_plugins.lua.lua import Outcome, Shim
from tests.unit.slurm_plugins.lua.servers import (
    BROKEN,
    EDITS,
    ENV,
    REFUSED,
    RIGHT,
    Service,
    hangs,
    once,
    says,
)

JOB = {"tres_per_job": "gres:gpu:16", "name": "train", "num_tasks": 16, "min_nodes": 1}
SCRIPT = b"#!/bin/sh\nsrun python train.py\n"
VARIABLES = {"HOME": "/home/ada", "SLURM_NTASKS": "16"}
# A limit for the sake of an end: the deadline is 50 ms, the machine may be busy.
LONG = 20.0


def submit(shim: Shim) -> Outcome:
    return shim.submit(JOB, env=VARIABLES, script=SCRIPT)


def unchanged(outcome: Outcome) -> bool:
    """Accepted, as the user wrote it, and without a word to the user."""
    return (
        outcome.raised is None
        and outcome.rc == 0
        and outcome.job == JOB
        and outcome.env == VARIABLES
        and not outcome.writes
        and not outcome.said
        and outcome.seconds < LONG
    )


def patient(shim: Shim, service: Service, **options: object) -> None:
    """For what is not about time: a deadline that a busy machine keeps."""
    shim.setup(socket=str(service.path), deadline=1, **options)


@pytest.mark.parametrize("way", RIGHT)
def test_a_right_answer_is_carried_out(shim: Shim, service: Service, way: str) -> None:
    patient(shim, service)
    service.way = RIGHT[way]
    done = submit(shim)
    assert (done.rc, done.raised) == (0, None)
    assert done.job == {**JOB, **EDITS}
    assert done.env == {**VARIABLES, **ENV}
    assert done.said == ["gsub: 2 nodes x 8 GPUs: the fewest that hold 16"]
    assert done.log == []


@pytest.mark.parametrize("way", BROKEN)
def test_a_broken_service_costs_a_deadline_and_no_job(shim: Shim, service: Service, way: str) -> None:
    shim.setup(socket=str(service.path))
    service.way = BROKEN[way]
    for _ in range(3):
        assert unchanged(submit(shim))
    asked = len(service.questions)
    last = submit(shim)  # after three failures in a row nothing is asked any more
    assert unchanged(last)
    assert last.log == []
    assert len(service.questions) == asked


def test_refused_answers(shim: Shim, service: Service) -> None:
    patient(shim, service)
    for name, way in REFUSED.items():
        service.way = way
        done = submit(shim)
        assert unchanged(done), name
        assert [line for line in done.log if line.startswith("error: gsub: an answer was dropped")], name
    # the service answers, so it is asked every time, over one connection
    assert len(service.questions) == len(REFUSED)
    assert service.connections == 1
    # and told
    service.way = says()
    submit(shim)
    assert service.questions[-1]["shim"] == {"dropped": len(REFUSED)}


def test_what_went_wrong_is_told_from_then_on(shim: Shim, service: Service) -> None:
    patient(shim, service)
    service.way = REFUSED["unknown field"]
    submit(shim)
    service.way = says()
    submit(shim)
    submit(shim)
    assert [question.get("shim") for question in service.questions] == [None, {"dropped": 1}, {"dropped": 1}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mode": "observe", "say": []}, False),
        ({"mode": "observe", "reject": "no"}, True),
        ({"mode": "advise"}, True),
        ({"mode": "advise", "reject": "no"}, True),
    ],
)
def test_only_enforce_changes(shim: Shim, service: Service, changes: dict[str, str], said: bool) -> None:
    patient(shim, service)
    service.way = says(**changes)
    done = submit(shim)
    assert (done.rc, done.job, done.env, done.writes) == (0, JOB, VARIABLES, [])
    assert bool(done.said) is said
    assert done.log == []


def test_enforce_rejects_with_its_reason(shim: Shim, service: Service) -> None:
    patient(shim, service)
    service.way = says(reject="gsub: no node has 9 GPUs\nask for 8 at most: 100 %s of them")
    done = submit(shim)
    assert done.rc == -1
    assert done.said == ["gsub: no node has 9 GPUs", "ask for 8 at most: 100 %s of them"]
    assert done.job == JOB
    assert not done.writes


@pytest.mark.case("T1")
@pytest.mark.parametrize(("number", "rc"), [(2014, 2014), (2000, 2000), (2999, 2999), (0, -1), (None, -1)])
def test_a_rejection_has_slurms_own_number(shim: Shim, service: Service, number: int | None, rc: int) -> None:
    patient(shim, service)
    service.way = says(reject="gsub: no node has 9 GPUs", errno=number)
    done = submit(shim)
    assert (done.rc, done.said, done.writes) == (rc, ["gsub: no node has 9 GPUs"], [])


@pytest.mark.case("T1")
@pytest.mark.parametrize("number", [1, -1, 1999, 3000, 2014.5, "2014", True, [2014]])
def test_a_number_that_is_none_of_slurms_drops_the_answer(
    shim: Shim, service: Service, number: object
) -> None:
    patient(shim, service)
    service.way = says(reject="gsub: no node has 9 GPUs", errno=number)
    done = submit(shim)
    assert (done.rc, done.said, done.job) == (0, [], JOB)
    assert "a number that is none of Slurm's" in done.log[-1]


@pytest.mark.case("T1")
def test_a_number_without_a_rejection_is_nothing(shim: Shim, service: Service) -> None:
    patient(shim, service)
    service.way = says(errno=2014)
    assert submit(shim).rc == 0


def test_an_error_answer_is_the_questions_fault(shim: Shim, service: Service) -> None:
    patient(shim, service)
    service.way = says(error="no")
    for _ in range(5):
        assert unchanged(submit(shim))
    assert len(service.questions) == 5
    assert service.connections == 1


def test_variables_are_not_written_for_salloc_and_srun(shim: Shim, service: Service) -> None:
    patient(shim, service)
    done = shim.submit(JOB, script=None)
    assert done.job == {**JOB, **EDITS}
    service.way = says(env=ENV)
    done = shim.submit(JOB, script=None)
    assert done.job == JOB
    assert not [line for line in done.log if "environment" in line]


def test_a_field_that_this_slurm_lacks(shim: Shim, service: Service) -> None:
    patient(shim, service)
    service.way = says(edits={"min_nodes": 2, "segment_size": 4})
    done = shim.submit(JOB, env=VARIABLES, script=SCRIPT, without=["segment_size"])
    assert unchanged(done)
    assert "segment_size is not a field of this Slurm" in done.log[0]


# --- where there is no service to ask -------------------------------------------------------------------------------


def missing(path: Path) -> None:
    pass


def a_file(path: Path) -> None:
    path.write_text("")


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link(path: Path) -> None:
    listening(path.with_name("real"))
    path.symlink_to(path.with_name("real"))


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fspath(path))
    path.chmod(0o660)
    listener.listen(4)
    return listener


def nobody_listens(path: Path) -> socket.socket:
    left = socket.socket(socket.AF_UNIX)
    left.bind(os.fspath(path))
    path.chmod(0o660)
    return left


def open_to_all(path: Path) -> socket.socket:
    listener = listening(path)
    path.chmod(0o666)
    return listener


def a_stranger(path: Path) -> socket.socket:
    listener = listening(path)
    os.chown(path, 65533, 65533)
    return listener


def full(path: Path) -> list[socket.socket]:
    """A service that stopped accepting, with as many waiting as the kernel lets wait."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fspath(path))
    path.chmod(0o660)
    listener.listen(0)
    waiting = [listener]
    while True:
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        waiting.append(client)
        try:
            client.connect(os.fspath(path))
        except BlockingIOError:
            return waiting


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (missing, "no socket"),
        (a_file, "is not a socket"),
        (a_folder, "is not a socket"),
        (a_link, "is not a socket"),
        (nobody_listens, "cannot connect"),
        (open_to_all, "may be written by everybody"),
        pytest.param(a_stranger, "belongs to uid 65533", marks=pytest.mark.root),
        (full, "cannot connect"),
    ],
)
def test_no_service_to_ask(shim: Shim, tmp_path: Path, make: object, why: str) -> None:
    path = tmp_path / "decision.sock"
    held = make(path)  # type: ignore[operator]
    shim.setup(socket=str(path))
    outcomes = [submit(shim) for _ in range(5)]
    assert all(unchanged(outcome) for outcome in outcomes)
    assert why in outcomes[0].log[0]
    for end in held if isinstance(held, list) else [held] if held else []:
        end.close()


@pytest.mark.root
def test_an_owner_that_the_site_names_is_trusted(shim: Shim, service: Service) -> None:
    os.chown(service.path, 65533, 65533)
    patient(shim, service, owner=65533)
    assert submit(shim).job == {**JOB, **EDITS}


# --- one connection, the deadline, the breaker ----------------------------------------------------------------------


def test_one_connection_serves_many_jobs(shim: Shim, service: Service) -> None:
    patient(shim, service)
    for _ in range(50):
        assert submit(shim).writes
    assert service.connections == 1
    ids = [question["id"] for question in service.questions]
    assert ids == list(range(1, 51))


def test_a_restarted_service_is_asked_at_once(shim: Shim, service: Service) -> None:
    patient(shim, service)
    assert submit(shim).writes
    service.stop()
    service.start()
    done = submit(shim)
    assert done.writes
    assert done.log == []


def test_a_service_that_closes_after_each_answer(shim: Shim, service: Service) -> None:
    patient(shim, service)
    service.way = once
    for _ in range(10):
        assert submit(shim).writes


def test_after_a_late_answer_the_next_question_gets_its_own(shim: Shim, service: Service) -> None:
    shim.setup(socket=str(service.path))
    service.way = hangs
    assert unchanged(submit(shim))
    patient(shim, service)
    service.way = says(edits={"num_tasks": 3})
    assert submit(shim).job["num_tasks"] == 3
    assert service.connections == 2  # the answer to the first cannot come any more
    assert service.questions[-1]["shim"] == {"late": 1}


def test_the_breaker_opens_probes_and_closes(shim: Shim, service: Service) -> None:
    shim.setup(socket=str(service.path), pause=0.5)
    service.way = hangs
    outcomes = [submit(shim) for _ in range(3)]
    assert [len([x for x in outcome.log if x.startswith("error: ")]) for outcome in outcomes] == [0, 0, 1]
    assert "jobs pass unchanged" in outcomes[2].log[0]
    while len(service.questions) < 4:  # the pause ends: one probe
        assert unchanged(submit(shim))
    patient(shim, service)
    service.way = says()
    while not (done := submit(shim)).writes:
        assert unchanged(done)
    assert done.log == ["info: gsub: the service answers again"]
    told = service.questions[-1]["shim"]
    assert told["opened"] == 1
    assert told["late"] >= 4


def test_two_failures_do_not_open_the_breaker(shim: Shim, service: Service) -> None:
    patient(shim, service)
    for _ in range(3):
        service.way = BROKEN["not JSON"]
        assert unchanged(submit(shim))
        assert unchanged(submit(shim))
        service.way = says()
        assert submit(shim).writes


def test_descriptors_and_memory_do_not_grow(shim: Shim, service: Service) -> None:
    folder = Path(f"/proc/{shim.process.pid}/fd")
    patient(shim, service, failures=1_000_000)

    def round_of_everything() -> None:
        for way in [*RIGHT.values(), *BROKEN.values(), *REFUSED.values()]:
            if way not in (
                hangs,
                BROKEN["drips"],
                BROKEN["another id"],
                BROKEN["id as text"],
                BROKEN["endless"],
            ):
                service.way = way
                submit(shim)

    round_of_everything()
    before = len(list(folder.iterdir())), shim.order("memory")["kilobytes"]
    for _ in range(3):
        round_of_everything()
    after = len(list(folder.iterdir())), shim.order("memory")["kilobytes"]
    assert after[0] <= before[0] + 1
    assert after[1] <= before[1] + 200


def test_a_reloaded_script_takes_its_connection_along(shim: Shim, service: Service) -> None:
    folder = Path(f"/proc/{shim.process.pid}/fd")
    at_first = len(list(folder.iterdir()))
    patient(shim, service)
    submit(shim)
    assert len(list(folder.iterdir())) == at_first + 1
    shim.order("forget")
    assert len(list(folder.iterdir())) == at_first


def test_the_connection_is_not_inherited(shim: Shim, service: Service) -> None:
    patient(shim, service)
    submit(shim)
    flags = [
        Path(f"/proc/{shim.process.pid}/fdinfo/{fd.name}").read_text()
        for fd in Path(f"/proc/{shim.process.pid}/fd").iterdir()
        if str(fd.readlink()).startswith("socket:")
    ]
    assert len(flags) == 1
    assert int(flags[0].split("flags:")[1].split()[0], 8) & os.O_CLOEXEC
