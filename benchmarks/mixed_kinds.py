"""A day of a center in a minute and a half: jobs of all outcomes, really run, and a ledger of what they really were.

The ledger never asks gsub: each attempt stamps its own begin and end, when it put load on its GPUs and when it took it
off, by the clock of the machine that all nodes share. Which way it had to end, and why, is in the table DAY. For how
long Slurm charged it, in whole seconds, is sacct's word, which has to fit the stamps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.report.figures import SIZES
from tests.slurm.failures.real import python

STATUS = {"completed": "passed", "cancelled": "killed"}
FAILED = ("failed", "timeout", "preempted")
EDGES = (0, 1, 4, 8, 16)
LAG = 10.0
"""Seconds that a busy machine may need for hooks, which Slurm charges; it may lose one second to whole ones."""
EXACT, NEAR, EDGE = 0.002, 0.05, 0.5
"""Shares by which hours may be off, and utilisation; and seconds of a load that an agent, which looks every
two seconds, may miss or add where that comes and goes.
"""
STAMP = """
export DAY="$PWD/day/${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}-$SLURM_ARRAY_TASK_ID"
stamp() { echo "$1 $EPOCHREALTIME" >> "$DAY"; }
trap 'stamp ended; exit 143' TERM
stamp began
"""
USE = """
import os, sys, time
from site_configs.devcluster import emugpu
percent, seconds = int(sys.argv[1]), float(sys.argv[2])
gpus = len(emugpu.gpus_of_this_process())
def stamp(word):
    with open(os.environ["DAY"], "a") as file:
        file.write(f"{word} {time.time()} {gpus * percent}\\n")
with emugpu.load(percent):
    stamp("loaded")
    time.sleep(seconds)
stamp("unloaded")
"""


@dataclass(frozen=True)
class Kind:
    """`times` jobs (of an array: its tasks) that are alike. `load` is the per cent that they put on each of their GPUs
    for `seconds`, 0 for none; then runs `program`. `before`: how the attempt ended that another one followed.
    """

    name: str
    times: int
    gpus: int = 1
    load: int = 0
    seconds: float = 4.0
    outcome: str = "completed"
    reason: str = ""
    program: str = ""
    options: tuple[str, ...] = ()
    user: int = 0
    account: str = "lab"
    nodes: int = 1
    before: tuple[str, str] | None = None
    array: bool = False
    act: str = ""
    """What befalls them from outside."""

    @property
    def script(self) -> str:
        """Its batch script."""
        # What another attempt is to follow lasts until that is brought about
        seconds = '$([ "$SLURM_RESTART_COUNT" ] && echo 5 || echo 600)' if self.before else self.seconds
        uses = f"python3 use.py {self.load} {seconds}" if self.load else f"sleep {seconds}"
        if self.nodes > 1:
            uses = f"srun --mem=0 -N{self.nodes} -n{self.nodes} {uses}"
        work = f"{uses}\n{self.program}"
        # In the background: bash hears a signal while it waits, not while a program runs
        return f"#!/bin/bash\n. ./stamp.sh\n{{\n{work}\n}} &\nwait $!\ncode=$?\nstamp ended\nexit $code\n"

    @property
    def asked(self) -> tuple[str, ...]:
        """Options of sbatch."""
        shape = ("-n1",) if self.nodes == 1 else (f"-N{self.nodes}", f"-n{self.nodes}")
        gpus = (f"--gpus-per-node={self.gpus // self.nodes}", "--cpus-per-gpu=1") if self.gpus else ()
        array = (f"--array=0-{self.times - 1}",) if self.array else ()
        return (f"-J{self.name}", f"-A{self.account}", "--mem=500", *shape, *gpus, *array, *self.options)


LONG = 600.0
OOM = """
class OutOfMemoryError(RuntimeError): pass
OutOfMemoryError.__module__ = "torch"
raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.15 GiB of "
    "which 1.94 GiB is free. Process 2319 has 77.21 GiB memory in use. Of the allocated memory 74.02 GiB is allocated "
    "by PyTorch, and 1.71 GiB is reserved by PyTorch but unallocated.")
"""
BROKEN = "printf 'def train(:\\n' > $SLURM_JOB_ID.py\npython3 $SLURM_JOB_ID.py"
BAD_TASKS = (3, 8, 13)
TASKS = python(
    f"import os\nif int(os.environ['SLURM_ARRAY_TASK_ID']) in {BAD_TASKS}: {{'lr': 0.1}}['decay']\n"
)

# Those that something befalls fit on the cluster at the same time, beside those that wait for their time limit
DAY = (
    Kind("taken", 1, 4, 70, LONG, "preempted", "preempted", options=("-wn3", "--no-requeue"), act="preempt"),
    Kind("taken-again", 1, 4, 50, before=("preempted", "preempted"), options=("-wn3", "--requeue"), act="preempt"),
    Kind("hours", 2, 1, 90, LONG, "timeout", "time_limit", options=("-t1",)),
    Kind("hours-idle", 1, 2, 0, LONG, "timeout", "time_limit", options=("-t1",), user=1, account="phys"),
    Kind("again", 2, 1, 60, before=("preempted", "preempted"), options=("--requeue",), act="requeue"),
    Kind("killed", 5, 1, 80, LONG, "cancelled", act="cancel", user=1),
    Kind("killed-idle", 1, 4, 0, LONG, "cancelled", act="cancel", account="phys"),
    Kind("killed-cpu", 2, 0, 0, LONG, "cancelled", act="cancel"),
    Kind("urgent", 1, 8, 80, 5.0, options=("-wn3", "-purgent"), act="urgent"),
    Kind("withdrawn", 10, 2, 80, 4.0, "", options=("--begin=now+1hour",), act="withdraw"),
    Kind("wide", 1, 16, 65, 5.0, nodes=2, account="phys"),
    Kind("node", 2, 8, 75, 5.0, user=1),
    Kind("half", 4, 4, 55, 5.0),
    Kind("pair", 6, 2, 40, 4.0, user=1, account="phys"),
    Kind("one", 34, 1, 85, 4.0),
    Kind("small", 10, 1, 30, 4.0, user=1, account="phys"),
    Kind("idle", 10, 1, 0, 4.0, user=1),
    Kind("idle-wide", 2, 4, 0, 4.0, account="phys"),
    Kind("sweep", 16, 1, 50, 4.0, array=True, program=TASKS, user=1),
    Kind("cpu", 14, 0, 0, 1.0),
    Kind("cpu-fails", 4, 0, 0, 1.0, "failed", "semantic_error", python("{}['epochs']\n"), user=1),
    Kind("import", 4, 1, 0, 0.5, "failed", "import_error", python("import surely_not_installed\n")),
    Kind("file", 4, 2, 0, 0.5, "failed", "missing_input", python("open('train/part-3.csv')\n"), user=1),
    Kind("gpu-oom", 5, 1, 95, 4.0, "failed", "gpu_oom", python(OOM), account="phys"),
    Kind("segfault", 4, 1, 80, 4.0, "failed", "invalid_memory_access", python("import ctypes\nctypes.string_at(8)\n")),
    Kind("memory", 4, 1, 0, 0.5, "failed", "cpu_oom", "ulimit -v 600000\n" + python("bytearray(4 << 30)\n"), user=1),
    Kind("syntax", 4, 4, 0, 0.5, "failed", "syntax_error", BROKEN),
    Kind("abort", 3, 1, 70, 4.0, "failed", "core_dump", python("import os\nos.abort()\n")),
    Kind("shapes", 2, 8, 60, 5.0, "failed", "semantic_error", python("raise ValueError('shapes (3,) and (4,)')\n")),
    Kind("denied", 3, 1, 0, 0.5, "failed", "permission_error", python("open('/etc/shadow')\n"), user=1),
)  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    """What really was: `run_s` and `busy_s` by the job's own clock, `busy_s` over its GPUs (one at 50 % for 2 s is busy
    for 1 s), and `held_s` by Slurm's books.
    """

    kind: Kind
    job: int
    outcome: str
    reason: str
    user: str
    run_s: float
    busy_s: float
    held_s: float

    @property
    def size(self) -> str:
        """Its row in the table of utilisation."""
        return SIZES[bisect_left(EDGES, self.kind.gpus)]

    @property
    def failed(self) -> bool:
        """As the audit has it."""
        return self.outcome in FAILED

    @property
    def idle(self) -> bool:
        """Whether it never used its GPUs: a kind uses all or none."""
        return self.kind.load == 0


Held = Mapping[tuple[int, int], float]
"""For how many seconds Slurm charged each attempt, by the job's id and its restarts."""


def read(folder: Path, jobs: Mapping[int, tuple[Kind, str]], held: Held) -> list[Attempt]:
    """The ledger, out of what jobs stamped. `jobs`: kind and user by the id that sbatch told."""
    return [_attempt(path, jobs, held) for path in sorted(folder.iterdir())]


def _attempt(path: Path, jobs: Mapping[int, tuple[Kind, str]], held: Held) -> Attempt:
    told, job, restarts, task = path.name.split("-")
    kind, user = jobs[int(told)]
    stamps: dict[str, list[float]] = {"began": [], "loaded": [], "unloaded": [], "ended": []}
    percent = 0.0  # of the GPUs of one rank; all ranks have as many
    for line in path.read_text().splitlines():
        word, at, *share = line.split()
        stamps[word].append(float(at))
        percent = float(share[0]) if share else percent
    (began,), (ended,) = stamps["began"], stamps["ended"]
    # What was ended from outside has not taken its load off
    off = stamps["unloaded"] + [ended] * (len(stamps["loaded"]) - len(stamps["unloaded"]))
    outcome, reason = kind.outcome, kind.reason
    if kind.before is not None and restarts == "0":
        outcome, reason = kind.before
    elif task and int(task) in BAD_TASKS:
        outcome, reason = "failed", "semantic_error"
    busy = percent / 100 * (sum(off) - sum(stamps["loaded"]))
    return Attempt(kind, int(job), outcome, reason, user, ended - began, busy, held[int(job), int(restarts)])


# --- the tables as they have to be ----------------------------------------------------------------------------------

Cells = dict[tuple[str, str, str], tuple[float, float]]
"""Table, row and column; the least and the most that may stand there."""


def differences(tables: Mapping[str, Any], ledger: Sequence[Attempt]) -> list[str]:
    """Where the tables of ``gsub admin audit --json`` do not say what the ledger says, a sentence each."""
    wanted = cells(ledger)
    found: dict[tuple[str, str, str], Any] = {}
    for table in {table for table, _, _ in wanted}:
        for row in tables[table]["rows"]:
            first, *others = row.items()
            found |= {(table, str(first[1]), name): value for name, value in others}
    told = [
        f"{' / '.join(cell)}: {found.get(cell)}, not {low:.4f} to {high:.4f}"
        for cell, (low, high) in wanted.items()
        if not isinstance(value := found.get(cell), int | float) or not low <= value <= high
    ]
    others = {(table, row) for table, row, _ in found} - {(table, row) for table, row, _ in wanted}
    return told + [
        f"{table} / {row}: nothing of the kind was run" for table, row in others if table != "totals"
    ]


def cells(ledger: Sequence[Attempt]) -> Cells:
    """What each cell must hold."""
    made: Cells = {}

    def put(table: str, row: str, **columns: tuple[float, float]) -> None:
        made.update({(table, row, name): span for name, span in columns.items()})

    on_gpus = [one for one in ledger if one.kind.gpus]
    failed = [one for one in ledger if one.failed]
    for row, span in {
        "attempts": count(ledger),
        "jobs": count({one.job for one in ledger}),
        "users": count({one.user for one in ledger}),
        "attempts without a GPU": count([one for one in ledger if not one.kind.gpus]),
        "GPU-hours": hours(ledger),
        "utilisation": use(ledger),
        "GPU-hours of GPUs never used": hours([one for one in ledger if one.idle]),
        "GPU-hours of failed attempts": hours(failed),
        "GPU-hours wasted, by both": hours([one for one in ledger if one.failed or one.idle]),
    }.items():
        put("totals", row, value=span, unknown=(0, 0))
    for outcome, some in groups(ledger, lambda one: one.outcome):
        put("outcomes", outcome, gpu_hours=hours(some), attempts=count(some), unknown=(0, 0))
    for size, some in [*groups(on_gpus, lambda one: one.size), ("all", on_gpus)]:
        put("utilisation", size, attempts=count(some), unknown=(0, 0), all_percent=use(some))
        for status, those in groups(some, lambda one: STATUS.get(one.outcome, "unsuccessful")):
            put("utilisation", size, **{f"{status}_percent": use(those), f"{status}_attempts": count(those)})
    for reason, some in groups(failed, lambda one: one.reason):
        middle = sorted(one.held_s for one in some)[(len(some) - 1) // 2]
        sizes = [
            (f"gpus_{name}", low, high) for name, low, high in (("1", 1, 1), ("2_4", 2, 4), ("over_4", 5, 99))
        ]
        put(
            "failures", reason,
            jobs=count({one.job for one in some}), users=count({one.user for one in some}), attempts=count(some),
            run_s_p50=(middle, middle), gpu_hours=hours(some), unknown=(0, 0),
            **{name: count([one for one in some if low <= one.kind.gpus <= high]) for name, low, high in sizes},
        )  # fmt: skip
        if any(one.kind.gpus for one in some):
            bad = [one for one in some if one.kind.gpus]
            put("wasted", reason, wasted_hours=hours(bad), attempts=count(bad), unknown=(0, 0))
    unused = [one for one in on_gpus if one.idle and not one.failed]
    put("wasted", "(GPUs never used)", wasted_hours=hours(unused), attempts=count(unused), unknown=(0, 0))
    for user, some in groups(on_gpus, lambda one: one.user):
        lost = [one for one in some if one.failed or one.idle]
        put("wasted_by_user", user, wasted_hours=hours(lost), gpu_hours=hours(some), attempts=count(some))
    parts: dict[str, Callable[[Attempt], str]] = {
        "user": lambda one: one.user,
        "account": lambda one: one.kind.account,
    }
    for name, part in parts.items():
        for value, some in groups(ledger, part):
            jobs, bad = count({one.job for one in some}), [one for one in some if one.failed]
            percent = 100 * len(bad) / len(some)
            put(
                f"by_{name}", value, jobs=jobs, gpu_hours=hours(some), utilisation_percent=use(some),
                idle_hours=hours([one for one in some if one.idle]), failed_hours=hours(bad),
                failed_percent=(percent - 1e-6, percent + 1e-6), attempts=count(some), unknown=(0, 0),
            )  # fmt: skip
    return made


def groups(some: Sequence[Attempt], key: Callable[[Attempt], str]) -> Iterator[tuple[str, list[Attempt]]]:
    """Those of each kind that there is."""
    for value in sorted({key(one) for one in some}):
        yield value, [one for one in some if key(one) == value]


def count(some: Sequence[Attempt] | set[int] | set[str]) -> tuple[float, float]:
    """Exactly so many."""
    return (len(some), len(some))


def hours(some: Sequence[Attempt]) -> tuple[float, float]:
    """Their GPU-hours."""
    held = sum(one.kind.gpus * one.held_s for one in some) / 3600
    return (held * (1 - EXACT), held * (1 + EXACT))


def use(some: Sequence[Attempt]) -> tuple[float, float]:
    """Their utilisation in per cent, a mean over hours; that of each over the time that an agent can have looked."""
    low = high = 0.0
    for one in some:
        edge = EDGE * one.kind.gpus * one.kind.load / 100
        low += one.held_s * max(0.0, one.busy_s - edge) / (max(one.run_s, one.held_s) + EDGE)
        high += one.held_s * (one.busy_s + edge) / one.run_s
    held = sum(one.kind.gpus * one.held_s for one in some)
    return (100 * (1 - NEAR) * low / held, 100 * (1 + NEAR) * high / held)
