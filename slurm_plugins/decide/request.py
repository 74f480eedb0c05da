"""A submission as the shim tells of it: the fields of job_desc that the user set, typed and bounded.

The field names are Lua's (Slurm's job_submit/lua); a field that is unset is None. Whoever reads a request from a socket
gets a `RequestError` for anything else; a field that this release of gsub does not know is left aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from slurm_plugins.decide.edits import EDITS, Value

__all__ = ["HEAD_BYTES", "MAX_BYTES", "Job", "Request", "RequestError", "parse_request", "with_edits"]

MAX_BYTES: Final = 256 * 1024
"""The longest request line, in bytes."""
HEAD_BYTES: Final = 64 * 1024
"""How much of the script travels along, in bytes."""

# 2**53: Lua's numbers are doubles
_Int = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Number = _Int | None
_Word = _Text | None


class RequestError(ValueError):
    """A request that cannot be read; the message says where, and holds nothing that the sender wrote."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for, before Slurm filled in its defaults.

    Memory is MiB; `time_limit` and `time_min` are minutes, `wait4switch` seconds, `begin_time` seconds since the epoch.
    `shared` is 0 for --exclusive, 1 for --oversubscribe, 2 and 3 for --exclusive=user and =mcs; `tres_*` are texts like
    ``gres:gpu:a100:4`` (22.05) or ``gres/gpu:a100:4`` (23.11 and newer).
    """

    account: _Word = None
    admin_comment: _Word = None
    array_inx: _Word = None
    begin_time: _Number = None
    bitflags: _Number = None
    comment: _Word = None
    contiguous: _Number = None
    cores_per_socket: _Number = None
    cpus_per_task: _Number = None
    cpus_per_tres: _Word = None
    cron_job: bool | _Int | None = None
    default_account: _Word = None
    dependency: _Word = None
    exc_nodes: _Word = None
    extra: _Word = None
    features: _Word = None
    het_job_offset: _Number = None
    immediate: bool | _Int | None = None
    licenses: _Word = None
    max_cpus: _Number = None
    max_nodes: _Number = None
    mem_per_tres: _Word = None
    min_cpus: _Number = None
    min_mem_per_cpu: _Number = None
    min_mem_per_node: _Number = None
    min_nodes: _Number = None
    name: _Word = None
    ntasks_per_board: _Number = None
    ntasks_per_core: _Number = None
    ntasks_per_gpu: _Number = None
    ntasks_per_node: _Number = None
    ntasks_per_socket: _Number = None
    ntasks_per_tres: _Number = None
    num_tasks: _Number = None
    partition: _Word = None
    pn_min_cpus: _Number = None
    pn_min_tmp_disk: _Number = None
    prefer: _Word = None
    qos: _Word = None
    req_nodes: _Word = None
    req_switch: _Number = None
    requeue: _Number = None
    reservation: _Word = None
    segment_size: _Number = None
    shared: _Number = None
    sockets_per_node: _Number = None
    threads_per_core: _Number = None
    time_limit: _Number = None
    time_min: _Number = None
    tres_per_job: _Word = None
    tres_per_node: _Word = None
    tres_per_socket: _Word = None
    tres_per_task: _Word = None
    user_name: _Word = None
    wait4switch: _Number = None
    work_dir: _Word = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A question of the shim, or of `gsub explain`.

    Parameters
    ----------
    id: the sender's number for it, 1 to 2^53 - 1; the answer repeats it.
    uid: the job's owner. submit_uid: who sent it to slurmctld (root for slurmrestd).
    slurm: release as "22.05"; empty when the sender does not know.
    env: of the job's environment the allow-listed names (`steps.ENV_NAMES` and GSUB's own).
    batch: whether the job has a script and an environment (sbatch, not salloc or srun).
    script_head: the first `HEAD_BYTES` of the script; script_bytes: its whole length.
    cut: fields that were too long to send whole: what they say is not known.
    shim: counters of the shim since its start.
    """

    v: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    id: Annotated[int, msgspec.Meta(ge=1, le=(1 << 53) - 1)]
    uid: Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
    submit_uid: Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)] | None = None
    slurm: Annotated[str, msgspec.Meta(max_length=16)] = ""
    job: Job
    env: dict[Annotated[str, msgspec.Meta(max_length=64)], _Text] = {}
    batch: bool = True
    script_head: Annotated[str, msgspec.Meta(max_length=HEAD_BYTES)] = ""
    script_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    cut: tuple[_Text, ...] = ()
    shim: dict[Annotated[str, msgspec.Meta(max_length=32)], _Int] = {}

    @property
    def opted_out(self) -> bool:
        """The user said no: ``--comment=gsub:off``, a word among others there, or ``GSUB=off``."""
        return self._says("off")

    @property
    def opted_in(self) -> bool:
        """The user wants to hear of it even when nothing changes: ``gsub:explain``, ``GSUB=explain``."""
        return self._says("explain")

    def _says(self, word: str) -> bool:
        return self.env.get("GSUB", "").strip().lower() == word or f"gsub:{word}" in self._words()

    def _words(self) -> list[str]:
        return (self.job.comment or "").replace(",", " ").replace(";", " ").lower().split()

    def asks(self, name: str) -> str:
        """The user's own wish of that name for this job, in lower case; empty for none.

        ``GSUB_REPACK=yes`` in the environment, or a word of the comment: ``gsub:repack`` (which is yes),
        ``gsub:retune=lower``. The environment counts first; salloc and srun send none.
        """
        return self.env.get(f"GSUB_{name.upper()}", "").strip().lower() or self.wishes(name)

    def wishes(self, name: str) -> str:
        """As `asks`, by the comment alone."""
        if not self.job.comment:
            return ""
        wish = f"gsub:{name.lower()}"
        for word in self._words():
            if word == wish:
                return "yes"
            if word.startswith(wish + "="):
                return word.removeprefix(wish + "=")
        return ""


_DECODER: Final = msgspec.json.Decoder(Request)


def parse_request(line: bytes) -> Request:
    """Read one line from a socket. Raises RequestError for anything that is not a request."""
    if len(line) > MAX_BYTES:
        raise RequestError(f"longer than {MAX_BYTES} bytes")
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        # msgspec names the place and the kind that it wanted, never the value
        raise RequestError(str(error)[:200]) from None
    except (RecursionError, UnicodeDecodeError):
        raise RequestError("not JSON that can be read") from None


# An edit's name is job_desc's for writing; `gres` is read back as tres_per_node.
_READ_AS: Final = {"gres": "tres_per_node"}


def with_edits(request: Request, edits: Mapping[str, Value], env: Mapping[str, str] | None = None) -> Request:
    """The request as it would read after the edits: what the next stage sees."""
    fields: dict[str, Any] = {
        _READ_AS.get(name, name): value for name, value in edits.items() if name in EDITS
    }
    if "min_mem_per_node" in fields:
        fields["min_mem_per_cpu"] = None  # job_desc holds one of the two
    elif "min_mem_per_cpu" in fields:
        fields["min_mem_per_node"] = None
    return msgspec.structs.replace(
        request, job=msgspec.structs.replace(request.job, **fields), env={**request.env, **(env or {})}
    )
