"""The process in which pyslurm runs: reads requests, answers them, and may die of libslurm at any time.

Started by `pyslurm_client` as a script; imports nothing of ours. One JSON object a line on standard input asks for one
collection, one line on standard output answers:

    {"id": 1, "load": "Nodes.load", "item": "Node", "attributes": ["name", "state"]}
    {"id": 1, "items": [["n1", "IDLE"], ["n2", "DOWN"]]}         or         {"id": 1, "error": "rpc", "message": "..."}

Before the first answer the classes are held against the attributes that are asked for: a pyslurm that lacks one is
refused by name. An attribute that fails to be worked out for one item is null.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # A script's own directory comes first on the path: our `parse` and `values` would shadow those of others.
    del sys.path[0]

import importlib
import json
import os
from collections.abc import Iterable
from types import ModuleType
from typing import IO, Any

__all__ = ["answer", "missing", "plain", "serve"]


def plain(value: object) -> Any:  # noqa: ANN401  whatever JSON can hold
    """Turn a value into JSON's types."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(part) for part in value]
    return str(value)


def missing(pyslurm: ModuleType, load: str, item: str, attributes: Iterable[str]) -> list[str]:
    """List what this pyslurm lacks of what is asked for."""
    try:
        _load(pyslurm, load)
    except AttributeError:
        return [load]
    kind = getattr(pyslurm, item, None)
    return [f"{item}.{name}" for name in attributes if not hasattr(kind, name)]


def _load(pyslurm: ModuleType, load: str) -> Any:  # noqa: ANN401  a function of pyslurm's
    target: Any = pyslurm
    for name in load.split("."):
        target = getattr(target, name)
    return target


def _item(item: object, attributes: Iterable[str]) -> list[Any]:
    values = []
    for name in attributes:
        try:
            values.append(plain(getattr(item, name)))
        except (ArithmeticError, LookupError, TypeError, ValueError, UnicodeError):
            # e.g. Job.memory, issue 312 of pyslurm: one odd item must not hide all others
            values.append(None)
    return values


def answer(pyslurm: ModuleType, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one request, with the module ``pyslurm``."""
    lacks = missing(pyslurm, request["load"], request["item"], request["attributes"])
    if lacks:
        version = getattr(pyslurm, "__version__", "of unknown release")
        return {"id": request["id"], "error": "unfit", "message": f"{version} lacks {', '.join(lacks)}"}
    try:
        items = _load(pyslurm, request["load"])().values()
        return {"id": request["id"], "items": [_item(item, request["attributes"]) for item in items]}
    except pyslurm.RPCError as error:
        return {"id": request["id"], "error": "rpc", "message": str(error)}
    except Exception as error:
        # told, not died of
        return {"id": request["id"], "error": "refused", "message": f"{type(error).__name__}: {error}"}


def serve(requests: Iterable[str], out: IO[str]) -> None:
    """Answer requests until there are none, or until pyslurm proves to be unusable here.

    Imports pyslurm at the first: the import alone may hang or end the process.
    """
    module: ModuleType | None = None
    for line in requests:
        request = json.loads(line)
        try:
            if module is None:
                module = importlib.import_module("pyslurm")
            reply = answer(module, request)
        except ModuleNotFoundError as error:
            kind = "missing" if error.name == "pyslurm" else "import"
            reply = {"id": request["id"], "error": kind, "message": str(error)}
        except Exception as error:
            # libslurm of another release, among others
            reply = {"id": request["id"], "error": "import", "message": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(reply) + "\n")
        out.flush()
        if reply.get("error") in ("missing", "import", "unfit"):
            # A half-imported module gives another error each time: the next question starts anew
            return


if __name__ == "__main__":
    # pyslurm prints, and so may libslurm: what goes to standard output must not land among our answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="surrogateescape")
    os.dup2(2, 1)
    serve(sys.stdin, answers)
