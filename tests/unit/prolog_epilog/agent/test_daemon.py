"""The agent's loop over parts that do as they are told, and the real process with the hooks and the emulated NVML."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.findings import Finding
from profiler.host import HostReading
from profiler.records import (
    JobEnded,
    JobFinding,
    JobRef,
    JobSeries,
    JobStarted,
    JobUsage,
    NodeEvent,
    Record,
    decode,
    identity,
)
from prolog_epilog.agent import daemon
from prolog_epilog.agent.alone import NotAloneError, alone
from prolog_epilog.agent.daemon import Agent, Parts, SamplingDiedError
from prolog_epilog.agent.edges import Attempt
from prolog_epilog.agent.jobs import Jobs
from prolog_epilog.agent.settings import SettingsError, node_name, slurmd_spool
from tests.nvml_helper import NODE, ROOT, Emulation, emulation, nvml_forks, nvml_library  # noqa: F401 - fixtures
from tests.unit.prolog_epilog.agent.conftest import Installed, fill, mount
from tests.unit.prolog_epilog.agent.fakes import (
    FakeGpus,
    FakeHealth,
    FakeHost,
    FakeSampler,
    FakeSpool,
    hook_bytes,
    sample,
    settings,
)
from tests.unit.prolog_epilog.failures.rig import ADA, BOB, home, written
from tests.waiting import wait_until

J7 = JobRef(7)


class Rig:
    """An agent in a thread, and the levers of its parts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool = FakeSpool()
        self.host = FakeHost()
        self.health = FakeHealth()
        self.sampler: FakeSampler
        self.running: Callable[[tuple[JobRef, ...], float], None]
        self.kept: list[msgspec.Struct] = []
        self.logs_hang: threading.Event | None = None

        def sampler(on_sample: Callable[..., None]) -> FakeSampler:
            self.sampler = FakeSampler(on_sample)
            return self.sampler

        def sender(on_running: Callable[[tuple[JobRef, ...], float], None]) -> None:
            self.running = on_running

        def health(emit: Callable[[msgspec.Struct], None], jobs: Jobs) -> FakeHealth:
            self.emit = emit
            return self.health

        self.agent = Agent(
            settings(folder),
            Parts(
                self.spool,
                FakeGpus(),
                self.host,
                sampler,
                sender,
                health,
                self.kept.append,
                read_logs=self.read,
            ),
        )
        self.thread = threading.Thread(target=self.agent.run, daemon=True)

    def hook(self, event: str, job: int = 7, folder: str = "spool", **env: str) -> None:
        """A hook's file, in its place at once."""
        place = self.folder / folder / "new"
        path = place / f"{event}.{job}.{env.get('SLURM_JOB_RESTART_COUNT', '0')}.1"
        temporary = place.parent / path.name
        temporary.write_bytes(hook_bytes(event, SLURM_JOB_ID=str(job), SLURM_JOB_GPUS="3", **env))
        temporary.replace(path)

    def read(self, attempt: Attempt) -> Finding:
        if self.logs_hang is not None:
            self.logs_hang.wait(60)
        return Finding("gpu_oom", advice=f"job {attempt.ended.job.job_id}")

    def look(self, use: float = 50.0) -> None:
        self.sampler.say(sample(time.monotonic(), {3: use}), time.time())

    def await_(self, *kinds: type, count: int = 1) -> None:
        self.spool.await_(lambda: all(len(self.spool.of(kind)) >= count for kind in kinds))

    def files(self) -> list[str]:
        return sorted(p.name for name in ("spool", "run") for p in (self.folder / name / "new").iterdir())


@contextmanager
def running(folder: Path) -> Iterator[Rig]:
    rig = Rig(folder)
    rig.thread.start()
    try:
        yield rig
    finally:
        rig.agent.stop()
        rig.thread.join(30)
        assert not rig.thread.is_alive()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(tmp_path) as one:
        assert eventually(lambda: (tmp_path / "run" / "new").is_dir())
        yield one


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> bool:
    return bool(wait_until(condition, seconds, pause=0.02))


@pytest.mark.parametrize("folder", ["spool", "run"])
def test_a_hooks_file_becomes_a_record_and_goes(rig: Rig, folder: str) -> None:
    rig.hook("prolog", folder=folder)
    rig.await_(JobStarted)
    assert rig.sampler.asked.acquire(timeout=30), "a look at the start of a job"
    assert eventually(lambda: rig.files() == [])
    rig.look()
    rig.hook("epilog", folder=folder)
    rig.await_(JobEnded)
    assert rig.sampler.asked.acquire(timeout=30), "and at its end"
    rig.look()
    rig.await_(JobUsage, JobSeries)
    assert eventually(lambda: len(rig.health.fed) == 2) and rig.health.soon == 1


def test_cpus_and_memory_come_with_the_sample(rig: Rig) -> None:
    rig.host.readings[7] = HostReading("proc", cpu_seconds=5.0, memory_bytes=1 << 20)
    rig.hook("prolog")
    rig.await_(JobStarted)
    rig.look()
    assert eventually(lambda: rig.host.reads and not rig.agent._beside.busy and rig.agent._held is None)
    rig.hook("epilog")
    rig.await_(JobEnded)
    rig.look()
    rig.await_(JobUsage)
    (usage,) = rig.spool.of(JobUsage)
    assert usage.host is not None and usage.host.memory_peak_bytes == 1 << 20


def test_a_process_that_hangs_in_the_kernel_costs_only_what_is_read_of_it(rig: Rig) -> None:
    rig.host.hang = threading.Event()
    try:
        rig.hook("prolog")
        rig.await_(JobStarted)
        rig.look()
        assert eventually(lambda: rig.agent._beside.busy)
        rig.look()
        rig.hook("prolog", 8)
        rig.await_(JobStarted, count=2)
        rig.hook("epilog")
        rig.await_(JobEnded)
        rig.look()
        rig.await_(JobUsage)
        assert rig.spool.of(JobUsage)[0].gpus[0].samples > 0
    finally:
        rig.host.hang.set()


def test_reading_that_hangs_for_long_is_told_once_and_when_it_is_well(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(daemon, "_HANGS_AFTER", 0.0)
    rig.host.hang = threading.Event()
    try:
        rig.hook("prolog")
        rig.await_(JobStarted)
        rig.look()
        assert eventually(lambda: rig.agent._beside.busy)
        rig.look()
        rig.look()
        rig.await_(NodeEvent)
    finally:
        rig.host.hang.set()
    assert eventually(lambda: not rig.agent._beside.busy)
    monkeypatch.setattr(daemon, "_HANGS_AFTER", 600.0)
    rig.look()
    rig.await_(NodeEvent, count=2)
    told = [(event.name, event.state) for event in rig.spool.of(NodeEvent)]
    assert told == [("host_use_hangs", "error"), ("host_use_hangs", "ok")]
    lines = [record.getMessage() for record in caplog.records if "host_use_hangs" in record.getMessage()]
    assert len(lines) == 2 and "state D" in lines[0] and "well again" in lines[1]


def test_a_fault_that_comes_again_and_again_fills_no_journal(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: object) -> None:
        raise KeyError("gone")

    monkeypatch.setattr(rig.agent._jobs, "turn", fault)
    for _ in range(20):
        rig.look()
    rig.await_(NodeEvent)
    rig.hook("prolog")
    rig.await_(JobStarted)
    assert len([record for record in caplog.records if record.exc_info]) == 1


@pytest.mark.slow
def test_a_driver_that_hangs_delays_no_end_and_in_the_end_no_report(rig: Rig) -> None:
    rig.hook("prolog")
    rig.await_(JobStarted)
    rig.hook("epilog")
    rig.await_(JobEnded)  # no sample ever comes
    rig.await_(JobUsage)
    (usage,) = rig.spool.of(JobUsage)
    assert usage.final and usage.job == J7


def test_a_driver_that_hangs_is_told_once_and_when_it_is_well(rig: Rig) -> None:
    for state in ("ok", "hung", "hung", "ok"):
        rig.sampler.say(sample(time.monotonic(), {}, state=state), time.time())
    rig.await_(NodeEvent, count=2)
    rig.look()
    assert [(event.name, event.state) for event in rig.spool.of(NodeEvent)] == [
        ("gpu_driver", "error"),
        ("gpu_driver", "ok"),
    ]


def test_a_file_that_is_no_hooks_is_told_and_holds_up_nobody(rig: Rig) -> None:
    (rig.folder / "spool" / "new" / "prolog.1.0.1").write_bytes(b"GSUB_HOOK=9\0END=1\0")
    (rig.folder / "spool" / "new" / "a\udcff\x1b").write_bytes(b"x")
    rig.hook("prolog")
    rig.await_(JobStarted, NodeEvent)
    assert eventually(lambda: rig.files() == [])
    assert len(list((rig.folder / "spool" / "poison").iterdir())) == 2
    assert "hook_unfit" in {event.name for event in rig.spool.of(NodeEvent)}


@pytest.mark.slow
def test_a_file_that_was_cut_off_is_taken_for_what_it_is(rig: Rig) -> None:
    path = rig.folder / "spool" / "new" / "epilog.7.1.44"
    path.write_bytes(hook_bytes("epilog", SLURM_JOB_ID="7")[:20])
    rig.await_(JobEnded)
    assert rig.spool.of(JobEnded)[0].job == JobRef(7, 1)
    assert eventually(lambda: rig.files() == [])
    assert "hook_torn" in {event.name for event in rig.spool.of(NodeEvent)}


def test_a_folder_that_was_removed_is_made_again_and_watched(rig: Rig) -> None:
    (rig.folder / "run" / "new").rmdir()
    rig.hook("prolog", 8)
    rig.await_(JobStarted)
    assert eventually(lambda: (rig.folder / "run" / "new").is_dir())
    rig.hook("prolog", 9, folder="run")
    rig.await_(JobStarted, count=2)


def test_the_hooks_folders_are_roots_alone(rig: Rig) -> None:
    (rig.folder / "run" / "new").chmod(0o777)
    rig.hook("prolog")
    rig.await_(JobStarted)
    assert eventually(lambda: (rig.folder / "run" / "new").stat().st_mode & 0o777 == 0o700)


@pytest.mark.slow
def test_hundreds_of_jobs_at_once_are_all_there(rig: Rig) -> None:
    for job in range(1, 301):
        rig.hook("prolog", job)
        if job % 2:
            rig.hook("epilog", job)
    rig.await_(JobStarted, count=300)
    rig.await_(JobEnded, count=150)
    rig.look()
    rig.spool.await_(lambda: len(rig.spool.of(JobUsage)) == 150)
    assert eventually(lambda: rig.files() == [])
    records = [r for r in rig.spool.records if isinstance(r, JobStarted | JobEnded)]
    assert len({identity(record) for record in records}) == len(records) == 450


def test_what_health_checks_say_goes_to_the_spool(rig: Rig) -> None:
    event = NodeEvent(id="0" * 32, cluster="lab", node="n1", at=1.0, name="disk", state="error")
    rig.emit(event)
    rig.await_(NodeEvent)
    assert rig.spool.of(NodeEvent) == [event]


@pytest.mark.slow
def test_at_the_end_all_is_kept_for_the_next_run(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        assert eventually(lambda: (tmp_path / "run" / "new").is_dir())
        rig.hook("prolog")
        rig.await_(JobStarted)
    assert rig.health.stopped and rig.kept
    with running(tmp_path) as again:
        again.running((JobRef(8),), 1.0)
        again.hook("epilog")
        again.await_(JobEnded, JobUsage)
        assert again.spool.of(JobStarted) == []


def test_an_answer_of_slurm_reaches_the_loop(rig: Rig) -> None:
    rig.hook("prolog")
    rig.await_(JobStarted)
    rig.running((JobRef(9, 4),), 1000.0)
    assert eventually(lambda: rig.agent._reconciler.restarts(9) == 4)


def test_systemd_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        address = f"\0gsub-test-{os.getpid()}"
        listener.bind(address)
        listener.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + address[1:])
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        said: list[str] = []
        with running(tmp_path):
            while not said or not said[-1].startswith("WATCHDOG=1"):
                said.append(listener.recv(4096).decode())
        while not said[-1].startswith("STOPPING=1"):
            said.append(listener.recv(4096).decode())
    assert said[0].startswith("READY=1")


# --- the command line ---


@pytest.mark.parametrize(
    ("given", "env", "name"),
    [("n7", {"SLURMD_NODENAME": "n8"}, "n7"), (None, {"SLURMD_NODENAME": "n8"}, "n8")],
)
def test_the_nodes_name(given: str | None, env: dict[str, str], name: str) -> None:
    assert node_name(given, env) == name


def test_a_nodes_name_that_is_none() -> None:
    assert "." not in node_name(None, {})
    with pytest.raises(SettingsError, match="no name of a node"):
        node_name("n1/../x", {})


def test_where_slurmds_spool_folder_is(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("# SlurmdSpoolDir=/wrong\nslurmdspooldir = /var/lib/slurm/%n\nSlurmdPort=1\n")
    assert slurmd_spool(None, str(conf), "n1") == Path("/var/lib/slurm/n1")
    assert slurmd_spool(Path("/x/%n"), str(conf), "n1") == Path("/x/n1")
    assert slurmd_spool(None, str(tmp_path / "none"), "n1") == Path("/var/spool/slurmd")


def command(*argv: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "prolog_epilog.agent", *map(str, argv)],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--site", "/nonexistent.toml"], "cannot be read"),
        (["--interval", "0"], "0.1 to 3600"),
        (["--interval", "soon"], "soon"),
        (["--node", "a b"], "no name of a node"),
        (["extra"], "extra"),
        (["--sit", "x"], "--sit"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_clear_error(argv: list[str], says: str, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('cluster = "lab"\n')
    done = command(*argv, env={"GSUB_SITE": str(site)})
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_a_bad_address_of_the_service_is_exit_code_2(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('cluster = "lab"\n[service]\nurl = "http://host:99999"\n')
    done = command("--site", site, "--spool", tmp_path / "s", "--run", tmp_path / "r")
    assert done.returncode == 2 and "99999" in done.stderr and "Traceback" not in done.stderr


def test_folders_that_cannot_be_made_are_exit_code_1(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('cluster = "lab"\n')
    done = command("--site", site, "--spool", "/proc/x", "--run", tmp_path / "r")
    assert done.returncode == 1 and "try:" in done.stderr and "Traceback" not in done.stderr


def test_an_agent_whose_looking_has_died_ends_in_order_and_with_an_error(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.sampler.died = True
    late = threading.Timer(20, rig.agent.stop)
    late.start()
    with pytest.raises(SamplingDiedError):
        rig.agent.run()
    late.cancel()
    assert rig.kept and rig.health.stopped


@pytest.mark.slow
def test_a_thread_that_died_is_exit_code_1_so_that_systemd_starts_the_agent_again(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('cluster = "lab"\n[health]\nenabled = false\n')
    code = (
        "import sys\n"
        "from prolog_epilog.agent import sampling\n"
        "from prolog_epilog.agent.__main__ import main\n"
        "sampling.Sampling._next = lambda *_: 1 / 0\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    argv = ["--site", site, "--node", NODE, "--spool", tmp_path / "s", "--run", tmp_path / "r"]
    argv += ["--slurmd-spool", tmp_path]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, argv)],
        cwd=ROOT, text=True, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    assert done.stderr.rstrip().splitlines()[-2].startswith("gsub-noded: the thread that looks at the GPUs")


# --- the real process ---


class Process:
    """gsub-noded on its own, with the emulated GPUs and the real hooks."""

    def __init__(self, emulation: Emulation, hooks: Installed) -> None:  # noqa: F811
        self.emulation, self.hooks = emulation, hooks
        self.site = hooks.folder / "site.toml"
        self.site.write_text(
            'cluster = "lab"\n[agent]\ninterval = "1s"\ndeadline = "2s"\nreport = "3s"\n[health]\nenabled = false\n'
        )
        slurmd = hooks.folder / "slurmd"
        line = "slurmd: Gres Name=gpu Type=(null) Count=1 Index={0} ID=7696487 File=/dev/nvidia{0} (null)"
        lines = "\n".join(line.format(number) for number in range(3))
        slurmd.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
        slurmd.chmod(0o755)
        self.process: subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        argv = ["-m", "prolog_epilog.agent", "--site", self.site, "--node", NODE, "--run", self.hooks.run]
        argv += ["--spool", self.hooks.spool, "--slurmd-spool", self.hooks.folder]
        self.process = subprocess.Popen(
            [sys.executable, *map(str, argv)],
            env={**self.emulation.env, "PATH": f"{self.hooks.folder}:{os.environ['PATH']}"},
            cwd=ROOT,
            text=True,
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr is not None
        while "jobs known" not in (line := self.process.stderr.readline()):
            assert line, "it ended"
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def kill(self, number: int = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)

    def records(self) -> list[Record]:
        found = []
        for path in sorted((self.hooks.spool / "out").glob("[0-9]*")):
            try:
                found.append(decode(path.read_bytes()))
            except FileNotFoundError:
                continue
        return found

    def has(self, kind: type, job: int, **what: Any) -> bool:
        return any(
            isinstance(record, kind)
            and record.job == JobRef(job)
            and all(getattr(record, key) == value for key, value in what.items())
            for record in self.records()
        )


@pytest.fixture
def process(emulation: Emulation, hooks: Installed) -> Iterator[Process]:  # noqa: F811
    one = Process(emulation, hooks)
    yield one
    if one.process.poll() is None:
        one.kill()


def test_logs_that_take_long_to_read_hold_up_nothing(rig: Rig) -> None:
    rig.logs_hang = threading.Event()
    try:
        for job in (7, 8):
            rig.hook("prolog", job)
            rig.hook("epilog", job, SLURM_JOB_EXIT_CODE="256")
        rig.await_(JobStarted, JobEnded, count=2)
        rig.look()
        rig.spool.await_(lambda: sum(usage.final for usage in rig.spool.of(JobUsage)) == 2)
        assert rig.spool.of(JobFinding) == []
    finally:
        rig.logs_hang.set()
    rig.await_(JobFinding, count=2)
    said = sorted((record.job.job_id, record.finding.advice) for record in rig.spool.of(JobFinding))
    assert said == [(7, "job 7"), (8, "job 8")], "each has its own answer"


LATE = ("were not read within", "the time for reading was up", "took too long to read")
"""What a finding says where its reader came to a deadline."""


@pytest.mark.slow
@pytest.mark.root
def test_what_an_ended_jobs_log_says_is_read_as_its_user(process: Process, tmp_path: Path) -> None:
    place = home(tmp_path, mode=0o700)
    written(
        place / "7.out",
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 10 GiB total)\n",
    )
    written(place / "8.out", "MemoryError\n", uid=BOB)

    def found(job: int, output: str) -> Finding:
        env = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(ADA), "SLURM_JOB_GID": str(ADA)}
        env |= {"SLURM_JOB_WORK_DIR": str(place), "SLURM_JOB_STDOUT": output, "SLURM_NODELIST": NODE}
        process.hooks.hook("prolog", env)
        process.hooks.hook("epilog", {**env, "SLURM_JOB_EXIT_CODE": "256"})
        assert eventually(lambda: process.has(JobFinding, job), 60.0)
        return next(
            each.finding
            for each in process.records()
            if isinstance(each, JobFinding) and each.job == JobRef(job)
        )

    def in_time(job: int) -> Finding:
        """Its reader has a deadline, which a machine under load misses: then the finding says so, and another may."""
        for number in (job, job + 10, job + 20):
            finding = found(number, "%j.out" if number == job else f"{job}.out")
            if not any(said in text for said in LATE for text in finding.unseen):
                break
            assert finding.reason == "no_signature"
        return finding

    seven, eight = in_time(7), in_time(8)
    assert seven.reason == "gpu_oom" and seven.evidence[0].file == str(place / "7.out"), seven
    assert eight.reason == "no_signature" and eight.unseen == (f"{place / '8.out'} may not be read",), eight


@pytest.mark.slow
def test_from_the_hooks_to_the_spool(process: Process) -> None:
    process.emulation.gpus.set(NODE, 2, utilization=70)
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "2", "SLURM_JOB_UID": "1000"}
    assert process.hooks.hook("prolog", env) == (0, b"")
    assert eventually(lambda: process.has(JobUsage, 7, final=False))
    assert process.hooks.hook("epilog", {**env, "SLURM_JOB_EXIT_CODE": "256"}) == (0, b"")
    assert eventually(lambda: process.has(JobUsage, 7, final=True))
    assert process.has(JobStarted, 7, uid=1000) and process.has(JobEnded, 7, exit_code=1)
    (usage,) = [record for record in process.records() if isinstance(record, JobUsage) and record.final]
    (gpu,) = usage.gpus
    assert gpu.gpu.minor == 2 and gpu.gpu.uuid and gpu.utilisation_mean == pytest.approx(70, abs=0.7)
    assert process.kill(signal.SIGTERM) == 0


def test_there_is_one_agent_a_node(process: Process) -> None:
    again = command(
        "--site", process.site, "--node", NODE, "--run", process.hooks.run, "--spool", process.hooks.spool
    )
    assert again.returncode == 1 and f"process {process.process.pid}" in again.stderr
    process.kill()
    process.start()


def test_an_agent_that_was_killed_but_hangs_is_no_agent(tmp_path: Path) -> None:
    lock = alone(tmp_path)
    assert lock is not None
    try:
        with pytest.raises(NotAloneError, match=str(os.getpid())):
            alone(tmp_path)
        (tmp_path / "proc" / str(os.getpid())).mkdir(parents=True)
        (tmp_path / "proc" / str(os.getpid()) / "stat").write_text(f"{os.getpid()} (python (3)) Z 1 1\n")
        again = alone(tmp_path, tmp_path / "proc")
        assert again is not None
        os.close(again)
    finally:
        os.close(lock)
    last = alone(tmp_path)
    assert last is not None
    os.close(last)
    assert alone(Path("/proc/nowhere")) is None


@pytest.mark.slow
def test_a_driver_that_hangs_holds_up_neither_hook_nor_end_nor_the_agents_own(process: Process) -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "1"}
    process.hooks.hook("prolog", env)
    assert eventually(lambda: process.has(JobUsage, 7))
    with process.emulation.gpus.hang(NODE, None, "nvmlDeviceGetTemperature"):
        process.hooks.hook("epilog", env)
        assert eventually(lambda: process.has(JobEnded, 7))
        assert eventually(lambda: process.has(JobUsage, 7, final=True))
        started = time.monotonic()
        assert process.kill(signal.SIGTERM) == 0
        assert time.monotonic() - started < 20


@pytest.mark.slow
def test_killed_again_and_again_it_loses_nothing_and_says_nothing_twice(process: Process) -> None:
    jobs = range(1, 13)
    for job in jobs:
        env = {"SLURM_JOB_ID": str(job), "SLURM_JOB_GPUS": "0"}
        process.hooks.start("prolog", env).communicate()
        if job % 3 == 0:
            process.kill()
        process.hooks.start("epilog", {**env, "SLURM_JOB_EXIT_CODE": "0"}).communicate()
        if job % 3 == 0:
            process.start()
        if job % 3 == 1:
            process.kill()
            process.start()
    assert eventually(
        lambda: all(process.has(JobEnded, job) and process.has(JobStarted, job) for job in jobs)
    )
    assert eventually(lambda: all(process.has(JobUsage, job, final=True) for job in jobs))
    assert eventually(lambda: process.hooks.files() == [])
    facts = {identity(r) for r in process.records() if isinstance(r, JobStarted | JobEnded)}
    assert len(facts) == 2 * len(jobs)


@pytest.mark.slow
@pytest.mark.root
def test_on_a_full_disk_and_killed_there_it_loses_nothing(
    emulation: Emulation,  # noqa: F811
    hooks: Installed,
) -> None:
    mount("-t", "tmpfs", "-o", "size=2m", "none", str(hooks.spool))
    try:
        (hooks.spool / "new").mkdir()
        process = Process(emulation, hooks)
        env = {"SLURM_JOB_GPUS": "0", "SLURM_JOB_EXIT_CODE": "256"}
        hooks.hook("prolog", {**env, "SLURM_JOB_ID": "1"})
        assert eventually(lambda: process.has(JobStarted, 1) and hooks.files() == [])
        filled = fill(hooks.spool)
        hooks.hook("epilog", {**env, "SLURM_JOB_ID": "1"})
        hooks.hook("prolog", {**env, "SLURM_JOB_ID": "2"})
        process.kill()
        process.start()
        hooks.hook("epilog", {**env, "SLURM_JOB_ID": "2"})
        filled.unlink()
        for job in (1, 2):
            assert eventually(lambda job=job: process.has(JobStarted, job))  # type: ignore[misc]
            assert eventually(lambda job=job: process.has(JobEnded, job, exit_code=1))  # type: ignore[misc]
            assert eventually(lambda job=job: process.has(JobUsage, job, final=True))  # type: ignore[misc]
        assert eventually(lambda: hooks.files() == [])
        process.kill()
    finally:
        subprocess.run(["umount", "-l", str(hooks.spool)], check=True)


def test_it_begins_light() -> None:
    code = "import sys, prolog_epilog.agent.parts; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {
        "asyncio",
        "sqlalchemy",
        "alembic",
        "starlette",
        "uvicorn",
        "psycopg",
        "pandas",
        "rich",
        "click",
        "yaml",
    }
    assert not heavy & set(done.stdout.split())


def test_the_registry_is_json_that_a_person_can_read(rig: Rig) -> None:
    rig.hook("prolog")
    rig.await_(JobStarted)
    path = rig.folder / "spool" / "jobs" / "7.0.json"
    assert eventually(path.exists)
    assert eventually(lambda: json.loads(path.read_bytes())["job"] == {"job_id": 7})
