"""Whatever stands in gsubd's place, every job is accepted, and as the user wrote it."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster, gsubd
from tests.slurm.cli.test_parity import Record, differences
from tests.slurm.decide.conftest import policy, recorded, site_text, submit, without_plugin
from tests.slurm.decide.wicked import WICKED, Server, says
from tests.waiting import wait_until

SHAPES = (
    ("-G2",),
    ("-N2", "--gpus-per-node=2", "--mem-per-gpu=1G"),
    ("-n4", "--gpus-per-task=1", "--array=0-1"),
)
MARK = "gsub:d-0123456789abcdef"
HONEST = says(edits={"admin_comment": MARK})
Bare = dict[tuple[str, ...], list[Record]]


@pytest.fixture(scope="module")
def enforced(closed: Cluster) -> Iterator[Cluster]:
    """Where gsubd is itself, it changes jobs."""
    with policy(closed, site_text(closed, "enforce")):
        yield closed


@pytest.fixture(scope="module")
def bare(enforced: Cluster, user: str | None) -> Bare:
    """The record of each shape without the plugin."""
    with without_plugin(enforced):
        jobs = {words: submit(enforced, *words, user=user) for words in SHAPES}
    known = recorded(enforced)
    return {words: known[job] for words, job in jobs.items()}


def unharmed(cluster: Cluster, bare: Bare, user: str | None, count: int = len(SHAPES)) -> None:
    """Submit `count` jobs: all are accepted, and the same as without the plugin."""
    jobs = [
        (submit(cluster, *words, user=user), words)
        for words in itertools.islice(itertools.cycle(SHAPES), count)
    ]
    known = recorded(cluster)
    for job, words in jobs:
        assert not differences(bare[words], known[job]), words


def comment(cluster: Cluster, user: str | None) -> str:
    """What gsub writes into a new job; "" where it does not reach it."""
    job = submit(cluster, *SHAPES[0], user=user)
    return recorded(cluster)[job][0].get("AdminComment", "").strip()


def back(cluster: Cluster, user: str | None) -> None:
    """Wait until gsubd decides again; the shim asks every 5 s whether it is back."""
    wait_until(lambda: comment(cluster, user).startswith("gsub:d-"))


def test_killed(enforced, bare, user):
    """The socket is left behind, and nobody listens there."""
    back(enforced, user)
    os.kill(enforced.daemons()["gsubd"], signal.SIGKILL)
    wait_until(lambda: "gsubd" not in enforced.daemons())
    try:
        assert enforced.paths.decision_socket.is_socket()
        unharmed(enforced, bare, user, 8)
    finally:
        enforced.start("gsubd")
    back(enforced, user)


def test_hung(enforced, bare, user):
    """Stopped in its tracks, it costs a few deadlines, not one a job; when it goes on, it is asked again."""
    back(enforced, user)
    pid = enforced.daemons()["gsubd"]
    os.kill(pid, signal.SIGSTOP)
    try:
        unharmed(enforced, bare, user, 12)
    finally:
        os.kill(pid, signal.SIGCONT)
    back(enforced, user)
    # The shim has told of it.
    assert (gsubd.metric(enforced.ports, 'gsub_shim_events_total{event="opened"}') or 0) >= 1


# --- others in its place --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(enforced: Cluster, user: str | None) -> Iterator[Path]:
    """gsubd is stopped, and the place of its socket free."""
    enforced.stop("gsubd")
    path = enforced.paths.decision_socket
    path.unlink(missing_ok=True)
    yield path
    path.unlink(missing_ok=True)
    enforced.start("gsubd")
    back(enforced, user)  # the tests of other modules find the breaker closed


@pytest.fixture(scope="module")
def ids(enforced: Cluster) -> dict[str, int]:
    """Owner and group that the shim trusts and slurmctld can open."""
    return {"owner": os.geteuid(), "group": enforced.daemon_user("slurm").gid}


@pytest.fixture(scope="module")
def server(enforced: Cluster, place: Path, ids: dict[str, int]) -> Iterator[Server]:
    """A server in gsubd's place."""
    server = Server(place, HONEST, **ids)
    yield server
    server.close()


@pytest.fixture
def honest(enforced: Cluster, server: Server, user: str | None) -> Server:
    """The server, answering as it should, and the shim asking it: its edits reach a job."""
    server.reply = HONEST
    wait_until(lambda: comment(enforced, user) == MARK)
    server.asked.clear()
    return server


@pytest.mark.parametrize("wrong", WICKED)
def test_a_wrong_answer(enforced, bare, user, honest, wrong):
    honest.reply = WICKED[wrong]
    jobs = []

    def asked() -> bool:
        jobs.append(submit(enforced, *SHAPES[0], user=user))
        return bool(honest.asked)

    wait_until(asked)
    known = recorded(enforced)
    for job in jobs:
        assert not differences(bare[SHAPES[0]], known[job])


def test_the_breaker_opens_and_closes(enforced, bare, user, honest):
    """A mute service is asked three times, then once in 5 s: submissions go on as if it were not there."""
    honest.reply = WICKED["mute"]
    began = time.monotonic()
    unharmed(enforced, bare, user, 15)
    probes = (time.monotonic() - began) / 5
    assert 3 <= len(honest.asked) <= 4 + probes
    honest.reply = HONEST
    wait_until(lambda: comment(enforced, user) == MARK)
    assert any(ask.get("shim", {}).get("opened") for ask in honest.asked)


def test_no_socket(enforced, bare, user, place, honest):
    honest.close()
    place.unlink()
    unharmed(enforced, bare, user)


@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_something_else_in_its_place(enforced, bare, user, place, ids, tmp_path_factory, what):
    place.unlink(missing_ok=True)
    elsewhere = place.with_name("other.sock")
    other = Server(elsewhere, HONEST, **ids)
    try:
        if what == "file":
            place.touch()
        elif what == "folder":
            place.mkdir()
        else:
            place.symlink_to(elsewhere)
        unharmed(enforced, bare, user)
        assert other.asked == []
    finally:
        other.close()
        elsewhere.unlink()
        place.rmdir() if what == "folder" else place.unlink()


@pytest.mark.root
def test_a_socket_of_another_user(enforced, bare, user, place, ids):
    """A user who gets at the place is not believed, though slurmctld could open the socket."""
    owner = enforced._user(user).uid
    trap = Server(place, HONEST, owner=owner, group=ids["group"])
    try:
        unharmed(enforced, bare, user)
    finally:
        trap.close()
        place.unlink()
    assert trap.asked == []


def test_a_socket_that_everybody_may_write(enforced, bare, user, place, ids):
    trap = Server(place, HONEST, **ids, mode=0o666)
    try:
        unharmed(enforced, bare, user)
    finally:
        trap.close()
        place.unlink()
    assert trap.asked == []
