"""Checks on the login node before anything is queued: what would certainly break the job, in about a second.

An error stops the submission, and so must be certain: it would happen on the compute node just so. What may be
otherwise there (local disks, modules, files that earlier lines or jobs make) is a warning at most. No code of the
user's is run: shells read the script with -n, Python compiles and never imports.
"""
