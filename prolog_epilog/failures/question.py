"""What the agent asks the child that reads a job's logs: one line of JSON, answered by a `Finding` as another."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

__all__ = ["Question"]

_Path: TypeAlias = Annotated[str, Meta(max_length=8192)]


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """One ended attempt of a job: whose it was, and where its output went.

    `files` are absolute paths: its output and error streams. `gid` None stands for the user's own group. `ids` are what
    other processes' files bear in their names. `since` and `until` are the attempt's start and end, in seconds since
    the epoch. `work_dir` is where the script began; `not_begun`: Slurm says that it could not begin it. `unseen` has
    what is known before of what cannot be read. `signatures` are a site's own files of them.
    """

    uid: Annotated[int, Meta(ge=0, le=2**32 - 2)]
    gid: Annotated[int, Meta(ge=0, le=2**32 - 2)] | None
    files: tuple[_Path, ...]
    ids: tuple[str, ...]
    since: float
    until: float
    work_dir: _Path = ""
    not_begun: bool = False
    unseen: tuple[str, ...] = ()
    signatures: tuple[str, ...] = ()
    v: Literal[1] = 1
