"""Many failures at once: how soon each is decided, what that costs Slurm, and what it does to another user's failure.

    python -m benchmarks.storm [--slurm RELEASE] [--failures N] [--unread] [--gate]

One user's array of N tasks fails, as fast as this machine runs it, and amid that one job of another user; each is
requeued once. Beside it, in the same run and on the same cluster: as many failures with gsub in observe and no
gsub-act. Told are the seconds from a failure's end to what was decided and to the requeue, what gsub asks of slurmctld
a second, and how slurmctld answers others meanwhile. Here one machine reads the logs of all nodes, one process a job:
`--unread` leaves that out, and shows what the service and Slurm bear. Exit 1 when a failure was requeued twice or
not at all; with --gate, of 100 failures, also when one of GATES is missed: those are for what has broken.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from benchmarks.submit import percentile
from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.agents import PREFIX
from site_configs.devcluster.spec import ACT_USER, GSUB_USER, RELEASES, Release
from slurm_plugins.act.journal import NAME

NODES = 4
PATIENCE = 1800.0
GATES = {
    "decided after, p95": 120.0,
    "requeued after, p95": 180.0,
    "the other user's, requeued after": 90.0,
    "asked of slurmctld a second": 100.0,
    "squeue, p50, beside none": 5.0,
}
"""At most; seconds, but for the last two. Ten times and more what was seen: this must hold beside other work."""
_ROWS = """
SELECT j.array_job_id, j.job_id, j.restarts, j.ended, min(f.at), r.at, r.state, r.body
FROM job j JOIN resubmission r ON r.job_id = j.job_id AND r.restarts = j.restarts AND r.cluster = j.cluster
LEFT JOIN finding f ON f.job = j.pk GROUP BY j.pk
"""
_BY_USER = re.compile(r"\( *(\d+)\) +count:(\d+)")
_BY_KIND = re.compile(r"^\s*(REQUEST_\w+|MESSAGE_\w+) +\( *\d+\) +count:(\d+) +ave_time:(\d+)", re.MULTILINE)
_SITE = 'mode = "enforce"'


@dataclass
class Probe:
    """What others feel of it: a small question to slurmctld again and again, in milliseconds each."""

    cluster: Cluster
    times: list[float] = field(default_factory=list)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Ask until the end of the block."""
        over = threading.Event()

        def work() -> None:
            while not over.wait(0.25):
                began = time.perf_counter()
                self.cluster.run(["squeue", "-h", "-u", "root", "-o", "%i"])
                self.times.append(1000 * (time.perf_counter() - began))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@dataclass(frozen=True)
class Spell:
    """What slurmctld did in a stretch of time: questions by uid, microseconds it took for each kind on average."""

    seconds: float
    asked: dict[int, int]
    mean_us: dict[str, int]


@dataclass(frozen=True)
class Seen:
    """A stretch of failures: the probe's answers, and slurmctld's own figures."""

    probe: list[float]
    spell: Spell


@contextmanager
def figures(cluster: Cluster, found: list[Seen]) -> Iterator[None]:
    """Reset slurmctld's figures, and read them at the end of the block."""
    cluster.run(["sdiag", "-r"], check=True)
    probe, began = Probe(cluster), time.monotonic()
    with probe.at_work():
        yield
    seconds = time.monotonic() - began
    said = cluster.run(["sdiag"], check=True).stdout
    kinds, _, users = said.partition("statistics by user")
    asked = {int(uid): int(count) for uid, count in _BY_USER.findall(users)}
    mean = {name: int(us) for name, _, us in _BY_KIND.findall(kinds)}
    found.append(Seen(probe.times, Spell(seconds, asked, mean)))


def submit(cluster: Cluster, user: str, *options: str) -> int:
    """A job, or an array, that fails at once."""
    line = [
        "sbatch",
        "--parsable",
        "--mem=10",
        "-o",
        "storm-%A-%a.out",
        *options,
        "--wrap=echo step 1; exit 3",
    ]
    done = cluster.run(line, user=user, check=True)
    return int(done.stdout.strip().splitlines()[-1].split(";")[0])


@dataclass(frozen=True)
class Row:
    """What followed one failed attempt: seconds since the epoch. `read`: when its log was, None where it was not."""

    array: int | None
    job: int
    restarts: int
    ended: float
    read: float | None
    at: float
    state: str
    shown: str
    stop: str


def rows(cluster: Cluster) -> list[Row]:
    """All that the store has."""
    with closing(sqlite3.connect(f"file:{cluster.paths.gsub_state}/store.db?mode=ro", uri=True)) as store:
        found = store.execute(_ROWS).fetchall()
    return [
        Row(array, job, restarts, ended or 0.0, read, at, state, *_words(json.loads(body)))
        for array, job, restarts, ended, read, at, state, body in found
    ]


def _words(body: dict[str, str]) -> tuple[str, str]:
    return body.get("shown", ""), f"{body.get('stop', '')}: {body.get('why', '')}"


def requeues(cluster: Cluster) -> dict[str, list[float]]:
    """When gsub-act had requeued a job, by Slurm's way to write it."""
    asked: dict[str, str] = {}
    found: dict[str, list[float]] = {}
    folder = cluster.paths.act_state
    for path in [*sorted(folder.glob(f"{NAME}.*"), reverse=True), folder / NAME]:
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if entry["event"] == "asked" and entry["verb"] in ("requeue", "requeuehold"):
                asked[entry["id"]] = entry["job"]
            elif entry["event"] == "done" and entry["id"] in asked:
                found.setdefault(asked.pop(entry["id"]), []).append(entry["at"])
    return found


def wait_for(what: str, ready: Callable[[], bool]) -> None:
    """Wait until it is so. Raises TimeoutError."""
    until = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > until:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(1)


def firsts(cluster: Cluster, array: int) -> list[Row]:
    """What followed the first attempts of an array's tasks, or of a job, where that is over."""
    return [
        row
        for row in rows(cluster)
        if array in (row.array, row.job) and row.restarts == 0 and row.state in ("done", "stopped")
    ]


def read_nothing(cluster: Cluster) -> None:
    """Have the nodes read no logs."""
    text = cluster.paths.site.read_text()
    cluster.write_site(text.replace("[agent]\n", "[agent]\nfindings = false\n"))
    for node in cluster.spec.node_names:
        cluster.restart(f"{PREFIX}{node}")


def without(cluster: Cluster, failures: int) -> Seen:
    """As many failing attempts, while gsub observes and there is no gsub-act."""
    cluster.write_site(cluster.paths.site.read_text().replace(_SITE, 'mode = "observe"'))
    cluster.stop("gsub-act")
    found: list[Seen] = []
    with figures(cluster, found):
        array = submit(cluster, cluster.users[0], f"--array=0-{failures - 1}")
        wait_for("what would have been decided", lambda: len(firsts(cluster, array)) == failures)
    cluster.write_site(cluster.paths.site.read_text().replace('mode = "observe"', _SITE))
    cluster.start("gsub-act")
    return found[0]


@dataclass(frozen=True)
class Storm:
    """The storm itself; spans are seconds from an attempt's end."""

    seen: Seen
    minute: float
    read: list[float]
    after_read: list[float]
    decided: list[float]
    requeued: list[float]
    other_decided: float
    other_requeued: float
    twice: int
    stops: Counter[str]
    not_requeued: int


def storm(cluster: Cluster, failures: int) -> Storm:
    """One user's failures, and one of another user's."""
    mine, others = cluster.users
    found: list[Seen] = []
    with figures(cluster, found):
        array = submit(cluster, mine, f"--array=0-{failures - 1}")
        wait_for("the storm", lambda: len(firsts(cluster, array)) >= min(20, failures // 4))
        other = submit(cluster, others)
        wait_for("all that follows", lambda: len(firsts(cluster, array)) == failures)
        wait_for("what follows the other's", lambda: bool(firsts(cluster, other)))
    cluster.run(["scancel", "-u", f"{mine},{others}"])
    acts = requeues(cluster)
    ours, (his,) = firsts(cluster, array), firsts(cluster, other)
    ends = [row.ended for row in ours]
    done = {row.shown: acts.get(row.shown, []) for row in [*ours, his]}
    return Storm(
        found[0],
        60 * len(ends) / max(max(ends) - min(ends), 1),
        sorted(row.read - row.ended for row in ours if row.read),
        sorted(row.at - row.read for row in ours if row.read and row.read <= row.at),
        sorted(row.at - row.ended for row in ours),
        sorted(done[row.shown][0] - row.ended for row in ours if done[row.shown]),
        his.at - his.ended,
        done[his.shown][0] - his.ended if done[his.shown] else float("inf"),
        sum(len(times) > 1 for times in done.values()),
        Counter(row.stop for row in [*ours, his] if not done[row.shown]),
        failures + 1 - sum(map(bool, done.values())),
    )


def tell(cluster: Cluster, failures: int, beside: Seen, found: Storm) -> dict[str, float]:
    """The table; the figures that have gates."""
    uids = {name: cluster.daemon_user(name).uid for name in (GSUB_USER, ACT_USER)}
    spell = found.seen.spell
    asked = Counter({name: spell.asked.get(uid, 0) for name, uid in uids.items()})
    before = beside.spell.asked.get(uids[GSUB_USER], 0)
    probe = [sorted(each.probe) for each in (found.seen, beside)]
    p50, p95 = ([percentile(times, part) for times in probe] for part in (50, 95))
    gated = {
        "decided after, p95": percentile(found.decided, 95),
        "requeued after, p95": percentile(found.requeued, 95) if found.requeued else float("inf"),
        "the other user's, requeued after": found.other_requeued,
        "asked of slurmctld a second": asked.total() / spell.seconds,
        "squeue, p50, beside none": p50[0] / p50[1],
    }
    print(
        f"{failures} failures of one user at {found.minute:.0f} a minute on {os.cpu_count()} cores; "
        f"all of it over after {spell.seconds:.0f} s, without gsub-act after {beside.spell.seconds:.0f} s"
    )
    for name, spans in (
        ("log read", found.read),
        ("decided", found.decided),
        ("decided, log read,", found.after_read),
        ("requeued", found.requeued),
    ):
        if spans:
            middle, late = statistics.median(spans), percentile(spans, 95)
            print(
                f"  {len(spans)} {name} after: p50 {middle:.1f} s, p95 {late:.1f} s, most {spans[-1]:.1f} s"
            )
    print(
        f"  the other user's: decided after {found.other_decided:.1f} s, requeued after {found.other_requeued:.1f} s"
    )
    for name, count in asked.items():
        print(
            f"  {name} asked slurmctld {count / spell.seconds:.1f} times a second, {count / failures:.1f} a failure"
        )
    print(f"  without gsub-act {GSUB_USER} asked {before / beside.spell.seconds:.1f} times a second")
    for part, (ours, theirs) in ((50, p50), (95, p95)):
        print(f"  squeue meanwhile: p{part} {ours:.0f} ms (x{ours / theirs:.2f} of that without gsub-act)")
    for kind in ("REQUEST_COMPLETE_BATCH_SCRIPT", "MESSAGE_EPILOG_COMPLETE", "REQUEST_JOB_INFO"):
        us, us_beside = spell.mean_us.get(kind), beside.spell.mean_us.get(kind)
        if us and us_beside:
            print(f"  slurmctld's own time for {kind}: {us} us on average (x{us / us_beside:.2f})")
    for stop, count in found.stops.most_common():
        print(f"  {count} not requeued: {stop}")
    print(f"  requeued twice: {found.twice}; not requeued: {found.not_requeued}")
    return gated


@contextmanager
def cluster_for(release: Release) -> Iterator[Cluster]:
    """A cluster of this run's own, in enforce, with agents."""
    name = f"storm-{os.getpid()}"
    try:
        yield Cluster.up(ClusterSpec(name, NODES, 1, release, "enforce", deadline=1.0))
    finally:
        Cluster.down(name)


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description="Many failures at once.")
    parser.add_argument("--slurm", choices=RELEASES, default="host", help="release of the cluster")
    parser.add_argument("--failures", type=int, default=1000)
    parser.add_argument("--unread", action="store_true", help="no log is read: Slurm's word decides")
    parser.add_argument("--gate", action="store_true", help="100 failures, and generous bounds")
    asked = parser.parse_args()
    if os.geteuid():
        print("this needs root: several users, and gsub-act's own", file=sys.stderr)
        return 2
    os.umask(0o022)
    failures = 100 if asked.gate else asked.failures
    with cluster_for(asked.slurm) as cluster:
        if asked.unread:
            read_nothing(cluster)
        beside = without(cluster, failures)
        found = storm(cluster, failures)
        gated = tell(cluster, failures, beside, found)
    missed = [name for name, most in GATES.items() if asked.gate and gated[name] > most]
    for name in missed:
        print(f"MISSED: {name}: {gated[name]:.1f}, at most {GATES[name]:g}")
    return 1 if missed or found.twice or found.not_requeued else 0


if __name__ == "__main__":
    sys.exit(main())
