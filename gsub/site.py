"""The site file as the commands use it: read before anything is asked of Slurm."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gsub.errors import USAGE, UserError

if TYPE_CHECKING:
    from site_configs.site_model import Site

__all__ = ["Slurm", "check_sbatch", "check_site", "read_site", "usable_site"]

_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Slurm:
    """Where the site says that Slurm is; empty strings where it does not say. `site`: all that it says."""

    conf: str = ""
    folder: str = ""
    site: Site | None = None


def check_site(environ: Mapping[str, str]) -> Slurm:
    """Return where Slurm is, for a submission; as on a machine without a site file where that cannot be used."""
    site = usable_site(environ)
    return Slurm() if site is None else Slurm(site.slurm.conf, site.slurm.bin, site)


def check_sbatch(environ: Mapping[str, str]) -> Slurm:
    """Return where Slurm is, for a command that starts `sbatch`: `folder` has one of Slurm's.

    It is "" where that is the first on PATH. Raises UserError where each `sbatch` there runs gsub again.
    """
    from gsub.nesting import find_folder

    slurm = check_site(environ)
    path = {"PATH": slurm.folder} if slurm.folder else environ
    return replace(slurm, folder=find_folder(path) or slurm.folder)


def usable_site(environ: Mapping[str, str]) -> Site | None:
    """Return the site; None, and a warning on standard error, where its file cannot be used.

    Its users cannot mend it, so it stops no submission of theirs: that goes on as plain sbatch.
    """
    try:
        return read_site(environ)
    except UserError as error:
        _warn(error)
    except Exception as error:  # our bug: a submission does not depend on the site file
        _warn(UserError("the site file cannot be read", why=f"{type(error).__name__}: {error}"))
    return None


def read_site(environ: Mapping[str, str]) -> Site | None:
    """Return the site; None on a machine without a site file. Raises UserError for one that cannot be used.

    The topology that it names is not looked at: gsubd decides, over a flat network where that file is missing or bad.
    """
    from site_configs.site import find_site

    path = find_site(environ)
    if path is None:
        return None
    from site_configs.site import SiteError, load_site

    try:
        return load_site(path)
    except SiteError as error:
        said = " = ".join(part for part in (error.key, error.value) if part)
        more = f" ({error.more} more)" if error.more else ""
        raise UserError(
            f"the site file {error.file} cannot be used",
            why=": ".join(part for part in (said, error.problem) if part) + more,
            fix=error.remedy,
            exit_code=USAGE,
        ) from error


def _warn(error: UserError) -> None:
    """Say once that the site file cannot be used. Nobody can be told where there is no standard error."""
    if error.what in _warned:
        return
    _warned.add(error.what)
    told = UserError(
        f"warning: {error.what}: going on without it, as plain sbatch",
        why=error.why,
        fix="tell the site's administrators; 'gsub admin doctor' shows them what to mend",
    )
    with contextlib.suppress(OSError):
        print("\n".join(told.lines()), file=sys.stderr, flush=True)
