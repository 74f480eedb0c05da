"""Several replays side by side: the same as one after the other, and what becomes of those that come to nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from slurm_plugins.replay.policy import Policy
from slurm_plugins.replay.runs import Remedy, Run, RunError, side_by_side
from slurm_plugins.replay.traces.generate import Drawn, generate
from slurm_plugins.replay.values import Cluster, Job, Trace
from tests.paths import REPOSITORY
from tests.waiting import wait_until

CLUSTER = Cluster.alike(8, 8, 96, 512_000)
TRACE = generate(Drawn(jobs=400, per_hour=200.0, seed=4, sizes="philly"))


def run(policy: str = "fifo+pack", remedy: str | None = None) -> Run:
    return Run(TRACE, CLUSTER, Policy.parse(policy), 1, None if remedy is None else Remedy.parse(remedy))


@pytest.mark.slow
def test_processes_change_nothing():
    runs = [run("fifo+pack"), run("fifo+pack+skip"), run("fifo+pack", "gsub/race")]
    heard: dict[int, list[float]] = {0: [], 1: [], 2: []}
    many = side_by_side(runs, processes=3, told=lambda number, share: heard[number].append(share))
    one = side_by_side(runs)
    assert [done.name for done in many] == ["fifo+pack", "fifo+pack+skip", "fifo+pack, gsub/race"]
    for a, b in zip(many, one, strict=True):
        assert np.array_equal(a.replayed.ended, b.replayed.ended, equal_nan=True) and a.bill == b.bill
    for shares in heard.values():
        assert shares == sorted(shares) and len(shares) > 10 and shares[-1] == pytest.approx(1.0, abs=0.05)


def test_a_remedy_changes_runs_and_is_billed():
    none, gsub, race = (run(remedy=text).go() for text in ("none", "gsub", "gsub/race"))
    assert none.bill is not None and none.bill.struck > 0 and none.bill.rescued == 0
    assert gsub.bill is not None and gsub.bill.struck == none.bill.struck and gsub.bill.rescued > 0
    assert gsub.replayed.attempts.sum() > none.replayed.attempts.sum() == len(TRACE)
    assert race.bill is not None and race.bill.smoked > 0
    assert run().go().bill is None


@pytest.mark.parametrize("text", ["", "four", "gsub/later", "/gate", "none/none/none"])
def test_what_is_no_remedy(text):
    with pytest.raises(ValueError, match="known:"):
        Remedy.parse(text)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_policy_that_nothing_plans_by_is_named(processes):
    bad = Run(
        TRACE, CLUSTER, Policy(name="mine", order="fifo", backfill="none", scaling="elastic", tuning="fill")
    )
    object.__setattr__(bad.policy, "backfill", "nothing of ours")
    with pytest.raises(RunError, match="mine: "):
        side_by_side([run(), bad], processes=processes)


def test_nobody_stays_where_sigterm_is_ignored_and_what_is_told_fills_the_pipe():
    """As under a shell or a service that ignores it: children inherit that, and one that tells waits for a reader."""
    large = Trace.of([Job(number, 0.0, 60.0, gpus=8) for number in range(20_000)])
    told = Run(large, CLUSTER, Policy.parse("fifo+pack"))
    bad = Run(large, CLUSTER, Policy(name="mine", backfill="none"))
    object.__setattr__(bad.policy, "order", "nothing of ours")
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(RunError, match="mine"):
            side_by_side([bad, told], processes=2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not multiprocessing.active_children()


_KILLED = """
import os, signal
from slurm_plugins.replay.policy import Policy
from slurm_plugins.replay.runs import Run, side_by_side
class Deadly(Run):
    def go(self, progress=None):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_dies_is_told_of_with_its_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "deadly.py").write_text(_KILLED)
    monkeypatch.syspath_prepend(tmp_path)
    from deadly import Deadly  # type: ignore[import-not-found]

    dying = Deadly(TRACE, CLUSTER, Policy.parse("fifo+pack"))
    with pytest.raises(RunError, match="signal 9; is there too little memory"):
        side_by_side([dying, run()], processes=2)


_LONG = """
import sys
from slurm_plugins.replay.policy import Policy
from slurm_plugins.replay.runs import Run, side_by_side
from slurm_plugins.replay.traces.generate import Drawn, generate
from slurm_plugins.replay.values import Cluster, Job, Trace
if __name__ == "__main__":
    trace = generate(Drawn(jobs=60000, per_hour=4000.0, like="philly"))
    runs = [Run(trace, Cluster.alike(40, 8, 96, 512_000), Policy.parse(p)) for p in ("fifo+pack+skip", "fifo+pack")]
    said = set()
    def told(number, share):
        if number not in said:
            said.add(number)
            print("runs", number, flush=True)
    side_by_side(runs, processes=2, told=told)
    print("all done", flush=True)
"""


@pytest.mark.slow
def test_an_interrupt_ends_all_and_leaves_no_process_and_no_traceback_of_a_child(tmp_path: Path):
    script = tmp_path / "long.py"
    script.write_text(_LONG)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        [sys.executable, script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("runs")
        for _ in range(2):  # as timeout(1) does
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.02)
        out, err = process.communicate(timeout=60)
    assert "all done" not in out
    assert "SpawnProcess" not in err and "KeyboardInterrupt" in err, "that of this script, which tells nobody"

    def is_gone() -> bool:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(is_gone, 5, "the end of all its processes")
