"""Wicked questions for the service and wicked answers for the shim: see ``python -m tests.fuzz --help``."""
