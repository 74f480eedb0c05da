"""An HTTP service of a test's own on a free port: it opens what it is asked, and seals what it answers."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from profiler.munge import Credential, MungeError
from profiler.sealed import SEAL, Seal, answer_digest, request_digest


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the service got it; `by` is None where its credential is not of this very request."""

    method: str
    target: str
    body: bytes
    by: Credential | None


Reply = tuple[int, bytes]


@dataclass(slots=True)
class Sealing:
    """What such a service does, and what it was asked. Change `reply` and `seal` at will while it runs."""

    munge: Seal
    reply: Callable[[Asked], Reply] = lambda asked: (200, b"{}")
    seal: Callable[[str, int, bytes], str] | None = None
    base: str = ""
    url: str = ""
    asked: list[Asked] = field(default_factory=list)

    def sealed(self, credential: str, status: int, body: bytes) -> str:
        """A good seal."""
        return self.munge.encode(answer_digest(credential, status, body))


@contextmanager
def sealing(
    munge: Seal, host: str = "127.0.0.1", base: str = "", tls: ssl.SSLContext | None = None
) -> Iterator[Sealing]:
    """Start one, and end it."""
    here = Sealing(munge, base=base)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            target = self.path.removeprefix(here.base)
            scheme, _, text = self.headers.get("Authorization", "").partition(" ")
            try:
                by = here.munge.decode(text) if scheme == "MUNGE" else None
            except MungeError:
                by = None
            if by is not None and by.payload != request_digest(self.command, target, body):
                by = None
            asked = Asked(self.command, target, body, by)
            here.asked.append(asked)
            status, content = here.reply(asked)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if seal := (here.seal or here.sealed)(text, status, content):
                self.send_header(SEAL, seal)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - the names of http.server

        def log_message(self, *args: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that went away

    with Server((host, 0), Handler) as server:
        name = f"[{host}]" if ":" in host else host
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        here.url = f"{'http' if tls is None else 'https'}://{name}:{server.server_address[1]}{base}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield here
        finally:
            server.shutdown()
            thread.join(10)
