"""What sbatch says when it does not submit, and what a user can do about it: a table.

sbatch stays the judge; its own text is kept as the reason. A row is a pattern searched in that text, what
happened, and what to do. The first row that matches wins; `{1}` is the pattern's first group.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gsub.errors import FAILED, USAGE, UserError


class Remedy(NamedTuple):
    """One thing that sbatch says."""

    pattern: str
    what: str
    fix: str


_HELP: Final = "'sbatch --help' lists the options of this Slurm, 'gsub --help' ours"
_SHEBANG: Final = "make '#!/bin/bash' the first line of the script"

REMEDIES: Final[tuple[Remedy, ...]] = (
    # the command line
    Remedy(r"unrecognized option '([^']*)'", "no such option: {1}", _HELP),
    Remedy(r"invalid option -- '(.)'", "no such option: -{1}", _HELP),
    Remedy(
        r"option '([^']*)' is ambiguous", "the option {1} is an abbreviation of several", "write it in full"
    ),
    Remedy(r"option '([^']*)' requires an argument", "the option {1} needs a value", "{1}=VALUE"),
    Remedy(r"option requires an argument -- '(.)'", "the option -{1} needs a value", "-{1} VALUE"),
    Remedy(r"option '([^']*)' doesn't allow an argument", "the option {1} takes no value", "{1}"),
    Remedy(
        r"Script arguments not permitted with --wrap",
        "--wrap and a script were given together",
        "quote the whole command of --wrap, or leave --wrap out",
    ),
    Remedy(
        r"(?:Invalid numeric value|Invalid --?[\w-]+ (?:specification|value)|Invalid time specification|not a valid"
        r"|Invalid (?:memory|time|job|node|node count|number|argument|value)\b.*(?:specification|:)"
        r"|[Ii]nvalid (?:trim|dependency|depend|type|constraint)|mutually exclusive"
        r"|can't specify|don't specify|cannot specify|Cannot specify|Unable to parse|invalid number of)",
        "sbatch does not understand the value of an option",
        "see the option in 'man sbatch'",
    ),
    # the script
    Remedy(
        r"Unable to open file (.*)",
        "cannot read the script {1}",
        "check the path and the permission to read it; a program goes in --wrap='COMMAND'",
    ),
    Remedy(r"does not look like a batch script", "the script does not begin with #!", _SHEBANG),
    Remedy(r"Batch script is empty|only whitespace", "the script is empty", _SHEBANG),
    Remedy(r"DOS line breaks", "the script has DOS line ends", "sed -i 's/\\r$//' SCRIPT"),
    Remedy(r"NULL character", "the script is not text", "submit a shell script that starts the program"),
    Remedy(r"Unmatched `", "a quotation in the script's #SBATCH lines does not end", "close it"),
    Remedy(
        r"Invalid directive found in batch script: (.*)",
        "an #SBATCH line holds a word that is no option: {1}",
        "an option's value with spaces needs quotes",
    ),
    Remedy(
        r"[Pp]athname of a file, directory or other parameter too long|script too (?:large|long)|script too big",
        "the script or an option's value is too long",
        "keep data out of the script",
    ),
    # this machine
    Remedy(r"getcwd failed", "the folder you are in is gone", "cd to another"),
    Remedy(
        r"(?:establish a configuration source|Unable to process configuration file|s_p_parse_file|SLURM_CONF)",
        "Slurm is not configured on this machine",
        "submit on a login node of the cluster, or set SLURM_CONF",
    ),
    Remedy(
        r"[Mm]unge|[Pp]rotocol authentication error|Invalid authentication credential",
        "Slurm could not authenticate you",
        "the administrator can check that munged runs here and that the clocks agree",
    ),
    # the controller
    Remedy(
        r"[Ss]ocket timed out|[Zz]ero [Bb]ytes|Message send/recv|receive timeout|Connection reset",
        "the controller did not answer in time; the job may have been accepted all the same",
        "look with 'gsub status' before you submit again",
    ),
    Remedy(
        r"[Uu]nable to contact slurm controller|[Cc]onnection refused|No route to host|connect failure",
        "the Slurm controller is out of reach; nothing was submitted",
        "try again in a few minutes; 'scontrol ping' tells when it answers",
    ),
    Remedy(r"[Ii]nvalid partition", "there is no such partition", "'sinfo -s' lists the partitions"),
    Remedy(
        r"Invalid account or account/partition",
        "the account or partition is not open to you",
        "'sacctmgr show assoc user=$USER format=account,partition,qos' lists what is",
    ),
    Remedy(
        r"Invalid qos",
        "the quality of service (QOS) is not open to you",
        "'sacctmgr show assoc user=$USER format=account,qos' lists those that are",
    ),
    Remedy(
        r"(?:\b(?:Assoc|QOS)(?:Max|Grp)\w+|violates accounting/QOS policy)",
        "a limit of your account or QOS stands against this job",
        "ask for less, or wait for your other jobs to end ('gsub status')",
    ),
    Remedy(
        r"time limit",
        "the time limit is longer than the partition allows",
        "ask for less with --time; 'sinfo -o \"%P %l\"' lists the limits",
    ),
    Remedy(
        r"Invalid feature specification",
        "no node has the feature that --constraint names",
        "'sinfo -o \"%N %f\"' lists the features",
    ),
    Remedy(
        r"Invalid generic resource|Invalid Trackable RESource|Invalid gres",
        "the cluster does not have the resource that is asked for",
        "'sinfo -o \"%N %G\"' lists GPUs and other resources",
    ),
    Remedy(r"Invalid node name|invalid node name", "there is no such node", "'sinfo -N' lists the nodes"),
    Remedy(r"[Dd]ependency", "the dependency cannot be met", "'squeue --me' lists your jobs"),
    Remedy(r"Invalid job array", "the array is too large or malformed", "--array=0-99%10, say"),
    Remedy(r"[Rr]eservation", "the reservation is not there or not open to you", "'scontrol show res'"),
    Remedy(r"Invalid license", "there is no such license", "'scontrol show lic' lists them"),
    Remedy(
        r"node configuration is not available|More processors requested|cannot be satisfied|can not be satisfied"
        r"|Node count specification invalid|Requested partition configuration not available",
        "no set of nodes can ever give what is asked for",
        "ask for less a node; 'sinfo -N -o \"%N %c %m %G\"' lists CPUs, MB and GPUs of each",
    ),
    Remedy(r"Access/permission denied|Operation not permitted", "you may not ask for this", ""),
)

_FALLBACK: Final = Remedy("", "sbatch did not submit the job", "see 'man sbatch'")
# What sbatch puts before its messages, and the line that only repeats where help is.
_PREFIX: Final = re.compile(r"^sbatch: (?:(?:error|fatal): )?")
_OURS: Final = "gsub: "
_ASKED: Final = re.compile(r"job submission failed|allocation failure")
_NOISE: Final = re.compile(r'^Try "sbatch --help" for more information$|^Batch job submission failed: ')


def explain(stderr: str) -> UserError:
    """The one error that sbatch's messages amount to; its own words are the reason.

    Exit code FAILED when the controller was asked and refused or did not answer, USAGE when sbatch itself
    found the command line, the script or the configuration wanting.
    """
    lines = [_PREFIX.sub("", line).strip() for line in stderr.splitlines()]
    if refusal := _refused(lines):
        return refusal
    reason = _joined([line for line in (_NOISE.sub("", line) for line in lines) if line])
    what, fix = _FALLBACK.what, _FALLBACK.fix
    for remedy in REMEDIES:
        found = re.search(remedy.pattern, reason)
        if found:
            piece = (found.group(1) or "").strip() if found.re.groups else ""
            what, fix = remedy.what.replace("{1}", piece), remedy.fix.replace("{1}", piece)
            break
    return UserError(
        what,
        why=f"sbatch says: {reason}" if reason else "sbatch gave no reason",
        fix=fix,
        exit_code=FAILED if not reason or _ASKED.search(stderr) else USAGE,
    )


def _refused(lines: list[str]) -> UserError | None:
    """What gsub itself, beside the controller, said of a job that can never run: what, why, what helps."""
    begin = next((number for number, line in enumerate(lines) if line.startswith(_OURS)), None)
    if begin is None:
        return None
    said = [line for line in lines[begin:] if line and not _NOISE.search(line)]
    *why, fix = said[1:] or [""]
    # Below a wrapper it may be gsub's own error, with its words ahead of the lines
    why = [text.removeprefix("why: ") for text in why]
    return UserError(said[0].removeprefix(_OURS), why=" ".join(why), fix=fix.removeprefix("try: "))


def _joined(lines: list[str]) -> str:
    """sbatch breaks sentences over lines, and tells several things on a line each."""
    text = ""
    for line in lines:
        new = text and line[0].isupper() and text[-1] not in ".:;"
        text += ("; " if new else " " if text else "") + line
    return text
