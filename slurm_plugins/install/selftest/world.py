"""What the scenarios see of the site and may do there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from site_configs.site_model import Mode, Site
from slurm_plugins.client.requeue_delay import requeue_delay
from slurm_plugins.client.values import Node
from slurm_plugins.client.versions import OLDEST, Version
from slurm_plugins.install.selftest.bounds import Bounds
from slurm_plugins.install.selftest.outcome import EndedError, Outcome, skipped
from slurm_plugins.install.selftest.queue import Asked, Queue, Wish
from slurm_plugins.install.selftest.records import Records
from slurm_plugins.service.records import tail

__all__ = ["DOCTOR", "Halt", "World", "until"]

_T = TypeVar("_T")

DOCTOR: Final = "run 'gsub admin doctor' on the controller's host"
_JOURNAL_BYTES: Final = 4 << 20


class Halt(Protocol):
    """Makes gsubd silent for a moment, and sees to it that it speaks again whatever happens to us."""

    def pause(self, seconds: float) -> None:
        """Have it stand still for so many seconds. Raises HaltError where that cannot be done."""
        ...

    def resume(self) -> None:
        """Have it go on now."""
        ...

    def stop(self) -> None:
        """Stop its unit. Raises HaltError."""
        ...

    def start(self) -> None:
        """Start its unit again. Raises HaltError."""
        ...


@dataclass(slots=True)
class World:
    """The site, our jobs, gsub's record of them.

    `records` is None where the site file names no service. `journal` is gsubd's file of decisions where we may read
    it. `config` is what `scontrol show config` said. `halt` is None where we are not root on the controller's host.
    """

    site: Site
    mode: Mode
    bounds: Bounds
    queue: Queue
    records: Records | None
    journal: Path | None
    halt: Halt | None
    root: bool
    config: Mapping[str, str]
    nodes: tuple[Node, ...]
    """Those of the partition, before the first job."""
    all_nodes: Callable[[], tuple[Node, ...]]
    _once: dict[str, Asked] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """GPUs of a job that has any; 0 where the partition has none."""
        return self.queue.gpus

    def needs_gpus(self) -> None:
        """Skip the scenario in a partition without GPUs."""
        if not self.gpus:
            raise EndedError(
                skipped("the partition has no GPUs, and gsub decides about jobs with GPUs alone")
            )

    def needs_records(self) -> Records:
        """The service's records; skip the scenario at a site without them."""
        if self.records is None:
            raise EndedError(skipped("the site file names no service (service.url)"))
        return self.records

    def once(self, name: str, make: Callable[[], Asked]) -> Asked:
        """A job that several scenarios look at: submitted by the first of them."""
        if name not in self._once:
            self._once[name] = make()
        return self._once[name]

    def twin(self) -> Asked:
        """A job with a GPU of which gsub is told nothing: what Slurm alone makes of it."""
        return self.once(
            "twin", lambda: self.queue.submit(Wish("twin", gpus=self.queue.open_gpus, later=True, word="off"))
        )

    def written(self, digest: str) -> Mapping[str, Any] | None:
        """The decision that gsubd wrote down about the script of that digest; None: none so far."""
        if self.journal is None:
            return None
        for record in tail(self.journal, _JOURNAL_BYTES):
            script = record.get("script")
            if (
                record.get("kind") == "decision"
                and isinstance(script, dict)
                and script.get("sha256") == digest
            ):
                return record
        return None

    def requeue_delay(self) -> int:
        """Seconds that Slurm holds a requeued job at most before it may start again."""
        release = Version.parse(self.config.get("SLURM_VERSION", str(OLDEST))).release
        scheduling, auth = (self.config.get(key, "") for key in ("SchedulerParameters", "AuthInfo"))
        return int(requeue_delay(release, scheduling, auth)[1])

    def wait_for_start(self, number: int, extra: float = 0.0) -> Generator[None, None, None]:
        """Until all of a job runs or has run; a full cluster skips the scenario."""
        wait = self.bounds.wait + extra
        yield from until(
            self.queue.clock.now,
            wait,
            lambda: self.queue.started(number) or None,
            lambda: skipped(
                f"no start within {wait:.0f} s (Slurm says: {self.queue.reason(number)})",
                "give it longer with --wait, or name a partition that is less busy",
            ),
        )


def until(
    now: Callable[[], float], seconds: float, ready: Callable[[], _T | None], late: Callable[[], Outcome]
) -> Generator[None, None, _T]:
    """Wait for what `ready` finds; after so many seconds the scenario is over, as `late` says."""
    end = now() + seconds
    while (found := ready()) is None:
        if now() >= end:
            raise EndedError(late())
        yield
    return found
