"""How many GPUs there should be, by slurmd's own list."""

from __future__ import annotations

import pytest

from prolog_epilog.agent.gres import NodeGpus
from tests.unit.prolog_epilog.agent.test_gres import _NEW, _NO_MPS, _OLD, _SHARD, MIG, whole

COUNTS = {
    "22.05": (whole(_OLD, 0, 1, 2), 3),
    "24.11": (whole(_NEW, 1, 3, 4, 5), 4),
    "instances count as their GPU, 22.05": (MIG["22.05"], 3),
    "instances count as their GPU, 24.11": (MIG["24.11"], 3),
    "parts of GPUs do not count": ([*whole(_OLD, 0), _SHARD, _NO_MPS], 1),
    "without device files": (["Gres Name=gpu Type=(null) Count=4 Index=0 ID=1 File=(null) x"], 4),
    "none": ([], 0),
}


@pytest.mark.parametrize("name", COUNTS)
def test_whole_gpus_are_counted(name, tmp_path):
    lines, count = COUNTS[name]
    gpus = NodeGpus(lambda: "\n".join(lines), mig_minors=tmp_path / "none")
    assert gpus.count() is None  # nobody has asked slurmd: not known, and not 0
    gpus.load()
    assert gpus.count() == count


def test_where_slurmd_does_not_answer_nothing_is_known():
    def fail() -> str:
        raise TimeoutError("slurmd -G did not answer")

    gpus = NodeGpus(fail)
    gpus.load()
    assert gpus.count() is None
