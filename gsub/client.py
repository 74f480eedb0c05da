"""The client of Slurm as the commands use it: found through the site file, its errors told to a user."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from gsub.errors import FAILED, USAGE, UserError
from gsub.sbatch import clean_environment
from gsub.site import read_site

if TYPE_CHECKING:
    from slurm_plugins.client.protocol import SlurmClient

_JOB: Final = re.compile(r"[1-9][0-9]{0,9}(?:[_+][0-9]{1,10})?")
_DEADLINE: Final = 20.0  # seconds for one command of Slurm; sbatch and squeue give up by themselves after 10


def connect() -> SlurmClient:
    """A client of the cluster at hand.

    A broken site file does not stand in the way of looking at jobs.
    """
    from slurm_plugins.client.commands import CommandClient

    environ = clean_environment()
    site = None
    with contextlib.suppress(UserError):
        site = read_site(environ)
    if site is not None and site.slurm.conf:
        environ.setdefault("SLURM_CONF", site.slurm.conf)
    if site is not None and site.slurm.bin:
        environ["PATH"] = os.pathsep.join((site.slurm.bin, environ.get("PATH", os.defpath)))
    return CommandClient(environ, timeout=_DEADLINE)


def job_id(text: str) -> str:
    """Check what a user typed as a job: `12`, `12_3` (array task), `12+1` (component). Raises UserError."""
    if not _JOB.fullmatch(text):
        raise UserError(
            f"{text!r} is no job id",
            fix="give a number, ARRAY_TASK (12_3) or JOB+COMPONENT (12+1); 'gsub status' lists your jobs",
            exit_code=USAGE,
        )
    return text


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Tell the client's errors to the user."""
    from slurm_plugins.client import errors

    try:
        yield
    except errors.NoSuchJob as error:
        raise UserError(
            str(error), fix="'gsub status --ended' lists your jobs of today, 'sacct' older ones"
        ) from error
    except errors.SlurmNotInstalled as error:
        raise UserError(str(error), fix="use a login node of the cluster", exit_code=USAGE) from error
    except errors.SlurmUnreachable as error:
        here = error.daemon in ("config", "slurm.conf")
        raise UserError(
            str(error),
            fix="use a login node of the cluster, or set SLURM_CONF"
            if here
            else "try again in a few minutes; 'scontrol ping' tells when it answers",
            exit_code=USAGE if here else FAILED,
        ) from error
    except errors.SlurmError as error:
        raise UserError("Slurm did not do it", why=str(error)) from error
