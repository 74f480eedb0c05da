#!/bin/sh
# job.sh SECONDS CODE FOLDER: what a user's job does. Tells what it found of the site, and ends only while the stream flows.
seconds=$1 code=$2 folder=$3
[ -n "$SITE_SCRATCH" ] && [ -O "$SITE_SCRATCH" ] && touch "$SITE_SCRATCH/data" && scratch=scratch || scratch=none
printf '%s %s %s %s %s\n' "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" "$SLURMD_NODENAME" "${SITE_JOB:-none}" "$scratch" \
    >> "$folder/told.$SLURM_JOB_ID.$SLURMD_NODENAME"
[ "${SLURM_RESTART_COUNT:-0}" -eq 0 ] || seconds=0.5
sleep "$seconds"
while [ -e "$folder/pause" ]; do sleep 0.2; done
exit "$code"
