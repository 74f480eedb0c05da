"""One row of an answer that cannot be read, or one id that Slurm refuses, costs the answer that row alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import NoSuchJob, SlurmFormatError, SlurmRefused
from slurm_plugins.client.runner import Completed
from slurm_plugins.client.states import EXIT_ZERO
from slurm_plugins.client.tables import Unread
from slurm_plugins.client.values import Job
from tests.unit.slurm_plugins.client.slurm_rows import Answers, Row, attempt, job, node

RELEASES = ("22.05.8", "24.11.5", "26.05.5")
A2 = pytest.mark.case("A2")
S1 = pytest.mark.case("S1")
T2 = pytest.mark.case("T2")


def jobs(*rows: Row, release: str = "24.11.5", unread: Unread | None = None) -> tuple[Job, ...]:
    return CommandClient({}, run=Answers(release, jobs=rows), unread=unread).jobs()


@A2
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("field", ["eligible", "start", "end", "deadline", "submitted"])
@pytest.mark.parametrize("far", ["604801795311497", "1298799905621897", "9223372036854775807"])
def test_a_far_time_is_none_and_no_job_is_lost(release: str, field: str, far: str) -> None:
    found = jobs(job(1), job(2, **{field: far}), job(3), release=release)
    assert [one.id for one in found] == [1, 2, 3]
    assert getattr(found[1], field) is None
    assert found[0].submitted is not None


@A2
@pytest.mark.parametrize(
    "bad",
    [
        {"eligible": "tomorrow"},
        {"id": "x"},
        {"id": "4294952826"},
        {"tres": "mem=lots"},
        {"num_cpus": "many"},
        {"time_limit": "1:2:3:4"},
        {"exit": "well"},
        {"num_nodes": "9" * 5000},
    ],
    ids=str,
)
def test_a_row_that_cannot_be_read_is_left_out_and_counted(bad: dict[str, str]) -> None:
    unread = Unread()
    assert [one.id for one in jobs(job(1), job(2, **bad), job(3), unread=unread)] == [1, 3]
    assert unread.kinds == {"job": 1}
    assert unread.example.startswith(f"job {bad.get('id', '2')}: ")


@A2
def test_what_is_logged_of_a_row_can_be_sent_and_printed() -> None:
    unread = Unread()
    jobs(job(1), job(2, id="\udcff", name="\udcff"), unread=unread)
    unread.example.encode()


@A2
def test_where_no_row_can_be_read_there_is_no_answer() -> None:
    with pytest.raises(SlurmFormatError):
        jobs(job(2, eligible="tomorrow"))
    assert jobs() == ()


@A2
def test_attempts_nodes_and_partitions_are_read_one_by_one() -> None:
    unread = Unread()
    answers = Answers(
        attempts=[attempt(1), attempt(2, end="soon"), attempt(3, id="4294952826"), attempt(4)],
        nodes=[node("n1"), node("n2", CfgTRES="cpu=?x"), node("n3", BootTime="604801795311497")],
    )
    client = CommandClient({}, run=answers, unread=unread)
    assert [one.id for one in client.accounting()] == [1, 4]
    assert [(one.name, one.booted) for one in client.nodes()] == [("n1", None), ("n3", None)]
    assert unread.kinds == {"attempt": 2, "node": 1}


@S1
@pytest.mark.parametrize("number", [65533, 65534, 65535, 65536])
def test_every_number_of_its_width_is_a_number(number: int) -> None:
    text = str(number)
    counted = ("uid", "num_nodes", "num_cpus", "num_tasks", "restarts", "priority", "switches")
    (found,) = jobs(job(number, array_task=text, array_job_id=text, **dict.fromkeys(counted, text)))
    assert found.id == found.array_job_id == found.array_task_id == number
    assert {name: getattr(found, name) for name in counted} == dict.fromkeys(counted, number)
    answers = Answers(
        attempts=[attempt(number, shown_id=text, elapsed=text, num_nodes=text, num_cpus=text, uid=text)],
        nodes=[node("n1", CPUTot=text, RealMemory=text)],
    )
    client = CommandClient({}, run=answers)
    (record,) = client.accounting()
    assert (record.id, record.elapsed, record.num_nodes, record.num_cpus, record.uid) == (number,) * 5
    assert [(one.cpus, one.memory) for one in client.nodes()] == [(number, number << 20)]


@S1
@pytest.mark.parametrize("text", ["4294967294", "4294967295"])
def test_what_a_field_cannot_hold_is_none(text: str) -> None:
    (found,) = jobs(job(7, uid=text, num_tasks=text, array_task=text, exit=text, derived_exit="-2"))
    assert (found.uid, found.num_tasks, found.array_task_id) == (None, None, None)
    assert found.exit == found.derived_exit == EXIT_ZERO


class Picky:
    """squeue or sacct that refuses a whole list for an id that it does not like, as each release does."""

    def __init__(self, bad: Sequence[int], complaint: Callable[[int], str]) -> None:
        self.bad, self.complaint = bad, complaint
        self.asked: list[list[int]] = []

    def __call__(self, argv: list[str], **options: object) -> Completed:
        chosen = next((word for word in argv if word.startswith("--jobs=")), None)
        if chosen is None:
            return Answers()(argv)
        ids = [int(text) for text in chosen[7:].split(",")]
        self.asked.append(ids)
        for number in ids:
            if number in self.bad:
                return Completed(argv[0], 1, "", self.complaint(number))
        return Answers(jobs=[job(one) for one in ids], attempts=[attempt(one) for one in ids])(argv)


COMPLAINTS = {
    "squeue": lambda number: f"squeue: error: Invalid job id: {number}\n",
    "slurmctld": lambda number: "slurm_load_jobs error: Invalid job id specified\n",
    "sacct": lambda number: (
        f"sacct: fatal: Bad job/step specified: {number}: JobID larger than acceptable range\n"
    ),
}


@T2
@pytest.mark.parametrize("who", COMPLAINTS)
@pytest.mark.parametrize("bad", [[3], [1], [9], [2, 7], list(range(1, 10))], ids=str)
def test_one_id_that_is_refused_does_not_lose_the_rest(who: str, bad: list[int]) -> None:
    slurm = Picky(bad, COMPLAINTS[who])
    client = CommandClient({}, run=slurm)
    ids = range(1, 10)
    good = [number for number in ids if number not in bad]
    assert [one.id for one in client.jobs(ids=ids)] == good
    assert [one.id for one in client.accounting(ids=ids)] == good
    assert len(slurm.asked) < 40


@T2
def test_another_refusal_is_no_empty_answer() -> None:
    slurm = Picky([3], lambda number: "squeue: error: Access/permission denied\n")
    with pytest.raises(SlurmRefused, match="permission"):
        CommandClient({}, run=slurm).jobs(ids=range(1, 10))


@T2
@pytest.mark.parametrize("number", [0, 4294952826, 4294967295, 99999999999, "4294952826_3", "0+1"])
def test_what_can_be_no_job_is_never_asked_for(number: int | str) -> None:
    slurm = Picky([], lambda number: "")
    client = CommandClient({}, run=slurm)
    assert [one.id for one in client.jobs(ids=[number, 5])] == [5]
    assert [one.id for one in client.accounting(ids=[5, number])] == [5]
    assert not client.jobs(ids=[number])
    assert not client.accounting(ids=[number])
    assert slurm.asked == [[5], [5]]
    for ask in (client.job, lambda one: client.cancel([one])):
        with pytest.raises(NoSuchJob):
            ask(number)
    for text in ("-u", "1,2", "x"):
        with pytest.raises(NoSuchJob):
            client.jobs(ids=[5, text])


@T2
def test_the_others_are_cancelled() -> None:
    cancelled: list[str] = []

    def run(argv: list[str], **options: object) -> Completed:
        cancelled.extend(argv[2:])
        return Completed("scancel", 0, "", "")

    with pytest.raises(NoSuchJob) as caught:
        CommandClient({}, run=run).cancel([4294952826, 5])
    assert (cancelled, caught.value.job_id) == (["5"], "4294952826")


@pytest.mark.case("P11")
@pytest.mark.parametrize("batch", ["0", "1", "2"])
def test_only_a_batch_job_has_output_files(batch: str) -> None:
    (found,) = jobs(job(7, batch=batch, stdout="/home/u/slurm-7.out"))
    assert (found.stdout, found.stderr) == ((None,) * 2 if batch == "0" else ("/home/u/slurm-7.out",) * 2)


@pytest.mark.case("P12")
@pytest.mark.parametrize(("text", "batch"), [("0", False), ("1", True), ("2", True), ("N/A", None)])
def test_a_batch_job_stays_one_when_its_node_has_failed(text: str, batch: bool | None) -> None:
    (found,) = jobs(job(7, batch=text))
    assert found.batch is batch


class Folding:
    """squeue as 24.11 and 26.05 have it: a task that waits to run again stands in its array's row, unless asked for."""

    def __init__(self, *apart: Row, shown: Sequence[Row]) -> None:
        self.apart, self.shown = apart, shown
        self.asked: list[str | None] = []

    def __call__(self, argv: list[str], **options: object) -> Completed:
        chosen = next((word[7:] for word in argv if word.startswith("--jobs=")), None)
        if "-O" in argv:
            self.asked.append(chosen)
        ids = [] if chosen is None else chosen.split(",")
        if any(row["id"] in ids for row in self.shown) or not ids:
            return Answers(jobs=[row for row in self.shown if not ids or row["id"] in ids])(argv)
        found = [row for row in self.apart if {row["id"], f"20_{row['array_task']}"} & set(ids)]
        if not found:
            return Completed(argv[0], 1, "", "slurm_load_jobs error: Invalid job id specified\n")
        return Answers(jobs=found)(argv)


def task(number: int, index: str, state: str, **more: str) -> Row:
    return job(number, array_job_id="20", array_task=index, state=state, start="1795236200", **more)


@pytest.mark.case("P9")
def test_a_task_that_waits_to_run_again_stands_by_itself() -> None:
    leader = task(20, "0,3-5%2", "PENDING")
    again = task(21, "0", "PENDING", restarts="1")
    slurm = Folding(again, shown=[leader, task(22, "1", "RUNNING"), task(23, "2", "RUNNING")])
    client = CommandClient({}, run=slurm)
    found = {one.shown_id: one for one in client.jobs()}
    assert slurm.asked == [None, "20_0"]
    assert (found["20"].array_tasks, found["20_0"].restarts, found["20_0"].id) == ("3-5%2", 1, 21)
    assert set(found) == {"20", "20_0", "20_1", "20_2"}
    assert [one.id for one in client.jobs(ids=[20, 21, 22])] == [20, 21, 22]
    assert [one.id for one in client.jobs(ids=[21])] == [21]
    slurm.asked.clear()
    slurm.apart = ()
    assert {one.shown_id for one in client.jobs()} == {"20", "20_1", "20_2"}, "it came and went"


@pytest.mark.case("P9")
def test_an_array_that_starts_in_order_costs_no_second_question() -> None:
    cancelled = task(24, "9", "CANCELLED")
    slurm = Folding(
        shown=[task(20, "3-5%2", "PENDING"), task(22, "1", "RUNNING"), {**cancelled, "nodes": ""}]
    )
    assert len(CommandClient({}, run=slurm).jobs()) == 3
    assert slurm.asked == [None]


@pytest.mark.case("P9")
def test_where_squeue_can_show_such_tasks_it_is_told_to() -> None:
    seen: list[str | None] = []

    def run(argv: list[str], *, env: dict[str, str], **options: object) -> Completed:
        seen.append(env.get("SQUEUE_ARRAY_UNIQUE"))
        return Answers()(argv)

    CommandClient({}, run=run).jobs()
    assert set(seen) == {"1"}
