"""gsubd: answers the shim, watches Slurm, writes down what it decided. Run as ``gsubd`` (docs/service.md).

Everything that a submission waits for is in `desk`: one line in, one line out, no I/O. The rest feeds it from
behind (`polling`, `site_watch`) or carries away what it leaves (`records`, `joins`, `metrics`).
"""
