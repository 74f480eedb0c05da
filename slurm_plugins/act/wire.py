"""What gsub-act is asked and what it answers: one JSON object a line, in one form only."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Final, Literal

import msgspec

__all__ = [
    "MAX_LINE",
    "STALE",
    "Answer",
    "MalformedError",
    "Request",
    "Result",
    "decode_answer",
    "digest_of",
    "parse_request",
]

MAX_LINE: Final = 16 << 10
"""Bytes of one request; what is longer is not read."""
STALE: Final = 600.0
"""Seconds after which a request is not taken any more: an id has to be remembered for so long and no longer."""

Result = Literal["done", "refused", "failed", "unknown"]
"""`refused`: nothing was asked of Slurm. `failed`: Slurm said no, or it did not come about. `unknown`: Slurm did not
say; it is being found out, and the same id gets the answer later."""

_Id = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{8,64}\Z")]
_Cluster = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9_-]{0,39}\Z")]
_Job = Annotated[str, msgspec.Meta(pattern=r"\A[1-9][0-9]{0,9}(_[0-9]{1,9})?\Z")]
_Number = Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]
_Verb = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,32}\Z")]
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z]{1,32}\Z")]
_Value = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
_Why = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_Times = Annotated[int, msgspec.Meta(ge=0, le=10**6)]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing to do to one job.

    Parameters
    ----------
    id: the asker's, unique: a repeat is answered and not done again.
    at: when it was asked, seconds since the epoch.
    cluster: the job's; job: `123` or `123_4`, a task of an array; number: the task's own, where the asker knows it:
        by it Slurm tells of this task alone, by `123_4` of the whole array.
    verb: one of `verbs.VERBS`; fields: for `update`, Slurm's names and values (`verbs.FIELDS`).
    why: one line for whoever reads the journal; by: the decision's or the verdict's id.
    until: for what holds a job: the asker's promise to release it by then, seconds since the epoch.
    restarts: for requeue, requeuehold, update and cancel: how often the job has been restarted, as the asker saw it; it
        is refused when that is not so any more. None: however often; cancel takes none.
    """

    v: Literal[1]
    id: _Id
    at: _Time
    cluster: _Cluster
    job: _Job
    verb: _Verb
    fields: Annotated[dict[_Name, _Value], msgspec.Meta(max_length=8)] = {}
    why: _Why
    by: _Id
    until: _Time | None = None
    restarts: _Times | None = None
    number: _Number | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request.

    `said` is a sentence, `again` after how many seconds it may be asked once more, `repeat` that this id was dealt with
    before.
    """

    v: Literal[1] = 1
    id: str
    result: Result
    said: str = ""
    again: float | None = None
    repeat: bool = False

    def line(self) -> bytes:
        """As it is sent."""
        return _ENCODER.encode(self) + b"\n"


class MalformedError(Exception):
    """A line that is no request; `id` is the one that it seems to have, else empty."""

    def __init__(self, why: str, id_: str = "") -> None:
        self.why = why
        self.id = id_
        super().__init__(why)


_ENCODER: Final = msgspec.json.Encoder()
_REQUEST: Final = msgspec.json.Decoder(Request, strict=True)
_ANSWER: Final = msgspec.json.Decoder(Answer, strict=True)
_SEEN_ID: Final = re.compile(rb'"id"\s*:\s*"([A-Za-z0-9._-]{8,64})"')


def parse_request(line: bytes) -> Request:
    """A line, with or without its newline. Raises MalformedError."""
    try:
        request = _REQUEST.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        seen = _SEEN_ID.search(line, 0, 4096)
        raise MalformedError(str(error)[:200], seen[1].decode() if seen else "") from None
    if not request.why.isprintable():
        raise MalformedError("`why` is one line of printable characters", request.id)
    return request


def decode_answer(line: bytes) -> Answer:
    """Raises msgspec.DecodeError."""
    return _ANSWER.decode(line)


def digest_of(request: Request) -> str:
    """What two requests of one id must share to be the same, as a digest."""
    same: dict[str, object] = {
        "cluster": request.cluster, "job": request.job, "verb": request.verb, "fields": request.fields,
    }  # fmt: skip
    # Only where it was said: the journal may have digests of a version that did not know it
    if request.restarts is not None:
        same["restarts"] = request.restarts
    return hashlib.sha256(msgspec.json.encode(same, order="sorted")).hexdigest()[:32]
