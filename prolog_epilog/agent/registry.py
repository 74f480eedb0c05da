"""The jobs on this node, each in a file of its own: what a restart of the agent must not forget.

A job is entered when its prolog was read, and kept for a while after it has ended, so that a hook's file that is read
twice, or late, is seen for what it is. Files are written whole (a new one, fsync, rename): there is never half a one.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from profiler.records import JobEnded, JobFinding, JobRef, JobStarted
from prolog_epilog.agent.disk import Disk

__all__ = ["Entry", "Registry"]

_MAX_BYTES = 16 << 20


class Entry(msgspec.Struct, omit_defaults=True):
    """One attempt at a job on this node.

    `started` is None for a job whose epilog came alone. `told` and `end_told` say that these records are in the
    spool, `final` that the final usage is, too. `began` is the time of the start by the monotonic clock, which goes on
    over a restart of the agent, `boot` names the boot that it belongs to. `gpu_env` are the hook's variables that name
    GPUs, `meter` is the state of the job's meter, `end_hook` the name of the epilog's file. `reads` is how often the
    reading of its logs was begun, `read` that nothing is left to be read, `finding` what they said. `closed` is when
    (seconds since the epoch) nothing was left to be measured.
    """

    job: JobRef
    boot: str
    began: float
    started: JobStarted | None = None
    told: bool = False
    ended: JobEnded | None = None
    end_told: bool = False
    end_hook: str = ""
    ended_mono: float | None = None
    final: bool = False
    serial: int = 0
    gpu_env: dict[str, str] = msgspec.field(default_factory=dict)
    meter: msgspec.Raw = msgspec.Raw(b"null")
    reads: int = 0
    read: bool = False
    finding: JobFinding | None = None
    finding_told: bool = False
    closed: float | None = None

    @property
    def running(self) -> bool:
        """Whether the job is still here, as far as is known."""
        return self.ended is None


class Registry:
    """The files of one folder. Not for several threads."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._folder = folder
        self._disk = disk or Disk()
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(Entry)

    def load(self) -> tuple[dict[JobRef, Entry], list[tuple[Path, str]]]:
        """All entries; and the files that could not be read, with why. Raises OSError for the folder itself."""
        self._disk.make(self._folder)
        entries: dict[JobRef, Entry] = {}
        bad: list[tuple[Path, str]] = []
        for name in self._disk.names(self._folder):
            path = self._folder / name
            try:
                entry = self._decoder.decode(self._disk.read(path, _MAX_BYTES))
            except (OSError, msgspec.MsgspecError) as error:
                bad.append((path, str(error)))
            else:
                entries[entry.job] = entry
        return entries, bad

    def save(self, entry: Entry) -> None:
        """Write an entry; it is on the disk when this returns. Raises OSError."""
        self._disk.write(self._path(entry.job), self._encoder.encode(entry))

    def remove(self, job: JobRef) -> None:
        """Forget an attempt. Raises OSError."""
        self._disk.remove(self._path(job))

    def _path(self, job: JobRef) -> Path:
        return self._folder / f"{job.job_id}.{job.restarts}.json"
