"""`gsub admin doctor`: what is not as it should be on a host, and what to do about it. It only reads.

    for finding in diagnose(LocalHost(), Layout(Path("/etc/slurm/slurm.conf"))):
        print(finding.level, finding.check, finding.seen, finding.remedy)

The checks are a table (`CHECKS`), by theme in the modules `of_*`; each looks through a `Sight`, which looks at each
thing once. docs/doctor.md is made from the table.
"""

from slurm_plugins.install.doctor.check import GROUPS, ROLES, Check, Role
from slurm_plugins.install.doctor.run import SECONDS, diagnose, examine
from slurm_plugins.install.doctor.sight import METRICS, Question, Sight
from slurm_plugins.install.doctor.table import CHECKS

__all__ = [
    "CHECKS",
    "GROUPS",
    "METRICS",
    "ROLES",
    "SECONDS",
    "Check",
    "Question",
    "Role",
    "Sight",
    "diagnose",
    "examine",
]
