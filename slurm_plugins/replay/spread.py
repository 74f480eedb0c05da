"""How much slower a job runs when it is spread over more nodes or leaves than it needs: one table by class.

Sources: Philly (ATC'19): ResNet-50 loses 14.6 % of its images/s across servers (Table 4), jobs of 16 GPUs use 43.66,
40.94 and 28.56 % of their GPUs on 2, 4 and 8 servers (Table 5). A trace that names no class gets Philly's figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

__all__ = ["CLASSES", "slowdown"]

CLASSES: Final[Mapping[str, tuple[float, float, float]]] = {
    "": (1 / (1 - 0.146), 43.66 / 40.94, 43.66 / 28.56),
    "none": (1.0, 1.0, 1.0),
}
"""Class -> run time over that on one node of what fits one and is on several; then for twice, and for four times, as
many nodes as hold the job where it needs several."""


def slowdown(workload: str, fewest: int, nodes: int, leaves: int, fewest_leaves: int) -> float:
    """Run time spread over run time compact, at least 1.

    Between the table's points by the logarithm of how many times the fewest nodes there are; beyond them as at the
    last. Across leaves costs what twice the nodes cost, at least.

    >>> round(slowdown("", 1, 2, 1, 1), 3), round(slowdown("", 2, 8, 1, 1), 3), slowdown("", 2, 2, 1, 1)
    (1.171, 1.529, 1.0)
    """
    one, twice, four = CLASSES.get(workload, CLASSES[""])
    times = nodes / fewest
    if times <= 1:
        cost = 1.0
    elif times <= 2:
        cost = 1 + (twice - 1) * math.log2(times)
    else:
        cost = min(twice + (four - twice) * (math.log2(times) - 1), four)
    if fewest == 1 and nodes > 1:
        cost = max(cost, one)
    return max(cost, twice) if leaves > fewest_leaves else cost
