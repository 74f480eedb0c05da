"""A real Slurm on one machine, with emulated GPUs: the site of the examples and of the tests.

>>> from site_configs.devcluster import Cluster, ClusterSpec           # doctest: +SKIP
>>> cluster = Cluster.up(ClusterSpec(nodes=2))                         # doctest: +SKIP
>>> cluster.run(["sinfo"]).stdout                                      # doctest: +SKIP

From the shell: ``python -m site_configs.devcluster up|down|status|restart|env|run``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from site_configs.devcluster.cluster import Cluster
    from site_configs.devcluster.spec import ClusterSpec, DevClusterError

__all__ = ["Cluster", "ClusterSpec", "DevClusterError"]

_HOME = {
    "Cluster": "site_configs.devcluster.cluster",
    "ClusterSpec": "site_configs.devcluster.spec",
    "DevClusterError": "site_configs.devcluster.spec",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    # Late, so that a training script that imports `emugpu` from here pays for nothing else.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
