"""gsub's service as the commands meet it: a real keeper over a real store and munged, and the records of some jobs."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from profiler.answers import Taken
from profiler.munge import Munge
from profiler.records import Record
from profiler.sealed import Service
from profiler.store import open_store
from profiler.store.facts import JobFacts
from tests.unit.profiler.store.empty import empty_store
from tests.unit.profiler.store.records import CLUSTER
from tests.unit.prolog_epilog.agent.munged import munged
from tests.waiting import wait_until

PATIENCE = 60.0


@dataclass(frozen=True)
class Site:
    """A site of a test's own: its file, its munged's socket."""

    file: Path
    socket: str
    url: str
    store: str

    def bring(self, records: Sequence[Record], node: str = "n1") -> None:
        """Records as the agent of a node delivers them."""
        batch = {"v": 1, "node": node, "cluster": CLUSTER, "records": list(records)}
        service = Service(self.url, Munge(self.socket), {os.geteuid()}, PATIENCE)
        answer = service.ask("POST", "/v1/records", msgspec.json.encode(batch))
        taken = msgspec.json.decode(answer.body, type=Taken)
        assert answer.status == 200 and len(taken.accepted) == len(records), answer


def write_site(file: Path, url: str, socket: str, more: str = "") -> None:
    """A site file whose service is at `url`, run by the user of the test."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    service = f'url = "{url}"\n' if url else ""
    munge = f'munge_socket = "{socket}"\n' if socket else ""
    file.write_text(
        f'cluster = "{CLUSTER}"\n[service]\n{service}user = "{user}"\n[slurm]\n{munge}'
        # no command of Slurm is found: what Slurm says is put into the store
        f'bin = "{file.parent}"\n{more}'
    )


@contextmanager
def keeper(
    folder: Path, facts: Sequence[JobFacts] = (), records: Sequence[Record] = (), store_url: str = ""
) -> Iterator[Site]:
    """Start one on a free port, with these records and Slurm's word on them; end it. Writing records takes root.

    Over a store of its own in the folder, or the one that is named.
    """
    own_url = f"sqlite:///{folder / 'store.db'}"
    store = open_store(store_url) if store_url else empty_store(own_url)
    store_url = store_url or own_url
    store.take(records, time.time())
    store.enrich(facts, time.time())
    store.close()
    with munged() as daemon:
        write_site(folder / "site.toml", "", daemon.socket)
        argv = [sys.executable, "-m", "slurm_plugins.service.keeper", f"--site={folder / 'site.toml'}"]
        argv += [f"--state={folder}", "--listen=127.0.0.1:0", f"--store={store_url}"]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if " port " in line:
                    url = f"http://127.0.0.1:{int(line.rpartition(' ')[2])}"
                    break
            else:
                raise AssertionError("the keeper ended")
            watchdog.cancel()
            threading.Thread(target=process.stderr.read, daemon=True).start()
            write_site(folder / "site.toml", url, daemon.socket)
            site = Site(folder / "site.toml", daemon.socket, url, store_url)
            _ready(site)
            yield site
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()


def _ready(site: Site) -> None:
    """Wait until its store is open."""
    service = Service(site.url, Munge(site.socket), {os.geteuid()}, PATIENCE)
    wait_until(lambda: service.ask("GET", "/v1/jobs").status == 200, PATIENCE, "the store")
