"""`gsub resubmit`: what is changed about a job before it is submitted again, and that it is the same job else."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from getpass import getuser
from pathlib import Path
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
from site_configs.devcluster import Cluster
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


# --- on a real Slurm --------------------------------------------------------------------------------------------------

FAILS = """\
#!/bin/bash
#SBATCH -J 'my job' --comment="it's" -o %x.out
env | grep ^MINE; printf '<%s>' "$@"; echo
pwd
"""
FAILS += "echo MemoryError >&2; python3 -c 'raise MemoryError'\n"


@pytest.fixture
def folder(clean: Cluster, user: str | None) -> Path:
    home = clean.home(user) / "again here"
    clean.run(["sh", "-ec", f"rm -rf '{home}'; mkdir -p '{home}'"], user=user, check=True)
    return home


@pytest.fixture
def run(clean: Cluster, user: str | None, folder: Path) -> Callable[..., CompletedProcess[str]]:
    def ran(*words: str, as_: str | None = user, **more: object) -> CompletedProcess[str]:
        return clean.run(list(words), user=as_, **({"cwd": folder, "timeout": 120} | more))  # type: ignore[arg-type]

    return ran


@pytest.fixture
def write(run: Callable[..., CompletedProcess[str]]) -> Callable[[str, str], None]:
    def wrote(name: str, text: str) -> None:
        assert run("sh", "-c", 'cat >"$1"', "sh", name, input=text).returncode == 0

    return wrote


def failed(run: Callable[..., CompletedProcess[str]], *words: str, **more: object) -> str:
    """Submit with plain sbatch, wait for its end, and for accounting to have heard of it."""
    done = run("sbatch", "--parsable", "--wait", *words, **more)
    job = done.stdout.split()[0]
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        states = run("sacct", "-X", "-n", "-P", "-j", job, "-o", "State,End,SubmitLine").stdout.splitlines()
        states = [one for one in states if "|" in one]
        if states and all(
            not one.startswith(("RUNNING", "PENDING")) and "|Unknown|" not in one for one in states
        ):
            return job
        time.sleep(0.3)
    raise AssertionError(f"accounting has not heard of the end of job {job}: {states}")


def submitted(done: CompletedProcess[str]) -> str:
    found = re.search(r"Submitted batch job (\d+)", done.stdout)
    assert found, done.stdout + done.stderr
    return found[1]


def wait(run: Callable[..., CompletedProcess[str]], job: str) -> None:
    deadline = time.monotonic() + 90
    while run("squeue", "-h", "-j", job, "-t", "PENDING,RUNNING,COMPLETING", "-o", "%i").stdout.strip():
        assert time.monotonic() < deadline
        time.sleep(0.3)


def test_a_failed_job_runs_again_as_it_was_with_more_memory(run, write) -> None:
    write("train it.sh", FAILS)
    job = failed(
        run, "--mem=1000", "train it.sh", "an argument", env={"MINE": "s3cret and\nMINE_2=more", "OTHER": "1"}
    )
    write("train it.sh", "#!/bin/sh\n# changed since\n")
    shown = run("gsub", "resubmit", "--dry-run", job)
    assert shown.returncode == 0, shown.stderr
    assert "sbatch --mem=1536M 'train it.sh' an argument" in shown.stdout
    assert "-sbatch --parsable --wait --mem=1000 'train it.sh' an argument" in shown.stdout
    assert "not sure   Slurm keeps no quotes" in shown.stdout and "s3cret" not in shown.stdout
    refused = run("gsub", "resubmit", job)
    assert refused.returncode == 1 and "is not certain; nothing was submitted" in refused.stderr
    again = run("gsub", "resubmit", job, "--", "--mem=1000", "train it.sh", "an argument")
    assert "Submitted batch job" in again.stdout, "the file as it is now, as its user says"
    write("train it.sh", FAILS)
    again = run("gsub", "resubmit", "--as-read", job)
    new = submitted(again)
    wait(run, new)
    out = run("cat", "my job.out").stdout
    assert out.startswith("MINE=s3cret and\nMINE_2=more\n<an><argument>\n") and "again here\n" in out
    kept = run("scontrol", "show", "job", new).stdout
    for field in ("MinMemoryNode=1.50G", "JobName=my job", "Comment=it's"):
        assert field in kept, kept
    assert "s3cret" not in again.stdout + again.stderr
    facts = json.loads(run("gsub", "resubmit", "--dry-run", "--json", job).stdout)
    assert facts["changes"][0] | {"why": ""} == {"option": "mem", "value": "1536M", "was": "1000", "why": ""}
    assert facts["submitted"] is None and facts["environment"] == "job" and facts["not_sure"]


def test_what_gsub_submitted_it_submits_again_word_by_word(run, write) -> None:
    write("two words.sh", FAILS)
    words = ("--mem=1000", "-o", "my job.out", "two words.sh", "one  arg", "", "it's three")
    known = {"XDG_STATE_HOME": run("pwd").stdout.strip() + "/state"}
    job = submitted(run("gsub", "--wait", *words, env=known))
    assert run("stat", "-c", "%a", "state/gsub/submissions.jsonl").stdout == "600\n"
    doubted = json.loads(run("gsub", "resubmit", "--dry-run", "--anyway", "--json", job).stdout)
    assert doubted["not_sure"], "only who keeps the words knows them"
    again = run("gsub", "resubmit", "--json", job, env=known)
    facts = json.loads(again.stdout)
    assert not facts["not_sure"]
    assert facts["command"] == ["sbatch", *words[1:3], "--mem=1536M", *words[3:]]
    wait(run, str(facts["submitted"]))
    assert "<one  arg><><it's three>\n" in run("cat", "my job.out").stdout
    once_more = json.loads(
        run("gsub", "resubmit", "--dry-run", "--anyway", "--json", str(facts["submitted"]), env=known).stdout
    )
    assert once_more["was"] == facts["command"], "it keeps those of its own submissions too"


def test_the_script_as_it_ran_where_the_file_has_changed_or_gone(run, write) -> None:
    write("t.sh", "#!/bin/bash\n#SBATCH -o kept.%j.out\necho as it ran; exit 3\n")
    job = failed(run, "-J", "named", "t.sh", "one")
    write("t.sh", "#!/bin/bash\n#SBATCH -o now.%j.out\necho as it is now; exit 3\n")
    again = run("gsub", "resubmit", job)
    new = submitted(again)
    assert "has changed since: the script is the copy that Slurm keeps" in again.stderr
    wait(run, new)
    assert run("cat", f"kept.{new}.out").stdout == "as it ran\n"
    new = submitted(run("gsub", "resubmit", "--current-script", job))
    wait(run, new)
    assert run("cat", f"now.{new}.out").stdout == "as it is now\n"
    run("rm", "t.sh")
    assert "t.sh is gone" in run("gsub", "resubmit", "--dry-run", "--as-read", job).stdout
    assert "is no file" in run("gsub", "resubmit", "--current-script", "--as-read", job).stderr


def test_only_the_failed_tasks_of_an_array_with_wrap(run) -> None:
    command = 'echo "task  $SLURM_ARRAY_TASK_ID"; exit $((SLURM_ARRAY_TASK_ID % 3 == 0))'
    job = failed(run, "--array=1-7%2", "--wrap", command, "-o", "%a.out")
    again = run("gsub", "resubmit", job)
    new = submitted(again)
    assert f"sbatch --wrap '{command}' -o %a.out --array=3,6%2" in again.stderr
    wait(run, new)
    tasks = run("squeue", "-h", "-t", "all", "-j", new, "-r", "-o", "%K %T").stdout.split("\n")
    assert sorted(tasks) == ["", "3 FAILED", "6 FAILED"]
    one = run("gsub", "resubmit", "--dry-run", f"{job}_6")
    assert "--array=6%2" in one.stdout
    well = run("gsub", "resubmit", f"{job}_5")
    assert well.returncode == 1 and "ended well" in well.stderr


def test_a_script_from_standard_input_runs_again(run) -> None:
    script = "#!/bin/sh\n#SBATCH -n 2 -o piped.out\necho \"it's `hostname`\"; printf '\\033[31m'\nexit 5"
    job = failed(run, input=script)
    again = run("gsub", "resubmit", "--json", job)
    facts = json.loads(again.stdout)
    node = run("squeue", "-h", "-t", "all", "-j", job, "-o", "%N").stdout.strip()
    assert facts["script"] == "stdin" and facts["command"] == ["sbatch", f"--exclude={node}"]
    new = str(facts["submitted"])
    assert run("scontrol", "write", "batch_script", new, "-").stdout == script
    wait(run, new)
    assert run("cat", "piped.out").stdout.startswith("it's ")


def test_a_reason_that_stays_is_refused_unless_anyway(run, write) -> None:
    write("imports.sh", "#!/bin/bash\npython3 -c 'import not_there_at_all'\n")
    job = failed(run, "imports.sh")
    refused = run("gsub", "resubmit", job)
    assert refused.returncode == 1 and refused.stdout == ""
    assert f"job {job} is not submitted again: import_error" in refused.stderr
    assert "another attempt would end the same way" in refused.stderr and "--anyway" in refused.stderr
    told = json.loads(run("gsub", "resubmit", "--json", job).stdout)
    assert told["exit_code"] == 1 and "import_error" in told["error"]["what"]
    assert submitted(run("gsub", "resubmit", "--anyway", job))


def test_names_with_newlines_and_quotes_stay_what_they_are(run, write) -> None:
    name = 'it\'s "a"\n$(touch /tmp/never) `b` \\ ;&|'
    write("-t\n'x'.sh", "#!/bin/bash\nprintf '[%s]' \"$@\"; exit 4\n")
    job = failed(run, "-J", name, "--comment", name, "-o", "odd.out", "./-t\n'x'.sh", "$(id)`id`;\n'\"")
    shown = run("gsub", "resubmit", "--dry-run", job)
    assert shown.returncode == 0, shown.stderr
    again = run("gsub", "resubmit", "--as-read", job)
    new = submitted(again)
    wait(run, new)
    assert run("cat", "odd.out").stdout == "[$(id)`id`;\n'\"]"
    was, now = (run("squeue", "-h", "-t", "all", "-j", one, "-o", "%j|%k").stdout for one in (job, new))
    assert was == now and "touch" in was
    assert not Path("/tmp/never").exists()


def test_it_is_submitted_where_it_was_with_its_own_folder(run, write) -> None:
    run("mkdir", "-p", "work")
    write("d.sh", "#!/bin/bash\npwd; exit 3\n")
    job = failed(run, "-D", "work", "-o", "where.out", "d.sh")
    new = submitted(run("gsub", "resubmit", job, cwd="/"))
    wait(run, new)
    assert run("cat", "work/where.out").stdout.rstrip().endswith("again here/work")


def test_what_has_held_it_back_does_not_again(run, write) -> None:
    write("t.sh", "#!/bin/bash\n#SBATCH --begin=now+1\nexit 3\n")
    first = failed(run, "--wrap", "true")
    job = failed(run, "-d", f"afterany:{first}", "-J", "later", "t.sh")
    shown = run("gsub", "resubmit", "--dry-run", job).stdout
    assert f"left out: --dependency=afterany:{first} (it has been met once)" in shown
    assert "--begin=now t.sh" in shown


def test_another_users_job_is_refused(cluster: Cluster, run, user: str | None) -> None:
    others = [name for name in cluster.users if name != user]
    if not others:
        pytest.skip("one user only")
    job = failed(run, "--wrap", "echo private; exit 3")
    for command in ("resubmit", "fix"):
        for words in ([job], [job, "--anyway"] if command == "resubmit" else [job, "--yes"]):
            refused = run("gsub", command, *words, as_=others[0], cwd="/")
            assert refused.returncode == 1 and refused.stdout == ""
            assert f"job {job} is another user's" in refused.stderr and "private" not in refused.stderr
    root = run("gsub", "resubmit", job, as_=None, cwd="/")
    assert f"job {job} is another user's" in root.stderr, "not even by root, as whom it would run"


def test_what_is_no_batch_job_of_ones_own_is_told(run) -> None:
    gone = run("gsub", "resubmit", "4000000")
    assert gone.returncode == 1 and "no job 4000000" in gone.stderr
    assert run("gsub", "resubmit", "x").returncode == 2
    assert "heterogeneous" in run("gsub", "resubmit", failed(run, "-n1", "--wrap=exit 3", ":", "-n1")).stderr
    held = run("sbatch", "--parsable", "-H", "--wrap=true").stdout.strip()
    assert "waits" in run("gsub", "resubmit", "--anyway", held).stderr
