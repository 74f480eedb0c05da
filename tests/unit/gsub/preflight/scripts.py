# ruff: noqa: E501 - a case is a line
"""Batch scripts with the files beside them: some that are broken in a way that a login node can see, some that are well.

Each is a folder: `files` by name, `job.sh` is submitted with `words` ahead of it and `args` behind. `VENV` in a text is the
folder of a virtual environment that has no third-party modules.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    name: str
    script: str
    files: dict[str, str] = field(default_factory=dict)
    at: tuple[str, int] = ("", 0)
    """Where the error stands: file and line."""
    words: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    modes: dict[str, int] = field(default_factory=dict)
    says: str = ""
    alone: bool = False
    """sbatch itself refuses it when it is submitted: only `gsub check` tells it."""


HEAD = "#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n"
TRAIN = {"train.py": "import sys\nprint('training', sys.argv)\n"}
NCCL = {"train.py": "import os\nbackend = 'nccl'\nprint(backend, os.environ.get('LOCAL_RANK'))\n"}
ACTIVATE = "source VENV/bin/activate\n"

BROKEN = (
    Case("folder and script in one list", HEAD + "echo a > log\ncd out && python train.py\n", {"train.py": "", "out/x": ""},
         ("job.sh", 6), says="train.py"),
    Case("if without fi", HEAD + "if [ -d data ]; then\n  echo data\npython train.py\n", TRAIN, ("job.sh", 7), says="end of file"),
    Case("quotation without end", HEAD + 'echo "start\npython train.py\n', TRAIN, ("job.sh", 5), says="looking for"),
    Case("done without do", HEAD + "for i in 1 2 3\n  python train.py $i\ndone\n", TRAIN, ("job.sh", 6), says="not understand"),
    Case("a parenthesis too many", HEAD + "srun python train.py )\n", TRAIN, ("job.sh", 5), says="not understand"),
    Case("dash reads a bash array", "#!/bin/sh\nargs=(--epochs 5)\npython train.py\n", TRAIN, ("job.sh", 2), says="not understand"),
    Case("line ends of DOS", "#!/bin/bash\r\npython train.py\r\n", TRAIN, ("job.sh", 1), says="DOS", alone=True),
    Case("no #!", "python train.py\n", TRAIN, ("job.sh", 1), says="#!", alone=True),
    Case("mistyped #!", "#!/bin/bahs\npython train.py\n", TRAIN, ("job.sh", 1), says="/bin/bahs"),
    Case("no such option", "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --gpus-per-nod3=8\ntrue\n", {}, ("job.sh", 3), says="no option"),
    Case("mistyped script", HEAD + "srun python trian.py --epochs 5\n", TRAIN, ("job.sh", 5), says="trian.py"),
    Case("mistyped script behind tests", HEAD + "if [ -d data ]; then echo data; fi\n[[ -n $X ]] || X=1\nsrun python trian.py\n", TRAIN,
         ("job.sh", 7), says="trian.py"),
    Case("script in another folder", HEAD + "set -euo pipefail\ncd src\npython main.py\n", {"src/train.py": "", "main.py": ""},
         ("job.sh", 7), says="main.py"),
    Case("folder that is not there", HEAD + "set -e\ncd $SLURM_SUBMIT_DIR/scr\npython train.py\n", TRAIN, ("job.sh", 6), says="scr"),
    Case("cd that is not there, and leaves", HEAD + "cd code || exit 1\npython train.py\n", TRAIN, ("job.sh", 5), says="code"),
    Case("sourced file that is not there", HEAD + "set -e\nsource env/bin/activate\npython train.py\n", TRAIN, ("job.sh", 6),
         says="env/bin/activate"),
    Case("module that is not installed", HEAD + ACTIVATE + "srun python train.py\n", {"train.py": "import os\nimport nomodule_x\n"},
         ("train.py", 2), says="nomodule_x"),
    Case("module missing in a module of one's own", HEAD + ACTIVATE + "torchrun --nproc_per_node=8 train.py\n",
         {"train.py": "from lib import model\n", "lib/__init__.py": "", "lib/model.py": "'''Model.'''\n\nimport nomodule_y.nn\n"},
         ("lib/model.py", 3), says="nomodule_y"),
    Case("package imported from where it is not", HEAD + ACTIVATE + "python tools/train.py\n",
         {"tools/train.py": "import helpers\n", "helpers.py": ""}, ("tools/train.py", 1), says="helpers"),
    Case("syntax error in Python", HEAD + ACTIVATE + "srun python train.py\n", {"train.py": "def main(:\n    pass\n"},
         ("train.py", 1), says="compile"),
    Case("unclosed bracket, Python of a module", HEAD + "module load python/3.12\nsrun python train.py\n",
         {"train.py": "x = 1\nlayers = [1,\n2\nprint(layers)\n"}, ("train.py", 2), says="never closed"),
    Case("indentation in a module of one's own", HEAD + ACTIVATE + "python train.py\n",
         {"train.py": "import model\n", "model.py": "def f():\nreturn 1\n"}, ("model.py", 2), says="indented"),
    Case("more processes than GPUs", HEAD.replace("=8", "=4") + "srun torchrun --nnodes=2 --nproc_per_node=8 train.py\n", NCCL,
         ("job.sh", 5), says="8 processes"),
    Case("a step larger than the job", HEAD + "srun -N 4 python train.py\n", TRAIN, ("job.sh", 5), says="4 nodes"),
    Case("output folder that is not there", HEAD + "#SBATCH --output=logs/%j.out\nsrun python train.py\n", TRAIN, ("job.sh", 5),
         says="logs"),
    Case("output folder that may not be written", HEAD + "#SBATCH -o logs/%j.out\npython train.py\n", {**TRAIN, "logs/x": ""},
         ("job.sh", 5), modes={"logs": 0o555}, says="may not write"),
    Case("data that may not be read", HEAD + "srun python train.py --data data/train.csv\n", {**TRAIN, "data/train.csv": "1\n"},
         ("job.sh", 5), modes={"data/train.csv": 0}, says="may not read"),
    Case("program without its bit", HEAD + "./run.sh\n", {"run.sh": "#!/bin/sh\n"}, ("job.sh", 5), modes={"run.sh": 0o644},
         says="may not be run"),
    Case("conda environment that is not there", HEAD + "set -e\nsource HOME/conda/etc/profile.d/conda.sh\nconda activate torhc\npython train.py\n",
         TRAIN, ("job.sh", 7), says="torhc"),
    Case("relative import in a file that is run by itself", HEAD + ACTIVATE + "srun python proj/train.py\n",
         {"proj/__init__.py": "", "proj/util.py": "", "proj/train.py": "import os\nfrom .util import x\n"}, ("proj/train.py", 2), says="relative"),
    Case("relative import that leaves its package", HEAD + ACTIVATE + "srun python -m proj.train\n",
         {"proj/__init__.py": "", "util.py": "", "proj/train.py": "from .. import util\n"}, ("proj/train.py", 1), says="out of its package"),
    Case("relative import of what is not there", HEAD + ACTIVATE + "srun python -m proj.train\n",
         {"proj/__init__.py": "", "proj/train.py": "from .models import net\n", "proj/models/__init__.py": "from . import nett\n",
          "proj/models/net.py": ""}, ("proj/models/__init__.py", 1), says="nett"),
    Case("module of -m that is not there", HEAD + ACTIVATE + "torchrun --nproc_per_node=8 -m proj.trian\n",
         {"proj/__init__.py": "", "proj/train.py": ""}, ("job.sh", 6), says="proj.trian"),
    Case("package of -m without __main__", HEAD + ACTIVATE + "python -m proj\n", {"proj/__init__.py": ""}, ("job.sh", 6),
         says="proj.__main__"),
    Case("module of -m called from another folder", HEAD + ACTIVATE + "cd proj\npython -m proj.train\n",
         {"proj/__init__.py": "", "proj/train.py": ""}, ("job.sh", 7), says="no module proj"),
    Case("name that a module does not have", HEAD + ACTIVATE + "python train.py\n",
         {"train.py": "from lib.model import Net\n", "lib/model.py": "class Nett: pass\n"}, ("train.py", 1), says="Net from lib.model"),
    Case("module missing in a namespace package", HEAD + ACTIVATE + "python train.py\n",
         {"train.py": "import lib.a.b\nfrom lib.a import c\n", "lib/a/b.py": ""}, ("train.py", 2), says="lib.a.c"),
    Case("module missing where it runs as a program", HEAD + ACTIVATE + "python train.py\n",
         {"train.py": "def main(): pass\nif __name__ == '__main__':\n    import nomodule_q\n    main()\n"}, ("train.py", 3), says="nomodule_q"),
    Case("input that is not there", HEAD + "set -e\npython train.py < inputs.txt\n", TRAIN, ("job.sh", 6), says="inputs.txt"),
)  # fmt: skip

RESUME = """\
latest=$(ls -t checkpoints/*.pt 2>/dev/null | head -1)
if [ -n "$latest" ]; then RESUME="--resume $latest"; fi
srun python train.py $RESUME
"""
HERE = """\
cat > conf.yaml <<EOF
model: "it's big
lr: $LR
EOF
python train.py --config conf.yaml
"""
FUNCTIONS = """\
log() { echo "[$(date)] $*"; }
function run_one {
  local seed=$1
  python "$SRC/one.py" --seed "$seed" || return 1
}
log start
for seed in 1 2 3; do run_one $seed & done
wait
"""
CASE = """\
case "$SLURM_ARRAY_TASK_ID" in
  0|1) MODEL=small;;
  *) MODEL=big;;
esac
[[ $MODEL =~ ^(small|big)$ ]] && echo "model $MODEL"
while read -r line; do echo $line; done < <(printf 'a\\nb\\n')
python train.py --model $MODEL --in data/$MODEL.csv
"""
GOOD = (
    Case("plain", HEAD + "srun python train.py\n", TRAIN),
    Case("hard-coded srun -N -n", HEAD + "srun -N 2 -n 16 --ntasks-per-node=8 python train.py\n", TRAIN),
    Case("torchrun on all nodes", HEAD + "srun --ntasks=2 torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d"
         " --rdzv_endpoint=$(hostname):29500 train.py\n", NCCL),
    Case("processes beyond GPUs, with gloo", HEAD + "torchrun --nproc_per_node=16 train.py\n",
         {"train.py": "backend = 'gloo'\n"}),
    Case("processes beyond GPUs, backend chosen", HEAD + "torchrun --nproc_per_node=16 train.py\n",
         {"train.py": "import sys\nb = 'nccl' if sys.argv else 'gloo'\n"}),
    Case("mkdir without -p", HEAD + "mkdir out\ncd out\npython ../train.py > log.txt\n", TRAIN),
    Case("resumes from the newest checkpoint", HEAD + RESUME, TRAIN),
    Case("own dependency", HEAD + "#SBATCH --dependency=afterok:123\nsrun python made_later.py\n", {}),
    Case("own dependency on the command line", HEAD + "set -e\ncd later\npython x.py < y\n", {}, words=("-d", "singleton")),
    Case("begins tomorrow", HEAD + "python tomorrow.py\n", {}, words=("--begin=tomorrow",)),
    Case("here-document", HEAD + HERE, TRAIN),
    Case("functions", HEAD + FUNCTIONS, TRAIN),
    Case("array and case", HEAD + "#SBATCH --array=0-3\n" + CASE, TRAIN),
    Case("loops", HEAD + "for lr in 0.1 0.01; do for seed in {1..3}; do python run_$lr.py --seed $seed; done; done\n"),
    Case("set -u", HEAD + "set -euo pipefail\npython train.py ${EXTRA:-} --out ${OUT:-out}\n", TRAIN),
    Case("modules", HEAD + "module purge\nmodule load gcc cuda/12 pytorch\nsrun python train.py\n",
         {"train.py": "import torch_of_the_module\n"}),
    Case("spack", HEAD + ". /opt/spack/share/spack/setup-env.sh\nspack load py-torch\npython train.py\n",
         {"train.py": "import torch_of_spack\n"}),
    Case("container", HEAD + "apptainer exec --nv image.sif python /workspace/train.py\n"
         "srun --container-image=nvcr.io#x python /w/t.py\n"),
    Case("makes its environment", HEAD + "python3 -m venv $TMPDIR/env\nsource $TMPDIR/env/bin/activate\n"
         "pip install -q nomodule\npython train.py\n", {"train.py": "import nomodule\n"}),
    Case("copies to a local disk", HEAD + "cp -r src /tmp/work-$SLURM_JOB_ID\ncd /tmp/work-$SLURM_JOB_ID\npython main.py\n"),
    Case("works in /scratch", HEAD + "cd /scratch/$USER\npython /scratch/me/train.py --data /local/data/x.csv\n"),
    Case("fetches the program", HEAD + "git clone -q https://example.org/x.git\ncd x\npython train.py\n"),
    Case("optional imports", HEAD + ACTIVATE + "python train.py\n", {"train.py": (
        "from typing import TYPE_CHECKING\ntry:\n    import nomodule_a\nexcept ImportError:\n    nomodule_a = None\n"
        "if TYPE_CHECKING:\n    import nomodule_b\n\ndef f():\n    import nomodule_c\n    return nomodule_c\n")}),
    Case("sys.path of one's own", HEAD + ACTIVATE + "python train.py\n",
         {"train.py": "import sys\nsys.path.append('lib')\nimport mymodule\n", "lib/mymodule.py": ""}),
    Case("PYTHONPATH", HEAD + ACTIVATE + "export PYTHONPATH=$PWD/lib:$PYTHONPATH\npython train.py\n",
         {"train.py": "import mymodule\n", "lib/mymodule.py": ""}),
    Case("a failure that is expected", HEAD + "python nothere.py || true\nif ! python nothere2.py; then echo no; fi\n"
         "python train.py\n", TRAIN),
    Case("an earlier step makes the data", HEAD + "set -e\npython train.py\npython train.py --data made/x.csv < made/y\n",
         TRAIN),
    Case("extended globs", HEAD + "shopt -s extglob\nls !(a|b)\npython train.py\n", TRAIN),
    Case("text behind exit", HEAD + "python train.py\nexit 0\nThis is (not a script\n", TRAIN),
    Case("options commented out", "#!/bin/bash\n##SBATCH --gpus=9\n# SBATCH is read by sbatch - so they say\n"
         "#SBATCH -N 1\npython train.py\n", TRAIN),
    Case("chosen by an argument", HEAD + 'python "$1" "${@:2}"\n', TRAIN, args=("train.py", "--x")),
    Case("goes to where it lies", HEAD + 'if [ ! -f train.py ] && ! cd examples/x; then exit 2; fi\npython train.py\n'),
    Case("its home by a variable", HEAD + 'SCRIPT_DIR=$(cd "$(dirname "$0")" && pwd)\npython $SCRIPT_DIR/main.py\n'),
    Case("background and wait", HEAD + "python a.py &\npython b.py &\nwait\n"),
    Case("output by the job's number", HEAD + "#SBATCH --output=%x/%j.out\npython train.py\n", TRAIN),
    Case("csh", "#!/bin/tcsh\nif (1) then\n echo yes\nendif\n"),
    Case("Python as batch script", "#!/usr/bin/env python3\n#SBATCH -N1\nimport nomodule_z\nprint('x')\n"),
    Case("start-up file", HEAD + "source ~/.bashrc\nconda activate torch\npython train.py\n",
         {"train.py": "import nomodule\n"}),
    Case("an alias of one's own", HEAD + "shopt -s expand_aliases\nalias begin='if true; then'\nbegin\necho; fi\n"),
    Case("only where it is", HEAD + "[ -d env ] && source env/bin/activate\n[ -d sub ] && cd sub\npython train.py\n"
         "[ -f after.py ] && python after.py\n", TRAIN),
    Case("only where it is, with set -e", HEAD + "set -e\ntest -f env.sh && . ./env.sh\ncommand -v foo >/dev/null && python foo.py\n"
         "python train.py\n", TRAIN),
    Case("only where it is not", HEAD + "set -e\n[ -f train.py ] || cd elsewhere\npython train.py\n", TRAIN),
    Case("GPUs of two types", HEAD.replace("--gpus-per-node=8", "--gres=gpu:a100:2,gpu:h100:2")
         + "torchrun --nproc_per_node=4 train.py\n", NCCL),
    Case("quits early", "#!/bin/bash\nexit 0\npython nothere.py\n"),
)  # fmt: skip
