"""``POST /v1/points``: a user's run has measured something of its workload.

Kept under the uid of the credential, and used for that user's submissions alone: who sends lies misleads himself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from profiler.answers import PointsTaken
from profiler.logs import one_line
from profiler.points import MAX_SENT, MeasuredError, read
from slurm_plugins.service.keeper.app import Answer, Request
from slurm_plugins.service.keeper.learning import Learning
from slurm_plugins.service.keeper.parameters import read_query
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.keeper.storing import Storing

__all__ = ["POINTS", "Often", "points_taker"]

POINTS: Final = "/v1/points"
_PATIENCE: Final = 6.0
_POSTS: Final = 20
_SECONDS: Final = 60.0
_USERS: Final = 10_000


class Often:
    """Bounds how often each user does something: `most` times in `seconds`."""

    def __init__(
        self,
        most: int = _POSTS,
        seconds: float = _SECONDS,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._now = now
        self._times: dict[int, deque[float]] = {}

    def once(self, uid: int) -> bool:
        """Whether it may once more; counted if so."""
        now = self._now()
        if len(self._times) >= _USERS and uid not in self._times:
            self._times = {
                one: times for one, times in self._times.items() if now - times[-1] < self._seconds
            }
        times = self._times.setdefault(uid, deque(maxlen=self._most))
        if len(times) == self._most and now - times[0] < self._seconds:
            return False
        times.append(now)
        return True


def points_taker(
    cluster: str, storing: Storing, learning: Learning | None, often: Often
) -> Callable[[Request], Awaitable[Answer]]:
    """What answers it. `learning` None: it is kept, and nothing is made of it here."""

    async def answer(request: Request) -> Answer:
        who = request.proven()
        read_query(request.query, ())
        request.want_json("points come", "them")
        store = storing.store  # who finds it closed will come again: that is not often
        if not often.once(who.uid):
            raise RefusedError(
                429, f"that is more than {_POSTS} runs in {_SECONDS:.0f} s", "Send the others in a minute."
            )
        if len(request.body) > MAX_SENT:
            raise RefusedError(413, f"this is over {MAX_SENT >> 10} KiB", "Send fewer points.")
        try:
            measured = read(request.body, time.time())
        except MeasuredError as error:
            raise RefusedError(
                400, f"this is not what a run measured: {one_line(str(error), 200)}", "See docs/api.md."
            ) from None
        if measured.cluster not in {"", cluster}:
            raise RefusedError(
                400,
                f"this service is of the cluster {cluster}, not of {one_line(measured.cluster, 64)}",
                "Send it to the service of the cluster where it was measured.",
            )
        new = await storing.write(
            "points", lambda: store.put_points(cluster, who.uid, [measured]), patience=_PATIENCE
        )
        if new and learning is not None:
            learning.soon(who.uid)
        return Answer(200, msgspec.json.encode(PointsTaken(bool(new))))

    return answer
