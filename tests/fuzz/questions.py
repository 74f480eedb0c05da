"""Questions for the service: jobs as users ask for them, the same with values that no user would give, and noise."""

from __future__ import annotations

from random import Random
from typing import Any, get_type_hints

from slurm_plugins.decide.request import Job
from slurm_plugins.decide.steps import ENV_NAMES
from tests.fuzz import words

FIELDS = tuple(sorted(get_type_hints(Job)))
NAMES = (
    *sorted(ENV_NAMES),
    "GSUB",
    "GSUB_REPACK",
    "GSUB_RETUNE",
    "GSUB_SENSITIVITY",
    "GSUB_SMOKE",
    "GSUB_RUN_TIME",
    "GSUB_RESTART",
    "GSUB_WORKLOAD",
)

_GPUS = (
    "gres:gpu:{}",
    "gres/gpu:{}",
    "gres:gpu:a100:{}",
    "gres/gpu:h200:{}",
    "gres/gpu:a100_1g.5gb:{}",
    "gpu:{}",
)
_SOME: dict[str, tuple[Any, ...]] = {
    "min_nodes": (1, 1, 2, 3, 4, 7, 16),
    "max_nodes": (1, 2, 4, 8, 16, 64),
    "num_tasks": (1, 2, 3, 8, 16, 17, 64),
    "ntasks_per_node": (1, 2, 4, 8),
    "ntasks_per_tres": (1, 2),
    "cpus_per_task": (1, 2, 6, 8, 16, 64, 200),
    "cpus_per_tres": ("gres:gpu:6", "gres/gpu:12", "gres/gpu:1"),
    "mem_per_tres": ("gres:gpu:16384", "gres/gpu:65536"),
    "min_mem_per_node": (1, 1024, 500_000, 4_000_000),
    "min_mem_per_cpu": (1024, 8192),
    "shared": (0, 1, 2),
    "req_switch": (1, 2, 3),
    "wait4switch": (0, 60, 300, 86_400),
    "features": ("a100", "h200&rack1", "[a100|h200]", "mig"),
    "prefer": ("h200",),
    "exc_nodes": ("n00001", "n[00001-00064]"),
    "req_nodes": ("n[00005-00008]",),
    "partition": ("gpu", "gpu", "a100", "a100", "mig", "gpu,a100", "nowhere"),
    "time_limit": (1, 60, 1440, 14_400, 100_000),
    "time_min": (10,),
    "account": ("physics",),
    "default_account": ("physics",),
    "qos": ("normal",),
    "name": ("job-1", "job-77", "train"),
    "array_inx": ("0-15%4",),
    "het_job_offset": (0, 1),
    "comment": ("gsub:off", "gsub:explain", "hello"),
    "segment_size": (1, 2, 4),
    "sockets_per_node": (1, 2),
    "threads_per_core": (1, 2),
    "begin_time": (1_800_000_000,),
    "dependency": ("afterok:12",),
    "reservation": ("maintenance",),
    "licenses": ("matlab:1",),
    "contiguous": (0, 1),
    "user_name": ("ada",),
    "work_dir": ("/home/ada",),
}


def usual(random: Random) -> dict[str, Any]:
    """A job that some user might ask for."""
    count = random.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 24, 32, 64, 100, 1000))
    job: dict[str, Any] = {}
    ways = ("tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket")
    for field in random.sample(ways, random.choice((0, 1, 1, 1, 1, 1, 2))):
        job[field] = random.choice(_GPUS).format(count)
    # most say little, some say much
    for field in random.sample(sorted(_SOME), random.choice((0, 1, 1, 2, 2, 3, 4, 6, 12))):
        job[field] = random.choice(_SOME[field])
    script = random.random() < 0.8
    question: dict[str, Any] = {
        "v": 1,
        "id": random.randrange(1, 1 << random.randrange(2, 54)),
        "uid": random.choice((0, 1000, 1001, 65534, 2**32 - 2)),
        "submit_uid": random.choice((0, 1000)),
        "slurm": random.choice(("", "22.05", "24.11", "26.05", "x", "24.11.5-1")),
        "job": job,
        "batch": script,
    }
    if script:
        question["env"] = {
            name: random.choice(
                ("", "1", "8", "16", "64", "off", "explain", "yes", "no", "block", "24G", "4(x2),1")
            )
            for name in random.sample(NAMES, random.randrange(6))
        }
        question["script_head"] = random.choice(
            ("#!/bin/sh\ntrue\n", "#!/bin/bash\nsrun python train.py --lr 1\n")
        )
        question["script_bytes"] = len(question["script_head"])
    return question


def spoil(random: Random, question: dict[str, Any]) -> dict[str, Any]:
    """The same with values at the edges or of a wrong kind, and names that nobody knows."""
    for _ in range(random.randrange(1, 6)):
        where = random.choice((question, question["job"], question["job"], question.get("env")))
        if not isinstance(where, dict):
            continue
        if where is question:
            name = random.choice(
                ("v", "id", "uid", "submit_uid", "slurm", "batch", "script_head", "cut", "shim", "env")
            )
        elif where is question["job"]:
            name = random.choice(FIELDS)
        else:
            name = random.choice((*NAMES, "PATH", words.text(random)))
        kind = random.randrange(4)
        if kind == 0:
            where[name] = words.text(random)
        elif kind == 1:
            where[name] = words.number(random)
        elif kind == 2:
            where[name] = words.anything(random)
        else:
            where.pop(name, None)
    if random.random() < 0.1:
        question["cut"] = [random.choice(FIELDS)]
    return question


def line(random: Random) -> bytes:
    """A question without its newline: half are usual, three in ten spoilt, the rest mangled or noise."""
    kind = random.randrange(10)
    if kind == 9:
        return words.noise(random).replace(b"\n", b"")
    question = usual(random)
    if kind >= 5:
        question = spoil(random, question)
    written = words.encode(random, question)
    return words.mangle(random, written).replace(b"\n", b"") if kind == 8 else written
