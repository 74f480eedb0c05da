"""What differs between Slurm releases, as tables.

Fields are asked for by name, so a release that lacks one must not be asked for it: squeue 22.05 drops an unknown
field with a message on stderr and shifts nothing, 24.11 and newer do the same, sacct ends with an error. Recorded
from 22.05.8, 24.11.5 and 26.05.5; the releases in between from Slurm's release notes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .errors import SlurmFormatError

__all__ = ["NEWEST", "OLDEST", "FieldTable", "Version", "fields_for"]


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A Slurm release, ``major.minor`` being its date: ``Version(22, 5, 8)``. Ordered as releases are.

    >>> Version.parse("slurm-wlm 22.05.8") < Version(24, 11)
    True
    """

    major: int
    minor: int
    micro: int = 0

    @classmethod
    def parse(cls, text: str) -> Version:
        """The version in ``text``, the output of any ``--version`` ("slurm 24.11.5", "slurm-wlm 22.05.8",
        "26.05.0-0rc1").
        """
        found = re.search(r"(?<![\d.])(\d{2})\.(\d{1,2})(?:\.(\d+))?", text)
        if not found:
            raise SlurmFormatError("no version number", text)
        return cls(int(found[1]), int(found[2]), int(found[3] or 0))

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor): what decides over formats."""
        return self.major, self.minor

    def __str__(self) -> str:
        return f"{self.major:02d}.{self.minor:02d}.{self.micro}"


OLDEST = Version(22, 5)
NEWEST = Version(26, 5)

# Our name of a value -> Slurm's name of the field. Order does not matter; "JobID" must be there.
_SQUEUE: Mapping[str, str] = {
    "id": "JobID",
    "array_job_id": "ArrayJobID",
    "array_task": "ArrayTaskID",
    "het_job_id": "HetJobID",
    "het_offset": "HetJobOffset",
    "name": "Name",
    "user": "UserName",
    "uid": "UserID",
    "group": "GroupName",
    "account": "Account",
    "qos": "QOS",
    "partition": "Partition",
    "state": "State",
    "reason": "Reason",
    "dependency": "Dependency",
    "requeue": "Requeue",
    "restarts": "RestartCnt",
    "exit": "exit_code",
    "derived_exit": "DerivedEC",
    "time_limit": "TimeLimit",
    "submitted": "SubmitTime",
    "eligible": "EligibleTime",
    "start": "StartTime",
    "end": "EndTime",
    "deadline": "Deadline",
    "nodes": "NodeList",
    "scheduled_nodes": "SchedNodes",
    "required_nodes": "ReqNodes",
    "batch_host": "BatchHost",
    "num_nodes": "NumNodes",
    "num_cpus": "NumCPUs",
    "num_tasks": "NumTasks",
    "cpus_per_task": "cpus-per-task",
    "tres": "tres-alloc",
    "tres_per_job": "tres-per-job",
    "tres_per_node": "tres-per-node",
    "tres_per_socket": "tres-per-socket",
    "tres_per_task": "tres-per-task",
    "mem_per_tres": "mem-per-tres",
    "cpus_per_tres": "cpus-per-tres",
    "features": "Feature",
    "prefer": "Prefer",
    "reservation": "Reservation",
    "licenses": "Licenses",
    "switches": "ReqSwitch",
    "switches_wait": "Wait4Switch",
    "priority": "PriorityLong",
    "nice": "Nice",
    "work_dir": "WorkDir",
    "command": "Command",
    "stdout": "StdOut",
    "stderr": "StdErr",
    "comment": "Comment",
    "admin_comment": "admin_comment",
    "system_comment": "system_comment",
    "batch": "BatchFlag",
    "sharing": "OverSubscribe",
}

_SACCT: Mapping[str, str] = {
    "id": "JobIDRaw",
    "shown_id": "JobID",
    "name": "JobName",
    "user": "User",
    "uid": "UID",
    "group": "Group",
    "account": "Account",
    "qos": "QOS",
    "partition": "Partition",
    "cluster": "Cluster",
    "state": "State",
    "exit": "ExitCode",
    "derived_exit": "DerivedExitCode",
    "reason": "Reason",
    "submitted": "Submit",
    "eligible": "Eligible",
    "start": "Start",
    "end": "End",
    "elapsed": "ElapsedRaw",
    "suspended": "Suspended",
    "planned": "Reserved",
    "time_limit": "TimelimitRaw",
    "nodes": "NodeList",
    "num_nodes": "NNodes",
    "num_cpus": "ReqCPUS",
    "tres_requested": "ReqTRES",
    "tres": "AllocTRES",
    "features": "Constraints",
    "reservation": "Reservation",
    "priority": "Priority",
    "flags": "Flags",
    "work_dir": "WorkDir",
    "comment": "Comment",
    "admin_comment": "AdminComment",
    "system_comment": "SystemComment",
    "submit_line": "SubmitLine",
}


@dataclass(frozen=True, slots=True)
class FieldTable:
    """What may be asked of one release: our name -> Slurm's field name, for each command.

    ``squeue_short`` are values that this release's ``squeue -O`` lacks and its ``squeue -o`` has.
    """

    squeue: Mapping[str, str]
    squeue_short: Mapping[str, str]
    sacct: Mapping[str, str]

    def only(self, wanted: Collection[str] | None) -> FieldTable:
        """The table with these fields of squeue alone; with all of them where it is None."""
        if wanted is None:
            return self
        chosen = {name: field for name, field in self.squeue.items() if name in wanted}
        short = {name: field for name, field in self.squeue_short.items() if name in wanted}
        return FieldTable(chosen, short, self.sacct)


# (from release, command, our name, Slurm's field name; "" = the release dropped it). Later lines win.
_CHANGES: tuple[tuple[tuple[int, int], str, str, str], ...] = (
    ((22, 5), "squeue_short", "excluded_nodes", "%x"),
    ((23, 2), "sacct", "planned", "Planned"),
    ((23, 2), "sacct", "failed_node", "FailedNode"),
    ((23, 2), "sacct", "extra", "Extra"),
    ((24, 5), "sacct", "stdout", "StdOut"),
    ((24, 5), "sacct", "stderr", "StdErr"),
    ((24, 11), "squeue", "excluded_nodes", "ExcNodes"),
    ((24, 11), "squeue_short", "excluded_nodes", ""),
    ((24, 11), "sacct", "restarts", "Restarts"),
    ((26, 5), "squeue", "exclusive", "Exclusive"),
)


def fields_for(version: Version) -> FieldTable:
    """The field names of a release. One newer than all we know gets the newest table, an older one the oldest."""
    commands: dict[str, dict[str, str]] = {"squeue": dict(_SQUEUE), "squeue_short": {}, "sacct": dict(_SACCT)}
    for since, command, ours, theirs in _CHANGES:
        if version.release < since and since != OLDEST.release:
            continue
        if theirs:
            commands[command][ours] = theirs
        else:
            commands[command].pop(ours, None)
    return FieldTable(commands["squeue"], commands["squeue_short"], commands["sacct"])
