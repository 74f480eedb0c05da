"""A job submitted again by its own user: what was submitted, read back from Slurm, and what is changed about it."""
