"""`gsub SCRIPT`, watch, status and cancel on a real Slurm, in a pipe and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gsub import __version__
from site_configs.devcluster import Cluster
from tests.waiting import wait_until

SCRIPT = """\
#!/bin/bash
#SBATCH -J [red]job
echo "begin $*"
while [ -e wait ]; do sleep 0.2; done
echo end
exit "${1:-0}"
"""
ENVIRONMENT = (
    "#!/bin/sh\nenv | grep -Ev '^(SLURM_|_=|TMPDIR|SLURMD_)' | sort\numask\nulimit -n\nprintf '<%s>' \"$@\"\n"
)


@pytest.fixture
def folder(clean: Cluster, user: str | None) -> Path:
    home = clean.home(user) / "commands"
    clean.run(["sh", "-ec", f"rm -rf {home}; mkdir -p {home}"], user=user, check=True)
    for name, text in (("job.sh", SCRIPT), ("env.sh", ENVIRONMENT)):
        clean.run(["sh", "-c", f"cat >{home / name}"], user=user, input=text, check=True)
    return home


@pytest.fixture
def gsub(clean: Cluster, user: str | None, folder: Path):
    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return clean.run(["gsub", *words], user=user, cwd=folder, env=env, timeout=90)

    return run


class Terminal:
    """`gsub` on a terminal of its own."""

    def __init__(self, cluster: Cluster, user: str | None, folder: Path, *words: str, **env: str) -> None:
        self.master, slave = pty.openpty()
        self.text = ""
        self.process = cluster.popen(
            ["gsub", *words],
            user=user,
            cwd=folder,
            env={"TERM": "xterm", "COLUMNS": "120", **env},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # a test run in the background (nohup, &) ignores ^C, and its children would too
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(slave)

    def until(self, pattern: str, seconds: float = 40) -> str:
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            left = deadline - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.text!r}"
            if select.select([self.master], [], [], left)[0] and not self._read():
                break
        assert re.search(pattern, self.text), self.text
        return self.text

    def end(self, seconds: float = 40) -> int:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.2)[0] and not self._read():
                break
        code = self.process.wait(timeout=10)
        os.close(self.master)
        return code

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def _read(self) -> bool:
        try:
            chunk = os.read(self.master, 65536)
        except OSError:  # Linux: the other side is closed
            return False
        self.text += chunk.decode(errors="replace").replace("\r\n", "\n")
        return bool(chunk)


def job_of(text: str) -> str:
    match = re.search(r"Submitted batch job (\d+)", text)
    assert match, text
    return match[1]


# ---- submitting -----------------------------------------------------------------------------------------------


@pytest.mark.all_releases
def test_the_jobs_environment_is_that_of_sbatch(clean: Cluster, user: str | None, folder: Path) -> None:
    """In the C locale too, where Python would set a variable for its children. Two variables are gsub's own: the names
    of the workload, without which a decision would not know the script's arguments, and where its steps are told.
    """
    outputs = []
    for program in ("sbatch", "gsub"):
        clean.run(
            [program, "--wait", "-o", f"{program}.out", "env.sh", "a b", "", "--json"],
            user=user,
            cwd=folder,
            env={"LC_ALL": "", "LANG": "C", "SBATCH_JOB_NAME": "e"},
            check=True,
        )
        outputs.append(clean.run(["cat", f"{program}.out"], user=user, cwd=folder, check=True).stdout)
    told = [line for line in outputs[1].splitlines(keepends=True) if line.startswith("GSUB_WORKLOAD=")]
    assert len(told) == 1 and re.fullmatch(r"GSUB_WORKLOAD=\w+:[0-9a-f]{32}(,\w+:[0-9a-f]{32})*\n", told[0])
    (runs,) = [line for line in outputs[1].splitlines(keepends=True) if line.startswith("GSUB_RUNS=/")]
    assert outputs[0] == outputs[1].replace(told[0], "").replace(runs, "")
    assert "<a b><><--json>" in outputs[0] and "LANG=C" in outputs[0] and "LC_CTYPE" not in outputs[0]


@pytest.mark.all_releases
def test_wait_returns_the_jobs_exit_code(gsub):
    assert gsub("--wait", "job.sh", "7").returncode == 7
    quiet = gsub("--wait", "--quiet", "job.sh", "7")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (7, "", "")


def test_json(clean: Cluster, gsub) -> None:
    done = gsub("--json", "-HQ", "-N2", "job.sh", "--json", "x y")
    facts = json.loads(done.stdout)
    assert facts == {
        "job_id": facts["job_id"],
        "cluster": None,
        "command": ["sbatch", "-HQ", "-N2", "job.sh", "--json", "x y"],
        "script": "job.sh",
        "args": ["--json", "x y"],
        "messages": [],
        "exit_code": 0,
    }
    assert clean.run(["squeue", "-h", "-o", "%i %D"]).stdout.split() == [str(facts["job_id"]), "2"]
    waited = json.loads(gsub("--json", "--wait", "job.sh", "3").stdout)
    assert waited["exit_code"] == 3


@pytest.mark.all_releases
def test_script_on_standard_input(clean: Cluster, user: str | None, folder: Path) -> None:
    done = clean.run(
        ["gsub", "--json", "-H"], user=user, cwd=folder, input="#!/bin/sh\n#SBATCH -J piped\n:\n"
    )
    assert json.loads(done.stdout)["script"] is None
    assert clean.run(["squeue", "-h", "-o", "%j"]).stdout == "piped\n"


def test_dry_run_submits_nothing(clean: Cluster, user: str | None, folder: Path, gsub) -> None:
    before = clean.run(["squeue", "-h", "-t", "all", "-o", "%i"]).stdout
    done = gsub("--dry-run", "-N2", "-G4", "job.sh", "1", SBATCH_TIMELIMIT="5")
    *lines, estimate, note = done.stdout.splitlines()
    assert lines == [
        "Nothing was submitted (--dry-run).",
        "  command   sbatch -N2 -G4 job.sh 1",
        "  script    job.sh",
        "  job name  [red]job",
        "  asks for",
        "    gpus      4  (command line)",
        "    job-name  [red]job  (script line 2)",
        "    nodes     2  (command line)",
        "    time      5  (SBATCH_TIMELIMIT)",
    ]
    assert re.match(r"sbatch --test-only: Job \d+ to start at .* using \d+ processors on ", estimate)
    assert "lower bound" in note
    facts = json.loads(gsub("--dry-run", "--json", "-N1", ":", "-N2", "job.sh").stdout)
    assert [component["nodes"]["value"] for component in facts["components"]] == ["1", "2"]
    piped = clean.run(["gsub", "--dry-run", "-Q"], user=user, cwd=folder, input="#!/bin/sh\n#SBATCH -N3\n:\n")
    assert "nodes  3  (script line 2)" in piped.stdout and "to start at" in piped.stdout
    assert clean.run(["squeue", "-h", "-t", "all", "-o", "%i"]).stdout == before


def test_a_word_is_a_command_only_if_no_such_file_exists(
    clean: Cluster, user: str | None, folder: Path, gsub
):
    assert gsub("status").stdout == ""
    clean.run(["cp", "job.sh", "status"], user=user, cwd=folder, check=True)
    assert "Submitted batch job" in gsub("status").stdout


def test_help_and_version(gsub):
    text = gsub("--help").stdout
    assert text.startswith("Usage: gsub [options] SCRIPT [ARGS]")
    assert all(word in text for word in ("--watch", "--dry-run", "watch", "status", "cancel"))
    assert gsub("--version").stdout == f"gsub {__version__}\n"
    assert gsub("-N2", "--help").stdout.startswith("Usage: sbatch")
    assert gsub("-V").stdout.startswith("slurm")


def test_on_a_terminal_the_job_is_described(clean: Cluster, user: str | None, folder: Path) -> None:
    terminal = Terminal(clean, user, folder, "-H", "-G2", "-t", "5", "job.sh")
    assert terminal.end() == 0
    job = job_of(terminal.text)
    assert terminal.text.splitlines() == [
        f"Submitted batch job {job}",
        "  [red]job: 1 node, 2 GPUs, at most 5 min, partition gpu",
        f"  output {folder}/slurm-{job}.out; follow with: gsub watch {job}",
    ]
    parsable = Terminal(clean, user, folder, "-H", "--parsable", "job.sh")
    assert parsable.end() == 0
    assert re.fullmatch(r"\d+\n", parsable.text)


def test_a_signal_ends_gsub_as_it_ends_sbatch(clean: Cluster, user: str | None, folder: Path) -> None:
    clean.run(["touch", "wait"], user=user, cwd=folder, check=True)
    process = clean.popen(
        ["gsub", "--wait", "job.sh"], user=user, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    job = job_of(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)
    # the job itself goes on, as with sbatch
    assert clean.run(["squeue", "-h", "-o", "%i"]).stdout.strip() == job


# ---- watching -------------------------------------------------------------------------------------------------


@pytest.mark.all_releases
def test_watch_after_submission(gsub):
    done = gsub("--watch", "job.sh", "0", "all")
    assert done.returncode == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    job = job_of(lines[0])
    assert [line for line in lines if not line.startswith("job ")][1:] == ["begin 0 all", "end"]
    states = [line.split()[2] for line in lines if line.startswith(f"job {job} ")]
    assert states[-1] == "COMPLETED" and set(states) <= {"PENDING", "RUNNING", "CONFIGURING", "COMPLETED"}


def test_watch_tells_how_it_failed(gsub):
    done = gsub("--watch", "job.sh", "9")
    assert done.returncode == 1
    assert re.fullmatch(r"job \d+ FAILED after \d+ s, exit code 9", done.stdout.splitlines()[-1])


def test_watch_a_job_that_ended(gsub):
    job = json.loads(gsub("--json", "--wait", "job.sh", "5").stdout)["job_id"]
    done = gsub("watch", str(job))
    assert done.returncode == 1
    assert f"job {job} FAILED" in done.stdout and "exit code 5" in done.stdout
    assert "begin 5\nend\n" in done.stdout


@pytest.mark.all_releases
def test_watch_an_array_and_one_of_its_tasks(gsub):
    done = gsub("--watch", "-a", "1-2", "job.sh")
    job = job_of(done.stdout)
    assert done.returncode == 0
    for task in (1, 2):
        assert f"job {job}_{task} COMPLETED" in done.stdout
    one = gsub("watch", f"{job}_2")
    assert one.returncode == 0
    assert f"job {job}_2 COMPLETED" in one.stdout and f"{job}_1" not in one.stdout


def test_the_output_of_one_task_is_found_under_its_default_name(gsub):
    """squeue 22.05 shows slurm-JOBID.out where the file is slurm-ARRAY_TASK.out."""
    job = job_of(gsub("-a", "3,4", "--wrap", "sleep 1; echo this is $SLURM_ARRAY_TASK_ID; sleep 5").stdout)
    done = gsub("watch", f"{job}_3")
    assert done.returncode == 0
    assert "this is 3\n" in done.stdout and "this is 4" not in done.stdout


@pytest.mark.all_releases
def test_watch_a_heterogeneous_job(gsub):
    done = gsub("--watch", "-N1", ":", "-N2", "job.sh")
    job = job_of(done.stdout)
    assert done.returncode == 0
    assert f"job {job}+0 COMPLETED" in done.stdout and f"job {job}+1 COMPLETED" in done.stdout
    assert f"{job}+0: begin" in done.stdout


def test_watch_unknown_jobs(gsub):
    none = gsub("watch", "999999")
    assert none.returncode == 1 and "no job 999999" in none.stderr and len(none.stderr.splitlines()) <= 3
    assert gsub("watch", "--", "-1").returncode == 2
    assert gsub("watch", "1;2").returncode == 2
    assert gsub("watch").returncode == 2


def test_control_c_stops_the_watching_only(clean: Cluster, user: str | None, folder: Path) -> None:
    clean.run(["touch", "wait"], user=user, cwd=folder, check=True)
    terminal = Terminal(clean, user, folder, "--watch", "job.sh")
    terminal.until("begin")
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == 130, terminal.text
    job = job_of(terminal.text)
    assert f"Stopped watching; job {job} goes on." in terminal.text
    assert clean.run(["squeue", "-h", "-o", "%i %T"]).stdout.split() == [job, "RUNNING"]
    # and can be watched again to its end
    again = Terminal(clean, user, folder, "watch", job)
    again.until("RUNNING")
    clean.run(["rm", "wait"], user=user, cwd=folder, check=True)
    again.until("COMPLETED")
    assert again.end() == 0


def test_watching_outlives_a_restart_of_the_controller(
    clean: Cluster, user: str | None, folder: Path
) -> None:
    clean.run(["touch", "wait"], user=user, cwd=folder, check=True)
    terminal = Terminal(clean, user, folder, "--watch", "job.sh")
    terminal.until("begin")
    clean.stop("slurmctld")
    try:
        terminal.until("controller does not answer", 90)
    finally:
        clean.start("slurmctld")
    clean.run(["rm", "wait"], user=user, cwd=folder, check=True)
    terminal.until("COMPLETED")
    assert terminal.end() == 0


@pytest.mark.all_releases
def test_a_requeued_job_is_watched_on(clean: Cluster, user: str | None, folder: Path) -> None:
    clean.run(["touch", "wait"], user=user, cwd=folder, check=True)
    terminal = Terminal(clean, user, folder, "--watch", "job.sh", "0", "attempt")
    job = job_of(terminal.until("begin"))
    clean.run(["scontrol", "requeue", job], user=user, cwd=folder, check=True)
    terminal.until(r"PENDING.* \(restart 1\)")
    clean.run(["rm", "wait"], user=user, cwd=folder, check=True)
    # an operator's hand, so that the test need not sit out Slurm's requeue delay
    clean.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)
    terminal.until("COMPLETED", 60)
    assert terminal.end() == 0
    assert terminal.text.count("begin 0 attempt") == 2


def test_output_cannot_steer_the_terminal(clean: Cluster, user: str | None, folder: Path) -> None:
    words = ("--watch", "-J", "\x1b[31mred", "--wrap", "printf '\\033]0;title\\007visible\\033[2J\\n'")
    terminal = Terminal(clean, user, folder, *words, NO_COLOR="1")
    assert terminal.end() == 0
    assert "visible" in terminal.text
    assert "title" not in terminal.text and "\x1b[2J" not in terminal.text and "\x1b[31m" not in terminal.text


# ---- status and cancel ----------------------------------------------------------------------------------------


@pytest.mark.all_releases
def test_status_in_a_pipe(gsub):
    assert gsub("status").stdout == ""
    one = job_of(gsub("-H", "-N2", "-G4", "-t", "5", "job.sh").stdout)
    two = job_of(gsub("-H", "-a", "1-3", "-p", "debug", "job.sh").stdout)
    header, first, second = gsub("status").stdout.splitlines()
    assert header.split() == ["JOB", "NAME", "STATE", "TIME", "LIMIT", "NODES", "GPUS", "PARTITION", "WHERE"]
    assert first.split() == [one, "[red]job", "PENDING", "-", "5:00", "2", "4", "gpu", "(JobHeldUser)"]
    assert second.split() == [
        f"{two}_[1-3]",
        "[red]job",
        "PENDING",
        "-",
        "10:00",
        "1",
        "-",
        "debug",
        "(JobHeldUser)",
    ]
    jobs = json.loads(gsub("status", "--json").stdout)["jobs"]
    assert [(job["id"], job["gpus"], job["time_limit"]) for job in jobs] == [(one, 4, 300), (two, 0, 600)]


def test_status_shows_my_jobs_only(clean: Cluster, gsub) -> None:
    if len(clean.users) < 2:
        pytest.skip("one user only")
    other = clean.users[1]
    clean.run(["sbatch", "-H", "--wrap", "true"], user=other, cwd=clean.home(other), check=True)
    assert gsub("status").stdout == ""


@pytest.mark.all_releases
@pytest.mark.case("S5")
def test_why_counts_the_jobs_before_it(clean: Cluster, user: str | None, folder: Path, gsub) -> None:
    nodes = clean.run(["sinfo", "-h", "-p", "gpu", "-o", "%D"], check=True).stdout.strip()
    words = ["sbatch", "--parsable", "-H", "-N", nodes, "--exclusive", "--time=9", "--wrap", "sleep 500"]
    jobs = [clean.run(words, user=user, cwd=folder, check=True).stdout.strip() for _ in range(3)]
    assert "waiting job" not in gsub("why", jobs[2]).stdout, "it is held, and has no turn"
    clean.run(["scontrol", "release", ",".join(jobs)], user=user, check=True)

    def counted() -> str:
        found = re.search(r"(\d+) waiting jobs? of its partition (has|have)", gsub("why", jobs[2]).stdout)
        return found[1] if found else ""

    # Until the first of them runs, two are before the last
    wait_until(lambda: counted() == "1", 90, "the second job to be counted alone")


@pytest.mark.all_releases
def test_status_lists_a_job_however_its_gpus_were_typed(gsub):
    """Slurm takes blanks and hands them on; listing it must not fail, for anybody."""
    job = job_of(gsub("-H", "--gpus= 2", "--comment=gsub:off", "job.sh").stdout)
    assert re.search(rf"^{job} +.*PENDING", gsub("status").stdout, re.MULTILINE)


def test_ended_jobs_when_asked_for(gsub):
    job = json.loads(gsub("--json", "--wait", "job.sh").stdout)["job_id"]
    assert gsub("status").stdout == ""
    assert re.search(rf"^{job} +\[red\]job +COMPLETED", gsub("status", "--ended").stdout, re.MULTILINE)


def test_status_is_live_on_a_terminal(clean: Cluster, user: str | None, folder: Path, gsub) -> None:
    job = job_of(gsub("-H", "job.sh").stdout)
    terminal = Terminal(clean, user, folder, "status")
    terminal.until(rf"{job} .*\[red\]job .*PENDING")
    assert gsub("cancel", job).stdout == f"Cancelled {job}.\n"
    terminal.until("You have no jobs")
    assert terminal.end() == 0


def test_no_color(clean: Cluster, user: str | None, folder: Path, gsub) -> None:
    gsub("-H", "job.sh")
    coloured = Terminal(clean, user, folder, "status", "--once")
    plain = Terminal(clean, user, folder, "status", "--once", NO_COLOR="1")
    assert coloured.end() == plain.end() == 0
    assert "\x1b[33m" in coloured.text
    assert "\x1b[33m" not in plain.text and "PENDING" in plain.text


@pytest.mark.all_releases
def test_cancel(clean: Cluster, gsub) -> None:
    jobs = [job_of(gsub("-H", "job.sh").stdout) for _ in range(3)]
    assert gsub("cancel", jobs[0]).stdout == f"Cancelled {jobs[0]}.\n"
    done = gsub("cancel", jobs[1], "999999", jobs[2])
    assert done.returncode == 1
    assert done.stdout == f"Cancelled {jobs[1]}, {jobs[2]}.\n" and "999999" in done.stderr
    assert clean.run(["squeue", "-h"]).stdout == ""
    assert gsub("cancel").returncode == 2
    assert gsub("cancel", "abc").returncode == 2


def test_cancelling_what_has_ended_says_so(gsub) -> None:
    job = json.loads(gsub("--json", "--wait", "job.sh").stdout)["job_id"]
    done = gsub("cancel", str(job))
    assert done.returncode == 0
    assert done.stdout == f"{job} had ended before (COMPLETED): nothing to cancel.\n"
    tasks = job_of(gsub("-H", "--array=1-3", "job.sh").stdout)
    assert gsub("cancel", f"{tasks}_2").stdout == f"Cancelled {tasks}_2.\n"
    assert gsub("cancel", tasks).stdout == f"Cancelled {tasks}.\n"
    assert "had ended before (CANCELLED)" in gsub("cancel", tasks).stdout


def test_cancel_asks_on_a_terminal(clean: Cluster, user: str | None, folder: Path, gsub) -> None:
    jobs = [job_of(gsub("-H", "job.sh").stdout) for _ in range(2)]
    no = Terminal(clean, user, folder, "cancel", *jobs)
    no.until(r"Cancel 2 jobs .*\?")
    no.type("n\n")
    assert no.end() == 1
    assert len(clean.run(["squeue", "-h", "-o", "%i"]).stdout.split()) == 2
    yes = Terminal(clean, user, folder, "cancel", "--yes", *jobs)
    assert yes.end() == 0
    assert clean.run(["squeue", "-h"]).stdout == ""


def test_cancelling_a_job_of_another_user_is_refused(clean: Cluster, gsub) -> None:
    if len(clean.users) < 2:
        pytest.skip("one user only")
    other = clean.users[1]
    text = clean.run(["sbatch", "-H", "--wrap", "true"], user=other, cwd=clean.home(other), check=True).stdout
    done = gsub("cancel", job_of(text))
    assert done.returncode == 1
    assert "Access/permission denied" in done.stderr and len(done.stderr.splitlines()) <= 3
    assert len(clean.run(["squeue", "-h"]).stdout.splitlines()) == 1
