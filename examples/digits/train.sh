#!/bin/bash
# Train a digit classifier on 2 nodes x 2 GPUs, one rank a GPU.
#
#   gsub train.sh [--epochs 20 ...]        or plain: sbatch train.sh [--epochs 20 ...]
#
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=00:05:00
#SBATCH --output=digits-%j.out

# Slurm runs a copy of this script, so $0 does not lead to train.py: the folder it was submitted from does.
if [ ! -f train.py ] && ! cd examples/digits 2>/dev/null; then
  echo "error: no train.py in $PWD: submit this job from the folder examples/digits" >&2
  exit 2
fi

# Four ranks fill four GPUs; a matrix library that starts a thread per core in each would only get in their way.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# One process a GPU. Since Slurm 22.05 srun does not take --cpus-per-task over from the job by itself.
# When a rank fails, --kill-on-bad-exit ends the others, who can only wait for it.
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=1 "${PYTHON:-python3}" train.py "$@"
