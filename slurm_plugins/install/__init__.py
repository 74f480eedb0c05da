"""gsub on a cluster that must not break: `doctor` reads, `install` changes, `rollback` takes back, `selftest` shows.

What is decided here is decided from what a `Host` shows and is a plan before it is done; see docs/admin.md.
"""
