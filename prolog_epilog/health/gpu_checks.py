"""The checks of GPUs: pure functions of what the samples show. None is "not known", of which nothing is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from profiler.gpu import GpuReading
from prolog_epilog.health.finding import Finding, Limits, State, cleaned, worst
from prolog_epilog.health.gpu_view import DRIVER, GpuView
from prolog_epilog.health.xids import xid

__all__ = ["GpuCheck"]

GpuCheck: TypeAlias = Callable[[GpuView, Limits], Iterator[Finding]]

# NVML's errors of a GPU that only a reset or a boot brings back
_GONE: Final = frozenset({"GPU_IS_LOST", "RESET_REQUIRED"})
_SLOWED: Final = {
    "hw_slowdown": "hardware slowdown",
    "hw_thermal": "too hot",
    "hw_power_brake": "power brake",
}
_BUSY: Final = 50  # per cent of time with a kernel: below, low clocks are as they should be


def gpu_count(view: GpuView, limits: Limits) -> Iterator[Finding]:
    """Whether as many GPUs answer as there should be. A driver that hangs tells no count."""
    del limits
    if not view.expected or view.sample.state == "hung":
        return
    if view.sample.reader_failed:  # a broken installation of ours must not speak against the node
        yield Finding("unknown", cleaned(view.sample.detail))
        return
    answering = sum(reading.fault is None for reading in _whole(view))
    state: State = "ok" if answering >= view.expected else "error"
    yield Finding(state, f"{answering} of {view.expected} GPUs answer")


def gpu_lost(view: GpuView, limits: Limits) -> Iterator[Finding]:
    """Whether each GPU answers: NVML's own word for a lost one, or seconds for which a driver call hangs."""
    for reading in _whole(view):
        uuid = reading.gpu.uuid
        if reading.fault:
            detail = f"{view.name(uuid)} does not answer: NVML says {reading.fault}"
            yield Finding("error", detail, uuid, uuid, certain=reading.fault in _GONE)
        elif uuid not in view.hung_for:
            yield Finding("ok", f"{view.name(uuid)} answers", uuid, uuid)
    for uuid, seconds in view.hung_for.items():
        who = "the driver" if uuid == DRIVER else view.name(uuid)
        detail = f"a driver call hangs: {who} has not answered for {seconds:.0f} s"
        yield Finding(limits.judge(seconds), detail, uuid or "driver", uuid)
    if DRIVER not in view.hung_for and view.sample.state == "ok":
        yield Finding("ok", "the driver answers", "driver")
    nameless = view.sample.unreachable
    if nameless:
        yield Finding("error", f"{nameless} of the driver's GPUs cannot be asked who they are", "nameless")
    elif view.sample.state == "ok":
        yield Finding("ok", "all GPUs say who they are", "nameless")


def ecc_uncorrected(view: GpuView, limits: Limits) -> Iterator[Finding]:
    """Errors of memory that ECC could not correct, since the driver was loaded."""
    for reading in _whole(view):
        if (errors := reading.ecc_uncorrected) is not None:
            detail = f"{errors} uncorrected memory errors"
            yield _of(view, reading, limits.judge(errors), detail, certain=True)


def row_remap(view: GpuView, limits: Limits) -> Iterator[Finding]:
    """Replaced memory rows (since Ampere): one that failed, or that waits for a reset."""
    del limits
    for reading in _whole(view):
        if reading.remap_failed:
            yield _of(view, reading, "error", "a memory row could not be replaced", certain=True)
        elif reading.remap_pending:
            yield _of(view, reading, "warning", "a memory row waits for a reset to be replaced", certain=True)
        elif reading.remap_failed is not None or reading.remap_pending is not None:
            yield _of(view, reading, "ok", "no memory row waits")


def retired_pages(view: GpuView, limits: Limits) -> Iterator[Finding]:
    """Retired memory pages (before Ampere) that wait for a reset."""
    del limits
    for reading in _whole(view):
        if reading.retirement_pending is not None:
            waits = reading.retirement_pending
            detail = "a memory page waits for a reset to be retired" if waits else "no memory page waits"
            yield _of(view, reading, "warning" if waits else "ok", detail, certain=waits)


def xids(view: GpuView, limits: Limits) -> Iterator[Finding]:
    """Xids that count: those of the hardware until the node boots, those that warn for an hour."""
    del limits
    silent = [
        r.gpu.uuid for r in _whole(view) if r.xids is not None and not r.fault and r.gpu.uuid not in view.xids
    ]
    for uuid in silent:
        yield Finding("ok", f"{view.name(uuid)}: no Xid", uuid, uuid)
    for uuid, held in view.xids.items():
        rows = sorted(((xid(one.code), one.count) for one in held), key=lambda row: row[0].state)
        said = "; ".join(
            f"Xid {row.code} ({row.meaning})" + (f", {count} times" if count > 1 else "")
            for row, count in rows[:5]
        )
        state = worst("error" if row.state == "error" else "warning" for row, _ in rows)
        yield Finding(state, f"{view.name(uuid)}: {said}", uuid, uuid, certain=True)


def nvlink(view: GpuView, limits: Limits) -> Iterator[Finding]:
    """NVLinks that are down, against what the GPU once had and what most of the node's GPUs like it have."""
    readings = [reading for reading in _whole(view) if reading.nvlinks]
    for reading in readings:
        active = sum(reading.nvlinks or ())
        alike = Counter(sum(other.nvlinks or ()) for other in readings if other.gpu.name == reading.gpu.name)
        usual = max(alike.items(), key=lambda pair: (pair[1], pair[0]))[0]
        down = max(usual, view.most_links.get(reading.gpu.uuid, 0)) - active
        detail = f"{down} of {active + down} NVLinks are down" if down > 0 else f"{active} NVLinks are up"
        yield _of(view, reading, limits.judge(down), detail)


def clocks_stuck(view: GpuView, limits: Limits) -> Iterator[Finding]:
    """A busy GPU at a clock far below its best, which none of NVML's reasons explains."""
    for reading in _whole(view):
        clock, best, busy = reading.clock_sm_mhz, reading.clock_sm_max_mhz, reading.utilisation
        if clock is None or not best or busy is None or reading.throttle is None:
            continue
        percent = 100 * clock / best
        slow = busy >= _BUSY and not reading.throttle
        detail = f"busy at {clock} of {best} MHz, without a reason" if slow else f"at {clock} of {best} MHz"
        yield _of(view, reading, limits.judge(percent) if slow else "ok", detail)


def hw_slowdown(view: GpuView, limits: Limits) -> Iterator[Finding]:
    """Clocks slowed by the hardware itself: heat, or the power supply's brake."""
    del limits
    for reading in _whole(view):
        if reading.throttle is None:
            continue
        reasons = [text for name, text in _SLOWED.items() if name in reading.throttle]
        detail = f"slowed by its hardware ({', '.join(reasons)})" if reasons else "not slowed by its hardware"
        yield _of(view, reading, "warning" if reasons else "ok", detail)


def gpu_temperature(view: GpuView, limits: Limits) -> Iterator[Finding]:
    """Degrees Celsius of the chip."""
    for reading in _whole(view):
        if (degrees := reading.temperature_c) is not None:
            yield _of(view, reading, limits.judge(degrees), f"{degrees} °C")


def _whole(view: GpuView) -> list[GpuReading]:
    return [reading for reading in view.sample.readings if reading.gpu.mig is None]


def _of(view: GpuView, reading: GpuReading, state: State, detail: str, *, certain: bool = False) -> Finding:
    uuid = reading.gpu.uuid
    return Finding(state, f"{view.name(uuid)}: {detail}", uuid, uuid, certain)
