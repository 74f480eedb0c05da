"""Build gsub's packages: ``python -m site_configs.packaging TARGET --out FOLDER``. See docs/packages.md."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from site_configs.packaging import deb, rpm
from site_configs.packaging.targets import ARCHITECTURES, TARGETS, PackagingError
from site_configs.packaging.tree import stage
from site_configs.packaging.wheels import bring, build_ours

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_LONG_AGO: Final = 1580601600
"""2020-02-02, as hatchling takes it where nothing says when the sources are of."""


def main(argv: Sequence[str] | None = None) -> int:
    """Build, and print the packages' paths. Exit codes: 0 done, 1 it did not work, 2 wrong usage."""
    asked = _parser().parse_args(argv)
    asked.out.mkdir(parents=True, exist_ok=True)
    epoch = _epoch(asked.source)
    target = TARGETS[asked.target]
    try:
        with tempfile.TemporaryDirectory(prefix="gsub-packages-") as folder:
            work = Path(folder)
            ours = build_ours(asked.source, work / "ours", epoch)
            if asked.wheels:
                kept = asked.out
                others = bring(ours, target, asked.arch, kept, locked=asked.locked)
                made = [ours.path.rename(kept / ours.path.name), *(wheel.path for wheel in others)]
            else:
                others = bring(ours, target, asked.arch, work / "wheels", locked=asked.locked)
                roots = stage(work / "tree", ours, others, target, epoch)
                version = deb.Version(ours.version, asked.revision, target.mark)
                build = deb.build if target.kind == "deb" else rpm.build
                made = [*build(roots, target, version, architecture=asked.arch, out=asked.out, epoch=epoch)]
    except PackagingError as error:
        print(error, file=sys.stderr)
        return 1
    for path in made:
        print(path)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m site_configs.packaging", description=__doc__)
    parser.add_argument("target", choices=TARGETS, help="the release of a distribution to build for")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="the folder for the packages (dist)")
    parser.add_argument("--arch", choices=ARCHITECTURES, default="amd64", help="the hosts' processor (amd64)")
    parser.add_argument(
        "--locked", type=Path, help="wheels.txt of an earlier package: take exactly those wheels"
    )
    parser.add_argument("--revision", type=int, default=1, help="the package's number of this version (1)")
    parser.add_argument("--source", type=Path, default=_REPOSITORY, help="gsub's source folder (this one)")
    parser.add_argument("--wheels", action="store_true", help="only the wheels, for pip install --no-index")
    return parser


def _epoch(source: Path) -> int:
    """Seconds since 1970 that all files of the packages bear: SOURCE_DATE_EPOCH, else when the last commit was made."""
    said = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not said:
        done = subprocess.run(
            ["git", "-C", str(source), "log", "-1", "--format=%ct"], capture_output=True, text=True
        )
        said = done.stdout.strip() if done.returncode == 0 else ""
    return int(said) if said.isdigit() else _LONG_AGO


if __name__ == "__main__":
    sys.exit(main())
