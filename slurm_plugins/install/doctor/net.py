"""What doctor asks over a network: the service's open pages, and what it keeps of the nodes."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from site_configs.site_model import Site

__all__ = ["LocalNet", "Net", "NetError", "Page"]

_MOST: Final = 64 << 20  # 10,000 nodes are some 5 MB


class NetError(Exception):
    """No answer, or none that can be believed; the message is one sentence. `kind` is a ServiceError's reason."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: its HTTP status and body."""

    status: int
    body: bytes


class Net(Protocol):
    """The service as it is reached from this host."""

    def page(self, url: str, timeout: float) -> Page:
        """One of the open pages (/healthz, /metrics). Raises NetError."""
        ...

    def ask(self, site: Site, target: str, timeout: float) -> Page:
        """A question in our own name, whose answer is sealed by the service. Raises NetError."""
        ...


class LocalNet:
    """This host's network."""

    def page(self, url: str, timeout: float) -> Page:
        """See `Net.page`. Without a proxy: the service is a host of the cluster."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise NetError("unreachable", f"{url} is no address: {error}") from error
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", port, timeout=timeout)
        try:
            connection.request("GET", parts.path or "/")
            answer = connection.getresponse()
            return Page(answer.status, answer.read(_MOST))
        except TimeoutError as error:
            raise NetError("timeout", f"no answer in {timeout:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise NetError("unreachable", str(error) or type(error).__name__) from error
        finally:
            connection.close()

    def ask(self, site: Site, target: str, timeout: float) -> Page:
        """See `Net.ask`."""
        from profiler.munge import Munge
        from profiler.sealed import Service, ServiceError, believed

        try:
            munge = Munge(site.slurm.munge_socket)
            service = Service(
                site.service.url, munge, believed(site.service.user), timeout=timeout, max_answer=_MOST
            )
            answer = service.ask("GET", target)
        except ServiceError as error:
            raise NetError(error.reason, str(error)) from error
        except ValueError as error:
            raise NetError("unreachable", str(error)) from error
        return Page(answer.status, answer.body)
