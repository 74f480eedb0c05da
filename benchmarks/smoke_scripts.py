# ruff: noqa: E501 - a case is a line
"""24 scripts broken in 24 ways, and good ones that a run on one GPU could do wrong; all ask for 2 nodes x 8 GPUs.

A case is a folder: `files` by name, and `job.sh`. `LIB` in a text is the folder of tests/unit/gsub/smoke/scripts, where a module
stands in for PyTorch. Times in them are minutes of a real job, see `torch.minutes` there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

Stop = Literal["preflight", "smoke", "nothing"]


@dataclass(frozen=True)
class Case:
    """A script, the files beside it, and the options that it is submitted with.

    `stops`: what should stop a broken one; "nothing" where one GPU cannot tell it from a good one.
    `how`: "file", "stdin" or "wrap". `needs`: a dependency, with A and B for the ids of two other jobs.
    """

    name: str
    script: str
    files: dict[str, str] = field(default_factory=dict)
    stops: Stop = "nothing"
    modes: dict[str, int] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    how: Literal["file", "stdin", "wrap"] = "file"
    needs: str = ""


HEAD: Final = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n#SBATCH --time=10\n"
USES: Final = "export PYTHONPATH=LIB\n"
START: Final = HEAD + USES
EIGHT: Final = HEAD + "#SBATCH --ntasks-per-node=8\n" + USES
TRAIN: Final = """\
import argparse, json, os
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--data")
asked = parser.parse_args()
torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
data = json.load(open(asked.data)) if asked.data else []
model = torch.Linear(512, 10)
for step in range(asked.steps):
    model(torch.Tensor(32, 512))
    torch.minutes(0.1)
    print(f"step {step} loss {1 / (step + 1):.3f}", flush=True)
"""
CONFIGURED: Final = """\
import gzip, json, os
import torch

conf = json.load(open("conf.json"))
torch.distributed.init_process_group("nccl")
torch.minutes(conf["start_up"])
if "data" in conf:
    with gzip.open(conf["data"], "rt") as rows:
        print(len(rows.readlines()), "rows", flush=True)
model = torch.Linear(512, 10)
if "resume" in conf:
    model.load_state_dict(torch.load(conf["resume"]))
if "out" in conf:
    os.makedirs(os.path.join(conf["out"], "run-1"))
for step in range(3):
    model(torch.Tensor(32, conf["features"], dtype=conf.get("dtype", "Float")))
    print(f"step {step}", flush=True)
"""


def _train(body: str, name: str = "train.py") -> dict[str, str]:
    return {name: "import os\nimport torch\n" + body}


def _conf(values: str) -> dict[str, str]:
    return {"train.py": CONFIGURED, "conf.json": "{" + values + "}\n"}


RUN: Final = "srun python3 train.py\n"
GOOD_TRAIN: Final = {"train.py": TRAIN}
DIST: Final = 'torch.distributed.init_process_group("nccl")\nworld = torch.distributed.get_world_size()\n'

BROKEN: Final = (
    Case("if without fi", START + "if [ -d data ]; then\n  echo data\nsrun python3 train.py\n", GOOD_TRAIN, "preflight"),
    Case("mistyped name of the program", START + "srun python3 trian.py\n", GOOD_TRAIN, "preflight"),
    Case("Python that does not compile", START + RUN, {"train.py": TRAIN.replace("asked = parser.parse_args()", "asked = parser.parse_args(")}, "preflight"),
    Case("module that is not installed", START + RUN, _train("import apex_of_another_machine\n"), "smoke"),
    Case("#SBATCH option that there is not", START.replace("gpus-per-node", "gpu-per-nodes") + RUN, GOOD_TRAIN, "preflight"),
    Case("output folder that may not be written", HEAD + "#SBATCH --output=logs/%j.out\n" + USES + RUN, {**GOOD_TRAIN, "logs/x": ""}, "preflight", {"logs": 0o555}),
    Case("mistyped data on the command line", START + "srun python3 train.py --data data/trian.json\n", {**GOOD_TRAIN, "data/train.json": "[]"}, "smoke"),
    Case("data that may not be read", START + "srun python3 train.py --data data/train.json\n", {**GOOD_TRAIN, "data/train.json": "[]"}, "preflight", {"data/train.json": 0}),
    Case("environment that is not there", HEAD + "set -e\nsource venv-torch2/bin/activate\n" + USES + RUN, GOOD_TRAIN, "preflight"),
    Case("16 processes on 8 GPUs", START + "srun LIB/torchrun --nnodes=2 --nproc_per_node=16 train.py\n", GOOD_TRAIN, "preflight"),
    Case("module missing, imported when it is needed", START + RUN, _train(DIST + "torch.minutes(0.7)\ndef attention():\n    import flash_attn_of_another_machine\nattention()\n"), "smoke"),
    Case("option that the program does not have", START + "srun python3 train.py --lerning-rate 0.1\n", {"train.py": TRAIN.replace("import torch\n", "import torch\ntorch.minutes(0.3)\n")}, "smoke"),
    Case("shapes that do not fit, first step", START + RUN, _conf('"start_up": 1.5, "features": 256'), "smoke"),
    Case("key that the configuration lacks", START + RUN, _conf('"start_up": 0.5, "feature": 512'), "smoke"),
    Case("data of the configuration is not there", START + RUN, _conf('"start_up": 1.0, "features": 512, "data": "data/train.csv.gz"'), "smoke"),
    Case("data that is cut off", START + RUN + "exit $?\n", {**_conf('"start_up": 1.8, "features": 512, "data": "train.csv.gz"'), "train.csv.gz": "CUT"}, "smoke"),
    Case("checkpoint of another model", START + RUN, {**_conf('"start_up": 1.0, "features": 512, "resume": "model.json"'), "model.json": '{"weight": [512, 1000]}'}, "smoke"),
    Case("results folder that may not be written", START + RUN, {**_conf('"start_up": 1.0, "features": 512, "out": "results"'), "results/x": ""}, "smoke", {"results": 0o555}),
    Case("half precision here, single there", START + RUN, _conf('"start_up": 1.3, "features": 512, "dtype": "Half"'), "smoke"),
    Case("mistyped name of a variable", START + RUN, _train(DIST + "torch.minutes(1.2)\nloss = 0.5\nprint(f'step 0 loss {los}')\n"), "smoke"),
    Case("program that is not on the node", START + 'TOOL=convert-shards\nset -e\nsleep 1\n"$TOOL" --workers 8\n' + RUN, GOOD_TRAIN, "smoke"),
    Case("out of memory on every GPU", START + RUN, _train(DIST + "torch.minutes(2)\ntorch.cuda.allocate(90)\n"), "nothing"),
    Case("wrong world size", START + RUN, _train(DIST + "torch.minutes(0.3)\nassert world == 32, f'world size {world} is not 32'\n"), "nothing"),
    Case("folder of checkpoints missing, at the first one", START + RUN, _train(DIST + "torch.minutes(9)\ntorch.save({}, 'ckpt/first.json')\n"), "nothing"),
)  # fmt: skip

RESUME: Final = """\
import glob, os
import torch

def number(path):
    return int(path.split("-")[1].split(".")[0])

torch.distributed.init_process_group("nccl")
if torch.distributed.get_rank() == 0:
    newest = max(glob.glob("ckpt/step-*.json"), key=number)
    print("resuming from", newest, flush=True)
    for step in range(number(newest) + 1, number(newest) + 4):
        torch.minutes(0.1)
        torch.save({"step": step}, f"ckpt/step-{step}.json")
"""
SECOND: Final = """\
set -eu
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
echo "the second is ${nodes[1]}"
"""
OPTIONAL: Final = """\
python3 -c 'import apex_of_another_machine' || echo "no apex: going on without"
cat optional.cfg 2>/dev/null
cp last/model.json . || true
"""
GOOD: Final = (
    Case("plain", START + RUN, GOOD_TRAIN),
    Case("srun -N 2 -n 16", EIGHT + "srun -N 2 -n 16 --ntasks-per-node=8 python3 train.py\n", GOOD_TRAIN),
    Case("torchrun on both nodes, srun --ntasks=2", START + "set -e\nsrun --ntasks=2 --ntasks-per-node=1 LIB/torchrun --nnodes=2 --nproc_per_node=8 train.py\n", GOOD_TRAIN),
    Case("torchrun --nproc_per_node=8", START + "srun LIB/torchrun --nnodes=2 --nproc_per_node=8 train.py\n", GOOD_TRAIN),
    Case("waits for the other node", START + "srun LIB/torchrun --nnodes=2 --nproc_per_node=1 train.py\n", GOOD_TRAIN),
    Case("gives the other node up after a minute", START + RUN, _train("torch.distributed.RENDEZVOUS_MIN = 1\nos.environ['WORLD_SIZE'] = '2'\n" + DIST)),
    Case("model that needs all GPUs", START + RUN, _train(DIST + "torch.minutes(0.2)\ntorch.cuda.allocate(500, gpus=8)\n")),
    Case("asserts its world size", EIGHT + RUN, _train(DIST + "assert world == 16, f'expected world size 16, got {world}'\n")),
    Case("tensor parallel 8, as Megatron says it", EIGHT + RUN, _train(DIST + "if world % 8:\n    raise RuntimeError(f'world_size ({world}) is not divisible by tensor_model_parallel_size (8)')\n")),
    Case("batch of DeepSpeed", EIGHT + RUN, _train(DIST + "assert 256 == 16 * world, 'Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size ' f'256 != 16 * 1 * {world}'\n")),
    Case("GPU by its number", START + RUN, _train("torch.cuda.set_device(7)\n" + DIST)),
    Case("second node by its name", START + SECOND + RUN, GOOD_TRAIN),
    Case("fixed --output", HEAD + "#SBATCH --output=train.log\n" + USES + RUN, {**GOOD_TRAIN, "train.log": "of the last run\n"}),
    Case("mkdir without -p", START + "set -e\nmkdir out\ncd out\nsrun python3 ../train.py > log.txt\n", GOOD_TRAIN),
    Case("resumes from the newest checkpoint", START + "set -e\nsrun python3 train.py\ntest -f ckpt/step-4.json\ntest ! -f ckpt/step-5.json\n", {"train.py": RESUME, "ckpt/step-1.json": '{"step": 1}'}),
    Case("clears the results of the last run", START + "set -e\nrm -rf runs/last\nmkdir runs/last\nsrun python3 train.py\ntouch runs/last/done\n", {**GOOD_TRAIN, "runs/last/model.json": "dear"}),
    Case("adds a line to its table", START + "set -e\nsrun python3 train.py\necho 0.93 >> results.csv\ntest $(wc -l < results.csv) = 2\n", {**GOOD_TRAIN, "results.csv": "accuracy\n"}),
    Case("slow starter", START + RUN, _train("torch.minutes(4.5)\n" + DIST + "print('step 0', flush=True)\n")),
    Case("long imports", START + RUN, {"train.py": "import big\nprint(big.SIZE)\n", "big.py": "import torch\nfor part in range(40):\n    torch.minutes(0.1)\nSIZE = 40\n"}),
    Case("quick exit", START + "echo nothing to do\nexit 0\n"),
    Case("failures that it expects", START + OPTIONAL + RUN, GOOD_TRAIN),
    Case("array", START + "srun python3 train.py --lr 0.$SLURM_ARRAY_TASK_ID\n", GOOD_TRAIN, words=("--array=1-2",)),
    Case("from standard input", START + RUN, GOOD_TRAIN, how="stdin"),
    Case("--wrap", "export PYTHONPATH=LIB; srun python3 train.py", GOOD_TRAIN, words=("-N2", "--gpus-per-node=8", "-t10"), how="wrap"),
    Case("own dependency: a, b", START + RUN, GOOD_TRAIN, needs="afterok:A,afterany:B"),
    Case("own dependency: a? b", START + RUN, GOOD_TRAIN, needs="afterok:A?afternotok:B"),
    Case("own dependency: singleton", START + RUN, GOOD_TRAIN, needs="singleton"),
)  # fmt: skip
SLOW: Final = Case(
    "for the scenes",
    START + RUN,
    _train(DIST + "for step in range(4):\n    torch.minutes(0.5)\n    print(f'step {step}', flush=True)\n"),
)
"""What a smoke that is preempted, loses its node or never starts belongs to."""
