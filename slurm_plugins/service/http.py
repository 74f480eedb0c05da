"""A little HTTP for Prometheus and for health checks: GET, two paths, nothing that a request could make us do.

Every connection is answered once and closed. Request lines and headers are bounded, a connection has 5 s in all, and
there are 16 of them at most: one more ends the oldest, which has said nothing yet or does not take its answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from slurm_plugins.service.within import within

__all__ = ["Page", "serve_http"]

_HEAD_BYTES: Final = 8192
_UNREAD: Final = 1 << 20
_SECONDS: Final = 5.0
_CONNECTIONS: Final = 16
_REQUEST: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,1000}) HTTP/1\.[01]\r?\n")
_HEADER: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}:[^\x00\r\n]*\r?\n")  # RFC 9110, 5.1


@dataclass(frozen=True, slots=True)
class Page:
    """What a path answers."""

    text: str
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


_PHRASES: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

Pages = Mapping[str, Callable[[], Page]]


async def serve_http(host: str, port: int, pages: Pages) -> asyncio.Server:
    """Listen, and answer each path with what its function gives. Raises OSError when the address is not to be had."""
    open_: dict[asyncio.StreamWriter, None] = {}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(open_) >= _CONNECTIONS:
            oldest = next(iter(open_))
            del open_[oldest]
            oldest.transport.abort()
        open_[writer] = None
        try:
            await within(_answer(reader, writer, pages), _SECONDS)
        except (OSError, asyncio.TimeoutError):
            writer.transport.abort()  # gone, or too slow: what it has not read is not kept for it
        finally:
            open_.pop(writer, None)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    # As many are let in at one turn of the loop as wait in the queue: a flood of them must not hold submissions up
    return await asyncio.start_server(connected, host, port, limit=_HEAD_BYTES, backlog=_CONNECTIONS)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pages: Pages) -> None:
    page, head_only = _page(await _head(reader), pages)
    body = page.text.encode()
    head = (
        f"HTTP/1.1 {page.status} {_PHRASES[page.status]}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"{'Allow: GET, HEAD' + chr(13) + chr(10) if page.status == 405 else ''}"
        "Connection: close\r\n\r\n"
    )
    writer.write(head.encode() + (b"" if head_only else body))
    await writer.drain()
    # Closing with a request half read would reset the connection, and the answer with it
    writer.write_eof()
    unread = _UNREAD
    while unread > 0 and (data := await reader.read(1 << 14)):
        unread -= len(data)


async def _head(reader: asyncio.StreamReader) -> list[bytes] | None:
    """Request line and headers; None when they are longer than we read, empty when they end early."""
    lines: list[bytes] = []
    size = 0
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            return None
        except asyncio.IncompleteReadError:
            return []
        size += len(line)
        if size > _HEAD_BYTES:
            return None
        if line in {b"\r\n", b"\n"}:
            return lines
        lines.append(line)


def _page(lines: list[bytes] | None, pages: Pages) -> tuple[Page, bool]:
    """The page that a request gets, and whether only its head is sent."""
    if lines is None:
        return Page("the request's head is too long\n", status=431), False
    request = _REQUEST.fullmatch(lines[0]) if lines else None
    if request is None or not all(_HEADER.fullmatch(line) for line in lines[1:]):
        return Page("not a request\n", status=400), False
    method, path = request[1], request[2].partition(b"?")[0].decode()
    if method not in {b"GET", b"HEAD"}:
        return Page("GET only\n", status=405), False
    page = pages.get(path)
    if page is None:
        return Page(f"there are {' and '.join(pages)}\n", status=404), method == b"HEAD"
    return page(), method == b"HEAD"
