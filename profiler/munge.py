"""Makes and opens MUNGE credentials: who asked, by uid, without a password and without a process of our own.

Every host of a cluster has munged, with one key for all (Slurm itself rests on it). What it seals can be opened on any
of them, once, for five minutes, and tells the uid that asked for it::

    credential = Munge().encode(digest)            # here, as uid 1000
    Munge().decode(credential).uid                 # there: 1000

libmunge(3) is called by ctypes. A munged that hangs is given up by the library after 10 s (5 tries of 2 s, measured
with 0.5.15 under SIGSTOP; its connect does not block); the interpreter's lock is free meanwhile.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

__all__ = ["MAX_CREDENTIAL", "MAX_PAYLOAD", "Credential", "Munge", "MungeError"]

MAX_PAYLOAD = 4096
"""Bytes that may be sealed: what is long is sealed by its digest."""
MAX_CREDENTIAL = 16384
"""Characters of a credential that munged is asked about."""

Reason: TypeAlias = Literal["unavailable", "invalid", "expired", "rewound", "replayed"]

_LIBRARY = "libmunge.so.2"
_SOCKET_OPTION = 8  # MUNGE_OPT_SOCKET of munge.h, as the numbers below
# libmunge reads up to a NUL and passes over spaces; two texts must not be one credential
_TEXT = re.compile(r"MUNGE:[A-Za-z0-9+/]+={0,2}:")
_REASONS: dict[int, Reason] = {
    1: "unavailable",  # EMUNGE_SNAFU
    5: "unavailable",  # EMUNGE_NO_MEMORY
    6: "unavailable",  # EMUNGE_SOCKET
    7: "unavailable",  # EMUNGE_TIMEOUT
    15: "expired",
    16: "rewound",
    17: "replayed",
}


class MungeError(Exception):
    """A credential could not be made, or is not to be believed.

    `reason`: "unavailable" (no libmunge, no munged, or it does not answer: try again), "invalid" (not sealed with this
    cluster's key), "expired" (or the clocks differ), "rewound" (from the future: the clocks differ), "replayed" (it was
    opened before).
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True)
class Credential:
    """What was in a credential: the bytes, and who had them sealed."""

    payload: bytes
    uid: int
    gid: int


class Munge:
    """Credentials by the munged that listens at `socket`; "" is MUNGE's own choice. For any number of threads."""

    def __init__(self, socket: str = "") -> None:
        self._socket = socket

    def encode(self, payload: bytes) -> str:
        """Have munged seal these bytes in the name of this process's effective uid and gid.

        Raises MungeError ("unavailable") and, for more than MAX_PAYLOAD bytes, ValueError.
        """
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"{len(payload)} bytes are too many for a credential (at most {MAX_PAYLOAD})")
        library = _library()
        text = ctypes.c_void_p()
        context = self._context(library)
        try:
            error = library.munge_encode(ctypes.byref(text), context, payload, len(payload))
            if error or not text.value:
                raise _failure(library, context, error)
            return ctypes.string_at(text.value).decode("ascii")
        finally:
            _free()(text)
            library.munge_ctx_destroy(context)

    def decode(self, text: str) -> Credential:
        """Open a credential that came from anywhere.

        Raises MungeError; only with the reason "unavailable" is it worth asking again.
        """
        if len(text) > MAX_CREDENTIAL or not _TEXT.fullmatch(text):
            raise MungeError("invalid", "This is not a MUNGE credential.")
        library = _library()
        payload, length = ctypes.c_void_p(), ctypes.c_int()
        uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
        context = self._context(library)
        try:
            error = library.munge_decode(
                text.encode("ascii"),
                context,
                *map(ctypes.byref, (payload, length, uid, gid)),
            )
            if error:
                raise _failure(library, context, error)
            content = ctypes.string_at(payload.value, length.value) if payload.value else b""
            return Credential(content, uid.value, gid.value)
        finally:
            _free()(payload)  # libmunge gives it out with some of its errors too
            library.munge_ctx_destroy(context)

    def _context(self, library: ctypes.CDLL) -> int:
        context: int | None = library.munge_ctx_create()
        if not context:
            raise MungeError("unavailable", "libmunge has no memory left.")
        if self._socket and library.munge_ctx_set(context, _SOCKET_OPTION, self._socket.encode()):
            library.munge_ctx_destroy(context)
            raise MungeError("unavailable", f"libmunge does not take {self._socket!r} as its socket.")
        return context


def _failure(library: ctypes.CDLL, context: int, error: int) -> MungeError:
    told: bytes | None = library.munge_ctx_strerror(context) or library.munge_strerror(error)
    sentence = (told or b"unknown error").decode(errors="replace")
    return MungeError(_REASONS.get(error, "invalid"), f"MUNGE: {sentence}.")


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise MungeError("unavailable", f"MUNGE's library cannot be loaded: {error}.") from error
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    # munge_ctx_set is variadic; an int and a pointer travel as in any call on the ABIs of Linux that we know.
    # Without `argtypes` ctypes would cut pointers to 32 bits.
    table: dict[str, tuple[object, list[object]]] = {
        "munge_ctx_create": (pointer, []),
        "munge_ctx_destroy": (None, [pointer]),
        "munge_ctx_set": (number, [pointer, number, text]),
        "munge_ctx_strerror": (text, [pointer]),
        "munge_strerror": (text, [number]),
        "munge_encode": (number, [pointer, pointer, text, number]),
        "munge_decode": (number, [text, pointer, pointer, pointer, pointer, pointer]),
    }
    for name, (result, arguments) in table.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@lru_cache(maxsize=1)
def _free() -> Callable[[ctypes.c_void_p], None]:
    # The process's own, which is the one that libmunge took memory from, also under a preloaded allocator.
    function = ctypes.CDLL(None).free
    function.restype, function.argtypes = None, [ctypes.c_void_p]
    free: Callable[[ctypes.c_void_p], None] = function
    return free
