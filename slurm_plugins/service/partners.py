"""The two that gsubd works with: gsub-act, which carries out what is decided, and the shim, which asks.

Neither tells gsubd when it is gone. So gsubd looks, for its metrics and its log: what is wanted and dead must be seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from profiler.logs import Troubles
from site_configs.site_model import Site
from slurm_plugins.act.ask import does_answer, is_wanted
from slurm_plugins.install.job_submit import shim_folder
from slurm_plugins.install.layout import SHIM, part
from slurm_plugins.service.slurm_config import conf_path

__all__ = ["EVERY", "Partners", "find_fault"]

_log = logging.getLogger("gsubd")

EVERY: Final = 10.0
"""Seconds from one look to the next."""
_MOST: Final = 1 << 20


class Partners:
    """Looks again and again; `run` ends only by being cancelled.

    Parameters
    ----------
    site: the site file in force.
    act: where gsub-act is asked; None: nobody asks it.
    env: gsubd's environment.
    """

    def __init__(self, site: Callable[[], Site], act: Path | None, env: Mapping[str, str]) -> None:
        self._site = site
        self._act = act
        self._env = env
        self._troubles = Troubles(_log)
        self.act_up: float | None = None
        """1 while gsub-act answers, 0 while it should; None where it is not wanted."""
        self.shim_ok: float | None = None
        """1 while the shim that job_submit.lua names is whole, 0 while it is not; None where none is named."""

    async def run(self) -> None:
        """Look, wait, again."""
        while True:
            try:
                await asyncio.to_thread(self.look)
            except Exception:
                # our bug: it must not end the looking for good
                _log.exception("a fault while looking after gsub-act and the shim")
            await asyncio.sleep(EVERY)

    def look(self) -> None:
        """Look once; it takes two seconds at most."""
        site, act = self._site(), self._act
        if act is None or not is_wanted(site):
            self.act_up = None
        else:
            self.act_up = float(does_answer(act))
        self._troubles.say(
            "gsub-act is wanted and does not answer, no failed job is tried again",
            f"nobody at {act}" if self.act_up == 0 else "",
        )
        fault = find_fault(conf_path(self._env, site.slurm.conf).parent / "job_submit.lua")
        self.shim_ok = None if fault is None else float(not fault)
        self._troubles.say("the shim is broken, jobs will pass undecided", fault or "")


def find_fault(job_submit: Path) -> str | None:
    """Return what is wrong with the shim that a job_submit.lua names; "" where it is whole, None where it names none.

    A file that is cut short is one with which ours begins; another release's is not judged.
    """
    try:
        with job_submit.open("rb") as file:
            folder = shim_folder(file.read(_MOST))
    except OSError:
        return None  # not there, or not for gsubd's user to read
    if folder is None:
        return None
    for name in SHIM:
        try:
            with (folder / name).open("rb") as file:
                found = file.read(_MOST)
        except OSError as error:
            return f"{folder / name}: {error.strerror or error}"
        ours = part("slurm_plugins", f"lua/{name}")
        if len(found) < len(ours) and ours.startswith(found):
            return f"{folder / name} is cut short"
    return ""
