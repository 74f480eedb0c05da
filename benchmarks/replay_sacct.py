"""A real Slurm's export of accounting, replayed: how near the replay's starts come to those that were recorded.

    python -m benchmarks.replay_sacct [--slurm RELEASE] [--seed N] [--rounds N] [--jobs N] [--draws N] [--keep FOLDER]
    python -m benchmarks.replay_sacct --again FOLDER...

Each round is a fresh cluster of 4 nodes x 8 emulated GPUs and 150 jobs drawn from the seed (`replay_lived`), exported
by the very command of docs/replay.md. The replay gets that export, slurm.conf, the QOS, the shares before the stretch,
and the second of slurmctld's start. Told is the error of starts, job by job: of the median of several replays, which
differ in what the export does not tell (parts of seconds, where the schedulers were in their rhythm), of Slurm's own
policy and, to compare, of others. Then the same once more with moments to a millisecond, and those of the schedulers'
looks, from slurmctld's log: what is left there is the model's own error.

`--again` replays what an earlier round kept (`--keep`), without a cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from benchmarks import replay_lived
from site_configs.devcluster.spec import RELEASES, Release
from slurm_plugins.replay.cluster_of import cluster_of, fitting
from slurm_plugins.replay.recorded import Nearness, nearness
from slurm_plugins.replay.slurm_rules import SlurmRules
from slurm_plugins.replay.slurm_run import Rhythm, run
from slurm_plugins.replay.traces import read
from slurm_plugins.replay.values import Cluster, Replayed, Trace

NODES: Final = 4
COMPLETING: Final = 0.02
"""Seconds for which a node is cleaned up after a job, here without an epilog."""
AFTER_START: Final = 1.25
"""Seconds from the second in which slurmctld started to the first recalculation of priorities, in the mean."""
_LOG: Final = {
    "submitted": re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+) (?:SLUID=\S+ )?InitPrio"),
    # 26.05 tells no start by backfill, but that it makes the job's credential; at its end once more
    "began": re.compile(
        r"(?:sched: Allocate|Started|slurm_cred_create: creating credential for) JobId=(\d+) "
    ),
    "ended": re.compile(r"_job_complete: JobId=(\d+) done"),
    "main": re.compile(r"sched: (?:schedule: )?Running job scheduler"),
    "backfill": re.compile(r"_attempt_backfill: (?:BACKFILL: )?beginning"),
    "priorities": re.compile(r"_decay_thread: PRIO: Decay factor over"),
}


@dataclass(frozen=True, slots=True)
class Lived:
    """A stretch that was lived, as the replay knows it; `folder` has what Slurm wrote."""

    folder: Path
    trace: Trace
    cluster: Cluster
    rules: SlurmRules
    facts: Mapping[str, object]

    @classmethod
    def read(cls, folder: Path) -> Lived:
        """From what `replay_lived.lived` wrote."""
        facts = json.loads((folder / "facts.json").read_text())
        trace = read(folder / "export.psv").trace
        found = cluster_of(folder / "slurm.conf")
        tables = {name: (folder / f"{name}.psv").read_text() for name in ("qos", "sshare")}
        rules = SlurmRules.parse((folder / "slurm.conf").read_text(), **tables)
        major, minor = facts["release"].split(".")[:2]
        rules = replace(rules, completing_s=COMPLETING, release=(int(major), int(minor)))
        if facts["boot"] is not None:
            rules = replace(rules, calc_at=facts["boot"] + AFTER_START)
        return cls(folder, trace, fitting(found.cluster, trace).cluster, rules, facts)


def policies(rules: SlurmRules) -> dict[str, SlurmRules]:
    """Slurm's own, and what to compare it with."""
    order = replace(rules, multifactor=False)
    return {
        "Slurm's own": rules,
        "its priorities, EASY backfill": replace(rules, bf_reserve=1),
        "its priorities, no backfill": replace(rules, backfill=False),
        "order of submission, its backfill": order,
        "order of submission, EASY backfill": replace(order, bf_reserve=1),
        "FIFO": replace(order, backfill=False),
    }


def replays(lived: Lived, rules: SlurmRules, draws: int) -> list[Replayed]:
    """So many replays, which differ in their seeds."""
    return [run(lived.trace, lived.cluster, rules, seed=seed) for seed in range(draws)]


def finer(lived: Lived) -> tuple[Trace, SlurmRules, Rhythm] | None:
    """The stretch with what slurmctld's log tells to a millisecond; None: it does not tell it of every job."""
    moments: dict[str, dict[int, float]] = {what: {} for what in _LOG}
    zero = lived.trace.zero
    with (lived.folder / "slurmctld.log").open(errors="replace") as log:
        for line in log:
            for what, pattern in _LOG.items():
                if (found := pattern.search(line)) and line.startswith("["):
                    at = datetime.fromisoformat(line[1 : line.index("]")]).timestamp() - zero
                    rows = moments[what]
                    # what a look knows of the clock is older than its line
                    rows.setdefault(int(found[1]) if found.groups() else len(rows), at - 0.001)
    jobs = list(lived.trace)
    if any(job.job not in moments[what] for job in jobs for what in ("submitted", "began", "ended")):
        return None
    trace = Trace.of(
        (
            replace(
                job,
                arrival=moments["submitted"][job.job],
                work=moments["ended"][job.job] - moments["began"][job.job],
                began=moments["began"][job.job],
            )
            for job in jobs
        ),
        zero=zero,
    )
    looks = [tuple(at for at in moments[what].values() if at > -1) for what in ("main", "backfill")]
    rules = lived.rules
    if moments["priorities"]:
        rules = replace(rules, calc_at=max(moments["priorities"].values()) + zero)
    return trace, rules, Rhythm(*looks)


def exact(lived: Lived) -> Nearness | None:
    """How near a replay comes that knows all moments."""
    found = finer(lived)
    if found is None:
        return None
    trace, rules, rhythm = found
    return nearness(trace, [run(trace, lived.cluster, rules, rhythm=rhythm)])


def tell(lived: Lived, draws: int) -> Nearness:
    """The table of a round; Slurm's own policy's row."""
    facts = lived.facts
    print(f"\n{lived.folder.name}: Slurm {facts['release']}, load {facts['load']}, {len(lived.trace)} jobs")
    print(
        "| policy | error of starts: median | mean | p90 | most | signed | within 1, 5, 10 s | rank | "
        "mean wait (recorded) | single replay: median |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    found = {
        name: nearness(
            lived.trace, replays(lived, rules, draws if rules == lived.rules else max(1, draws // 4))
        )
        for name, rules in policies(lived.rules).items()
    }
    for name, near in found.items():
        print(f"| {name} | {_row(near)} |")
    known = exact(lived)
    if known is not None:
        print(f"| Slurm's own, moments from its log | {_row(known)} |")
    own = found["Slurm's own"]
    print(
        f"{own.covered:.0%} of the recorded starts lie in their own range of nine in ten replays; "
        f"mean wait from replay to replay +- {own.wait_spread:.1f} s"
    )
    return own


def _row(near: Nearness) -> str:
    shares = ", ".join(f"{share:.0%}" for share in near.within)
    return (
        f"{near.median:.1f} s | {near.mean:.1f} s | {near.p90:.0f} s | {near.most:.0f} s | {near.signed:+.1f} s | "
        f"{shares} | {near.rank:.3f} | {near.wait_replayed:.1f} s ({near.wait:.1f} s) | {near.single:.1f} s"
    )


def made(release: Release, seed: int, jobs: int, folder: Path) -> Path:
    """Live a round, and keep what Slurm wrote."""
    name = f"replay-{os.getpid() % 100000}"
    with replay_lived.cluster(name, release, NODES) as found:
        replay_lived.lived(found, replay_lived.asks(seed, jobs, found.users, jobs * 1.25), folder)
    return folder


def rounds(asked: argparse.Namespace, scratch: Path) -> Sequence[Path]:
    """The folders to replay."""
    if asked.again:
        return list(asked.again)
    keep = asked.keep or scratch
    seeds = range(asked.seed, asked.seed + asked.rounds)
    return [made(asked.slurm, seed, asked.jobs, keep / f"{asked.slurm}-{seed}") for seed in seeds]


def main() -> int:
    """Live, replay, tell. Exit 1 where FIFO comes nearer than Slurm's own policy."""
    parser = argparse.ArgumentParser(description="How near a replay comes to a real Slurm's record.")
    parser.add_argument("--slurm", choices=RELEASES, default="host")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=150)
    parser.add_argument("--draws", type=int, default=20, help="replays by policy")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep exports and logs there")
    parser.add_argument("--again", type=Path, nargs="+", metavar="FOLDER", help="replay what was kept")
    asked = parser.parse_args()
    worse = 0
    with tempfile.TemporaryDirectory(prefix="replay-sacct-") as scratch:
        for folder in rounds(asked, Path(scratch)):
            lived = Lived.read(folder)
            own = tell(lived, asked.draws)
            fifo = nearness(lived.trace, replays(lived, policies(lived.rules)["FIFO"], 3))
            worse += own.median > fifo.median
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
