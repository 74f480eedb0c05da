"""The faults of the schedule: what is done to the cluster while jobs start, run and end, and how it is undone."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest

from site_configs.devcluster.nvml import EmulatedGpus
from tests.slurm.record.broken import NODE, Nodes, await_, keeper
from tests.slurm.record.stream import MANY, Stream
from tests.unit.profiler.store.postgres import Postgres

OUTAGE = float(os.environ.get("GSUB_TEST_OUTAGE", "10"))
"""Seconds for which a service is away; a run of minutes is asked for in the environment."""

BURST = 200
"""Jobs at once, each with its hooks and records; and the seconds from the first one's start to the last one's end."""
BURST_SECONDS = 90.0  # 12 to 15 on a quiet machine: it is printed, and docs/measured.md has it

_REPLAY = """
import json, os, sys
from profiler.munge import Munge
from profiler.sealed import Service, believed
from site_configs.site import load_site
site = load_site(os.environ["GSUB_SITE"])
service = Service(site.service.url, Munge(site.slurm.munge_socket), believed(site.service.user))
body = sys.stdin.buffer.read()
answer = service.ask("POST", "/v1/records", body)
print(answer.status, answer.body.decode())
"""

Does: TypeAlias = Callable[[Nodes, Stream], AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """A row of the schedule. `does` is entered while the job "across" runs; within it "across" ends, the jobs
    "within" run, and "out" starts, which ends after it. `less` says of which of them `NODE` cannot know all, and what
    it lacks: its "gpus" (nobody told which) or its whole "usage" (nobody told that it started). Of a GPU no more time
    may be counted than the job ran for, and `slack` seconds for what is between two looks.
    """

    name: str
    does: Does
    within: int = 1
    less: Mapping[str, str] = field(default_factory=dict)
    slack: float = 10.0


# --- the agent ---


@contextmanager
def killed_at_random(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """SIGKILL for both agents, again and again, at moments that have nothing to do with what they do."""
    chance, over, kills = random.Random(stream.name), threading.Event(), []

    def work() -> None:
        while not over.wait(chance.uniform(0.3, 4.0)):
            node = chance.choice(nodes.cluster.spec.node_names)
            nodes.kill(node)
            nodes.begin(node)
            kills.append(node)

    killer = threading.Thread(target=work)
    killer.start()
    try:
        yield
        await_("eight kills", lambda: len(kills) >= 8)
    finally:
        over.set()
        killer.join()


@contextmanager
def dead(nodes: Nodes, stream: Stream, *, extra: Mapping[str, str] | None = None) -> Iterator[None]:
    """No agent on `NODE` at all."""
    nodes.kill(NODE)
    yield
    nodes.start(NODE, extra)


@contextmanager
def _unstartable(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """The agent is killed, and what is broken by now keeps it from starting."""
    nodes.kill(NODE)
    nodes.begin(NODE)
    await_("the agent's failure", lambda: nodes.pid(NODE) is None)
    yield
    assert nodes.pid(NODE) is None


@contextmanager
def interpreter_removed(nodes: Nodes, stream: Stream) -> Iterator[None]:
    away = nodes.python.with_name("removed")
    nodes.python.rename(away)
    with _unstartable(nodes, stream):
        yield
    away.rename(nodes.python)
    nodes.start(NODE)


@contextmanager
def interpreter_old(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """What Python 3.6 says of our modules, said by a stand-in."""
    away = nodes.python.with_name("removed")
    nodes.python.rename(away)
    nodes.python.write_text(
        "#!/bin/sh\necho 'SyntaxError: future feature annotations is not defined' >&2\nexit 1\n"
    )
    nodes.python.chmod(0o755)
    with _unstartable(nodes, stream):
        yield
    away.replace(nodes.python)
    nodes.start(NODE)


@contextmanager
def environment_unreadable(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """Root reads what the mode forbids: so the folder is closed and holds nothing, as where root is nobody."""
    venv = nodes.python.parents[1]
    away = venv.with_name("removed")
    venv.rename(away)
    venv.mkdir(mode=0)
    with _unstartable(nodes, stream):
        yield
    venv.rmdir()
    away.rename(venv)
    nodes.start(NODE)


@contextmanager
def module_corrupt(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """The agent's own module, and that of its child that reads the driver."""
    broken = [nodes.module(name) for name in ("prolog_epilog/agent/daemon.py", "profiler/sampler_child.py")]
    whole = [path.read_bytes() for path in broken]
    for path, data in zip(broken, whole, strict=True):
        path.write_bytes(data[: len(data) // 2] + bytes(512))
    with _unstartable(nodes, stream):
        yield
    for path, data in zip(broken, whole, strict=True):
        path.write_bytes(data)
    nodes.start(NODE)


@contextmanager
def installation_hung(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """First under an agent that runs; then it is killed, and the next one hangs in its first step."""
    with nodes.hung_installation():
        yield
        nodes.kill(NODE)
        nodes.begin(NODE)
    nodes.kill(NODE)  # it may have hung before its first word or after
    nodes.start(NODE)


@contextmanager
def clock_stepped(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """The node's clock goes an hour forth, and then two hours back; this machine's stays as it is."""
    step = nodes.folder / "step"
    step.write_text("+0\n")
    faked = {
        "LD_PRELOAD": str(fake_clock(nodes.folder)),
        "FAKETIME_TIMESTAMP_FILE": str(step),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
    nodes.kill(NODE)
    nodes.start(NODE, faked)
    with _stepped(nodes, step, 3600):
        yield
    with _stepped(nodes, step, -3600):
        stream.release("out")
        stream.short("back")
        stream.ended()
    nodes.kill(NODE)
    nodes.start(NODE)


@contextmanager
def _stepped(nodes: Nodes, step: Path, seconds: int) -> Iterator[None]:
    """The agent's clock, and the times of the files that hooks write meanwhile: it is stopped as long, or it would
    read them with their own."""
    pid = nodes.pid(NODE)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
        for path in (nodes.spool / "new").iterdir():
            at = path.stat().st_mtime + seconds
            os.utime(path, (at, at))
        _put(step, f"{seconds:+d}\n")
    finally:
        os.kill(pid, signal.SIGCONT)
    await_("the hooks' files to be taken in", lambda: not [*(nodes.spool / "new").iterdir()])


@contextmanager
def clock_set_back(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """While no agent runs: "out" ends an hour before it starts, by the times of its hooks' files."""
    nodes.kill(NODE)
    yield
    prolog = nodes.hook_file("prolog", stream.ids["out"])
    at = prolog.stat().st_mtime + 3600
    os.utime(prolog, (at, at))
    stream.release("out")
    stream.ended()
    nodes.start(NODE)


def fake_clock(folder: Path) -> Path:
    """Debian's libfaketime, where a chroot sees it; the test is left out where it cannot be had."""
    found = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1")]
    if not found and shutil.which("apt-get"):
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "-qq", "install", "libfaketime"], env=env, capture_output=True)
        found = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1")]
    if not found:
        pytest.skip("libfaketime is not installed: apt-get install libfaketime")
    return Path(shutil.copy(found[0], folder))


# --- the service ---


@contextmanager
def service_stopped(nodes: Nodes, stream: Stream) -> Iterator[None]:
    nodes.cluster.stop("gsubd")
    until = time.monotonic() + OUTAGE
    yield
    time.sleep(max(until - time.monotonic(), 0))
    nodes.cluster.start("gsubd")


@contextmanager
def keeper_killed(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """Twice: gsubd starts it anew."""
    for _ in range(2):
        pid = keeper(nodes.cluster)
        os.kill(pid, signal.SIGKILL)
        await_("its end", lambda pid=pid: keeper(nodes.cluster) != pid)  # type: ignore[misc]
    yield


@contextmanager
def keeper_hung(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """It takes connections, as the kernel does that for it, and does not answer; gsubd ends it after a minute."""
    pid = keeper(nodes.cluster)
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + OUTAGE / 2
    try:
        yield
        time.sleep(max(until - time.monotonic(), 0))
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def delivered_twice(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """What waits while the service is away is sent twice ahead of the agent, and once more at the end."""
    nodes.cluster.stop("gsubd")
    yield
    nodes.kill(NODE)
    lines = [path.read_bytes() for path in sorted((nodes.spool / "out").iterdir()) if path.name[0] != "."]
    assert any(b"job_ended" in line for line in lines), "nothing waits, and this tests nothing"
    head = json.dumps({"v": 1, "node": NODE, "cluster": nodes.cluster.spec.name})[:-1]
    body = f'{head},"records":[{",".join(line.decode() for line in lines)}]}}'
    nodes.cluster.start("gsubd")

    def replay() -> bool:
        done = nodes.cluster.run(["python3", "-c", _REPLAY], input=body)
        return done.stdout.startswith("200 ")

    for _ in range(2):
        await_("the replay", replay)
    nodes.start(NODE)
    stream.release("out")
    stream.ended("out")
    await_("the agent's own delivery", lambda: not [*(nodes.spool / "out").glob("[0-9]*")])
    await_("the replay", replay)


def database_stopped(server: Postgres) -> Fault:
    """PostgreSQL goes away as by a power cut, and comes back."""

    @contextmanager
    def does(nodes: Nodes, stream: Stream) -> Iterator[None]:
        server.stop("immediate")
        until = time.monotonic() + OUTAGE
        try:
            yield
            time.sleep(max(until - time.monotonic(), 0))
        finally:
            server.start()

    return Fault("database stopped", does)


# --- the disk ---


@contextmanager
def spool_full(nodes: Nodes, stream: Stream) -> Iterator[None]:
    with nodes.full_spool():
        yield


@contextmanager
def spool_full_and_killed(nodes: Nodes, stream: Stream) -> Iterator[None]:
    with nodes.full_spool():
        yield
        nodes.kill(NODE)
        nodes.begin(NODE)
    nodes.kill(NODE)
    nodes.start(NODE)


@contextmanager
def spool_hung(nodes: Nodes, stream: Stream) -> Iterator[None]:
    with nodes.hung_spool():
        yield


@contextmanager
def half_written(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """Records and hooks' files as a power cut leaves them: cut off, empty, under their first names."""
    nodes.kill(NODE)
    yield
    out = nodes.spool / "out"
    whole = next((path.read_bytes() for path in out.glob("[0-9]*")), b'{"kind":"job_usage","job":')
    (out / f"2.000000000001.job_usage.{'a' * 24}").write_bytes(whole[: len(whole) // 2])
    (out / f"2.000000000002.job_usage.{'b' * 24}").touch()
    (out / ".tmp.cut").write_bytes(whole[:10])
    (nodes.spool / "jobs/4711.0.json").write_bytes(b'{"job":')
    prolog = nodes.hook_file("prolog", stream.ids["out"])
    data = prolog.read_bytes()
    prolog.write_bytes(data[: data.index(b"SLURM_JOB_GPUS")])
    nodes.start(NODE)


# --- the driver ---


@contextmanager
def call_hangs(nodes: Nodes, stream: Stream) -> Iterator[None]:
    with ExitStack() as stack:
        for gpu in range(nodes.cluster.spec.gpus):
            stack.enter_context(_gpus(nodes).hang(NODE, gpu, "nvmlDeviceGetPowerUsage"))
        yield


@contextmanager
def gpus_lost(nodes: Nodes, stream: Stream) -> Iterator[None]:
    gpus = _gpus(nodes)
    for gpu in range(nodes.cluster.spec.gpus):
        gpus.set(NODE, gpu, status="GPU_IS_LOST")
    yield
    for gpu in range(nodes.cluster.spec.gpus):
        gpus.set(NODE, gpu, status=None)


@contextmanager
def driver_lost(nodes: Nodes, stream: Stream) -> Iterator[None]:
    gpus = _gpus(nodes)
    gpus.set_node(NODE, status="DRIVER_NOT_LOADED")
    yield
    gpus.set_node(NODE, status=None)


def _gpus(nodes: Nodes) -> EmulatedGpus:
    return EmulatedGpus(nodes.cluster.paths.gpus)


# --- the hooks ---


@contextmanager
def prolog_missed(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """Of "out" there is no prolog's file, only an epilog's."""
    nodes.kill(NODE)
    yield
    nodes.hook_file("prolog", stream.ids["out"]).unlink()
    nodes.start(NODE)


@contextmanager
def hooks_twice(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """Each hook runs again: beside its job, and after it, in the wrong order."""
    nodes.again("prolog", stream.ids["across"])
    yield
    nodes.again("prolog", stream.ids["out"])
    for event in ("epilog", "prolog"):
        nodes.again(event, stream.ids["across"])


@contextmanager
def forks_fail(nodes: Nodes, stream: Stream) -> Iterator[None]:
    with nodes.no_forks(NODE):
        yield


@contextmanager
def burst(nodes: Nodes, stream: Stream) -> Iterator[None]:
    """Two hundred jobs, as fast as Slurm runs them: on eight GPUs, and as a rule on two cores."""
    stream.many(BURST)
    yield
    stream.ended(MANY)
    seconds = stream.spread(MANY)
    print(f"{BURST} jobs within {seconds:.0f} s")
    assert seconds <= BURST_SECONDS


def _put(path: Path, text: str) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)


FAULTS = (
    Fault("agent killed at random moments", killed_at_random, within=6),
    Fault("agent dead", dead),
    Fault("interpreter removed", interpreter_removed),
    Fault("interpreter 3.6", interpreter_old),
    Fault("virtual environment unreadable", environment_unreadable),
    Fault("module corrupt", module_corrupt),
    Fault("installation hung", installation_hung),
    # a job that ends before it began, by the clock, ends when that is heard of
    Fault("clock stepped", clock_stepped, slack=40.0),
    Fault("clock set back under a dead agent", clock_set_back),
    Fault("service stopped", service_stopped),
    Fault("keeper killed", keeper_killed),
    Fault("keeper hung", keeper_hung),
    Fault("delivered twice", delivered_twice),
    Fault("spool full", spool_full),
    Fault("spool full and agent killed", spool_full_and_killed),
    Fault("spool hung", spool_hung),
    Fault("half-written records", half_written, less={"out": "gpus"}),
    Fault("driver's call hangs", call_hangs),
    Fault("GPUs lost", gpus_lost),
    Fault("driver lost", driver_lost),
    Fault("epilog without prolog", prolog_missed, less={"out": "usage"}),
    Fault("hooks twice", hooks_twice),
    Fault("fork fails", forks_fail),
    Fault("200 jobs at once", burst),
)
