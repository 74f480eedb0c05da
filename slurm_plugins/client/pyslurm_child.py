"""The process in which pyslurm runs: reads requests, answers them, and may die of libslurm at any time.

Started by `pyslurm_client` as a script; imports nothing of ours. One JSON object a line on standard input asks for one
collection, one line on standard output answers:

    {"id": 1, "load": "Jobs.load", "arguments": [], "attributes": ["id", "name"]}
    {"id": 1, "items": [[7, "train"], [8, "eval"]]}         or         {"id": 1, "error": "rpc", "message": "..."}

An attribute that this pyslurm lacks, or that it fails to work out for one item, is null.
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

__all__ = ["answer", "plain", "serve"]

# A TRES collection shows its parts by this method, each part its number by `count`.
_FLATTEN = "to_dict"


def plain(value: object) -> Any:  # noqa: ANN401  whatever JSON can hold
    """``value`` in JSON's types: pyslurm's TRES become ``{"cpu": 4, "gres/gpu": 2}``, what has a ``count`` that
    number.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(part) for part in value]
    if hasattr(value, "count"):
        return plain(value.count)
    if hasattr(value, _FLATTEN):
        parts = getattr(value, _FLATTEN)(flatten_limits=True)
        return {str(name): plain(part.count) for name, part in parts.items() if hasattr(part, "count")}
    return str(value)


def _item(item: object, attributes: Iterable[str]) -> list[Any]:
    values = []
    for name in attributes:
        try:
            values.append(plain(getattr(item, name, None)))
        except (ArithmeticError, LookupError, TypeError, ValueError, UnicodeError):
            # e.g. Job.memory, issue 312 of pyslurm: one odd job must not hide all others
            values.append(None)
    return values


def answer(pyslurm: ModuleType, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request, with the module ``pyslurm``."""
    target: Any = pyslurm
    try:
        for name in request["load"].split("."):
            target = getattr(target, name)
        arguments = list(request["arguments"])
        if "filter" in request:
            arguments.append(pyslurm.db.JobFilter(**request["filter"]))
        loaded = target(*arguments)
        items = loaded.values() if hasattr(loaded, "values") else [loaded]
        return {"id": request["id"], "items": [_item(item, request["attributes"]) for item in items]}
    except pyslurm.RPCError as error:
        return {"id": request["id"], "error": "rpc", "message": str(error)}
    except AttributeError as error:
        return {"id": request["id"], "error": "old", "message": str(error)}
    except Exception as error:
        # an unknown user is a KeyError, a bad time a ValueError...: told, not died of
        return {
            "id": request["id"],
            "error": "refused",
            "message": f"pyslurm: {type(error).__name__}: {error}",
        }


def serve(requests: Iterable[str], out: IO[str]) -> None:
    """Answer requests until there are none. Imports pyslurm at the first: the import alone may hang or end the
    process.
    """
    module: ModuleType | None = None
    for line in requests:
        request = json.loads(line)
        try:
            if module is None:
                module = importlib.import_module("pyslurm")
            reply = answer(module, request)
        except ImportError as error:
            reply = {"id": request["id"], "error": "import", "message": str(error)}
        out.write(json.dumps(reply) + "\n")
        out.flush()


if __name__ == "__main__":
    # pyslurm prints, and so may libslurm: what goes to standard output must not land among our answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="surrogateescape")
    os.dup2(2, 1)
    serve(sys.stdin, answers)
