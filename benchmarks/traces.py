"""Public traces: where a benchmark finds them, and how to get them.

The traces are no part of gsub. A benchmark reads them from the directory of ``--data``, else from ``$GSUB_DATA``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_PHILLY: Final = (
    "Philly's jobs of github.com/msr-fiddle/philly-traces (CC-BY-4.0), as a table in github.com/siasosp23/artifacts: "
    "keep the columns timestamp,duration,num_gpus,gpu_time,cluster"
)
_ITP: Final = (
    "in data/raw-traces.tar.gz of github.com/microsoft/elasticflow-traces (MIT): compress its CSV by gzip"
)
_OPENB: Final = (
    "of data/csv in github.com/hkust-adsl/kubernetes-scheduler-simulator (Apache-2.0): compress it by gzip"
)

SOURCES: Final[Mapping[str, str]] = {
    "philly_jobs.csv.gz": _PHILLY,
    **{f"itp_cluster{number}.csv.gz": f"cluster {number} {_ITP}" for number in ("01", "02", "03", "05")},
    "openb_pods.csv.gz": f"openb_pod_list_default.csv {_OPENB}",
    "openb_nodes.csv.gz": f"openb_node_list_gpu_node.csv {_OPENB}",
    "synergy_static_100jobs.csv": (
        "the static trace of 100 jobs under simulator/deploy_trace in github.com/msr-fiddle/synergy (MIT): "
        "write the columns job,model,arrival_s,iterations,gpus"
    ),
}
"""File name -> where it is published, and what makes this file of it."""


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--data``, the directory of the traces."""
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        default=os.environ.get("GSUB_DATA") or None,
        help="the directory of the public traces; default: $GSUB_DATA",
    )


def find_trace(name: str, data: Path | None) -> Path:
    """Find a public trace.

    Args:
        name: name of its file, a key of SOURCES.
        data: the directory of traces that was given, if any.

    Raises:
        SystemExit: with one sentence on what is missing and how to get it.
    """
    source = SOURCES[name]
    where = (
        f"not found in {data}" if data else "needed, and neither --data DIR nor GSUB_DATA says where it is"
    )
    if data is None or not (path := data / name).is_file():
        raise SystemExit(f"{name} is {where}; it is made of {source}.")
    return path
