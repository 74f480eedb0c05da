"""One small cluster a release that enforces, with gsub-act as an operator of its Slurm."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from site_configs.devcluster import Cluster, ClusterSpec
from slurm_plugins.act.journal import NAME
from tests.waiting import wait_until

PATIENCE = 60.0

# What asks: lines from standard input to the socket, answers to standard output. Standard library only.
_ASKER = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(60)
connection.connect(sys.argv[1])
answers = connection.makefile("r")
for line in sys.stdin:
    connection.sendall(line.encode())
    print(answers.readline(), end="", flush=True)
"""


class Acting:
    """The cluster, its gsub-act, and who asks it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.name = cluster.spec.name
        self.user = cluster.users[0]

    def request(self, verb: str, job: str, **fields: Any) -> dict[str, Any]:
        made = {
            "v": 1, "id": f"test-{os.urandom(8).hex()}", "at": time.time(), "cluster": self.name, "job": job,
            "verb": verb, "why": "a test", "by": "v-00000000",
        }  # fmt: skip
        return made | fields

    def ask(self, verb: str, job: str, *, as_user: str = "gsub", **fields: Any) -> dict[str, Any]:
        """What gsub-act answers to a user's request."""
        return self.send(self.request(verb, job, **fields), as_user=as_user)

    def send(self, request: dict[str, Any], *, as_user: str = "gsub") -> dict[str, Any]:
        done = self.as_daemon(as_user, [f"{self.cluster.paths.venv}/bin/python3", "-I", "-c", _ASKER,
                              str(self.cluster.paths.act_socket)], json.dumps(request) + "\n")  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer

    def as_daemon(self, user: str, argv: list[str], stdin: str = "") -> Any:
        """Run a command in the cluster as one of its system users."""
        import subprocess

        cluster = self.cluster
        line = cluster.rootfs.argv(argv, user=cluster.daemon_user(user), cwd=Path("/"))
        env = cluster.env | {"HOME": "/", "LC_ALL": "C"}
        return subprocess.run(line, env=env, cwd="/", input=stdin, capture_output=True, text=True, timeout=90)

    def submit(self, *words: str, wrap: str = "sleep 600") -> str:
        """A job of an ordinary user."""
        line = ["sbatch", "--parsable", "--output=/dev/null", *words, f"--wrap={wrap}"]
        done = self.cluster.run(line, user=self.user)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def waiting(self) -> str:
        """A job that does not start by itself."""
        return self.submit("--begin=now+2hours")

    def failed(self, *words: str) -> str:
        """A job that has failed."""
        job = self.submit("--requeue", *words, wrap="exit 3")
        self.wait(lambda: self.shown(job)["JobState"] == "FAILED")
        return job

    def shown(self, job: str) -> dict[str, str]:
        """Slurm's own words about a job."""
        text = self.cluster.run(["scontrol", "--oneliner", "show", "job", job], check=True).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def journal(self) -> list[dict[str, Any]]:
        """What gsub-act wrote down."""
        return [json.loads(line) for line in (self.cluster.paths.act_state / NAME).read_text().splitlines()]

    def wait(self, ready: Callable[[], Any]) -> Any:
        """What `ready` gives once it is true."""
        return wait_until(ready, PATIENCE)


@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """2 nodes x 2 GPUs in enforce, with gsub-act."""
    os.umask(0o022)
    name = f"t{os.getpid()}-act{request.param}"
    spec = ClusterSpec(
        name, 2, 2, request.param, policy="enforce", deadline=1.0, agents=False, short_delays=True
    )
    try:
        yield Cluster.up(spec)
    finally:
        Cluster.down(name)


@pytest.fixture
def acting(cluster: Cluster) -> Iterator[Acting]:
    """The cluster with an empty queue."""
    yield Acting(cluster)
    cluster.run(["scancel", "--quiet", f"--user={cluster.users[0]}"])
