"""Who gets how many CPUs and how much memory beside their GPUs: Synergy's algorithms as pure code."""
