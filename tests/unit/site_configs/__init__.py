"""From the hooks to the store, on a real Slurm, and the installation that makes it so."""
