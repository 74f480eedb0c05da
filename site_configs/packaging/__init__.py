"""gsub's packages: .deb and .rpm with a virtual environment in /opt/gsub, or a folder of wheels; see docs/packages.md.

The wheels are chosen when a package is built, and their hashes are written into it: a host needs no package index.
"""
