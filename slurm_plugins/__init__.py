"""Beside slurmctld: talking to Slurm, deciding, serving."""
