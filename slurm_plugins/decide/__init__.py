"""Deciding what a job gets: pure functions from a request and a snapshot of the cluster to a decision.

`pipeline.decide` is the entry. Nothing here does I/O, reads a clock or keeps state; the service, `gsub explain` and
replay call the same code.
"""
