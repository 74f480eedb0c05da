"""The Xid errors of NVIDIA's driver: what each means, and whether the hardware or the user's program is to blame.

Source: NVIDIA, "XID Errors", analysis and catalogue (docs.nvidia.com/deploy/xid-errors), for Volta to Blackwell. An
Xid that a program of a user can cause by itself never speaks against a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

__all__ = ["XIDS", "Xid", "xid"]


@dataclass(frozen=True, slots=True)
class Xid:
    """An Xid. `state` "error": the GPU must be reset or replaced, it counts until the node boots; "warning": worth
    knowing, it counts for an hour; "info": the user's program can cause it by itself, it is only recorded."""

    code: int
    state: Literal["info", "warning", "error"]
    meaning: str
    advice: str = ""


_RESET = "reset the GPU (nvidia-smi -r) or boot the node"
_REPLACE = "boot the node; if it comes again, have the GPU replaced"
_AGAIN = "if it comes again, run NVIDIA's field diagnosis"

_TABLE = (
    Xid(8, "warning", "GPU stopped processing", _AGAIN),
    Xid(11, "info", "invalid or corrupted push buffer"),
    Xid(13, "info", "exception in a kernel (bad index or instruction)"),
    Xid(31, "info", "memory page fault (bad address)"),
    Xid(32, "warning", "invalid or corrupted push buffer (bus or program)", _AGAIN),
    Xid(38, "warning", "driver firmware error", _AGAIN),
    Xid(43, "info", "the program's channel was stopped"),
    Xid(44, "warning", "fault during a context switch", _AGAIN),
    Xid(45, "info", "the program was ended or cleaned up"),
    Xid(46, "error", "GPU stopped processing and timed out", _RESET),
    Xid(48, "error", "double-bit ECC error", _RESET),
    Xid(54, "error", "auxiliary power is not connected", "check the power cables"),
    Xid(61, "warning", "internal micro-controller breakpoint or warning", _AGAIN),
    Xid(62, "error", "internal micro-controller halt", _RESET),
    Xid(63, "warning", "a memory page or row was marked for replacement", "reset the GPU when it is free"),
    Xid(64, "error", "a memory page or row could not be replaced", _REPLACE),
    Xid(68, "info", "exception in a video decoder"),
    Xid(69, "info", "graphics engine class error"),
    Xid(74, "error", "NVLink error", "reset the GPU; if it comes again, check bridge or switch"),
    Xid(79, "error", "GPU has fallen off the bus", _REPLACE),
    Xid(92, "warning", "high rate of single-bit ECC errors", _AGAIN),
    Xid(94, "warning", "contained memory error: its job was ended", "reset the GPU when it is free"),
    Xid(95, "error", "uncontained memory error", _RESET),
    Xid(109, "warning", "context switch timed out (a program can cause it)", _AGAIN),
    Xid(110, "error", "security fault", _REPLACE),
    Xid(119, "error", "GPU system processor (GSP) does not answer", _RESET),
    Xid(120, "error", "GPU system processor (GSP) failed", _RESET),
    Xid(121, "warning", "corrected error on the link to the CPU (C2C)", _AGAIN),
    Xid(136, "error", "link training failed", _RESET),
    Xid(137, "info", "NVLink fault of a program's access"),
    Xid(140, "error", "unrecovered ECC error", _RESET),
    Xid(143, "error", "GPU could not be initialised", _RESET),
    Xid(145, "error", "NVLink error (RLW)", _RESET),
    Xid(149, "error", "NVLink error (NETIR)", _RESET),
    Xid(154, "warning", "the driver wants the GPU reset or the node booted", "see the kernel's log"),
    Xid(155, "error", "NVLink is down by software", _RESET),
    Xid(156, "warning", "a resource of the GPU was retired", "reset the GPU when it is free"),
    Xid(158, "error", "GPU timed out for good", _REPLACE),
)

XIDS: Mapping[int, Xid] = MappingProxyType({row.code: row for row in _TABLE})
"""By code."""


def xid(code: int) -> Xid:
    """What an Xid means; one that is not in the table is a warning, as new GPUs bring new ones."""
    return XIDS.get(code) or Xid(code, "warning", "not in gsub's table", "look it up in NVIDIA's catalogue")
