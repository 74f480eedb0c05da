"""Running commands: deadlines, bounds, environments; and what Slurm's complaints mean."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_plugins.client import runner
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import (
    NoSuchJob,
    SlurmFormatError,
    SlurmNotInstalled,
    SlurmRefused,
    SlurmTimeout,
    SlurmUnreachable,
)
from slurm_plugins.client.runner import Completed, Runner, check, complaint, reading_environment, run_command
from tests.waiting import wait_until

ENV = {"PATH": os.environ["PATH"]}


def sh(script: str, **options):
    return run_command(["sh", "-c", script], env=ENV, **options)


def test_output_exit_code_and_input():
    done = sh("cat; echo oops >&2; exit 3", stdin=b"a\n\xff", timeout=10)
    assert done == Completed("sh", 3, "a\n\udcff", "oops\n")


def test_without_input_there_is_none():
    assert sh("cat", timeout=10).stdout == ""


def test_much_input_and_output_do_not_wait_for_each_other():
    data = os.urandom(1 << 20).hex().encode()
    assert sh("cat; cat /dev/null >&2", stdin=data, timeout=30).stdout.encode() == data


def test_both_streams_are_read():
    done = sh("head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero", timeout=30)
    assert (len(done.stdout), len(done.stderr)) == (300000, 300000)


@pytest.mark.case("S4")
def test_what_is_printed_is_taken_as_it_comes_beside_what_was_complained_of():
    taken: list[tuple[int, bytes]] = []
    done = sh(
        "echo first >&2; head -c 300000 /dev/zero; echo last >&2; exit 3",
        timeout=30,
        take=lambda data, messages: taken.append((len(data), messages)),
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "first\nlast\n")
    assert sum(size for size, _ in taken) == 300000
    assert all(said.startswith(b"first") for _, said in taken)


@pytest.mark.case("S4")
def test_output_without_end_is_no_answer_when_it_is_taken_either(monkeypatch):
    monkeypatch.setattr(runner, "MAX_OUTPUT", 100_000)
    with pytest.raises(SlurmRefused):
        sh("cat /dev/zero", timeout=30, take=lambda data, messages: None)


def test_a_deadline_ends_the_command_and_its_children(tmp_path):
    begin = time.monotonic()
    with pytest.raises(SlurmTimeout) as caught:
        sh(f"sleep 60 & echo $! > {tmp_path}/child; wait", timeout=0.5, daemon="slurmdbd")
    assert time.monotonic() - begin < 5
    assert (caught.value.daemon, caught.value.seconds) == ("slurmdbd", 0.5)
    assert isinstance(caught.value, SlurmUnreachable)
    child = Path("/proc") / (tmp_path / "child").read_text().strip()

    def has_ended() -> bool:
        try:
            return "State:\tZ" in (child / "status").read_text()
        except OSError:
            return True

    wait_until(has_ended, 5, "the end of the command's child")


def test_a_command_that_waits_for_its_configuration_blames_that():
    """Slurm's commands retry for a minute to read a slurm.conf that is not there."""
    with pytest.raises(SlurmTimeout) as caught:
        sh(
            "echo 'squeue: error: s_p_parse_file: cannot stat file /none, retrying' >&2; sleep 60",
            timeout=0.5,
        )
    assert caught.value.daemon == "config"
    with pytest.raises(SlurmTimeout) as caught:
        sh("echo 'squeue: hm' >&2; sleep 60", timeout=0.5)
    assert caught.value.daemon == "slurmctld"


def test_a_deadline_holds_for_a_command_that_closed_its_output():
    with pytest.raises(SlurmTimeout):
        sh("exec >&- 2>&-; sleep 60", timeout=0.5)


def test_an_endless_answer_is_ended(monkeypatch):
    monkeypatch.setattr(runner, "MAX_OUTPUT", 1 << 20)
    with pytest.raises(SlurmRefused):
        sh("yes", timeout=30)


def test_messages_are_bounded(monkeypatch):
    monkeypatch.setattr(runner, "MAX_MESSAGES", 1 << 17)
    assert len(sh("head -c 3000000 /dev/zero >&2", timeout=30).stderr) < 1 << 19


def test_a_command_that_is_not_there():
    with pytest.raises(SlurmNotInstalled) as caught:
        run_command(["squeue-that-is-not-there"], env=ENV, timeout=5)
    assert caught.value.command == "squeue-that-is-not-there"


@pytest.mark.parametrize(
    "name",
    [
        "SQUEUE_FORMAT",
        "SQUEUE_FORMAT2",
        "SQUEUE_SORT",
        "SQUEUE_STATES",
        "SQUEUE_USERS",
        "SINFO_FORMAT",
        "SACCT_FORMAT",
        "SACCT_FEDERATION",
        "SCONTROL_ALL",
        "SCANCEL_INTERACTIVE",
        "SLURM_CLUSTERS",
        "SLURM_JSON",
        "LANG",
        "LC_TIME",
    ],
)
def test_habits_do_not_reach_commands_that_read(name):
    clean = reading_environment({name: "x", "PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf"})
    assert name not in clean
    assert (clean["PATH"], clean["SLURM_CONF"]) == ("/bin", "/etc/slurm.conf")
    assert (clean["LC_ALL"], clean["SLURM_TIME_FORMAT"], clean["SLURM_BITSTR_LEN"]) == ("C", "%s", "0")


def test_what_acts_gets_its_environment_and_vector_verbatim():
    seen = []

    def run(argv, *, env, **_):
        seen.append((argv, dict(env)))
        return Completed(argv[0], 0, "Submitted batch job 5\n", "")

    env = {"PATH": "/bin", "SQUEUE_FORMAT": "mine", "SBATCH_PARTITION": "gpu", "LANG": "de_DE.UTF-8"}
    argv = ["-N2", "--job-name=a b", "script.sh", "--our", ""]
    assert CommandClient(env, run=run).submit(argv).job_id == 5
    assert CommandClient({}, run=run).submit(argv, env=env).job_id == 5
    assert seen == [(["sbatch", *argv], env)] * 2


@pytest.mark.parametrize(
    ("stdout", "job_id", "where"),
    [
        ("Submitted batch job 5\n", 5, None),
        ("Submitted batch job 5 on cluster two\n", 5, "two"),
        ("5\n", 5, None),
        ("5;two\n", 5, "two"),
        ("site says: 7 days left\nSubmitted batch job 5\n", 5, None),
        ("3\nSubmitted batch job 5\n", 5, None),
        ("", None, None),
    ],
)
def test_what_sbatch_says(stdout, job_id, where):
    client = CommandClient({}, run=lambda argv, **_: Completed(argv[0], 0, stdout, ""))
    submission = client.submit([])
    assert (submission.job_id, submission.cluster, submission.stdout) == (job_id, where, stdout)


def test_the_jobs_exit_code_is_not_sbatchs():
    # --wait: submitted, ran, failed
    client = CommandClient({}, run=lambda argv, **_: Completed(argv[0], 3, "Submitted batch job 5\n", ""))
    assert client.submit(["--wait"]).job_id == 5


@pytest.mark.parametrize(
    ("stderr", "error", "daemon"),
    [
        (
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            SlurmUnreachable,
            "slurmctld",
        ),
        ("slurm_load_partitions: Socket timed out on send/recv operation", SlurmUnreachable, "slurmctld"),
        ("squeue: error: Zero Bytes were transmitted or received", SlurmUnreachable, "slurmctld"),
        (
            "sacct: error: _open_persist_conn: failed to open persistent connection to host:localhost:6819: "
            "Connection refused\nsacct: error: Sending PersistInit msg: Connection refused",
            SlurmUnreachable,
            "slurmdbd",
        ),
        ("sacct: error: Problem talking to the database: Connection refused", SlurmUnreachable, "slurmdbd"),
        ("squeue: fatal: Could not establish a configuration source", SlurmUnreachable, "config"),
        ("slurm_load_jobs error: Invalid job id specified", NoSuchJob, None),
        ("sbatch: error: invalid partition specified: nix", SlurmRefused, None),
        ("", SlurmRefused, None),
    ],
)
def test_complaints(stderr, error, daemon):
    found = complaint(Completed("squeue", 1, "", stderr), job_id=7)
    assert type(found) is error
    assert getattr(found, "daemon", None) == daemon
    assert len(str(found).splitlines()) <= 3
    assert str(found)


def test_no_such_job_needs_a_job_that_was_asked_about():
    assert isinstance(complaint(Completed("squeue", 1, "", "error: Invalid job id specified")), SlurmRefused)


def test_success_beside_silence_is_silence():
    # sacct has printed an empty table, exit code 0, beside this
    with pytest.raises(SlurmUnreachable):
        check(Completed("sacct", 0, "", "sacct: error: Problem talking to the database: Connection refused"))


def test_a_single_job_that_squeue_says_nothing_of_is_not_gone():
    def run(argv, **_):
        return Completed(argv[0], 0, "slurm 24.11.5" if "--version" in argv else "", "")

    client = CommandClient({}, run=run)
    assert client.jobs() == ()
    assert client.jobs(ids=[7]) == ()
    with pytest.raises(SlurmFormatError):
        client.job(7)


def test_slurms_words_come_without_its_prefixes():
    stderr = (
        "sbatch: error: invalid partition specified: nix\nsbatch: error: Batch job submission failed: why"
    )
    error = complaint(Completed("sbatch", 1, "", stderr))
    assert isinstance(error, SlurmRefused)
    assert error.message == "invalid partition specified: nix\nBatch job submission failed: why"


def test_interrupting_ends_the_command(tmp_path):
    # The command runs before Popen returns: it waits until the runner sleeps, which then reads its output
    script = f"until grep -q ' S ' /proc/$PPID/stat; do :; done; echo $$ > {tmp_path}/pid; sleep 60"
    code = (
        "import sys; from slurm_plugins.client.runner import Runner; import os\n"
        f"Runner(dict(os.environ)).read(['sh', '-c', {script!r}])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.DEVNULL,
        # a test run in the background (nohup, &) ignores SIGINT, and its children would too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    file = tmp_path / "pid"
    wait_until(lambda: file.exists() and file.read_text().strip(), 10, "the command's process ID")
    process.send_signal(2)
    process.wait(10)
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_submitting_imports_little():
    code = "import sys; import slurm_plugins.client.commands; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    heavy = {
        "msgspec",
        "rich",
        "ClusterShell",
        "click",
        "tempfile",
        "typing",
        "datetime",
        "json",
        "asyncio",
        "logging",
    }
    # what the interpreter itself brings along is not ours to count
    bare = subprocess.run(
        [sys.executable, "-I", "-c", "import sys, subprocess, dataclasses; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not (heavy & loaded) - set(bare.stdout.split())
    assert "slurm_plugins.client.values" not in loaded


def test_runner_uses_its_own_environment():
    assert (
        Runner({"PATH": os.environ["PATH"], "WHO": "me"}, timeout=10).read(["sh", "-c", "echo $WHO"]).stdout
        == "me\n"
    )
