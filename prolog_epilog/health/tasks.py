"""What the agent asks a child process to check, and what that answers: one line of JSON each."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from prolog_epilog.health.finding import Finding, Limits

__all__ = ["Answer", "Task"]


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of a check. `kind` says what the check is: a function of `node_checks`, a program (`command`), or a
    site's class (`value`, like "mysite.checks:Licence"). `deadline` is in seconds. One that runs `alone` may block,
    and has a child of its own."""

    name: str
    kind: Literal["node", "command", "plugin"] = "node"
    deadline: float = 10.0
    limits: Limits = Limits()
    paths: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    value: str = ""
    node: str = ""
    alone: bool = False


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task found; nothing at all means that it does not apply here."""

    name: str
    findings: Annotated[tuple[Finding, ...], Meta(max_length=256)] = ()
