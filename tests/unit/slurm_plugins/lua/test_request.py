"""Which jobs are asked about, and what is told of them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from slurm_plugins.decide.request import MAX_BYTES, parse_request
from tests.unit.slurm_plugins.lua.lua import KINDS, MEMORY, NO_VAL, NO_VAL16, Shim
from tests.unit.slurm_plugins.lua.servers import Service, says

GPU = {"tres_per_node": "gres/gpu:4"}
SCRIPT = b"#!/bin/bash\n#SBATCH --gpus=4\nsrun python train.py\n"

ASKED: list[dict[str, Any]] = [
    {"tres_per_job": "gres:gpu:4"},
    {"tres_per_job": "gres/gpu:4"},
    {"tres_per_node": "gres:gpu:a100:2"},
    {"tres_per_node": "gres/gpu:a100:2"},
    {"tres_per_node": "gpu:2"},
    {"tres_per_node": "gpu"},
    {"tres_per_node": "gres:gpu"},
    {"tres_per_node": "gres/gpu:1g.10gb:1"},
    {"tres_per_node": "gres:craynetwork:1,gres:gpu:2"},
    {"tres_per_node": "gres/nvme:1,gres/gpu:h100:8"},
    {"tres_per_socket": "gres:gpu:1"},
    {"tres_per_task": "gres/gpu:1"},
    {"tres_per_task": "cpu:4,gres/gpu:1"},
    {"tres_per_task": "gres/gpu=1"},
    {"ntasks_per_tres": 2},
]
NOT_ASKED: list[dict[str, Any]] = [
    {},
    {"num_tasks": 64, "name": "gpu", "comment": "gpu:4", "features": "gpu", "partition": "gpu"},
    {"tres_per_node": "gres:shard:4"},
    {"tres_per_node": "gres:mps:50"},
    {"tres_per_node": "gres:nogpu:1"},
    {"tres_per_node": "gres:gpumem:80"},
    {"tres_per_task": "cpu:4,mem:1G"},
    {"licenses": "gpu:1"},
    {"ntasks_per_tres": NO_VAL16},
]
DECLINED: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({**GPU, "comment": "gsub:off"}, {}),
    ({**GPU, "comment": "GSUB:Off"}, {}),
    ({**GPU, "comment": "for the paper; gsub:off, please"}, {}),
    (GPU, {"GSUB": "off"}),
    (GPU, {"GSUB": " Off "}),
]
NOT_DECLINED: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({**GPU, "comment": "gsub:offset"}, {}),
    ({**GPU, "comment": "not-gsub:off"}, {}),
    (GPU, {"GSUB": "explain"}),
    (GPU, {"GSUBX": "off"}),
    (GPU, {"GSUB": ""}),
]


@pytest.fixture
def asked(shim: Shim, service: Service) -> Any:
    """Whether a job is asked about."""
    shim.setup(socket=str(service.path), deadline=1)
    service.way = says(mode="observe")

    def ask(job: dict[str, Any], env: dict[str, str] | None = None) -> bool:
        before = len(service.questions)
        done = shim.submit(job, env=env, script=SCRIPT)
        assert (done.rc, done.raised, done.log) == (0, None, [])
        return len(service.questions) > before

    return ask


def test_jobs_with_gpus_are_asked_about(asked: Any) -> None:
    assert [job for job in ASKED if not asked(job)] == []


def test_other_jobs_are_not(asked: Any) -> None:
    assert [job for job in NOT_ASKED if asked(job)] == []


def test_who_declines_is_not_asked_about(asked: Any) -> None:
    assert [case for case in DECLINED if asked(*case)] == []
    assert [case for case in NOT_DECLINED if not asked(*case)] == []


def test_the_first_of_a_heterogeneous_job_declines_for_all(shim: Shim, service: Service) -> None:
    shim.setup(socket=str(service.path), deadline=1)
    service.way = says(mode="observe")

    def submit(offset: int, uid: int, job: dict[str, Any], env: dict[str, str] | None = None) -> None:
        # the components behind the first bring neither script nor environment
        done = shim.submit(
            {**job, "het_job_offset": offset}, env=env, script=SCRIPT if offset == 0 else None, uid=uid
        )
        assert (done.rc, done.log) == (0, [])

    submit(0, 1000, {}, {"GSUB": "off"})  # CPUs only
    submit(0, 2000, GPU)
    submit(1, 1000, GPU)
    assert [question["uid"] for question in service.questions] == [2000]
    submit(1, 2000, GPU)
    assert [question["uid"] for question in service.questions] == [2000, 2000]
    submit(0, 3000, GPU, {"GSUB": "off"})
    submit(0, 3000, GPU)  # another one of the same user: which of the two the next belong to, nobody can say
    submit(1, 3000, GPU)
    submit(1, 3000, GPU)
    shim.submit(GPU, script=None, uid=3000)  # salloc is no part of it
    assert [question["uid"] for question in service.questions[2:]] == [3000, 3000]
    deadline = time.monotonic() + 60
    while len(service.questions) == 4 and time.monotonic() < deadline:
        submit(1, 3000, GPU)  # it does not last
    assert len(service.questions) == 5


def test_declining_is_read_as_the_service_reads_it(shim: Shim) -> None:
    for cases, declined in ((DECLINED, True), (NOT_DECLINED, False)):
        for job, env in cases:
            # the variable travels only under a name that the shim knows
            assert parse_request(shim.request(job, env=env)).opted_out is declined, (job, env)


def test_what_is_set_is_told_and_the_rest_is_not(shim: Shim) -> None:
    job = {**GPU, "num_tasks": 8, "time_limit": 90, "name": "train", "shared": 0, "contiguous": 1}
    env = {"GSUB": "explain", "SLURM_NTASKS": "8", "AWS_SECRET": "not for others"}
    line = shim.request(job, env=env, script=SCRIPT, uid=1007, identity=12)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "v": 1,
        "id": 12,
        "uid": 1007,
        "submit_uid": 1007,
        "slurm": "",
        "job": job,
        "env": {"GSUB": "explain", "SLURM_NTASKS": "8"},
        "batch": True,
        "script_head": SCRIPT.decode(),
        "script_bytes": len(SCRIPT),
    }


def test_salloc_and_srun_bring_neither_script_nor_environment(shim: Shim) -> None:
    told = json.loads(shim.request(GPU, script=None))
    assert told["batch"] is False
    assert not {"env", "script_head", "script_bytes"} & set(told)


def test_a_number_that_is_not_set_is_left_out_at_every_width(shim: Shim) -> None:
    assert json.loads(shim.request({}))["job"] == {}
    # the value that means "not set" at another width is a number like others
    job = {"num_tasks": NO_VAL16, "time_limit": 0xFFFFFFFF, "cpus_per_task": 0xFE, "min_mem_per_node": NO_VAL}
    assert json.loads(shim.request(job))["job"] == job


def test_a_flag_that_is_true_is_a_one(shim: Shim) -> None:
    assert json.loads(shim.request({"contiguous": True}))["job"] == {"contiguous": 1}


def test_numbers_keep_all_their_digits(shim: Shim) -> None:
    job = {"min_mem_per_node": 2**52 + 1, "bitflags": 2**53 - 1, "begin_time": 10**15, "min_nodes": 100000}
    line = shim.request(job)
    assert json.loads(line)["job"] == job
    assert b"e+" not in line


def test_every_field_travels(shim: Shim) -> None:
    sent = set(shim.order("tables")["fields"]) - {"cron_job", "default_account"}  # Slurm makes these two up
    job = {
        name: f"a {name}" if kind == "text" else 7
        for name, kind in {**KINDS, **MEMORY}.items()
        if name in sent and name != "min_mem_per_cpu"
    }
    assert set(job) == sent - {"min_mem_per_cpu"}
    request = parse_request(shim.request(job))
    assert {name: getattr(request.job, name) for name in job} == job


def test_long_texts_are_cut_and_named(shim: Shim) -> None:
    job = {**GPU, "dependency": "afterok:" + "1:" * 5000, "comment": "é" * 3000}
    told = json.loads(shim.request(job, env={"GSUB_REPACK": "y" * 2000}))
    assert set(told["cut"]) == {"comment", "dependency", "env.GSUB_REPACK"}
    assert told["job"]["dependency"] == job["dependency"][:4096]
    assert told["job"]["comment"] == "é" * 2048


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        (b"#!/bin/sh\n" + b"x" * (4 << 20), 65536),
        (b"#!/bin/sh\n" + "ß".encode() * 100_000, 65536),
        (b"#!/bin/sh \n" + "€".encode() * 100_000, 65536 - 2),  # the last of these would be halved
        (b"#!/bin/sh\n" + b"\xff\xfe" * 100_000, 8192),  # escapes to six times its length
        (b"#!/bin/sh\n" + b"\x01" * 100_000, 8192),
        (b"#!/bin/sh\r\n\ttab 'quote' \"double\" \\ \n", 40),
        (b"", 0),
    ],
    ids=["4 MiB", "two bytes", "three bytes", "no UTF-8", "control characters", "quotes", "empty"],
)
def test_any_script_fits_in_a_question(shim: Shim, script: bytes, kept: int) -> None:
    line = shim.request(GPU, script=script)
    assert len(line) <= MAX_BYTES
    assert line.isascii()
    request = parse_request(line)
    assert request.script_bytes == len(script)
    assert request.script_head == script[:kept].decode(errors="replace")


def test_the_worst_question_fits_too(shim: Shim) -> None:
    job = {name: b"\xff" * 5000 for name, kind in KINDS.items() if kind == "text" and name != "gres"}
    env = dict.fromkeys(shim.order("tables")["env_names"], b"\xff" * 5000)
    line = shim.request(job, env=env, script=b"\xff" * 100_000)
    assert len(line) <= MAX_BYTES
    assert set(parse_request(line).cut) == set(job) | {f"env.{name}" for name in env}


def test_unusual_texts_arrive_and_pass_unharmed(shim: Shim, service: Service) -> None:
    shim.setup(socket=str(service.path), deadline=1)
    name, comment = 'a"b\\c\n\t%s', b"\xff\x01\xc3"
    job = {**GPU, "name": name, "comment": comment}
    done = shim.submit(job, script=b"#!/bin/sh\n\xff\n")
    assert done.writes
    assert (done.job["name"], done.job["comment"].encode("latin-1")) == (name, comment)
    told = service.questions[0]["job"]
    assert (told["name"], told["comment"]) == (name, "\ufffd\x01\ufffd")


def test_nothing_is_asked_of_the_environment_of_salloc_and_srun(shim: Shim, service: Service) -> None:
    # slurmctld logs an error for each variable that is read of a job that sent none
    shim.setup(socket=str(service.path), deadline=1)
    service.way = says(env={})
    assert shim.submit(GPU, script=None).log == []
