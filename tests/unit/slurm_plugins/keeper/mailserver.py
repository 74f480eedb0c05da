"""A mail server of a test's own: it speaks as much SMTP as smtplib does, and says what it is told to."""

from __future__ import annotations

import email
import email.policy
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage


@dataclass
class MailServer:
    """What it took, as (address, message); `answers` are its replies to a command ("RCPT", "." for the data)."""

    port: int = 0
    took: list[tuple[str, EmailMessage]] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    connections: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def mail_server() -> Iterator[MailServer]:
    """Start one, and end it."""
    here = MailServer()

    class Handler(socketserver.StreamRequestHandler):
        timeout = 60

        def handle(self) -> None:
            here.connections += 1
            self.say(here.answers.get("greeting", "220 here"))
            to = ""
            while line := self.rfile.readline(2000):
                word = line.split()[0].upper().decode() if line.split() else ""
                if word == "RCPT":
                    to = line.decode().partition("<")[2].partition(">")[0]
                if word == "DATA":
                    self.say("354 go on")
                    lines = []
                    while (line := self.rfile.readline()).rstrip(b"\r\n") != b".":
                        lines.append(line[1:] if line.startswith(b".") else line)
                    if "." not in here.answers:
                        message = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
                        assert isinstance(message, EmailMessage)
                        here.took.append((to, message))
                    self.say(here.answers.get(".", "250 taken"))
                    continue
                self.say(
                    here.answers.get(
                        f"{word} {to}", here.answers.get(word, "221 bye" if word == "QUIT" else "250 ok")
                    )
                )
                if word == "QUIT":
                    return

        def say(self, text: str) -> None:
            self.wfile.write(text.encode() + b"\r\n")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that went away

    with Server(("127.0.0.1", 0), Handler) as server:
        here.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield here
        finally:
            server.shutdown()
            thread.join(10)
