"""GPUs as the environment shows them, and their memory."""

from __future__ import annotations

import os

__all__ = ["OutOfMemoryError", "allocate", "device_count", "set_device"]

_GIB = 79.15


class OutOfMemoryError(RuntimeError):
    """As torch.cuda's."""


def device_count() -> int:
    """How many this process may use."""
    return len([word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word])


def set_device(index: int) -> None:
    """Fails where there is no such GPU."""
    if index >= device_count():
        raise RuntimeError(
            "CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported at some other API "
            "call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
        )


def allocate(gib: float, gpus: int = 1) -> None:
    """A model of that size, spread over so many GPUs."""
    there = min(gpus, max(device_count(), 1))
    if gib / there > _GIB:
        raise OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of {_GIB} GiB of which 1.12 "
            "GiB is free. Of the allocated memory 77.10 GiB is allocated by PyTorch"
        )
