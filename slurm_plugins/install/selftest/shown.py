"""A job as `scontrol show job` has it, field by field: is it the job that its user asked for?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["differences", "fields_of"]

_KEY: Final = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=")

_OWN: Final = frozenset(
    {
        "JobId",
        "AllocNode:Sid",
        "Priority",
        "SubmitTime",
        "EligibleTime",
        "AccrueTime",
        "StartTime",
        "EndTime",
        "LastSchedEval",
        "Scheduler",
        "Reason",
        "RunTime",
        "SuspendTime",
        "SecsPreSuspend",
        "SchedNodeList",
        "SLUID",
    }
)
"""What differs between two jobs that were asked for alike."""


def fields_of(text: str) -> dict[str, str]:
    """The fields of ``scontrol --oneliner show job``.

    >>> fields_of("JobId=7 JobName=a b Nice=0 SubmitLine=sbatch --nodes=1 TRES=cpu=1,mem=2M")
    {'JobId': '7', 'JobName': 'a b', 'Nice': '0', 'SubmitLine': 'sbatch --nodes=1', 'TRES': 'cpu=1,mem=2M'}
    """
    found = list(_KEY.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return {match[1]: text[match.end() : end].strip() for match, end in zip(found, ends, strict=True)}


def differences(
    one: Mapping[str, str], other: Mapping[str, str], *, but: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """The names of the fields in which two jobs differ, apart from what no two jobs share and from `but`.

    >>> differences({"JobId": "7", "NumNodes": "1-2"}, {"JobId": "8", "NumNodes": "1", "AdminComment": "gsub:d-1"})
    ('AdminComment', 'NumNodes')
    """
    left_out = _OWN | but
    return tuple(
        sorted(name for name in {*one, *other} - left_out if one.get(name, "") != other.get(name, ""))
    )
