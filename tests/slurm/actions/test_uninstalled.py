"""gsubd and gsub-act killed in the middle of a resubmission: nothing is done twice, forgotten, or held for long."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest

from site_configs.devcluster import Cluster
from site_configs.devcluster.agents import PREFIX
from slurm_plugins.client.requeue_delay import DEFAULT
from tests.slurm.actions.gate import When, begin, gate
from tests.slurm.actions.rig import Stage, hosts
from tests.slurm.actions.scenarios import APART, BROKEN_CUDA, FIRST, NODES, OWN, dies

pytestmark = pytest.mark.root

FAILS_ONCE = f"{FIRST} && exit 3\necho done"
MOVES = f"{FIRST} || exit 0\n" + dies(BROKEN_CUDA)
"""What is to run on another node."""
HELD = 180.0
"""Seconds after which no job may be held any more."""
SLACK = 60.0
"""Seconds more until it has run, on a machine that is busy with else."""
OWN_DELAYS = ((r",cred_expire=\d+", ""), (r"(?m)^(KillWait|SchedulerParameters)=.*\n", ""))
"""What takes the development cluster's short delays out of slurm.conf: all are Slurm's own then."""
TOO_SHORT = (r"cred_expire=\d+", "cred_expire=5")
"""A delay after a requeue in which gsub cannot change a job."""
INERT = """\
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
"""A job_submit.lua that has never heard of gsub."""


@pytest.fixture
def rig(cluster: Cluster) -> Iterator[Stage]:
    """The cluster, whatever was played on it before."""
    found = Stage(cluster)
    yield found
    begin(cluster)


@contextmanager
def configured(stage: Stage, *changes: tuple[str, str]) -> Iterator[None]:
    """Another slurm.conf for a while: each pattern is replaced by its text, and gsubd has read it."""
    conf = stage.cluster.paths.slurm_conf
    before = text = conf.read_text()
    for pattern, instead in changes:
        text, count = re.subn(pattern, instead, text)
        assert count, f"{pattern} is not in {conf}"
    conf.write_text(text)
    for daemon in ("slurmctld", "gsubd"):
        stage.cluster.restart(daemon)
    try:
        yield
    finally:
        conf.write_text(before)
        for daemon in ("slurmctld", "gsubd"):
            stage.cluster.restart(daemon)


@contextmanager
def removed(stage: Stage) -> Iterator[None]:
    """A Slurm without anything of gsub."""
    cluster = stage.cluster
    conf, script = cluster.paths.slurm_conf, cluster.paths.etc / "job_submit.lua"
    texts = {path: path.read_text() for path in (conf, script)}
    for node in NODES:
        cluster.stop(f"{PREFIX}{node}")
    conf.write_text(re.sub(r"(?m)^(Prolog|Epilog|TaskProlog)=.*\n", "", texts[conf]))
    script.write_text(INERT)
    cluster.run(["scontrol", "reconfigure"], check=True)
    try:
        yield
    finally:
        for path, text in texts.items():
            path.write_text(text)
        cluster.run(["scontrol", "reconfigure"], check=True)
        for node in NODES:
            cluster.start(f"{PREFIX}{node}")


def ran_twice(stage: Stage, name: str) -> None:
    """It comes to its end within the time for which a job may be held, having been requeued once."""
    began = time.monotonic()
    stage.wait_for(
        f"the second attempt of {name}",
        lambda: stage.shown(stage.jobs[name])["JobState"] == "COMPLETED",
        patience=2 * HELD,
    )
    waited = time.monotonic() - began
    print(f"{name}: it had run again {waited:.0f} s later")
    assert waited < HELD + SLACK
    assert [each.restarts for each in stage.tries(name)] == [0, 1]
    assert stage.shown(stage.jobs[name])["Restarts"] == "1"


def test_gsub_is_removed_between_requeue_and_update(rig: Stage) -> None:
    """Slurm's own delay lets the job go, as its user wrote it.

    The one test with the delays of a Slurm that nobody configured: two minutes after a requeue, a look at the whole
    queue once a minute. All other tests have short ones.
    """
    with configured(rig, *OWN_DELAYS), gate(rig, "update", "before") as shut:
        job = rig.submit("removed", APART, script=FAILS_ONCE)
        shut.wait()
        shut.kill()
        with removed(rig):
            shown = rig.shown(job)
            assert (shown["JobState"], shown["Restarts"]) == ("PENDING", "1")
            assert shown["Priority"] != "0", "it is not held"
            ran_twice(rig, "removed")
    first, second = rig.tries("removed")
    assert second.began - first.began >= DEFAULT
    # installed again, gsub finds that its plan has been overtaken, and does nothing more
    rig.wait_for("the row", lambda: [row.state in ("done", "stopped") for row in rig.rows(job)] == [True])
    assert rig.shown(job)["Restarts"] == "1"


@pytest.mark.case("users 3")
def test_gsub_act_is_dead_and_nobody_is_promised_anything(rig: Stage) -> None:
    """Its users read what would be done, metrics and log have it, and what waited is done once it is back."""
    metrics = f"http://127.0.0.1:{rig.cluster.ports.gsubd}/metrics"

    def up() -> str:
        with urlopen(metrics, timeout=10) as page:
            found = re.search(r"(?m)^gsub_act_up (\d)$", page.read().decode())
        return found[1] if found else ""

    rig.wait_for("gsub-act to be seen", lambda: up() == "1")
    rig.cluster.stop("gsub-act")
    try:
        job = rig.submit("unserved", APART, script=FAILS_ONCE)
        rig.wait_for("the plan", lambda: [row.withheld for row in rig.rows(job)] == [True])
        said = rig.why(job)
        assert "would be tried again" in said and "gsub-act does not answer" in said, said
        assert "is tried again" not in said and "to be done" not in said, said
        rig.wait_for("its absence to be seen", lambda: up() == "0")
        assert rig.shown(job)["Restarts"] == "0"
    finally:
        rig.cluster.start("gsub-act")
    ran_twice(rig, "unserved")
    rig.wait_for("the row", lambda: [row.state for row in rig.rows(job)] == ["done"])
    assert "it is tried again" in rig.rows(job)[0].why and "does not answer" not in rig.why(job)


@pytest.mark.all_releases
def test_gsub_act_is_ended_while_it_holds_a_job(rig: Stage) -> None:
    """Where Slurm's own delay is too short the job is held, and who holds it lets it go at its end."""
    with configured(rig, TOO_SHORT), gate(rig, "update", "before") as shut:
        job = rig.submit("let-go", APART, script=FAILS_ONCE)
        shut.wait()
        assert rig.shown(job)["Priority"] == "0"
        rig.cluster.stop("gsubd")
        shut.open()
        rig.cluster.stop("gsub-act")
        ran_twice(rig, "let-go")


def test_gsubd_is_killed_for_good_while_a_job_is_held(rig: Stage) -> None:
    """gsub-act lets it go by itself: nobody comes to release it."""
    with configured(rig, TOO_SHORT), gate(rig, "update", "before") as shut:
        job = rig.submit("left", APART, script=FAILS_ONCE)
        shut.wait()
        assert rig.shown(job)["Priority"] == "0"
        shut.kill()
        rig.cluster.start("gsub-act")
        ran_twice(rig, "left")


@pytest.mark.parametrize(
    ("verb", "when"),
    [("requeue", "before"), ("requeue", "after"), ("update", "before"), ("update", "after")],
)
def test_killed_and_started_again(rig: Stage, verb: str, when: When) -> None:
    name = f"{verb}-{when}"
    with gate(rig, verb, when) as shut:
        job = rig.submit(name, APART, script=MOVES)
        shut.wait()
        shut.kill()
    ran_twice(rig, name)
    rig.wait_for("the row", lambda: [row.state in ("done", "stopped") for row in rig.rows(job)] == [True])
    (row,) = rig.rows(job)
    print(f"{name}: {row.state} {row.stop} {row.said}")
    assert (row.state, row.stop) in (("done", ""), ("stopped", "moved_on"))
    shown = rig.shown(job)
    assert shown["Restarts"] == "1"
    assert len(rig.done(job, "requeue")) == 1
    if row.state == "done":  # what is said to be done is done
        first, second = rig.tries(name)
        assert row.avoid == (first.node,)
        assert hosts(shown["ExcNodeList"]) == {first.node, *OWN}
        assert second.node != first.node
