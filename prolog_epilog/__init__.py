"""On each compute node: what Slurm's prolog and epilog call, the agent gsub-noded, and health checks."""
