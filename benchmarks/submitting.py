"""Submitting in a tight loop inside a development cluster, and the plugins that slurmctld is given in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_cli import SCRIPT
from site_configs.devcluster import Cluster, gsubd

GPU = ("--gpus-per-node=1",)
NEW = (*GPU, "--job-name=job-{now}")
"""No two alike: each is decided from the start."""
CPU = ("--ntasks=2",)
ROOT = Path(__file__).resolve().parents[1]

# Runs inside the cluster, as an ordinary user, for as long as it is asked. An order a line: how many clients submit at
# the same time, for how many seconds, how many jobs at most, what; an answer a line: when each submission had ended, in
# seconds from the start, and how many failed.
CLIENTS = """
import json, os, sys, threading, time
NULL = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)]
NULL += [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_WRONLY, 0) for fd in (1, 2)]
def client(argv, start, seconds, most, ends, failed):
    # One at least: a busy machine may take longer than that to start a thread
    while not ends or time.perf_counter() - start < seconds and len(ends) < most:
        words = [word.replace("{now}", str(time.monotonic_ns())) for word in argv]
        pid = os.posix_spawn(argv[0], words, os.environ, file_actions=NULL)
        status = os.waitpid(pid, 0)[1]
        ends.append(time.perf_counter() - start)
        if status:
            failed.append(status)
for line in sys.stdin:
    count, seconds, most, argv = json.loads(line)
    start, ends, failed = time.perf_counter(), [], []
    threads = [threading.Thread(target=client, args=(argv, start, seconds, most, ends, failed)) for _ in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(json.dumps([sorted(ends), len(failed)]), flush=True)
"""

# Which of them a job gets stands in its comment, so that they can take turns many times a second: slurmctld takes a
# changed file once a second. Reading the comment costs each of them the same microsecond.
_PLUGINS = """\
local ours, floor = dofile("{shim}/gsub.lua"), dofile("{shim}/gsub.lua")
ours.setup({{ socket = "{socket}" }})
floor.setup({{ socket = "{floor}" }})
local clock_gettime = require("posix.time").clock_gettime
local MONOTONIC = require("posix.time").CLOCK_MONOTONIC
local out = io.open("{times}", "a")
out:setvbuf("full", 65536)
local function now()
  local at = clock_gettime(MONOTONIC)
  return at.tv_sec * 1e6 + at.tv_nsec / 1e3
end
local function timed(name, submit)
  return function(...)
    local before = now()
    local result = submit(...)
    out:write(string.format("%s %.1f\\n", name, now() - before))
    return result
  end
end
local ways = {{
  empty = function() return slurm.SUCCESS end,
  plugin = ours.submit, floor = floor.submit,
  ["timed plugin"] = timed("plugin", ours.submit), ["timed floor"] = timed("floor", floor.submit),
}}
function slurm_job_submit(job, parts, uid)
  return ways[job.comment](job, parts, uid)
end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""


@dataclass(frozen=True)
class Block:
    """Submissions of one stretch: when each had ended (seconds from the start), and how many were refused."""

    ends: tuple[float, ...]
    failed: int

    @property
    def rate(self) -> float:
        """Submissions a second."""
        return len(self.ends) / self.ends[-1]


class Bench:
    """A cluster that is up, with clients in it; its slurmctld has an empty plugin, ours, and ours over the floor."""

    def __init__(self, cluster: Cluster, clients: subprocess.Popen[str], sbatch: str, floor: Path) -> None:
        self.cluster = cluster
        self._clients = clients
        self._sbatch = sbatch
        self._times = cluster.paths.log / "inside.txt"
        paths = cluster.paths
        self.text = _PLUGINS.format(
            shim=paths.libexec, socket=paths.decision_socket, floor=floor, times=self._times
        )

    def submit(
        self, way: str, clients: int, seconds: float, words: Sequence[str], most: int = sys.maxsize
    ) -> Block:
        """Submit held jobs for so long, `most` of them or a few more than that.

        `way` is empty, plugin, floor, or the last two timed. Raises RuntimeError when one was refused.
        """
        assert self._clients.stdin and self._clients.stdout
        order = [clients, seconds, most, [self._sbatch, *words, f"--comment={way}", "bench.sh"]]
        self._clients.stdin.write(json.dumps(order) + "\n")
        self._clients.stdin.flush()
        ends, failed = json.loads(self._clients.stdout.readline())
        if failed:
            raise RuntimeError(f"{failed} of {len(ends)} submissions of {' '.join(words)} were refused")
        return Block(tuple(ends), failed)

    def load(self) -> None:
        """Give slurmctld the plugins afresh: no connection, a shut breaker. It has taken them when this returns."""
        # It loads a script whose mtime, in whole seconds, is later than the time at which it loaded the last one.
        second = int(time.time())
        while int(time.time()) == second:
            time.sleep(0.01)
        replace(self.cluster.paths.etc / "job_submit.lua", self.text)
        self.submit("empty", 1, 0.01, GPU)

    def times(self) -> dict[str, list[float]]:
        """Milliseconds inside each plugin so far, in order, for what was submitted timed."""
        self.load()  # ends the Lua that wrote: all of it is in the file
        found: dict[str, list[float]] = {}
        for line in self._times.read_text().splitlines():
            name, _, took = line.partition(" ")
            found.setdefault(name, []).append(float(took) / 1000)
        self._times.write_text("")
        return found


def replace(path: Path, text: str) -> None:
    """Exchange a file at once."""
    fresh = path.with_suffix(".fresh")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.replace(path)


@contextmanager
def bench(cluster: Cluster) -> Iterator[Bench]:
    """Clients in a cluster that is up; its plugin is put back afterwards."""
    _make_room(cluster)
    user = cluster.users[0] if cluster.users else None
    cluster.run(["sh", "-c", "cat >bench.sh"], user=user, input=SCRIPT, check=True)
    sbatch = cluster.run(["sh", "-c", "command -v sbatch"], user=user, check=True).stdout.strip()
    argv = [str(cluster.paths.venv / "bin/python"), "-c", CLIENTS]
    with echo(cluster) as floor:
        clients = cluster.popen(argv, user=user, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            found = Bench(cluster, clients, sbatch, floor)
            found.load()
            yield found
        finally:
            assert clients.stdin
            clients.stdin.close()
            clients.wait()
            replace(cluster.paths.etc / "job_submit.lua", gsubd.job_submit_lua(cluster.paths))


def _make_room(cluster: Cluster) -> None:
    """Let slurmctld hold as many jobs as are submitted here: 10,000 are its default."""
    conf = cluster.paths.slurm_conf
    if "MaxJobCount" not in conf.read_text():
        with conf.open("a") as file:
            file.write("MaxJobCount=200000\n")
        cluster.restart("slurmctld")


@contextmanager
def echo(cluster: Cluster) -> Iterator[Path]:
    """The service that decides nothing, beside gsubd's; its socket."""
    path = cluster.paths.run / "gsub/echo.sock"
    path.unlink(missing_ok=True)
    gid = cluster.daemon_user("slurm").gid if os.geteuid() == 0 else -1
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.echo", str(path), str(gid)], cwd=ROOT)
    try:
        while not path.exists() or path.stat().st_mode & 0o777 != 0o660:
            if server.poll() is not None:
                raise RuntimeError("the echo service did not start")
            time.sleep(0.02)
        yield path
    finally:
        server.terminate()
        server.wait()
        path.unlink(missing_ok=True)
