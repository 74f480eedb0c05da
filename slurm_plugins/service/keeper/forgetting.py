"""``POST /v1/curves/forget``: what was measured of a workload is no more, as it was wrong.

A user's own; an operator may say whose. Decisions go by what is left from a second or two later.
"""

from __future__ import annotations

import asyncio
import pwd
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from profiler.answers import ForgetWorkload, Forgotten
from profiler.logs import one_line
from slurm_plugins.service.keeper.app import Answer, Request
from slurm_plugins.service.keeper.auth import Who
from slurm_plugins.service.keeper.learning import Learning
from slurm_plugins.service.keeper.parameters import read_json, read_query
from slurm_plugins.service.keeper.points import Often
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.keeper.storing import Storing

__all__ = ["FORGET", "forgetter", "meant"]

FORGET: Final = "/v1/curves/forget"
_PATIENCE: Final = 6.0
_SHOWN: Final = 3
_SAID: Final = 80
_MOST_UID: Final = 2**32 - 2

_decoder: Final = msgspec.json.Decoder(ForgetWorkload)


def forgetter(
    cluster: str, storing: Storing, learning: Learning | None, often: Often
) -> Callable[[Request], Awaitable[Answer]]:
    """What answers it. `learning` None: nothing is made of what runs measured here."""

    async def answer(request: Request) -> Answer:
        who = request.proven()
        read_query(request.query, ())
        request.want_json("the workload comes", "it")
        asked = read_json(_decoder, request.body, 'Send {"workload": "own:resnet"}.')
        store = storing.store
        if not often.once(who.uid):
            raise RefusedError(429, "that is too often", "Forget the others in a minute.")
        uid = await asyncio.to_thread(_owner, who, asked.user)
        runs = await storing.read(lambda: store.named(cluster, uid), who.uid)
        name = meant(asked.workload, (name for _, names in runs for name in names))
        keys = [key for key, names in runs if name in names]
        count = await storing.write("points", lambda: store.forget(cluster, uid, keys), patience=_PATIENCE)
        if learning is not None:
            learning.soon(uid)
        return Answer(200, msgspec.json.encode(Forgotten(name, count)))

    return answer


def _owner(who: Who, user: str) -> int:
    """Whose workload is meant. Raises RefusedError. Blocks."""
    if not user:
        return who.uid
    uid = _uid_of(user)
    if uid == who.uid:
        return who.uid
    if not who.sees_all:
        raise RefusedError(
            403,
            "another user's workloads are for operators",
            "They are named in the site file: operators = [...].",
        )
    if uid is None:
        raise RefusedError(404, f"there is no user {one_line(user, _SAID)} here", "A uid will do, too.")
    return uid


def _uid_of(user: str) -> int | None:
    """The uid that is meant; None for no user."""
    if user.isascii() and user.isdecimal():
        return int(user) if int(user) <= _MOST_UID else None
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):  # a NUL is in no name
        return None


def meant(wanted: str, names: Iterable[str]) -> str:
    """The one of these names that is it, or that alone begins so. Raises RefusedError.

    >>> meant("run:a1", ["run:a1b2", "own:a1", "run:a1b2"])
    'run:a1b2'
    """
    known = set(names)
    found = [wanted] if wanted in known else sorted(name for name in known if name.startswith(wanted))
    if not found:
        raise RefusedError(
            404,
            f"nothing was measured of a workload {one_line(wanted, _SAID)}",
            "'gsub learn --show' has the names of yours.",
        )
    if len(found) > 1:
        some = ", ".join(one_line(name, _SAID) for name in found[:_SHOWN])
        raise RefusedError(
            400, f"{len(found)} names begin with {one_line(wanted, _SAID)}: {some}...", "Name one of them."
        )
    return found[0]
