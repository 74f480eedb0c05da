"""What requests ask for in GPUs: every way to say it, on old and new releases."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.decide.request import Job
from slurm_plugins.decide.shape import NO_GPUS, NotUnderstood, Shape, gpu_items, shape_of
from tests.properties import examples
from tests.unit.slurm_plugins.decide.strategies import jobs
from tests.unit.slurm_plugins.decide.table import ask, environment

RELEASES = [(22, 5), (24, 11), (26, 5)]


@pytest.mark.parametrize("release", RELEASES, ids=str)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {"gpus": 0}),
        ("-n 64 --mem=4G", {"gpus": 0}),
        ("--gres=nvme:1", {"gpus": 0}),
        ("--gpus=0", {"gpus": 0}),
        ("--gpus=16", {"gpus": 16, "closed": False, "nodes": None}),
        ("--gpus=1", {"gpus": 1, "gpus_per_node": 1, "nodes": 1}),
        ("--gpus=a100:16", {"gpus": 16, "gpu_type": "a100"}),
        ("--gpus=1g.10gb:2", {"gpus": 2, "gpu_type": "1g.10gb"}),
        ("--gpus=a100:2,v100:4", {"gpus": 6, "gpu_type": "", "types": (("a100", 2), ("v100", 4))}),
        ("--gres=gpu", {"gpus": 1, "nodes": 1, "closed": True}),
        ("--gres=gpu:4", {"gpus": 4, "gpus_per_node": 4, "nodes": 1}),
        ("--gres=gpu:4,nvme:1 -N 2", {"gpus": 8, "gpus_per_node": 4, "nodes": 2}),
        ("--gpus-per-node=v100:2 -N 3", {"gpus": 6, "gpu_type": "v100", "closed": True}),
        ("--gres=gpu:8 -N 2-4", {"gpus": None, "gpus_per_node": 8, "nodes": None, "nodes_low": 2, "nodes_high": 4}),
        ("--gres=gpu:8 -n 4", {"gpus": None, "gpus_per_node": 8, "tasks": 4, "closed": False}),
        ("-N 1 --gpus=4", {"gpus": 4, "gpus_per_node": 4, "closed": True}),
        ("-N 4 --gpus=16", {"gpus": 16, "gpus_per_node": None, "nodes": 4, "closed": False}),
        ("--gpus=16 --gpus-per-node=8", {"gpus": 16, "gpus_per_node": 8, "nodes": 2, "closed": True}),
        ("-n 8 --gpus-per-task=2", {"gpus": 16, "gpus_per_task": 2, "tasks": 8, "gpus_per_node": None}),
        ("-N 2 --ntasks-per-node=4 --gpus-per-task=2", {"gpus": 16, "gpus_per_node": 8, "tasks": 8, "closed": True}),
        ("--gpus=16 --gpus-per-task=2", {"gpus": 16, "tasks": 8}),
        ("--gpus-per-node=8 -n 4 --gpus-per-task=4", {"gpus": 16, "nodes": 2, "gpus_per_node": 8}),
        ("--ntasks-per-gpu=2 --gpus=4", {"gpus": 4, "tasks": 8, "tasks_per_gpu": 2}),
        ("--ntasks-per-gpu=2 -n 8", {"gpus": 4, "tasks": 8}),
        ("--gpus-per-socket=2 --sockets-per-node=2 -N 2", {"gpus": 8, "gpus_per_node": 4, "closed": True}),
        ("--gpus=4 -c 8", {"cpus_per_task": 8, "cpus_stated": True, "memory_stated": False}),
        ("--gpus=4 --cpus-per-gpu=8", {"cpus_per_gpu": 8, "cpus_stated": True}),
        ("--gpus=4 --mem=8G", {"memory_per_node": 8192, "memory_stated": True}),
        ("--gpus=4 --mem=0", {"memory_per_node": 0, "memory_stated": True}),
        ("--gpus=4 --mem-per-cpu=1G", {"memory_per_cpu": 1024}),
        ("--gpus=4 --mem-per-gpu=32G", {"memory_per_gpu": 32768, "memory_stated": True}),
        ("--gpus=4 --exclusive", {"exclusive": True}),
        ("--gpus=4 --exclusive=user", {"exclusive": False}),
        ("-a 0-99 --gpus=2", {"gpus": 2}),
    ],
)  # fmt: skip
def test_shape(words: str, expected: dict[str, Any], release: tuple[int, int]) -> None:
    shape = shape_of(ask(words, release), environment(words, release))
    assert isinstance(shape, Shape), shape
    assert {name: getattr(shape, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--gpus=16 --gpus-per-node=5", "16 GPUs in all are not 3 x 5"),
        ("-N 3 --gpus=16 --gpus-per-node=8", "16 GPUs in all are not 3 x 8"),
        ("-N 3-4 --gpus=16 --gpus-per-node=8", "16 GPUs in all are not 3-4 x 8"),
        ("--gpus=16 --gpus-per-task=3", "16 GPUs are not a multiple of 3 for each task"),
        ("-n 4 --gpus=16 --gpus-per-task=2", "16 GPUs in all, and 8 by what else is asked for"),
        ("--gpus-per-task=2", "open how many tasks there are"),
        ("--gpus-per-socket=2", "open how many sockets"),
        ("-n 7 --ntasks-per-gpu=2", "7 tasks are not a multiple of 2"),
        ("--ntasks-per-gpu=2 --gpus=4 --ntasks-per-node=4", "another count of tasks"),
        ("--gpus=a100:4 --gpus-per-node=v100:4", "types of GPU that do not agree"),
        ("--gpus=9999999999", "more than any cluster has"),
    ],
)
def test_what_contradicts_itself_is_not_understood(words: str, why: str) -> None:
    shape = shape_of(ask(words))
    assert isinstance(shape, NotUnderstood)
    assert why in shape.why


def test_a_list_that_cannot_be_read_is_not_understood() -> None:
    assert isinstance(shape_of(Job(tres_per_job="gpu:;:4")), NotUnderstood)
    with pytest.raises(SlurmFormatError):
        gpu_items("gpu:;:4")


def test_each_component_of_a_hetjob_has_its_own_shape() -> None:
    first, second = ask("--gpus=16", het_job_offset=0), ask("-n 4", het_job_offset=1)
    assert shape_of(first) == shape_of(ask("--gpus=16"))
    assert shape_of(second) == NO_GPUS


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_sbatchs_own_sum_of_tasks_is_not_a_statement(release: tuple[int, int]) -> None:
    def tasks(words: str) -> int | None:
        shape = shape_of(ask(words, release), environment(words, release))
        assert isinstance(shape, Shape)
        return shape.tasks

    assert tasks("--gpus=16 --ntasks-per-node=8") == (8 if release < (24, 11) else None)
    assert tasks("--gpus=16 -n 8 --ntasks-per-node=8") == 8
    assert tasks("-N 2 --gpus=16 --ntasks-per-node=8") == 16


@settings(max_examples=examples(500), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs())
def test_a_shape_does_not_contradict_itself(job: Job) -> None:
    shape = shape_of(job)
    if isinstance(shape, NotUnderstood):
        assert shape.why
        return
    if shape.nodes is not None and shape.gpus_per_node is not None:
        assert shape.gpus == shape.nodes * shape.gpus_per_node
    if shape.gpus_per_task is not None and shape.tasks is not None:
        assert shape.gpus == shape.tasks * shape.gpus_per_task
    assert (shape.nodes_low or 1) <= (shape.nodes_high or 1 << 60)
