#!/bin/bash
# Runs a launcher of ranks, and hands SIGUSR1 on to the ranks: the launcher itself would die of it.
#
#   srun --ntasks-per-node=1 hand_on.sh torchrun --nproc-per-node=8 ... train.py
#
# Slurm warns the processes that srun has started. Where those are the ranks nothing of this is needed.

trap 'pkill -USR1 -P "$launcher"' USR1
"$@" &
launcher=$!
# A trap ends `wait` early, with a code above 128: wait on until the launcher has ended.
while wait "$launcher"; code=$?; kill -0 "$launcher" 2>/dev/null; do :; done
exit "$code"
