"""What packages are built for: a distribution's release, its Python, and the machines that run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ARCHITECTURES", "TARGETS", "PackagingError", "Target"]


class PackagingError(Exception):
    """A package cannot be built; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """A release of a distribution.

    Parameters
    ----------
    name: as the distribution calls it.
    kind: of package.
    python: its /usr/bin/python3.X, which the environment in /opt/gsub borrows; the wheels are chosen for it.
    glibc: its minor version (of 2.x), the newest that a wheel may want.
    mark: what its packages have after the version, so that those of a newer release count as newer.
    """

    name: str
    kind: str
    python: tuple[int, int]
    glibc: int
    mark: str

    @property
    def interpreter(self) -> str:
        """`python3.11`."""
        return f"python{self.python[0]}.{self.python[1]}"

    def platforms(self, architecture: str) -> tuple[str, ...]:
        """The platform tags that pip may take, the newest first (PEP 600), then the older names of some of them."""
        machine = ARCHITECTURES[architecture]
        return (
            *(f"manylinux_2_{minor}_{machine}" for minor in range(self.glibc, 4, -1)),
            f"manylinux2014_{machine}",
            f"manylinux2010_{machine}",
            f"manylinux1_{machine}",
        )


TARGETS: Final = {
    target.name: target
    for target in (
        Target("bookworm", "deb", (3, 11), 36, "deb12"),
        Target("trixie", "deb", (3, 13), 41, "deb13"),
        Target("el9", "rpm", (3, 11), 34, "el9"),
        Target("el10", "rpm", (3, 12), 39, "el10"),
    )
}
ARCHITECTURES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
"""As Debian calls a machine, and as Python and RPM do."""
