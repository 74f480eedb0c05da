"""A development cluster on which smoke is proven: lays cases out, submits them, and asks Slurm what became of them."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.smoke_scripts import Case
from gsub.smoke.result import Result, read
from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.spec import Release

T = TypeVar("T")
STANDIN: Final = Path(__file__).parents[1] / "tests/unit/gsub/smoke/scripts"
_BEGAN: Final = re.compile(
    r"^\[(?P<at>[\d:T.-]+)\] .*(?:sched: Allocate|_start_job: Started|Started) JobId=(?P<job>\d+) "
)
_DONE: Final = re.compile(r"^\[(?P<at>[\d:T.-]+)\] _job_complete: JobId=(?P<job>\d+) ")
_ENDED: Final = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
    | {"TIMEOUT"}
)


@dataclass(frozen=True)
class Asked:
    """A submission: what it was called, what the command said, and the job; "" when nothing was submitted."""

    case: Case
    name: str
    folder: Path
    code: int
    said: str
    job: str
    seconds: float


@dataclass(frozen=True)
class Job:
    """A job as accounting has it. `seconds` it ran, `waited` from its submission to its start."""

    job: str
    name: str
    state: str
    seconds: int
    gpus: int
    waited: float | None = None

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.state in _ENDED

    @property
    def gpu_seconds(self) -> int:
        """That it held GPUs for."""
        return self.seconds * self.gpus


@dataclass(frozen=True)
class Times:
    """When a job came into the queue, started and ended, in seconds since 1970 (whole ones); None: it did not."""

    name: str
    state: str
    submitted: float | None
    started: float | None
    ended: float | None
    nodes: str


@dataclass
class Stage:
    """The cluster and one ordinary user of it."""

    cluster: Cluster
    minute: float
    began: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S"))

    def __post_init__(self) -> None:
        self.user = self.cluster.users[0] if self.cluster.users else None
        self.home = self.cluster.home(self.user)
        self.lib = self.home / "lib"
        if self.lib.exists():
            shutil.rmtree(self.lib)
        shutil.copytree(STANDIN, self.lib, ignore=shutil.ignore_patterns("__pycache__"))
        self.lib.chmod(0o755)
        self.state = self.home / "state"

    @property
    def environment(self) -> dict[str, str]:
        """What the user's shell has."""
        home = {"HOME": str(self.home), "XDG_STATE_HOME": str(self.state), "USER": self.user or ""}
        return {**home, "MINUTE_S": str(self.minute), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(
        self, words: Sequence[str], *, cwd: Path | None = None, given: str | None = None
    ) -> tuple[int, str]:
        """A command of the user's: exit code and all that it said."""
        done = self.cluster.run(
            words, user=self.user, env=self.environment, cwd=cwd, input=given, timeout=120
        )
        return done.returncode, done.stdout + done.stderr

    def admin(self, *words: str) -> str:
        """A command of root's."""
        return self.cluster.run(words, check=True).stdout

    def bounds(self, smoke_s: float, wait_s: float) -> None:
        """How long a smoke run takes at most, and how long it may wait for its start, both in seconds."""
        self.cluster.write_site(site_text(self.cluster.paths.site.read_text(), smoke_s, wait_s))

    # --- cases --------------------------------------------------------------------------------------------------------

    def lay(self, case: Case, name: str) -> Path:
        """The case's files in a folder of their own, which is the user's."""
        folder = self.home / "cases" / name
        shutil.rmtree(folder, ignore_errors=True)
        for inside, text in {**case.files, "job.sh": case.script}.items():
            target = folder / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            data = text.replace("LIB", str(self.lib)).encode()
            target.write_bytes(gzip.compress(b"1,2\n" * 9999)[:40] if text == "CUT" else data)
        who = self.home.stat()
        for path in (self.home / "cases", folder, *folder.rglob("*")):
            os.chown(path, who.st_uid, who.st_gid)
        for inside, mode in case.modes.items():
            (folder / inside).chmod(mode)
        return folder

    def submit(
        self, case: Case, name: str, *words: str, command: str = "gsub", before: Sequence[str] = ()
    ) -> Asked:
        """Lay a case out and submit it. `before`: the ids of two jobs, for a case that depends on others."""
        folder = self.lay(case, name)
        line = [command, *words, f"--job-name={name}", *case.words]
        if case.needs:
            needs = (
                case.needs.replace("A", before[0]).replace("B", before[1])
                if ":" in case.needs
                else case.needs
            )
            line.append(f"--dependency={needs}")
        script = case.script.replace("LIB", str(self.lib))
        if case.how == "wrap":
            line.append(f"--wrap={script}")
        elif case.how == "file":
            line.append("job.sh")
        begun = time.monotonic()
        code, said = self.run(line, cwd=folder, given=script if case.how == "stdin" else None)
        found = re.search(r"Submitted batch job (\d+)", said)
        return Asked(case, name, folder, code, said, found[1] if found else "", time.monotonic() - begun)

    # --- Slurm --------------------------------------------------------------------------------------------------------

    def queue(self) -> dict[str, tuple[str, str, str]]:
        """Jobs that are not over: id -> name, state, reason."""
        said = self.admin("squeue", "-h", "-o", "%i|%j|%T|%r")
        rows = [line.split("|") for line in said.splitlines()]
        return {row[0]: (row[1], row[2], row[3]) for row in rows if len(row) == 4}

    def jobs(self) -> dict[str, Job]:
        """All jobs since the bench began, by id (of array tasks: "12_1")."""
        form = "JobID,JobName,State,ElapsedRaw,AllocTRES,Submit,Start"
        said = self.admin("sacct", "-nXPa", f"-S{self.began}", "-Enow", f"--format={form}")
        found = {}
        for line in said.splitlines():
            number, name, state, seconds, tres, submitted, start = line.split("|")
            gpus = re.search(r"gres/gpu=(\d+)", tres)
            waited = _moment(start) - _moment(submitted) if start[:2] == "20" else None
            word = state.split()[0]
            found[number] = Job(number, name, word, int(seconds), int(gpus[1]) if gpus else 0, waited)
        return found

    def times(self) -> dict[str, Times]:
        """All jobs since the bench began, by id: name, state and moments."""
        form = "JobID,JobName,State,Submit,Start,End,NodeList"
        said = self.admin("sacct", "-nXPa", f"-S{self.began}", "-Enow", f"--format={form}")
        rows = [line.split("|") for line in said.splitlines()]

        def moment(text: str) -> float | None:
            return _moment(text) if text[:2] == "20" else None

        return {
            job: Times(name, state, moment(submitted), moment(started), moment(ended), nodes)
            for job, name, state, submitted, started, ended, nodes in rows
        }

    def aged(self) -> None:
        """Priority grows with age, as most sites have it; a site's days are minutes here."""
        conf = self.cluster.paths.slurm_conf
        text = conf.read_text()
        if "PriorityWeightAge" not in text:
            conf.write_text(
                f"{text}PriorityWeightAge=100000\nPriorityMaxAge=0-01:00:00\nPriorityCalcPeriod=00:01:00\n"
            )
            self.admin("scontrol", "reconfigure")

    def seconds(self) -> dict[str, float]:
        """How long each job without tasks of an array held its nodes: slurmctld's log has it finer than the books."""
        found: dict[str, list[float]] = {}
        for line in (self.cluster.paths.log / "slurmctld.log").read_text(errors="replace").splitlines():
            row = _BEGAN.search(line) or _DONE.search(line)
            if row:
                moment = datetime.fromisoformat(row["at"]).timestamp()
                found.setdefault(row["job"], []).append(moment)
        return {job: max(times) - min(times) for job, times in found.items() if len(times) > 1}

    def smokes(self, names: set[str]) -> dict[str, Job]:
        """The smoke jobs of submissions, by the submission's name."""
        wanted = {f"smoke-{name}": name for name in names}
        return {wanted[job.name]: job for job in self.jobs().values() if job.name in wanted}

    def result(self, smoke: str) -> Result | None:
        """What the runner of a smoke job wrote down."""
        return read(self.state / "gsub", int(smoke))

    def wait(self, what: str, look: Callable[[], T | None], patience: float = 180.0) -> T:
        """What `look` finds, as soon as there is something. Raises TimeoutError."""
        until = time.monotonic() + patience
        while not (found := look()):
            if time.monotonic() > until:
                raise TimeoutError(f"waited {patience:.0f} s in vain for {what}: {self.queue()}")
            time.sleep(0.5)
        return found

    def quiet(self, prefix: str, patience: float = 180.0) -> None:
        """Until no job whose name begins so is in the queue."""
        self.wait(
            f"the end of {prefix}...",
            lambda: not any(name.startswith(prefix) for name, _, _ in self.queue().values()),
            patience,
        )

    @contextmanager
    def taken(self, *words: str, name: str = "blocker") -> Iterator[str]:
        """GPUs that another job holds meanwhile, one unless `words` say more: then no job of all GPUs starts."""
        line = ["sbatch", "--parsable", f"-J{name}", "-t60", "-o/dev/null", *(words or ("-N1", "--gpus=1"))]
        code, said = self.run([*line, "--wrap=sleep 3000"])
        if code:
            raise RuntimeError(said)
        job = said.split()[-1]
        self.wait("the blocker", lambda: self.queue().get(job, ("", "", ""))[1] == "RUNNING")
        try:
            yield job
        finally:
            self.admin("scancel", job)


def tree(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Every file and folder below: modification time, mode, content."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        facts = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (facts.st_mtime_ns, facts.st_mode, digest)
    return found


def _moment(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def site_text(before: str, smoke_s: float, wait_s: float) -> str:
    """A site file with these bounds for smoke runs."""
    text = before.partition("\n[smoke]\n")[0].rstrip()
    return f'{text}\n\n[smoke]\nlongest = "{smoke_s:.0f} s"\nmax_wait = "{wait_s:.0f} s"\n'


@contextmanager
def stage(name: str, release: Release, nodes: int, minute: float, smoke_s: float) -> Iterator[Stage]:
    """A cluster of its own, or the one of that name where it is up already; what was made is taken down."""
    os.umask(0o022)
    made = name not in Cluster.names()
    spec = ClusterSpec(name, nodes, 8, release, deadline=1.0, agents=False)
    try:
        found = Stage(Cluster.up(spec) if made else Cluster.find(name), minute)
        found.bounds(smoke_s, 120)
        yield found
    finally:
        if made:
            Cluster.down(name)
