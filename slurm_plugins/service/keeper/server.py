"""uvicorn, bounded: one request a connection, each connection a time, an address and root's ports a share of them."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from slurm_plugins.service.keeper.app import App
from slurm_plugins.service.keeper.counts import Counts

__all__ = ["listening", "serve"]

_CONNECTIONS: Final = 400
_OF_ONE: Final = 64
"""Connections from one address: who sits on a login node must not keep the compute nodes out."""
_PRIVILEGED: Final = 1024
"""A port below this is root's, as ssh's rhosts and NFS take it: gsub-noded comes from one where it can."""
_RESERVED: Final = 100
"""Of all connections those that wait for such a port; of an address, it has a share of its own."""
_HEAD_SECONDS: Final = 5.0
"""A request's head comes within this: nobody types one."""
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
    """uvicorn's protocol over h11, with bounds.

    Where there is no room, the oldest connection that has shown no good credential makes it: who only holds
    connections open keeps nobody out for longer than it takes to show one.
    """
    # In the order of their coming, by address and by whether the port is root's
    open_: dict[Bounded, tuple[str, bool]] = {}

    class Bounded(H11Protocol):
        _end: asyncio.TimerHandle | None = None
        _proven = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            address, port = self.client or ("", _PRIVILEGED)
            place = address, port < _PRIVILEGED
            if not _make_room(place):
                counts.closed.add("full")
                transport.abort()
                return
            open_[self] = place
            self.app_state = {"prove": self._prove}
            self._end = self.loop.call_later(_HEAD_SECONDS, self._headless)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._leave()

        def _leave(self) -> None:
            if self._end is not None:
                self._end.cancel()
            open_.pop(self, None)

        def _prove(self) -> None:
            self._proven = True

        def _headless(self) -> None:
            if self.cycle is None:
                self.close("slow")
            else:
                self._end = self.loop.call_later(_SECONDS - _HEAD_SECONDS, self.close, "slow")

        def close(self, why: str) -> None:
            """Cut it off."""
            counts.closed.add(why)
            self._leave()
            self.transport.abort()

    def _make_room(place: tuple[str, bool]) -> bool:
        """Whether there is room for one more, which another one may have had to leave."""
        same = [one for one, its in open_.items() if its == place]
        if len(same) >= _OF_ONE:
            rivals = same
        elif len(open_) >= _CONNECTIONS:
            rivals = [one for one, (_, privileged) in open_.items() if privileged <= place[1]]
        elif not place[1] and sum(not privileged for _, privileged in open_.values()) >= (
            _CONNECTIONS - _RESERVED
        ):
            rivals = [one for one, (_, privileged) in open_.items() if not privileged]
        else:
            return True
        oldest = next((one for one in rivals if not one._proven), None)
        if oldest is not None:
            oldest.close("evicted")
        return oldest is not None

    return Bounded
