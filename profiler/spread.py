"""What spreading a job over nodes and leaf switches costs by class of workload, where nothing was measured. Pure.

Sources: for five models the table of Chronus (Gao et al., SoCC'21), throughput of k GPUs on n nodes relative to one
node; for a workload of which nothing is known Philly (Jeon et al., ATC'19), Table 4 for two GPUs and Table 5, where GPU
utilisation stands for throughput, for sixteen. A class is looked up by its model's name; others are `UNKNOWN`.

Between the counts that were measured the excess over 1 is interpolated, linearly in GPUs and in doublings of nodes, and
drawn on beyond them. That one more leaf switch costs as much as twice the nodes is a supposition, no measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

__all__ = ["CLASSES", "UNKNOWN", "known_class", "slowdown"]

UNKNOWN: Final = ""

_Table = Mapping[tuple[int, int], float]

_RELATIVE: Final[Mapping[str, _Table]] = {
    UNKNOWN: {(2, 2): 98.0 / 114.8, (8, 2): 40.94 / 43.66, (8, 4): 28.56 / 43.66},
    "alexnet": {(2, 2): 0.745, (4, 2): 0.397, (4, 4): 0.325, (6, 2): 0.331, (8, 2): 0.508, (8, 4): 0.268},
    "vgg16": {(2, 2): 0.896, (4, 2): 0.576, (4, 4): 0.318, (6, 2): 0.657, (8, 2): 0.572, (8, 4): 0.261},
    "resnet101": {(2, 2): 0.991, (4, 2): 0.969, (4, 4): 0.954, (6, 2): 0.949, (8, 2): 0.948, (8, 4): 0.803},
    "mobilenet_v2": {
        (2, 2): 0.996,
        (4, 2): 0.972,
        (4, 4): 0.794,
        (6, 2): 0.958,
        (8, 2): 0.930,
        (8, 4): 0.627,
    },
    "inception_v3": {
        (2, 2): 1.003,
        (4, 2): 0.983,
        (4, 4): 0.964,
        (6, 2): 0.951,
        (8, 2): 0.923,
        (8, 4): 0.879,
    },
}
"""(GPUs, nodes) -> throughput relative to the same GPUs on one node. Philly's sixteen GPUs on two, four and eight nodes
of eight stand as eight GPUs on one, two and four."""

CLASSES: Final = tuple(_RELATIVE)

_ALIKE: Final = {
    "alexnet": ("alexnet",),
    "vgg16": ("vgg", "vgg11", "vgg13", "vgg19"),
    "resnet101": ("res18", "res50", "resnet", "resnet18", "resnet34", "resnet50", "resnet152"),
    "mobilenet_v2": ("mobilenet", "shufflenet"),
    "inception_v3": ("inception", "inception3", "googlenet"),
}
_CLASS_OF: Final = {name: one for one, names in _ALIKE.items() for name in (*names, one)}


def known_class(workload: str) -> str:
    """The class of a workload by its model's name, `UNKNOWN` for others.

    >>> known_class("ResNet50"), known_class("our own model")
    ('resnet101', '')
    """
    return _CLASS_OF.get(workload.strip().lower().replace("-", "_"), UNKNOWN)


def slowdown(
    workload: str, gpus: int, nodes: int, leaves: int = 1, *, gpus_a_node: int = 8, fewest_leaves: int = 1
) -> float:
    """Run time on `nodes` nodes under `leaves` leaf switches over that on the fewest that hold `gpus`; at least 1.

    `gpus_a_node`: how many a node holds. `fewest_leaves`: under how many it would be at best.

    >>> slowdown("vgg16", 8, 1), round(slowdown("vgg16", 8, 4), 2), round(slowdown("", 16, 8), 2)
    (1.0, 3.83, 1.53)

    Raises ValueError for counts below 1, for gpus on no node of that size.
    """
    if min(gpus, nodes, leaves, gpus_a_node, fewest_leaves) < 1:
        raise ValueError(f"{gpus} GPUs on {nodes} nodes of {gpus_a_node} under {leaves} leaves")
    fewest = -(-gpus // gpus_a_node)
    hops = math.log2(max(nodes / fewest, 1.0)) + math.log2(max(leaves / fewest_leaves, 1.0))
    if gpus == 1 or hops == 0:
        return 1.0
    table = _RELATIVE[known_class(workload)]
    two = _excess(table, gpus, 2)
    four = max(_excess(table, gpus, 4), two)
    # straight in doublings through 0 at none, and on from there
    return 1.0 + (two * hops if hops <= 1 else two + (four - two) * (hops - 1))


def _excess(table: _Table, gpus: int, nodes: int) -> float:
    """At `nodes` nodes, linear between the counts of GPUs that were measured, flat beyond; never below 0."""
    known = sorted((k, max(1.0 / share - 1.0, 0.0)) for (k, n), share in table.items() if n == nodes)
    below = [one for one in known if one[0] <= gpus] or known[:1]
    above = [one for one in known if one[0] >= gpus] or known[-1:]
    (k0, e0), (k1, e1) = below[-1], above[0]
    return e0 if k0 == k1 else e0 + (e1 - e0) * (gpus - k0) / (k1 - k0)
