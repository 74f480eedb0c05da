"""What an installation needs beside the host's files and commands: time, the service's word, a rehearsal."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from site_configs.site_model import Site
from slurm_plugins.install.host import Host
from slurm_plugins.install.layout import Layout
from slurm_plugins.install.rehearse import Candidate, Rehearsal, rehearse

__all__ = ["Around", "Service", "local_around"]


class Service(Protocol):
    """gsubd, as far as installing asks it."""

    def decides(self, host: str, port: int) -> bool:
        """Whether it says there that it decides."""
        ...

    def heard(self, site: Site) -> frozenset[str] | None:
        """The nodes that it has heard of; None: it does not say."""
        ...


@dataclass(frozen=True, slots=True)
class Around:
    """The rest of the world.

    Parameters
    ----------
    say: told each step before it is done.
    settle: seconds until every slurmd has taken a configuration that slurmctld has.
    patience: seconds that slurmctld and gsubd may take to answer after a change.
    """

    service: Service
    rehearse: Callable[[Host, Layout, Candidate], Rehearsal]
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = field(default=lambda _: None)
    settle: float = 15.0
    patience: float = 30.0


class _Gsubd:
    """The real one."""

    def decides(self, host: str, port: int) -> bool:
        """See `Service.decides`."""
        connection = http.client.HTTPConnection(host, port, timeout=5)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def heard(self, site: Site) -> frozenset[str] | None:
        """See `Service.heard`."""
        import msgspec

        from profiler.answers import Nodes
        from profiler.munge import Munge
        from profiler.sealed import Service as Sealed
        from profiler.sealed import ServiceError, believed

        if not site.service.url:
            return None
        munge = Munge(site.slurm.munge_socket)
        try:
            answer = Sealed(site.service.url, munge, believed(site.service.user), 10.0).ask(
                "GET", "/v1/nodes"
            )
            if answer.status != 200:
                return None
            found = msgspec.json.decode(answer.body, type=Nodes).nodes
        except (ServiceError, ValueError):
            return None
        return frozenset(node.name for node in found if node.heard is not None)


def local_around(*, say: Callable[[str], None], settle: float) -> Around:
    """This machine's."""
    return Around(_Gsubd(), rehearse, say=say, settle=settle)
