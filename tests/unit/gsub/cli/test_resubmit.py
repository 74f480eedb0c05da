"""`gsub resubmit`: what is changed about a job before it is submitted again, and that it is the same job else."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from getpass import getuser
from subprocess import CompletedProcess

import pytest

from gsub.commands.resubmit import _not_ahead, _not_twice
from gsub.errors import UserError
from gsub.resubmission.kept import Kept, kept_of
from gsub.resubmission.looking import Looked, failed_of, look, weigh
from gsub.resubmission.original import Original, parts_of
from gsub.resubmission.prepared import _record
from gsub.resubmission.proposal import Proposal, Weighed, propose
from gsub.resubmission.submission import environment
from gsub.resubmission.submit_line import read_words
from gsub.resubmission.view import facts, lines
from gsub.sbatch_options import Table
from gsub.script import Asked
from gsub.why_view import Known
from profiler.answers import JobSummary, Verdict
from profiler.findings import Finding
from profiler.resubmissions import Resubmission
from site_configs.site_model import Resubmit
from slurm_plugins.client.errors import NoSuchJob, SlurmRefused
from slurm_plugins.client.states import ExitStatus
from slurm_plugins.client.values import AccountingRecord, Job, JobState

TABLE = Table.of_all()


def a_job(state: JobState = JobState.FAILED, **more: object) -> Job:
    known: dict[str, object] = {"id": 7, "name": "train", "user": "ada", "uid": os.geteuid(), "state": state}
    return Job(**(known | more))  # type: ignore[arg-type]


def original(words: str, *more: Asked, job: Job | None = None, kept: Kept | None = None) -> Original:
    given = read_words(tuple(words.split()), TABLE)
    asked = (*(Asked(one.name, one.value, "command line") for one in given.settings), *more)
    kept = Kept("#!/bin/sh\n", "Slurm", {}, "/home/ada") if kept is None else kept
    part = job or a_job()
    return Original(
        "7", part, f"sbatch {words}", given, TABLE, kept, "/home/ada", "file", "#!/bin/sh\n", asked
    )


def row(**more: object) -> Resubmission:
    known: dict[str, object] = {
        "cluster": "lab", "job_id": 7, "restarts": 0, "reason": "cpu_oom", "action": "once", "state": "planned",
        "at": 0.0, "why": "It is tried again (1 of 3).", "nth": 1, "budget": 3,
    }  # fmt: skip
    return Resubmission(**(known | more))  # type: ignore[arg-type]


def line(of: Original, *rows: Resubmission, tasks: tuple[int, ...] = ()) -> str:
    weighed = [Weighed(of.job, Finding("cpu_oom"), one, tasks) for one in rows]
    return " ".join(propose(of, weighed).reading.words)


@pytest.mark.parametrize(
    ("words", "more", "expected"),
    [
        ("--mem=32G t.sh a", {"memory_mib": 49152, "memory_per": "node"}, "--mem=48G t.sh a"),
        ("--mem-per-cpu 1G t.sh", {"memory_mib": 1536, "memory_per": "cpu"}, "--mem-per-cpu=1536M t.sh"),
        ("t.sh", {"memory_mib": 1536, "memory_per": "cpu"}, "--mem-per-cpu=1536M t.sh"),
        ("--mem-per-gpu 1G t.sh", {"memory_mib": 4096, "memory_per": "node"}, "--mem-per-gpu=2G t.sh"),
        ("t.sh", {"avoid": ("n17",)}, "--exclude=n17 t.sh"),
        ("-x n[1-2] t.sh", {"avoid": ("n3",)}, "--exclude=n[1-3] t.sh"),
        ("-x ./nodes t.sh", {"avoid": ("n3",)}, "-x ./nodes t.sh"),
        ("-w n3 t.sh", {"avoid": ("n3",)}, "-w n3 t.sh"),
        ("t.sh", {"delay_s": 90.0}, "--begin=now+90 t.sh"),
        ("-b now+1hour t.sh", {"delay_s": 90.0}, "--begin=now+90 t.sh"),
        ("-b now+1hour -d afterok:3 -H --wait --parsable -Q t.sh", {}, "t.sh"),
        ("-d singleton t.sh", {}, "-d singleton t.sh"),
    ],
)
def test_the_request_is_changed_as_the_table_says(words: str, more: dict[str, object], expected: str) -> None:
    part = a_job(gpus=4, num_nodes=2)
    assert line(original(words, job=part), row(**more)) == expected


def test_what_the_script_says_is_merged_and_taken_back() -> None:
    of = original(
        "t.sh",
        Asked("exclude", "n1", "script line 2"),
        Asked("mem-per-cpu", "1G", "script line 3"),
        Asked("dependency", "afterok:3", "script line 4"),
        Asked("begin", "now+1hour", "SBATCH_BEGIN"),
        Asked("hold", None, "script line 5"),
    )
    found = propose(of, [Weighed(of.job, None, row(avoid=("n2",), memory_mib=2048, memory_per="node"))])
    assert set(found.reading.options) == {
        "--exclude=n[1-2]",
        "--mem-per-cpu=2G",
        "--dependency=",
        "--begin=now",
    }
    assert any("will be held" in note for note in found.notes)


def test_only_the_tasks_that_failed_with_the_most_that_any_needs() -> None:
    of = original("--array=0-99%5 t.sh", job=a_job(array_job_id=7, array_task_id=3))
    rows = [row(memory_mib=2048, memory_per="node"), row(memory_mib=4096, memory_per="node", delay_s=60.0)]
    weighed = [Weighed(of.job, None, rows[0], (3, 4, 5)), Weighed(of.job, None, rows[1], (9,))]
    assert propose(of, weighed).reading.options == ("--array=3-5,9%5", "--mem=4G", "--begin=now+60")


def test_the_environment_is_the_jobs_but_for_which_cluster_it_is() -> None:
    now = {"SLURM_CONF": "/now", "A": "now", "ONLY": "now"}
    assert environment(Kept(environment={"A": "then", "SLURM_CONF": "/then"}), now) == {
        "A": "then",
        "SLURM_CONF": "/now",
    }
    assert environment(Kept(), now) == now


def test_nothing_of_the_environment_is_shown() -> None:
    secret = {"HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345", "PLAIN": "not for others"}
    of = original(
        "--export=ALL,API_KEY=abcdef0123456789 t.sh", kept=Kept("#!/bin/sh\n", "Slurm", secret, "/home/ada")
    )
    weighed = [Weighed(of.job, Finding("no_signature"), row())]
    proposal = propose(of, weighed)
    shown = "\n".join(lines(of, weighed, proposal)) + json.dumps(facts(of, weighed, proposal, submitted=None))
    assert "the job's own 2" in shown
    for value in (*secret.values(), "abcdef0123456789", "HF_TOKEN"):
        assert value not in shown


def test_a_secret_in_a_word_of_its_own_is_not_shown() -> None:
    words = "train.sh --password hunter2 --api-key abcd1234efgh --token=tr0ub4dor --epochs 5"
    found = original(words)
    shown = "\n".join(lines(found, (), Proposal(found.given)))
    told = json.dumps(facts(found, (), Proposal(found.given), submitted=None))
    for secret in ("hunter2", "abcd1234efgh", "tr0ub4dor"):
        assert secret not in shown and secret not in told
    assert "--password '****' --api-key '****' '--token=****' --epochs 5" in shown


def test_what_has_not_failed_is_not_tried_again() -> None:
    with pytest.raises(UserError, match="has not ended"):
        failed_of("7", [a_job(JobState.RUNNING)], anyway=True)
    with pytest.raises(UserError, match="waits"):
        failed_of("7", [a_job(JobState.PENDING)], anyway=True)
    with pytest.raises(UserError, match="ended well"):
        failed_of("7", [a_job(JobState.COMPLETED)], anyway=False)
    assert len(failed_of("7", [a_job(JobState.COMPLETED)], anyway=True)) == 1
    mixed = [a_job(JobState.COMPLETED), a_job(JobState.RUNNING), a_job(JobState.TIMEOUT)]
    assert [one.state for one in failed_of("7", mixed, anyway=True)] == [JobState.TIMEOUT]


def test_of_many_tasks_that_ended_alike_few_are_looked_at() -> None:
    tasks = [
        a_job(id=100 + n, array_job_id=7, array_task_id=n, exit=ExitStatus(1 + n % 2, 0)) for n in range(200)
    ]
    asked: list[str] = []

    def known(job: str, _client: object, now: datetime) -> Known:
        asked.append(job)
        return Known(JobSummary("lab", 7), now)

    found = look(tasks, None, known)  # type: ignore[arg-type]
    assert len(asked) == 8
    assert sorted(task for one in found for task in one.tasks) == list(range(200))
    assert all(one.part.exit.code == 1 + task % 2 for one in found for task in one.tasks)


def test_what_gsub_itself_runs_again_is_not_submitted_besides() -> None:
    now = datetime.now(timezone.utc)

    def seen(*again: Resubmission) -> Looked:
        return Looked(a_job(), Known(JobSummary("lab", 7, restarts=1), now, again=again))

    for ours in (row(restarts=1), row(restarts=1, state="requeued")):
        with pytest.raises(UserError, match="about to run job 7 again by itself"):
            _not_twice("7", [seen(row(restarts=0, state="done"), ours)])
    _not_twice("7", [seen(row(restarts=0)), seen(row(restarts=1, state="stopped")), seen()])


def test_a_job_that_has_only_just_failed_is_left_to_gsub_where_it_may_run_it_again() -> None:
    now = datetime.now(timezone.utc)

    def refused(known: Known | None = None, *, after: float = 5.0, **more: object) -> bool:
        part = replace(a_job(end=now), **more)  # type: ignore[arg-type]
        known = known or Known(JobSummary("lab", 7, restarts=1), now)
        try:
            _not_ahead("7", [Looked(part, known)], [Weighed(part, None, row())], now.timestamp() + after)
        except UserError as error:
            assert "only just failed" in str(error)
            return True
        return False

    assert refused() and refused(requeue=True, comment="gsub:checkpoint")
    assert not refused(after=90.0) and not refused(after=-90.0)
    assert not refused(requeue=False) and not refused(comment="gsub:resubmit=off")
    of = JobSummary("lab", 7, restarts=1)
    assert not refused(Known(of, now, again=(row(restarts=1, state="stopped"),)))
    assert not refused(Known(of, now, troubles=("the service: nobody there",)))


def test_what_the_service_saw_of_earlier_attempts_counts() -> None:
    told = row(restarts=1, state="stopped", stop="same_evidence", why="It is not the nodes.")
    verdict = Verdict("lab", 7, 1, Finding("gpu_hardware", 0.9, "explicit"), "root")
    known = Known(
        JobSummary("lab", 7, restarts=1), datetime.now(timezone.utc), verdict=verdict, again=(told,)
    )

    class Client:
        def nodes(self) -> tuple[object, ...]:
            return ()

    found = weigh([Looked(a_job(), known)], original("t.sh"), Client(), Resubmit())  # type: ignore[arg-type]
    assert found[0].row == told and not found[0].again
    alone = weigh([Looked(a_job(), replace(known, again=()))], original("t.sh"), Client(), Resubmit())  # type: ignore[arg-type]
    assert alone[0].again


def test_without_accounting_the_command_line_is_asked_for() -> None:
    class Away:
        def accounting(self, **_: object) -> tuple[object, ...]:
            raise SlurmRefused("sacct", "Slurm accounting storage is disabled")

    ended = a_job(end=datetime.now(timezone.utc))
    assert _record(ended, Away()) is None  # type: ignore[arg-type]


# --- tasks that were cancelled before they started ---


@dataclass
class Slurm:
    """Answers as squeue and sacct do: sacct finds what never started by the array's number alone."""

    live: Sequence[Job] = ()
    rows: Sequence[AccountingRecord] = ()

    def jobs(self, *, ids: Sequence[str]) -> Sequence[Job]:
        return [one for one in self.live if ids[0] in (one.shown_id, str(one.array_job_id))]

    def accounting(self, *, ids: Sequence[str], duplicates: bool) -> Sequence[AccountingRecord]:
        return [one for one in self.rows if ids[0] in (one.shown_id, str(one.array_job_id))]


def a_row(state: JobState = JobState.CANCELLED, **more: object) -> AccountingRecord:
    known: dict[str, object] = {
        "id": 40, "name": "train", "user": getuser(), "state": state, "array_job_id": 40,
        "submit_line": "sbatch --array=1-11:2%1 t.sh",
    }  # fmt: skip
    return AccountingRecord(**(known | more))  # type: ignore[arg-type]


REST = a_row(array_tasks="5-11:2%1")
STARTED = [
    a_row(JobState.COMPLETED, id=41, array_task_id=1),
    a_row(JobState.FAILED, id=42, array_task_id=3, exit=ExitStatus(1, 0)),
]
AS_SUCH = a_job(JobState.CANCELLED, id=40, array_job_id=40)
LIVE_REST = replace(AS_SUCH, array_tasks="5-11:2%1")


def looked_at(slurm: Slurm, job: str) -> list[tuple[str, tuple[int, ...]]]:
    parts = failed_of(job, parts_of(job, slurm), anyway=True)  # type: ignore[arg-type]
    found = look(parts, slurm, lambda _job, _client, now: Known(JobSummary("lab", 40), now))  # type: ignore[arg-type]
    return [(one.part.shown_id, one.tasks) for one in found]


@pytest.mark.parametrize("live", [[], [AS_SUCH], [LIVE_REST]])
def test_tasks_that_never_started_are_submitted_again_with_the_others(live: list[Job]) -> None:
    found = looked_at(Slurm(live, [REST, *STARTED]), "40")
    assert found[0] == ("40_3", (3,)), "what has started goes first"
    assert sorted(task for _, tasks in found for task in tasks) == [3, 5, 7, 9, 11]
    of = original("--array=1-11:2%1 t.sh", job=a_job(array_job_id=40, array_task_id=3))
    weighed = [Weighed(of.job, None, None, tasks) for _, tasks in found]
    assert propose(of, weighed).reading.options == ("--array=3,5,7,9,11%1",)


def test_an_array_of_which_nothing_has_started_is_submitted_by_its_tasks() -> None:
    assert [tasks for _, tasks in looked_at(Slurm((), [REST]), "40")] == [(5,), (7,), (9,), (11,)]


def test_what_waits_of_an_array_is_not_submitted_besides() -> None:
    waits = replace(LIVE_REST, state=JobState.PENDING)
    assert looked_at(Slurm([waits], [replace(REST, state=JobState.PENDING), *STARTED]), "40") == [
        ("40_3", (3,))
    ]


def test_one_task_that_never_started_has_the_command_line_of_its_array() -> None:
    slurm = Slurm((), [REST, *STARTED])
    assert looked_at(slurm, "40_9") == [("40_9", (9,))]
    (part,) = parts_of("40_9", slurm)  # type: ignore[arg-type]
    record = _record(part, slurm)  # type: ignore[arg-type]
    assert record is not None and record.submit_line == "sbatch --array=1-11:2%1 t.sh"
    with pytest.raises(NoSuchJob, match="know nothing of task 4 of array 40"):
        parts_of("40_4", slurm)  # type: ignore[arg-type]


def test_a_component_that_is_not_there_is_not_another_job() -> None:
    class Any:
        def jobs(self, **_: object) -> list[Job]:
            return [a_job()]

        def accounting(self, **_: object) -> list[AccountingRecord]:
            return []

    with pytest.raises(NoSuchJob):
        parts_of("7+0", Any())  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["\n", ""], ids=["22.05", "26.05"])
def test_what_is_kept_of_a_task_that_never_started_is_its_arrays(end: str) -> None:
    rule = "-" * 80

    class Sacct:
        def read(self, argv: list[str], *, daemon: str = "slurmctld") -> CompletedProcess[str]:
            heads = {"--batch-script": "Batch Script for {}", "--env-vars": "Environment used for {}"}
            text = {
                "--batch-script": f"#!/bin/sh\ntrue\n{end}",
                "--env-vars": f"A=1\nSLURM_SUBMIT_DIR=/home/ada\n{end}",
            }
            said = "".join(
                f"{heads[argv[-1]].format(task)}\n{rule}\n{text[argv[-1]]}"
                for task in ("40_1", "40_3", "40_[5-11:2%1]")
                if argv[:2] == ["sacct", "--jobs=40"]
            )
            return CompletedProcess(argv, 0, said, "")

    kept = kept_of("40_9", Sacct(), {})  # type: ignore[arg-type]
    assert (kept.script, kept.by, kept.submit_dir) == ("#!/bin/sh\ntrue\n", "accounting", "/home/ada")
    assert kept.environment == {"A": "1"}
