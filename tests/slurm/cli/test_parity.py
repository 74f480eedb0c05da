"""The job that `gsub` creates is the one that `sbatch` creates, field by field; and it fails where sbatch fails.

The partitions are closed while the command lines of the table are submitted, so that every job stays pending.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster
from tests.slurm.cli.drive import Case, Done, drive

pytestmark = pytest.mark.all_releases

SCRIPTS = {
    "plain.sh": "#!/bin/bash\nhostname\n",
    "asks.sh": "#!/bin/sh\n#SBATCH -J asks -N2\n#SBATCH --gpus-per-node=2 # two\n\n#SBATCH -t 5\n:\n#SBATCH -n 9\n",
    "quotes.sh": "#!/bin/sh\n#SBATCH --comment='a \"b\" c' --output=\"my file.%j\"\n#SBATCH -J it\\'s\n:\n",
    "het.sh": "#!/bin/bash\n#SBATCH -N1 -n2\n#SBATCH hetjob\n#SBATCH -N2 --gpus-per-node=1\nsrun hostname\n",
    "my script.sh": "#!/bin/sh\n:\n",
    "array.sh": "#!/bin/sh\n#SBATCH --array=1-4%2 -o out-%A_%a.txt\n:\n",
    "python.py": "#!/usr/bin/env python3\n#SBATCH --job-name=snake\nprint()\n",
    "--watch": "#!/bin/sh\n:\n",
}  # fmt: skip

LINES = """
plain.sh
./plain.sh
-J named plain.sh
--job-name=named plain.sh
--job-name named plain.sh
--job named plain.sh
-Jnamed plain.sh
-N2 plain.sh
-N 2-4 plain.sh
--nodes=2 --ntasks-per-node=4 plain.sh
--nodes 2 --tasks-per-node 4 plain.sh
-n 4 -c 2 plain.sh
-n4 -c2 -N2 plain.sh
--ntasks=3 --cpus-per-task=5 plain.sh
-HQ plain.sh
-H plain.sh
--hold --parsable plain.sh
--ho plain.sh
-t 10 plain.sh
--time=1-02:03:04 plain.sh
--time-min 5 --time 10 plain.sh
-p debug plain.sh
--part debug plain.sh
-p gpu,debug plain.sh
--partition=urgent --nice plain.sh
--nice=100 plain.sh
-G 2 plain.sh
--gpus=4 --nodes=2 plain.sh
--gpus-per-node=a100:2 plain.sh
--gpus-per-task=1 -n 3 --cpus-per-gpu=4 --mem-per-gpu=1G plain.sh
--gres=gpu:2 --gres-flags=enforce-binding plain.sh
--mem=5G plain.sh
--mem-per-cpu 100M -n 2 plain.sh
--exclusive plain.sh
--exclusive=user plain.sh
-s plain.sh
-O -n 4 plain.sh
--contiguous -N 3 plain.sh
-C a100 plain.sh
--constraint=leaf1|leaf2 plain.sh
-w n1,n2 plain.sh
-x n[3-4] plain.sh
--switches=1@10:00 -N2 plain.sh
-a 1-3 plain.sh
--array=0-10:2%2 plain.sh
array.sh
--array=5 array.sh
-d singleton -J chain plain.sh
--dependency=afterany:$HELD plain.sh
-d afterok:$HELD?afternotok:$HELD plain.sh
--kill-on-invalid-dep=yes -d afterok:$HELD plain.sh
-b now+2hours plain.sh
--begin=2030-01-01T10:00 plain.sh
--deadline=2031-01-01 -t 10 plain.sh
-o out.txt -e err.txt -i /dev/null plain.sh
--output=%x-%j.out --open-mode=append plain.sh
-D /tmp /tmp/../$HERE/plain.sh
--chdir=/ $HERE/plain.sh
--comment 'two words' plain.sh
--comment=gsub:off plain.sh
--mail-type=END,FAIL --mail-user=me@example.org plain.sh
--requeue plain.sh
--no-requeue plain.sh
-k plain.sh
--no-kill=off plain.sh
--signal=B:USR1@60 plain.sh
--profile=task plain.sh
--acctg-freq=30 plain.sh
--export=ALL,A=1 plain.sh
--export=NONE plain.sh
--wckey=k plain.sh
--priority=7 -H plain.sh
--core-spec=1 plain.sh
--distribution=cyclic:block -n 4 plain.sh
-m plane=2 -n 4 plain.sh
-B 2:4 plain.sh
--sockets-per-node=1 --cores-per-socket=2 --threads-per-core=1 plain.sh
--ntasks-per-socket=2 -n 4 plain.sh
--hint=nomultithread plain.sh
--mincpus=4 plain.sh
--tmp=10 plain.sh
--spread-job -N2 plain.sh
--use-min-nodes -N1-3 plain.sh
--wait-all-nodes=1 -N2 plain.sh
--licenses= plain.sh
--ignore-pbs plain.sh
--reboot --no-requeue -H plain.sh
-vv plain.sh
asks.sh
-N3 asks.sh --nodes 9 -N 8
quotes.sh
python.py
'my script.sh' 'an argument' "it's" '' '--watch' --json
plain.sh --watch --dry-run --json --no-smoke --debug
plain.sh -N 5 : -n 3
plain.sh -- -x
-- plain.sh -N2
-- --watch
--job-name=--watch plain.sh
-J --dry-run plain.sh
het.sh
-N1 : -N2 plain.sh
-N1 -G1 : -N2 -n 4 : -n1 --mem=1G plain.sh a b
-J het -N1 : -N1 -p debug het.sh
--wrap 'sleep 1'
--wrap='echo "$HOME" | cat'
--wra hostname -J w -N2
-N2 --wrap=hostname -G 2
"""

ENVIRONMENTS = [
    "SBATCH_PARTITION=debug plain.sh",
    "SBATCH_PARTITION=debug -p gpu plain.sh",
    "SBATCH_JOB_NAME=environ SBATCH_TIMELIMIT=7 plain.sh",
    "SBATCH_GPUS=3 SBATCH_EXCLUSIVE=user plain.sh",
    "SBATCH_ARRAY_INX=1-2 plain.sh",
    "SBATCH_OUTPUT=o.%j SBATCH_ERROR=e.%j plain.sh",
    "SBATCH_CONSTRAINT=a100 SBATCH_MEM_PER_NODE=2G asks.sh",
    "SBATCH_REQ_SWITCH=1 SBATCH_WAIT4SWITCH=5:00 -N2 plain.sh",
    "SBATCH_NO_REQUEUE=1 SBATCH_OVERCOMMIT=1 plain.sh",
]

STDIN = [
    ("", "#!/bin/bash\n#SBATCH -J piped -N2\nhostname\n"),
    ("-N3 -J over", "#!/bin/bash\n#SBATCH -J piped -N2\nhostname\n"),
    ("-a 1-2", "#!/bin/sh\n:\n"),
    ("-N1 : -N1", "#!/bin/sh\n:\n"),
]

FAILURES = """
nofile.sh
./nofile.sh
--nonsense plain.sh
-Z plain.sh
--no plain.sh
--nodes
-N
--hold=yes plain.sh
-N two plain.sh
-t abc plain.sh
-b yesterday plain.sh
--mem=5X plain.sh
--gres=foo:2 plain.sh
-p nopart plain.sh
-A noaccount plain.sh
--qos=noqos plain.sh
-C nofeature plain.sh
-w nonode plain.sh
--mem=9000G plain.sh
-G 9999 plain.sh
-a 5-1 plain.sh
-d afterok:abc plain.sh
--reservation=none plain.sh
--nice=-5 plain.sh
--distribution=nonsense plain.sh
--wrap x y
/etc
--wat plain.sh
--json=1 plain.sh
noshebang.sh
empty.sh
dos.sh
badline.sh
badquote.sh
"""

# Refused by some releases only; newer ones let such a job wait while the partition is closed.
LENIENT = {"--mem=9000G", "-G"}

BROKEN = {
    "noshebang.sh": "hostname\n",
    "empty.sh": "",
    "dos.sh": "#!/bin/sh\r\nhostname\r\n",
    "badline.sh": "#!/bin/sh\n#SBATCH -N 1 word\n:\n",
    "badquote.sh": "#!/bin/sh\n#SBATCH --comment='a\n:\n",
}

# Times, and what depends on when a job was looked at.
VOLATILE = frozenset({
    "SubmitTime", "EligibleTime", "AccrueTime", "StartTime", "EndTime", "LastSchedEval", "SuspendTime", "RunTime",
    "PreSusTime", "PreemptEligibleTime", "Priority", "Reason", "SchedNodeList", "NodeList", "SLUID",
})  # fmt: skip
# Where a job's own number may stand.
NUMBERED = frozenset({
    "JobId", "ArrayJobId", "ArrayTaskId", "HetJobId", "HetJobIdSet", "StdOut", "StdErr", "StdIn", "JobName",
})  # fmt: skip


def cases(here: Path, held: int) -> list[Case]:
    def words(line: str) -> tuple[str, ...]:
        return tuple(shlex.split(line.replace("$HERE", str(here)).replace("$HELD", str(held))))

    found = [Case(words(line)) for line in LINES.strip().splitlines()]
    for line in ENVIRONMENTS:
        both = words(line)
        env = tuple((w.partition("=")[0], w.partition("=")[2]) for w in both if w.startswith("SBATCH_"))
        found.append(Case(both[len(env) :], env))
    found += [Case(words(line), stdin=text) for line, text in STDIN]
    return found


@pytest.fixture(scope="module")
def user(cluster: Cluster) -> str | None:
    return cluster.users[0] if cluster.users else None


@pytest.fixture(scope="module")
def here(cluster: Cluster, user: str | None) -> Path:
    """A folder with the scripts."""
    folder = cluster.home(user) / "parity"
    text = "".join(
        f"cat > {shlex.quote(f'./{name}')} <<'END_OF_SCRIPT'\n{script}END_OF_SCRIPT\n"
        for name, script in (SCRIPTS | BROKEN).items()
    )
    cluster.run(["sh", "-ec", f"mkdir -p {folder}; cd {folder}\n{text}"], user=user, check=True)
    return folder


@pytest.fixture(scope="module")
def closed(cluster: Cluster) -> Iterator[Cluster]:
    """Partitions that start nothing."""
    partitions = ("gpu", "debug", "urgent")

    def state(word: str) -> None:
        for name in partitions:
            cluster.run(["scontrol", "update", f"PartitionName={name}", f"State={word}"], check=True)

    state("DOWN")
    yield cluster
    cluster.clean()
    state("UP")


def submitted(done: Done) -> int:
    match = re.search(r"(\d+)\s*(?:;|$)", done.out)
    assert match, done
    return int(match[1])


Record = dict[str, str]


def records(cluster: Cluster) -> dict[int, list[Record]]:
    """`scontrol -o show job` by job, hetjobs' and arrays' records together; ids made relative."""
    text = cluster.run(["scontrol", "-o", "show", "job"], check=True).stdout
    found: dict[int, list[Record]] = {}
    for line in text.splitlines():
        if not line.startswith("JobId="):
            continue
        # A value may hold spaces: a field begins at a word with a capital and "=".
        fields = dict(part.split("=", 1) for part in re.split(r" (?=[A-Z][A-Za-z/:]*=)", line.strip()))
        number = fields.get("HetJobId", fields.get("ArrayJobId", fields["JobId"]))
        if not number.isdecimal():
            continue  # an ended job of another test, whose name looks like fields
        first = int(number)
        found.setdefault(first, []).append(fields)
    return {first: [plain(record, first) for record in group] for first, group in found.items()}


def plain(record: Record, first: int) -> Record:
    def relative(match: re.Match[str]) -> str:
        away = int(match[0]) - first
        return f"<job+{away}>" if 0 <= away < 8 else match[0]

    return {
        name: re.sub(r"\d+", relative, value) if name in NUMBERED else value
        for name, value in record.items()
        if name not in VOLATILE
    }


def waiting(cluster: Cluster) -> set[int]:
    """The jobs that wait; a refused one may leave a record that has already FAILED."""
    return {first for first, group in records(cluster).items() if group[0]["JobState"] == "PENDING"}


def differences(one: list[Record], two: list[Record]) -> list[object]:
    """The fields that differ, with both values; of each component or array part."""
    if len(one) != len(two):
        return [one, two]
    return [
        (name, a.get(name), b.get(name))
        for a, b in zip(one, two, strict=True)
        for name in sorted(a.keys() | b.keys())
        if a.get(name) != b.get(name)
    ]


def reason(done: Done) -> str:
    """The last thing that sbatch said, without its prefixes."""
    last = done.err.strip().splitlines()[-1]
    return re.sub(r"^sbatch: (error: )?(Batch job submission failed: )?", "", last)


def test_the_same_jobs(closed: Cluster, here: Path, user: str | None) -> None:
    # One job to depend on, which is also the one that `-d singleton -J chain` waits for.
    first = Case(("-H", "-J", "chain", "plain.sh"))
    held = submitted(drive(closed, ["sbatch"], [first], cwd=here, user=user)[0])
    table = cases(here, held)
    assert len(table) >= 60
    by_sbatch = drive(closed, ["sbatch"], table, cwd=here, user=user)
    by_gsub = drive(closed, ["gsub", "--no-smoke"], table, cwd=here, user=user)
    known = records(closed)
    quiet = 0
    for case, one, two in zip(table, by_sbatch, by_gsub, strict=True):
        said = f"{case}\nsbatch: {one}\ngsub: {two}"
        assert two.code == one.code, said
        if one.code:
            # refused by this release: told in our words with sbatch's reason in them
            assert reason(one) in two.err, said
            continue
        assert re.sub(r"\d+", "N", two.out) == re.sub(r"\d+", "N", one.out), said
        if "-vv" not in case.words:
            assert re.sub(r"\d+", "N", two.err) == re.sub(r"\d+", "N", one.err), said
        if "-HQ" in case.words:
            assert one.out == two.out == ""
            quiet += 1
            continue
        differ = differences(known[submitted(one)], known[submitted(two)])
        assert not differ, f"{differ}\n{said}"
    assert quiet == 1
    refused = sum(1 for one in by_sbatch if one.code)
    assert len(table) - refused >= 60, f"{refused} refused"


def test_the_same_failures(closed: Cluster, here: Path, user: str | None) -> None:
    table = [Case(tuple(shlex.split(line))) for line in FAILURES.strip().splitlines()]
    before = waiting(closed)
    by_sbatch = drive(closed, ["sbatch"], table, cwd=here, user=user)
    by_gsub = drive(closed, ["gsub", "--no-smoke"], table, cwd=here, user=user)
    accepted = 0
    for case, one, two in zip(table, by_sbatch, by_gsub, strict=True):
        said = f"{case}\nsbatch: {one}\ngsub: {two}"
        if one.code == 0:
            assert case.words[0] in LENIENT, said
            assert two.code == 0, said
            accepted += 2
            continue
        assert two.code in (1, 2) and not two.out, said
        lines = two.err.splitlines()
        assert 2 <= len(lines) <= 3 and lines[0].startswith("gsub: "), said
        assert lines[1].startswith("  why: sbatch says: "), said
        assert "Traceback" not in two.err
        # what is wrong with the command line or the script is 2, what Slurm refuses is 1
        refused = "submission failed" in one.err
        assert two.code == (1 if refused else 2), said
        # every row here has a remedy of its own
        assert "sbatch did not submit the job" not in lines[0], said
    # Nothing half-done: what was refused left no job behind that waits.
    assert len(waiting(closed)) == len(before) + accepted
