"""Nothing is done about a failure before its logs were read, and nothing is overwritten that was not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from site_configs.devcluster import Cluster
from site_configs.devcluster.agents import PREFIX
from tests.slurm.actions.gate import family
from tests.slurm.actions.rig import Stage
from tests.slurm.actions.scenarios import NODES, python

pytestmark = pytest.mark.root

NODE = NODES[0]
LATE = 25.0
"""Seconds for which a node says nothing: one whose agent has forty logs to read at once takes as long."""


@contextmanager
def silent(cluster: Cluster, node: str) -> Iterator[None]:
    """A node whose agent stands still."""
    pids = family(cluster.daemons()[f"{PREFIX}{node}"])
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_a_node_that_is_slow_to_tell_is_waited_for(cluster: Cluster) -> None:
    stage = Stage(cluster)
    job = stage.submit("late", "-w", NODE, script="sleep 5\n" + python("import surely_not_installed\n"))
    stage.running("late")
    with silent(cluster, NODE):
        stage.wait_for("its failure", lambda: stage.shown(job)["JobState"] == "FAILED")
        time.sleep(LATE)
    stage.end("late")
    (row,) = stage.rows(job)
    assert (row.reason, row.action, row.stop) == ("import_error", "never", "never")
    assert stage.done(job, "requeue") == []
    assert [each.restarts for each in stage.tries("late")] == [0]
