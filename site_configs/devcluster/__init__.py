"""A real Slurm on one machine, with emulated GPUs."""
