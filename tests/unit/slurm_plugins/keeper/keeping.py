"""A keeper process under a `Keeping`, on real sockets, with a real munged."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from profiler.munge import Munge
from profiler.sealed import Service
from slurm_plugins.service.keeping import Keep, Keeping
from slurm_plugins.service.site_watch import SiteFile
from tests.unit.prolog_epilog.agent.munged import Munged
from tests.waiting import wait_until

PATIENCE = 60.0

SITE = """\
cluster = "lab"
operators = ["games"]
[slurm]
munge_socket = "{munge}"
bin = "{bin}"
[store]
url = "{store}"
"""


def write_site(folder: Path, munge: str, store: str | None = None, *, slurm: Path | None = None) -> Path:
    """A site file; without `slurm`, its folder of commands, there is no Slurm."""
    path = folder / "site.toml"
    store = store or f"sqlite:///{folder / 'store.db'}"
    path.write_text(SITE.format(munge=munge, store=store, bin=slurm or folder / "nowhere"))
    return path


@dataclass
class Kept:
    """A `Keeping` that runs in a thread."""

    keeping: Keeping
    site: SiteFile
    state: Path
    munge: Munge
    loop: asyncio.AbstractEventLoop

    def service(self, *, trusted: int | None = None) -> Service:
        """A client for the keeper that runs now."""
        address = wait_until(lambda: self.keeping.address, PATIENCE, "the keeper's address", pause=0.05)
        uid = os.geteuid() if trusted is None else trusted
        return Service(f"http://{address[0]}:{address[1]}", self.munge, {uid}, timeout=PATIENCE)

    def begin_anew(self) -> None:
        self.loop.call_soon_threadsafe(self.keeping.begin_anew)


@contextmanager
def kept(
    folder: Path, munged: Munged, store: str | None = None, *, every: float = 30.0, slurm: Path | None = None
) -> Iterator[Kept]:
    """Run one, with its state in `folder`, and end it."""
    site = SiteFile(write_site(folder, munged.socket, slurm=slurm))
    loop = asyncio.new_event_loop()
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    keeping = Keeping(
        Keep(("127.0.0.1", 0), store),
        site=lambda: site.taken,
        site_path=site.path,
        state=folder,
        every=every,
        env=env,
    )
    task = loop.create_task(keeping.run())

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        finally:
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield Kept(keeping, site, folder, Munge(munged.socket), loop)
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(task.cancel)
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the keeper does not end"
