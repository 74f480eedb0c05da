"""What one run of a workload measured, as it travels to the service: `Measured`. Pure.

The user sends it, so nothing in it is believed beyond that user's own jobs; it is bounded all the same, since what is
kept of it is disk, and what is made of it is time.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from profiler.curves import Point

__all__ = ["MAX_CPUS", "MAX_POINTS", "MAX_SENT", "Measured", "MeasuredError", "Source", "checked", "read"]

Source = Literal["learn", "smoke", "run"]
"""Measured on purpose (`gsub learn`), by a smoke run, or by an ordinary run."""

MAX_POINTS: Final = 64
MAX_CPUS: Final = 4096
"""Of a node: a curve has a value for each, and all are written down."""
MAX_SENT: Final = 256 * 1024
"""Bytes of a `Measured` as JSON."""
_YEAR: Final = 366 * 86400.0
_AHEAD: Final = 3600.0  # how far a node's clock may be ahead
_NAME: Final = re.compile(
    r"(?:own|run|args|script|text|like|name):[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,251}"
)
_FASTEST: Final = 1e9
_SLOWEST: Final = 1e-7

_Name = Annotated[str, Meta(min_length=3, max_length=256)]


class MeasuredError(ValueError):
    """What was sent is no measurement; the message says what of it, and holds nothing that the sender wrote."""


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run showed of how its throughput depends on CPUs, and how much memory it came to use.

    Parameters
    ----------
    id: 32 hexadecimal digits; the service passes over a repeat.
    at: when it ended, seconds since the epoch. job: Slurm's number of the job that measured; 0 where there is none.
    workload: the names under which it may be known (`profiler.workload.Identity.fingerprints`), the most telling first.
    cluster: empty where it is not known. gpu_type: Slurm's, as in ``gres:gpu:a100:1``; empty where it names none.
    gpus: the job's on its node; cap: the CPUs that it could have used there.
    points: throughput at counts of CPUs, all GPUs together, without the warm-up; none where only memory was seen.
    peak_memory: bytes on that node; None where it was not seen. restarts: how often the job had been requeued.
    """

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
    at: Annotated[float, Meta(ge=0, le=4e9)]
    source: Source
    workload: Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=8)]
    cluster: Annotated[str, Meta(max_length=64)] = ""
    gpu_type: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{0,64}$")] = ""
    gpus: Annotated[int, Meta(ge=1, le=1024)] = 1
    cap: Annotated[int, Meta(ge=0, le=65536)] = 0
    points: Annotated[tuple[Point, ...], Meta(max_length=MAX_POINTS)] = ()
    peak_memory: Annotated[int, Meta(ge=1, le=1 << 60)] | None = None
    job: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    restarts: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    v: Literal[1] = 1


_decoder: Final = msgspec.json.Decoder(Measured)


def read(data: bytes, now: float) -> Measured:
    """What was sent, if it can be. Raises MeasuredError."""
    if len(data) > MAX_SENT:
        raise MeasuredError(f"it is longer than {MAX_SENT} bytes")
    try:
        return checked(_decoder.decode(data), now)
    except MeasuredError:
        raise
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MeasuredError(str(error)[:200]) from None


def checked(measured: Measured, now: float) -> Measured:
    """The same, if its numbers can be true. Raises MeasuredError.

    >>> point = Point(4, 1e12, 0.1)
    >>> checked(Measured("0" * 32, 0.0, "run", ("name:train",), points=(point,)), 0.0)
    Traceback (most recent call last):
    profiler.points.MeasuredError: points[0]: 1e+12 steps a second are no throughput
    """
    for name in measured.workload:
        if not _NAME.fullmatch(name):
            raise MeasuredError("workload: want names of profiler.workload, like script: and a digest")
    if not now - 2 * _YEAR <= measured.at <= now + _AHEAD:
        raise MeasuredError("at: it is of another time than the service's")
    if not measured.points and measured.peak_memory is None:
        raise MeasuredError("there is neither a point nor a peak of memory in it")
    for place, point in enumerate(measured.points):
        if why := _implausible(point, measured, now):
            raise MeasuredError(f"points[{place}]: {why}")
    return measured


def _implausible(point: Point, measured: Measured, now: float) -> str:
    if not _SLOWEST <= point.rate <= _FASTEST:
        return f"{point.rate:g} steps a second are no throughput"
    if point.error > point.rate:
        return "its standard error is more than the throughput"
    if point.cpus > min(measured.cap or MAX_CPUS, MAX_CPUS):
        return "it has more CPUs than the run could use"
    if not (0 <= point.steps < 1 << 53 and 0 <= point.seconds <= _YEAR):
        return "want steps and seconds that a run can have"
    if not (point.at == 0 or now - 2 * _YEAR <= point.at <= now + _AHEAD):
        return "it is of another time than the service's"
    return ""
