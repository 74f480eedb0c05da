"""For how long Slurm keeps a requeued job from starting: where its configuration says that, by release."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["DEFAULT", "requeue_delay"]

DEFAULT: Final = 120.0
"""Seconds where the configuration does not say."""
_NOT_YET: Final = (25, 0)
_SINCE: Final = (26, 5)
"""Releases before and since which `requeue_delay` is known not to count, and to count."""


def requeue_delay(release: tuple[int, int], scheduling: str, auth: str) -> tuple[float, float]:
    """Seconds, at least and at most, out of the values of SchedulerParameters and AuthInfo.

    slurm.conf(5) of 22.05 and 24.11 know `cred_expire` of AuthInfo alone, and 24.11.5 takes `requeue_delay` without a
    word and without effect [seen]; with 26.05 it comes before `cred_expire`. Of those between it is not known.

    >>> requeue_delay((26, 5), "requeue_delay=7", "cred_expire=30"), requeue_delay((22, 5), "requeue_delay=7", "")
    ((7.0, 7.0), (120.0, 120.0))
    >>> requeue_delay((25, 5), "bf_interval=2,requeue_delay=7", "socket=/run/munge,cred_expire=30")
    (7.0, 30.0)
    """
    own, stated = _stated(scheduling, "requeue_delay"), _stated(auth, "cred_expire")
    credential = DEFAULT if stated is None else stated
    if own is None or release < _NOT_YET:
        return credential, credential
    if release >= _SINCE:
        return own, own
    return min(own, credential), max(own, credential)


def _stated(value: str, name: str) -> float | None:
    found = re.search(rf"(?:^|,)\s*{name}=(\d{{1,6}})", value, re.IGNORECASE)
    return None if found is None else float(found[1])
