"""What is only shown, never searched, as the store keeps it: findings and decisions as JSON text."""

from __future__ import annotations

from typing import Final

import msgspec

from profiler.findings import Finding
from profiler.resubmissions import Resubmission

__all__ = ["body_of", "finding_of", "readable", "row_of"]

_BODY: Final = 64 << 10
"""Bytes of a finding as it is kept."""

_findings = msgspec.json.Decoder(Finding)
_rows = msgspec.json.Decoder(Resubmission)


def body_of(one: Finding) -> str:
    """A finding as it is kept. One that is too long loses its last evidence and remarks: the first decides."""
    data = msgspec.json.encode(one)
    while len(data) > _BODY and (len(one.evidence) > 1 or one.unseen or one.remarks):
        one = msgspec.structs.replace(
            one, evidence=one.evidence[: max(1, len(one.evidence) // 2)], unseen=one.unseen[:1], remarks=()
        )
        if len(one.evidence) <= 1:
            one = msgspec.structs.replace(one, unseen=())
        data = msgspec.json.encode(one)
    return data.decode()


def finding_of(body: str) -> Finding:
    """What `body_of` wrote."""
    return _findings.decode(body)


def readable(body: str) -> Finding | None:
    """A finding; None for one that another release wrote and this one cannot read: it must not hold up the others."""
    try:
        return finding_of(body)
    except msgspec.MsgspecError:
        return None


def row_of(body: str) -> Resubmission | None:
    """What was decided, as it is kept; None for what another release wrote and this one cannot read."""
    try:
        return _rows.decode(body)
    except msgspec.MsgspecError:
        return None
