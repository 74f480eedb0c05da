"""uvicorn, bounded: one request a connection, each connection a time, an address a share of them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter as Tally
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from slurm_plugins.service.keeper.app import App
from slurm_plugins.service.keeper.counts import Counts

__all__ = ["listening", "serve"]

_CONNECTIONS: Final = 400
_OF_ONE: Final = 64
"""Connections from one address: who sits on a login node must not keep the compute nodes out."""
_SECONDS: Final = 60.0
"""A connection's time, from its first byte to its answer's last."""
_HEAD: Final = 16 << 10


async def serve(app: App, sock: socket.socket, counts: Counts) -> None:
    """Answer on a listening socket until cancelled."""
    # Requests that are none, and a client's words, are not for the log: anybody can send them
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        loop="none",
        http=_bounded(counts),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        h11_max_incomplete_event_size=_HEAD,
        timeout_graceful_shutdown=2,
    )
    config.load()
    state = uvicorn.server.ServerState()
    make: Any = config.http_protocol_class
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: make(config=config, server_state=state, app_state={}), sock=sock
    )
    try:
        await asyncio.Event().wait()
    finally:
        server.close()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=2)
        for connection in tuple(state.connections):
            connection.transport.abort()


def listening(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError when the address is not to be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # "::" takes IPv4 too; a name is looked up by bind
    return socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=host == "::")


def _bounded(counts: Counts) -> type[H11Protocol]:
    """uvicorn's protocol over h11, with bounds."""
    addresses: Tally[str] = Tally()

    class Bounded(H11Protocol):
        _end: asyncio.TimerHandle | None = None
        _address: str | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            address = self.client[0] if self.client else ""
            if len(self.connections) > _CONNECTIONS or addresses[address] >= _OF_ONE:
                counts.closed.add("full")
                transport.abort()
                return
            addresses[address] += 1
            self._address = address
            self._end = self.loop.call_later(_SECONDS, self._over)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._end is not None:
                self._end.cancel()
            if self._address is not None:
                addresses[self._address] -= 1
                if not addresses[self._address]:
                    del addresses[self._address]

        def _over(self) -> None:
            counts.closed.add("slow")
            self.transport.abort()

    return Bounded
