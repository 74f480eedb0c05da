"""The users' jobs: what they submit without end, and what the site promises for each."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.slurm.install.site.dressed import Site
from tests.waiting import wait_until

_T = TypeVar("_T")
PATIENCE: Final = 120.0
"""Seconds within which all that is waited for comes, on a machine that others use too."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to submit a job.

    Parameters
    ----------
    argv: the command; `@TAG@` is the job's name.
    refused: what the site's job_submit.lua says when it refuses the job; empty: it takes it.
    then: what the user does with the job: a command, ("await", state...) or ("wait", seconds). `@JOB@` is its id.
    denied: steps of `then`, from 1, that the site's slurm_job_modify refuses.
    state, code: the job's end in accounting.
    partition, features, minutes: what the site's rules make of it; empty or 0: not looked at.
    jobs, nodes: how many jobs a submission makes, and on how many nodes each.
    earlier: nodes of an attempt before the last.
    """

    argv: tuple[str, ...]
    refused: str = ""
    then: tuple[tuple[str, ...], ...] = ()
    denied: tuple[int, ...] = ()
    state: str = "COMPLETED"
    code: str = "0:0"
    partition: str = ""
    features: str = ""
    minutes: int = 0
    jobs: int = 1
    nodes: int = 1
    earlier: tuple[str, ...] = ()


_NAMED: Final = ("--parsable", "--job-name=@TAG@", "--output=/dev/null")


def _sbatch(*options: str, seconds: float = 0.5, code: int = 0) -> tuple[str, ...]:
    return ("sbatch", *_NAMED, *options, "@SCRIPT@", str(seconds), str(code), "@FOLDER@")


_ON_GPUS: Final[dict[str, Any]] = {"partition": "gpu", "features": "a100", "minutes": 60}
_ON_CPUS: Final[dict[str, Any]] = {"partition": "cpu", "minutes": 60}
_JOB: Final = ("@SCRIPT@", "0.5", "0", "@FOLDER@")
_TWO: Final = 'srun @SCRIPT@ 0.5 0 "@FOLDER@"'

KINDS: Final = {
    "gpu": Kind(_sbatch("-Alab", "-G1"), **_ON_GPUS),
    "cpus": Kind(_sbatch("-Alab", "-c2"), **_ON_CPUS),
    "array": Kind(_sbatch("-Alab", "--array=1-2"), jobs=2, **_ON_CPUS),
    "fails": Kind(_sbatch("-Alab", "-G1", code=3), state="FAILED", code="3:0", **_ON_GPUS),
    "spread": Kind(
        ("sbatch", *_NAMED, "-Alab", "-N2", "--gpus-per-node=1", f"--wrap={_TWO}"),
        nodes=2,
        **_ON_GPUS,
    ),
    "too-long": Kind(
        _sbatch("-Alab", "--qos=short", "--time=5:00:00", "-G1"), partition="gpu", features="a100", minutes=10
    ),
    "no-account": Kind(_sbatch("-G1"), refused="every job needs an account"),
    "cpu-gpus": Kind(_sbatch("-Alab", "-pcpu", "-G1"), refused="partition cpu has no GPUs"),
    "greedy": Kind(_sbatch("-Alab", "-G64"), refused="64 GPUs are more than the 32"),
    "urgent": Kind(_sbatch("-Alab", "-purgent"), refused="partition urgent is for those on call"),
    "srun": Kind(("srun", "--job-name=@TAG@", "-Alab", "-G1", *_JOB), **_ON_GPUS),
    "salloc": Kind(("salloc", "--job-name=@TAG@", "-Alab", "-n1", "srun", *_JOB), **_ON_CPUS),
    "changed": Kind(
        _sbatch("-Alab", "-G1", "--hold", "--time=20"),
        then=(
            ("scontrol", "update", "JobId=@JOB@", "Partition=urgent"),
            ("scontrol", "update", "JobId=@JOB@", "TimeLimit=7"),
            ("scontrol", "release", "@JOB@"),
        ),
        denied=(1,),
        partition="gpu",
        features="a100",
        minutes=7,
    ),
    "requeued": Kind(
        _sbatch("-Alab", "-G1", "--requeue", "-wn1", seconds=60),
        then=(
            ("await", "RUNNING"),
            ("wait", "1"),
            ("scontrol", "requeue", "@JOB@"),
            ("await", "PENDING"),
            # on another node: on the same one 22.05's slurmd knows the job for two minutes, and runs no prolog
            ("scontrol", "update", "JobId=@JOB@", "ReqNodeList=n2", "StartTime=now"),
        ),
        earlier=("n1",),
        **_ON_GPUS,
    ),
    # through whatever happens meanwhile
    "through": Kind(_sbatch("-Alab", "-G1", seconds=6), **_ON_GPUS),
    "srun-through": Kind(
        ("srun", "--job-name=@TAG@", "-Alab", "-G1", "@SCRIPT@", "6", "0", "@FOLDER@"), **_ON_GPUS
    ),
}

CLIENTS: Final = (
    ("user1", 1.5, ("gpu", "no-account", "array", "fails", "cpu-gpus", "too-long", "cpus", "spread")),
    ("user2", 1.5, ("srun", "cpus", "urgent", "salloc", "gpu", "changed", "greedy", "spread")),
    ("user2", 1.0, ("requeued", "srun-through", "through")),
)
"""Users, seconds from one submission to the next, and what they submit in turn."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a user, as it went: step 0 is the submission. Times are seconds since the epoch."""

    tag: str
    kind: str
    step: int
    code: int
    begin: float
    end: float
    out: str
    err: str
    cut_off: bool


@dataclass(slots=True)
class Stream:
    """The users at work on a site; `commands` are those that have ended so far, `left` the names of jobs that stayed
    when their command had ended: slurmctld never heard of it, or lost what it had heard, and holds them for ever.
    """

    site: Site
    number: int = 0
    left: tuple[str, ...] = ()
    _clients: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Where the clients and their jobs leave what they tell."""
        return self.site.root / f"stream{self.number}"

    def begin(self) -> None:
        """Let the users begin."""
        self.number = 1 + len(list(self.site.root.glob("stream*")))
        self.folder.mkdir()
        self.folder.chmod(0o777)  # several users
        (self.folder / "plan.json").write_text(json.dumps(self._plan()))
        for number, (user, _, _) in enumerate(CLIENTS):
            argv = ["python3", "-I", str(self.site.files / "client.py"), str(self.folder), str(number)]
            with (self.folder / f"client.{number}.err").open("wb") as err:
                self._clients.append(
                    self.site.cluster.popen(argv, user=user, stdin=subprocess.DEVNULL, stderr=err)
                )

    def _plan(self) -> dict[str, Any]:
        own = {"@SCRIPT@": str(self.site.files / "job.sh"), "@FOLDER@": str(self.folder)}

        def filled(words: tuple[str, ...]) -> list[str]:
            for mark, value in own.items():
                words = tuple(word.replace(mark, value) for word in words)
            return list(words)

        kinds = {
            name: {"argv": filled(kind.argv), "then": [filled(step) for step in kind.then]}
            for name, kind in KINDS.items()
        }
        with_rules = self.site.hooks != "none"
        clients = {
            str(number): {
                "name": f"s{self.number}c{number}",
                "pace": pace,
                "kinds": [
                    name for name in ours if with_rules or not (KINDS[name].refused or KINDS[name].denied)
                ],
            }
            for number, (_, pace, ours) in enumerate(CLIENTS)
        }
        return {"kinds": kinds, "clients": clients}

    @property
    def commands(self) -> tuple[Command, ...]:
        """What the users typed, and what came of it."""
        # a client may be writing its last line now
        lines = [
            line for log in sorted(self.folder.glob("log.*")) for line in log.read_text().split("\n")[:-1]
        ]
        return tuple(Command(**json.loads(line)) for line in lines)

    def more(self, count: int = 6, since: float | None = None) -> tuple[Command, ...]:
        """Wait until this many more submissions, begun from now (or `since`) on, have been answered; they."""
        start = time.time() if since is None else since

        def enough() -> tuple[Command, ...] | None:
            self.alive()
            found = tuple(each for each in self.commands if each.step == 0 and each.begin >= start)
            return found if len(found) >= count else None

        return wait_for("more submissions", enough)

    def alive(self) -> None:
        """Raises AssertionError: a client has ended, with what it said."""
        for number, client in enumerate(self._clients):
            said = (self.folder / f"client.{number}.err").read_text()
            assert client.poll() is None, f"client {number} ended: {said}"

    def pause(self) -> None:
        """Hold users before their next command and jobs before their end, until all is on slurmctld's disk.

        slurmctld saves up to 5 s late: what it acknowledged less than that before a kill -9 is lost by itself, with or
        without gsub.
        """
        (self.folder / "pause").touch()
        cluster = self.site.cluster

        def settled() -> bool:
            queue = cluster.run(["squeue", "-h", "-o", "%T|%r|%j"])
            rows = [line.split("|") for line in queue.stdout.splitlines()]
            return (
                queue.returncode == 0
                and all(
                    state == "RUNNING" or (state == "PENDING" and why != "None") for state, why, _ in rows
                )
                and all(self._holds(number) for number in range(len(CLIENTS)))
            )

        wait_for("the stream's pause", settled, told=lambda: cluster.run(["squeue"]).stdout)
        mark = f"saved-{time.time_ns()}"
        # A job each time: one that slurmdbd was not told of before a kill -9 is never changed again by 22.05 [seen]
        marked = ["sbatch", "--hold", "-Alab", f"--job-name={_SENTINEL}", f"--comment={mark}", "--wrap=:"]
        wait_for("slurmctld to take a mark", lambda: cluster.run(marked).returncode == 0)
        state = cluster.paths.root / "spool/slurmctld/job_state"

        def saved() -> bool:
            with contextlib.suppress(
                FileNotFoundError
            ):  # for a moment, while slurmctld puts the new one in its place
                return mark.encode() in state.read_bytes()
            return False

        wait_for("slurmctld's saving", saved)
        # What it has not yet told slurmdbd is lost as well; a row that never comes is the judge's to name.
        late = time.monotonic() + PATIENCE / 4
        wait_for("the books", lambda: self._in_the_books() or time.monotonic() > late)

    def _in_the_books(self) -> bool:
        """slurmdbd knows of each job that runs, and of no other that it runs."""
        seen = []
        for line in (
            ["squeue", "-h", "-r", "-t", "RUNNING", "-o", "%i"],
            ["sacct", "-a", "-X", "-n", "-P", "-S", "now-2hours", "-s", "RUNNING", "-o", "JobID"],
        ):
            done = self.site.cluster.run(line)
            if done.returncode:
                return False
            seen.append(set(done.stdout.split()))
        return seen[0] == seen[1]

    def _holds(self, number: int) -> bool:
        """A client is parked, or behind an srun that runs on or waits for room."""
        if (self.folder / f"parked.{number}").exists():
            return True
        queue = self.site.cluster.run(["squeue", "-h", "-o", "%j"]).stdout.split()
        return any(
            name.startswith(f"s{self.number}c{number}-") and name.endswith(_INTERACTIVE) for name in queue
        )

    def resume(self) -> None:
        """Let all go on."""
        (self.folder / "pause").unlink()

    def end(self) -> None:
        """Let the users finish what they are at, and wait until the queue is empty."""
        (self.folder / "stop").touch()
        (self.folder / "pause").unlink(missing_ok=True)
        for client in self._clients:
            client.wait(PATIENCE * 2)
        self._clients.clear()
        cluster = self.site.cluster
        cluster.run(["scancel", f"--name={_SENTINEL}"], check=True)

        late = time.monotonic() + PATIENCE / 2

        def empty() -> bool:
            queue = cluster.run(["squeue", "-h", "-o", "%i %T %j"])
            if time.monotonic() > late and not self.left:
                rows = [line.split(" ", 2) for line in queue.stdout.splitlines()]
                stale = {
                    job: name
                    for job, state, name in rows
                    if state == "RUNNING" and name.endswith(_INTERACTIVE)
                }
                self.left = tuple(stale.values())
                if stale:  # as an administrator would, who sets no InactiveLimit
                    cluster.run(["scancel", *stale])
            return queue.returncode == 0 and not queue.stdout.strip()

        wait_for("the queue's end", empty, 2 * PATIENCE, told=lambda: cluster.run(["squeue"]).stdout)

    def kill(self) -> None:
        """End the clients and their jobs, whatever they do: after a failure."""
        for client in self._clients:
            client.kill()
            client.wait()
        self._clients.clear()
        # Jobs that a failure left, held by its pause, must not hold up the test after it
        for whose in (
            f"--name={_SENTINEL}",
            *(f"--user={user}" for user in {user for user, _, _ in CLIENTS}),
        ):
            self.site.cluster.run(["scancel", whose])


_SENTINEL: Final = "sentinel"
_INTERACTIVE: Final = ("srun", "salloc", "srun-through")


def wait_for(
    what: str, ready: Callable[[], _T | None], seconds: float = PATIENCE, told: Callable[[], str] = str
) -> _T:
    """What `ready` gives once it is true. Raises AssertionError: not in that time; `told` says more of it."""
    try:
        return wait_until(ready, seconds, what)
    except AssertionError as error:
        raise AssertionError(f"{error} {told()}") from None
