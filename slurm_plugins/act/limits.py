"""How fast: a bucket of tokens over all requests, and one for each job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["ALL", "CANCELS", "EACH_JOB", "RELEASES", "Bucket", "Limits"]

Rate = tuple[int, float]
"""So many at once, and so many a second after that."""

ALL: Final[Rate] = (200, 20.0)
"""200 at once and 20 a second after that, over all jobs: a thousand jobs that fail at once, each of which takes a
requeue and an update, are dealt with in 90 s. It is about as fast as one command after the other goes."""
EACH_JOB: Final[Rate] = (10, 10 / 60)
"""10 in a minute to one job: a requeue takes three (requeue, update, update)."""
RELEASES: Final[Rate] = (600, 10.0)
"""Releases have a bucket of their own, so that nothing keeps a job held."""

CANCELS: Final[Rate] = (5, 10 / 3600)
"""5 at once and 10 an hour after that, over all jobs: a rule that is wrong is seen before it has ended a queue."""


class Bucket:
    """Tokens that come back at a steady rate.

    >>> bucket = Bucket((2, 0.5), now=0)
    >>> [bucket.take(now) for now in (0, 0, 0, 2)]
    [0.0, 0.0, 2.0, 0.0]
    """

    __slots__ = ("_burst", "_last", "_rate", "_tokens")

    def __init__(self, rate: Rate, *, now: float) -> None:
        self._burst, self._rate = rate
        self._tokens = float(self._burst)
        self._last = now

    def missing(self, now: float) -> float:
        """Seconds until there is a token; 0 when there is one."""
        # A clock that is set back must not empty the bucket.
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._last) * self._rate)
        self._last = now
        return 0.0 if self._tokens >= 1 else (1 - self._tokens) / self._rate

    def take(self, now: float) -> float:
        """Take a token; else the seconds until there is one."""
        wait = self.missing(now)
        if not wait:
            self._tokens -= 1
        return wait

    def full(self, now: float) -> bool:
        """Whether nothing of it has been used lately."""
        self.missing(now)
        return self._tokens >= self._burst


class Limits:
    """The buckets of gsub-act; `now` is seconds on any clock that does not go back.

    `ended`: when jobs were ended before, as the journal has it: who starts anew may not end five more at once.
    """

    def __init__(self, *, now: float, ended: Iterable[float] = ()) -> None:
        self._all = Bucket(ALL, now=now)
        self._releases = Bucket(RELEASES, now=now)
        self._cancels = Bucket(CANCELS, now=0.0)
        for at in sorted(ended):
            self.end(min(at, now))
        self._jobs: dict[str, Bucket] = {}

    def take(self, job: str, now: float, *, ends: bool = False) -> float:
        """Take a token for an act on `job`; else the seconds until one may be had. Nothing is taken by halves.

        `ends`: it is to end the job; the token of that is only looked for, `end` takes it.
        """
        if len(self._jobs) > 10 * ALL[0]:
            self._jobs = {name: bucket for name, bucket in self._jobs.items() if not bucket.full(now)}
        own = self._jobs.get(job) or Bucket(EACH_JOB, now=now)
        wait = max(own.missing(now), self._all.missing(now), self._cancels.missing(now) if ends else 0.0)
        if not wait:
            self._jobs[job] = own
            own.take(now)
            self._all.take(now)
        return wait

    def end(self, now: float) -> None:
        """Take the token of a job's end: once it is certain, so that what is refused costs none."""
        self._cancels.take(now)

    def release(self, now: float) -> float:
        """As `take`, for a release."""
        return self._releases.take(now)
