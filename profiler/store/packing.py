"""The columns of a series in one value: JSON by zlib, which every Python can read in ten years."""

from __future__ import annotations

import zlib

import msgspec

from profiler.records import GpuSeries, JobSeries

__all__ = ["packed", "unpacked"]


class _Columns(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is packed of a series."""

    gpus: tuple[GpuSeries, ...] = ()
    cpus: tuple[float | None, ...] = ()
    memory_bytes: tuple[float | None, ...] = ()


_columns_decoder = msgspec.json.Decoder(_Columns)


def packed(record: JobSeries) -> bytes:
    """The columns of a series, compressed: JSON by zlib, which every Python can read in ten years."""
    return zlib.compress(msgspec.json.encode(_Columns(record.gpus, record.cpus, record.memory_bytes)), 6)


def unpacked(data: bytes) -> _Columns:
    """The columns of a series again."""
    return _columns_decoder.decode(zlib.decompress(data))
