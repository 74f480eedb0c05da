"""The addresses of Slurm's nodes, looked up where this host looks up names.

Runs as a process of its own (``python -m slurm_plugins.service.keeper.addresses``): ten thousand names at a name server
that does not answer are hours, and then it is ended. Names that were not found in time are left out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from concurrent.futures import TimeoutError as OutOfTimeError
from typing import Final

import msgspec

from profiler.logs import one_line
from site_configs.site import parse_site
from slurm_plugins.client import client
from slurm_plugins.client.errors import SlurmError
from slurm_plugins.client.values import Node
from slurm_plugins.service.answering import AnswerError, answer_questions
from slurm_plugins.service.child import Child, ChildError
from slurm_plugins.service.keeper.whence import Whence
from slurm_plugins.service.look import slurm_environment
from slurm_plugins.service.patience import COMMAND_SECONDS
from slurm_plugins.service.site_watch import Taken

__all__ = ["AddressQuestion", "keep_learning", "look_up"]

_log = logging.getLogger("gsubd.keeper")

_EVERY: Final = 600.0
_AGAIN: Final = 30.0
"""Seconds to the next try, when Slurm did not answer."""
_SECONDS: Final = 180.0
_LOOK_UP: Final = 60.0
_THREADS: Final = 16
_MAX_ANSWER: Final = 64 << 20
_NICER: Final = 5


class AddressQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """`site` is the text of the site file in force."""

    site: str
    site_path: str


async def keep_learning(whence: Whence, site: Taken, site_path: str, env: Mapping[str, str]) -> None:
    """Tell `whence` where nodes are, again and again; ends only by being cancelled."""
    question = msgspec.json.encode(AddressQuestion(site=site.text, site_path=site_path))
    child = Child(
        "slurm_plugins.service.keeper.addresses",
        what="asking for the nodes' addresses",
        env=env,
        nicer=_NICER,
    )
    said = False
    while True:
        try:
            output = await child.ask(question, seconds=_SECONDS, most=_MAX_ANSWER)
            found = msgspec.json.decode(output, type=dict[str, tuple[str, ...]])
        except (ChildError, msgspec.MsgspecError) as error:
            if not said:
                _log.warning("where nodes are is not known: %s", one_line(str(error)))
            said = True
            await asyncio.sleep(_AGAIN)
            continue
        finally:
            await child.close()  # the next question is far away
        said = False
        if found:
            whence.learn(found)
        await asyncio.sleep(_EVERY if found else _AGAIN)


def look_up(
    nodes: Iterable[Node], resolve: Callable[[str], Iterable[str]], seconds: float
) -> dict[str, tuple[str, ...]]:
    """Each node's addresses; without those whose names were not found in time."""
    names = {node.name: {node.address or node.name, node.hostname or node.name} for node in nodes}
    until = time.monotonic() + seconds
    threads = ThreadPoolExecutor(_THREADS)
    asked = {threads.submit(resolve, name): name for name in sorted(set().union(*names.values()))}
    found: dict[str, tuple[str, ...]] = {}
    try:
        for one in as_completed(asked, timeout=max(0.0, until - time.monotonic())):
            found[asked[one]] = tuple(one.result())
    except OutOfTimeError:
        pass
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
    return {
        node: tuple(sorted({address for name in some for address in found.get(name, ())}))
        for node, some in names.items()
    }


def _resolve(name: str) -> tuple[str, ...]:
    try:
        return tuple({str(one[4][0]) for one in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except (OSError, UnicodeError):
        return ()


def answer(text: bytes) -> bytes:
    """Answer an `AddressQuestion` with the addresses by node, both as JSON. Raises AnswerError."""
    question = msgspec.json.decode(text, type=AddressQuestion)
    site = parse_site(question.site, question.site_path)
    try:
        env = slurm_environment(os.environ, site)
        nodes = client(env, site.slurm.backend, timeout=COMMAND_SECONDS).nodes()
    except SlurmError as error:
        raise AnswerError(str(error)) from None
    return msgspec.json.encode(look_up(nodes, _resolve, _LOOK_UP))


if __name__ == "__main__":
    sys.exit(answer_questions(answer))
