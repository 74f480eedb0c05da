"""Requests against what scripts count on: each kind of mismatch, and its neighbours that are well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gsub.argv import split
from gsub.preflight.look import submission
from gsub.preflight.shape import shape
from gsub.sbatch_options import Table

Said = Callable[[str, str], "list[tuple[str, str]]"]
NODE8 = "-N2 --gpus-per-node=8"
ONE8 = "-N1 --gres=gpu:8"
TASKS = "-N2 --ntasks-per-node=8 --gpus-per-node=8"


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nccl.py").write_text("init('nccl')\n")
    (tmp_path / "any.py").write_text("init('nccl' if gpu else 'gloo')\n")
    (tmp_path / "ds.py").write_text("engine = deepspeed.initialize(model=m)\n")
    (tmp_path / "two.yaml").write_text("num_machines: 2\nnum_processes: 16  # all\n")
    (tmp_path / "four.yaml").write_text("num_machines: 4\nnum_processes: '32'\n")

    def look(options: str, script: str) -> list[tuple[str, str]]:
        text = f"#!/bin/bash\n{script}\n"
        (tmp_path / "job.sh").write_text(text)
        line = split([*options.split(), "job.sh"], Table.of_all())
        return [(one.level, one.what) for one in shape(submission(line, text, {"HOME": str(tmp_path)}))]

    return look


@pytest.mark.parametrize(
    ("options", "script", "level", "words"),
    [
        # steps: seen to be refused by Slurm itself
        (NODE8, "srun -N 4 hostname", "error", "srun asks for 4 nodes"),
        (NODE8, "srun -N 4 hostname || true", "warning", "srun asks for 4 nodes"),
        ("-N2 --gpus-per-node=4", "srun --gpus-per-node=8 x", "error", "srun asks for 8 GPUs a node"),
        ("-N2 --gres=gpu:a100:4", "srun --gres=gpu:8 x", "error", "srun asks for 8 GPUs a node"),
        ("-N2 --exclusive --gres=gpu:4", "srun --gres=gpu:8 x", "warning", "srun asks for 8 GPUs a node"),
        (NODE8, "srun --gpus=32 x", "error", "srun asks for 32 GPUs, and the job has 16"),
        ("--gpus=8", "srun -n 4 --gpus-per-task=4 x", "error", "srun asks for 16 GPUs, and the job has 8"),
        # torchrun
        ("-N1 --gpus=4", "torchrun --nproc-per-node=8 nccl.py", "error", "8 processes"),
        ("-N1 --gpus=4", "torchrun --nproc-per-node 8 any.py", "warning", "8 processes"),
        ("-N1 -n4 --gpus-per-task=1", "torchrun --nproc_per_node=8 nccl.py", "error", "4 a node are asked for"),
        (ONE8, "python -m torch.distributed.run --nproc_per_node=4 nccl.py", "warning", "use 4 of the 8"),
        (NODE8, "srun torchrun --nnodes=4 --nproc_per_node=8 nccl.py", "warning", "waits for 4 nodes"),
        (TASKS, "srun torchrun --nnodes=2 --nproc_per_node=8 nccl.py", "warning", "starts torchrun 8 times a node"),
        (NODE8, "torchrun --nproc_per_node=8 nccl.py", "warning", "first node only"),
        # accelerate
        (ONE8, "accelerate launch --num_processes 16 nccl.py", "error", "16 processes"),
        (NODE8, "srun accelerate launch --num_machines 2 --num_processes 32 nccl.py", "error", "16 processes"),
        (NODE8, "srun accelerate launch --config_file four.yaml nccl.py", "warning", "waits for 4 nodes"),
        (ONE8, "accelerate launch --num_processes=4 nccl.py", "warning", "use 4 of the 8"),
        # deepspeed
        ("--gres=gpu:4", "deepspeed --num_gpus 8 ds.py", "error", "8 processes"),
        (NODE8, "deepspeed --hostfile h --num_nodes 3 --num_gpus 8 ds.py", "warning", "waits for 3 nodes"),
        # tasks
        ("-N1 -n8 --gpus=4", "srun python nccl.py", "warning", "8 tasks a node share 4 GPUs"),
        (TASKS, "mpirun -np 32 python nccl.py", "warning", "mpirun starts 32 ranks"),
        (TASKS, "export WORLD_SIZE=8\nsrun python nccl.py", "warning", "the step has 16 tasks"),
        # arguments and variables
        (ONE8, "export CUDA_VISIBLE_DEVICES=0,8\npython nccl.py", "warning", "there is no 8"),
        ("-N1 --gpus-per-node=1", "CUDA_VISIBLE_DEVICES=1 python nccl.py", "warning", "has 1 GPU a node, and there"),
        (ONE8, "python any.py --devices 16", "warning", "--devices 16"),
        (ONE8, "python any.py trainer.devices=16", "warning", "trainer.devices=16"),
    ],
)  # fmt: skip
def test_what_does_not_fit(said: Said, options: str, script: str, level: str, words: str) -> None:
    found = said(options, script)
    assert [one for one, what in found if words in what] == [level], found


@pytest.mark.parametrize(
    ("options", "script"),
    [
        (NODE8, "srun -N 2 --gpus=16 x"),
        (NODE8, "srun -N 1-2 -n 64 x"),
        (NODE8, "srun -N1 --gpus-per-node=4 x & srun -N1 --gpus-per-node=4 x & wait"),
        (NODE8, "srun --ntasks-per-node=1 --gpus-per-task=8 x"),
        (NODE8, "srun --gpus=$N x"),
        (NODE8, "srun --jobid=77 -N 4 x"),
        ("--gpus=16", "srun torchrun --nproc_per_node=8 --nnodes=2 nccl.py"),
        (ONE8, "torchrun --standalone --nproc_per_node=gpu nccl.py"),
        (ONE8, "torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE nccl.py"),
        (ONE8, "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 nccl.py"),
        (ONE8, "torchrun --nproc_per_node=4 nccl.py & torchrun --nproc_per_node=4 nccl.py & wait"),
        (ONE8, "srun --gpus=4 torchrun --nproc_per_node=4 nccl.py"),
        (NODE8, "srun torchrun --nnodes=1:2 --nproc_per_node=8 nccl.py"),
        (NODE8, "torchrun --nnodes=2 --nproc_per_node=8 nccl.py"),
        (TASKS, "srun --ntasks-per-node=1 torchrun --nnodes=2 --nproc_per_node=8 nccl.py"),
        (TASKS, "srun -N2 -n2 torchrun --nnodes=2 --nproc_per_node=8 nccl.py"),
        (NODE8, "for n in a b; do ssh $n torchrun x.py & done\ntorchrun --nproc_per_node=8 nccl.py"),
        ("-N1 --gpus=8 --ntasks=2 --gpus-per-task=4", "srun torchrun --nproc_per_node=4 nccl.py"),
        (NODE8, "srun accelerate launch --num_machines 2 --num_processes 16 nccl.py"),
        (NODE8, "srun accelerate launch --config_file two.yaml nccl.py"),
        (NODE8, "srun accelerate launch --config_file two.yaml --num_processes $N nccl.py"),
        (NODE8, "srun accelerate launch --config_file nothere.yaml nccl.py"),
        (ONE8, "accelerate launch --cpu --num_processes 32 any.py"),
        (ONE8, "deepspeed ds.py --deepspeed ds.json"),
        (ONE8, "deepspeed --num_gpus=8 ds.py"),
        (NODE8, "deepspeed --hostfile h --num_nodes 2 --num_gpus 8 ds.py"),
        ("-N1 -n8 --gpus=4", "srun python any.py"),
        ("-N1 -n8 --gpus=4", "srun --ntasks=4 python nccl.py"),
        (TASKS, "mpirun -np 16 python nccl.py"),
        (TASKS, "mpirun --oversubscribe -np 32 python nccl.py"),
        (TASKS, "mpirun -np 32 --hostfile h python nccl.py"),
        ("-N1 --gpus=8", "mpirun -np 8 python nccl.py"),
        (TASKS, "export WORLD_SIZE=16\nsrun python nccl.py"),
        (TASKS, "export WORLD_SIZE=$SLURM_NTASKS\nsrun python nccl.py"),
        (TASKS, "export WORLD_SIZE=8\nsrun --ntasks=8 python nccl.py"),
        (TASKS, "export WORLD_SIZE=8\nsrun -N1 python nccl.py"),
        (TASKS, "srun python any.py --devices 8 --num_nodes 2"),
        (NODE8, "srun python any.py --gpus 16"),
        ("--gpus=8", "python any.py --devices 8"),
    ],
)  # fmt: skip
def test_what_fits(said: Said, options: str, script: str) -> None:
    assert said(options, script) == []
