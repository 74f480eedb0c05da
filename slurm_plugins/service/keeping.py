"""The keeper kept alive: gsubd's child that collects records and answers the API (`slurm_plugins.service.keeper`).

It is started again when it dies, hangs (no beat on its pipe) or the site file has changed. Decisions do without it:
it has its own memory, and stands back for them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from profiler.logs import one_line
from slurm_plugins.service.child import child_environment, python
from slurm_plugins.service.site_watch import Taken
from slurm_plugins.service.within import is_set_within, within

__all__ = ["Keep", "Keeping"]

_log = logging.getLogger("gsubd")

_NICER: Final = 5
_SILENT: Final = 60.0
"""Seconds without a beat after which it hangs; it beats every 2 s, and a loaded machine is no reason."""
_FIRST: Final = 1.0
_LONGEST: Final = 60.0
"""Seconds to the next start: doubled each time, and short again after it ran for longer than that."""
_END: Final = 3.0
"""Seconds in which it finishes what is being written, once its pipe is closed."""
_LINE: Final = 1024
_PACKAGES: Final = {
    "sqlite": ("sqlalchemy", "alembic", "starlette", "uvicorn"),
    "postgresql": ("sqlalchemy", "alembic", "starlette", "uvicorn", "psycopg"),
}


@dataclass(frozen=True, slots=True)
class Keep:
    """How the keeper is started: where its API listens, which store it has (None: the site file's), and where gsub-act
    is asked (None: where it is by default).
    """

    api: tuple[str, int]
    store: str | None = None
    act: Path | None = None


class Keeping:
    """Runs the keeper; `run` ends, and the keeper with it, by being cancelled."""

    def __init__(
        self,
        keep: Keep | None,
        *,
        site: Callable[[], Taken],
        site_path: Path | None,
        state: Path,
        every: float,
        env: Mapping[str, str],
    ) -> None:
        self._keep = keep
        self._site = site
        self._site_path = site_path
        self._state = state
        self._every = every
        self._env = env
        self._anew = asyncio.Event()
        self._said = ""
        self.starts = 0
        self.address: tuple[str, int] | None = None
        """Where its API answers; None while it does not."""

    @property
    def up(self) -> float | None:
        """1 while it collects and answers, 0 while it should; None where it is switched off."""
        return None if self._keep is None else float(self.address is not None)

    def begin_anew(self) -> None:
        """The site file has changed: start it again, with the new one."""
        self._anew.set()

    async def run(self) -> None:
        """Start it, listen to its beats, start it again."""
        if self._keep is None:
            return
        wait = _FIRST
        while True:
            self._anew.clear()
            missing = self._missing(self._keep)
            if missing:
                self._say(missing)
                await self._anew.wait()
                continue
            began = asyncio.get_running_loop().time()
            ended = await self._once(self._keep)
            if self._anew.is_set():
                wait = _FIRST
                continue
            ran = asyncio.get_running_loop().time() - began
            wait = _FIRST if ran > _LONGEST else min(2 * wait, _LONGEST)
            _log.error("the keeper %s; it is started again in %.0f s, decisions go on", ended, wait)
            await is_set_within(self._anew, wait)

    def _missing(self, keep: Keep) -> str:
        """Why it cannot be started, told as what to do; empty where it can."""
        if self._site_path is None or not self._site().site.cluster:
            return (
                "nothing is collected without a site file: write /etc/gsub/site.toml, see docs/site-file.md"
            )
        kind = (keep.store or self._site().site.store.url).partition(":")[0].partition("+")[0]
        wanted = _PACKAGES.get(kind, _PACKAGES["sqlite"])
        missing = [name for name in wanted if importlib.util.find_spec(name) is None]
        if not missing:
            return ""
        extra = "service,postgresql" if "psycopg" in missing else "service"
        return (
            f"nothing is collected, and gsub usage has no answers: {', '.join(missing)} not installed here; "
            f"pip install 'gsub[{extra}]' where gsubd runs, and restart it (or silence this with --api none)"
        )

    def _say(self, text: str) -> None:
        if text != self._said:
            _log.warning("%s", text)
        self._said = text

    async def _once(self, keep: Keep) -> str:
        """Run it until it ends or must be ended; how it ended, for the log."""
        host, port = keep.api
        argv = [
            *python("slurm_plugins.service.keeper"),
            f"--site={self._site_path}",
            f"--state={self._state}",
        ]
        argv += [f"--listen={host}:{port}", f"--every={self._every:g}", f"--parent={os.getpid()}"]
        if keep.store is not None:
            argv.append(f"--store={keep.store}")
        if keep.act is not None:
            argv.append(f"--act={keep.act}")
        try:
            child = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=child_environment(self._env),
                limit=_LINE,
                start_new_session=True,
            )
        except OSError as error:
            return f"cannot be started: {error}"
        self.starts += 1
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
        anew = asyncio.ensure_future(self._anew.wait())
        beats = asyncio.ensure_future(self._listen(child))
        try:
            await asyncio.wait({anew, beats}, return_when=asyncio.FIRST_COMPLETED)
            if not beats.done():
                return "is started anew"
            if beats.result():
                return beats.result()
            return f"ended with {await child.wait()}"
        finally:
            self.address = None
            for task in (anew, beats):
                task.cancel()
            await _end(child)

    async def _listen(self, child: asyncio.subprocess.Process) -> str:
        """Hear its beats; why it must be ended, empty when it ended by itself."""
        assert child.stdout is not None  # noqa: S101  (a pipe, see above)
        while True:
            try:
                line = await within(child.stdout.readline(), _SILENT)
            except asyncio.TimeoutError:
                return f"hangs: no beat for {_SILENT:.0f} s"
            except ValueError:
                return "does not beat as it should"
            if not line:
                return ""
            word, _, rest = line.decode("utf-8", "replace").strip().partition(" ")
            if word == "ready":
                host, _, port = rest.rpartition(" ")
                self.address = (host, int(port))
                _log.info("API on http://%s:%s", one_line(f"[{host}]" if ":" in host else host), port)


async def _end(child: asyncio.subprocess.Process) -> None:
    """Have it end: its pipe closed, then asked, then killed with all that it started."""
    if child.stdin is not None:
        child.stdin.close()
    for number, seconds in ((None, _END), (signal.SIGTERM, 0.5), (signal.SIGKILL, 5.0)):
        if child.returncode is not None:
            return
        if number is not None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, number)
        with suppress(asyncio.TimeoutError):
            await within(child.wait(), seconds)
