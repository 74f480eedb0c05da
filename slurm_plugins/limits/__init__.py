"""Slurm's limits and billing: read once, as frozen values, for decisions and for what gsub-act sets."""
