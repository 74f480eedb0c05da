"""A connection to the decision socket: lines in, lines out, bounded, and never a burden to the others.

The peer may be slow, hostile or gone at any byte. What it may cost us: one buffer of 256 KiB in, one answer more
than the socket takes out, a few lines' work before the others have their turn.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol, cast

from slurm_plugins.decide.request import MAX_BYTES
from slurm_plugins.service.peers import Peers, peer_of
from slurm_plugins.service.within import within

__all__ = ["Asking", "Connections", "Hurdles"]

_TURN = 8
"""Lines answered before other connections have their turn."""
_STALLED = 10.0
"""Seconds that half a question, or an answer that nobody reads, may stand."""
MAX_CONNECTIONS = 256


class Hurdles(Protocol):
    """Where connections that went wrong are counted."""

    def refused(self, why: str) -> None:
        """A connection was closed by us: ``uid``, ``full``, ``oversized`` or ``stalled``."""
        ...


class Connections:
    """All connections of the decision socket; makes one `Asking` for each."""

    def __init__(self, answer: Callable[[bytes], bytes], peers: Peers, hurdles: Hurdles) -> None:
        self.answer = answer
        self.peers = peers
        self.hurdles = hurdles
        self.open: set[Asking] = set()
        self._gone = asyncio.Event()

    def new(self) -> Asking:
        """A new connection's protocol, for asyncio."""
        return Asking(self)

    def left(self, asking: Asking) -> None:
        """One has ended."""
        self.open.discard(asking)
        if not self.open:
            self._gone.set()

    async def finish(self, seconds: float) -> None:
        """Answer what has been asked, take no more, and close all; what does not end in time is cut off."""
        # A peer's next write fails at once (EPIPE), while what it wrote before can still be read here: every question
        # that was taken is answered.
        for asking in tuple(self.open):
            asking.hear_no_more()
        self._gone.clear()
        if self.open:
            try:
                await within(self._gone.wait(), seconds)
            except asyncio.TimeoutError:
                for asking in tuple(self.open):
                    asking.abort()


class Asking(asyncio.Protocol):
    """One connection."""

    _transport: asyncio.Transport

    def __init__(self, all_: Connections) -> None:
        self._all = all_
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._searched = 0
        self._blocked = False
        self._turn: asyncio.Handle | None = None
        self._ended = False
        self._stall: asyncio.TimerHandle | None = None
        self._moved = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let it in, or close it."""
        self._transport = cast(asyncio.Transport, transport)
        self._all.open.add(self)
        if peer_of(self._socket()).uid not in self._all.peers:
            self._refuse("uid")
        elif len(self._all.open) > MAX_CONNECTIONS:
            self._refuse("full")
        else:
            # One answer waiting is enough to stop reading
            self._transport.set_write_buffer_limits(high=0)

    def _socket(self) -> socket.socket:
        # asyncio's TransportSocket: getsockopt and shutdown are all that is used of it
        return cast(socket.socket, self._transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._ended = True
        self._buffer.clear()
        for handle in (self._turn, self._stall):
            if handle is not None:
                handle.cancel()
        self._all.left(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came: answer the lines that are whole."""
        self._buffer += data
        if self._turn is None and not self._blocked:
            self._answer_some()
        self._watch()

    def eof_received(self) -> bool:
        """The peer asks no more: answer what it has asked, then close."""
        self._ended = True
        if self._turn is None and not self._blocked:
            self._transport.close()
        # True: the transport stays open for what is still to be said
        return True

    def _answer_some(self) -> None:
        self._turn = None
        for _ in range(_TURN):
            if self._blocked or self._transport.is_closing():
                return
            end = self._buffer.find(b"\n", self._searched)
            if end < 0 or end > MAX_BYTES:
                self._searched = len(self._buffer)
                if end > MAX_BYTES or len(self._buffer) > MAX_BYTES:
                    self._refuse("oversized")
                elif self._ended:
                    self._transport.close()
                return
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            self._moved = self._loop.time()
            if line.strip():
                self._transport.write(self._all.answer(line))
        self._turn = self._loop.call_soon(self._answer_some)
        # A peer that sends faster than it is answered waits, else its buffer grew without bound
        if len(self._buffer) > MAX_BYTES:
            self._transport.pause_reading()
            self._loop.call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        if self._transport.is_closing() or self._blocked or self._ended:
            return
        if len(self._buffer) > MAX_BYTES:
            self._loop.call_soon(self._resume_reading)
        else:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The peer does not read: no further question of it is taken."""
        self._blocked = True
        self._transport.pause_reading()
        self._watch()

    def resume_writing(self) -> None:
        """It reads again."""
        self._blocked = False
        self._moved = self._loop.time()
        if self._transport.is_closing():
            return
        if not self._ended:
            self._transport.resume_reading()
        self._watch()
        if self._turn is None:
            self._turn = self._loop.call_soon(self._answer_some)

    def _watch(self) -> None:
        """Half a question and an unread answer have a time limit; a silent connection has none."""
        waits = self._blocked or bool(self._buffer)
        if waits and self._stall is None:
            self._stall = self._loop.call_later(_STALLED, self._stalled)
        elif not waits and self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _stalled(self) -> None:
        self._stall = None
        if not (self._blocked or self._buffer):
            return
        left = self._moved + _STALLED - self._loop.time()
        if left > 0:
            self._stall = self._loop.call_later(left, self._stalled)
        else:
            self._refuse("stalled")

    def _refuse(self, why: str) -> None:
        self._all.hurdles.refused(why)
        self.abort()

    def hear_no_more(self) -> None:
        """Take no question that is not here yet."""
        try:
            self._socket().shutdown(socket.SHUT_RD)
        except OSError:
            self._transport.abort()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()
