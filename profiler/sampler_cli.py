"""``python -m profiler.sampler``: the GPU usage of this node over a span of time, for people and for the demo.

Prints when the span ends (``--seconds``), when its input ends (``--until-eof``), or when it is interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from profiler.gpu import GpuSample
from profiler.sampler import GpuSampler
from profiler.usage import GpuUsage, UsageMeter


def main(argv: Sequence[str] | None = None) -> int:
    """Sample, then print. Exit code 0 if any GPU was read, 1 if none, 2 for wrong usage."""
    options = _parser().parse_args(argv)
    if options.interval <= 0:
        print("--interval must be more than 0 seconds.", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A reading stands for the time since the last one; three intervals without any are time not looked at.
    meter = UsageMeter(max_gap=3 * options.interval)
    last: GpuSample | None = None
    started = time.monotonic()
    try:
        with GpuSampler(deadline=options.deadline) as sampler:
            while True:
                due = time.monotonic() + options.interval
                last = sampler.sample()
                meter.add(last)
                if options.seconds is not None:
                    due = min(due, started + options.seconds)
                if _input_ended(due, watch=options.until_eof):
                    break
                if options.seconds is not None and time.monotonic() - started >= options.seconds:
                    break
    except KeyboardInterrupt:
        pass
    usages = meter.usages()
    report = _report(usages, last, time.monotonic() - started)
    print(json.dumps(report) if options.json else _table(report))
    return 0 if usages else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m profiler.sampler", description="GPU usage of this node.")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between samples (1)"
    )
    parser.add_argument("--seconds", type=float, metavar="N", help="end after so many seconds")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input is closed")
    parser.add_argument(
        "--deadline", type=float, default=5.0, metavar="S", help="seconds for the driver to answer (5)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def _input_ended(due: float, *, watch: bool) -> bool:
    """Wait until `due`; True as soon as standard input has ended, if it is watched."""
    if not watch:
        time.sleep(max(due - time.monotonic(), 0.0))
        return False
    with selectors.DefaultSelector() as selector:
        try:
            selector.register(0, selectors.EVENT_READ)
        except (
            PermissionError
        ):  # a plain file: epoll(7) has nothing to wait for, it can be read to its end at once
            return True
        while (left := due - time.monotonic()) > 0:
            if selector.select(left) and not os.read(0, 1 << 16):
                return True
    return False


def _report(usages: Sequence[GpuUsage], last: GpuSample | None, seconds: float) -> dict[str, Any]:
    return {
        "node": os.environ.get("GSUB_EMU_NODE") or os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "seconds": round(seconds, 3),
        "state": last.state if last else "unavailable",
        "detail": last.detail if last else "",
        "hung": list(last.hung) if last else [],
        "unreachable": last.unreachable if last else 0,
        "gpus": [_gpu(usage) for usage in usages],
    }


def _gpu(usage: GpuUsage) -> dict[str, Any]:
    mig = usage.gpu.mig
    return {
        "uuid": usage.gpu.uuid,
        "minor": usage.gpu.minor,
        "name": usage.gpu.name,
        "parent_uuid": mig.parent_uuid if mig else None,
        "gpu_instance": mig.gpu_instance if mig else None,
        "samples": usage.samples,
        "seconds": round(usage.seconds, 3),
        "busy_seconds": _rounded(usage.busy_seconds),
        "idle_at_start_seconds": _rounded(usage.idle_at_start_seconds),
        "utilisation_mean": _rounded(usage.utilisation_mean),
        "utilisation_busy_mean": _rounded(usage.utilisation_busy_mean),
        "memory_peak_bytes": usage.memory_peak_bytes,
        "memory_total_bytes": usage.memory_total_bytes,
        "power_mean_w": _rounded(usage.power_mean_w),
        "xids": list(usage.xids),
        "faults": list(usage.faults),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _table(report: dict[str, Any]) -> str:
    lines = [f"{'GPU':>3}  {'use %':>6}  {'memory':>14}  {'power W':>7}  {'busy s':>7}  name"]
    for gpu in report["gpus"]:
        peak, size = gpu["memory_peak_bytes"], gpu["memory_total_bytes"]
        memory = "n/a" if peak is None else f"{peak / 2**30:.1f} of {size / 2**30:.0f} GiB"
        lines.append(
            f"{_text(gpu['minor'], 'd'):>3}  {_text(gpu['utilisation_mean'], '.1f'):>6}  {memory:>14}  "
            f"{_text(gpu['power_mean_w'], '.0f'):>7}  {_text(gpu['busy_seconds'], '.1f'):>7}  {gpu['name']}"
        )
    if not report["gpus"]:
        lines = []
    if report["detail"]:
        lines.append(report["detail"])
    return "\n".join(lines)


def _text(value: float | None, form: str) -> str:
    return "n/a" if value is None else format(value, form)
