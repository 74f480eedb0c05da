"""The two things that are joined: a decision that waits for its job, and a job as it was submitted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from slurm_plugins.client import parse
from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.values import Job, Tres
from slurm_plugins.decide.decision import Decision
from slurm_plugins.decide.request import Request

__all__ = ["Pending", "Submission", "asked_gpus", "clean", "submissions"]

_TAG: Final = re.compile(r"(?<![\w-])gsub:(d-[0-9a-f]{16})(?![\w-])")


# gc=False: tens of thousands may wait after a burst; the garbage collector would walk them while a submission waits.
class Pending(msgspec.Struct, frozen=True, gc=False):
    """A decision whose job is not known yet. None: the user did not say.

    `gpus` are the four tres_per_... as the user wrote them, where the job still has them; so are `cpus` of a task and
    `minutes`, its time limit. `tagged`: the job was given
    the decision's id as AdminComment, so that nothing else counts.
    """

    id: str
    at: float
    uid: int
    user: str | None = None
    name: str | None = None
    partition: str | None = None
    work_dir: str | None = None
    array: bool = False
    het_offset: int | None = None
    gpus: tuple[str | None, ...] | None = None
    tagged: bool = False
    cpus: int | None = None
    minutes: int | None = None

    @classmethod
    def of(cls, request: Request, decision: Decision, at: float) -> Pending:
        """What must be known of a decision to find its job."""
        job, cut = request.job, request.cut
        enforced = decision.mode == "enforce" and not decision.opted_out
        edits = decision.edits if enforced else {}
        return cls(
            id=decision.id,
            at=at,
            uid=request.uid,
            user=job.user_name,
            name=None if "name" in cut else job.name,
            partition=None if "partition" in cut else job.partition,
            work_dir=None if "work_dir" in cut else job.work_dir,
            array=bool(job.array_inx),
            het_offset=job.het_job_offset,
            gpus=None if "gres" in edits else tuple(getattr(job, name) for name in _TRES),
            tagged=_tagged(edits.get("admin_comment")),
            cpus=None if "cpus_per_task" in edits else job.cpus_per_task,
            minutes=_minutes(job.time_limit, job.time_min),
        )

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Pending | None:
        """The same from a record of a decision (`written.decision_line`); None when it is none of ours."""
        asked = record.get("asked")
        if record.get("kind") != "decision" or not isinstance(asked, dict):
            return None
        try:
            edits = {one["field"]: one["after"] for one in record["changes"] if record["enforced"]}
            cut = record.get("cut", ())
            known = {key: asked.get(key) for key in ("name", "partition", "work_dir") if key not in cut}
            return cls(
                str(record["decision"]),
                float(record["at"]),
                int(record["uid"]),
                asked.get("user_name"),
                **known,
                array=bool(asked.get("array_inx")),
                het_offset=asked.get("het_job_offset"),
                gpus=None if "gres" in edits else tuple(asked.get(name) for name in _TRES),
                tagged=_tagged(edits.get("admin_comment")),
                cpus=None if "cpus_per_task" in edits else asked.get("cpus_per_task"),
                minutes=_minutes(asked.get("time_limit"), asked.get("time_min")),
            )
        except (KeyError, TypeError, ValueError):
            return None


_TRES: Final = ("tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task")


def _tagged(comment: object) -> bool:
    return isinstance(comment, str) and _TAG.search(comment) is not None


_UNLIMITED: Final = 0xFFFFFFFF


def _minutes(limit: int | None, least: int | None) -> int | None:
    """The time limit that the job keeps: none of one that has none, or that backfill may shorten (--time-min)."""
    return None if least or not limit or limit >= _UNLIMITED else limit


class Submission(msgspec.Struct, frozen=True, gc=False):
    """A job as it was submitted: of an array one for all its tasks, of a heterogeneous job one a component."""

    id: int
    submitted: float
    name: str
    uid: int | None
    user: str
    partition: str
    array: bool = False
    het_offset: int | None = None
    work_dir: str | None = None
    gpus: tuple[str, ...] | None = None
    tag: str | None = None
    cpus: int | None = None
    minutes: int | None = None


def submissions(jobs: Iterable[Job]) -> dict[int, Submission]:
    """What was submitted, by id. Left out: jobs that gsub was not asked about, and those without a submit time."""
    found: dict[int, Submission] = {}
    for job in jobs:
        number = job.array_job_id or job.id
        if job.submitted is None or number in found or _not_asked_about(job):
            continue
        tag = _TAG.search(job.admin_comment or "")
        found[number] = Submission(
            number,
            job.submitted.timestamp(),
            clean(job.name),
            job.uid,
            clean(job.user),
            clean(job.partition),
            job.array_job_id is not None,
            job.het_offset,
            None if job.work_dir is None else clean(job.work_dir),
            tuple(_gpus(getattr(job, name)) for name in _TRES),
            tag[1] if tag else None,
            job.cpus_per_task,
            None if job.time_limit is None else job.time_limit // 60,
        )
    return found


def _not_asked_about(job: Job) -> bool:
    """The shim lets a job without GPUs, or whose comment says so, pass without a question."""
    return job.gpu_count == 0 or "gsub:off" in re.split(r"[\s,;]+", job.comment or "")


def _gpus(tres: Tres) -> str:
    return ",".join(sorted(f"{name}={count}" for name, count in tres.items() if name.startswith("gres/gpu")))


def asked_gpus(one: Pending) -> tuple[str, ...] | None:
    """As `Submission.gpus`; None where it is not known what the job shows, or not understood what the user wrote."""
    if one.gpus is None:
        return None
    try:
        return tuple(_gpus(parse.tres(text or "")) for text in one.gpus)
    except SlurmFormatError:
        return None


def clean(text: str) -> str:
    """A text as both sides can show it: what is no UTF-8 is U+FFFD from the shim, surrogates from Slurm's commands."""
    return text if text.isascii() else re.sub("[\ufffd\udc80-\udcff]+", "\ufffd", text)
