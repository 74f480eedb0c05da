"""Failures really brought about, and what `gsub why` then knows of them: the whole chain on each Slurm release.

All jobs are submitted at once; then each verdict is awaited in the service. What a release or a machine cannot do is
said in the reason of a skip.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from profiler.answers import NodeUse, Usage, VerdictAnswer
from profiler.findings import Evidence
from site_configs.devcluster import Cluster, ClusterSpec
from tests.slurm.failures.real import (
    ARRAY,
    BROKEN,
    DYING,
    EATS,
    FAILING,
    FAILURES,
    KERNEL,
    NODES,
    QUIET,
    TAKEN,
    TASKS,
    WAIT,
    WELL,
    Failure,
    python,
)
from tests.slurm.record.recorded import Recorded
from tests.waiting import wait_until

PATIENCE = 200.0
"""Seconds after the submission in which every verdict must be there: a minute's time limit, and Slurm's look at it."""
CGROUPS = Path("/sys/fs/cgroup")
LIMIT_MIB = 64
BY_NAME = {each.name: each for each in FAILURES}


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """4 nodes x 4 GPUs with agents; Slurm ends jobs that take more memory than they asked for."""
    os.umask(0o022)
    release = request.param
    name = f"t{os.getpid()}-why{release}"
    try:
        found = Cluster.up(ClusterSpec(name, len(NODES), 4, release, deadline=1.0, short_delays=True))
        with found.paths.slurm_conf.open("a") as conf:  # cgroups are off, so its own sampling has to do it
            conf.write("JobAcctGatherParams=OverMemoryKill\n")
        found.run(["scontrol", "reconfigure"], check=True)
        yield found
    finally:
        Cluster.down(name)


@dataclass
class Produced:
    """The jobs, and the time since which their verdicts are awaited."""

    record: Recorded
    jobs: dict[str, int] = field(default_factory=dict)
    since: float = 0.0
    cgroups: tuple[Path, ...] = ()
    why_not: str = ""

    def submit(self) -> None:
        """Submit all of them."""
        for each in FAILURES:
            script = self.full_disk() if each.name == "disk" else each.script
            self.jobs[each.name] = self.record.submit(f"-J{each.name}", *each.options, script=script)
        self.jobs["well"] = self.record.submit("-Jwell", "-w", QUIET, script=WELL)
        self.jobs["array"] = self.record.submit(
            "-Jarray", "-w", QUIET, f"--array=0-{TASKS - 1}", script=ARRAY
        )
        self.kernel_oom()
        self.since = time.monotonic()

    def full_disk(self) -> str:
        """A job whose disk is full: a file system of 1 MiB of its own where users may mount one, else /dev/full."""
        mount = ["unshare", "-Urm", "mount", "-t", "tmpfs", "-o", "size=1m", "small", "/mnt"]
        saves = "with open('{}', 'wb') as f: f.write(bytes(4 << 20))\n"
        if self.record.cluster.run(mount, user=self.record.user).returncode == 0:
            inner = f"cat > save.py <<'PROGRAM'\n{saves.format('small/model.bin')}PROGRAM\nmkdir -p small\n"
            return inner + "unshare -Urm sh -c 'mount -t tmpfs -o size=1m small small && python3 save.py'"
        return "ln -sf /dev/full model.bin\n" + python(saves.format("model.bin"))

    def kernel_oom(self) -> None:
        """A job with cgroups as Slurm makes them (v1), whose memory is too small; the kernel ends what outgrows it."""
        user, cluster = self.record.user, self.record.cluster
        if user is None:
            self.why_not = "only root can make cgroups: no kernel OOM kill"
            return
        uid = int(cluster.run(["id", "-u"], user=user, check=True).stdout)
        path = f"slurm_{QUIET}/uid_{uid}/job_$SLURM_JOB_ID"
        entered = f"{CGROUPS}/memory/{path}/cgroup.procs"
        eats = f"cat > eat.py <<'PROGRAM'\n{EATS.format(mib=4 * LIMIT_MIB)}PROGRAM\n"
        enter = f'sh -c "echo \\$\\$ > {entered}; exec python3 eat.py"\nrc=$?\n{WAIT}exit $rc'
        for _ in range(
            5
        ):  # a cluster beside this one has the same cgroups, and may have the same job id just now
            job = self.record.submit("-Jkernel-oom", "-H", "-w", QUIET, script=eats + enter)
            folders = [
                CGROUPS / controller / path.replace("$SLURM_JOB_ID", str(job))
                for controller in ("memory", "cpuacct")
            ]
            if not any(folder.exists() for folder in folders):
                break
            cluster.run(["scancel", str(job)], check=True)
        else:
            self.why_not = f"{folders[0]} and those before it are there already: no kernel OOM kill"
            return
        try:
            for folder in folders:
                folder.mkdir(parents=True)
                self.cgroups = (*self.cgroups, folder)
            (folders[0] / "memory.limit_in_bytes").write_text(f"{LIMIT_MIB << 20}")
            os.chown(folders[0] / "cgroup.procs", uid, uid)
        except OSError as error:
            self.why_not = f"cgroups (v1) cannot be made here ({error}): no kernel OOM kill"
        seen = cluster.run(["test", "-w", str(folders[0] / "cgroup.procs")], user=user).returncode == 0
        if not seen:
            self.why_not = (
                self.why_not or "the chroot does not show the machine's cgroups: no kernel OOM kill"
            )
            cluster.run(["scancel", str(job)], check=True)
            return
        cluster.run(["scontrol", "release", str(job)], check=True)
        self.jobs["kernel-oom"] = job

    def act(self) -> None:
        """What befalls the jobs from outside."""
        run, record = self.record.cluster.run, self.record
        places = {name: record.given(self.jobs[name]).places[BROKEN][0] for name in ("xid", "ecc")}
        numbers = {name: record.devices(BROKEN)[place].number for name, place in places.items()}
        for name in places:  # what a counter shows at the agent's first look was there before the job
            self.told(name, lambda node: any(gpu.ecc_uncorrected is not None for gpu in node.gpus))
        record.gpus.xid(BROKEN, numbers["xid"], 79)
        record.gpus.set(BROKEN, numbers["ecc"], ecc_uncorrected_volatile=3, ecc_uncorrected_aggregate=3)
        self.begun("preempt")
        urgent = ["sbatch", "-purgent", "-w", TAKEN, "--exclusive", "--mem=0", "--wrap=sleep 5"]
        run(urgent, user=record.user, check=True)
        self.begun("cancel")
        run(["scancel", str(self.jobs["cancel"])], user=record.user, check=True)
        record.given(self.jobs["node"])
        os.kill(record.cluster.daemons()[f"slurmd-{DYING}"], signal.SIGKILL)
        # SlurmdTimeout is five minutes here: the administrator does not wait for it
        run(["scontrol", "update", f"NodeName={DYING}", "State=DOWN", "Reason=dead"], check=True)
        self.told("xid", lambda node: any(79 in gpu.xids for gpu in node.gpus))
        self.told("ecc", lambda node: any(gpu.ecc_uncorrected for gpu in node.gpus))
        if (
            not self.why_not
        ):  # Slurm would have told of it even if the job had ended before the agent's next look
            self.told("kernel-oom", lambda node: bool(node.host and node.host.oom_kills))
        for name in ("xid", "ecc", "beside", "beside-silent", "kernel-oom"):
            if name in self.jobs:
                (record.home / f"go-{self.jobs[name]}").touch()

    def begun(self, name: str) -> None:
        """Wait until the job has printed something.

        One that is ended between its allocation and its script's start has no line in its log for what ended it.
        """
        log = self.record.home / f"slurm-{self.jobs[name]}.out"
        self.record.wait_for(f"{name} to print", lambda: (log.exists() and log.stat().st_size > 0) or None)

    def told(self, name: str, seen: Callable[[NodeUse], bool]) -> None:
        """Wait until the node has told of it: it looks every 2 s."""

        def look() -> bool | None:
            status, body = self.record.ask(f"/v1/jobs/{self.jobs[name]}/usage")
            if status != 200:
                return None
            nodes = msgspec.json.decode(body, type=Usage).nodes
            return any(map(seen, nodes)) or None

        self.record.wait_for(f"word of {name}", look)

    def verdict(self, name: str, right: Callable[[VerdictAnswer], bool], *, job: str = "") -> VerdictAnswer:
        """The service's verdict, as soon as it is right: it changes while facts come in. Else the last one.

        Raises
        ------
        AssertionError: there is none.
        """
        last: list[VerdictAnswer] = []

        def look() -> bool:
            with suppress(ConnectionError):  # the keeper is started again now and then
                status, body = self.record.ask(f"/v1/jobs/{job or self.jobs[name]}/verdict")
                if status == 200:
                    last[:] = [msgspec.json.decode(body, type=VerdictAnswer)]
            return bool(last) and right(last[0])

        with suppress(AssertionError):  # the caller says what is wrong with the last one
            wait_until(look, max(self.since + PATIENCE - time.monotonic(), 0), f"a verdict on job {name}")
        assert last, f"the service does not know job {name}"
        return last[0]

    def tidy(self) -> None:
        """Let jobs go on that wait, and take the cgroups away that no job is in any more."""
        for job in self.jobs.values():
            (self.record.home / f"go-{job}").touch()
        for folder in self.cgroups:
            for each in (folder, folder.parent, folder.parent.parent):
                with suppress(OSError):  # another run's jobs may be in the outer ones
                    each.rmdir()


@pytest.fixture(scope="module")
def produced(cluster: Cluster) -> Iterator[Produced]:
    """Everything submitted, and done to it what has to be done."""
    record = Recorded(cluster)
    record.wait_for("the service", record.jobs)
    found = Produced(record)
    try:
        found.submit()
        found.act()
        yield found
    finally:
        found.tidy()


def quoted(record: Recorded, evidence: Evidence) -> str:
    """The line of the log that the evidence names."""
    assert evidence.line is not None
    return Path(evidence.file).read_text(errors="replace").split("\n")[evidence.line - 1]


def checked(produced: Produced, truth: Failure) -> None:
    """Hold the service's verdict on a failure against the truth."""
    answer = produced.verdict(
        truth.name,
        lambda answer: (
            answer.verdict is not None
            and answer.verdict.finding.reason == truth.reason
            and (not truth.line or answer.verdict.finding.evidence[0].line is not None)
        ),
    )
    assert answer.verdict is not None, answer.job
    verdict, finding = answer.verdict, answer.verdict.finding
    assert finding.reason == truth.reason, verdict
    if truth.state:
        assert verdict.state == truth.state
    evidence = finding.evidence
    assert any(truth.says in each.text for each in evidence), verdict
    if truth.line:
        log = produced.record.home / f"slurm-{produced.jobs[truth.name]}.out"
        assert (evidence[0].file, evidence[0].source) == (str(log), "user")
        assert truth.says in evidence[0].text
        assert truth.says in quoted(produced.record, evidence[0])
    if truth.source in ("user", "root"):
        assert verdict.source == truth.source, verdict
        assert evidence[0].source == truth.source
    elif not truth.source:
        assert any(each.source == "root" for each in evidence), verdict
    assert finding.node == truth.node, verdict
    assert finding.checkpoint.endswith(truth.checkpoint), verdict
    assert finding.resumes == bool(truth.checkpoint), verdict
    if truth.rank is not None:
        assert finding.rank == truth.rank
    assert finding.advice


@pytest.mark.all_releases
@pytest.mark.parametrize("name", BY_NAME)
def test_the_verdict_is_true(produced: Produced, name: str) -> None:
    checked(produced, BY_NAME[name])


def test_a_kernel_oom_kill_is_known_by_the_kernel(produced: Produced) -> None:
    if produced.why_not:
        pytest.skip(produced.why_not)
    checked(produced, KERNEL)


def test_a_run_that_ended_well_has_no_reason(produced: Produced) -> None:
    produced.record.complete(produced.jobs["well"])
    answer = produced.verdict("well", lambda answer: answer.job.state == "COMPLETED")
    assert answer.job.state == "COMPLETED"
    assert answer.verdict is None or answer.verdict.finding.reason == "none"


def test_three_of_twenty_tasks_have_a_verdict_each(produced: Produced) -> None:
    array = produced.jobs["array"]
    for task in FAILING:
        answer = produced.verdict(
            "", lambda answer: _reason(answer) == "semantic_error", job=f"{array}_{task}"
        )
        assert _reason(answer) == "semantic_error", answer
        assert answer.verdict is not None
        first = answer.verdict.finding.evidence[0]
        assert first.file == str(produced.record.home / f"slurm-{array}_{task}.out")
        assert first.text == quoted(produced.record, first) == f"KeyError: 'learning_rate_{task}'"
    for task in {*range(TASKS)} - {*FAILING}:
        answer = produced.verdict("", lambda answer: answer.job.state == "COMPLETED", job=f"{array}_{task}")
        assert answer.job.state == "COMPLETED"
        assert _reason(answer) in (None, "none")


def _reason(answer: VerdictAnswer) -> str | None:
    return None if answer.verdict is None else answer.verdict.finding.reason


def test_the_user_is_told_the_same(produced: Produced) -> None:
    truth = BY_NAME["import"]
    checked(produced, truth)
    job = str(produced.jobs["import"])
    done = produced.record.cluster.run(["gsub", "why", job, "--json"], user=produced.record.user)
    assert done.returncode == 0, done.stderr
    told = json.dumps(json.loads(done.stdout))
    assert truth.reason in told
    assert truth.says.replace("'", "\\u0027") in told or truth.says in told
    shown = produced.record.cluster.run(["gsub", "why", job], user=produced.record.user)
    assert shown.returncode == 0, shown.stderr
    assert truth.says in shown.stdout


def test_another_user_is_told_nothing(produced: Produced) -> None:
    users = produced.record.cluster.users
    if len(users) < 2:
        pytest.skip("there is one user only")
    status, _ = produced.record.ask(f"/v1/jobs/{produced.jobs['import']}/verdict", user=users[1])
    assert status == 404
