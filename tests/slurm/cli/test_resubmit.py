"""`gsub resubmit`: what is changed about a job before it is submitted again, and that it is the same job else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from site_configs.devcluster import Cluster
from tests.waiting import wait_until

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
    done = run("sbatch", "--parsable", *words, **more)
    job = done.stdout.split()[0]

    def heard() -> bool:
        states = run("sacct", "-X", "-n", "-P", "-j", job, "-o", "State,End,SubmitLine").stdout.splitlines()
        states = [one for one in states if "|" in one]
        return bool(states) and all(
            not one.startswith(("RUNNING", "PENDING")) and "|Unknown|" not in one for one in states
        )

    wait_until(heard, message=f"accounting to hear of the end of job {job}")
    return job


def submitted(done: CompletedProcess[str]) -> str:
    found = re.search(r"Submitted batch job (\d+)", done.stdout)
    assert found, done.stdout + done.stderr
    return found[1]


def wait(run: Callable[..., CompletedProcess[str]], job: str) -> None:
    line = ("squeue", "-h", "-j", job, "-t", "PENDING,RUNNING,COMPLETING", "-o", "%i")
    wait_until(lambda: not run(*line).stdout.strip(), message=f"the end of job {job}")


@pytest.mark.all_releases
def test_a_failed_job_runs_again_as_it_was_with_more_memory(run, write) -> None:
    write("train it.sh", FAILS)
    job = failed(
        run, "--mem=1000", "train it.sh", "an argument", env={"MINE": "s3cret and\nMINE_2=more", "OTHER": "1"}
    )
    write("train it.sh", "#!/bin/sh\n# changed since\n")
    shown = run("gsub", "resubmit", "--dry-run", job)
    assert shown.returncode == 0, shown.stderr
    assert "sbatch --mem=1536M 'train it.sh' an argument" in shown.stdout
    assert "-sbatch --parsable --mem=1000 'train it.sh' an argument" in shown.stdout
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


@pytest.mark.all_releases
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


@pytest.mark.all_releases
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


@pytest.mark.all_releases
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
