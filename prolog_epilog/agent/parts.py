"""The real parts of the agent: the driver in a child, /proc and cgroups, the service over HTTP, health checks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from profiler.gpu import GpuSample
from profiler.munge import Munge
from profiler.records import JobRef
from profiler.sampler import GpuSampler
from profiler.sealed import Service, believed
from prolog_epilog.agent.daemon import Parts
from prolog_epilog.agent.deliver import Delivery
from prolog_epilog.agent.disk import Disk
from prolog_epilog.agent.edges import Sampler
from prolog_epilog.agent.findings import LogReader
from prolog_epilog.agent.gres import NodeGpus, ask_slurmd
from prolog_epilog.agent.host_use import HostReader
from prolog_epilog.agent.jobs import Jobs
from prolog_epilog.agent.sampling import Sampling
from prolog_epilog.agent.settings import Settings, SettingsError
from prolog_epilog.agent.spool import Spool
from prolog_epilog.health.keeping import HealthState
from prolog_epilog.health.runner import HealthRunner

__all__ = ["real_parts"]

_log = logging.getLogger("gsub-noded")
_MAX_HEALTH = 4 << 20


class _Emit(Protocol):
    def __call__(self, event: msgspec.Struct, /) -> None: ...


def real_parts(settings: Settings) -> Parts:
    """What one node's agent is made of. Raises SettingsError for an address of the service that is none."""
    spool = Spool(settings.spool, settings.spool_bytes)
    disk, health_file = Disk(), settings.spool / "health.json"
    service = _service(settings)
    gpus = NodeGpus(lambda: ask_slurmd(settings.node))

    def sampler(on_sample: Callable[[GpuSample, float], None]) -> Sampler:
        return Sampling(lambda: GpuSampler(deadline=settings.deadline), settings.interval, on_sample)

    def sender(on_running: Callable[[tuple[JobRef, ...], float], None]) -> Delivery | None:
        if service is None:
            _log.warning("service.url is not set: records wait in %s", settings.spool)
            return None
        return Delivery(spool, service, settings.cluster, settings.node, on_running)

    def health(emit: _Emit, jobs: Jobs) -> HealthRunner:
        return HealthRunner(
            settings.site,
            settings.node,
            emit,
            settings.run / "drain",
            settings.off_file,
            slurm_gpus=gpus.count,
            job_of=jobs.holder,
            spool=settings.spool,
            slurmd_spool=settings.slurmd_spool,
            untrusted=settings.untrusted,
            restored=_kept(disk, health_file),
        )

    return Parts(
        spool=spool,
        gpus=gpus,
        warm=gpus.load,
        host=HostReader(settings.node, cluster=settings.cluster),
        sampler=sampler,
        sender=sender,
        health=health,
        keep_health=lambda state: disk.write(health_file, msgspec.json.encode(state), durable=False),
        read_logs=LogReader(signatures=settings.site.failures.signatures)
        if settings.site.agent.findings
        else None,
    )


def _service(settings: Settings) -> Service | None:
    url = settings.site.service.url
    if not url:
        return None
    trusted = believed(settings.site.service.user)
    if len(trusted) == 1:
        _log.warning(
            "service.user %s is not known here: only root's answers are believed", settings.site.service.user
        )
    try:
        return Service(url, Munge(settings.site.slurm.munge_socket), trusted)
    except ValueError as error:
        raise SettingsError(
            f"service.url {url}", str(error), 'write it like "http://controller:6831"'
        ) from None


def _kept(disk: Disk, path: Path) -> HealthState | None:
    """What the last run knew of the node's health; None for a first run, or where that cannot be read."""
    try:
        return msgspec.json.decode(disk.read(path, _MAX_HEALTH), type=HealthState)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("%s is not read: %s", path, error)
        return None
