"""What each queue may count on, where nobody wrote it down: shares of the cluster's GPUs."""

from __future__ import annotations

import numpy as np

from slurm_plugins.replay.traces.files import TraceError
from slurm_plugins.replay.values import Trace

__all__ = ["quotas"]


def quotas(text: str, trace: Trace, gpus: int) -> dict[str, int]:
    """GPUs by queue: ``demand``, by what its jobs hold in all; ``even``; or ``QUEUE=GPUS,QUEUE=GPUS``.

    Shares add up to all GPUs: the largest remainders are rounded up. A queue of `demand` and `even` gets one at least.

    >>> from slurm_plugins.replay.values import Job
    >>> trace = Trace.of([Job(1, 0.0, 30.0, queue="a"), Job(2, 0.0, 10.0, queue="b")])
    >>> quotas("demand", trace, 8), quotas("even", trace, 9), quotas("b=2", trace, 8)
    ({'a': 6, 'b': 2}, {'a': 5, 'b': 4}, {'b': 2})

    Raises TraceError.
    """
    names = trace.words["queue"]
    if text not in ("demand", "even"):
        return _listed(text, frozenset(names))
    held = np.bincount(trace["queue"], trace["gpus"] * trace["work"], len(names))
    weights = np.ones(len(names)) if text == "even" or not held.sum() else held
    shares = weights / weights.sum() * gpus
    made = np.floor(shares).astype(int)
    for place in np.argsort(made - shares, kind="stable")[: gpus - int(made.sum())]:
        made[place] += 1
    return {name: max(int(share), 1) for name, share in zip(names, made, strict=True)}


def _listed(text: str, known: frozenset[str]) -> dict[str, int]:
    made: dict[str, int] = {}
    for word in text.split(","):
        name, equals, number = word.rpartition("=")
        if not equals or not number.isascii() or not number.isdigit():
            raise TraceError(f"quota {word!r}", "write demand, even, or QUEUE=GPUS,QUEUE=GPUS")
        if name not in known:
            some = ", ".join(sorted(known)[:5])
            raise TraceError(f"quota {word!r}: the trace has no such queue", f"its queues are {some}")
        made[name] = int(number)
    return made
