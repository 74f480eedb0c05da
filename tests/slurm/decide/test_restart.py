"""Under a stream of submissions slurmctld, the shim and gsubd are restarted: no job is lost, none is refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster, gsubd
from tests.slurm.decide.conftest import touch
from tests.waiting import wait_until

CLIENTS = 4
# What 24.11 and 26.05 tell a client that waits for an answer while slurmctld ends: the same without any plugin.
CUT_OFF = "Connection reset by peer"

# Submits until told to end; an odd line is what went wrong. Every third job asks for no GPU. Held, since slurmctld
# opens the partitions again when it reads slurm.conf.
CLIENT = """
count=0
until [ -e "$1/stop" ]; do
    count=$((count + 1))
    case $((count % 3)) in
        0) set -- "$1" -n2 ;;
        1) set -- "$1" -G2 ;;
        2) set -- "$1" -N2 --gpus-per-node=1 ;;
    esac
    folder=$1
    shift
    sbatch --parsable --hold --output=/dev/null "$@" --wrap=: 2>&1
    set -- "$folder"
done
"""


class Stream:
    """Clients that submit; `submitted` are the jobs so far, `odd` whatever else they said."""

    def __init__(self, cluster: Cluster, folder: Path, user: str | None) -> None:
        self.may_be_cut_off = 0
        # sbatch asks again by itself when slurmctld drops its answer: the job is there twice, and told once
        self.may_be_asked_twice = 0
        self._stop = folder / "stop"
        self._stop.unlink(missing_ok=True)
        self._outputs = [folder / f"client-{number}" for number in range(CLIENTS)]
        self._clients = []
        for output in self._outputs:
            with output.open("wb") as file:
                argv = ["sh", "-c", CLIENT, "sh", str(folder)]
                self._clients.append(cluster.popen(argv, user=user, stdout=file))

    def _lines(self) -> list[str]:
        # the last word of a client may be half written
        return [line for file in self._outputs for line in file.read_text().split("\n")[:-1]]

    @property
    def submitted(self) -> list[int]:
        return [int(line) for line in self._lines() if line.isdecimal()]

    @property
    def cut_off(self) -> int:
        """Submissions whose connection to slurmctld broke."""
        return sum(CUT_OFF in line for line in self._lines())

    @property
    def odd(self) -> list[str]:
        return [
            line
            for line in self._lines()
            if not (line.isdecimal() or line.startswith("sbatch: gsub set") or CUT_OFF in line)
        ]

    def more(self, count: int = 12) -> None:
        """Wait until this many more have been submitted."""
        want = len(self.submitted) + count
        wait_until(lambda: len(self.submitted) >= want, 120)

    def end(self) -> None:
        self._stop.touch()
        for client in self._clients:
            client.wait(timeout=120)


@pytest.fixture
def stream(clean: Cluster, enforcing: Cluster, user: str | None) -> Iterator[Stream]:
    """Submissions that go on while a test does things; afterwards all are accounted for."""
    folder = clean.home(user) / "stream"
    folder.mkdir(exist_ok=True)
    stream = Stream(clean, folder, user)
    try:
        stream.more()
        yield stream
        stream.more()
    finally:
        stream.end()
    assert stream.odd == []
    known = clean.run(["squeue", "-h", "-o", "%i"], check=True).stdout.split()
    submitted = stream.submitted
    assert len({*submitted}) == len(submitted)
    assert {*submitted} <= {*map(int, known)}
    # Where an answer was cut off, its job may be there all the same.
    assert stream.cut_off <= stream.may_be_cut_off
    assert len(known) - len(submitted) <= stream.cut_off + stream.may_be_asked_twice


def decided(cluster: Cluster) -> int:
    return sum(record["kind"] == "decision" for record in cluster.decisions())


def more_decisions(cluster: Cluster) -> None:
    """Wait until the shim asks again and is answered."""
    before = decided(cluster)
    wait_until(lambda: decided(cluster) > before)


def test_gsubd_is_killed(enforcing, stream):
    os.kill(enforcing.daemons()["gsubd"], signal.SIGKILL)
    wait_until(lambda: "gsubd" not in enforcing.daemons())
    stream.more()
    enforcing.start("gsubd")
    more_decisions(enforcing)


def test_gsubd_is_upgraded(enforcing, stream):
    """As `make cluster` does it again: other files under the running service, then its restart."""
    Cluster.up(enforcing.spec)
    stream.more()
    enforcing.restart("gsubd")
    more_decisions(enforcing)


def test_the_shim_is_loaded_again(enforcing, stream):
    for _ in range(3):
        touch(enforcing.paths.etc / "job_submit.lua")
        more_decisions(enforcing)
    # its connections went with it
    assert sockets(enforcing) <= 2


def test_a_shim_that_cannot_be_loaded_is_left_out(enforcing, stream):
    """An upgrade that went wrong: jobs pass as they are, and the mended file is taken."""
    script = enforcing.paths.libexec / "gsub.lua"
    good = script.read_text()
    script.write_text("this is no Lua")
    try:
        touch(enforcing.paths.etc / "job_submit.lua")

        def left_out() -> bool:  # once it is loaded, and what was under way is written down
            before = decided(enforcing)
            stream.more()
            return decided(enforcing) == before

        wait_until(left_out)
    finally:
        script.write_text(good)
    touch(enforcing.paths.etc / "job_submit.lua")
    more_decisions(enforcing)


def test_slurmctld_is_reconfigured(enforcing, stream):
    stream.may_be_asked_twice = CLIENTS
    enforcing.run(["scontrol", "reconfigure"], check=True)
    more_decisions(enforcing)


def test_slurmctld_is_restarted(enforcing, stream):
    stream.may_be_asked_twice = CLIENTS
    if not enforcing.version.startswith("22.05"):
        stream.may_be_cut_off = CLIENTS
    enforcing.restart("slurmctld")
    more_decisions(enforcing)


def sockets(cluster: Cluster) -> int:
    """How many connections slurmctld holds to the decision socket."""
    return int(gsubd.metric(cluster.ports, "gsub_connections") or 0)
