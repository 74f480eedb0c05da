#!/bin/bash
# A run that is longer than its time limit, in as many attempts as it takes.
#
#   gsub train.sh [--steps 2000 ...]        or plain: sbatch train.sh [--steps 2000 ...]
#
#SBATCH --job-name=resumes
#SBATCH --ntasks=1
#SBATCH --time=00:10:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=resumes-%j.out

# Slurm runs a copy of this script, so $0 does not lead to train.py: the folder it was submitted from does.
if [ ! -f gsub_train.py ] && ! cd examples/checkpoint 2>/dev/null; then
  echo "error: no gsub_train.py in $PWD: submit this job from the folder examples/checkpoint" >&2
  exit 2
fi

# SIGUSR1 goes to what srun starts. srun is the last command: the job ends with the exit code of train.py.
srun "${PYTHON:-python3}" train.py --folder "checkpoints-$SLURM_JOB_ID" "$@"
