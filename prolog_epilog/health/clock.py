"""What the kernel knows of its clock: adjtimex(2), which chrony, ntpd and systemd-timesyncd keep told. No network."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

__all__ = ["KernelClock", "kernel_clock"]

_STA_UNSYNC, _STA_NANO = 0x0040, 0x2000
_TIME_ERROR = 5


class _Timex(ctypes.Structure):
    """struct timex of linux/timex.h, with room for what follows `calcnt`."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("constant", "precision", "tolerance", "sec", "usec", "tick")),
        *((name, ctypes.c_long) for name in ("ppsfreq", "jitter")),
        ("shift", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("stabil", "jitcnt", "calcnt", "errcnt", "stbcnt")),
        ("tai", ctypes.c_int),
        ("_room", ctypes.c_int * 64),
    )


@dataclass(frozen=True, slots=True)
class KernelClock:
    """The offset that is being corrected, and the error that the time service estimates; both in seconds."""

    synchronised: bool
    offset: float
    estimated_error: float


def kernel_clock() -> KernelClock:
    """Ask the kernel; changes nothing (modes = 0), and needs no privilege. Raises OSError."""
    timex = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "adjtimex")
    return KernelClock(
        synchronised=state != _TIME_ERROR and not timex.status & _STA_UNSYNC,
        offset=timex.offset / (1e9 if timex.status & _STA_NANO else 1e6),
        estimated_error=timex.esterror / 1e6,
    )
