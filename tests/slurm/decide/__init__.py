"""Tests of decisions on a real Slurm, with the shim in slurmctld and gsubd beside it."""
