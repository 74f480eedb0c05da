"""The CPU lever on real processes: their threads, their children, those that come later, and what they chose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler import process_tree
from profiler.lever import EMULATED, AffinityLever, EmulatedLever, Lever, choose, cores, fold, pick
from profiler.process_tree import MARK, ProcessTree

CPUS = sorted(os.sched_getaffinity(0))
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")

# A process that answers each line with the affinities of its threads and of its child, and starts more when told
TREE = """
import json, os, subprocess, sys, threading
wait = threading.Event().wait
for _ in range(3):
    threading.Thread(target=wait, daemon=True).start()
children = []
for line in sys.stdin:
    word = line.strip()
    if word.startswith("pin"):
        os.sched_setaffinity(0, {int(word[3:])})
    if word == "fork":
        children.append(subprocess.Popen(["sleep", "100"]))
    if word == "thread":
        threading.Thread(target=wait, daemon=True).start()
    if word == "orphan":
        words = [sys.executable, "-c", "import subprocess; print(subprocess.Popen(['sleep', '100'], stdout=-3).pid)"]
        children.append(type("Orphan", (), {"pid": int(subprocess.run(words, stdout=-1).stdout)}))
    threads = [int(one) for one in os.listdir("/proc/self/task")]
    print(json.dumps({
        "main": [sorted(os.sched_getaffinity(0))],
        "threads": [sorted(os.sched_getaffinity(one)) for one in threads],
        "children": [sorted(os.sched_getaffinity(one.pid)) for one in children],
        "pids": [[one.pid for one in children]],
    }), flush=True)
"""


class Run:
    """The process above."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.started: set[int] = set()

    def asked(self, word: str = "") -> dict[str, list[list[int]]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        found: dict[str, list[list[int]]] = json.loads(self.process.stdout.readline())
        self.started.update(found.pop("pids")[0])
        return found

    def all(self) -> list[list[int]]:
        return [each for masks in self.asked().values() for each in masks]


@contextmanager
def running(env: dict[str, str] | None = None) -> Iterator[Run]:
    words = [sys.executable, "-u", "-c", textwrap.dedent(TREE)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=env) as process:
        run = Run(process)
        try:
            yield run
        finally:
            process.kill()
            for pid in run.started:
                os.kill(pid, 9)


@two_cpus
def test_it_narrows_a_whole_tree_and_what_comes_later_and_gives_it_back():
    with running() as run:
        run.asked("fork")
        lever = AffinityLever(ProcessTree(run.process.pid), CPUS[:2])
        assert lever.cap == 2
        lever.set(1)
        masks = run.all()
        assert len(masks) >= 6
        assert all(len(mask) == 1 for mask in masks)
        assert len({tuple(mask) for mask in masks}) == 1
        run.asked("thread")
        run.asked("fork")
        lever.again()
        assert all(len(mask) == 1 for mask in run.all())
        lever.set(2)
        assert all(mask == CPUS[:2] for mask in run.all())
        lever.set(1)
        run.asked("fork")  # it inherits what was narrowed, and is due what its parent is
        lever.restore()
        assert all(mask == CPUS for mask in run.all())
        lever.restore()


@two_cpus
def test_what_a_process_chose_for_itself_comes_back_and_no_more():
    with running() as run:
        run.asked(f"pin{CPUS[1]}")  # the main thread alone
        lever = AffinityLever(ProcessTree(run.process.pid), CPUS[:2])
        lever.set(1)
        found = run.asked()
        assert found["main"] == [[CPUS[0]]]  # folded onto the one that is left
        lever.restore()
        found = run.asked()
        assert found["main"] == [[CPUS[1]]]
        assert CPUS in found["threads"]


@two_cpus
def test_a_choice_that_is_made_while_it_is_narrowed_counts_from_then_on():
    with running() as run:
        lever = AffinityLever(ProcessTree(run.process.pid), CPUS[:2])
        lever.set(1)
        run.asked(f"pin{CPUS[1]}")
        lever.again()
        assert run.asked()["main"] == [[CPUS[0]]]
        lever.restore()
        assert run.asked()["main"] == [[CPUS[1]]]


@two_cpus
def test_an_orphan_and_a_task_with_the_runs_mark_are_of_it(tmp_path: Path):
    with running({**os.environ, MARK: str(tmp_path)}) as run:
        run.asked("orphan")  # whose parent has ended: its environment says whose it is
        lever = AffinityLever(ProcessTree(run.process.pid, tmp_path), CPUS[:2])
        lever.set(1)
        found = run.asked()
        assert found["children"] == [[CPUS[0]]]
        lever.restore()
        assert run.asked()["children"] == [CPUS]


def test_a_job_that_the_run_submits_is_not_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It inherits the run's mark by its environment, and may come to the same node."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for job, expected in (("8", False), ("7", True)):
        environ = {**os.environ, MARK: os.fspath(tmp_path), "SLURM_JOB_ID": job}
        other = subprocess.Popen(["sleep", "100"], env=environ)
        try:
            tree = ProcessTree(1 << 30, tmp_path)
            assert (other.pid in {one.pid for one in tree.processes()}) is expected
        finally:
            other.kill()
            other.wait()


def test_a_number_that_was_given_to_another_process_is_not_the_run(monkeypatch: pytest.MonkeyPatch):
    other = subprocess.Popen(["sleep", "100"])
    try:
        with monkeypatch.context() as patch:
            # As when the run's own process was seen under this number
            (first,) = ProcessTree(other.pid).processes()
            patch.setattr(process_tree, "about", lambda _: first._replace(began=first.began - 1, parent=0))
            tree = ProcessTree(other.pid)
        assert tree.processes() == ()
    finally:
        other.kill()
        other.wait()


def test_this_process_and_those_above_it_are_never_touched():
    # As in an allocation of which the shell has the mark itself
    tree = ProcessTree(os.getppid())
    assert os.getpid() not in {one.pid for one in tree.processes()}
    assert os.getppid() not in {one.pid for one in tree.processes()}


def test_processes_that_have_gone_are_no_trouble():
    gone = subprocess.Popen(["true"])
    gone.wait()
    lever = AffinityLever(ProcessTree(gone.pid), CPUS)
    lever.set(1)
    lever.restore()


@pytest.mark.parametrize("count", [0, -1, 10_000])
def test_counts_that_cannot_be_given_are_refused(count: int, tmp_path: Path):
    levers: list[Lever] = [AffinityLever(ProcessTree(1), CPUS), EmulatedLever(tmp_path / "cpus", 8)]
    for lever in levers:
        with pytest.raises(ValueError, match="cannot give"):
            lever.set(count)


def test_the_emulated_lever_writes_the_count_and_is_chosen_by_its_variable(tmp_path: Path):
    environ = {EMULATED: str(tmp_path / "cpus"), "SLURM_CPUS_ON_NODE": "24"}
    lever = choose(ProcessTree(os.getpid()), environ)
    assert isinstance(lever, EmulatedLever)
    assert lever.cap == 24
    lever.set(7)
    assert (tmp_path / "cpus").read_text() == "7\n"
    lever.restore()
    assert (tmp_path / "cpus").read_text() == "24\n"
    assert [path.name for path in tmp_path.iterdir()] == ["cpus"]


def test_the_real_lever_gives_no_more_than_slurm_did():
    lever = choose(ProcessTree(os.getpid()), {"SLURM_CPUS_ON_NODE": "1"})
    assert isinstance(lever, AffinityLever)
    assert lever.cap == 1
    assert choose(ProcessTree(os.getpid()), {"SLURM_CPUS_ON_NODE": "x"}).cap == len(CPUS)


def test_cores_are_kept_together(tmp_path: Path):
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert cores(range(8), tmp_path) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert cores({0, 1, 5}, tmp_path) == ((0,), (1, 5))
    assert pick(4, cores(range(8), tmp_path)) == (0, 4, 2, 6)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=40), st.data())
def test_as_many_cpus_as_asked_for_and_only_the_jobs_own(sizes: list[int], data: st.DataObject):
    places = iter(range(1000))
    row = [tuple(next(places) for _ in range(size)) for size in sizes]
    every = [cpu for core in row for cpu in core]
    wanted = data.draw(st.integers(1, len(every)))
    chosen = pick(wanted, row)
    assert len(set(chosen)) == len(chosen) == wanted
    assert set(chosen) <= set(every)
    mask = data.draw(st.sets(st.sampled_from(every), min_size=1))
    made = fold(mask, every, chosen)
    assert made
    assert made <= set(chosen)
    assert len(made) <= len(mask)
    assert fold(every, every, chosen) == set(chosen)
