"""The runs that each job of a trace makes, worked out before the replay: failures, retries, smoke runs.

Policies of order and placement are compared on the same runs: whoever draws them uses the trace, a table of failures
and a policy of retries, and nothing that happens in the replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_plugins.replay.values import Trace

__all__ = ["Attempts"]


@dataclass(frozen=True)
class Attempts:
    """Runs of all jobs, one after another: those of row j are `offsets[j]` to `offsets[j + 1]`.

    A row without runs is a job that is given up before it starts.
    """

    offsets: NDArray[np.int64]
    """One more than there are jobs."""
    work: NDArray[np.float64]
    """Run time of each run, seconds, at full speed."""
    delay: NDArray[np.float64]
    """Seconds that go by before that run may queue, from the end of the one before or the job's arrival."""
    gpus: NDArray[np.int64]
    """GPUs of that run; 0: the job's own."""
    kept: NDArray[np.bool_]
    """Whether what it did counts; what does not is lost."""

    def __post_init__(self) -> None:
        runs = int(self.offsets[-1])
        if int(self.offsets[0]) != 0 or (np.diff(self.offsets) < 0).any():
            raise ValueError("the offsets of attempts must ascend from 0")
        for name in ("work", "delay", "gpus", "kept"):
            if len(getattr(self, name)) != runs:
                raise ValueError(f"{runs} runs by the offsets, {len(getattr(self, name))} of {name}")
        for name in ("work", "delay"):
            column = getattr(self, name)
            if not (np.isfinite(column).all() and (column >= 0).all()):
                raise ValueError(f"{name} of a run is below 0 or without end")
        if (self.gpus < 0).any():
            raise ValueError("a run asks for less than no GPU")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def once(cls, trace: Trace) -> Attempts:
        """Each job that ran in the trace runs once, for its work; the others not at all."""
        ran = trace["work"] > 0
        runs = int(ran.sum())
        return cls(
            np.concatenate([[0], np.cumsum(ran)]).astype(np.int64),
            trace["work"][ran].astype(np.float64),
            np.zeros(runs),
            np.zeros(runs, np.int64),
            np.ones(runs, np.bool_),
        )

    @classmethod
    def of(cls, rows: Iterable[Sequence[tuple[float, float, int, bool]]]) -> Attempts:
        """From (work, delay, GPUs, kept) of each run of each job.

        >>> Attempts.of([[(60.0, 0.0, 1, False), (600.0, 0.0, 0, True)], []]).offsets.tolist()
        [0, 2, 2]
        """
        listed = [list(row) for row in rows]
        runs = [run for row in listed for run in row]
        return cls(
            np.cumsum([0, *(len(row) for row in listed)]).astype(np.int64),
            np.array([run[0] for run in runs], np.float64),
            np.array([run[1] for run in runs], np.float64),
            np.array([run[2] for run in runs], np.int64),
            np.array([run[3] for run in runs], np.bool_),
        )
