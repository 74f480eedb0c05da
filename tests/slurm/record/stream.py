"""Jobs that run through a fault, each known by a word: they end when the test says so, not when time is over."""

from __future__ import annotations

import json
from dataclasses import dataclass

import msgspec
from ClusterShell.NodeSet import NodeSet

from profiler.answers import Jobs, JobSummary, Usage
from tests.slurm.record.recorded import Recorded

BOTH = frozenset({"n1", "n2"})
MANY = "many"
_OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
# one process for many questions: each costs as much as the interpreter's start
_ASK_ALL = """
import json, os, sys
from profiler.munge import Munge
from profiler.sealed import Service, believed
from site_configs.site import load_site
site = load_site(os.environ["GSUB_SITE"])
service = Service(site.service.url, Munge(site.slurm.munge_socket), believed(site.service.user))
def ask(target):
    answer = service.ask("GET", target)
    return [answer.status, answer.body.decode()]
asked = json.load(sys.stdin)
if asked == "jobs":
    pages = [ask("/v1/jobs?limit=500")]
    while pages[-1][0] == 200 and (cursor := json.loads(pages[-1][1]).get("next")):
        pages.append(ask("/v1/jobs?limit=500&cursor=" + cursor))
    print(json.dumps(pages))
else:
    print(json.dumps([ask(target) for target in asked]))
"""


@dataclass(frozen=True)
class Ran:
    """What Slurm's own books say of a job that is over."""

    job: int
    nodes: frozenset[str]
    state: str
    started: float
    ended: float


class Stream:
    """The jobs of one fault. All of them want one GPU a node."""

    def __init__(self, record: Recorded, name: str) -> None:
        self.record = record
        self.name = name.replace(" ", "-")
        self.ids: dict[str, int] = {}

    def begin(self, *words: str) -> None:
        """Start jobs on both nodes; each goes on until it is released."""
        script = 'until [ -e "go-$SLURM_JOB_NAME" ]; do sleep 0.2; done'
        for word in words:
            self._submit(word, "-w", "n[1-2]", "-N2", script=script)
        for word in words:
            self.record.given(self.ids[word])

    def release(self, *words: str) -> None:
        """Let them end."""
        for word in words:
            (self.record.home / f"go-{self.name}.{word}").touch()

    def short(self, *words: str, script: str = "sleep 0.5") -> None:
        """Submit jobs on both nodes that end by themselves."""
        for word in words:
            self._submit(word, "-w", "n[1-2]", "-N2", script=script)

    def many(self, count: int) -> None:
        """Submit an array of jobs, `MANY` by their word, on any node, that end at once."""
        self._submit(MANY, f"--array=1-{count}", "-N1", "--cpus-per-task=1", script="true")

    def _submit(self, word: str, *options: str, script: str) -> None:
        named = (f"--job-name={self.name}.{word}", "--output=/dev/null", "--gpus-per-node=1", "-c1")
        self.ids[word] = self.record.submit(*named, *options, script=script)

    def ended(self, *words: str) -> None:
        """Wait until Slurm has ended these, by default all; nodes that complete them included."""
        wanted = {self.ids[word] for word in words or self.ids}

        def look() -> bool | None:
            lines = self.record.cluster.run(["squeue", "-h", "-o", "%A %F"]).stdout.splitlines()
            return not wanted & {int(each) for line in lines for each in line.split()} or None

        self.record.wait_for(f"the end of {self.name}", look)

    def spread(self, word: str) -> float:
        """Seconds from the first start to the last end of these jobs, by Slurm's books."""
        job = self.ids[word]
        rows = self.record.wait_for(f"Slurm's books on {word}", lambda: books(self.record, job) or None)
        return max(each.ended for each in rows) - min(each.started for each in rows)

    def books(self) -> dict[str, list[Ran]]:
        """By word, what Slurm says of its jobs, once it has closed them."""

        def look() -> dict[str, list[Ran]] | None:
            found = {word: books(self.record, job) for word, job in self.ids.items()}
            # 22.05's accounting may leave one of two nodes out for a moment at a job's end
            whole = all(each.nodes == BOTH for word, rows in found.items() for each in rows if word != MANY)
            return found if whole and all(found.values()) else None

        return self.record.wait_for(f"Slurm's books on {self.name}", look)


def books(record: Recorded, job: int | None = None) -> list[Ran]:
    """A job's rows in accounting, or all; empty while one of them is not closed."""
    line = ["sacct", "-X", "-n", "-P", "-o", "JobIDRaw,NodeList,State,Start,End"]
    which = ["-a", "-S", "now-1hour"] if job is None else ["-j", str(job)]
    done = record.cluster.run([*line, *which], env={"SLURM_TIME_FORMAT": "%s"})
    rows = [row.split("|") for row in done.stdout.splitlines()]
    if not all(row[2].split(" ")[0] in _OVER for row in rows):
        return []
    return [
        Ran(int(i), frozenset(map(str, NodeSet(n))), s.split(" ")[0], float(b), float(e))
        for i, n, s, b, e in rows
    ]


def all_jobs(record: Recorded) -> list[JobSummary]:
    """Each job in the store, as often as it is there."""
    pages = _ask(record, "jobs")
    return [job for page in pages for job in msgspec.json.decode(page, type=Jobs).jobs]


def usages(record: Recorded, jobs: list[int]) -> list[Usage]:
    """What is known of these jobs' first attempts."""
    bodies = _ask(record, [f"/v1/jobs/{job}/usage?restarts=0" for job in jobs])
    return [msgspec.json.decode(body, type=Usage) for body in bodies]


def _ask(record: Recorded, what: str | list[str]) -> list[str]:
    """Raises ConnectionError."""
    done = record.cluster.run(["python3", "-c", _ASK_ALL], input=json.dumps(what))
    if done.returncode:
        raise ConnectionError(done.stderr.strip().splitlines()[-1])
    answers: list[tuple[int, str]] = json.loads(done.stdout)
    for status, body in answers:
        if status != 200:
            raise ConnectionError(f"{status}: {body}")
    return [body for _, body in answers]
