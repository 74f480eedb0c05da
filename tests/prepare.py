"""Install what the tests need of Debian's packages, all at once: `python3 -m tests.prepare`.

Root's first `make test` runs it beside pip, with the machine's Python: only the standard library is imported. Without
root or a network it prints what is missing and ends well; the tests that need it are then left out by name.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from site_configs.devcluster.rootfs import (
    ACCOUNTING_PACKAGES,
    SLURM_PACKAGES,
    install_packages,
    list_missing_packages,
)
from site_configs.devcluster.spec import DevClusterError, cache_home

PACKAGES: Final = (
    *SLURM_PACKAGES,
    *ACCOUNTING_PACKAGES,
    "gcc",
    "libc6-dev",
    "lua5.1",
    "lua5.2",
    "lua5.3",
    "lua5.4",
    "postgresql",
    "chromium",
    "fonts-dejavu-core",
    "busybox",
    "openssl",
    "mmdebstrap",
)


def main() -> int:
    """Install what is missing, or print it."""
    missing = list_missing_packages(PACKAGES)
    if not missing:
        return 0
    if os.geteuid() != 0:
        print(f"some tests are left out here; with root's help they run: apt-get install {' '.join(missing)}")
        return 0
    try:
        cache_home().mkdir(parents=True, exist_ok=True)
        install_packages(missing, say=print)
    except DevClusterError as error:
        print(f"some tests are left out here: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
