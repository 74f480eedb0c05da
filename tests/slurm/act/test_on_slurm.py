"""gsub-act on a real Slurm: it does what its table says, and gsubd's user can do nothing without it."""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_plugins.act.journal import held
from tests.slurm.act.conftest import Acting

pytestmark = pytest.mark.root


@pytest.mark.all_releases
def test_a_hold_is_made_and_taken_back(acting: Acting) -> None:
    job = acting.waiting()
    answer = acting.ask("hold", job, why="smoke: import_error", by="v-11111111")
    assert answer["result"] == "done", answer
    assert (acting.shown(job)["Priority"], acting.shown(job)["Reason"]) == ("0", "JobHeldUser")
    (found,) = [found for found in held(acting.cluster.paths.act_state) if found.job == job]
    assert (found.job, found.by, found.why) == (job, "v-11111111", "smoke: import_error")
    assert acting.ask("release", job)["result"] == "done"
    assert acting.shown(job)["Priority"] != "0"
    assert job not in [found.job for found in held(acting.cluster.paths.act_state)]


@pytest.mark.all_releases
def test_the_user_may_release_what_gsub_holds(acting: Acting) -> None:
    job = acting.waiting()
    acting.ask("hold", job)
    done = acting.cluster.run(["scontrol", "release", job], user=acting.user)
    assert done.returncode == 0, done.stderr
    assert acting.shown(job)["Priority"] != "0"
    assert "not held" in acting.ask("release", job)["said"]
    assert job not in [found.job for found in held(acting.cluster.paths.act_state)]


@pytest.mark.all_releases
def test_a_failed_job_runs_again_at_once_off_the_node_with_more_memory(acting: Acting) -> None:
    job = acting.failed("--nodes=1", "--mem=1000M", "--exclude=n2")
    assert acting.ask("requeue", job)["result"] == "done"
    shown = acting.shown(job)
    assert (shown["JobState"], shown["Restarts"]) == ("PENDING", "1")
    refused = acting.ask("update", job, fields={"ExcNodeList": "n1"})
    assert refused["result"] == "refused" and "n2" in refused["said"]  # the user's own stays
    # off both nodes it cannot start, so that what was set can be seen
    for fields in ({"ExcNodeList": "n[1-2]"}, {"MinMemoryNode": "3000"}, {"StartTime": "now"}):
        answer = acting.ask("update", job, fields=fields)
        assert answer["result"] == "done", answer
    shown = acting.shown(job)
    assert (shown["ExcNodeList"], shown["MinMemoryNode"]) == ("n[1-2]", "3000M")
    assert shown["Restarts"] == "1" and shown["EligibleTime"] <= time.strftime("%Y-%m-%dT%H:%M:%S")


@pytest.mark.all_releases
def test_requeuehold_holds_until_released(acting: Acting) -> None:
    job = acting.failed()
    assert acting.ask("requeuehold", job, until=time.time() + 600)["result"] == "done"
    shown = acting.shown(job)
    assert (shown["JobState"], shown["Priority"], shown["Restarts"]) == ("PENDING", "0", "1")
    assert job in [found.job for found in held(acting.cluster.paths.act_state)]
    assert acting.ask("release", job)["result"] == "done"
    assert acting.shown(job)["Priority"] != "0"


@pytest.mark.all_releases
def test_one_task_of_an_array(acting: Acting) -> None:
    array = acting.submit("--array=1-2", "--requeue", wrap="exit $((SLURM_ARRAY_TASK_ID - 1))")
    acting.wait(lambda: acting.shown(f"{array}_2")["JobState"] == "FAILED")
    acting.wait(lambda: acting.shown(f"{array}_1")["JobState"] == "COMPLETED")
    assert acting.ask("requeue", f"{array}_1")["result"] == "refused"
    assert acting.ask("requeue", f"{array}_2")["result"] == "done"
    assert acting.shown(f"{array}_2")["Restarts"] == "1"
    assert acting.shown(f"{array}_1")["Restarts"] == "0"


@pytest.mark.all_releases
def test_an_array_is_held_as_a_whole_before_it_begins(acting: Acting) -> None:
    array = acting.submit("--array=1-2", "--begin=now+2hours")
    assert acting.ask("hold", array)["result"] == "done"
    assert acting.shown(array)["Priority"] == "0"
    assert acting.ask("release", array)["result"] == "done"
    assert acting.shown(array)["Priority"] != "0"
    begun = acting.submit("--array=1-4", "--exclusive")  # two nodes, four tasks
    acting.wait(lambda: acting.shown(f"{begun}_1")["JobState"] == "RUNNING")
    assert "tasks of this array run" in acting.ask("hold", begun)["said"]
    assert acting.shown(f"{begun}_1")["Priority"] != "0"


@pytest.mark.all_releases
def test_what_it_does_not_do(acting: Acting) -> None:
    running, waiting = acting.submit(), acting.waiting()
    acting.wait(lambda: acting.shown(running)["JobState"] == "RUNNING")
    before = acting.shown(running), acting.shown(waiting)
    roots = acting.cluster.run(
        ["sbatch", "--parsable", "-H", "-o/dev/null", "--wrap=:"], check=True
    ).stdout.strip()
    rows = [
        (acting.request("cancel", running, restarts=0), "does not let gsub end jobs"),
        (acting.request("hold", running), "only a pending job"),
        (acting.request("requeue", running), "only a job that failed"),
        (acting.request("update", waiting, fields={"TimeLimit": "UNLIMITED"}), "no field of ours"),
        (acting.request("update", waiting, fields={"AdminComment": "x"}), "no field of ours"),
        (acting.request("update", waiting, fields={"ExcNodeList": "n1"}), "never requeued"),
        (acting.request("hold", waiting, cluster="other"), "another cluster"),
        (acting.request("hold", "999999"), "no such job"),
        (acting.request("hold", roots), "left alone"),
        (acting.request("release", waiting), "does not hold"),
    ]
    for request, words in rows:
        answer = acting.send(request)
        assert answer["result"] == "refused" and words in answer["said"], (request, answer)
        assert acting.journal()[-1]["event"] == "refused"
    same = ("JobState", "Priority", "TimeLimit", "Restarts", "ExcNodeList")
    for job, shown in zip((running, waiting), before, strict=True):
        assert {name: acting.shown(job)[name] for name in same} == {name: shown[name] for name in same}
    acting.cluster.run(["scancel", roots])


@pytest.mark.all_releases
def test_a_job_is_requeued_once_by_two_who_mean_the_same_attempt(acting: Acting) -> None:
    job = acting.failed()
    first, second = (acting.request("requeue", job, restarts=0) for _ in range(2))
    assert acting.send(first)["result"] == "done"
    # the second comes when it has failed again
    assert acting.ask("update", job, fields={"StartTime": "now"}, restarts=1)["result"] == "done"
    acting.wait(lambda: acting.shown(job)["JobState"] == "FAILED")
    answer = acting.send(second)
    assert (answer["result"], answer["said"]) == ("refused", "it has been restarted meanwhile: once, not 0")
    assert acting.send(first)["repeat"]
    assert acting.shown(job)["Restarts"] == "1"
    stale = acting.ask("update", job, fields={"StartTime": "now"}, restarts=0)
    assert stale["result"] == "refused" and "restarted meanwhile" in stale["said"]
    assert acting.ask("requeuehold", job, restarts=1)["result"] == "done"
    assert acting.ask("release", job)["result"] == "done"


@pytest.fixture
def tight(acting: Acting) -> Iterator[Acting]:
    """QOS tight lets a job have 4000 MiB of memory, and a user 6000; account lab has 9000 for all that run."""
    manage(acting, "add qos tight set MaxTRESPerJob=mem=4000 MaxTRESPerUser=mem=6000")
    manage(acting, f"modify user {acting.user} where account=lab set qos+=tight")
    manage(acting, "modify account lab set GrpTRES=mem=9000")
    acting.wait(lambda: "mem=9000(" in assoc_mgr(acting) and "MaxTRESPJ=mem=4000" in assoc_mgr(acting))
    acting.cluster.restart("gsub-act")  # what it gave before, it takes to wait for a moment
    yield acting
    acting.cluster.run(["scancel", "--quiet", f"--user={acting.user}"])
    manage(acting, "modify account lab set GrpTRES=mem=-1")
    manage(acting, f"modify user {acting.user} where account=lab set qos-=tight")
    acting.wait(lambda: "mem=9000(" not in assoc_mgr(acting))


def manage(acting: Acting, words: str) -> None:
    done = acting.cluster.run(["sacctmgr", "-i", *words.split()])
    assert done.returncode == 0 or "Nothing" in done.stdout + done.stderr, done.stderr


def assoc_mgr(acting: Acting) -> str:
    return acting.cluster.run(["scontrol", "-o", "show", "assoc_mgr", "flags=assoc,qos"], check=True).stdout


def more(acting: Acting, job: str, mebibytes: int) -> dict[str, Any]:
    return acting.ask("update", job, fields={"MinMemoryNode": str(mebibytes)})


@pytest.mark.all_releases
@pytest.mark.case("A1")
def test_memory_is_not_set_where_accounting_limits_it(tight: Acting) -> None:
    """Slurm would hold the job to no limit any more, whatever its user then changes."""
    job = tight.failed("--qos=tight", "--mem=500M")
    assert tight.ask("requeue", job)["result"] == "done"
    answer = more(tight, job, 3000)
    assert answer["result"] == "refused" and "the limit MaxTRESPerJob of QOS tight is" in answer["said"], (
        answer
    )
    of_account = tight.failed("--mem=500M")
    assert tight.ask("requeue", of_account)["result"] == "done"
    answer = more(tight, of_account, 1000)
    assert answer["result"] == "refused" and "GrpTRES of account lab" in answer["said"], answer
    # as before the fix: the user's own changes stay within the limit, since the job is still held to it
    for job_field in ("MinMemoryNode=5000", "NumNodes=4", "NumCPUs=32-32", "NumTasks=32"):
        tight.cluster.run(["scontrol", "update", f"JobId={job}", job_field], user=tight.user)
    assert "gsub:guarded" not in tight.shown(job).get("Comment", "")


GUARDED = (
    "NumNodes=2", "NumTasks=4", "NumCPUs=4-4", "MinCPUsNode=2", "MinMemoryNode=5000", "MinMemoryCPU=5000",
    "QOS=tight", "Account=lab", "Partition=debug", "ReqNodeList=n1", "CpusPerTask=2", "Comment=mine",
)  # fmt: skip


@pytest.mark.all_releases
@pytest.mark.case("A1")
def test_a_job_whose_memory_was_set_is_guarded_until_it_starts(acting: Acting) -> None:
    job = acting.failed("--nodes=1", "--mem=1000M", "--exclude=n2")
    answer = acting.ask("requeue", job)
    assert answer["result"] == "done", answer
    assert acting.ask("update", job, fields={"ExcNodeList": "n[1-2]"})["result"] == "done"
    answer = more(acting, job, 3000)
    assert answer["result"] == "done", answer
    assert acting.shown(job)["Comment"] == "gsub:guarded"
    before = {
        name: acting.shown(job)[name] for name in ("NumNodes", "NumTasks", "NumCPUs", "QOS", "Partition")
    }
    for change in GUARDED:
        done = acting.cluster.run(["scontrol", "update", f"JobId={job}", change], user=acting.user)
        assert done.returncode != 0 and "Access/permission denied" in done.stderr, (
            change,
            done,
        )
    shown = acting.shown(job)
    assert shown["MinMemoryNode"] == "3000M"
    assert {name: shown[name] for name in before} == before
    # what gives it no more is its user's, and all is an operator's
    done = acting.cluster.run(["scontrol", "update", f"JobId={job}", "JobName=mine"], user=acting.user)
    assert done.returncode == 0, done.stderr
    done = acting.cluster.run(["scontrol", "update", f"JobId={job}", "MinMemoryNode=2000"])
    assert done.returncode == 0, done.stderr


@pytest.mark.all_releases
def test_nobody_is_lifted_over_the_limit_of_a_partition(acting: Acting) -> None:
    cluster = acting.cluster
    cluster.run(["scontrol", "update", "PartitionName=debug", "MaxMemPerNode=3000"], check=True)
    cluster.restart("gsub-act")  # it takes what partitions allow for known for a minute
    try:
        job = acting.failed("--mem=500M", "--partition=debug")
        assert acting.ask("requeue", job)["result"] == "done"
        answer = more(acting, job, 3001)
        assert answer["result"] == "refused" and "MaxMemPerNode of partition debug is 3000" in answer["said"]
        assert more(acting, job, 3000)["result"] == "done"
    finally:
        cluster.run(["scontrol", "update", "PartitionName=debug", "MaxMemPerNode=0"], check=True)
        cluster.restart("gsub-act")


def test_an_act_costs_slurmctld_little(acting: Acting) -> None:
    """One look and one command: three questions for squeue, and the command."""
    one, two = acting.failed(), acting.failed()
    acting.ask("requeue", one)  # what is asked once in a while is known now
    before = questions(acting)
    assert acting.ask("requeue", two, restarts=0)["result"] == "done"
    assert questions(acting) - before == 4
    assert acting.ask("update", two, fields={"StartTime": "now"}, restarts=1)["result"] == "done"
    assert questions(acting) - before == 8
    # squeue of 22.05 has to be asked twice for the nodes that a job excludes, which it does only to change them
    off, on_22 = {"ExcNodeList": "n2"}, acting.cluster.spec.slurm == "host"
    assert acting.ask("requeue", (three := acting.failed()), fields=off, restarts=0)["result"] == "done"
    before = questions(acting)
    assert acting.ask("update", three, fields=off, restarts=1)["result"] == "done"
    assert questions(acting) - before == (7 if on_22 else 4)


@pytest.mark.all_releases
def test_a_task_is_looked_at_by_its_own_number(acting: Acting) -> None:
    array = acting.submit("--array=1-2", "--requeue", wrap="exit 1")
    for task in (f"{array}_1", f"{array}_2"):
        acting.wait(lambda task=task: acting.shown(task)["JobState"] == "FAILED")  # type: ignore[misc]
    numbers = {task: int(acting.shown(f"{array}_{task}")["JobId"]) for task in (1, 2)}
    (own,) = [task for task, number in numbers.items() if number != int(array)]
    number = numbers[own]
    assert acting.ask("requeue", f"{array}_{own}", restarts=0, number=number)["result"] == "done"
    assert acting.shown(f"{array}_{own}")["Restarts"] == "1"
    # by a number that is another's the task is found all the same, and the other is left alone
    other = 3 - own
    assert acting.ask("requeue", f"{array}_{other}", restarts=0, number=number)["result"] == "done"
    assert (acting.shown(f"{array}_{other}")["Restarts"], acting.shown(f"{array}_{own}")["Restarts"]) == (
        "1",
        "1",
    )


def questions(acting: Acting) -> int:
    """How many RPC of gsub-act's slurmctld has answered."""
    by_user = acting.cluster.run(["sdiag"], check=True).stdout.partition("statistics by user")[2]
    uid = acting.cluster.daemon_user("gsub-act").uid
    found = re.search(rf"\( *{uid}\) count:(\d+)", by_user)
    assert found, by_user
    return int(found[1])


@pytest.mark.all_releases
def test_more_memory_than_a_node_has_is_refused(acting: Acting) -> None:
    job = acting.failed()
    acting.ask("requeue", job)
    answer = acting.ask("update", job, fields={"MinMemoryNode": "512001"})
    assert answer["result"] == "refused" and "512000 MiB" in answer["said"], answer


def test_only_gsubd_and_root_are_heard(acting: Acting) -> None:
    job = acting.waiting()
    assert stat.S_IMODE(acting.cluster.paths.act_socket.stat().st_mode) == 0o660
    # the socket's own user may connect, and is no caller
    answer = acting.ask("hold", job, as_user="gsub-act")
    assert answer["result"] == "refused" and "only gsubd's user" in answer["said"]
    last = acting.journal()[-1]
    assert (last["event"], last["uid"]) == ("refused", acting.cluster.daemon_user("gsub-act").uid)
    for user in (acting.user, "slurm"):
        with pytest.raises(AssertionError, match="Permission denied"):
            acting.ask("hold", job, as_user=user)
    assert acting.shown(job)["Priority"] != "0"
    assert acting.ask("hold", job, as_user="root")["result"] == "done"


@pytest.mark.all_releases
def test_gsubds_user_can_do_nothing_to_slurm_by_itself(acting: Acting) -> None:
    job, failed, running = acting.waiting(), acting.failed(), acting.submit()
    acting.wait(lambda: acting.shown(running)["JobState"] == "RUNNING")
    commands = [
        f"scontrol hold {job}", f"scontrol uhold {job}", f"scontrol release {job}", f"scontrol requeue {failed}",
        f"scontrol requeuehold {failed}", f"scontrol update JobId={job} TimeLimit=1", f"scontrol suspend {running}",
        f"scontrol update JobId={job} AdminComment=x", f"scontrol update JobId={job} StartTime=now",
        f"scontrol top {job}",
        "scontrol update NodeName=n1 State=DRAIN Reason=x", "scontrol update PartitionName=gpu State=DOWN",
        "scontrol create reservation Nodes=n1 Users=gsub StartTime=now Duration=1", "scontrol reconfigure",
        "scontrol delete PartitionName=debug", f"scancel {running}", f"scancel --signal=USR1 {running}",
        "sacctmgr -i add user gsub account=lab adminlevel=Operator", "sacctmgr -i modify user user1 set maxjobs=0",
        "sacctmgr -i delete account lab", "sacctmgr -i modify qos normal set priority=1",
    ]  # fmt: skip
    before = _standing(acting, job, failed, running)
    for command in commands:
        done = acting.as_daemon("gsub", command.split())
        assert done.returncode != 0, f"{command}: {done.stdout}{done.stderr}"
    assert _standing(acting, job, failed, running) == before
    # and the same user through gsub-act
    assert acting.ask("hold", job)["result"] == "done"
    assert acting.ask("requeue", failed)["result"] == "done"


def _standing(acting: Acting, *jobs: str) -> list[str]:
    same = ("JobState", "Priority", "TimeLimit", "Restarts", "Reason")
    shown = [f"{job} {[acting.shown(job)[name] for name in same]}" for job in jobs]
    asked = [
        ["sinfo", "-h", "-N", "-o", "%N %P %a %E"],
        ["sacctmgr", "-nP", "show", "assoc", "format=account,user,maxjobs"],
        ["sacctmgr", "-nP", "show", "user", "format=user,adminlevel"],
        ["sacctmgr", "-nP", "show", "qos", "format=name,priority"],
        ["scontrol", "-o", "show", "reservation"],
    ]
    return shown + [
        line
        for command in asked
        for line in sorted(acting.cluster.run(command, check=True).stdout.splitlines())
    ]


def test_the_off_switch_and_the_modes(acting: Acting) -> None:
    job, other = acting.waiting(), acting.waiting()
    assert acting.ask("hold", job, until=time.time() + 900)["result"] == "done"
    off = acting.cluster.paths.etc / "act.off"
    off.touch()
    try:
        assert "switched gsub-act off" in acting.ask("hold", other)["said"]
        acting.wait(lambda: acting.shown(job)["Priority"] != "0")
    finally:
        off.unlink()
    text = acting.cluster.paths.site.read_text()
    acting.ask("hold", job, until=time.time() + 900)
    acting.cluster.write_site(text.replace('mode = "enforce"', 'mode = "observe"'))
    try:
        acting.wait(lambda: "in observe" in acting.ask("requeue", other)["said"])
        assert acting.ask("hold", other)["result"] == "refused"
        assert acting.ask("release", job)["result"] == "done"
    finally:
        acting.cluster.write_site(text)
    acting.wait(lambda: "only a job that failed" in acting.ask("requeue", other)["said"])


def test_at_its_end_it_lets_go_what_it_holds(acting: Acting) -> None:
    job = acting.waiting()
    acting.ask("hold", job, until=time.time() + 900)
    acting.cluster.stop("gsub-act")
    try:
        assert acting.shown(job)["Priority"] != "0"
        assert held(acting.cluster.paths.act_state) == ()
        (let_go,) = [
            line for line in acting.journal() if line.get("job") == job and line.get("why") == "gsub-act ends"
        ]
        assert (let_go["event"], let_go["verb"]) == ("asked", "release")
    finally:
        acting.cluster.start("gsub-act")


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_beside_its_command_it_finds_out_what_became_of_it(
    acting: Acting, tmp_path: Path, when: str
) -> None:
    """A scontrol that kills gsub-act before it has done what it was told, or after."""
    cluster = acting.cluster
    job = acting.failed()
    text = cluster.paths.site.read_text()
    folder = cluster.paths.root / f"bin-{when}"
    folder.mkdir(exist_ok=True)
    body = {
        "before": 'if [ "$1" = requeue ]; then kill -9 $PPID; exit 1; fi\nexec /usr/bin/scontrol "$@"\n',
        "after": '/usr/bin/scontrol "$@"; rc=$?\nif [ "$1" = requeue ]; then kill -9 $PPID; fi\nexit $rc\n',
    }[when]
    (folder / "scontrol").write_text(f"#!/bin/sh\n{body}")
    (folder / "scontrol").chmod(0o755)
    request = acting.request("requeue", job)
    cluster.write_site(text.replace("[slurm]\n", f'[slurm]\nbin = "{folder}"\n'))
    cluster.restart("gsub-act")
    try:
        with pytest.raises(ValueError):  # it ends without an answer
            acting.send(request)
        acting.wait(lambda: "gsub-act" not in cluster.daemons())
    finally:
        cluster.write_site(text)
        cluster.start("gsub-act")
    asked = [line for line in acting.journal() if line.get("id") == request["id"]]
    assert asked[0]["event"] == "asked"
    if when == "after":
        acting.wait(lambda: acting.send(request)["result"] == "done")
        assert acting.journal()[-1]["event"] == "done"
    else:
        answer = acting.send(request)
        assert answer["result"] == "unknown" and answer["repeat"]
        assert "not been settled" in acting.ask("requeue", job)["said"]
    assert acting.shown(job)["Restarts"] == ("1" if when == "after" else "0")


def test_who_may_not_act_is_told_so_at_the_start(acting: Acting, tmp_path: Path) -> None:
    cluster = acting.cluster
    argv = [f"{cluster.paths.venv}/bin/gsub-act", f"--socket={tmp_path}/act.sock", f"--state={tmp_path}"]
    for user, words in (
        ("gsub", ("gsub", "Operator", "sacctmgr -i add user")),
        ("slurm", ("SlurmUser", "--as-slurm-user")),
        ("root", ("root",)),
    ):
        done = acting.as_daemon(user, argv)
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 3
        for word in words:
            assert word in done.stderr


@pytest.mark.all_releases
def test_as_slurm_user_where_a_site_says_so(acting: Acting, tmp_path: Path) -> None:
    """What a site without slurmdbd does."""
    cluster = acting.cluster
    folder = cluster.paths.root / "as-slurm"
    folder.mkdir(mode=0o700, exist_ok=True)
    slurm = cluster.daemon_user("slurm")
    os.chown(folder, slurm.uid, slurm.gid)
    import subprocess

    argv = [
        f"{cluster.paths.venv}/bin/gsub-act",
        f"--socket={folder}/act.sock",
        f"--state={folder}",
        "--as-slurm-user",
    ]
    line = cluster.rootfs.argv([*argv, f"--group={slurm.gid}"], user=slurm, cwd=Path("/"))
    process = subprocess.Popen(line, env=cluster.env, cwd="/", stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "answering" in process.stderr.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_the_mode_of_the_site_is_changed_by_its_command(acting: Acting) -> None:
    cluster, job = acting.cluster, acting.waiting()
    text = cluster.paths.site.read_text()

    def mode(*words: str, code: int = 0) -> str:
        where = [f"--metrics=127.0.0.1:{cluster.ports.gsubd}", f"--prefix={cluster.paths.root}"]
        done = cluster.run(["gsub", "admin", "mode", *words, *where], user=None)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    try:
        assert "gsubd has this file in force" in mode()
        assert "Slurm has no partition gup" in mode("observe", "--partition=gup", code=2)
        assert "Slurm has no account labs" in mode("observe", "--account=labs", code=2)
        assert cluster.paths.site.read_text() == text
        assert "partition gpu: as the site, enforce -> advise" in mode("advise", "--partition=gpu")
        # asked for what is never done: gsub-act takes the file a moment after gsubd
        acting.wait(lambda: "in advise" in acting.ask("requeue", job)["said"])
        assert acting.ask("hold", job)["result"] == "refused"
        # forced: doctor knows clusters that were installed, and this one was not
        mode("enforce", "--partition=gpu", "--rollout=100", "--force", "--yes")
        acting.wait(lambda: "only a job that failed" in acting.ask("requeue", job)["said"])
        assert acting.ask("hold", job)["result"] == "done"
        assert acting.ask("release", job)["result"] == "done"
        mode("observe", "--account=lab")
        acting.wait(lambda: "in observe" in acting.ask("requeue", job)["said"])
        assert acting.ask("hold", job)["result"] == "refused"
    finally:
        cluster.write_site(text)
    acting.wait(lambda: "only a job that failed" in acting.ask("requeue", job)["said"])
