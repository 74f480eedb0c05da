"""Ranks find each other through files; who waits in vain gives up after `RENDEZVOUS_MIN` minutes."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["DistStoreError", "get_rank", "get_world_size", "init_process_group"]

RENDEZVOUS_MIN = 30.0


class DistStoreError(RuntimeError):
    """As torch.distributed's."""


def get_world_size() -> int:
    """torchrun's, else Slurm's."""
    return int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or 1)


def get_rank() -> int:
    """torchrun's, else Slurm's."""
    return int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)


def init_process_group(backend: str) -> None:
    """All ranks, or DistStoreError."""
    world = get_world_size()
    folder = Path.home() / ".ranks" / f"{os.environ.get('SLURM_JOB_ID', 'none')}-{backend}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(get_rank())).touch()
    until = time.monotonic() + RENDEZVOUS_MIN * float(os.environ.get("MINUTE_S", "60"))
    while (there := len(list(folder.iterdir()))) < world:
        if time.monotonic() > until:
            seconds = RENDEZVOUS_MIN * 60
            raise DistStoreError(
                f"Timed out after {seconds:.0f} seconds waiting for clients. {there}/{world} clients joined."
            )
        time.sleep(0.2)
