"""Looks at the end whether any job came to harm: at users' terminals, the books, and what the site's scripts left."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ClusterShell.NodeSet import NodeSet

from tests.slurm.install.site.dressed import Site
from tests.slurm.install.site.stream import KINDS, PATIENCE, Command, Kind, Stream, wait_for

_FIELDS: Final = (
    "JobIDRaw,JobName,State,ExitCode,Partition,Constraints,TimelimitRaw,NodeList,AdminComment,End"
)
_OVER: Final = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
)
_WITH_SRUN: Final = frozenset({"spread", "srun", "salloc", "srun-through"})
_BAD_STATE: Final = re.compile("drain|drng|down|fail|inval")
_BAD_LOG: Final = re.compile(r"drain|DRAIN|Duplicate|fatal:|not responding")


@dataclass(frozen=True, slots=True)
class Row:
    """A job in accounting: its last attempt; `ended` in seconds since the epoch."""

    job: str
    name: str
    state: str
    code: str
    partition: str
    features: str
    minutes: str
    nodes: tuple[str, ...]
    comment: str
    ended: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was judged, and what was found wrong; `cut_off` and `doubled` are submissions that slurmctld's end met."""

    submissions: int
    jobs: int
    refused: int
    cut_off: int
    doubled: int
    faults: tuple[str, ...]

    def __str__(self) -> str:
        told = f"{self.submissions} submissions, {self.jobs} jobs, {self.refused} refused by the site as it should, "
        return f"{told}{self.cut_off} cut off, {self.doubled} asked twice, {len(self.faults)} faults"


@dataclass(slots=True)
class Watch:
    """Looks at the nodes twice a second, and at slurmctld's log at the end: `faults` is what a site would not have."""

    site: Site
    seen: set[str] = field(default_factory=set)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _from: int = 0

    def __enter__(self) -> Watch:
        log = self.site.cluster.paths.log / "slurmctld.log"
        self._from = log.stat().st_size
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.5):
            done = self.site.cluster.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %t %E"], timeout=120)
            self.seen |= {line for line in done.stdout.splitlines() if _BAD_STATE.search(line.split()[1])}

    @property
    def faults(self) -> list[str]:
        """Nodes that were seen out of service, and what slurmctld wrote of such things."""
        with (self.site.cluster.paths.log / "slurmctld.log").open(errors="replace") as log:
            log.seek(self._from)
            lines = [line.strip() for line in log if _BAD_LOG.search(line)]
        return [f"node seen: {each}" for each in sorted(self.seen)] + [f"slurmctld: {line}" for line in lines]


@dataclass(slots=True)
class Judge:
    """Judges a stream that has ended. `windows` are the times in which slurmctld was made to end or to read its
    configuration: (begin, end, whether it ended by the test's own hand, as it may at any site). Within the latter 24.11
    and newer may cut an srun inside a job off, and an EpilogSlurmctld ends with slurmctld.
    """

    site: Site
    stream: Stream
    windows: Sequence[tuple[float, float, bool]] = ()
    _faults: list[str] = field(default_factory=list)

    def verdict(self, *more: str) -> Verdict:
        """What came of it all; `more` are faults that others found."""
        self._faults = list(more)
        by_tag: dict[str, list[Command]] = defaultdict(list)
        for command in self.stream.commands:
            by_tag[command.tag].append(command)
        rows = self._rows()
        cut_off = doubled = refused = 0
        for tag, commands in by_tag.items():
            kind = KINDS[commands[0].kind]
            tries = [each for each in commands if each.step == 0]
            met = any(self._in_window(each.begin, each.end) for each in tries)
            broken = sum(each.cut_off for each in tries)
            cut_off += broken
            if broken and not met:
                self._say(tag, f"was cut off while slurmctld ran: {tries[0].err}")
            if kind.refused:
                refused += self._site_refused(tag, kind, tries, rows.get(tag, []))
                continue
            odd = [each for each in tries if each.code != 0 and not each.cut_off]
            for each in odd:
                self._say(tag, f"was refused ({each.code}): {each.err}")
            found = rows.get(tag, [])
            if len(found) > kind.jobs and met and len(found) % kind.jobs == 0:
                doubled += 1
            elif len(found) != kind.jobs and not odd:
                self._say(tag, f"has {len(found)} jobs in accounting, not {kind.jobs}")
            self._steps(tag, kind, commands)
            if tag in self.stream.left:
                cut_off += 1
                # what slurmctld acknowledged within 5 s of a kill -9 is lost by itself
                if not any(self._in_window(each.begin, each.end + 5, ended=True) for each in tries):
                    self._say(tag, "stayed in the queue when its command had ended, and slurmctld had run on")
                continue
            for row in found:
                if self._srun_met(row):
                    cut_off += 1
                else:
                    self._job(tag, kind, row)
        known = {row.job for each in rows.values() for row in each}
        self._site_hooks(rows)
        left = [str(path) for path in self.site.root.glob("scratch/*/*")]
        self._faults += [f"scratch stays: {path}" for path in left]
        return Verdict(len(by_tag), len(known), refused, cut_off, doubled, tuple(self._faults))

    def _say(self, tag: str, text: str) -> None:
        self._faults.append(f"{tag} {' '.join(text.split())}")

    def _in_window(self, begin: float, end: float, *, ended: bool | None = None) -> bool:
        return any(
            begin <= until and end >= since and ended in (None, was_ended)
            for since, until, was_ended in self.windows
        )

    def _srun_met(self, row: Row) -> bool:
        """Its srun was cut off by slurmctld's end, which 22.05's never is."""
        uses = row.name.split("-", 2)[2] in _WITH_SRUN
        newer = not self.site.cluster.version.startswith("22.05")
        return newer and uses and row.state == "FAILED" and self._in_window(row.ended, row.ended, ended=True)

    def _rows(self) -> Mapping[str, list[Row]]:
        """The books by job name, once all in them is closed. slurmctld tells slurmdbd of its jobs when it gets to
        it, and later after a restart: jobs that were taken and are not there yet are waited for a while.
        """
        taken = {
            each.tag: KINDS[each.kind].jobs
            for each in self.stream.commands
            if each.step == 0 and each.code == 0
        }
        late = time.monotonic() + PATIENCE / 2
        mine = f"s{self.stream.number}c"
        line = ["sacct", "-a", "-X", "-n", "-P", "-S", "now-2hours", "-o", _FIELDS]

        def closed() -> dict[str, list[Row]] | None:
            done = self.site.cluster.run(line, env={"SLURM_TIME_FORMAT": "%s"})
            found: dict[str, list[Row]] = defaultdict(list)
            for text in done.stdout.splitlines():
                job, name, state, code, partition, features, minutes, nodes, comment, ended = text.split("|")
                if not name.startswith(mine):
                    continue
                if state.split()[0] not in _OVER:
                    return None
                hosts = tuple(map(str, NodeSet(nodes))) if nodes != "None assigned" else ()
                found[name].append(
                    Row(
                        job,
                        name,
                        state.split()[0],
                        code,
                        partition,
                        features,
                        minutes,
                        hosts,
                        comment,
                        float(ended),
                    )
                )
            missing = any(len(found[tag]) < jobs for tag, jobs in taken.items())
            if done.returncode != 0 or (missing and time.monotonic() < late):
                return None
            return dict(found)

        return wait_for("the end of all jobs in accounting", closed)

    def _site_refused(self, tag: str, kind: Kind, tries: Iterable[Command], rows: Sequence[Row]) -> int:
        count = 0
        for each in tries:
            if each.code == 0 or rows:
                self._say(tag, "was taken, though the site's job_submit.lua refuses such jobs")
            elif not each.cut_off and kind.refused not in each.err:
                self._say(tag, f"was refused, but not as the site does: {each.err}")
            elif not each.cut_off:
                count = 1
        return count

    def _steps(self, tag: str, kind: Kind, commands: Iterable[Command]) -> None:
        last = {each.step: each for each in commands if each.step}
        for step, each in last.items():
            if step in kind.denied and each.code == 0:
                self._say(tag, f"step {step}: the site's slurm_job_modify did not refuse it")
            elif step not in kind.denied and each.code != 0:
                self._say(tag, f"step {step} failed: {each.err}")
            elif step in kind.denied and each.cut_off:
                self._say(tag, f"step {step} was never answered: {each.err}")

    def _job(self, tag: str, kind: Kind, row: Row) -> None:
        wanted = {
            "state": (row.state, kind.state),
            "exit code": (row.code, kind.code),
            "nodes": (len(row.nodes), kind.nodes),
        }
        if self.site.hooks != "none":
            wanted |= {
                "partition": (row.partition, kind.partition or row.partition),
                "features": (row.features, kind.features or row.features),
                "time limit": (row.minutes, str(kind.minutes or row.minutes)),
            }
        for what, (seen, want) in wanted.items():
            if seen != want:
                self._say(tag, f"job {row.job}: {what} is {seen}, not {want}")

    def _site_hooks(self, rows: Mapping[str, list[Row]]) -> None:
        """The site's prolog, epilog, task prolog and jobstats did for each job what they do."""
        ran = Counter(self._hook_lines())
        told = self._told()
        jobstats = dict(line.split(" ", 1) for line in _lines(self.site.root / "site/log/jobstats"))
        for each in (row for group in rows.values() for row in group):
            for node in each.nodes:
                if (each.job, node) not in told and each.name not in self.stream.left and not self._srun_met(each):
                    self._say(each.name, f"job {each.job} told nothing of {node}")
            if self.site.hooks == "none":
                continue
            for node in (*each.nodes, *KINDS[each.name.split("-", 2)[2]].earlier):
                for hook in ("prolog", "epilog"):
                    if not ran[node, hook, each.job]:
                        self._say(each.name, f"job {each.job} had none of the site's {hook} on {node}")
                for line in told.get((each.job, node), ()):
                    if line.split()[3:] != [f"site-{each.job}", "scratch"]:
                        self._say(each.name, f"job {each.job} misses what the site gives its jobs: {line}")
            self._jobstats(each, jobstats, rows[each.name])

    def _jobstats(self, row: Row, jobstats: Mapping[str, str], group: Iterable[Row]) -> None:
        wrote = jobstats.get(row.job)
        if wrote is None and self._in_window(row.ended - 5, row.ended + 5, ended=True):
            return  # ended with slurmctld
        # 26.05's sacctmgr takes the id that an array has in common with one of its tasks for all of them, and 22.05's
        # writes lower case
        right = {jobstats[each.job].lower() for each in group if each.job in jobstats}
        if wrote is None:
            self._say(row.name, f"job {row.job} had no EpilogSlurmctld")
        elif row.comment.lower() not in right:
            self._say(row.name, f"job {row.job}: AdminComment is {row.comment!r}, jobstats wrote {wrote!r}")

    def _hook_lines(self) -> Iterator[tuple[str, str, str]]:
        for node in self.site.nodes:
            for line in _lines(self.site.root / f"site/log/hooks.{node}"):
                hook, job, how, *_ = line.split()
                if how != "ok":
                    self._faults.append(f"{node}: {line}")
                yield node, hook, job

    def _told(self) -> dict[tuple[str, str], list[str]]:
        found = {}
        for path in self.stream.folder.glob("told.*"):
            _, job, node = path.name.split(".")
            found[job, node] = path.read_text().splitlines()
        return found


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
