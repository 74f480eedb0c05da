"""Asking gsub-act, as gsubd does: one connection that stays, one request at a time.

>>> hand = Hand("/run/gsub-act/act.sock")                                  # doctest: +SKIP
>>> hand.ask(new("hold", "4711", cluster="lab", why="the smoke run failed", by="v-0123456789abcdef"))   # doctest: +SKIP
Answer(v=1, id='...', result='done', said='', again=None, repeat=False)
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from site_configs.site_model import Site
from slurm_plugins.act.wire import MAX_LINE, Answer, Request, decode_answer

__all__ = ["SOCKET", "Hand", "HandError", "does_answer", "is_wanted", "new"]

SOCKET: Final = Path("/run/gsub-act/act.sock")
"""Where gsub-act is asked if nothing else is said."""
_SECONDS: Final = 90.0
"""A silent slurmctld costs gsub-act 20 s a command, and requests are done one after another."""


def is_wanted(site: Site) -> bool:
    """Return whether a site needs gsub-act: it enforces somewhere, and has failed jobs tried again or rules cancel."""
    return "enforce" in site.modes and (site.resubmit.enabled or site.alerts.cancel)


def does_answer(path: str | os.PathLike[str], *, seconds: float = 2.0) -> bool:
    """Return whether somebody takes a connection there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        try:
            connection.connect(os.fspath(path))
        except OSError:
            return False
    return True


class HandError(Exception):
    """gsub-act did not answer: it is not known whether it was done. Ask again with the same request."""


def new(
    verb: str,
    job: str,
    *,
    cluster: str,
    why: str,
    by: str,
    fields: Mapping[str, str] | None = None,
    until: float | None = None,
    restarts: int | None = None,
    own_id: str | None = None,
    number: int | None = None,
) -> Request:
    """A request, asked now. `why` is one line; `by` is a decision's or verdict's id.

    `restarts`: done only if the job has been restarted so often. `own_id`: for an asker that has to ask the same once
    more after a crash of its own; without one it is drawn. `number`: an array task's own.
    """
    return Request(
        v=1,
        id=own_id or f"r-{secrets.token_hex(12)}",
        at=time.time(),
        cluster=cluster,
        job=job,
        verb=verb,
        fields=dict(fields or {}),
        why=why,
        by=by,
        until=until,
        restarts=restarts,
        number=number,
    )


class Hand:
    """A connection to gsub-act; made when first needed, and anew after it broke. For one thread."""

    def __init__(self, path: str | os.PathLike[str], *, seconds: float = _SECONDS) -> None:
        self._path = os.fspath(path)
        self._seconds = seconds
        self._socket: socket.socket | None = None

    def ask(self, request: Request) -> Answer:
        """What became of it. Raises HandError.

        A connection that broke is made once more: by the request's id nothing is done twice.
        """
        line = msgspec.json.encode(request) + b"\n"
        for last in (False, True):
            try:
                answer = self._asked(line)
            except TimeoutError as error:
                self.close()
                raise HandError(f"gsub-act did not answer within {self._seconds:g} s") from error
            except OSError as error:
                self.close()
                if last:
                    raise HandError(f"gsub-act is not there: {error.strerror or error}") from error
            except msgspec.DecodeError as error:
                self.close()
                raise HandError(f"gsub-act's answer was not understood: {error}") from error
            else:
                if answer.id not in (request.id, ""):
                    self.close()
                    raise HandError("gsub-act answered another request")
                return answer
        raise AssertionError("the second try returns or raises")

    def _asked(self, line: bytes) -> Answer:
        until = time.monotonic() + self._seconds
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(self._seconds)
            self._socket.connect(self._path)
        self._socket.settimeout(max(0.01, until - time.monotonic()))
        self._socket.sendall(line)
        received = b""
        while not received.endswith(b"\n"):
            self._socket.settimeout(max(0.01, until - time.monotonic()))
            data = self._socket.recv(MAX_LINE)
            if not data:
                raise ConnectionResetError("it closed the connection")
            received += data
        return decode_answer(received)

    def close(self) -> None:
        """End the connection; the next request makes another."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None

    def __enter__(self) -> Hand:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
