"""Wicked submissions for a real sbatch, and what must hold of the polls while their jobs stand in the queue.

``python -m tests.fuzz --side sbatch --count 2000`` makes so many jobs on each release; a test makes some.
"""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from profiler.records import JobRef
from profiler.store import Store, open_store
from site_configs.devcluster import Cluster
from site_configs.site import Site
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.runner import Completed, Runner, run_command
from slurm_plugins.client.tables import Unread
from slurm_plugins.limits.lookup import read_associations
from slurm_plugins.service.keeper.ask import Seen, ask
from slurm_plugins.service.look import Slurm, look
from slurm_plugins.service.slurm_config import read_config
from slurm_plugins.service.wire import Question, decode_report, encode_report
from tests.unit.profiler.store.records import CLUSTER, started

OF_A_ROUND = 50
"""Submissions between two looks."""

_NUMBERS = [
    "0",
    "1",
    "-1",
    "65533",
    "65534",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967293",
    "4294967294",
    "4294967295",
    "4294967296",
    "x",
    "1K",
    "9223372036854775807",
    "18446744073709551613",
    "18446744073709551615",
]
_SIZES = [*_NUMBERS, *["9223372036854775807M", "8796093022207T", "17179869183G", "1.5G", "1K"]]
_TIMES = [
    "now+999999999weeks",
    "now+2147483647weeks",
    "now+9999999999999days",
    "9999-12-31",
    "2038-01-19T03:14:08",
    "1970-01-01",
    "now-999999weeks",
    "00:00",
    "now",
    "tomorrow",
    "now+1",
    "4294967295",
    "uts9999999999999",
]
_SPANS = [
    "0",
    "1",
    "-1",
    "INFINITE",
    "UNLIMITED",
    "4294967290",
    "2147483647",
    "9999999-0",
    "99999999-23:59:59",
    "1:2:3:4",
]
_TEXTS = [
    *(
        "",
        " ",
        "a|b",
        "two\nlines",
        "\nJobId=5 JobState=FAILED",
        "\x1f\x1e\x01",
        "é 日本語",
        "%j%a%%",
        "(null)",
    ),
    *("None", "N/A", "x" * 1000, "key=value,a:b", "$(id)", "'\"`", "-", "--help", "65534", "1\t2", "[1-3]%2"),
]
_PATHS = [*_TEXTS, "%9999999999j", "%%%", "\\%j", "/dev/null"]
_GPUS = [
    "a100: 2",
    *["1", "gpu", "gpu:1", "a100:1", "4294967294", "4294967295", "18446744073709551613", "-1", "0", "x:1"],
]
_NODES = ["", *["n1", "n[1-2]", "n[1-", "n[0-99999999]", "n[3-1]", "nowhere", "n1,n1,n1", "n[1-8]"]]

# The options of sbatch(1), each with the values that it is given
_OF_A_KIND: dict[str, Sequence[str]] = {
    "account qos wckey mcs-label reservation bb network comment job-name extra admin-comment container power": _TEXTS,
    "mail-user": _TEXTS,
    "output error input": _PATHS,
    "begin deadline": _TIMES,
    "time time-min delay-boot": _SPANS,
    "nodes ntasks cpus-per-task mincpus nice priority ntasks-per-node ntasks-per-core ntasks-per-socket": _NUMBERS,
    "ntasks-per-gpu core-spec thread-spec cores-per-socket sockets-per-node threads-per-core": _NUMBERS,
    "cpus-per-gpu segment oom-kill-step gid": _NUMBERS,
    "mem mem-per-cpu mem-per-gpu tmp": _SIZES,
    "gpus gpus-per-node gpus-per-task gpus-per-socket": _GPUS,
    "nodelist exclude nodefile": _NODES,
}
_OTHERS = {
    "array": "0 0-1000 1,3,5-9 0-3%4294967295 0-3%0 65534 4000000 3-1 0-9:3 [1-3] x",
    "gres": "gpu:18446744073709551613 gpu:4294967295 gpu:a100:1 gpu:0 gpu:1,gpu:1 nix:1 gpu:1K",
    "tres-per-task": "cpu=65534 gres/gpu=4294967295 gres/gpu:1 cpu=1,gres/gpu:a100=1 mem=8E license/x=1 =",
    "tres-bind": "gres/gpu:none gres/gpu:single:1 x",
    "licenses": "a a:1 a:4294967295 a@b:1 : a,b,c",
    "switches": "1 1@0 4294967294 4294967295 1@9999999-0 1@4294967295 -1",
    "dependency": "singleton afterok:1 afterany:4294967295 after:1+4294967295 afterok:65534?afterany:1 x",
    "constraint": "a100 [a&b] a*4294967295 ((((a a|b !a",
    "prefer": "a100 [a|b] x",
    "cluster-constraint": "a !a",
    "clusters": "all nowhere",
    "partition": "gpu gpu,debug ,,,, nowhere gpu,gpu",
    "distribution": "block cyclic:block arbitrary plane=65534 x",
    "extra-node-info": "1 *:*:* 65534:65534:65534 x",
    "cpu-freq": "high 1-4294967295:performance x",
    "gpu-freq": "high 4294967295 x",
    "gpu-bind": "closest map_gpu:0,1 mask_gpu:0x1 single:1 x",
    "gres-flags": "enforce-binding disable-binding x",
    "acctg-freq": "0 task=4294967295 x",
    "signal": "B:USR1@65534 65535@65535 R:TERM KILL@4294967295 x",
    "mail-type": "ALL NONE TIME_LIMIT_80 x",
    "profile": "All None x",
    "propagate": "ALL NONE STACK x",
    "export": "NONE ALL NIL A=b,C",
    "open-mode": "append truncate x",
    "exclusive": "user mcs topo x",
    "hint": "compute_bound multithread x",
    "resv-ports": "1 65535",
    "kill-on-invalid-dep": "yes no x",
    "batch": "a100 x",
    "chdir": "/ /nowhere relative",
    "export-file": "/nowhere 99",
    "bbf": "/nowhere",
    "uid": "0 nobody 65534 4294967295",
}
_FLAGS = (
    "no-kill no-requeue requeue overcommit oversubscribe spread-job reboot use-min-nodes contiguous ignore-pbs"
    " get-user-env stepmgr exclusive"
)
OPTIONS: dict[str, Sequence[str | None]] = {
    **{f"--{name}": values for names, values in _OF_A_KIND.items() for name in names.split()},
    **{f"--{name}": values.split() for name, values in _OTHERS.items()},
}
for _name in _FLAGS.split():
    OPTIONS[f"--{_name}"] = [None, *OPTIONS.get(f"--{_name}", ())]


@dataclass
class Found:
    """What came of all submissions."""

    submitted: int = 0
    refused: int = 0
    tried: set[str] = field(default_factory=set)
    """Options that made a job."""
    facts: int = 0
    """Facts that the store has taken."""
    records: int = 0
    """Rows of sacct that were read in the end."""
    seconds: float = 0.0


def submission(seed: int, number: int) -> list[str]:
    """Return the words of one submission: an option in turn, with each of its values, and in some others beside it."""
    random = Random(f"{seed} {number}")
    names = list(OPTIONS)
    values = OPTIONS[names[number % len(names)]]
    words = [(names[number % len(names)], values[number // len(names) % len(values)])]
    for name in random.sample(names, random.randrange(3) if number % 2 else 0):
        words.append((name, random.choice(OPTIONS[name])))
    return [name if value is None else f"{name}={value}" for name, value in words]


def run(cluster: Cluster, user: str | None, home: Path, count: int, seed: int) -> Found:
    """Submit until there were `count` jobs, look as gsubd and the recorder do, cancel.

    Raises AssertionError for an answer that was lost.
    """
    found = Found()
    begin = time.monotonic()
    env = {"HOME": str(home), **cluster.env}

    def through(argv: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Completed:
        return run_command(cluster.argv(argv, user=user), env=env, **options)

    unread = Unread()
    client = CommandClient(env, run=through, unread=unread)
    runner = Runner(env, run=through)
    slurm = Slurm(
        client, lambda: read_config(runner), lambda cluster: read_associations(runner, cluster), unread
    )
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/store.sqlite")
        try:
            store.migrate()
            while found.submitted < count:
                first = found.submitted + found.refused
                asked = [submission(seed, number) for number in range(first, first + OF_A_ROUND)]
                jobs = _submit(through, env, home, asked, found)
                _look(slurm, jobs, store, f"seed {seed}, submissions from {first}", found)
                client.cancel(jobs)
        finally:
            store.close()
    found.records = len(client.accounting(user=user))
    assert not unread.kinds, f"seed {seed}: {unread.kinds}, {unread.example}"
    found.seconds = time.monotonic() - begin
    return found


def _submit(
    through: Callable[..., Completed],
    env: dict[str, str],
    home: Path,
    asked: Sequence[list[str]],
    found: Found,
) -> list[int]:
    """Submit each, held, by one shell: most of the time of a submission is that of getting there."""
    usual = ["sbatch", "--hold", f"--chdir={home}", "--parsable", "--wrap=true"]
    lines = [shlex.join([*usual, *words]) for words in asked]
    script = "".join(f'echo "= $({line} 2>/dev/null </dev/null)"\n' for line in lines)
    done = through(["sh"], env=env, stdin=script.encode(), timeout=300.0)
    jobs = []
    for words, line in zip(asked, done.stdout.splitlines(), strict=True):
        number = line.removeprefix("= ").partition(";")[0]
        if number.isdecimal():
            jobs.append(int(number))
            found.tried |= {word.partition("=")[0] for word in words}
            found.submitted += 1
        else:
            found.refused += 1
    return jobs


def _look(slurm: Slurm, jobs: Sequence[int], store: Store, where: str, found: Found) -> None:
    there = {one.array_job_id or one.id for one in slurm.client.jobs()}
    assert set(jobs) <= there, f"{where}: jobs {sorted(set(jobs) - there)} are lost"
    store.take([started(number) for number in jobs], time.time())
    seen = ask(slurm.client, CLUSTER, [JobRef(number) for number in jobs], time.time(), slurm.unread)
    seen = msgspec.json.decode(msgspec.json.encode(seen), type=Seen)
    question = Question(site="", site_path="", jobs_since=0.0)
    report = decode_report(encode_report(look(slurm, Site(cluster=CLUSTER), question)))
    errors = [seen.error, seen.accounting_error, report.error, report.jobs_error]
    assert not any(errors), f"{where}: {errors}"
    assert report.inventory is not None, where
    assert not slurm.unread.kinds, f"{where}: {slurm.unread.kinds}, {slurm.unread.example}"
    assert {one.job_id for one in seen.facts} >= set(jobs), f"{where}: the recorder does not hear of all"
    found.facts += store.enrich(seen.facts, time.time())
