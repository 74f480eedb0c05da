"""What a job's logs say of its failure, and the verdict on an attempt: values that cross process borders.

A finding is made of what users write, by a process without privileges: it is checked as any answer of a stranger,
and what it says never steers another user's jobs by itself. Texts in it have their secrets masked.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

__all__ = ["Evidence", "Finding", "Source", "Tier"]

_Text: TypeAlias = Annotated[str, Meta(max_length=600)]
_Word: TypeAlias = Annotated[str, Meta(max_length=128)]
_Line: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]

Source: TypeAlias = Literal["root", "user"]
"""Who could have written it: NVML, the kernel and Slurm; or the user (logs, `gsub.train`)."""
Tier: TypeAlias = Literal["decisive", "explicit", "implicit", "cascade", "none"]
"""How much it says: Slurm's own word; a cause by name; a consequence; what others report of a lost peer; nothing."""


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line that speaks: of a log, of Slurm, of a node.

    `file` is the log's path, "" for what is no log; `line` its number from 1; where a long log was read from its end
    only, `from_end` counts from the last line (1). `rank` and `node` are of the process that wrote it, where known.
    `what` says in a word where it is from: "log", "slurm", "exit", "xid", "oom", "health", "error file".
    """

    text: _Text
    file: Annotated[str, Meta(max_length=4096)] = ""
    line: _Line | None = None
    from_end: _Line | None = None
    rank: Annotated[int, Meta(ge=0, le=1 << 24)] | None = None
    node: _Word = ""
    at: Annotated[float, Meta(ge=0, le=4e9)] | None = None
    what: _Word = "log"
    source: Source = "user"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """The one reason that an attempt's logs give, or `none`, or `no_signature`.

    `confidence` is from 0 to 1. `signature` names the rule that decided; `fingerprint` is the same for the same
    evidence in other runs ("" without any). `evidence` has the deciding line first. `rank` and `node` are the first to
    fail, where known. `unseen` says in a sentence each what could not be read, `remarks` what else a user should know.
    `progressed` is whether the log shows work done before it failed; None: it does not show. `checkpoint` is the path
    or address of the last checkpoint that the log shows to have been saved, "" without any; `resumes` says that the
    program told, through `gsub.train`, that it goes on from it.
    """

    reason: _Word
    confidence: Annotated[float, Meta(ge=0, le=1)] = 0.0
    tier: Tier = "none"
    evidence: Annotated[tuple[Evidence, ...], Meta(max_length=16)] = ()
    advice: _Text = ""
    signature: _Word = ""
    fingerprint: _Word = ""
    rank: Annotated[int, Meta(ge=0, le=1 << 24)] | None = None
    node: _Word = ""
    unseen: Annotated[tuple[_Text, ...], Meta(max_length=32)] = ()
    remarks: Annotated[tuple[_Text, ...], Meta(max_length=16)] = ()
    progressed: bool | None = None
    checkpoint: _Text = ""
    resumes: bool = False
