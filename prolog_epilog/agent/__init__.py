"""gsub-noded: one process a node that knows its jobs, samples its GPUs, and delivers records."""
