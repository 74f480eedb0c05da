"""The limits oracle: no job waits longer, is charged more, is refused or cancelled for what gsub makes of it.

    python -m benchmarks.oracle_limits [--slurm RELEASE] [--sets NAME-OR-NUMBER,..] [--json]

Each set of `limit_sets` is submitted to a real Slurm three times at once, in accounts, QOS, partitions and nodes of its
own: to a slurmctld that does not ask gsub, in observe and in enforce. When the scheduler has settled, each job is
compared with the same job without gsub. What differs for the worse is run once more, and is a violation when it does
so again. Exit 1 when there is one, or when a job fares differently without gsub than its set says.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.limit_records import Part, Parts, find_fate, find_harm, is_dearer, parse_jobs
from benchmarks.limit_sets import CHARGED, CONFIGS, CURVES, SETS, THREADS, Config, Job, LimitSet
from profiler.records import new_id
from site_configs.devcluster import Cluster, ClusterSpec, gsubd
from site_configs.devcluster.spec import RELEASES
from tests.waiting import wait_until

MODES: Final = {"off": "x", "observe": "b", "enforce": "e"}
"""Mode -> the last letter of what belongs to a set in it."""
NODES_OF_A_SET: Final = 2
WAVE: Final = 8
"""Sets at a time: each has nodes for each mode."""
STILL_S: Final = 3.5
"""Nothing has changed for so long: Slurm schedules every 2 s here, and by backfill every second."""
CYCLES: Final = 2
"""Slurm has scheduled so often meanwhile; on a busy machine that takes longer."""
PATIENCE_S: Final = 600.0

_OFF: Final = """
local ask = slurm_job_submit
function slurm_job_submit(job, partitions, uid)
  if string.find(job.account or "", "x$") then return slurm.SUCCESS end
  return ask(job, partitions, uid)
end

return slurm.SUCCESS
"""
"""The end of job_submit.lua: jobs of accounts that end so do not reach gsub."""
_WRONG: Final = re.compile(r"unknown|invalid|error|bad|problem", re.IGNORECASE)
"""A line of sacctmgr that says so."""
_DELIVER: Final = """
import os, sys, time
from gsub.argv import split
from gsub.points import deliver
from gsub.sbatch_options import Table
from gsub.site import read_site
from gsub.workload_name import identified
from profiler.curves import Point
from profiler.points import Measured

script, run, *points = sys.argv[1:]
names = identified(split([script], Table.of_all()), open(script, "rb").read(), os.environ).fingerprints
curve = tuple(Point(int(cpus), float(rate), 0.03, 60, 10.0) for cpus, rate in (point.split(":") for point in points))
where = read_site(os.environ).cluster
print(deliver(Measured(run, time.time(), "learn", names, where, gpu_type="a100", cap=24, points=curve)))
"""


@dataclass(frozen=True, slots=True)
class Names:
    """What belongs to one set in one mode; sets that limit no account share one, whose number is empty."""

    number: int
    mode: str
    own_account: bool = True

    @classmethod
    def of(cls, number: int, one: LimitSet, mode: str) -> Names:
        """The names of a set in a mode."""
        return cls(number, mode, bool(one.account or one.parent or one.user or one.default_qos))

    def _of(self, kind: str) -> str:
        return f"{kind}{self.number:02}{MODES[self.mode]}"

    @property
    def account(self) -> str:
        return self._of("a") if self.own_account else f"a{MODES[self.mode]}"

    @property
    def parent(self) -> str:
        return self._of("g")

    @property
    def qos(self) -> str:
        return self._of("q")

    @property
    def partition_qos(self) -> str:
        return self._of("r")

    @property
    def partition(self) -> str:
        return self._of("p")

    @property
    def second(self) -> str:
        return self._of("s")


@dataclass(frozen=True, slots=True)
class Submitted:
    """What sbatch said of a job; `number` None: refused."""

    number: int | None
    said: str


@dataclass(frozen=True, slots=True)
class Result:
    """A job of a set in one mode. `said` is sbatch's word, `charged` whether the site charges for it."""

    set_name: str
    mode: str
    index: int
    job: Job
    said: str
    parts: Parts
    charged: bool = True


@dataclass(frozen=True, slots=True)
class Violation:
    """A job that is worse off with gsub."""

    set_name: str
    mode: str
    index: int
    words: str
    what: str

    def __str__(self) -> str:
        return f"{self.mode}: {self.set_name}, job {self.index + 1} ({self.words}) {self.what}"


# --- Slurm as the sets want it --------------------------------------------------------------------------------------


def numbered(sets: Iterable[LimitSet]) -> list[tuple[int, LimitSet]]:
    """The sets with their numbers in the table."""
    place = {one.name: number for number, one in enumerate(SETS)}
    return [(place[one.name], one) for one in sets]


def accounting_lines(sets: Sequence[tuple[int, LimitSet]], cluster: str, users: Sequence[str]) -> Iterator[str]:
    """The commands of sacctmgr that make accounts, users and QOS of the sets, those alike in one command."""
    made: dict[str, dict[str, list[str]]] = {kind: {} for kind in ("qos", "parents", "accounts", "users")}

    def make(kind: str, words: str, name: str) -> None:
        made[kind].setdefault(words.strip(), []).append(name)

    shared = [Names(0, mode, own_account=False).account for mode in MODES]
    made["accounts"][f"Cluster={cluster}"] = list(shared)
    made["users"][f"{','.join(users)} Cluster={cluster}"] = list(shared)
    reached = ["normal"]
    for number, one in sets:
        for name in (Names.of(number, one, mode) for mode in MODES):
            if one.qos:
                make("qos", one.qos, name.qos)
                reached.append(name.qos)
            if one.partition_qos:
                make("qos", one.partition_qos, name.partition_qos)
            if one.parent:
                make("parents", one.parent, name.parent)
            above = f"Parent={name.parent} " if one.parent else ""
            if name.own_account:
                make("accounts", f"Cluster={cluster} {above}{one.account}", name.account)
            default = f" DefaultQOS={name.qos}" if one.default_qos else ""
            who = ",".join(users[place - 1] for place in sorted({job.user for job in one.jobs}))
            if name.own_account:
                make("users", f"{who} Cluster={cluster}{default} {one.user}", name.account)
    yield from (f"add qos {','.join(names)} {words}" for words, names in made["qos"].items())
    yield f"modify account where account=root cluster={cluster} set qos={','.join(reached)}"
    for words, names in made["parents"].items():
        yield f"add account {','.join(names)} Cluster={cluster} {words}"
    yield from (f"add account {','.join(names)} {words}" for words, names in made["accounts"].items())
    for words, names in made["users"].items():
        who, _, rest = words.partition(" ")
        yield f"add user {who} Account={','.join(names)} {rest}"


def partition_lines(sets: Sequence[tuple[int, LimitSet]]) -> Iterator[str]:
    """The partitions of the sets: each set of a wave has nodes of its own in each mode."""
    for place, (number, one) in enumerate(sets):
        for turn, mode in enumerate(MODES):
            first = 1 + NODES_OF_A_SET * (len(MODES) * (place % WAVE) + turn)
            nodes = f"Nodes=n[{first}-{first + NODES_OF_A_SET - 1}] State=UP"
            name = Names.of(number, one, mode)
            qos = f" QOS={name.partition_qos}" if one.partition_qos else ""
            yield f"PartitionName={name.partition} {nodes} {one.partition}{qos}"
            if one.second:
                yield f"PartitionName={name.second} {nodes} {one.second}"


def line_of(job: Job, one: LimitSet, name: Names) -> str:
    """The command line of a job."""
    common = [f"-A{name.account}"]
    if one.qos and not one.default_qos and not re.search(r"(^| )-q", job.words):
        common.append(f"-q{name.qos}")
    if not re.search(r"(^| )-t", job.words):
        common.append("-t60")
    if not re.search(r"(^| )-p", job.words):
        common.append(f"-p{name.partition}")
    words = job.words.format(p=name.partition, s=name.second, q=name.qos)
    parts = [" ".join([*common, part]) for part in words.split(" : ")]
    return f"{job.env} sbatch --parsable -o/dev/null {' : '.join(parts)} {job.script}.sh".strip()


class Oracle:
    """The sets on a cluster."""

    def __init__(self, cluster: Cluster, sets: Sequence[LimitSet]) -> None:
        self.cluster = cluster
        release = tuple(int(part) for part in cluster.version.split(".")[:2])
        self.sets = [(number, one) for number, one in numbered(sets) if release >= one.since]
        self._conf = cluster.paths.slurm_conf.read_text()
        self._has_learnt = False

    def prepare(self) -> None:
        """Accounts, users and QOS; scripts; the plugin that leaves jobs out; what was measured."""
        cluster = self.cluster
        # So that limits may name a type of GPU: slurmctld makes a TRES known to accounting when it starts
        self._conf = re.sub(r"(AccountingStorageTRES=\S+)", r"\1,gres/gpu:a100", self._conf)
        self._restart(self._conf)
        lines = list(accounting_lines(self.sets, cluster.spec.name, cluster.users))
        done = cluster.run(["sacctmgr", "-i"], input="\n".join([*lines, "quit", ""]), timeout=900)
        said = done.stdout + done.stderr
        if wrong := [line.strip() for line in said.splitlines() if _WRONG.search(line)]:
            raise RuntimeError("sacctmgr: " + "; ".join(wrong))
        text = gsubd.job_submit_lua(cluster.paths, cluster.spec.deadline)
        before, _, _ = text.rpartition("return slurm.SUCCESS")
        (cluster.paths.etc / "job_submit.lua").write_text(before + _OFF)
        for user in cluster.users:
            scripts = ["plain", *CURVES]
            puts = [f"printf '#!/bin/bash\\n# {name}\\nexec sleep 3600\\n' > {name}.sh\n" for name in scripts]
            cluster.run(["sh", "-es"], user=user, input="".join(puts), check=True)

    def configure(self, config: Config) -> None:
        """Slurm with the partitions of the sets of that configuration, and the service that knows of them."""
        sets = [each for each in self.sets if each[1].config == config]
        lines = [*CONFIGS[config], *partition_lines(sets)]
        text = self._conf.replace(*THREADS) if config == "threads" else self._conf
        for line in CONFIGS[config]:
            text = re.sub(rf"(?m)^{line.partition('=')[0]}=.*\n", "", text)
        self._restart(text + "\n".join(lines) + "\n")
        observed = {Names.of(number, one, "observe").account: None for number, one in sets}
        accounts = "".join(f'\n[accounts.{name}]\nmode = "observe"\n' for name in observed)
        site = self.cluster.paths.site
        known = re.sub(r"\n\[accounts\.[^\]]*\]\nmode = .*\n", "", site.read_text())
        gsubd.write_site(self.cluster.paths, known + accounts)
        self.cluster.restart("gsubd")
        self._await_curves()

    def _restart(self, text: str) -> None:
        self.cluster.paths.slurm_conf.write_text(text)
        self.cluster.restart("slurmctld")
        answering = ["sinfo", "-hN", "-pgpu", "-o%t"]
        wait_until(lambda: set(self.cluster.run(answering).stdout.split()) == {"idle"}, PATIENCE_S, "the nodes")

    def _await_curves(self) -> None:
        """Wait until the service knows the curves of user1's scripts; it keeps what it was told once."""
        cluster, user = self.cluster, self.cluster.users[0]
        wait_until(lambda: gsubd.keeps(cluster.ports), PATIENCE_S, "the service's API")
        for name, points in () if self._has_learnt else CURVES.items():
            words = [f"{name}.sh", new_id(), *(f"{cpus}:{rate}" for cpus, rate in points)]

            def has_arrived(words: Sequence[str] = tuple(words)) -> bool:
                done = cluster.run(["python3", "-c", _DELIVER, *words], user=user, check=True)
                return "is with gsub's service" in done.stdout

            wait_until(has_arrived, PATIENCE_S, "what was measured")
        self._has_learnt = True
        # Of an account without limits, in a partition that gives a GPU 8 CPUs
        line = ["sbatch", "--parsable", "-H", "-Alab", "-pgpu", "-G1", "-o/dev/null", "light.sh"]

        def is_known() -> bool:
            job = cluster.run(line, user=user, check=True).stdout.strip()
            shown = cluster.run(["scontrol", "show", "job", job]).stdout
            cluster.run(["scancel", job], user=user)
            return "gpu:3" in shown

        wait_until(is_known, PATIENCE_S, "a job that gets what was measured", pause=1.0)

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self, config: Config) -> list[Result]:
        """All sets of one configuration; those in which something is worse run twice, and only the second counts."""
        sets = [each for each in self.sets if each[1].config == config]
        found: list[Result] = []
        for first in range(0, len(sets), WAVE):
            found += self.wave(sets[first : first + WAVE])
        worse = (*violations(found), *surprises(found))
        suspect = {one.set_name for one in worse} | {one.set_name for one in undecided(found)}
        again: list[Result] = []
        for first in range(0, len(sets), WAVE):
            wave = [each for each in sets[first : first + WAVE] if each[1].name in suspect]
            again += self.wave(wave) if wave else []
        return [one for one in found if one.set_name not in suspect] + again

    def wave(self, sets: Sequence[tuple[int, LimitSet]]) -> list[Result]:
        """Submit sets in all modes, wait until nothing changes, and clean up."""
        keys = [
            (number, one, mode, index)
            for number, one in sets
            for mode in MODES
            for index in range(len(one.jobs))
        ]  # fmt: skip
        submitted = self._submit(keys)
        self._settle()
        jobs = parse_jobs(self.cluster.run(["scontrol", "--oneliner", "show", "job"], check=True).stdout)
        self.cluster.clean()
        results = []
        for key in keys:
            _, one, mode, index = key
            told = submitted[self._name(key)]
            parts: dict[str, Part] = {} if told.number is None else jobs[told.number]
            results.append(Result(one.name, mode, index, one.jobs[index], told.said, parts, one.config in CHARGED))
        return results

    @staticmethod
    def _name(key: tuple[int, LimitSet, str, int]) -> str:
        number, _, mode, index = key
        return f"{number}:{mode}:{index}"

    def _submit(self, keys: Sequence[tuple[int, LimitSet, str, int]]) -> dict[str, Submitted]:
        found = {}
        for place, user in enumerate(self.cluster.users, 1):
            lines = []
            for key in keys:
                number, one, mode, index = key
                job = one.jobs[index]
                if job.user == place:
                    line = line_of(job, one, Names.of(number, one, mode))
                    told = f"echo \"@ {self._name(key)} $?\"; printf '%s\\n' \"$o\""
                    lines.append(f'o=$({line} 2>&1); {told}; J{index}=$(printf %s "$o" | tail -n1)')
            text = self.cluster.run(["sh", "-s"], user=user, input="\n".join(lines), timeout=300, check=True).stdout
            for piece in re.split(r"(?m)^@ ", text)[1:]:
                head, _, said = piece.partition("\n")
                name, code = head.split()
                number_of = int(said.split()[-1].partition(";")[0]) if code == "0" else None
                found[name] = Submitted(number_of, said.strip())
        return found

    def _settle(self) -> None:
        last, since, began, cycle = "", time.monotonic(), time.monotonic(), self._cycles()
        while time.monotonic() - since < STILL_S or self._cycles() < cycle + CYCLES:
            if time.monotonic() - began > PATIENCE_S:
                raise TimeoutError("the queue does not come to rest")
            time.sleep(0.4)
            now = self.cluster.run(["squeue", "-har", "-o%i %T %r"], check=True).stdout
            if now != last or "CONFIGURING" in now or "COMPLETING" in now:
                last, since, cycle = now, time.monotonic(), self._cycles()
            if "PENDING" not in now and time.monotonic() - since > STILL_S:
                return  # it does not count cycles with nothing to do

    def _cycles(self) -> int:
        """How often slurmctld's main scheduler has run."""
        said = self.cluster.run(["sdiag"], check=True).stdout
        found = re.search(r"Total cycles: *(\d+)", said)
        return int(found[1]) if found else 0


# --- what came of it ------------------------------------------------------------------------------------------------


def by_mode(results: Iterable[Result]) -> dict[tuple[str, int], dict[str, Result]]:
    """Set and job -> mode -> result."""
    found: dict[tuple[str, int], dict[str, Result]] = {}
    for one in results:
        found.setdefault((one.set_name, one.index), {})[one.mode] = one
    return found


def violations(results: Iterable[Result]) -> list[Violation]:
    """Jobs that are worse off with gsub; in observe also those that differ at all."""
    found = []
    for modes in by_mode(results).values():
        off = modes["off"]
        for mode in ("observe", "enforce"):
            now = modes[mode]
            harm = list(find_harm(off.parts, now.parts, charged=off.charged))
            if not now.parts and off.parts:
                harm = [f"{what}: {now.said.splitlines()[-1]}" for what in harm]
            if mode == "observe" and not harm and is_shaped(off, now):
                harm = ["is not what it is without gsub"]
            found += [Violation(off.set_name, mode, off.index, off.job.words, what) for what in harm]
    return found


def surprises(results: Iterable[Result]) -> list[Violation]:
    """Jobs that fare differently without gsub than their set says: its limits are not what it means to try."""
    return [
        Violation(one.set_name, "off", one.index, one.job.words, f"{fate}, not {one.job.fate}: {detail(one)}")
        for one in results
        if one.mode == "off" and (fate := find_fate(one.parts)) != one.job.fate
    ]


def undecided(results: Iterable[Result]) -> list[Result]:
    """Jobs in enforce that gsub did not decide: on a busy machine its answer may come too late."""
    return [
        one
        for one in results
        if one.mode == "enforce" and one.parts and not any(part.is_decided for part in one.parts.values())
    ]


def detail(one: Result) -> str:
    """Why a job does not run."""
    if not one.parts:
        return one.said.splitlines()[-1] if one.said else ""
    return ", ".join(sorted({part.reason for part in one.parts.values() if not part.has_started}))


def is_shaped(off: Result, now: Result) -> bool:
    """Whether gsub changed the job, by the parts that are there in both modes."""
    return any(off.parts[name].differs(now.parts[name]) for name in off.parts.keys() & now.parts.keys())


@dataclass(frozen=True)
class Outcome:
    """All that came of a release."""

    version: str
    seconds: float
    sets: int
    jobs: int
    fates: Mapping[str, Mapping[str, int]]
    shaped: int
    undecided: int
    more_cpus: int
    unshaped: list[str]
    violations: list[Violation]
    surprises: list[Violation]

    @classmethod
    def of(cls, version: str, seconds: float, results: Sequence[Result]) -> Outcome:
        """Count."""
        pairs = by_mode(results)
        changed = Counter(
            name for (name, _), modes in pairs.items() if is_shaped(modes["off"], modes["enforce"])
        )
        names = list(dict.fromkeys(one.set_name for one in results))
        fates = {
            mode: Counter(str(find_fate(one.parts)) for one in results if one.mode == mode) for mode in MODES
        }
        unshaped = [name for name in names if name not in changed]
        more_cpus = sum(
            any(is_dearer(modes["off"].parts[name], part) for name, part in modes["enforce"].parts.items()
                if name in modes["off"].parts)
            for modes in pairs.values() if not modes["off"].charged
        )  # fmt: skip
        return cls(
            version, seconds, len(names), len(pairs), fates, changed.total(), len(undecided(results)),
            more_cpus, unshaped, violations(results), surprises(results),
        )  # fmt: skip

    def lines(self) -> Iterator[str]:
        """As a person reads it."""
        yield from map(str, self.violations)
        yield from map(str, self.surprises)
        if self.undecided:
            yield f"not decided in time: {self.undecided} jobs"
        if self.unshaped:
            yield f"not shaped by gsub: {'; '.join(self.unshaped)}"
        yield f"without TRESBillingWeights, where Slurm's billing is the CPUs: {self.more_cpus} jobs have more"
        for mode, fates in self.fates.items():
            counts = ", ".join(f"{fates.get(fate, 0)} {word}" for fate, word in _WORDS.items())
            wrong = sum(one.mode == mode for one in self.violations)
            yield f"{mode}: {counts}" + (f"; violations: {wrong}" if mode != "off" else "")
        yield (
            f"Slurm {self.version}: {self.sets} sets, {self.jobs} jobs, {len(self.violations)} violations, "
            f"shaped: {self.shaped} jobs of {self.jobs}, {self.seconds:.0f} s"
        )


_WORDS: Final = {"runs": "run", "waits": "wait", "refused": "refused"}


def chosen(text: str) -> list[LimitSet]:
    """Sets by name or number. Raises KeyError."""
    if not text:
        return list(SETS)
    named = {one.name: one for one in SETS} | {str(number): one for number, one in enumerate(SETS)}
    return [named[word.strip()] for word in text.split(";" if ";" in text else ",")]


def report(what: str, began: float) -> None:
    """Print where a run stands."""
    print(f"{time.monotonic() - began:4.0f} s: {what}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the sets, print what is wrong; 1 where anything is."""
    parser = argparse.ArgumentParser(description="Whether gsub ever makes a job wait on a limit, or cost more.")
    parser.add_argument("--slurm", choices=RELEASES, default="host")
    parser.add_argument("--sets", default="", help="numbers or names, by commas (by semicolons: names with commas)")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if os.geteuid():
        print("this needs root: several users, and none of them an administrator", file=sys.stderr)
        return 2
    try:
        sets = chosen(asked.sets)
    except KeyError as error:
        print(f"no such set: {error}", file=sys.stderr)
        return 2
    os.umask(0o022)
    name = f"limits-{os.getpid()}"
    began = time.monotonic()
    try:
        nodes = NODES_OF_A_SET * len(MODES) * min(WAVE, len(sets))
        spec = ClusterSpec(
            name, nodes, 8, asked.slurm, policy="enforce", deadline=1.0, agents=False, short_delays=True
        )
        oracle = Oracle(Cluster.up(spec), sets)
        report(f"{nodes} nodes of Slurm {oracle.cluster.version}", began)
        oracle.prepare()
        report("accounts, users and QOS", began)
        results: list[Result] = []
        for config in dict.fromkeys(one.config for _, one in oracle.sets):
            oracle.configure(config)
            report(f"configuration {config}", began)
            found = oracle.run(config)
            results += found
            for wrong in (*violations(found), *surprises(found)):
                report(str(wrong), began)
            report(f"{len(results) // len(MODES)} jobs in each mode", began)
        outcome = Outcome.of(oracle.cluster.version, time.monotonic() - began, results)
    finally:
        Cluster.down(name)
    if asked.json:
        print(json.dumps(asdict(outcome), indent=1))
    else:
        print(*outcome.lines(), sep="\n", flush=True)
    return 1 if outcome.violations or outcome.surprises else 0


if __name__ == "__main__":
    sys.exit(main())
