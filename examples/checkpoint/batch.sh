#!/bin/bash
# The same without srun: Slurm signals this shell (B:), which has to hand the signal on.
#
#SBATCH --job-name=resumes
#SBATCH --ntasks=1
#SBATCH --time=00:10:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=resumes-%j.out

if [ ! -f gsub_train.py ] && ! cd examples/checkpoint 2>/dev/null; then
  echo "error: no gsub_train.py in $PWD: submit this job from the folder examples/checkpoint" >&2
  exit 2
fi

# bash runs a trap only between commands, so the training runs in the background and bash waits for it. A trap ends
# `wait` early, with a code above 128: wait on until the training has ended, and end with its exit code.
trap 'kill -USR1 "$training"' USR1
"${PYTHON:-python3}" train.py --folder "checkpoints-$SLURM_JOB_ID" "$@" &
training=$!
while wait "$training"; code=$?; kill -0 "$training" 2>/dev/null; do :; done
exit "$code"
