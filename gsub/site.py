"""The site file as the commands use it: read before anything is asked of Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gsub.errors import USAGE, UserError

if TYPE_CHECKING:
    from site_configs.site_model import Site

_SUBMITTED: Final = "; nothing was submitted"
_MEANWHILE: Final = " Meanwhile plain 'sbatch' works."


@dataclass(frozen=True, slots=True)
class Slurm:
    """Where the site says that Slurm is; empty strings where it does not say. `site`: all that it says."""

    conf: str = ""
    folder: str = ""
    site: Site | None = None


def check_site(environ: Mapping[str, str]) -> Slurm:
    """Read the site file and the topology that it names; a machine without one is fine.

    Raises UserError for a file that cannot be used: a site half understood would decide half rightly.
    """
    site = read_site(environ)
    return Slurm() if site is None else Slurm(site.slurm.conf, site.slurm.bin, site)


def read_site(environ: Mapping[str, str], *, submits: bool = True) -> Site | None:
    """The site; None on a machine without a site file. Raises UserError as `check_site` does.

    `submits`: a submission waits for it, and the error says what became of that.
    """
    from site_configs.site import find_site

    path = find_site(environ)
    if path is None:
        return None
    from site_configs.site import SiteError, load_site
    from site_configs.topology import TopologyError

    submitted, meanwhile = (_SUBMITTED, _MEANWHILE) if submits else ("", "")
    try:
        site = load_site(path)
        if site.topology.file:
            site.topologies()
    except SiteError as error:
        said = " = ".join(part for part in (error.key, error.value) if part)
        more = f" ({error.more} more)" if error.more else ""
        raise UserError(
            f"the site file {error.file} cannot be used{submitted}",
            why=": ".join(part for part in (said, error.problem) if part) + more,
            fix=f"{error.remedy}{meanwhile}",
            exit_code=USAGE,
        ) from error
    except TopologyError as error:
        where = f"{error.file}:{error.line}" if error.line else error.file
        raise UserError(
            f"the topology {where}, named in the site file {path}, cannot be used{submitted}",
            why=f"{error.problem}: {error.text}" if error.text else error.problem,
            fix=f"{error.remedy}{meanwhile}",
            exit_code=USAGE,
        ) from error
    return site
