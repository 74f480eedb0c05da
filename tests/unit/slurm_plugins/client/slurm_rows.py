"""Rows as Slurm's commands print them, made by hand: fields by our names, the rest as an ordinary job has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from slurm_plugins.client.runner import Completed
from slurm_plugins.client.versions import Version, fields_for

_JOB = {
    "name": "train",
    "user": "ada",
    "uid": "1001",
    "partition": "gpu",
    "state": "RUNNING",
    "reason": "None",
    "array_job_id": "N/A",
    "array_task": "N/A",
    "het_job_id": "N/A",
    "het_offset": "N/A",
    "restarts": "0",
    "exit": "0:0",
    "derived_exit": "0:0",
    "time_limit": "1:00:00",
    "submitted": "1795236133",
    "num_nodes": "1",
    "num_cpus": "1",
    "num_tasks": "1",
    "cpus_per_task": "1",
    "tres": "cpu=1,mem=8000M,node=1,billing=1",
    "batch": "1",
    "requeue": "1",
    "priority": "100",
    "nice": "0",
    "switches": "0",
    "work_dir": "/home/ada",
}
_ATTEMPT = {
    **_JOB,
    "state": "COMPLETED",
    "elapsed": "60",
    "time_limit": "60",
    "end": "1795236193",
    "nodes": "n1",
}
_NODE = {"State": "IDLE", "CPUTot": "64", "RealMemory": "512000", "Gres": "gpu:8", "CfgTRES": "cpu=64"}

Row = Mapping[str, str]


def job(number: int, **more: str) -> Row:
    """A row of squeue."""
    return {**_JOB, "id": str(number), **more}


def attempt(number: int, **more: str) -> Row:
    """A row of sacct."""
    return {**_ATTEMPT, "id": str(number), "shown_id": str(number), **more}


def node(name: str, **more: str) -> Row:
    """A record of ``scontrol show node``."""
    return {"NodeName": name, **_NODE, **more}


class Answers:
    """Runs no command, and answers each with these rows, in the fields and the form that it asks for."""

    def __init__(
        self,
        release: str = "24.11.5",
        *,
        jobs: Iterable[Row] = (),
        attempts: Iterable[Row] = (),
        nodes: Iterable[Row] = (),
    ) -> None:
        self.release = release
        fields = fields_for(Version.parse(release))
        self._rows = {
            "squeue": (list(jobs), {**fields.squeue, **fields.squeue_short, "short_id": "%A"}),
            "sacct": (list(attempts), fields.sacct),
        }
        self._nodes = list(nodes)
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str], **_: object) -> Completed:
        self.asked.append(argv)
        if "--version" in argv:
            return Completed(argv[0], 0, f"slurm {self.release}\n", "")
        if argv[0] == "scontrol":
            lines = (" ".join(f"{key}={value}" for key, value in row.items()) for row in self._nodes)
            return Completed(argv[0], 0, "".join(f"{line}\n" for line in lines), "")
        rows, fields = self._rows[argv[0]]
        asked = next((word[7:].split(",") for word in argv if word.startswith("--jobs=")), None)
        if asked is not None and argv[0] == "squeue":
            rows = [
                row for row in rows if {row["id"], f"{row['array_job_id']}_{row['array_task']}"} & set(asked)
            ]
        separator = next(found[0] for word in argv if (found := _SEPARATOR.search(word)))
        columns = [ours for word in _asked(argv, separator) for ours in fields if fields[ours] == word]
        shown = ({**row, "short_id": row.get("id", "")} for row in rows)
        table = ("".join(row.get(column, "") + separator for column in columns) for row in shown)
        return Completed(argv[0], 0, "".join(f"{line}\n" for line in table), "")


_SEPARATOR = re.compile("\x1f[0-9A-Za-z_-]{8}")


def _asked(argv: list[str], separator: str) -> list[str]:
    """Slurm's names of the fields, in order."""
    if argv[0] == "sacct":
        return next(word for word in argv if word.startswith("--format="))[9:].split(",")
    if argv[-2] == "-O":
        return [field.partition(":")[0] for field in argv[-1].split(",")]
    return argv[-1].split(separator)[:-1]
