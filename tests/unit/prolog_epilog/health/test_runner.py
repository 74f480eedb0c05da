"""The health thread as the agent runs it: real threads and children, real files; only the samples are made."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.gpu import GpuSample
from profiler.records import GpuRef, JobRef, NodeEvent, decode, encode
from prolog_epilog.health import runner as module
from prolog_epilog.health.children import Children
from prolog_epilog.health.damping import RULES
from prolog_epilog.health.keeping import HealthState
from prolog_epilog.health.runner import HealthRunner
from prolog_epilog.health.table import CHECKS
from site_configs.site import load_site
from tests import waiting
from tests.unit.prolog_epilog.health.test_gpu_checks import reading, sample

LONG = 60.0
ENFORCE = '[policy]\nmode = "enforce"\n[health]\ndrain = true\n'
NO_CHILDREN = "".join(
    f"[health.checks.{name}]\nenabled = false\n"
    for name in (
        "disk_space", "inodes", "read_only", "slurmd_spool", "memory_errors", "clock_offset", "stale_mounts",
    )
)  # fmt: skip


class Node:
    """A node's health, what it has told, and its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.run.mkdir(mode=0o755)
        self.drain = self.run / "drain"
        self.off = folder / "health.off"
        self.events: list[NodeEvent] = []
        self._told = threading.Condition()
        self.runner: HealthRunner | None = None
        self.turns = 0

    def emit(self, event: NodeEvent) -> None:
        with self._told:
            self.events.append(decode(encode(event)))  # type: ignore[arg-type]
            self._told.notify_all()

    def start(self, text: str = "", restored: HealthState | None = None, **values: Any) -> HealthRunner:
        (self.folder / "site.toml").write_text(f'cluster = "c"\n{text}')
        site = load_site(self.folder / "site.toml")
        self.runner = HealthRunner(
            site, "n1", self.emit, self.drain, self.off, spool=self.folder, slurmd_spool=self.folder,
            restored=restored, **values,
        )  # fmt: skip
        turn = self.runner._turn

        def counted() -> bool:
            try:
                return turn()
            finally:
                self.turns += 1

        self.runner._turn = counted  # type: ignore[method-assign]
        self.runner.start()
        return self.runner

    def stop(self) -> None:
        if self.runner is not None:
            self.runner.stop(LONG)
            assert not self.runner.is_alive()
            self.runner = None

    def until(self, count: int = 1, **want: Any) -> NodeEvent:
        """The event number `count` with these values, waited for."""

        def found() -> list[NodeEvent]:
            return [e for e in self.events if all(getattr(e, key) == value for key, value in want.items())]

        with self._told:
            assert self._told.wait_for(lambda: len(found()) >= count, LONG), (want, self.events)
            return found()[count - 1]

    def feed(self, *readings: Any, times: int = 1, **values: Any) -> None:
        """The same sample so many times, until the last one is judged and the drain file is as it should be."""
        assert self.runner is not None
        for _ in range(times):
            self.runner.feed(sample(*readings, at=time.monotonic(), **values))
        wait_until(self.runner._items.empty)
        turns = self.turns
        wait_until(lambda: self.turns > turns)


def wait_until(condition: Callable[[], bool]) -> None:
    waiting.wait_until(condition, LONG, pause=0.02)


@pytest.fixture
def node(tmp_path, monkeypatch) -> Iterator[Node]:
    monkeypatch.setattr(module, "_TURN", 0.05)
    node = Node(tmp_path)
    yield node
    node.stop()


EIGHT = [reading(number) for number in range(8)]


def test_a_lost_gpu_is_one_event_and_one_more_when_it_is_back(node):
    node.start(NO_CHILDREN, slurm_gpus=lambda: 8)
    node.feed(*EIGHT[:7])
    assert node.events == []
    node.feed(*EIGHT[:7], times=5)
    node.feed(*EIGHT, times=5)
    counts = [event for event in node.events if event.name == "gpu_count"]
    assert [(event.state, event.detail) for event in counts] == [
        ("error", "7 of 8 GPUs answer"),
        ("ok", "8 of 8 GPUs answer"),
    ]
    assert counts[0].action == "comment"  # it would drain, and this site does not let it
    assert (counts[0].cluster, counts[0].node) == ("c", "n1")
    assert not node.drain.exists()


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        ('[partitions.gpu]\nnodes = "n[1-2]"\ngpus_per_node = 8\n', 1),
        ('[partitions.gpu]\nnodes = "n[2-3]"\ngpus_per_node = 8\n', 0),  # another's
    ],
)
def test_without_slurms_count_the_site_files_counts(node, partitions, expected):
    node.start(NO_CHILDREN + partitions)
    node.feed(*EIGHT[:7], times=3)
    assert len([event for event in node.events if event.name == "gpu_count"]) == expected


def test_it_drains_with_a_named_reason_where_the_site_says_so_and_lifts_it(node):
    node.start(ENFORCE + NO_CHILDREN, slurm_gpus=lambda: 8)
    node.feed(*EIGHT[:7], times=2)
    assert node.until(name="gpu_count").action == "drain"
    wait_until(node.drain.exists)
    version, expiry, reason = node.drain.read_text().rstrip("\n").split(" ", 2)
    assert (version, reason) == ("v1", "gpu_count: 7 of 8 GPUs answer")
    assert 500 < int(expiry) - time.time() <= 600
    node.feed(*EIGHT, times=3)
    assert node.until(name="gpu_count", state="ok").action == "undrain"
    wait_until(lambda: not node.drain.exists())


@pytest.mark.parametrize(
    "text",
    [
        '[policy]\nmode = "enforce"\n',
        '[policy]\nmode = "advise"\n[health]\ndrain = true\n',
        '[policy]\nmode = "observe"\n[health]\ndrain = true\n',
        ENFORCE + '[health.checks.gpu_count]\non_fail = "comment"\n',
        ENFORCE + '[health.checks.gpu_count]\non_fail = "none"\n',
    ],
)
def test_it_drains_nowhere_else(node, text):
    node.start(text + NO_CHILDREN, slurm_gpus=lambda: 8)
    node.feed(*EIGHT[:7], times=4)
    assert node.until(name="gpu_count", state="error").action == ("none" if "none" in text else "comment")
    assert not node.drain.exists()


def test_what_did_not_answer_does_not_drain(node, tmp_path):
    """A command that cannot be started, with on_fail = drain."""
    text = (
        ENFORCE
        + NO_CHILDREN
        + f"[health.checks.mine]\ncommand = ['{tmp_path}/none']\nevery = '1s'\non_fail = 'drain'\n"
    )
    node.start(text)
    event = node.until(name="mine", state="unknown")
    assert event.action == "none" and "cannot start" in event.detail
    assert not node.drain.exists()


def test_the_drain_file_is_renewed(node, monkeypatch):
    monkeypatch.setattr(module, "_RENEW", 0.0)
    node.start(ENFORCE + NO_CHILDREN, slurm_gpus=lambda: 8)
    node.feed(*EIGHT[:7], times=2)
    wait_until(node.drain.exists)
    node.drain.write_text("v1 0 old\n")
    wait_until(lambda: "gpu_count" in node.drain.read_text())


def test_a_certain_fault_counts_at_once_and_names_the_gpu_and_its_job(node):
    holder = JobRef(4711)
    node.start(NO_CHILDREN, job_of=lambda gpu: holder if gpu.minor == 3 else None)
    node.feed(*EIGHT[:3], reading(3, xids=(79,)), *EIGHT[4:])
    event = node.until(name="xid", state="error")
    assert event.detail == "GPU 3: Xid 79 (GPU has fallen off the bus)"
    assert event.gpu == GpuRef(minor=3, uuid="GPU-3", name="A100")
    assert event.job == holder
    node.feed(*EIGHT, times=10)
    assert [event.state for event in node.events if event.name == "xid"] == ["error"]  # it does not pass


def test_an_xid_of_a_users_program_is_only_recorded_and_not_over_and_over(node):
    node.start(ENFORCE + NO_CHILDREN)
    node.feed(reading(0, xids=(13, 13)), times=20)
    (event,) = node.events
    assert (event.name, event.state, event.action) == ("xid", "info", "none")
    assert "Xid 13" in event.detail
    assert not node.drain.exists()


def test_flapping_is_held_at_a_warning(node):
    node.start(NO_CHILDREN)
    for _ in range(RULES.flips):
        node.feed(reading(0, temperature_c=99), times=2)
        node.feed(reading(0), times=3)
    states = [event.state for event in node.events if event.name == "gpu_temperature"]
    assert states[: RULES.flips] == ["error", "ok"] * (RULES.flips // 2)
    assert states[RULES.flips :] == ["warning"]
    assert "flapping: 7 changes within 60 min" in node.events[-1].detail


def test_the_kill_switch_stops_checks_and_lifts_a_drain_and_clears(node):
    runner = node.start(ENFORCE + NO_CHILDREN, slurm_gpus=lambda: 8)
    node.feed(*EIGHT[:7], times=2)
    node.feed(reading(0, xids=(79,)))
    wait_until(node.drain.exists)
    node.off.touch()
    off = node.until(name="health", state="info")
    assert str(node.off) in off.detail
    wait_until(lambda: not node.drain.exists())
    before = len(node.events)
    node.feed(reading(0, xids=(79,)), times=5)
    assert len(node.events) == before
    assert runner.state().conditions == {} and runner.state().gpus.xids == ()
    node.off.unlink()
    node.until(2, name="health", state="info")
    node.feed(*EIGHT, times=3)
    assert len(node.events) == before + 1
    node.feed(*EIGHT[:7], times=2)
    node.until(2, name="gpu_count", state="error")


def test_the_kill_switch_ends_what_runs(node, tmp_path):
    program = tmp_path / "long"
    program.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nexec sleep 600\n")
    program.chmod(0o755)
    node.start(
        NO_CHILDREN + f"[health.checks.mine]\ncommand = ['{program}']\nevery = '1s'\ndeadline = '10m'\n"
    )
    wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().endswith("\n"))
    pid = int((tmp_path / "pids").read_text().split()[0])
    node.off.touch()
    node.until(name="health", state="info")
    wait_until(lambda: not _lives(pid))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_switched_off_in_the_site_file_nothing_is_told_and_a_left_drain_is_lifted(node):
    node.drain.write_text("v1 9999999999 from before\n")
    node.start("[health]\nenabled = false\n")
    node.feed(reading(0, xids=(79,)), times=3)
    assert node.events == []
    wait_until(lambda: not node.drain.exists())


@pytest.mark.slow
def test_a_program_of_the_sites_goes_bad_and_well_again(node, tmp_path):
    program = tmp_path / "mine"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/says\n! grep -q bad {tmp_path}/says || exit 2\n")
    program.chmod(0o755)
    (tmp_path / "says").write_text("bad things\n")
    node.start(
        NO_CHILDREN + f"[health.checks.mine]\ncommand = ['{program}']\nevery = '1s'\non_fail = 'comment'\n"
    )
    event = node.until(name="mine", state="error")
    assert (event.detail, event.action) == ("bad things", "comment")
    (tmp_path / "says").write_text("fine\n")
    assert node.until(name="mine", state="ok").detail == "fine"


def test_checks_that_hang_hold_up_no_others(node, tmp_path):
    """A program that is deaf to SIGTERM, and a class that waits on a FIFO for ever, among checks that answer."""
    deaf, fine = tmp_path / "deaf", tmp_path / "fine"
    deaf.write_text("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n")
    fine.write_text("#!/bin/sh\necho broken; exit 2\n")
    for path in (deaf, fine):
        path.chmod(0o755)
    node.start(
        NO_CHILDREN
        + f"[health.checks.deaf]\ncommand = ['{deaf}']\nevery = '1s'\ndeadline = '10m'\n"
        + f"[health.checks.fine]\ncommand = ['{fine}']\nevery = '1s'\n"
    )
    assert node.until(name="fine", state="error").detail == "broken"
    node.feed(*EIGHT[:7], times=2)
    node.feed(reading(0, xids=(95,)))
    node.until(name="xid", state="error")
    assert [event for event in node.events if event.name == "deaf"] == []  # it still has time


def test_a_problem_in_the_site_file_is_told_and_the_rest_runs(node):
    node.start(NO_CHILDREN + "[health.checks.gpu_cuont]\nwarn = 1\n")
    assert 'did you mean "gpu_count"?' in node.until(name="health", state="warning").detail
    node.feed(reading(0, xids=(79,)))
    node.until(name="xid", state="error")


def test_a_new_agent_goes_on_where_the_old_one_was(node):
    first = node.start(ENFORCE + NO_CHILDREN, slurm_gpus=lambda: 8)
    node.feed(*EIGHT[:7], times=2)
    node.feed(reading(0, xids=(64,)), *EIGHT[1:7])
    wait_until(node.drain.exists)
    told = len(node.events)
    text = msgspec.json.encode(first.state())
    node.stop()
    assert node.drain.exists()  # an agent that is restarted lets nobody in meanwhile
    node.start(ENFORCE + NO_CHILDREN, msgspec.json.decode(text, type=HealthState), slurm_gpus=lambda: 8)
    node.feed(*EIGHT[:7], times=2)
    assert len(node.events) == told  # nothing has changed: nothing is told
    assert "gpu_count" in node.drain.read_text()
    node.feed(*EIGHT, times=3)
    assert node.until(name="gpu_count", state="ok").action == "undrain"
    wait_until(lambda: "xid: GPU 0: Xid 64" in node.drain.read_text())


def test_after_a_boot_what_was_wrong_is_well_when_it_looks_well(node):
    first = node.start(NO_CHILDREN)
    node.feed(reading(0, xids=(79,)))
    state = msgspec.structs.replace(first.state(), boot="another")
    node.stop()
    node.start(NO_CHILDREN, state)
    node.feed(reading(0), times=3)
    node.until(name="xid", state="ok")


def test_a_gpu_that_was_not_well_and_is_seen_no_more_has_not_got_well(node):
    """A driver that is asked anew leaves out the GPU that it lost."""
    node.start(ENFORCE + NO_CHILDREN + "[health.checks.gpu_count]\nenabled = false\n")
    node.feed(reading(0), reading(1, fault="GPU_IS_LOST"))
    node.feed(reading(0), times=10)
    assert [event.state for event in node.events] == ["error"]
    assert "gpu_lost: GPU 1 does not answer" in node.drain.read_text()
    node.feed(reading(0), reading(1), times=3)
    assert [event.state for event in node.events] == ["error", "ok"]
    assert not node.drain.exists()


def test_a_gpu_that_is_not_there_after_a_boot_is_forgotten(node):
    first = node.start(ENFORCE + NO_CHILDREN)
    node.feed(reading(0), reading(1, fault="GPU_IS_LOST"))
    state = msgspec.structs.replace(first.state(), boot="another")
    node.stop()
    node.start(ENFORCE + NO_CHILDREN, state)
    node.feed(reading(0), times=3)
    event = node.until(name="gpu_lost", state="unknown")
    assert event.action == "undrain" and "not there since the node has booted" in event.detail
    wait_until(lambda: not node.drain.exists())


def test_a_slow_spool_holds_up_no_sampling(node):
    """What `emit` waits for is not waited for by who feeds samples."""
    let_go, entered = threading.Event(), threading.Event()

    def emit(event: NodeEvent) -> None:
        entered.set()
        let_go.wait(LONG)

    node.emit = emit
    runner = node.start(NO_CHILDREN)
    try:
        runner.feed(sample(reading(0, xids=(79,))))
        assert entered.wait(LONG)
        for _ in range(1000):
            runner.feed(GpuSample(0.0, ()))
        assert runner._items.qsize() <= 64
    finally:
        let_go.set()


@pytest.mark.slow
def test_when_no_process_can_be_started_the_checks_are_unknown_and_gpus_are_judged(node, monkeypatch):
    """The interpreter's file system hangs: Popen itself does not return."""
    let_go = threading.Event()
    monkeypatch.setattr(module, "_OVERDUE", 0.5)
    monkeypatch.setattr(Children, "_launch", lambda *_: let_go.wait(LONG))
    try:
        node.start("[health.checks.disk_space]\nevery = '1s'\ndeadline = '1s'\n")
        assert "was not run" in node.until(name="disk_space", state="unknown").detail
        node.feed(reading(0, xids=(79,)))
        node.until(name="xid", state="error")
    finally:
        let_go.set()


def test_all_of_gsubs_own_run_here(node):
    """Whatever this machine's state is: each answers, or has nothing to say here."""
    heard: set[str] = set()
    runner = node.start()
    take = runner._take

    def listen(name: str, findings: Any, **values: Any) -> None:
        heard.add(name)
        take(name, findings, **values)

    runner._take = listen
    wait_until(lambda: runner._runs is not None)
    runner.look_soon()
    node.feed(*EIGHT)
    wait_until(lambda: heard == set(CHECKS))


def test_a_fault_of_a_check_ends_no_other_and_is_told_once(node, caplog):
    broken = [True]

    def count() -> int:
        if broken:
            raise KeyError("count")
        return 2

    node.start(NO_CHILDREN, slurm_gpus=count)
    node.feed(reading(0), times=5)
    assert node.until(name="health", state="warning").detail == "a fault of the checks: KeyError: 'count'"
    assert [event.name for event in node.events] == ["health"] and len(caplog.records) == 1
    broken.clear()
    node.feed(reading(0), times=RULES.rise)
    assert node.until(name="gpu_count", state="error").detail == "1 of 2 GPUs answer"
