"""Talking to Slurm: one protocol, several back ends."""
