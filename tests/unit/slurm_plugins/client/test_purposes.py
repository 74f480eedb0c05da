"""Jobs that are read with some of their values: the same values, and no others."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugins.client import purposes
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.decode import IDENTITY, JobDecoder
from slurm_plugins.client.errors import SlurmFormatError, SlurmRefused
from slurm_plugins.client.runner import Completed
from slurm_plugins.client.states import JobState
from slurm_plugins.client.tables import Row, RowSplitter
from slurm_plugins.client.values import Job
from tests.unit.slurm_plugins.client.recording import RELEASES, Replay
from tests.unit.slurm_plugins.client.slurm_rows import Answers, job

PURPOSES = {name: getattr(purposes, name) for name in purposes.__all__}
pytestmark = pytest.mark.case("S3")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("purpose", PURPOSES)
def test_what_is_read_is_the_same_and_the_rest_is_not_there(release: str, purpose: str) -> None:
    values = PURPOSES[purpose]
    whole = CommandClient({}, run=Replay(release, "jobs")).jobs()
    some = CommandClient({}, run=Replay(release, "jobs")).jobs(values=values)
    names = {*IDENTITY, *values}
    assert [one.known for one in some] == [
        {name: value for name, value in one.known.items() if name in names} for one in whole
    ]
    for absent in whole[0].known.keys() - names:
        with pytest.raises(AttributeError, match=f"'{absent}' is no value that this job was read with"):
            getattr(some[0], absent)
    assert [one.shown_id for one in some] == [one.shown_id for one in whole]


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("release", ["22.05.8", "24.11.5", "26.05.5"])
def test_much_fewer_fields_are_asked_for(release: str, purpose: str) -> None:
    answers = Answers(release, jobs=[job(1)])
    client = CommandClient({}, run=answers)
    client.jobs()
    client.jobs(values=PURPOSES[purpose])
    whole, some = (argv[-1].count(",") + 1 for argv in answers.asked if "-O" in argv)
    # Of one's own jobs more is shown
    assert some < whole * (0.6 if purpose == "STATUS" else 0.5)


def test_a_gap_of_22_05_is_filled_only_for_who_needs_it() -> None:
    answers = Answers("22.05.8", jobs=[job(1, excluded_nodes="n[1-2]"), job(2, excluded_nodes="")])
    client = CommandClient({}, run=answers)
    assert [str(one.excluded_nodes) for one in client.jobs(values={"excluded_nodes"})] == ["n[1-2]", ""]
    answers.asked.clear()
    client.jobs(values=purposes.SUBMISSIONS)
    assert [argv[0] for argv in answers.asked] == ["squeue"]


def test_no_group_is_looked_up_for_any_job() -> None:
    answers = Answers(jobs=[job(1)])
    CommandClient({}, run=answers).jobs()
    assert "GroupName" not in answers.asked[-1][-1]


def test_an_array_of_which_some_waits_again_is_read_in_brief_too() -> None:
    def answer(argv: list[str], **options: object) -> Completed:
        """As squeue of 24.11: a task that waits to run again is shown when it is asked for by its id."""
        again = any(word.startswith("--jobs=") for word in argv)
        shown = [job(9, array_job_id="7", array_task="1", restarts="1", state="PENDING")]
        if not again:
            shown = [
                job(7, array_job_id="7", array_task="1,3-5", state="PENDING"),
                job(8, array_job_id="7", array_task="2", start="1795236133", nodes="n1"),
            ]
        return Answers(jobs=shown)(argv, **options)

    found = CommandClient({}, run=answer).jobs(values={"restarts"})
    assert [(one.shown_id, one.array_tasks, one.restarts) for one in found] == [
        ("7", "3-5", 0),
        ("7_2", None, 0),
        ("7_1", None, 1),
    ]
    assert "restarts=1" in repr(found[2]) and "comment" not in repr(found[2])


@pytest.mark.case("S5")
def test_jobs_in_one_state_of_one_partition() -> None:
    answers = Answers(jobs=[job(1)])
    client = CommandClient({}, run=answers)
    client.jobs(state=JobState.PENDING, partition="gpu,big")
    *_, states, partition, _, _ = answers.asked[-1]
    assert (states, partition) == ("--states=PENDING", "--partition=gpu,big")
    client.jobs(ids=[1], user={1001}, state=JobState.PENDING)
    assert {"--jobs=1", "--user=1001"} < set(answers.asked[-1]) and answers.asked[-1][-3] == states


@pytest.mark.case("S2")
def test_jobs_of_users_by_uid() -> None:
    answers = Answers(jobs=[job(1)])
    client = CommandClient({}, run=answers)
    client.jobs(user={1002, 1001})
    assert "--user=1001,1002" in answers.asked[-1]
    answers.asked.clear()
    assert client.jobs(user=()) == ()
    assert answers.asked == []


@pytest.mark.case("S2")
@pytest.mark.parametrize("code", [0, 1])
def test_a_uid_that_this_host_does_not_know_does_not_hide_its_jobs(code: int) -> None:
    answers = Answers(jobs=[job(1, uid="1001"), job(2, uid="65533"), job(3, uid="1002")])

    def answer(argv: list[str], **options: object) -> Completed:
        if any(word.startswith("--user=") for word in argv):
            return Completed("squeue", code, "", "squeue: error: Invalid user: 65533\n")
        return answers(argv, **options)

    found = CommandClient({}, run=answer).jobs(user=[1001, 65533], values=purposes.SUBMISSIONS)
    assert [one.id for one in found] == [1, 2]
    CommandClient({}, run=answer).jobs(user=[1001, 65533], state=JobState.PENDING)
    assert "--states=PENDING" in answers.asked[-1]
    with pytest.raises(SlurmRefused):
        CommandClient({}, run=lambda *_, **__: Completed("squeue", 1, "", "squeue: error: no")).jobs(user=[1])


# --- as a stream ----------------------------------------------------------------------------------------------------


SQUEUE = """#!{python}
import sys
layout = sys.argv[-1]
if layout == "--version":
    sys.exit(print("slurm 24.11.5"))
print("squeue: error: Invalid job format specification: QOS", file=sys.stderr)
separator = layout.rpartition(":")[2]
values = {{"State": "PENDING", "Name": "é\\nname", "Comment": "\\udcff"}}
names = [field.partition(":")[0] for field in layout.split(",")]
out = open(1, "w", errors="surrogateescape")
for number in range(1, 3000):
    row = [str(number) if name == "JobID" else values.get(name, "") for name in names if name != "QOS"]
    print("".join(value + separator for value in row), file=out)
"""


@pytest.mark.case("S4")
def test_jobs_are_made_while_squeue_prints_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is held as a whole; pieces that cut fields, separators and characters apart are put together."""
    squeue = tmp_path / "squeue"
    squeue.write_text(SQUEUE.format(python=sys.executable), encoding="utf-8")
    squeue.chmod(0o755)
    read = os.read
    monkeypatch.setattr("slurm_plugins.client.runner.os.read", lambda file, most: read(file, 1001))
    pieces: list[int] = []
    split = RowSplitter.split

    def note(self: RowSplitter, piece: str) -> Iterator[Row]:
        pieces.append(len(piece))
        return split(self, piece)

    monkeypatch.setattr(RowSplitter, "split", note)
    client = CommandClient({"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    found = client.jobs(values={"name", "comment", "qos"})
    assert [one.id for one in found] == list(range(1, 3000))
    assert {(one.name, one.comment, one.qos) for one in found} == {("é\nname", "\udcff", None)}
    assert len(pieces) > 100 and max(pieces) <= 1001


def test_the_collector_is_off_while_jobs_are_made_and_on_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    decode_one = JobDecoder.decode

    def note(self: JobDecoder, row: dict[str, str]) -> Job:
        seen.append(gc.isenabled())
        return decode_one(self, row)

    monkeypatch.setattr(JobDecoder, "decode", note)
    CommandClient({}, run=Answers(jobs=[job(1)])).jobs()
    assert seen == [False] and gc.isenabled()
    with pytest.raises(SlurmFormatError):
        CommandClient({}, run=Answers(jobs=[job(1, eligible="tomorrow")])).jobs()
    assert gc.isenabled()
