"""``POST /v1/nodes/NAME/clear``: an operator has looked after a node."""

from __future__ import annotations

import pwd
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from profiler.answers import ClearNode
from profiler.logs import one_line
from slurm_plugins.service.keeper.app import Answer, Request
from slurm_plugins.service.keeper.bad_nodes import Assessing
from slurm_plugins.service.keeper.parameters import Parameter, read_json, read_path, read_query
from slurm_plugins.service.keeper.refusal import RefusedError

__all__ = ["CLEAR", "clearer"]

CLEAR: Final = "/v1/nodes/{name}/clear"
_WORDS: Final = 500

_decoder: Final = msgspec.json.Decoder(ClearNode)


def clearer(assessing: Assessing | None, node: Parameter) -> Callable[[Request], Awaitable[Answer]]:
    """What answers it. `node` reads the node's name in the path; `assessing` None: nothing is weighed here."""

    async def answer(request: Request) -> Answer:
        who = request.proven()
        read_query(request.query, ())
        name: str = read_path(request.values, (node,))["name"]
        if not who.sees_all:
            raise RefusedError(
                403, "this is for operators", "They are named in the site file: operators = [...]."
            )
        request.want_json("the reason comes", "it")
        asked = read_json(_decoder, request.body, 'Send {"why": "GPU 3 replaced"}.')
        why = one_line(asked.why, _WORDS).strip()
        if not why:
            raise RefusedError(400, "it is not said why", 'Send {"why": "GPU 3 replaced"}.')
        if assessing is None or assessing.current is None:
            raise RefusedError(503, "what speaks against nodes is not weighed yet", "Try again in a minute.")
        if not await assessing.knows(name):
            raise RefusedError(
                404, f"there is no node {name}", "GET /v1/bad-nodes tells which are suspected."
            )
        return Answer(200, msgspec.json.encode(await assessing.clear(name, _login(who.uid), why)))

    return answer


def _login(uid: int) -> str:
    """The name of a user, for who reads later who it was."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
