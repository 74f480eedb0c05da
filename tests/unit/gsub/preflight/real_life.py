# ruff: noqa: E501 - a case is a line
"""Batch scripts as people write them, all well: none may be stopped.

Each is a `Case` of `tests.unit.gsub.preflight.scripts`; the shapes are those of clusters' guides and of published training code.
"""

from __future__ import annotations

from tests.unit.gsub.preflight.scripts import ACTIVATE, HEAD, NCCL, TRAIN, Case

ONE = (
    "#!/bin/bash\n#SBATCH -J one\n#SBATCH --gres=gpu:1\n#SBATCH --cpus-per-task=8\n#SBATCH --time=01:00:00\n"
)
MODULES = (
    "#!/bin/bash -l\n#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n#SBATCH -t 1-0\n"
)

RENDEZVOUS = r"""
set -euo pipefail
nodes=( $( scontrol show hostnames "$SLURM_JOB_NODELIST" ) )
nodes_array=($nodes)
head_node=${nodes_array[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
export LOGLEVEL=INFO NCCL_DEBUG=WARN
echo "Node IP: ${head_node_ip}"
srun torchrun \
    --nnodes ${SLURM_NNODES} \
    --nproc_per_node "${SLURM_GPUS_ON_NODE:-8}" \
    --rdzv_id $RANDOM \
    --rdzv_backend c10d \
    --rdzv_endpoint "$head_node_ip:29500" \
    train.py 50 10
"""
MASTER = r"""
export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))
export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))
echo "WORLD_SIZE="$WORLD_SIZE
master_addr=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$master_addr
source ~/.bashrc
conda activate torch
srun python train.py --epochs=10
"""
MEGATRON = r"""
GPUS_PER_NODE=8
NNODES=$SLURM_NNODES
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
CHECKPOINT_PATH=${1:-ckpt}
DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES \
    --rdzv_endpoint $MASTER_ADDR:6000
"
GPT_ARGS="--num-layers 24 --hidden-size 1024 --lr 0.00015"
OUTPUT_ARGS="
    --log-interval 100
    --save-interval 10000
"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
    $GPT_ARGS \
    $OUTPUT_ARGS \
    --save $CHECKPOINT_PATH \
    --load $CHECKPOINT_PATH
"""
SRUN_BASH = r"""
export CMD=" \
    pretrain.py --lr 1e-4 \
    --data-path data/text_document \
    "
clear; srun --jobid $SLURM_JOBID bash -c 'python -m torch.distributed.run --nproc_per_node 8 --nnodes 2 \
    --node_rank $SLURM_PROCID --master_addr $MASTER_ADDR $CMD' 2>&1 | tee -a logs/main_log.txt
"""
SRUN_DOUBLE = r"""
LAUNCHER="accelerate launch --num_processes 16 --num_machines 2 --machine_rank \$SLURM_PROCID"
srun --label bash -c "$LAUNCHER train.py --out out/$SLURM_JOB_ID"
"""
ARRAY = r"""
#SBATCH --array=1-20%4
CONFIG=configs/params.txt
LINE=$(sed -n "${SLURM_ARRAY_TASK_ID}p" $CONFIG)
read -r LR SEED <<< "$LINE"
OUT=results/run_${SLURM_ARRAY_TASK_ID}
mkdir -p "$OUT"
cd $OUT
python ../../train.py --config ../../configs/run_${SLURM_ARRAY_TASK_ID}.yaml --lr $LR --seed $SEED > train.log 2>&1
"""
ARRAY_BASH = r"""
#SBATCH --array=0-2
seeds=(1 2 3)
models=("resnet" "vit"
        "mlp")
seed=${seeds[$SLURM_ARRAY_TASK_ID]}
for m in "${models[@]}"; do
    python train.py --seed "$seed" --model "$m" --data data/${m}_${seed}.csv
done
"""
UNPACK = r"""
set -e
mkdir -p $SLURM_TMPDIR/data
tar xf ~/projects/def-ada/data.tar -C $SLURM_TMPDIR/data
virtualenv --no-download $SLURM_TMPDIR/env
source $SLURM_TMPDIR/env/bin/activate
pip install --no-index --upgrade pip
pip install --no-index -r requirements.txt
python train.py --data $SLURM_TMPDIR/data
cp -r out ~/projects/out-$SLURM_JOB_ID
"""
SCRATCH = r"""
WORK=/scratch/$USER/$SLURM_JOB_ID
cleanup() {
    rsync -a "$WORK/" "$SLURM_SUBMIT_DIR/results/" || true
    rm -rf "$WORK"
}
trap cleanup EXIT
trap 'echo signal; kill -TERM $PID; wait $PID' USR1 TERM
mkdir -p "$WORK" && cd "$WORK"
cp $SLURM_SUBMIT_DIR/train.py .
python train.py &
PID=$!
wait $PID
"""
REQUEUE = r"""
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
handler() {
  echo "caught at $(date)"
  touch requeue.flag
  scontrol requeue ${SLURM_JOB_ID}
}
trap handler USR1
if [[ -f checkpoint/last.ckpt ]]; then
  ARGS="--resume checkpoint/last.ckpt"
else
  ARGS=""
fi
srun python train.py ${ARGS} & wait
"""
GENERATED = r"""
set -e
cat << 'PY' > generated.py
import made_at_runtime  # not here
print("it's fine")
PY
cat > run.yaml <<-EOF
	lr: ${LR:-0.1}
	path: "$(pwd)/data"
	EOF
python generated.py --config run.yaml
"""
GENERATED_LATER = r"""
set -euo pipefail
python make_config.py --out conf/final.yaml
python train.py --config conf/final.yaml --data prepared/train.bin < conf/answers.txt
"""
SUBSHELL = r"""
set -e
(cd src && python build.py)
(
  cd data
  ./fetch.sh
)
pushd tools > /dev/null
python convert.py
popd > /dev/null
python train.py
"""
WAITING = r"""
until [ -f data.ready ]; do
  sleep 10
done
while ! nc -z localhost 6379; do sleep 1; done
n=0
while (( n < 3 )); do
  if python train.py; then break; fi
  n=$((n+1))
done
[[ $n -lt 3 ]] || { echo "failed" >&2; exit 1; }
"""
RAY = r"""
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=($nodes)
head_node=${nodes_array[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
if [[ "$head_node_ip" == *" "* ]]; then
IFS=' ' read -ra ADDR <<<"$head_node_ip"
if [[ ${#ADDR[0]} -gt 16 ]]; then
  head_node_ip=${ADDR[1]}
else
  head_node_ip=${ADDR[0]}
fi
fi
port=6379
ip_head=$head_node_ip:$port
export ip_head
srun --nodes=1 --ntasks=1 -w "$head_node" \
    ray start --head --node-ip-address="$head_node_ip" --port=$port \
    --num-cpus "${SLURM_CPUS_PER_TASK}" --num-gpus "${SLURM_GPUS_PER_TASK}" --block &
sleep 10
worker_num=$((SLURM_JOB_NUM_NODES - 1))
for ((i = 1; i <= worker_num; i++)); do
    node_i=${nodes_array[$i]}
    srun --nodes=1 --ntasks=1 -w "$node_i" \
        ray start --address "$ip_head" --block &
    sleep 5
done
python -u train.py "$SLURM_CPUS_PER_TASK"
"""
CONTAINER = r"""
module load apptainer 2>/dev/null || true
IMAGE=$HOME/images/pytorch.sif
srun apptainer exec --nv --bind /data:/data,$PWD:/workspace --pwd /workspace \
    "$IMAGE" \
    bash -c "cd /workspace/inside && python -m inside.train --data /data/imagenet"
singularity run --nv docker://pytorch/pytorch:latest python /opt/x/train.py
"""
PYXIS = r"""
srun --container-image=nvcr.io#nvidia/pytorch:24.01-py3 --container-mounts=/data:/data,$PWD:/code \
     --container-workdir=/code \
     python /code/inside.py --data /data/in_there --config /code/nothere.yaml
"""
ENROOT = r"""
enroot create --name pt image.sqsh
enroot start --rw --mount .:/data pt python /data/x.py
docker run --rm --gpus all -v $PWD:/w img python /w/y.py
podman run --rm img torchrun --nproc_per_node=64 /w/z.py
"""
PYTHON_C = r"""
set -e
python -c 'import torch; print(torch.__version__, "(it is)")'
python -c "
import nomodule
print('x')
for i in range(3):
    print(i)
"
python - <<'EOF'
import sys
print(sys.argv)
if True:
    print("unbalanced ( and ' here")
EOF
python - train.py --data nothere <<END
x
END
python3 <(echo 'print(1)')
"""
CONDA_HOOK = r"""
set -eo pipefail
eval "$(conda shell.bash hook)"
conda activate not-known-here
which python
python train.py
"""
CONDA_RUN = r"""
conda run -n other --no-capture-output python train_in_other.py
mamba activate other
micromamba run -n x python y_in_x.py
"""
CONDA_INITIALIZE = r"""
# >>> conda initialize >>>
__conda_setup="$('/opt/conda/bin/conda' 'shell.bash' 'hook' 2> /dev/null)"
if [ $? -eq 0 ]; then
    eval "$__conda_setup"
else
    if [ -f "/opt/conda/etc/profile.d/conda.sh" ]; then
        . "/opt/conda/etc/profile.d/conda.sh"
    else
        export PATH="/opt/conda/bin:$PATH"
    fi
fi
unset __conda_setup
# <<< conda initialize <<<
conda activate torch
python train.py
"""
UV = r"""
set -e
export UV_CACHE_DIR=$SCRATCH/uv
uv sync --frozen
uv run python -m project.train --config-name=big trainer.devices=8 data.path=/data/x
.venv/bin/python train.py
poetry run python train.py
pipenv run python nothere.py
"""
SPACK = r"""
. /opt/spack/share/spack/setup-env.sh
spack env activate -d .
spack load --first py-torch@2.1 ^cuda@12
mpirun -np 8 --map-by ppr:4:node python train.py
"""
MODULE_KINDS = r"""
module --force purge
module use $HOME/modules /apps/modules/all
module load GCCcore/11.3.0 Python/3.10.4-GCCcore-11.3.0
ml PyTorch/1.12.0-foss-2022a-CUDA-11.7.0
ml -foss +other
module list 2>&1
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
srun --cpu-bind=cores --accel-bind=gn python -u train.py
"""
MULTI_SRUN = r"""
srun --exclusive -N1 -n1 --gpus=1 python train.py --fold 0 &> fold0.log &
srun --exclusive -N1 -n1 --gpus=1 python train.py --fold 1 &> fold1.log &
wait
srun -l --multi-prog multi.conf
srun --het-group=0 ./cpu_part : --het-group=1 python gpu_part.py
"""
DEEPSPEED = r"""
cat > hostfile.txt < /dev/null
for h in $(scontrol show hostnames $SLURM_JOB_NODELIST); do echo "$h slots=8" >> hostfile.txt; done
deepspeed --hostfile hostfile.txt --num_nodes 2 --num_gpus 8 --master_port=29501 train.py \
    --deepspeed --deepspeed_config ds_config.json
"""
ACCELERATE = r"""
export ACCELERATE_CONFIG=accelerate.yaml
srun --ntasks-per-node=1 accelerate launch --config_file $ACCELERATE_CONFIG --multi_gpu --num_machines $SLURM_NNODES \
   --num_processes $((8*SLURM_NNODES)) --machine_rank $SLURM_NODEID --main_process_ip "$(hostname)" train.py --fp16
"""
PARALLEL = r"""
parallel -j 8 'CUDA_VISIBLE_DEVICES=$(({%} - 1)) python train.py --seed {}' ::: $(seq 1 64)
seq 1 8 | xargs -P 8 -I{} python work_{}.py
find . -name '*.cfg' -exec python each.py {} \;
ls data/*.csv | while read f; do python one.py "$f"; done
"""
QUOTING = r"""
NAME='it'\''s a "name"'
echo "cost: \$5 `date` $(echo "nested $(echo 'deep')")" # it's a comment
printf '%s\n' "${NAME//\"/\\\"}" "${NAME^^}" "${#NAME}" "${NAME:0:3}" "${PATH##*:}"
A=$'tab\t'; B=$"text"
ARGS=(--lr 0.1 # the rate
      --epochs "5")
python train.py "${ARGS[@]}" --name="$NAME" ${DEBUG:+--debug} ${EXTRA-} 'a;b' a\;b
"""
COMMENTED_LIST = r"""
FILES=$(
  # the newest ones
  ls -t data | head -3
)
python train.py $FILES
diff <(sort a.txt) <(sort b.txt) || true
if [ "$(cat <<X
it's
X
)" = y ]; then python never.py; fi
"""
ENV_FILE = r"""
set -a
[ -f .env ] && . ./.env
set +a
source ./scripts/common.sh
cd "$PROJECT_ROOT"
python tools/train.py --data "$DATA_ROOT"/train
"""
GIT = r"""
set -e
REPO=$(git rev-parse --show-toplevel)
git worktree add ../run-$SLURM_JOB_ID
cd ../run-$SLURM_JOB_ID
python run_there.py
make -j8 -C build all
./build/app --input inputs/made.txt
"""
SELECT_CASE = r"""
case $1 in
  train) shift; python train.py "$@" ;;
  eval|test)
    python eval.py "$@"
    ;;
  "") echo usage; exit 2 ;;
  *[!0-9]*) python other.py ;;
esac
"""
USAGE = r"""
usage() { cat <<EOF
usage: $0 [-c CONFIG] (see 'README')
EOF
exit 1; }
while getopts ":c:h" opt; do
  case ${opt} in
    c ) CONFIG=$OPTARG ;;
    h ) usage ;;
    \? ) usage ;;
  esac
done
shift $((OPTIND -1))
python train.py --config ${CONFIG:=conf/default.yaml}
"""
TORCH_ENV = r"""
export OMP_NUM_THREADS=1
CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc_per_node=4 --master_port=29500 train.py &
CUDA_VISIBLE_DEVICES=4,5,6,7 torchrun --nproc_per_node=4 --master_port=29501 train.py &
wait
"""
WRITES_FIRST = r"""
set -euo pipefail
OUT=$SLURM_SUBMIT_DIR/out
install -d $OUT/logs
python train.py 2>&1 | tee $OUT/logs/train.log
tar czf $OUT/all.tgz $OUT/logs
cat $OUT/logs/train.log >> all.log
mv $OUT/model.pt models/
python export.py --ckpt models/model.pt
"""
SSH = r"""
for node in $(scontrol show hostnames); do
  ssh $node "cd $PWD && python worker.py --data /local/x" &
done
pdsh -w $SLURM_NODELIST 'python /local/y.py'
wait
"""
OLDPWD = r"""
set -eu
cd src
python main.py
cd -
cd "$OLDPWD" && cd ..
python train.py
mkdir -p runs/a/b runs/{x,y}
cd runs/a/b
cp ../../../train.py x.py
python x.py > ../log.txt
ln -sfn b ../latest
cd ../latest && python x.py
"""
CHAINED = r"""
set -e
mkdir -p work && cd work && python ../train.py --out . && echo ok || exit 1
{ time python ../train.py ; } 2> time.txt
! grep -q ERROR time.txt
exec 3>&1 > >(tee all.log) 2>&1
python ../train.py
[[ -z "${SKIP:-}" ]] || exit 0
exec python ../train.py
python nothere.py
"""
LOCAL_FUNCTION = r"""
die() { echo "$*" >&2; exit 1; }
run() { echo "+ $*"; "$@"; }
retry() { local n=0; until "$@"; do n=$((n+1)); [ $n -ge 3 ] && return 1; sleep 5; done; }
run python train.py
retry python flaky.py || die "no luck"
[ $# -ge 0 ] || die "usage"
(set -x; python train.py)
coproc python helper.py
timeout -k 10 1h python train.py; rc=$?
if [ $rc -eq 124 ]; then sbatch job.sh; fi
exit $rc
"""
SHIFTS = r"""
set -euo pipefail
if [ $# -lt 2 ]; then echo "usage: $0 MODE SCRIPT"; exit 64; fi
MODE=$1; shift
python "$1" --mode $MODE "${@:2}"
while [ $# -gt 0 ]; do case "$1" in -x) X=$2; shift 2;; *) shift;; esac; done
python "${X:-train.py}"
"""
STAGES = r"""
stage=0; stop_stage=100
. ./path.sh
. utils/parse_options.sh || exit 1
if [ ${stage} -le 1 ] && [ ${stop_stage} -ge 1 ]; then
  local/prepare.sh
fi
if [ ${stage} -le 2 ]; then python bin/train.py --config conf/train.yaml --train_data data/train.list; fi
"""
CLONES = r"""
set -e
[ -d repo ] || git clone -q https://example.org/x.git repo
cd repo
[ -e data ] || ln -s ../data data
python main.py --data data/train.csv
if [ -z "${VIRTUAL_ENV:-}" ]; then source env/bin/activate; fi
if [ "$USER" = ada ]; then DATA=../a; else DATA=../b; fi
python train.py --data $DATA --config configs/$USER.yaml
"""
DONE = r"""
set -euo pipefail
if [ -f results/done.flag ]; then
    echo "nothing left to do"
    exit 0
fi
python only_if_not_done.py
"""
CHECKS_FIRST = r"""
if [ $# -gt 3 ]; then echo "usage: $0 X"; exit 1; fi
[ -n "$SLURM_JOB_ID" ] || exit 1
[[ -d data ]] || mkdir data
[ -f data/x.csv ] || wget -q -O data/x.csv https://example.org/x.csv
if [ ! -d env ]; then python3 -m venv env && ./env/bin/pip install -q nomodule; fi
source env/bin/activate
if [ "${DEBUG:-0}" = 1 ]; then set -x; fi
python train.py --data data/x.csv
if [ $? -ne 0 ]; then exit 1; fi
if test -e out.pt; then python evaluate.py out.pt; fi
"""
WAITS = r"""
set -e
while [ ! -f from_elsewhere.py ]; do sleep 30; done
python from_elsewhere.py
"""
RELATIVE = {
    "proj/__init__.py": "",
    "proj/train.py": "from . import util\nfrom .models import net\nfrom .models.net import Net\n"
    "from proj.data.read import rows\nimport proj.data\n",
    "proj/util.py": "",
    "proj/models/__init__.py": "from .net import Net\nfrom ..util import *\nfrom .. import util\n",
    "proj/models/net.py": "from __future__ import annotations\nfrom . import other\nclass Net: pass\n",
    "proj/models/other.py": "try:\n    from .fast import x\nexcept ImportError:\n    x = None\n",
    "proj/data/read.py": "def rows():\n    from .later import y\n    return y\n",
    "proj/__main__.py": "from .train import rows\n",
}
NAMES = {
    "train.py": "from lib import version, Loader, lazy\nfrom lib.m import a, b, c, d, e, f, g, __name__, __doc__\n"
    "from lib.star import anything\nfrom lib.dynamic import whatever\n",
    "lib/__init__.py": "version = '1'\nclass Loader: pass\ndef __getattr__(name):\n    return name\n",
    "lib/m.py": "import os as a\nfor b in (1, 2): pass\nwith open(__file__) as c: d = 1\ntry:\n    import e\n"
    "except ImportError:\n    e = None\nif a:\n    f, (g, *rest) = 1, (2, 3)\n",
    "lib/star.py": "from os.path import *\n",
    "lib/dynamic.py": "globals().update({'whatever': 1})\n",
}

REAL_LIFE = (
    Case("torchrun with a rendezvous on the first node", HEAD + RENDEZVOUS, NCCL),
    Case("master address and world size by Slurm", HEAD + "#SBATCH --ntasks-per-node=8\n" + MASTER, TRAIN),
    Case("Megatron-LM", HEAD + MEGATRON, {"pretrain_gpt.py": NCCL["train.py"]}),
    Case("srun bash -c in single quotes", HEAD + SRUN_BASH, {"pretrain.py": "", "logs/x": ""}),
    Case("srun bash -c in double quotes", HEAD + SRUN_DOUBLE, TRAIN),
    Case("array with a line of parameters each", ONE + ARRAY, {**TRAIN, "configs/params.txt": "1 2\n"}),
    Case("array over a bash array", ONE + ARRAY_BASH, TRAIN),
    Case("unpacks to the local disk", ONE + UNPACK, {"train.py": "import nomodule\n", "requirements.txt": ""}),
    Case("works in scratch and cleans up", ONE + SCRATCH, TRAIN),
    Case("requeues itself by a signal", ONE + REQUEUE, TRAIN),
    Case("here-documents that make its files", ONE + GENERATED),
    Case("a step makes the next one's files", ONE + GENERATED_LATER, {"make_config.py": "", **TRAIN}),
    Case("subshells and pushd", ONE + SUBSHELL, {"src/build.py": "", "data/fetch.sh": "", "tools/convert.py": "", **TRAIN}),
    Case("waits and tries again", ONE + WAITING, TRAIN),
    Case("Ray on all nodes", HEAD + RAY, TRAIN),
    Case("apptainer", HEAD + CONTAINER),
    Case("pyxis", HEAD + PYXIS),
    Case("enroot, docker, podman", HEAD + ENROOT),
    Case("python -c and python from standard input", ONE + PYTHON_C),
    Case("conda's hook", ONE + CONDA_HOOK, {"train.py": "import nomodule\n"}),
    Case("conda run", ONE + CONDA_RUN),
    Case("what conda init writes", ONE + CONDA_INITIALIZE, {"train.py": "import nomodule\n"}),
    Case("uv, poetry, pipenv", ONE + UV, {"train.py": "import nomodule\n"}),
    Case("spack environment and mpirun", MODULES + SPACK, {"train.py": "import nomodule\n"}),
    Case("modules of all kinds", MODULES + MODULE_KINDS, {"train.py": "import nomodule\n"}),
    Case("steps side by side", HEAD + MULTI_SRUN, {"multi.conf": "", **TRAIN}),
    Case("deepspeed with a hostfile", HEAD + DEEPSPEED, {**TRAIN, "ds_config.json": "{}"}),
    Case("accelerate with a config", HEAD + ACCELERATE, {**TRAIN, "accelerate.yaml": "num_processes: 16\n"}),
    Case("GNU parallel, xargs, find", ONE + PARALLEL, TRAIN),
    Case("quotations of all kinds", ONE + QUOTING, TRAIN),
    Case("substitutions with comments and here-documents", ONE + COMMENTED_LIST, TRAIN),
    Case("variables from a file", ONE + ENV_FILE, {"scripts/common.sh": "PROJECT_ROOT=$PWD/x\n"}),
    Case("git worktree and make", ONE + GIT),
    Case("a verb as first argument", ONE + SELECT_CASE, TRAIN, args=("train", "--x")),
    Case("getopts", ONE + USAGE, {**TRAIN, "conf/default.yaml": ""}),
    Case("two torchruns, half of the GPUs each", HEAD.replace("--nodes=2", "--nodes=1") + TORCH_ENV, NCCL),
    Case("makes its folders as it goes", ONE + WRITES_FIRST, {**TRAIN, "models/x": ""}),
    Case("ssh to each node", HEAD + SSH),
    Case("back and forth between folders", ONE + OLDPWD, {"src/main.py": "", **TRAIN}),
    Case("lists, groups and redirections of the shell itself", ONE + CHAINED, TRAIN),
    Case("functions that run what they are given", ONE + LOCAL_FUNCTION, TRAIN),
    Case("shifts its arguments", ONE + SHIFTS, TRAIN, args=("fast", "train.py", "more")),
    Case("stages of a recipe", ONE + STAGES, {"path.sh": "", "utils/parse_options.sh": ""}),
    Case("clones where it is not there", ONE + CLONES),
    Case("done already", ONE + DONE, {"results/done.flag": ""}),
    Case("looks before it goes on", ONE + CHECKS_FIRST, {"train.py": "import nomodule\n"}),
    Case("waits for a file of another's", ONE + WAITS),
    Case("python -m of a package", ONE + ACTIVATE + "python -m proj.train\npython -m proj --x\npython -m proj.data.read\n", RELATIVE),
    Case("torchrun -m", HEAD + ACTIVATE + "torchrun --nproc_per_node 8 -m proj.train\n", RELATIVE),
    Case("python -m of what is installed", ONE + ACTIVATE + "python -m http.server\npython -m venv x\npython -m json.tool --help\n"),
    Case("python -m in a folder", ONE + ACTIVATE + "set -e\ncd code\npython -m proj.train\n",
         {f"code/{name}": text for name, text in RELATIVE.items()}),
    Case("more modules than are looked at", ONE + ACTIVATE + "python train.py\n",
         {"train.py": "".join(f"import m{n}\n" for n in range(99)) + "import nomodule\n", "m98.py": "import sys\nsys.path.append('x')\n",
          **{f"m{n}.py": "" for n in range(98)}}),
    Case("names out of modules", ONE + ACTIVATE + "python train.py\n", NAMES),
)  # fmt: skip
