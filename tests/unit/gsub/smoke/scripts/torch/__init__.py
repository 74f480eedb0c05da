"""Stands in for PyTorch in the scripts of the proof: what it prints and raises, and nothing of what it computes.

It is on the path of those scripts alone. A minute of their start-up or training takes `MINUTE_S` seconds (default 60).
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from . import cuda, distributed

__all__ = ["Linear", "Tensor", "cuda", "distributed", "load", "minutes", "save"]


def minutes(count: float) -> None:
    """What takes that long in a real job: imports, reading data, steps."""
    time.sleep(count * float(os.environ.get("MINUTE_S", "60")))


class Tensor:
    """A shape and a type."""

    def __init__(self, *shape: int, dtype: str = "Float") -> None:
        self.shape, self.dtype = shape, dtype

    def __matmul__(self, other: Tensor) -> Tensor:
        if self.dtype != other.dtype:
            raise RuntimeError(f"expected scalar type {self.dtype} but found {other.dtype}")
        (rows, inner), (outer, columns) = self.shape, other.shape
        if inner != outer:
            raise RuntimeError(
                f"mat1 and mat2 shapes cannot be multiplied ({rows}x{inner} and {outer}x{columns})"
            )
        return Tensor(rows, columns, dtype=self.dtype)


class Linear:
    """A layer, which is a model here."""

    def __init__(self, inner: int, columns: int) -> None:
        self.weight = Tensor(inner, columns)

    def __call__(self, batch: Tensor) -> Tensor:
        return batch @ self.weight

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        theirs, ours = tuple(state["weight"]), self.weight.shape
        if theirs != ours:
            raise RuntimeError(
                "Error(s) in loading state_dict for Net:\n\tsize mismatch for head.weight: copying a param with shape "
                f"torch.Size({list(theirs)}) from checkpoint, the shape in current model is torch.Size({list(ours)})."
            )


def save(state: object, path: str) -> None:
    """As JSON; only PyTorch's errors are meant."""
    parent = Path(path).parent
    if not parent.is_dir():
        raise RuntimeError(f"Parent directory {parent} does not exist.")
    Path(path).write_text(json.dumps(state))


def load(path: str) -> object:
    """What `save` wrote."""
    try:
        return json.loads(Path(path).read_text())
    except json.JSONDecodeError:
        raise RuntimeError(
            "PytorchStreamReader failed reading zip archive: failed finding central directory"
        ) from None
