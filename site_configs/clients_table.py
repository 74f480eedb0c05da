"""Programs that submit jobs and manage them: gsub's table of them, and the tables `[clients.NAME]` of a site file.

Such a program sees that a job failed and submits it again, or ends its workers when the work is done. An attempt that
gsub adds would run beside it. docs/clients.md describes each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from site_configs import kinds as t

__all__ = ["CLIENTS", "ClientProgram", "find_client", "is_left_alone"]

_TEXT = t.word(
    "a text of a batch script", r"[^\x00]{4,200}", "Write 4 to 200 characters that its scripts always hold."
)
_PATTERN = t.word(
    "a pattern of 2 characters or more", r"(?=.*[^*?].*[^*?])[^\x00-\x1f\x7f]{2,200}", 'Write it like "nf-*".'
)
_LONGEST: Final = 1024
"""Characters of a name or a comment that are looked at."""


@dataclass(frozen=True, slots=True)
class ClientProgram:
    """A program whose jobs gsub neither runs again nor tries first. One thing that its jobs carry is enough."""

    name: str
    script: tuple[str, ...] = t.key(
        (), t.listing(_TEXT, "a list of texts"), "Texts of which its batch scripts hold one. Unset: none."
    )
    job_name: tuple[str, ...] = t.key(
        (),
        t.listing(_PATTERN, "a list of patterns"),
        "Job names that only it gives; * stands for any text. Unset: none.",
    )
    comment: tuple[str, ...] = t.key(
        (),
        t.listing(_PATTERN, "a list of patterns"),
        "Comments of jobs that only it writes, as job_name. Unset: none.",
    )
    leave_alone: bool = t.key(
        True,
        t.FLAG,
        "Are its jobs left alone? false: gsub treats them as any other, and both may run one again.",
    )

    def is_of(self, *, name: str = "", comment: str = "", script: str = "") -> bool:
        """Check whether a job is one of this program's."""
        return (
            any(text in script for text in self.script)
            or any(fnmatchcase(name[:_LONGEST], pattern) for pattern in self.job_name)
            or any(fnmatchcase(comment[:_LONGEST], pattern) for pattern in self.comment)
        )


_ROWS: Final = (
    ClientProgram("submitit", ("submitit.core._submit", "export SUBMITIT_EXECUTOR="), ("submitit",)),
    ClientProgram(
        "snakemake", ("slurm-jobstep", ".snakemake/tmp."), ("snakejob.*",), ("rule_*", "group_*_wildcards_*")
    ),
    ClientProgram("nextflow", ("NEXTFLOW TASK:",), ("nf-*",)),
    ClientProgram("cylc", ("THIS IS A CYLC JOB SCRIPT",)),
    ClientProgram("toil", (), ("toil_job_*",)),
    ClientProgram("cromwell", (), ("cromwell_*",)),
    ClientProgram("dask-jobqueue", ("distributed.cli.dask_worker",), ("dask-worker",)),
    ClientProgram("parsl", ("process_worker_pool.py", 'export JOBNAME="parsl.'), ("parsl.*",)),
    ClientProgram("psij", ("_psij_update_status", "_PSIJ_SCRIPT_DONE")),
    ClientProgram("torchx", ("export PYTHONUNBUFFERED=1\nexport SLURM_UNBUFFEREDIO=1", "TORCHX_")),
    ClientProgram("executorlib", ("executorlib.backend", "executorlib/backend/")),
    ClientProgram("dpdispatcher", ("_task_tag_finished",)),
    ClientProgram("batchspawner", ("batchspawner-singleuser",), ("spawner-jupyterhub",)),
)

CLIENTS: Final[Mapping[str, ClientProgram]] = {row.name: row for row in _ROWS}
"""By name. A site adds rows, adds to what a row looks for, and says `leave_alone = false`."""


def find_client(
    stated: Mapping[str, ClientProgram], *, name: str = "", comment: str = "", script: str = ""
) -> str:
    """Find the program that manages a job, by what the job carries; "" where there is none.

    `stated`: what the site file says, `Site.clients`.

    >>> find_client({}, name="train", script="#!/bin/sh\\nsrun python -m submitit.core._submit /home/ada/log\\n")
    'submitit'
    >>> find_client({"flow": ClientProgram("flow", job_name=("flow-*",))}, name="flow-12")
    'flow'
    """
    for row in (*CLIENTS.values(), *stated.values()):
        if row.is_of(name=name, comment=comment, script=script):
            return row.name
    return ""


def is_left_alone(stated: Mapping[str, ClientProgram], name: str) -> bool:
    """Check whether jobs of a program ("": of none) are left alone.

    >>> is_left_alone({}, "parsl"), is_left_alone({}, "")
    (True, False)
    >>> is_left_alone({"parsl": ClientProgram("parsl", leave_alone=False)}, "parsl")
    False
    """
    row = stated.get(name) or CLIENTS.get(name)
    return row is not None and row.leave_alone
