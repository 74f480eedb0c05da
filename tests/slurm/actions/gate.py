"""A gate in front of Slurm's scontrol, so that gsub-act and gsubd can be killed at a known moment of a resubmission.

gsub-act finds scontrol where the site file says (`slurm.bin`). There lies a stand-in that passes everything on, and one
verb only when the test lets it: before the command is run, or after it was and before gsub-act hears of it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from site_configs.devcluster import Cluster
from tests.slurm.actions.rig import Stage

When = Literal["before", "after"]

_SCONTROL = """\
#!/bin/sh
stop() {{
  touch {folder}/reached
  while [ ! -e {folder}/open ]; do
    [ -e {folder}/never ] && exit 1
    sleep 0.1
  done
}}
gated() {{ [ "$1" = {verb} ]; }}
if gated "$1" && [ {when} = before ]; then stop; fi
/usr/bin/scontrol "$@"
rc=$?
if gated "$1" && [ {when} = after ]; then stop; fi
exit $rc
"""


@dataclass(frozen=True)
class Gate:
    """A shut gate; `reached` once gsub-act stands before it."""

    stage: Stage
    folder: Path

    def wait(self) -> None:
        """Until gsub-act stands before it."""
        self.stage.wait_for("gsub-act at the gate", (self.folder / "reached").exists)

    def kill(self) -> None:
        """SIGKILL for gsubd with its keeper and for gsub-act; what stood at the gate has not passed it."""
        cluster = self.stage.cluster
        for name in ("gsubd", "gsub-act"):
            for pid in family(cluster.daemons()[name]):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        (self.folder / "never").touch()
        self.stage.wait_for("their end", lambda: not {"gsubd", "gsub-act"} & {*cluster.daemons()})

    def open(self) -> None:
        """Let pass what stands there, and all that comes."""
        (self.folder / "open").touch()


@contextmanager
def gate(stage: Stage, verb: str, when: When) -> Iterator[Gate]:
    """A gate in front of one verb of scontrol; taken away at the end, with gsubd and gsub-act running."""
    cluster = stage.cluster
    folder = cluster.paths.root / f"gate-{os.urandom(4).hex()}"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "scontrol").write_text(_SCONTROL.format(folder=folder, verb=verb, when=when))
    (folder / "scontrol").chmod(0o755)
    text = cluster.paths.site.read_text()
    cluster.write_site(text.replace("[slurm]\n", f'[slurm]\nbin = "{folder}"\n'))
    cluster.restart("gsub-act")
    try:
        yield Gate(stage, folder)
    finally:
        (folder / "never").touch()
        cluster.write_site(text)
        begin(cluster)


def begin(cluster: Cluster) -> None:
    """Start gsubd and gsub-act where they do not run."""
    for name in ("gsubd", "gsub-act"):
        if name not in cluster.daemons():
            cluster.start(name)


def family(pid: int) -> list[int]:
    """A process and all that it started, itself first."""
    found = [pid]
    for each in found:
        with suppress(OSError):
            children = Path(f"/proc/{each}/task/{each}/children").read_text()
            found += map(int, children.split())
    return found
