"""It failed for a reason that a node can have: keep off the node that failed."""

from __future__ import annotations

from typing import Final

from gsub.fixes.values import Case, Fix, Fixer
from prolog_epilog.failures.taxonomy import REASONS
from site_configs.hostlist import fold

__all__ = ["FIXER"]


def _fix(case: Case) -> Fix | None:
    row = case.row
    if row is None or row.state != "planned" or not row.avoid:
        return None
    change = case.exclude(frozenset(row.avoid))
    if change is None:
        return None
    about = REASONS[case.finding.reason].about
    return Fix(
        f"Keep off {fold(row.avoid)}.",
        f"{about[0].upper()}{about[1:]}: it failed there.",
        options=(change,),
    )


FIXER: Final = Fixer(frozenset(row.name for row in REASONS.values() if row.retry == "other_node"), _fix)
